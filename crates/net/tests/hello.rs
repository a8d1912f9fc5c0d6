//! Who gets in: hellos that are refused, that never come, and that take their time to be looked at; and how many connections there may be.

use crate::common::*;
use glowfs_net::{Authenticator, Identity, NoCalls, Server, ServerOptions, Target, TrustAll};
use glowfs_rt::{Address, BoxFuture, Duration, Rt, real};
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::frame::FrameHeader;
use glowfs_types::wire::hello::Hello;
use glowfs_types::{ClusterId, NodeId, Result, Status};
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut, Read};
use std::rc::Rc;
use zerocopy::IntoBytes;

#[test]
fn strangers_are_refused_in_clear_words() {
    real::run(|rt| async move {
        let service = Service::new(&rt);
        let server = start(&rt, vec![any_tcp()], service.clone());
        let connector = connector(&rt, &service, &[]);
        let mut wrong = hello();
        wrong.token = "guess".into();
        connector.set_hello(wrong);
        let e = connector.connect(&names(&server)).await.err().expect("token");
        assert_eq!(e.status, Status::BadToken);
        assert!(e.message.contains("ask your operator"), "{e}");
        let mut wrong = hello();
        wrong.cluster = ClusterId(2);
        connector.set_hello(wrong);
        let e = connector.connect(&names(&server)).await.err().expect("cluster");
        assert_eq!(e.status, Status::WrongCluster);
        let mut unknown = hello();
        unknown.cluster = ClusterId(0);
        connector.set_hello(unknown);
        connector.connect(&names(&server)).await.expect("it does not know its cluster yet");
        let target = Target { addresses: names(&server), node: Some(NodeId(8)), host: None };
        let e = connector.connect_to(&target).await.err().expect("node");
        assert!(e.message.contains("is node 9, not node 8"), "{e}");
        assert_eq!(service.connected.get(), 3, "twice here, once there");
    });
}

/// Writes to a fresh connection and reads what comes until its end.
async fn raw(rt: &Rt, to: &Address, bytes: &[u8]) -> Vec<u8> {
    let stream = rt.connect(to).await.expect("connect");
    poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)], &[])).await.expect("write");
    let (mut out, mut buffer) = (Vec::new(), vec![0; 4096]);
    loop {
        let read = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut buffer)]));
        match rt.timeout(20 * SECOND, read).await.expect("the server ends it") {
            Ok(n) if n > 0 => out.extend_from_slice(&buffer[..n]),
            _ => return out,
        }
    }
}

#[test]
fn nobody_gets_in_without_a_hello() {
    real::run(|rt| async move {
        let service = Service::new(&rt);
        let server = start(&rt, vec![any_tcp()], service.clone());
        let to = &server.addresses()[0];
        let frame = |method: u16, body_len: u32| {
            let body_len = body_len.into();
            FrameHeader { kind: 1, method: method.into(), body_len, ..Default::default() }.seal()
        };
        let mut newer = frame(1, 0);
        newer.version = 2.into();
        newer.header_crc = crc32c(&newer.as_bytes()[..60]).into();
        for (bytes, want) in [
            (b"GET / HTTP/1.1\r\n\r\n".repeat(4), "not a GlowFS frame"),
            (frame(WORK, 0).as_bytes().to_vec(), "begins with a hello, not with method 900"),
            (frame(1, 16_385).as_bytes().to_vec(), "a hello of 16385 bytes"),
            (newer.as_bytes().to_vec(), "frame version 2; this build speaks 1: upgrade"),
        ] {
            let answer = raw(&rt, to, &bytes).await;
            let text = String::from_utf8_lossy(&answer);
            assert!(text.contains(want), "«{want}» in «{text}»");
        }
        assert!(raw(&rt, to, b"GLF1").await.is_empty(), "the deadline ends half a header");
        assert_eq!(service.connected.get(), 0);
        let connector = connector(&rt, &service, &[]);
        connector.connect(&names(&server)).await.expect("others are served");
    });
}

/// Nobody knows who they are, so they keep nobody out.
#[test]
fn who_says_no_hello_keeps_nobody_out() {
    real::run(|rt| async move {
        let options = ServerOptions { connections_max: 3, ..ServerOptions::default() };
        let (listen, token) = (vec![any_tcp()], Rc::new(OneToken));
        let server = Server::start_with(&rt, listen, info(), token, Rc::new(NoCalls), options);
        let server = server.expect("listen");
        let to = server.addresses()[0].to_string().replace("tcp://", "");
        let mut silent = Vec::new();
        for _ in 0..400 {
            silent.push(std::net::TcpStream::connect(&to).expect("connects"));
            rt.sleep(Duration::from_micros(200)).await;
        }
        let service = Service::new(&rt);
        let connector = connector(&rt, &service, &[]);
        connector.connect(&names(&server)).await.expect("is heard");
        assert_eq!(server.connections().len(), 1);
        // Those that came first were ended for those that came later.
        silent[0].set_read_timeout(Some(std::time::Duration::from_secs(2))).expect("timeout");
        assert_eq!(silent[0].read(&mut [0; 1]).expect("ended"), 0);
    });
}

/// Who has said his hello is not taken for one who has not, however long mgmtd takes to say who he is.
#[test]
fn who_waits_for_an_answer_to_his_hello_is_not_silent() {
    /// Takes its time.
    struct Late(Rt);
    impl Authenticator for Late {
        fn check(&self, hello: &Hello) -> BoxFuture<Result<Identity>> {
            let (rt, answer) = (self.0.clone(), TrustAll.check(hello));
            Box::pin(async move {
                rt.sleep(SECOND).await;
                answer.await
            })
        }
    }
    const CLIENTS: usize = 300;
    real::run(|rt| async move {
        let late = Rc::new(Late(rt.clone()));
        let server = Server::start(&rt, vec![any_tcp()], info(), late, Rc::new(NoCalls));
        let server = server.expect("listen");
        let (service, to) = (Service::new(&rt), names(&server));
        let connectors: Vec<_> = (0..CLIENTS).map(|_| connector(&rt, &service, &[])).collect();
        let mut calls = Vec::new();
        for c in &connectors {
            let (c, to) = (c.clone(), to.clone());
            calls.push(rt.spawn(async move { c.connect(&to).await.is_ok() }));
            rt.sleep(Duration::from_micros(200)).await;
        }
        let mut heard = 0;
        for call in calls {
            heard += usize::from(call.await);
        }
        assert_eq!(heard, CLIENTS);
    });
}

#[test]
fn connections_are_limited() {
    real::run(|rt| async move {
        let options = ServerOptions { connections_max: 1, ..ServerOptions::default() };
        let (listen, token) = (vec![any_tcp()], Rc::new(OneToken));
        let handler = Rc::new(NoCalls);
        let server = Server::start_with(&rt, listen, info(), token, handler, options);
        let server = server.expect("listen");
        let service = Service::new(&rt);
        let (one, two) = (connector(&rt, &service, &[]), connector(&rt, &service, &[]));
        let first = one.connect(&names(&server)).await.expect("the first");
        let e = two.connect(&names(&server)).await.err().expect("the second");
        assert_eq!(e.status, Status::Overloaded);
        first.close();
        rt.sleep(Duration::from_millis(50)).await;
        two.connect(&names(&server)).await.expect("room again");
        assert_eq!(server.connections().len(), 1);
    });
}
