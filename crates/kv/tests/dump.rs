//! A load that does not end leaves an engine that nobody takes for a whole one.

use glowfs_kv::dump::{self, format::Header};
use glowfs_kv::{Embedded, EmbeddedConfig, Engine, Transaction, run_transaction};
use glowfs_rt::{Rt, real};
use glowfs_types::{ClusterId, Result, Status};
use std::path::Path;
use std::rc::Rc;

async fn embedded(rt: &Rt, dir: &Path, first_version: u64) -> Embedded {
    std::fs::create_dir_all(dir).expect("directory");
    let config = EmbeddedConfig { first_version, ..EmbeddedConfig::new(ClusterId(7)) };
    Embedded::open(rt, rt.open_dir(dir).expect("directory"), config).await.expect("engine")
}

async fn whole(engine: &Rc<dyn Engine>) -> Result<()> {
    dump::check_whole(&Transaction::new(engine.clone())).await
}

#[test]
fn a_part_of_a_dump_is_refused_until_all_of_it_is_there() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().to_owned();
    real::run(move |rt| async move {
        let first = embedded(&rt, &path.join("first"), 0).await;
        let from: Rc<dyn Engine> = Rc::new(first.clone());
        for i in 0..200u8 {
            let work = async |tx: &Transaction| tx.put(vec![b'k', i], vec![i; 20_000]);
            run_transaction(&rt, &from, work).await.expect("filled");
        }
        let header = Header { cluster: ClusterId(7), version: 0, taken_ns: 5 };
        let mut file = Vec::new();
        dump::dump(&from, header.clone(), &mut file, |_| ()).await.expect("dumped");

        // Its versions lie behind all stamps of the dump.
        let second = embedded(&rt, &path.join("second"), 1000).await;
        let to: Rc<dyn Engine> = Rc::new(second.clone());
        whole(&to).await.expect("an empty engine is whole");
        for cut in [file.len() / 2, file.len() - 1] {
            // As when the process is killed: the rest never comes.
            let replace = cut != file.len() / 2;
            dump::load(&rt, &to, &file[..cut], replace, |_| ()).await.expect_err("cut off");
            let refused = whole(&to).await.expect_err("a part");
            assert_eq!(refused.status, Status::Corrupt);
            assert!(refused.message.contains("--replace"), "{refused}");
            let mut out = Vec::new();
            let again = dump::dump(&to, header.clone(), &mut out, |_| ()).await;
            assert_eq!(again.expect_err("a part is not dumped").status, Status::Corrupt);
        }
        // Also after a start.
        drop(to);
        second.close().await.expect("closed");
        drop(second);
        // Its versions lie behind all stamps of the dump.
        let second = embedded(&rt, &path.join("second"), 1000).await;
        let to: Rc<dyn Engine> = Rc::new(second.clone());
        whole(&to).await.expect_err("still a part");
        dump::load(&rt, &to, &file[..], true, |_| ()).await.expect("loaded");
        dump::compare(&to, &file[..], |_| ()).await.expect("equal");
        whole(&to).await.expect_err("nobody has said that it may be used");
        dump::finish(&rt, &to, async |tx| tx.put(b"more".to_vec(), Vec::new()))
            .await
            .expect("used");
        whole(&to).await.expect("whole");
        dump::compare(&to, &file[..], |_| ()).await.expect_err("with what it is used with");
        for engine in [first, second] {
            engine.close().await.expect("closed");
        }
    });
}

/// Stamps of the engine would meet those of the dump: that is found before the engine is emptied.
#[test]
fn what_cannot_be_loaded_takes_nothing_away() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().to_owned();
    real::run(move |rt| async move {
        let old = embedded(&rt, &path.join("old"), 1 << 40).await;
        let young = embedded(&rt, &path.join("young"), 0).await;
        let (from, to): (Rc<dyn Engine>, Rc<dyn Engine>) =
            (Rc::new(old.clone()), Rc::new(young.clone()));
        for engine in [&from, &to] {
            let work = async |tx: &Transaction| tx.put(b"k".to_vec(), b"v".to_vec());
            run_transaction(&rt, engine, work).await.expect("filled");
        }
        let header = Header { cluster: ClusterId(7), version: 0, taken_ns: 5 };
        let mut file = Vec::new();
        dump::dump(&from, header, &mut file, |_| ()).await.expect("dumped");
        let refused = dump::load(&rt, &to, &file[..], true, |_| ()).await.expect_err("too young");
        assert_eq!(refused.status, Status::NotSupported, "{refused}");
        whole(&to).await.expect("as it was");
        let tx = Transaction::new(to.clone());
        assert_eq!(tx.get(b"k").await.expect("read"), Some(b"v".to_vec()));
        for engine in [old, young] {
            engine.close().await.expect("closed");
        }
    });
}
