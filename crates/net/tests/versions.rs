//! Two releases that meet: what is new and may be ignored is ignored, what is not understood is refused with words.

use crate::common::*;
use glowfs_rt::{Address, Rt, real};
use glowfs_types::Status;
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::frame::{FrameHeader, HEADER_BYTES};
use glowfs_types::wire::hello::{Hello, HelloReply, features};
use glowfs_types::wire::{ErrorBody, decode, encode, method};
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;
use zerocopy::IntoBytes;

fn frame(method: u16, id: u64, body: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        kind: 1,
        method: method.into(),
        request_id: id.into(),
        body_len: (body.len() as u32).into(),
        body_crc: if body.is_empty() { 0 } else { crc32c(body) }.into(),
        ..FrameHeader::default()
    };
    [header.seal().as_bytes(), body].concat()
}

/// Says `bytes` on a fresh connection; the first `count` answers.
async fn talk(rt: &Rt, to: &Address, bytes: &[u8], count: usize) -> Vec<(FrameHeader, Vec<u8>)> {
    let stream = rt.connect(to).await.expect("connect");
    poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)], &[])).await.expect("write");
    let (mut all, mut buffer, mut answers) = (Vec::new(), vec![0; 4096], Vec::new());
    loop {
        while let Some((head, behind)) = all.split_first_chunk::<HEADER_BYTES>() {
            let header = FrameHeader::parse(head).expect("a frame");
            let Some((body, rest)) = behind.split_at_checked(header.body_len.get() as usize) else {
                break;
            };
            answers.push((header, body.to_vec()));
            all = rest.to_vec();
        }
        if answers.len() >= count {
            return answers;
        }
        let read = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut buffer)]));
        let n = rt.timeout(Duration::from_secs(60), read).await.expect("an answer").expect("read");
        assert!(n > 0, "the server ended it after {answers:?}");
        all.extend_from_slice(&buffer[..n]);
    }
}

#[test]
fn a_newer_peer_with_more_fields_features_and_methods_is_served() {
    real::run(|rt| async move {
        let service = Service::new(&rt);
        let server = start(&rt, vec![any_tcp()], service.clone());
        // Two fields that this build does not know, and every feature bit there is.
        let mut newer = encode(&Hello { features: u64::MAX, ..hello() });
        assert_eq!(newer[0], 0x88, "an array of the eight fields of today");
        newer[0] = 0x8a;
        newer.extend([0x01, 0x62, b'h', b'i']);
        let bytes = [
            frame(method::HELLO, 1, &newer),
            frame(999, 2, b"of a later release"),
            frame(method::ECHO, 3, b"still here"),
        ]
        .concat();
        let answers = talk(&rt, &server.addresses()[0], &bytes, 3).await;
        let of = |id: u64| {
            let found = answers.iter().find(|(h, _)| h.request_id.get() == id);
            found.unwrap_or_else(|| panic!("no answer to {id} in {answers:?}"))
        };
        // The answer to a hello has no id.
        let (head, body) = of(0);
        assert_eq!(Status::from_code(head.status.get()), Status::Ok);
        let reply: HelloReply = decode(body).expect("reply");
        assert_eq!(reply.features & !features::SHM, 0, "only features that both know");
        let (head, body) = of(2);
        assert_eq!(Status::from_code(head.status.get()), Status::UnknownMethod);
        assert!(!decode::<ErrorBody>(body).expect("words").message.is_empty());
        let (head, body) = of(3);
        assert_eq!(
            (Status::from_code(head.status.get()), &body[..]),
            (Status::Ok, &b"still here"[..])
        );
    });
}

#[test]
fn a_newer_frame_is_refused_with_both_versions_in_words() {
    real::run(|rt| async move {
        let service = Service::new(&rt);
        let server = start(&rt, vec![any_tcp()], service.clone());
        let mut bytes = frame(method::HELLO, 1, &encode(&hello()));
        bytes[4] = 2;
        let crc = crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        let answers = talk(&rt, &server.addresses()[0], &bytes, 1).await;
        let (head, body) = answers.first().expect("an answer");
        assert_eq!(Status::from_code(head.status.get()), Status::WrongProtocol);
        let text = decode::<ErrorBody>(body).expect("words").message;
        for word in ["version 2", "speaks 1", "upgrade"] {
            assert!(text.contains(word), "{text}");
        }
    });
}
