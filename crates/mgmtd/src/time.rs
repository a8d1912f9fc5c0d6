//! The cluster's time, which the primary tells ([`glowfs_cluster::ClusterTime`]).
//!
//! It begins with the wall clock of the first primary that there ever was, and goes on by monotonic clocks only (but for services of older releases). Every renewal of the primary's lease leaves
//! a mark in the engine, so that the next primary is not behind.

use crate::core::Inner;
use glowfs_types::routing::Role;

impl Inner {
    /// The cluster's time as far as this instance knows; 0 if it does not.
    pub fn cluster_ns(&self) -> u64 {
        self.time.borrow_mut().now(self.rt.now().0).unwrap_or(0)
    }
    /// The mark of an earlier time was read; `None`: there is none.
    pub fn read_mark(&self, mark_ns: Option<u64>) {
        if let Some(mark_ns) = mark_ns {
            self.time.borrow_mut().at_least(mark_ns, self.rt.now().0);
        }
    }
    /// The mark that this primary, or who wants to be it, leaves. Where there never was a time it begins.
    pub fn mark(&self) -> u64 {
        match self.cluster_ns() {
            0 => {
                self.time.borrow_mut().at_least(self.rt.unix_ns(), self.rt.now().0);
                self.cluster_ns()
            }
            now => now,
        }
    }
    /// What a service takes for the time.
    pub fn heard_time(&self, role: Role, time_ns: Option<u64>) {
        let now = self.rt.now().0;
        match time_ns {
            // One of an older release judges capabilities, or signs them, by its wall clock: the time must not stay behind that, as it would if no mgmtd ran for a while.
            None if matches!(role, Role::Meta | Role::Storage) => {
                self.time.borrow_mut().at_least(self.rt.unix_ns(), now);
            }
            None | Some(0) => {}
            Some(time_ns) => {
                if self.time.borrow_mut().heard(time_ns, now) {
                    tracing::warn!("the cluster's time goes on where a service remembers it");
                }
            }
        }
    }
}
