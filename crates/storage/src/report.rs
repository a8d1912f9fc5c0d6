//! What mgmtd is told of the targets.

use crate::node::Node;
use crate::target::Target;
use glowfs_agent::Report;
use glowfs_types::routing::LocalState;
use glowfs_types::wire::mgmtd::TargetReport;
use glowfs_types::{ChainVersion, Incarnation, StoreId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a target takes. Slots belong to the disk; its `sharers` targets share them evenly, by striping. Exactly 0 says that the
/// target is empty (of a new chain, that it may begin to serve), whatever else is on its disk.
fn used_bytes(target: &Target, sharers: u64) -> u64 {
    if target.store.list(target.id, None, 1).0.is_empty() {
        return 0;
    }
    (target.store.space().used_bytes / sharers.max(1)).max(1)
}

/// The reporter of a node.
pub(crate) struct Reporter(pub Rc<Node>);

impl Report for Reporter {
    fn targets(&self) -> Vec<TargetReport> {
        let node = &self.0;
        let mut counts: BTreeMap<StoreId, u64> = BTreeMap::new();
        let targets = node.all_targets();
        for t in &targets {
            *counts.entry(t.store.id()).or_default() += 1;
        }
        let mut reports: Vec<TargetReport> = targets
            .iter()
            .map(|t| TargetReport {
                target: t.id,
                local: t.local(),
                incarnation: t.store.incarnation(),
                clean: t.store.was_clean(),
                machine_since: t.store.machine_since(),
                adopted: t.replica.borrow().adopted_version(),
                used_bytes: used_bytes(t, counts.get(&t.store.id()).copied().unwrap_or(1)),
                store: t.store.id(),
                known: t.known(),
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
                }),
        );
        let pending: usize = targets.iter().map(|t| t.replica.borrow().sizes().1).sum();
        node.metrics.pending.set(pending as i64);
        reports
    }
}
