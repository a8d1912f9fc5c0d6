//! What mgmtd is told of the targets.

use crate::node::Node;
use crate::target::Target;
use glowfs_agent::Report;
use glowfs_types::routing::LocalState;
use glowfs_types::wire::mgmtd::TargetReport;
use glowfs_types::{ChainVersion, Incarnation, StoreId, TargetId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a target takes, of `share` bytes that it has of its disk. Exactly 0 says that the target is empty (of a new chain, that it
/// may begin to serve), whatever else is on its disk.
fn used_bytes(target: &Target, share: u64) -> u64 {
    if target.store.chunk_count(target.id) == 0 { 0 } else { share.max(1) }
}

/// Bytes that each target of a disk takes. Slots belong to the disk; its targets share them evenly, by striping.
fn shares(targets: &[Rc<Target>]) -> BTreeMap<StoreId, u64> {
    let mut disks: BTreeMap<StoreId, (&Target, u64)> = BTreeMap::new();
    for t in targets {
        disks.entry(t.store.id()).or_insert((t, 0)).1 += 1;
    }
    disks.into_iter().map(|(id, (t, n))| (id, t.store.space().used_bytes / n)).collect()
}

/// The reporter of a node.
pub(crate) struct Reporter(pub Rc<Node>);

impl Report for Reporter {
    fn targets(&self) -> Vec<TargetReport> {
        let node = &self.0;
        let targets = node.all_targets();
        let shares = shares(&targets);
        let mut reports: Vec<TargetReport> = targets
            .iter()
            .map(|t| TargetReport {
                target: t.id,
                local: t.local(),
                incarnation: t.store.incarnation(),
                clean: t.store.was_clean(),
                machine_since: t.store.machine_since(),
                adopted: t.replica.borrow().adopted_version(),
                used_bytes: used_bytes(t, shares.get(&t.store.id()).copied().unwrap_or(0)),
                store: t.store.id(),
                known: t.known(),
                served: Some(t.meta().served),
                nonce: t.store.nonce(),
                former: t.store.former(),
            })
            .collect();
        // Targets whose disk could not be opened are ours all the same; and those that left their chain until their chunks are removed: mgmtd
        // forgets what is not named, and what it does not know is kept for ever.
        let known: Vec<_> = targets.iter().map(|t| t.id).collect();
        let stores: Vec<_> = node.disks.iter().filter_map(|d| d.store().ok()).collect();
        let open: Vec<StoreId> = stores.iter().map(|s| s.id()).collect();
        let held: Vec<_> = stores.iter().flat_map(|s| s.targets()).collect();
        let leaving = |id| held.contains(&id) && !node.is_creating(id);
        let works = |id| stores.iter().any(|s| s.id() == id && s.failure().is_none());
        let routing = node.routing();
        reports.extend(
            routing
                .targets
                .values()
                .filter(|t| {
                    t.node == node.config.node()
                        && !known.contains(&t.id)
                        && (!open.contains(&t.store) || leaving(t.id))
                })
                .map(|t| TargetReport {
                    target: t.id,
                    local: LocalState::Offline,
                    incarnation: t.incarnation,
                    clean: false,
                    machine_since: Incarnation(0),
                    adopted: ChainVersion(0),
                    // Something, where its chunks are being removed.
                    used_bytes: u64::from(works(t.store) && leaving(t.id)),
                    store: t.store,
                    known: ChainVersion(0),
                    served: None,
                    nonce: t.nonce,
                    former: 0,
                }),
        );
        let sizes = targets.iter().map(|t| t.replica.borrow().sizes());
        let (channels, pending) = sizes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        node.metrics.channels.set(channels as i64);
        node.metrics.pending.set(pending as i64);
        for (disk, metrics) in node.disks.iter().zip(&node.metrics.disks) {
            let works = disk.store().ok().filter(|s| s.failure().is_none());
            let space = works.map(|s| s.space()).unwrap_or_default();
            metrics.capacity.set(i64::try_from(space.total_bytes).unwrap_or(i64::MAX));
            metrics.free.set(i64::try_from(space.free_bytes).unwrap_or(i64::MAX));
        }
        let unvouched = targets.iter().map(|t| t.replica.borrow().unvouched_chunks());
        node.metrics.unvouched.set(unvouched.sum::<usize>() as i64);
        reports
    }
    fn removed(&self, targets: &[TargetId]) {
        self.0.removed(targets);
    }
}
