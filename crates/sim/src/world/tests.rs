use super::*;
use glowfs_rt::Rt;
use glowfs_rt::backend::{File, OpenOptions, Stream};
use glowfs_rt::sync::join_all;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

async fn write_all(s: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| s.poll_write(cx, &[IoSlice::new(bytes)], &[])).await?;
        bytes = &bytes[n..];
    }
    Ok(())
}

async fn read_exact(s: &Stream, out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        let n = poll_fn(|cx| s.poll_read(cx, &mut [IoSliceMut::new(&mut out[done..])])).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done += n;
    }
    Ok(())
}

/// Answers every connection with what it sends.
fn echo(node: &SimNode, port: u16) {
    let rt = node.rt();
    let listener = rt.listen(&node.address(port)).expect("listen");
    node.rt().spawn_detached(async move {
        while let Ok(s) = poll_fn(|cx| listener.poll_accept(cx)).await {
            rt.spawn_detached(async move {
                let mut some = [0; 300];
                loop {
                    let read = poll_fn(|cx| s.poll_read(cx, &mut [IoSliceMut::new(&mut some)]));
                    match read.await {
                        Ok(n) if n > 0 && write_all(&s, &some[..n]).await.is_ok() => {}
                        _ => break,
                    }
                }
            });
        }
    });
}

async fn ask(rt: &Rt, to: &glowfs_rt::Address, bytes: usize) -> io::Result<()> {
    let s = rt.connect(to).await?;
    let data: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
    write_all(&s, &data).await?;
    let mut back = vec![0; bytes];
    read_exact(&s, &mut back).await?;
    assert_eq!(back, data);
    Ok(())
}

#[test]
fn time_is_virtual_and_clocks_differ() {
    let world = World::new(1);
    let (a, b) = (world.node("a"), world.node("b"));
    a.set_drift_ppm(1000);
    b.set_drift_ppm(-1000);
    let begin = std::time::Instant::now();
    let (ra, rb) = (a.rt(), b.rt());
    let (ta, tb) = (ra.now(), rb.now());
    let rt = ra.clone();
    let slept = world.run(&a, Duration::from_secs(4000), async move {
        let t = rt.now();
        rt.sleep(Duration::from_secs(3600)).await;
        rt.now().since(t)
    });
    let slept = slept.expect("it ends");
    assert!(slept >= Duration::from_secs(3600) && slept < Duration::from_secs(3601));
    assert!(begin.elapsed() < Duration::from_secs(5), "real time passed");
    let (da, db) = (ra.now().since(ta), rb.now().since(tb));
    assert!(da > db + Duration::from_secs(5), "{da:?} {db:?}");
}

#[test]
fn streams_carry_bytes_between_nodes() {
    let world = World::new(2);
    let (a, b) = (world.node("a"), world.node("b"));
    echo(&b, 1);
    let (rt, to) = (a.rt(), b.address(1));
    let done =
        world.run(&a, LONG, async move { join_all((1..8).map(|i| ask(&rt, &to, i * 3000))).await });
    assert!(done.expect("in time").into_iter().all(|r| r.is_ok()));
    // Unix addresses belong to the host.
    let (c, unix) = (world.node_beside("c", &b), glowfs_rt::Address::Unix("/run/x".into()));
    let listener = c.rt().listen(&unix).expect("listen");
    c.rt().spawn_detached(async move {
        let s = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accept");
        write_all(&s, b"x").await.expect("write");
        std::future::pending::<()>().await;
    });
    for (node, works) in [(&a, false), (&b, true)] {
        let (rt, unix) = (node.rt(), unix.clone());
        let got = world.run(node, LONG, async move {
            let s = rt.connect(&unix).await?;
            assert!(!s.can_pass_fds());
            read_exact(&s, &mut [0]).await
        });
        assert_eq!(got.expect("in time").is_ok(), works);
    }
}

