//! Chunks that nobody owns are found and reclaimed; chunks that somebody owns never, whatever goes on meanwhile.
#![allow(clippy::expect_used, missing_docs)]

use glowfs_client::{Client, FileAccess, OpenFile};
use glowfs_kv::run_transaction;
use glowfs_meta::Tuning;
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Shape};
use glowfs_sim::cluster::workload::{caller, open_or_make, report};
use glowfs_sim::cluster::{orphans, records};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::method;
use glowfs_types::wire::orphans::{Orphans, OrphansReply, search};
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

const SHAPE: Shape =
    Shape { storages: 3, replicas: 2, chains: 3, stripe: 3, clients: 2, ..Shape::SINGLE };
const META: NodeId = NodeId(10);
const LIMIT: Duration = Duration::from_secs(900);
const CHUNK: usize = CHUNK_BYTES as usize;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A pass, and what is known after it.
async fn pass(rt: &Rt, client: &Client, what: u8) -> OrphansReply {
    orphans::pass(rt, client, META, what).await.expect("a pass")
}

async fn write(client: &Rc<Client>, name: &str, byte: u8) -> (Rc<OpenFile>, InodeId) {
    let (file, open) = open_or_make(client, name).await.expect("made");
    file.write(0, Buf::from_vec(vec![byte; 3 * CHUNK])).await.expect("written");
    (file, open.attr.inode)
}

async fn expect(rt: &Rt, file: &OpenFile, byte: u8) {
    let (n, buf) = file.read(0, rt.alloc(3 * CHUNK)).await;
    assert_eq!(n.expect("read"), 3 * CHUNK);
    assert!(buf.iter().all(|b| *b == byte), "{byte} has other bytes");
}

/// Takes the record of an inode away, as a loss of power does that comes before the flush.
async fn lose(rt: &Rt, meta: String, inode: InodeId) {
    let engine = records::engine(rt, meta).expect("an engine");
    let key = records::inode(inode);
    let there = run_transaction(rt, &engine, async |tx| {
        let there = tx.get(&key).await?.is_some();
        tx.clear(key.clone())?;
        Ok(there)
    });
    assert!(there.await.expect("committed"), "that is where its record is");
}

#[test]
fn what_nobody_owns_is_found_and_reclaimed() {
    // Only when it is asked.
    let tuning = Tuning { orphan_scan_s: 0, ..Tuning::default() };
    let cluster = Cluster::start_tuned(5, SHAPE, tuning);
    cluster.bootstrap().expect("a cluster");
    let meta = Cluster::address(&cluster.metas[0]);
    let node = cluster.clients[0].clone();
    let work = cluster.with_client(&node, LIMIT, |rt, client| async move {
        let mut files = Vec::new();
        for (i, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            files.push(write(&client, name, i as u8 + 1).await);
        }
        let none = pass(&rt, &client, search::RECLAIM).await;
        assert_eq!((none.checked, none.ownerless_total, none.problem.as_str()), (4, 0, ""));
        for lost in [1, 3] {
            lose(&rt, meta.clone(), files[lost].1).await;
        }
        let seen = pass(&rt, &client, search::LOOK).await;
        assert_eq!((seen.ownerless_total, seen.reclaimed), (2, 0), "{seen:?}");
        for data in &seen.ownerless {
            assert_eq!((data.chunks, data.bytes), (3, 3 * CHUNK as u64), "{data:?}");
        }
        let soon = pass(&rt, &client, search::RECLAIM).await;
        assert_eq!((soon.ownerless_total, soon.reclaimed), (2, 0), "one look is not enough");
        rt.sleep(Duration::from_millis(soon.confirm_ms)).await;
        let dry = pass(&rt, &client, search::LOOK).await;
        assert_eq!((dry.ownerless_total, dry.reclaimed), (2, 0), "it is only looked");
        let done = pass(&rt, &client, search::RECLAIM).await;
        assert_eq!((done.ownerless_total, done.reclaimed, done.reclaimed_chunks), (0, 2, 6));
        let after = pass(&rt, &client, search::LOOK).await;
        assert_eq!((after.checked, after.ownerless_total), (2, 0), "they are gone");
        for (kept, byte) in [(0, 1), (2, 3)] {
            expect(&rt, &files[kept].0, byte).await;
        }
        Ok(())
    });
    work.expect("done");
}

