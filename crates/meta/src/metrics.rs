//! Metrics of the service.

use crate::together::Counts;
use glowfs_telemetry::{Counter, Gauge, Histogram, Registry, Unit};
use glowfs_types::wire::method;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// One histogram per method, and counters of the background work.
pub struct Metrics {
    ops: RefCell<BTreeMap<u16, Histogram>>,
    /// Data ids collected.
    pub gc_files: Counter,
    /// Chunks collected.
    pub gc_chunks: Counter,
    /// Sessions of dead clients ended.
    pub reaped: Counter,
    /// Sessions that were lost with the engine's power and are there again.
    pub reopened: Counter,
    /// Recalls sent to clients.
    pub recalls: Counter,
    /// Recalls that were not answered, so that the lease had to end by itself.
    pub recalls_waited: Counter,
    /// Clients told to forget a name that they had changed themselves, because another one came to see it.
    pub finishes: Counter,
    /// Waits for a client's kernel that was held up by another change in the directory.
    pub held_up: Counter,
    /// Removed files erased.
    pub erased: Counter,
    /// Names taken out of removed trees.
    pub tree_names: Counter,
    /// Things in removed trees that went to /lost+found.
    pub tree_kept: Counter,
    /// Removed files that a client still had open when it was asked.
    pub held: Counter,
    /// Removed files that have waited for long until clients say whether they have them open.
    pub removed_waiting: Gauge,
    /// Removed files that are kept because their records cannot be read.
    pub damaged_removed: Gauge,
    /// Records of the garbage queue that cannot be read.
    pub damaged_garbage: Gauge,
    /// Sessions of dead clients that are kept because their records cannot be read.
    pub damaged_sessions: Gauge,
    /// Truncates that were left behind and finished in the background.
    pub cuts_left: Counter,
    /// Data ids that the last pass found without an owner.
    pub ownerless: Gauge,
    /// Chunks of such that were reclaimed.
    pub orphans: Counter,
    /// Calls refused because too many were in work.
    pub refused: Counter,
    /// Transactions of calls and of the background work.
    pub transactions: Counter,
    /// How often one of them was tried again.
    pub transactions_again: Counter,
    /// Calls that were done in the transaction of another one.
    pub gathered: Counter,
}

impl Metrics {
    /// Registers them.
    pub fn new() -> Self {
        let r = Registry::global();
        Self {
            ops: RefCell::default(),
            gc_files: r.counter("glowfs_meta_gc_files_total", "Files whose data was removed.", &[]),
            gc_chunks: r.counter(
                "glowfs_meta_gc_chunks_total",
                "Chunks removed by garbage collection.",
                &[],
            ),
            reaped: r.counter(
                "glowfs_meta_sessions_reaped_total",
                "Sessions of dead clients ended.",
                &[],
            ),
            reopened: r.counter(
                "glowfs_meta_sessions_reopened_total",
                "Sessions that the metadata engine had lost with its power and that their clients had put back.",
                &[],
            ),
            recalls: r.counter(
                "glowfs_meta_recalls_total",
                "Recalls of attributes and capabilities sent to clients.",
                &[],
            ),
            recalls_waited: r.counter(
                "glowfs_meta_recalls_waited_total",
                "Recalls that were not answered: the lease had to end by itself.",
                &[],
            ),
            finishes: r.counter(
                "glowfs_meta_name_finishes_total",
                "Names that a client had changed itself and was told to forget, because another one looked.",
                &[],
            ),
            held_up: r.counter(
                "glowfs_meta_names_held_up_total",
                "Waits for the kernel of a client that was changing the same directory.",
                &[],
            ),
            erased: r.counter(
                "glowfs_meta_removed_erased_total",
                "Removed files erased after no client had them open.",
                &[],
            ),
            tree_names: r.counter(
                "glowfs_meta_tree_names_total",
                "Names taken out of directories of removed trees.",
                &[],
            ),
            tree_kept: r.counter(
                "glowfs_meta_tree_kept_total",
                "Things in removed trees that might not be removed and went to /lost+found.",
                &[],
            ),
            held: r.counter(
                "glowfs_meta_removed_held_total",
                "Answers of clients that have a removed file open.",
                &[],
            ),
            removed_waiting: r.gauge(
                "glowfs_meta_removed_waiting",
                "Removed files that have waited for more than a minute until clients say whether they have them open.",
                &[],
            ),
            damaged_removed: r.gauge(
                "glowfs_meta_removed_damaged",
                "Removed files that are kept because their records cannot be read, as of the last look at all.",
                &[],
            ),
            damaged_garbage: r.gauge(
                "glowfs_meta_gc_damaged",
                "Records of data to be removed that cannot be read, as of the last look: its chunks are kept.",
                &[],
            ),
            damaged_sessions: r.gauge(
                "glowfs_meta_sessions_damaged",
                "Sessions of dead clients that are kept because their records cannot be read, as of the last look.",
                &[],
            ),
            cuts_left: r.counter(
                "glowfs_meta_cuts_left_total",
                "Truncates that nobody was finishing any more, finished in the background.",
                &[],
            ),
            ownerless: r.gauge(
                "glowfs_meta_ownerless_data",
                "Data ids with chunks that no inode owns, as of the last pass.",
                &[],
            ),
            orphans: r.counter(
                "glowfs_meta_ownerless_chunks_reclaimed_total",
                "Chunks that no inode owned and that were removed.",
                &[],
            ),
            refused: r.counter(
                "glowfs_meta_refused_total",
                "Calls refused by admission control.",
                &[],
            ),
            transactions: r.counter(
                "glowfs_meta_transactions_total",
                "Transactions that were run.",
                &[],
            ),
            transactions_again: r.counter(
                "glowfs_meta_transactions_again_total",
                "How often a transaction was tried again: another one changed what it had read, or the engine did not answer.",
                &[],
            ),
            gathered: r.counter(
                "glowfs_meta_gathered_total",
                "Changes of a file that were done in the transaction of another one.",
                &[],
            ),
        }
    }

    /// What [`Together`](crate::together::Together) counts.
    pub fn together(&self) -> Counts {
        Counts {
            run: self.transactions.clone(),
            again: self.transactions_again.clone(),
            gathered: self.gathered.clone(),
        }
    }

    /// A call took so long.
    pub fn record(&self, op: u16, nanos: u64) {
        let mut ops = self.ops.borrow_mut();
        let histogram = ops.entry(op).or_insert_with(|| {
            let labels = [("op", method::name(op))];
            Registry::global().histogram(
                "glowfs_meta_op_seconds",
                "Time from a call's arrival to its answer.",
                Unit::Nanoseconds,
                &labels,
            )
        });
        histogram.record(nanos);
    }
}