#[test]
fn loopback_and_port_zero_work() {
    let world = World::new(3);
    let a = world.node("a");
    let l = a.rt().listen(&"127.0.0.1:0".parse().expect("address")).expect("listen");
    let glowfs_rt::Address::Tcp(at) = l.local() else { panic!("not tcp") };
    assert!(at.port() != 0 && at.ip() == a.ip());
    assert!(a.rt().listen(&l.local()).is_err(), "taken");
    let (rt, to) = (a.rt(), format!("127.0.0.1:{}", at.port()).parse().expect("address"));
    let s = world.run(&a, LONG, async move { rt.connect(&to).await.map(|_| ()) });
    s.expect("in time").expect("connected");
    drop(l);
    let (rt, to) = (a.rt(), a.address(at.port()));
    let e = world.run(&a, LONG, async move { rt.connect(&to).await.map(|_| ()) });
    assert_eq!(e.expect("in time").expect_err("gone").kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_cut_stalls_and_then_breaks() {
    let world = World::new(4);
    let (a, b) = (world.node("a"), world.node("b"));
    echo(&b, 1);
    let connect = |ms: u64| {
        let (rt, to) = (a.rt(), b.address(1));
        world.run(&a, LONG, async move {
            let s = rt.connect(&to).await?;
            rt.sleep(Duration::from_millis(ms)).await;
            write_all(&s, b"x").await?;
            read_exact(&s, &mut [0]).await
        })
    };
    assert!(connect(1).expect("in time").is_ok());
    // One way is enough.
    world.cut(&b, &a);
    assert_eq!(connect(1).expect("in time").expect_err("cut").kind(), io::ErrorKind::TimedOut);
    world.mend(&b, &a);
    // A short cut only delays.
    let (rt, to) = (a.rt(), b.address(1));
    let state = Rc::new(RefCell::new("new"));
    let say = state.clone();
    a.rt().spawn_detached(async move {
        let s = rt.connect(&to).await.expect("connect");
        *say.borrow_mut() = "connected";
        rt.sleep(Duration::from_millis(1)).await;
        write_all(&s, b"x").await.expect("write");
        read_exact(&s, &mut [0]).await.expect("read");
        *say.borrow_mut() = "answered";
        rt.sleep(Duration::from_secs(10)).await;
        write_all(&s, b"x").await.expect("write");
        *say.borrow_mut() = match read_exact(&s, &mut [0]).await {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => "timed out",
            _ => "strange",
        };
    });
    assert!(world.run_until(LONG, || *state.borrow() == "connected"));
    world.isolate(&a);
    world.run_for(Duration::from_secs(5));
    assert_eq!(*state.borrow(), "connected");
    world.rejoin(&a);
    assert!(world.run_until(Duration::from_secs(1), || *state.borrow() == "answered"));
    world.partition(&[&[&a], &[&b]]);
    assert!(world.run_until(LONG, || *state.borrow() == "timed out"), "{}", state.borrow());
    world.heal();
    assert!(connect(1).expect("in time").is_ok());
}

#[test]
fn a_crash_drops_tasks_and_breaks_connections() {
    let world = World::new(5);
    let (a, b) = (world.node("a"), world.node("b"));
    echo(&b, 1);
    let (rt, to) = (a.rt(), b.address(1));
    let ended = Rc::new(RefCell::new(false));
    let say = ended.clone();
    a.rt().spawn_detached(async move {
        let s = rt.connect(&to).await.expect("connect");
        read_exact(&s, &mut [0]).await.expect_err("the peer is gone");
        *say.borrow_mut() = true;
    });
    world.run_for(Duration::from_secs(1));
    assert!(b.tasks() > 0 && !*ended.borrow());
    let old = b.rt();
    world.crash(&b);
    assert_eq!(b.tasks(), 0);
    assert!(world.run_until(LONG, || *ended.borrow()));
    let refused = |world: &World| {
        let (rt, to) = (a.rt(), b.address(1));
        world.run(&a, LONG, async move { ask(&rt, &to, 1).await }).expect("in time")
    };
    assert!(refused(&world).is_err());
    b.restart();
    // A handle of the old life does nothing.
    old.spawn_detached(async { panic!("must not run") });
    assert!(old.listen(&b.address(2)).is_err());
    echo(&b, 1);
    assert!(refused(&world).is_ok());
}

#[test]
fn connections_break_at_random() {
    let world = World::new(6);
    let (a, b) = (world.node("a"), world.node("b"));
    echo(&b, 1);
    world.set_link(&a, &b, Link { breaks_per_million: 200_000, ..world.link(&a, &b) });
    let mut outcomes = BTreeSet::new();
    for _ in 0..40 {
        let (rt, to) = (a.rt(), b.address(1));
        let got = world.run(&a, LONG, async move { ask(&rt, &to, 2).await }).expect("in time");
        outcomes.insert(got.is_ok());
    }
    assert_eq!(outcomes.len(), 2);
}

async fn open(rt: &Rt, name: &str) -> File {
    let dir = rt.open_dir(Path::new("/disk")).expect("dir");
    dir.open(name, OpenOptions { create: true, direct: true }).await.expect("open")
}

async fn fill(rt: &Rt, file: &File, block: u64, byte: u8) -> io::Result<()> {
    let mut buf = rt.alloc(4096);
    buf.fill(byte);
    file.write(vec![buf.freeze()], block * 4096).await
}

#[test]
fn synced_writes_survive_and_others_may_not() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..60 {
        let world = World::new(seed);
        let a = world.node("a");
        let rt = a.rt();
        world.run(&a, LONG, async move {
            let file = open(&rt, "f").await;
            rt.open_dir(Path::new("/disk")).expect("dir").sync().await.expect("sync");
            for i in 0..8 {
                fill(&rt, &file, i, 1).await.expect("write");
            }
            file.sync().await.expect("sync");
            for i in 0..8 {
                fill(&rt, &file, i, 2).await.expect("write");
            }
            let (n, got) = file.read(rt.alloc(8 * 4096), 0).await;
            assert!(n.expect("read") == 8 * 4096 && got.iter().all(|b| *b == 2));
        });
        world.crash(&a);
        let rt = a.restart();
        let got = world.run(&a, LONG, async move {
            let file = open(&rt, "f").await;
            let (n, got) = file.read(rt.alloc(9 * 4096), 0).await;
            assert_eq!(n.expect("read"), 8 * 4096);
            got[..8 * 4096].to_vec()
        });
        for block in got.expect("in time").chunks(4096) {
            for sector in block.chunks(512) {
                assert!(sector.iter().all(|b| *b == sector[0] && (*b == 1 || *b == 2)));
            }
            match (block.contains(&1), block.contains(&2)) {
                (true, false) => lost += 1,
                (false, true) => kept += 1,
                _ => torn += 1,
            }
        }
    }
    assert!(lost > 50 && kept > 50 && torn > 50, "{lost} {kept} {torn}");
}

#[test]
fn names_survive_only_as_a_prefix_until_the_directory_is_synced() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let world = World::new(seed);
        let a = world.node("a");
        let rt = a.rt();
        world.run(&a, LONG, async move {
            let dir = rt.open_dir(Path::new("/disk")).expect("dir");
            open(&rt, "old").await;
            dir.sync().await.expect("sync");
            open(&rt, "new").await;
            dir.rename("new", "old").await.expect("rename");
            assert_eq!(dir.list().await.expect("list"), ["old"]);
        });
        world.crash(&a);
        seen.insert(a.disk("/disk").files().into_iter().map(|f| f.0).collect::<Vec<_>>());
    }
    let names = |n: &[&str]| n.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    assert_eq!(seen, BTreeSet::from([names(&["old"]), names(&["new", "old"])]));
}

