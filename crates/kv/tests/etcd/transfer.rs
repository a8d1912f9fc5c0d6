//! Everything in one engine, by a file, in another one: embedded to etcd and back, with equal keys; and no stamp given out twice.

use super::cluster::Cluster;
use super::open;
use glowfs_kv::dump::{self, format::Header};
use glowfs_kv::{
    Embedded, EmbeddedConfig, Engine, Key, Transaction, Value, key_after, run_transaction,
};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::kv::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use glowfs_types::{ClusterId, Status};
use std::path::Path;
use std::rc::Rc;

async fn embedded(rt: &Rt, dir: &Path, first_version: u64) -> Embedded {
    std::fs::create_dir_all(dir).expect("directory");
    let config = EmbeddedConfig { first_version, ..EmbeddedConfig::new(ClusterId(7)) };
    Embedded::open(rt, rt.open_dir(dir).expect("directory"), config).await.expect("engine")
}

async fn all(engine: &Rc<dyn Engine>) -> Vec<(Key, Value)> {
    let (mut out, mut begin) = (Vec::new(), Key::new());
    let tx = Transaction::new(engine.clone());
    loop {
        let page = tx.get_range(&begin, &[0xff; KEY_BYTES_MAX], 500, false).await.expect("read");
        out.extend(page.entries);
        match out.last() {
            Some((last, _)) if page.more => begin = key_after(last),
            _ => return out,
        }
    }
}

/// Many small keys, some as large as they may be, sums and stamps.
async fn fill(rt: &Rt, engine: &Rc<dyn Engine>) {
    for some in 0..40u64 {
        let work = async |tx: &Transaction| {
            for i in 0..100u64 {
                let key = (some * 1000 + i * 7919 % 1000).to_be_bytes().to_vec();
                tx.put([&b"key"[..], &key].concat(), vec![i as u8; (i % 50) as usize])?;
            }
            tx.put([&[some as u8; 40][..], &[b'x'; KEY_BYTES_MAX - 40]].concat(), vec![])?;
            tx.put([b"large", &[some as u8][..]].concat(), vec![7; VALUE_BYTES_MAX])?;
            tx.add(b"sum", 3)?;
            tx.put_versionstamped(b"stamp".to_vec(), vec![], vec![some as u8])
        };
        run_transaction(rt, engine, work).await.expect("filled");
    }
}

async fn dumped(engine: &Rc<dyn Engine>) -> Vec<u8> {
    let header = Header { cluster: ClusterId(7), version: 0, taken_ns: 5 };
    let mut file = Vec::new();
    let sum = dump::dump(engine, header, &mut file, |_| ()).await.expect("dumped");
    let (header, verified) = dump::verify(&file[..], |_| ()).expect("whole");
    assert_eq!((sum, ClusterId(7)), (verified, header.cluster));
    file
}

/// The greatest stamp that is there.
async fn newest_stamp(engine: &Rc<dyn Engine>) -> Key {
    let tx = Transaction::new(engine.clone());
    let page = tx.get_range(b"stamp", b"stamq", 1, true).await.expect("read");
    page.entries[0].0.clone()
}

async fn stamps_go_on(rt: &Rt, engine: &Rc<dyn Engine>) {
    let before = newest_stamp(engine).await;
    let work = async |tx: &Transaction| tx.put_versionstamped(b"stamp".to_vec(), vec![], vec![]);
    run_transaction(rt, engine, work).await.expect("stamped");
    assert!(newest_stamp(engine).await > before, "a stamp was given out again");
}

/// Lets what was loaded be used.
async fn finish(rt: &Rt, engine: &Rc<dyn Engine>) {
    dump::finish(rt, engine, async |_| Ok(())).await.expect("used");
}

#[test]
fn from_embedded_to_etcd_and_back() {
    let cluster = Cluster::start(1, &[]);
    let endpoints = cluster.endpoints();
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().to_owned();
    real::run(move |rt| async move {
        // Older than the etcd is by its revisions.
        let first = embedded(&rt, &path.join("first"), 1 << 40).await;
        let from: Rc<dyn Engine> = Rc::new(first.clone());
        fill(&rt, &from).await;
        let before = all(&from).await;
        let file = dumped(&from).await;
        let etcd = open(&rt, endpoints, "loads");
        assert!(dump::is_empty(&etcd).await.expect("read"));
        dump::load(&rt, &etcd, &file[..], false, |_| ()).await.expect("loaded");
        dump::compare(&etcd, &file[..], |_| ()).await.expect("equal");
        finish(&rt, &etcd).await;
        assert_eq!(all(&etcd).await, before);
        // Not over something, unless that is meant.
        let refused =
            dump::load(&rt, &etcd, &file[..], false, |_| ()).await.expect_err("not empty");
        assert_eq!(refused.status, Status::NotEmpty);
        let extra = async |tx: &Transaction| tx.put(b"zzz".to_vec(), vec![]);
        run_transaction(&rt, &etcd, extra).await.expect("one more");
        assert!(dump::compare(&etcd, &file[..], |_| ()).await.is_err());
        dump::load(&rt, &etcd, &file[..], true, |_| ()).await.expect("replaced");
        dump::compare(&etcd, &file[..], |_| ()).await.expect("equal");
        finish(&rt, &etcd).await;

        let back = dumped(&etcd).await;
        let (header, _) = dump::verify(&back[..], |_| ()).expect("whole");
        let (of_first, _) = dump::verify(&file[..], |_| ()).expect("whole");
        assert!(header.version >= of_first.version, "what is made of it would begin in the past");
        stamps_go_on(&rt, &etcd).await;
        let second = embedded(&rt, &path.join("second"), header.version).await;
        let to: Rc<dyn Engine> = Rc::new(second.clone());
        dump::load(&rt, &to, &back[..], false, |_| ()).await.expect("loaded");
        dump::compare(&to, &back[..], |_| ()).await.expect("equal");
        finish(&rt, &to).await;
        assert_eq!(all(&to).await, before);
        // Also after a start.
        drop(to);
        second.close().await.expect("closed");
        drop(second);
        let second = embedded(&rt, &path.join("second"), 0).await;
        let to: Rc<dyn Engine> = Rc::new(second.clone());
        assert_eq!(all(&to).await, before);
        stamps_go_on(&rt, &to).await;
        // An engine that could not keep stamps apart says so before anything is put.
        let third = embedded(&rt, &path.join("third"), 0).await;
        let to: Rc<dyn Engine> = Rc::new(third.clone());
        let refused = dump::load(&rt, &to, &file[..], false, |_| ()).await.expect_err("too young");
        assert_eq!(refused.status, Status::NotSupported);
        assert!(dump::is_empty(&to).await.expect("read"));
        for engine in [first, second, third] {
            engine.close().await.expect("closed");
        }
    });
}
