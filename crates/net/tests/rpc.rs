//! Calls between two ends on the real runtime.

use crate::common::*;
use glowfs_net::{Bulk, Conn, Connector, ConnectorOptions, Request, Target};
use glowfs_rt::{Address, Buf, Duration, Rt, real};
use glowfs_types::wire::method::ECHO;
use glowfs_types::{HostId, NodeId, Status, UserId};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

/// Runs a test over TCP, a Unix socket with inline bulk, and one with shared memory.
fn on_each<F: Future<Output = ()> + 'static>(
    test: impl Fn(Rt, Rc<Service>, Rc<Conn>, bool) -> F + Copy + 'static,
) {
    for transports in [["tcp"], ["unix"], ["shm"]] {
        real::run(move |rt| async move {
            let dir = tempfile::tempdir().expect("dir");
            let addresses = vec![any_tcp(), Address::Unix(dir.path().join("s"))];
            let service = Service::new(&rt);
            let server = start(&rt, addresses, service.clone());
            let connector = connector(&rt, &service, &transports);
            let conn = connector.connect(&names(&server)).await.expect("connect");
            let shm = transports == ["shm"];
            assert_eq!(conn.peer().shares_memory(), shm);
            assert_eq!(conn.peer().address.starts_with("tcp"), transports == ["tcp"]);
            test(rt, service.clone(), conn, shm).await;
        });
    }
}

#[test]
fn bodies_and_bulk_travel() {
    on_each(|rt, service, conn, shm| async move {
        let r = conn.call(request(WORK, b"abc".to_vec(), Bulk::None)).await.expect("call");
        assert_eq!((r.body.as_slice(), r.bulk_len), (b"cba".as_slice(), 0));
        assert_eq!(conn.peer().identity.user, UserId(7));
        assert_eq!(conn.peer().node, NodeId(9));
        for len in [1, 100, 4096, 1 << 20, (3 << 20) + 17] {
            let mut buf = shared(len);
            buf.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8);
            let buf = buf.freeze();
            let want = sum(&buf).to_le_bytes();
            // As one buffer, and in two pieces.
            let halves = vec![buf.slice(0..len / 2), buf.slice(len / 2..len)];
            for bufs in [vec![buf.clone()], halves, vec![Buf::from_vec(buf.to_vec())]] {
                let r = conn.call(request(WORK, vec![], Bulk::Send(bufs))).await.expect("send");
                assert_eq!(r.body, want, "{len}");
            }
            for room in [shared(len), rt.alloc(len)] {
                let at = room.as_ptr();
                let r = conn.call(request(WORK, vec![], Bulk::Recv(room))).await.expect("recv");
                let back = r.bulk.expect("our buffer");
                assert_eq!((back.as_ptr(), back.len(), r.bulk_len), (at, len, len - 1));
                assert!(back[..len - 1].iter().enumerate().all(|(i, &b)| b == i as u8));
            }
            let r = conn.call(request(OWN_BUFFER, vec![], Bulk::Recv(shared(len)))).await;
            let r = r.expect("the server's own buffer is copied");
            assert!(r.bulk_len == len && r.bulk.expect("buffer").iter().all(|&b| b == 7));
        }
        assert_eq!(service.shared.get() > 0, shm, "shared memory is used where it can be");
    });
}

#[test]
fn many_calls_at_once_and_both_ways() {
    on_each(|rt, service, conn, _| async move {
        let calls: Vec<_> = (0..500u16)
            .map(|i| {
                let conn = conn.clone();
                rt.spawn(async move {
                    let method = [WORK, BACK, WAIT, ECHO][usize::from(i) % 4];
                    let body = i.to_le_bytes().to_vec();
                    let r =
                        conn.call(request(method, body.clone(), Bulk::None)).await.expect("call");
                    let turned: Vec<u8> = body.iter().rev().copied().collect();
                    assert_eq!(r.body, if method == ECHO { body } else { turned });
                })
            })
            .collect();
        for call in calls {
            call.await;
        }
        assert_eq!(conn.outstanding(), 0);
        conn.notify(WORK, vec![1]).expect("notify");
        conn.call(request(WORK, vec![], Bulk::None)).await.expect("the stream is in order");
        assert_eq!(service.oneway.get(), 1);
    });
}

