//! The layers, from the bottom upwards. Each returns its rows; limits come from what was measured below.

mod checksum;
mod client;
mod disk;
mod mount;
mod network;
mod ring;
mod store;
mod transport;

pub use checksum::checksum;
pub use client::client;
pub use disk::disk;
pub use mount::mount;
pub use network::{can_be_measured as network_can_be_measured, network};
pub use ring::ring;
pub use store::store;
pub use transport::transport;

use crate::cpu::Processes;
use crate::drive::Plan;
use crate::progress::Progress;
use crate::row::Row;
use std::rc::Rc;
use std::time::Duration;

/// What a layer is given.
#[derive(Clone)]
pub struct Given {
    /// Length of a measurement.
    pub time: Duration,
    /// Bytes of files and stores.
    pub size: u64,
    /// Who is told.
    pub progress: Progress,
    /// What was measured below.
    pub below: Rc<[Row]>,
}

/// The loads of storage, the same for every layer that stores: (what, bytes, depth).
const LOADS: [(&str, u64, u32); 6] = [
    ("read", 4 << 10, 1),
    ("read", 4 << 10, 32),
    ("read", 1 << 20, 4),
    ("write", 4 << 10, 1),
    ("write", 4 << 10, 32),
    ("write", 1 << 20, 4),
];

impl Given {
    fn plan(
        &self,
        layer: &'static str,
        what: &'static str,
        way: &str,
        bytes: u64,
        depth: u32,
    ) -> Plan {
        self.progress.begin(&format!("{layer} {what} {bytes} x{depth} {way}"));
        Plan {
            layer,
            what,
            way: way.into(),
            bytes,
            depth,
            time: self.time,
            who: Processes::default(),
        }
    }
    /// What the disk allows of this load: a write goes to so many copies, all of them on the one disk here.
    fn limited(&self, mut row: Row, copies: f64) -> Row {
        let disk = self.below.iter().find(|r| {
            r.layer == "disk" && r.what == row.what && r.bytes == row.bytes && r.depth == row.depth
        });
        let copies = if row.what == "write" { copies } else { 1.0 };
        row.limit_ops_per_second = disk.map(|d| d.ops_per_second / copies);
        row
    }
    fn done(&self, rows: &mut Vec<Row>, row: Row) {
        self.progress.row(&row);
        rows.push(row);
    }
}