#[test]
fn disks_fail_as_told() {
    let world = World::new(7);
    let a = world.node("a");
    let disk = a.disk("/disk");
    disk.set_bytes(10 * 4096);
    let rt = a.rt();
    let code = |e: io::Error| e.raw_os_error();
    world
        .run(&a, LONG, async move {
            let dir = rt.open_dir(Path::new("/disk")).expect("dir");
            let file = open(&rt, "f").await;
            for i in 0..10 {
                fill(&rt, &file, i, 7).await.expect("room");
            }
            fill(&rt, &file, 3, 8).await.expect("an overwrite needs no room");
            assert_eq!(fill(&rt, &file, 10, 7).await.map_err(code), Err(Some(28)));
            assert_eq!(file.allocate(40960, 1).await.map_err(code), Err(Some(28)));
            assert_eq!(dir.space().expect("space").free_bytes, 0);
            file.punch(0, 8192).await.expect("punch");
            assert_eq!(dir.space().expect("space").free_bytes, 8192);
            // Direct I/O wants alignment.
            assert!(file.write(vec![rt.alloc(100).freeze()], 0).await.is_err());
            assert!(file.read(rt.alloc(4096), 512).await.0.is_err());
            assert!(dir.open("no", OpenOptions::default()).await.is_err());
            let other = rt.open_dir(Path::new("/disk")).expect("dir");
            dir.lock().expect("lock");
            assert!(other.lock().is_err());
            drop(dir);
            other.lock().expect("free again");
        })
        .expect("in time");
    assert!(disk.flip("f", 5 * 4096 + 9) && !disk.flip("g", 0));
    let all = DiskFaults { sync_errors_per_million: 1_000_000, ..DiskFaults::default() };
    disk.set_faults(all);
    let rt = a.rt();
    world
        .run(&a, LONG, async move {
            let file = open(&rt, "f").await;
            let (n, got) = file.read(rt.alloc(4096), 5 * 4096).await;
            assert!(n.is_ok() && got[9].count_ones().abs_diff(7u8.count_ones()) == 1);
            assert_eq!(got.iter().filter(|b| **b != 7).count(), 1);
            assert!(file.sync().await.is_err());
        })
        .expect("in time");
}