/// Bytes of each of many large messages.
const LARGE: usize = 1 << 20;

#[test]
fn bulk_does_not_delay_control() {
    on_each(|rt, _, conn, _| async move {
        // More than sockets keep, first towards the server, then back.
        for back in [false, true] {
            let done = Rc::new(Cell::new(0));
            let bulk: Vec<_> = (0..48)
                .map(|_| {
                    let (conn, done) = (conn.clone(), done.clone());
                    let (sent, room) = (Buf::from_vec(vec![1; LARGE]), rt.alloc(LARGE));
                    rt.spawn(async move {
                        let bulk = if back { Bulk::Recv(room) } else { Bulk::Send(vec![sent]) };
                        conn.call(request(WORK, vec![], bulk)).await.expect("bulk");
                        done.set(done.get() + 1);
                    })
                })
                .collect();
            // Some of it is on its way.
            while done.get() < 4 {
                rt.yield_now().await;
            }
            let begun = done.get();
            let pong = conn.call(request(ECHO, b"ping".to_vec(), Bulk::None)).await.expect("echo");
            assert_eq!(pong.body, b"ping");
            let (waited, back) = (done.get() - begun, if back { "back" } else { "there" });
            eprintln!("{} {back}: a ping waited for {waited} large messages", conn.peer());
            if conn.peer().address.starts_with("tcp") {
                assert!(waited <= 24, "{back}: a ping waited for {waited} large messages");
            }
            for call in bulk {
                call.await;
            }
        }
    });
}

#[test]
fn errors_come_back() {
    on_each(|rt, _, conn, _| async move {
        let e = conn.call(request(777, vec![], Bulk::None)).await.expect_err("unknown");
        assert_eq!(e.status, Status::UnknownMethod);
        let e = conn.call(request(FORGET, vec![], Bulk::None)).await.expect_err("dropped");
        assert_eq!(e.status, Status::Internal);
        // Inline bulk that the handler never looks at does not disturb the stream.
        let bulk = Bulk::Send(vec![rt.alloc(100_000).freeze()]);
        let e = conn.call(request(777, vec![], bulk)).await.expect_err("unknown");
        assert_eq!(e.status, Status::UnknownMethod);
        let huge = Bulk::Recv(rt.alloc((64 << 20) + 1));
        let e = conn.call(request(WORK, vec![], huge)).await.expect_err("too large");
        assert_eq!(e.status, Status::TooLarge);
        let e =
            conn.call(request(WORK, vec![0; 5 << 20], Bulk::None)).await.expect_err("too large");
        assert_eq!(e.status, Status::TooLarge);
        conn.call(request(WORK, vec![1], Bulk::None)).await.expect("still alive");
    });
}

#[test]
fn late_answers_are_swallowed() {
    on_each(|rt, _, conn, _| async move {
        let short = |bulk| Request {
            deadline: Duration::from_millis(20),
            ..request(WAIT, vec![120], bulk)
        };
        let started = rt.now();
        let e = conn.call(short(Bulk::Recv(shared(100_000)))).await.expect_err("late");
        assert_eq!(e.status, Status::TimedOut);
        assert!(rt.now().since(started) < Duration::from_millis(100));
        // Dropped in the middle.
        let call = conn.call(request(WAIT, vec![100], Bulk::Recv(shared(100_000))));
        assert!(rt.timeout(Duration::from_millis(20), call).await.is_err());
        assert_eq!(conn.outstanding(), 2, "their buffers are kept");
        for _ in 0..20 {
            conn.call(request(WORK, vec![1, 2], Bulk::None)).await.expect("call");
            rt.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(conn.outstanding(), 0, "until the answers came");
    });
}

#[test]
fn a_dead_peer_fails_the_calls() {
    on_each(|rt, service, conn, _| async move {
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let conn = conn.clone();
                let bulk = Bulk::Recv(shared(1000));
                rt.spawn(async move { conn.call(request(WAIT, vec![200], bulk)).await })
            })
            .collect();
        rt.sleep(Duration::from_millis(20)).await;
        conn.close();
        for call in calls {
            assert_eq!(call.await.expect_err("closed").status, Status::Disconnected);
        }
        conn.closed().await;
        let e = conn.call(request(WORK, vec![], Bulk::None)).await.expect_err("closed");
        assert_eq!(e.status, Status::Disconnected);
        rt.sleep(Duration::from_millis(20)).await;
        assert_eq!((service.connected.get(), service.disconnected.get()), (2, 2), "both ends");
    });
}

