//! The order of updates of one chunk, when one of them fails.

use crate::fake::{Disk, run};
use crate::small::{T, bytes, config, request};
use glowfs_chunkstore::{StageKind, Store};
use glowfs_rt::Duration;
use glowfs_rt::sync::join;
use glowfs_types::Status;

/// An update is given up while a larger one behind it is being written, and comes again: it has to wait for that one to end, and is not refused for good.
#[test]
fn one_that_failed_comes_again_when_those_behind_it_have_ended() {
    let disk = Disk::new(21);
    let d = disk.clone();
    run(21, &disk, |rt| async move {
        let store = Store::open(&rt, d.dir(), config()).await.expect("open");
        store.create_target(T).await.expect("target");
        let stage = |version| {
            store.stage(T, request(1, version, StageKind::Write, bytes(version, 128 << 10)))
        };
        stage(1).await.expect("staged");
        d.hold("blocks-17");
        let given_up = async {
            let late = rt.timeout(Duration::from_secs(1), stage(2)).await;
            assert!(late.is_err(), "it is written already");
        };
        let behind = async {
            rt.sleep(Duration::from_millis(500)).await;
            let refused = stage(3).await.expect_err("what it builds on is not there");
            assert_eq!(refused.status, Status::VersionGap, "{refused}");
        };
        let again = async {
            rt.sleep(Duration::from_secs(2)).await;
            let early = stage(2).await.expect_err("the one behind it is being written");
            assert_eq!(early.status, Status::Overloaded, "{early}");
            let later = stage(4).await.expect_err("what it builds on is not there");
            assert_eq!(later.status, Status::VersionGap, "{later}");
            d.let_go();
        };
        join(join(given_up, behind), again).await;
        stage(2).await.expect("now it is its turn");
        stage(3).await.expect("and now that of the next");
    })
    .expect("ran");
}
