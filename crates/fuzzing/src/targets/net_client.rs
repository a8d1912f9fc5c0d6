//! A service that we connected to, and that says what it likes. First byte: bit 0 a good answer to the hello goes first, bit 1 frames are mended,
//! bit 2 with a call of ours outstanding. One value of it ([`ETCD`]) is for the answers of etcd.

use super::etcd;
use super::net_server::{Curious, frame};
use crate::stream::{Script, mend_frames};
use crate::world;
use glowfs_net::{Bulk, Connector, Request};
use glowfs_rt::{Duration, Pool};
use glowfs_types::wire::encode;
use glowfs_types::wire::hello::{Hello, HelloReply, features};
use glowfs_types::wire::method;
use std::rc::Rc;

/// The id of the first call of a connection.
const FIRST_CALL: u64 = 1 << 16;
/// The first byte of what etcd answers ([`etcd`]).
const ETCD: u8 = 0xec;

pub fn run(input: &[u8]) {
    if let Some((&ETCD, answers)) = input.split_first() {
        return etcd::run(answers);
    }
    let Some((&[how, piece], rest)) = input.split_first_chunk::<2>() else { return };
    let mut bytes = Vec::new();
    if how & 1 != 0 {
        let reply = encode(&HelloReply { features: features::SHM, ..HelloReply::default() });
        bytes = mend_frames(&frame(2, 0, method::HELLO, 0, 0, &reply));
    }
    bytes.extend(if how & 2 != 0 { mend_frames(rest) } else { rest.to_vec() });
    let script = Script::new(bytes, 1 + usize::from(piece) * 64);
    world::run(Some(script), |rt| async move {
        let hello = Hello { features: features::SHM, ..Hello::default() };
        let connector = Connector::new(&rt, hello, Rc::new(Curious));
        let Ok(conn) = connector.connect(&["unix:///fuzz".to_owned()]).await else { return };
        if how & 4 != 0 {
            let request = Request {
                method: method::ECHO,
                body: b"body".to_vec(),
                bulk: Bulk::Recv(Pool::heap().alloc(10_000)),
                tenant: Default::default(),
                deadline: Duration::from_secs(30),
            };
            let _ = conn.call(request).await;
        }
        let _ = rt.timeout(Duration::from_secs(90), conn.closed()).await;
        connector.close();
    });
}

pub fn seeds() -> Vec<Vec<u8>> {
    let reply = encode(&HelloReply { release: "1".into(), ..HelloReply::default() });
    let frames = |parts: &[Vec<u8>], how| [&[how, 255][..], &parts.concat()].concat();
    let answer = |flags, bulk| frame(2, flags, method::ECHO, FIRST_CALL, bulk, b"answer");
    let mut seeds = vec![
        frames(&[frame(2, 0, method::HELLO, 0, 0, &reply), answer(0, 0)], 6),
        frames(&[answer(1, 9_000)], 7),
        frames(&[answer(1, 10_001)], 7),
        frames(&[frame(1, 0, 350, 9, 0, b"recall"), answer(0, 0)], 7),
    ];
    seeds.extend(etcd::seeds().iter().map(|answers| [&[ETCD], &answers[..]].concat()));
    seeds
}
