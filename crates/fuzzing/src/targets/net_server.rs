//! Whoever connects. First byte: bit 0 a good hello goes first, bit 1 frames are mended, bit 2 on a TCP address; the second: bytes a read gives.

use crate::stream::{Script, mend_frames};
use crate::world;
use glowfs_net::{Handler, Incoming, Reply, Server, TrustAll};
use glowfs_rt::{Address, Duration};
use glowfs_types::wire::encode;
use glowfs_types::wire::hello::{Hello, HelloReply, RegisterRegion, features};
use glowfs_types::wire::method;
use std::rc::Rc;

/// Uses everything that a call offers.
pub struct Curious;

impl Handler for Curious {
    fn handle(self: Rc<Self>, mut call: Incoming) {
        let sent = call.take_bulk().map(|b| b.iter().map(|&b| u64::from(b)).sum::<u64>());
        // More than a megabyte of room costs the fuzzer time and shows nothing.
        let small = call.reply_room() <= 1 << 20;
        let bulk = small.then(|| call.reply_buffer().ok()).flatten().map(|mut b| {
            b.fill(1);
            b
        });
        let body = call.body().to_vec();
        call.reply(sent.map(|_| Reply { body, bulk }));
    }
}

/// One frame with nothing mended: [`mend_frames`] does that.
pub fn frame(kind: u8, flags: u8, method: u16, id: u64, bulk: u16, body: &[u8]) -> Vec<u8> {
    let mut head = vec![0; 64];
    head[6] = kind;
    head[7] = flags;
    head[8..10].copy_from_slice(&method.to_le_bytes());
    head[16..24].copy_from_slice(&id.to_le_bytes());
    head[32..34].copy_from_slice(&(body.len() as u16).to_le_bytes());
    head[36..38].copy_from_slice(&bulk.to_le_bytes());
    head[40] = 1;
    head.extend(body);
    head
}

pub fn run(input: &[u8]) {
    let Some((&[how, piece], rest)) = input.split_first_chunk::<2>() else { return };
    let mut bytes = Vec::new();
    if how & 1 != 0 {
        let hello = encode(&Hello { features: features::SHM, ..Hello::default() });
        bytes = mend_frames(&frame(1, 0, method::HELLO, 1, 0, &hello));
    }
    bytes.extend(if how & 2 != 0 { mend_frames(rest) } else { rest.to_vec() });
    let script = Script::new(bytes, 1 + usize::from(piece) * 64);
    let address = if how & 4 != 0 {
        Address::Tcp(([127, 0, 0, 1], 1).into())
    } else {
        Address::Unix("/fuzz".into())
    };
    world::run(Some(script), |rt| async move {
        let info = HelloReply { features: features::SHM, ..HelloReply::default() };
        let server = Server::start(&rt, vec![address], info, Rc::new(TrustAll), Rc::new(Curious));
        let server = server.expect("a listener in memory");
        rt.sleep(Duration::from_millis(1)).await;
        while !server.connections().is_empty() {
            rt.sleep(Duration::from_secs(1)).await;
        }
        server.stop().await;
    });
}

pub fn seeds() -> Vec<Vec<u8>> {
    let hello = encode(&Hello { release: "1".into(), ..Hello::default() });
    let region = encode(&RegisterRegion { key: 1, len: 65_536 });
    let frames = |parts: &[Vec<u8>], how| [&[how, 255][..], &parts.concat()].concat();
    let announce = frame(3, 0, method::REGISTER_REGION, 0, 0, &region);
    vec![
        frames(
            &[frame(1, 0, method::HELLO, 1, 0, &hello), frame(1, 0, method::ECHO, 2, 0, b"x")],
            2,
        ),
        frames(&[frame(1, 1, method::ECHO, 2, 4096, b"inline"), frame(1, 8, 200, 3, 512, b"")], 3),
        frames(&[announce.clone(), frame(1, 2, 201, 2, 4096, b"region")], 3),
        frames(&[announce, frame(1, 4, 200, 2, 4096, b"")], 3),
        frames(&[frame(3, 0, 350, 0, 0, b"one-way"), frame(2, 0, 2, 65_536, 0, b"")], 7),
    ]
}
