//! What the etcd engine counts.

use glowfs_telemetry::{Counter, Registry};

/// See the module.
pub struct Metrics {
    /// Commits that came.
    pub commits: Counter,
    /// Transactions of etcd that were sent for them.
    pub transactions: Counter,
    /// Those of them that were sent again, since another engine had changed the same sums.
    pub sums_again: Counter,
    /// Commits with a conflict.
    pub conflicts: Counter,
    /// Questions for reads.
    pub reads: Counter,
}

impl Metrics {
    /// Registers them.
    pub fn new() -> Self {
        let r = Registry::global();
        Self {
            commits: r.counter("glowfs_etcd_commits_total", "Commits asked of etcd.", &[]),
            transactions: r.counter(
                "glowfs_etcd_transactions_total",
                "Transactions of etcd with the commits that went together.",
                &[],
            ),
            sums_again: r.counter(
                "glowfs_etcd_sums_again_total",
                "Transactions made again since another engine had changed the same sums.",
                &[],
            ),
            conflicts: r.counter(
                "glowfs_etcd_conflicts_total",
                "Commits refused since another one had changed what they read.",
                &[],
            ),
            reads: r.counter("glowfs_etcd_reads_total", "Questions to etcd for values.", &[]),
        }
    }
}
