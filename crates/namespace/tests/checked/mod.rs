//! The checker of the whole metadata at the end of a test of the namespace.

use glowfs_kv::{Engine, run_transaction};
use glowfs_namespace::{Context, Env, fsck};
use glowfs_rt::Rt;
use glowfs_types::wire::fsck::Fsck;
use glowfs_types::wire::meta::Caller;
use std::rc::Rc;

/// Nothing is wrong with any record.
pub async fn checked(rt: &Rt, engine: &Rc<dyn Engine>, env: &dyn Env, who: &Caller, what: &str) {
    let ask = async |q: Fsck| {
        run_transaction(rt, engine, async |tx| fsck::answer(&Context::new(tx, who, env), &q).await)
            .await
    };
    let report = fsck::check(rt, &ask, &mut |_| ()).await.expect("checked");
    assert!(report.findings.is_empty() && report.undecided.is_empty(), "{what}: {report:#?}");
}