/// It looks by itself, too.
#[test]
fn nobody_has_to_ask() {
    let tuning = Tuning { orphan_scan_s: 20, capability_ms: 2000, ..Tuning::default() };
    let cluster = Cluster::start_tuned(6, SHAPE, tuning);
    cluster.bootstrap().expect("a cluster");
    let meta = Cluster::address(&cluster.metas[0]);
    let node = cluster.clients[0].clone();
    let work = cluster.with_client(&node, LIMIT, |rt, client| async move {
        let lost = write(&client, "lost", 1).await;
        lose(&rt, meta, lost.1).await;
        rt.sleep(secs(60)).await;
        let show = Orphans { what: search::SHOW };
        let now: OrphansReply = client.node_call(META, method::ORPHANS, &show).await?;
        assert_eq!((now.ownerless_total, now.reclaimed, now.reclaimed_chunks), (0, 1, 3));
        Ok(())
    });
    work.expect("done");
}

/// Files come, are cut, replaced, removed while they are open, and go, while passes that reclaim follow one another.
#[test]
fn what_somebody_owns_is_never_taken() {
    let tuning = Tuning { capability_ms: 2000, ..Tuning::default() };
    let cluster = Cluster::start_tuned(8, SHAPE, tuning);
    cluster.bootstrap().expect("a cluster");
    let stop: Rc<Cell<bool>> = Rc::default();
    let (node, looker) = (cluster.clients[0].clone(), cluster.clients[1].clone());
    let (passes, last) = (Rc::new(Cell::new(0)), stop.clone());
    let count = passes.clone();
    let (rt, config) = (looker.rt(), cluster.client_config());
    looker.rt().spawn_detached(async move {
        let client = Client::connect(&rt, config).await.expect("a client");
        while !last.get() {
            let now = pass(&rt, &client, search::RECLAIM).await;
            assert_eq!(now.reclaimed, 0, "{now:?}");
            count.set(count.get() + 1);
        }
    });
    let work = cluster.with_client(&node, LIMIT, |rt, client| async move {
        let (kept, _) = write(&client, "kept", 77).await;
        // Removed at the beginning, open to the end.
        let (held, _) = write(&client, "held", 78).await;
        unlink(&client, "held").await;
        for round in 0..40u8 {
            let (file, inode) = write(&client, "busy", round).await;
            expect(&rt, &file, round).await;
            let old = client.close_session(report(&client, &file, false)).await?.attr.data;
            // To nothing, so that it gets other data; then full again.
            let cut =
                SetAttr { caller: caller(&client), inode, len: Some(0), ..SetAttr::default() };
            assert_ne!(client.setattr(cut).await?.attr.data, old);
            let flags = OpenFlags {
                read: true,
                write: true,
                truncate: false,
                session: client.new_session(),
                append: false,
                inline: false,
                exec: false,
            };
            let open = Open { caller: caller(&client), request: RequestId(0), inode, flags };
            let open = client.open(open).await?;
            let access =
                FileAccess { caller: caller(&client), read: true, write: true, exec: false };
            let again = client.open_file(&open, access)?;
            again.write(0, Buf::from_vec(vec![round ^ 0xff; 3 * CHUNK])).await?;
            rt.sleep(Duration::from_millis(700)).await;
            expect(&rt, &again, round ^ 0xff).await;
            client.close_session(report(&client, &again, false)).await?;
            if round % 3 == 0 {
                unlink(&client, "busy").await;
            }
        }
        expect(&rt, &kept, 77).await;
        expect(&rt, &held, 78).await;
        stop.set(true);
        Ok(())
    });
    work.expect("done");
    assert!(passes.get() > 50, "{} passes", passes.get());
}

async fn unlink(client: &Rc<Client>, name: &str) {
    let query = Unlink {
        caller: caller(client),
        request: RequestId(0),
        parent: ROOT_INODE,
        name: name.as_bytes().to_vec().into(),
        directory: false,
    };
    client.unlink(query).await.expect("unlinked");
}