#[test]
fn a_region_is_passed_on() {
    real::run(|rt| async move {
        let dir = tempfile::tempdir().expect("dir");
        let (near, far) = (Service::new(&rt), Service::new(&rt));
        let unix = |name: &str| vec![Address::Unix(dir.path().join(name))];
        let near_server = start(&rt, unix("near"), near.clone());
        let far_server = start(&rt, unix("far"), far.clone());
        let inner = connector(&rt, &near, &[]);
        let next = inner.connect(&names(&far_server)).await.expect("connect");
        *near.next.borrow_mut() = Some(next);
        let outer = connector(&rt, &far, &[]);
        let conn = outer.connect(&names(&near_server)).await.expect("connect");
        for round in 0..3 {
            let mut buf = shared(1 << 20);
            buf.fill(round + 1);
            let want = sum(&buf).to_le_bytes();
            let bulk = Bulk::Send(vec![buf.freeze()]);
            let r = conn.call(request(PASS_ON, vec![], bulk)).await.expect("call");
            assert_eq!(r.body, want);
        }
        assert_eq!(far.shared.get(), 3, "the successor reads the client's memory");
    });
}

#[test]
fn regions_come_and_go() {
    real::run(|rt| async move {
        let dir = tempfile::tempdir().expect("dir");
        let service = Service::new(&rt);
        let server = start(&rt, vec![Address::Unix(dir.path().join("s"))], service.clone());
        let connector = connector(&rt, &service, &[]);
        let conn = connector.connect(&names(&server)).await.expect("connect");
        // Some new regions in one burst with calls without any: each descriptor finds its region.
        let burst: Vec<_> = (1..50u8)
            .map(|i| {
                let conn = conn.clone();
                rt.spawn(async move {
                    let mut buf = shared(4096);
                    buf.fill(i);
                    let want = sum(&buf).to_le_bytes();
                    conn.call(request(WORK, vec![1], Bulk::None)).await.expect("call");
                    let bulk = Bulk::Send(vec![buf.freeze()]);
                    let r = conn.call(request(WORK, vec![], bulk)).await.expect("call");
                    assert_eq!(r.body, want);
                })
            })
            .collect();
        for call in burst {
            call.await;
        }
        // More than may be named at a time, one after the other: old ones make room.
        for _ in 0..glowfs_net::limits::REGIONS_MAX * 2 {
            let bulk = Bulk::Send(vec![shared(4096).freeze()]);
            conn.call(request(WORK, vec![], bulk)).await.expect("call");
        }
        assert_eq!(service.shared.get(), 49 + glowfs_net::limits::REGIONS_MAX * 2);
        // More at a time: the rest goes inline.
        let held: Vec<_> =
            (0..glowfs_net::limits::REGIONS_MAX + 9).map(|_| shared(4096).freeze()).collect();
        service.shared.set(0);
        for buf in &held {
            let bulk = Bulk::Send(vec![buf.clone()]);
            let r = conn.call(request(WORK, vec![], bulk)).await.expect("call");
            assert_eq!(r.body, sum(buf).to_le_bytes());
        }
        assert_eq!(service.shared.get(), glowfs_net::limits::REGIONS_MAX);
    });
}

