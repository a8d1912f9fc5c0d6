//! What the service counts.

use glowfs_telemetry::{Counter, Gauge, Histogram, Registry, Unit};

/// The metrics of one service.
pub(crate) struct Metrics {
    pub reads: Counter,
    pub read_bytes: Counter,
    pub read_errors: Counter,
    pub read_seconds: Histogram,
    pub writes: Counter,
    pub write_bytes: Counter,
    pub copies: Counter,
    pub write_errors: Counter,
    pub write_seconds: Histogram,
    pub forwards: Counter,
    pub flushes: Counter,
    pub disk_flushes: Counter,
    pub overloaded: Counter,
    pub diverged: Counter,
    pub repaired: Counter,
    pub repairs_failed: Counter,
    pub lost_blocks: Counter,
    pub scrub_bytes: Counter,
    pub scrub_found: Counter,
    pub slow_reports: Counter,
    pub channels: Gauge,
    pub pending: Gauge,
    pub sync_chunks: Counter,
    pub sync_bytes: Counter,
    pub sync_equal: Counter,
    pub sync_running: Gauge,
    pub background_share: Gauge,
    pub whole_bytes: Gauge,
    pub unvouched: Gauge,
    pub vouches: Counter,
    pub vouches_unanswered: Counter,
    pub reads_unvouched: Counter,
    /// Of each disk, in their order.
    pub disks: Vec<DiskMetrics>,
}

/// Room on one disk; 0 while it has failed.
pub(crate) struct DiskMetrics {
    pub capacity: Gauge,
    pub free: Gauge,
}

impl DiskMetrics {
    fn new(path: &str) -> Self {
        let (r, disk) = (Registry::global(), [("disk", path)]);
        Self {
            capacity: r.gauge(
                "glowfs_storage_disk_capacity_bytes",
                "Bytes of a disk, by `disk`; 0 while it has failed.",
                &disk,
            ),
            free: r.gauge(
                "glowfs_storage_disk_free_bytes",
                "Bytes that chunks may still take of a disk, by `disk`.",
                &disk,
            ),
        }
    }
}

impl Metrics {
    /// `disks` are the paths of the disks.
    pub fn new<'a>(disks: impl Iterator<Item = &'a str>) -> Self {
        let r = Registry::global();
        Self {
            disks: disks.map(DiskMetrics::new).collect(),
            reads: r.counter(
                "glowfs_storage_reads_total",
                "Pieces of chunks read for clients, verified.",
                &[],
            ),
            read_bytes: r.counter(
                "glowfs_storage_read_bytes_total",
                "Bytes read for clients.",
                &[],
            ),
            read_errors: r.counter(
                "glowfs_storage_read_errors_total",
                "Pieces that could not be read.",
                &[],
            ),
            read_seconds: r.histogram(
                "glowfs_storage_read_seconds",
                "Time of a read request.",
                Unit::Nanoseconds,
                &[],
            ),
            writes: r.counter(
                "glowfs_storage_writes_total",
                "Updates of clients acknowledged.",
                &[],
            ),
            write_bytes: r.counter(
                "glowfs_storage_write_bytes_total",
                "Bytes of those updates.",
                &[],
            ),
            copies: r.counter(
                "glowfs_storage_copies_total",
                "Updates whose bytes came from another chunk.",
                &[],
            ),
            write_errors: r.counter(
                "glowfs_storage_write_errors_total",
                "Updates of clients refused or failed.",
                &[],
            ),
            write_seconds: r.histogram(
                "glowfs_storage_write_seconds",
                "Time of an update at the head.",
                Unit::Nanoseconds,
                &[],
            ),
            forwards: r.counter("glowfs_storage_forwards_total", "Updates sent down a chain.", &[]),
            flushes: r.counter("glowfs_storage_flushes_total", "Flushes of targets.", &[]),
            disk_flushes: r.counter(
                "glowfs_storage_disk_flushes_total",
                "Flushes of disks; everything that waits when one begins shares it.",
                &[],
            ),
            overloaded: r.counter(
                "glowfs_storage_overloaded_total",
                "Requests refused by admission.",
                &[],
            ),
            diverged: r.counter(
                "glowfs_storage_diverged_total",
                "Chunks whose content differs from the successor's.",
                &[],
            ),
            repaired: r.counter(
                "glowfs_storage_repaired_total",
                "Chunks repaired from another replica.",
                &[],
            ),
            repairs_failed: r.counter(
                "glowfs_storage_repairs_failed_total",
                "Repairs that failed; they are tried again.",
                &[],
            ),
            lost_blocks: r.counter(
                "glowfs_storage_lost_blocks_total",
                "Damaged blocks that no replica has and that were handed on as damaged.",
                &[],
            ),
            scrub_bytes: r.counter(
                "glowfs_storage_scrub_bytes_total",
                "Bytes at rest that the scrub verified.",
                &[],
            ),
            scrub_found: r.counter(
                "glowfs_storage_scrub_found_total",
                "Chunks that the scrub found damaged or different from the tail's.",
                &[],
            ),
            slow_reports: r.counter(
                "glowfs_storage_slow_reports_total",
                "Reports to mgmtd of neighbours that hold their chain up.",
                &[],
            ),
            channels: r.gauge(
                "glowfs_storage_channels",
                "Channels of clients of which the last write is remembered, on all targets.",
                &[],
            ),
            pending: r.gauge(
                "glowfs_storage_pending_versions",
                "Pending versions on all targets.",
                &[],
            ),
            sync_chunks: r.counter(
                "glowfs_storage_resync_chunks_total",
                "Chunks sent or removed by resync.",
                &[],
            ),
            sync_bytes: r.counter(
                "glowfs_storage_resync_bytes_total",
                "Bytes sent by resync.",
                &[],
            ),
            sync_equal: r.counter(
                "glowfs_storage_resync_equal_total",
                "Chunks that resync found equal.",
                &[],
            ),
            sync_running: r.gauge(
                "glowfs_storage_resync_running",
                "Resyncs that this node sends now.",
                &[],
            ),
            background_share: r.gauge(
                "glowfs_storage_background_share_percent",
                "Share of its time that a resync or a scrub may work while clients are being served, by what they feel of it.",
                &[],
            ),
            whole_bytes: r.gauge(
                "glowfs_storage_forwarded_whole_bytes",
                "Bytes of whole chunks in memory that are forwarded to targets which are brought up to date.",
                &[],
            ),
            unvouched: r.gauge(
                "glowfs_storage_unvouched_chunks",
                "Chunks with versions that are not shown yet, since not all before their target are known to have stored them.",
                &[],
            ),
            vouches: r.counter(
                "glowfs_storage_vouches_total",
                "Questions what may be shown that were sent to predecessors.",
                &[],
            ),
            vouches_unanswered: r.counter(
                "glowfs_storage_vouches_unanswered_total",
                "Questions what may be shown that a predecessor did not answer.",
                &[],
            ),
            reads_unvouched: r.counter(
                "glowfs_storage_reads_unvouched_total",
                "Reads that had to wait for the word of a predecessor.",
                &[],
            ),
        }
    }
}
