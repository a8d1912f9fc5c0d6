//! A healthy tree of every kind of thing is clean; each kind of damage, put into the records directly, is found, mended, and gone afterwards.

#[path = "../../../tests/world/mod.rs"]
pub(crate) mod world;

macro_rules! op {
    ($w:expr, $f:path, $q:expr) => {{
        let (w, q) = ($w, $q);
        run_transaction(&w.rt, &w.engine, async |tx| $f(&Context::new(tx, &who(), w), &q).await)
            .await
            .expect(stringify!($f))
    }};
}

mod healthy;
mod leaving;
mod names;
mod planting;
mod records;

use super::*;
use crate as ns;
use glowfs_kv::run_transaction;
use glowfs_rt::Rt;
use glowfs_types::wire::fsck::Problem;
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use healthy::{Tree, tree};
use std::collections::BTreeSet;
use world::{V, World};

fn who() -> Caller {
    Caller { client: ClientId(7), volume: V, ..Caller::default() }
}

fn name(n: &str) -> Name {
    n.as_bytes().to_vec().into()
}

fn kinds(report: &Report) -> BTreeSet<Problem> {
    report.findings.iter().map(|f| f.problem).collect()
}

/// Damages a healthy tree, expects these problems, and that mending ends well: all is clean, or only what cannot be mended is left.
async fn damaged(
    rt: &Rt,
    what: &str,
    expected: &[Problem],
    damage: impl AsyncFn(&World, &Tree),
) -> (World, Tree) {
    let w = World { ticks: true, keeps_removed: true, ..World::new(rt, 0).await };
    let t = tree(&w).await;
    let clean = w.check().await;
    assert!(clean.findings.is_empty() && clean.undecided.is_empty(), "{:?}", clean.findings);
    damage(&w, &t).await;
    let mut report = w.check().await;
    let expected: BTreeSet<_> = expected.iter().copied().collect();
    assert_eq!(kinds(&report), expected, "{what}: {:#?}", report.findings);
    for _ in 0..6 {
        if report.findings.iter().all(|f| f.cure.is_empty()) {
            break;
        }
        w.mend(&report.findings).await;
        report = w.check().await;
    }
    assert!(report.findings.iter().all(|f| f.cure.is_empty()), "{what}: {:#?}", report.findings);
    (w, t)
}

async fn clean_after(
    rt: &Rt,
    what: &str,
    expected: &[Problem],
    damage: impl AsyncFn(&World, &Tree),
) -> (World, Tree) {
    let (w, t) = damaged(rt, what, expected, damage).await;
    let report = w.check().await;
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
    (w, t)
}

async fn lost_found(w: &World, id: InodeId) -> InodeId {
    let dir = w.entry(ROOT_INODE, "lost+found").await.expect("made").inode;
    let entry = w.entry(dir, &format!("#{}", id.0)).await.expect("in /lost+found");
    assert_eq!(entry.inode, id);
    dir
}
