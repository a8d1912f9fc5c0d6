//! What comes before a call: connections that never say hello, say it twice, or send what is no frame. The same for every service.

use super::lab::*;
use glowfs_rt::{Address, Duration, Rt, Stream};
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::frame::{
    FrameHeader, HEADER_BYTES, KIND_ONEWAY, KIND_REQUEST, KIND_RESPONSE,
};
use glowfs_types::wire::{ErrorBody, decode, method};
use glowfs_types::*;
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut};
use zerocopy::IntoBytes;

const LIMIT: Duration = Duration::from_secs(20);

fn frame(kind: u8, method: u16, body: &[u8]) -> FrameHeader {
    FrameHeader {
        kind,
        method: method.into(),
        request_id: 1.into(),
        body_len: (body.len() as u32).into(),
        body_crc: crc32c(body).into(),
        ..FrameHeader::default()
    }
}

fn bytes(header: FrameHeader, body: &[u8]) -> Vec<u8> {
    [header.seal().as_bytes(), body].concat()
}

async fn send(stream: &Stream, mut rest: &[u8]) {
    while !rest.is_empty() {
        match poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(rest)], &[])).await {
            Ok(n) if n > 0 => rest = &rest[n..],
            // It has hung up already.
            _ => return,
        }
    }
}

/// Sends bytes on a new connection; everything that comes back until it is closed by the service.
async fn answer(rt: &Rt, at: &Address, sent: &[u8]) -> Vec<u8> {
    let stream = rt.connect(at).await.expect("it listens");
    send(&stream, sent).await;
    let mut all = Vec::new();
    let closed = rt.timeout(LIMIT, async {
        let mut buf = vec![0; 4096];
        loop {
            let mut into = [IoSliceMut::new(&mut buf)];
            match poll_fn(|cx| stream.poll_read(cx, &mut into)).await {
                Ok(0) | Err(_) => return,
                Ok(n) => all.extend_from_slice(&buf[..n]),
            }
        }
    });
    assert!(closed.await.is_ok(), "the service keeps a connection that is none");
    all
}

/// The status and the words of an answer; none if there was no answer.
fn refusal(answer: &[u8]) -> Option<(Status, String)> {
    let header = answer.first_chunk::<HEADER_BYTES>()?;
    let header = FrameHeader::parse(header).expect("a frame");
    assert_eq!(header.kind, KIND_RESPONSE);
    let body = &answer[HEADER_BYTES..][..header.body_len.get() as usize];
    assert_eq!(answer.len(), HEADER_BYTES + body.len(), "one answer and no more");
    let said = decode::<ErrorBody>(body).expect("words").message;
    Some((Status::from_code(header.status.get()), said))
}

#[test]
fn without_a_hello_there_is_no_answer_but_a_refusal() {
    siege(|lab| async move {
        for at in [&lab.mgmtd, &lab.meta, &lab.storage] {
            let at = address(at);
            for m in [
                method::ECHO,
                method::SERVICE_STATUS,
                method::GET_ROUTING,
                method::LOOKUP,
                method::READ,
                method::FORWARD,
                method::KV_GET,
            ] {
                let sent = bytes(frame(KIND_REQUEST, m, b"\xa0"), b"\xa0");
                let (status, said) = refusal(&answer(&lab.rt, &at, &sent).await).expect("told");
                assert_eq!(status, Status::BadMessage, "{said}");
                assert!(said.contains("hello"), "{said}");
            }
            // A hello as an answer or as a note, with a body that is none, or too long for one.
            for (kind, body) in [
                (KIND_RESPONSE, vec![0xa0]),
                (KIND_ONEWAY, vec![0xa0]),
                (KIND_REQUEST, vec![0xff; 100]),
                (KIND_REQUEST, vec![]),
                (KIND_REQUEST, vec![0; 20_000]),
            ] {
                let sent = bytes(frame(kind, method::HELLO, &body), &body);
                let (status, _) = refusal(&answer(&lab.rt, &at, &sent).await).expect("told");
                assert_eq!(status, Status::BadMessage);
            }
        }
    });
}

#[test]
fn frames_that_are_none_end_the_connection_and_nothing_else() {
    siege(|lab| async move {
        for at in [&lab.mgmtd, &lab.meta, &lab.storage] {
            let at = address(at);
            let hello = frame(KIND_REQUEST, method::HELLO, b"");
            let wrong_crc = FrameHeader { body_crc: 1.into(), ..hello };
            let huge = FrameHeader { body_len: u32::MAX.into(), ..hello };
            let bulky = FrameHeader { bulk_len: 4096.into(), flags: 1, ..hello };
            let mut flipped = bytes(hello, b"");
            flipped[20] ^= 1;
            for sent in [
                b"GET / HTTP/1.1\r\nHost: glowfs\r\n\r\n_______________________________________"
                    .to_vec(),
                vec![0; 4096],
                vec![0xff; 4096],
                flipped,
                bytes(wrong_crc, b"\xa0"),
                bytes(huge, b""),
                bytes(bulky, &[0; 4096]),
                // Half a header, and silence.
                bytes(hello, b"")[..30].to_vec(),
                Vec::new(),
            ] {
                if let Some((status, said)) = refusal(&answer(&lab.rt, &at, &sent).await) {
                    assert_ne!(status, Status::Ok, "{said}");
                }
            }
        }
        // Everybody else goes on.
        lab.secret("after").await.is_untouched(&lab).await;
    });
}