#[test]
fn dropped_writes_still_happen() {
    let world = World::new(8);
    let a = world.node("a");
    let rt = a.rt();
    world
        .run(&a, LONG, async move {
            let file = open(&rt, "f").await;
            drop(fill(&rt, &file, 0, 9));
            let mut buf = rt.alloc(4096);
            buf.fill(5);
            drop(file.write(vec![buf.freeze()], 4096));
            rt.sleep(Duration::from_secs(1)).await;
            assert_eq!(file.len().expect("len"), 8192);
        })
        .expect("in time");
}

/// A busy world; what happened in it, in short.
fn busy(seed: u64) -> (u64, u128) {
    let world = World::new(seed);
    let nodes: Vec<_> = ["a", "b", "c"].iter().map(|n| world.node(n)).collect();
    nodes.iter().for_each(|n| echo(n, 1));
    for node in &nodes {
        for other in &nodes {
            let (rt, to) = (node.rt(), other.address(1));
            node.rt().spawn_detached(async move {
                let file = open(&rt, "f").await;
                loop {
                    let n = rt.random_below(2000) as usize + 1;
                    let _ = ask(&rt, &to, n).await;
                    let _ = fill(&rt, &file, rt.random_below(64), n as u8).await;
                    let _ = file.sync().await;
                    let _ = rt.unblock(move || n * 2).await;
                    rt.sleep(Duration::from_millis(rt.random_below(20))).await;
                }
            });
        }
    }
    for _ in 0..3 {
        world.run_for(Duration::from_millis(300));
        world.isolate(&nodes[0]);
        world.run_for(Duration::from_millis(300));
        world.rejoin(&nodes[0]);
        world.crash(&nodes[1]);
        world.run_for(Duration::from_millis(100));
        nodes[1].restart();
        echo(&nodes[1], 1);
    }
    (world.trace_hash(), world.now().as_nanos())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let first: Vec<_> = (0..4).map(busy).collect();
    let again: Vec<_> = (0..4).map(busy).collect();
    assert_eq!(first, again);
    let hashes: BTreeSet<_> = first.iter().map(|r| r.0).collect();
    assert_eq!(hashes.len(), 4, "different seeds give different runs");
}

#[test]
fn a_world_leaves_nothing_behind() {
    let guard = Rc::new(());
    let held = guard.clone();
    {
        let world = World::new(9);
        let (a, b) = (world.node("a"), world.node("b"));
        echo(&b, 1);
        let (rt, to) = (a.rt(), b.address(1));
        a.rt().spawn_detached(async move {
            let _s = rt.connect(&to).await;
            let _f = open(&rt, "f").await;
            rt.sleep(LONG * 1000).await;
            drop(held);
        });
        world.run_for(LONG);
    }
    assert_eq!(Rc::strong_count(&guard), 1);
}