#[test]
fn an_unsealed_region_ends_the_connection_only() {
    real::run(|rt| async move {
        let dir = tempfile::tempdir().expect("dir");
        let service = Service::new(&rt);
        let server = start(&rt, vec![Address::Unix(dir.path().join("s"))], service.clone());
        let connector = connector(&rt, &service, &[]);
        let conn = connector.connect(&names(&server)).await.expect("connect");
        let bulk = Bulk::Recv(shared_with(4096, false));
        let e = conn.call(request(WORK, vec![], bulk)).await.expect_err("refused");
        assert_eq!(e.status, Status::Disconnected);
        let conn = connector.connect(&names(&server)).await.expect("again");
        conn.call(request(WORK, vec![], Bulk::None)).await.expect("call");
    });
}

#[test]
fn connectors_choose_cache_and_reconnect() {
    real::run(|rt| async move {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("s");
        let service = Service::new(&rt);
        let server = start(&rt, vec![any_tcp(), Address::Unix(path.clone())], service.clone());
        let addresses = names(&server);
        let connector = connector(&rt, &service, &[]);
        let (a, b) = (connector.connect(&addresses), connector.connect(&addresses));
        let both = glowfs_rt::sync::join_all([a, b]).await;
        let ids: Vec<_> = both.into_iter().map(|c| c.expect("connect").id()).collect();
        assert_eq!(ids[0], ids[1], "one connection for all");
        let conn = connector.connect(&addresses).await.expect("cached");
        assert!(conn.id() == ids[0] && conn.peer().shares_memory(), "the Unix socket is best");
        // Not if the service is known to be on another host.
        let mut target = Target { addresses: addresses.clone(), ..Target::default() };
        target.host = Some(HostId(6));
        let far = connector.connect_to(&target).await.expect("connect");
        assert!(!far.peer().shares_memory());
        target.host = Some(HostId(5));
        assert!(connector.connect_to(&target).await.expect("connect").peer().shares_memory());
        // The service goes and comes back.
        server.stop().await;
        conn.closed().await;
        let started = rt.now();
        let e = connector.connect(&addresses).await.err().expect("gone");
        assert_eq!(e.status, Status::Disconnected);
        for _ in 0..5 {
            assert!(connector.connect(&addresses).await.is_err());
        }
        assert!(rt.now().since(started) > Duration::from_millis(60), "it pauses between attempts");
        let listen = addresses.iter().map(|a| a.parse().expect("address")).collect();
        let _server = start(&rt, listen, service.clone());
        connector.connect(&addresses).await.expect("back");
        connector.close();
        assert!(connector.connect(&addresses).await.is_err());
    });
}

/// The first address takes connections and never says a word. Each caller has less time than that takes; still they reach the second one.
#[test]
fn an_attempt_outlives_callers_with_little_time() {
    real::run(|rt| async move {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let service = Service::new(&rt);
        let server = start(&rt, vec![any_tcp()], service.clone());
        let mut addresses = vec![format!("tcp://{}", silent.local_addr().expect("bound"))];
        addresses.extend(names(&server));
        let options = ConnectorOptions {
            connect_deadline: Duration::from_millis(600),
            ..ConnectorOptions::default()
        };
        let connector = Connector::with_options(&rt, hello(), service.clone(), options);
        let short = || rt.timeout(Duration::from_millis(450), connector.connect(&addresses));
        assert!(short().await.is_err(), "not yet");
        let conn = short().await.expect("in time").expect("the second address");
        assert_eq!(server.connections().len(), 1);
        // What is made while all connections are closed is not kept: it was introduced as somebody else.
        connector.disconnect();
        conn.closed().await;
        assert!(short().await.is_err(), "the silent one again");
        connector.disconnect();
        let e = short().await.expect("in time").err().expect("of the round before");
        assert_eq!(e.status, Status::Disconnected);
        // Nobody is left who wants it.
        assert!(short().await.is_err(), "the silent one again");
        drop(connector);
        rt.sleep(Duration::from_millis(600)).await;
        assert!(server.connections().is_empty());
    });
}

