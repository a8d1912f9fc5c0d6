//! Counts and latencies per operation.

use glowfs_fuse::abi::opcode_name;
use glowfs_rt::Duration;
use glowfs_telemetry::{Counter, Histogram, Registry, Unit};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Metrics of one mount.
pub struct Metrics {
    ops: RefCell<BTreeMap<u32, Op>>,
    /// Bytes read by applications.
    pub read_bytes: Counter,
    /// Bytes written by applications.
    pub written_bytes: Counter,
    /// Writes that were answered before they were sent.
    pub gathered: Counter,
    /// What they were sent as.
    pub sent_late: Counter,
}

struct Op {
    latency: Histogram,
    errors: Counter,
}

impl Metrics {
    /// Registers what does not depend on the operation.
    pub fn new() -> Self {
        let counter = |name, help| Registry::global().counter(name, help, &[]);
        Self {
            ops: RefCell::default(),
            read_bytes: counter("glowfs_mount_read_bytes_total", "Bytes read through the mount"),
            written_bytes: counter(
                "glowfs_mount_written_bytes_total",
                "Bytes written through the mount",
            ),
            gathered: counter(
                "glowfs_mount_gathered_writes_total",
                "Writes that were answered before they were sent",
            ),
            sent_late: counter(
                "glowfs_mount_late_writes_total",
                "Writes that gathered ones became",
            ),
        }
    }
    /// Records one answered request.
    pub fn record(&self, opcode: u32, took: Duration, failed: bool) {
        let mut ops = self.ops.borrow_mut();
        let op = ops.entry(opcode).or_insert_with(|| {
            let labels = [("op", opcode_name(opcode))];
            Op {
                latency: Registry::global().histogram(
                    "glowfs_mount_op_seconds",
                    "FUSE requests from arrival to answer",
                    Unit::Nanoseconds,
                    &labels,
                ),
                errors: Registry::global().counter(
                    "glowfs_mount_op_errors_total",
                    "FUSE requests answered with an error (ENOENT of lookups included)",
                    &labels,
                ),
            }
        });
        op.latency.record(took.as_nanos() as u64);
        if failed {
            op.errors.inc();
        }
    }
}