#[test]
fn names_of_hosts_are_looked_up() {
    real::run(|rt| async move {
        let service = Service::new(&rt);
        let server = start(&rt, vec![any_tcp()], service.clone());
        let there = names(&server)[0].replace("127.0.0.1", "localhost");
        let connector = connector(&rt, &service, &[]);
        connector.connect(&[there]).await.expect("found");
        let nowhere = ["no such host:1".to_owned()];
        let e = connector.connect(&nowhere).await.err().expect("nowhere");
        assert!(e.message.contains("cannot be resolved"), "{e}");
    });
}

#[test]
fn stop_lets_answers_out() {
    real::run(|rt| async move {
        let service = Service::new(&rt);
        let server = start(&rt, vec![any_tcp()], service.clone());
        let connector = connector(&rt, &service, &[]);
        let conn = connector.connect(&names(&server)).await.expect("connect");
        let there = conn.clone();
        let bulk = Bulk::Recv(rt.alloc(1 << 20));
        let call = rt.spawn(async move { there.call(request(WAIT, vec![100], bulk)).await });
        rt.sleep(Duration::from_millis(20)).await;
        let stopping = rt.spawn(server.stop());
        rt.sleep(Duration::from_millis(20)).await;
        let e = conn.call(request(WORK, vec![], Bulk::None)).await.expect_err("stopping");
        assert_eq!(e.status, Status::ShuttingDown);
        assert_eq!(call.await.expect("the outstanding call is answered").bulk_len, (1 << 20) - 1);
        stopping.await;
        conn.closed().await;
        assert_eq!(service.running.get(), 0);
    });
}

#[test]
fn too_many_calls_are_refused_at_once() {
    real::run(|rt| async move {
        let service = Service::new(&rt);
        let server = start(&rt, vec![any_tcp()], service.clone());
        let connector = connector(&rt, &service, &[]);
        let conn = connector.connect(&names(&server)).await.expect("connect");
        let max = glowfs_net::limits::OUTSTANDING_CALLS_MAX;
        let calls: Vec<_> = (0..max)
            .map(|_| {
                let conn = conn.clone();
                rt.spawn(async move { conn.call(request(WAIT, vec![250], Bulk::None)).await })
            })
            .collect();
        rt.yield_now().await;
        let e = conn.call(request(WORK, vec![], Bulk::None)).await.expect_err("full");
        assert_eq!(e.status, Status::Overloaded);
        for call in calls {
            call.await.expect("served");
        }
        conn.call(request(WORK, vec![], Bulk::None)).await.expect("room again");
        // The peer's memory is bounded too: rooms of 64 MiB each.
        let mut refused = 0;
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let (conn, bulk) = (conn.clone(), Bulk::Recv(rt.alloc(64 << 20)));
                rt.spawn(async move { conn.call(request(WAIT, vec![50], bulk)).await })
            })
            .collect();
        for call in calls {
            refused += usize::from(call.await.is_err_and(|e| e.status == Status::Overloaded));
        }
        assert!((4..8).contains(&refused), "{refused}");
    });
}

/// Bulk that nobody wants took memory before a handler saw the call.
#[test]
fn bulk_for_a_method_that_takes_none_is_thrown_away() {
    use glowfs_net::{NoCalls, Server};
    real::run(|rt| async move {
        let server =
            Server::start(&rt, vec![any_tcp()], info(), Rc::new(OneToken), Rc::new(NoCalls));
        let server = server.expect("listen");
        let service = Service::new(&rt);
        let connector = connector(&rt, &service, &[]);
        let conn = connector.connect(&names(&server)).await.expect("connect");
        for method in [WORK, ECHO] {
            let bulk = Bulk::Send(vec![rt.alloc(1 << 20).freeze()]);
            let e = conn.call(request(method, vec![], bulk)).await.expect_err("refused");
            assert_eq!(e.status, Status::BadMessage, "{e}");
        }
        let answer = conn.call(request(ECHO, vec![5], Bulk::None)).await.expect("goes on");
        assert_eq!(answer.body, [5]);
    });
}
