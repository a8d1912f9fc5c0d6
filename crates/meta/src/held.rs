//! What the engine holds: how much of it are contents of small files and extended attributes, which have a bound each, and the metrics of it.
//!
//! The bound is looked at every [`LOOK_PAUSE`], so it can be passed by what is written within one. Beyond it new files begin with chunks, and
//! files that get longer get chunks. Contents that are there stay, and may be overwritten. An extended attribute that would
//! come beyond its bound is refused.

use crate::background::{log, pause};
use crate::state::{Service, VOLUME};
use glowfs_kv::{Embedded, EngineConfig};
use glowfs_namespace as ns;
use glowfs_rt::Duration;
use glowfs_telemetry::{Gauge, Registry};
use glowfs_types::Result;
use std::cell::Cell;
use std::rc::Rc;

/// Pause between looks.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// Contents with the metadata, and extended attributes, if the configuration does not say: in the memory of one process,
const IN_MEMORY: u64 = 1 << 30;
/// in etcd, which takes 2 GiB altogether unless it is told otherwise, old versions included,
const IN_ETCD: u64 = 256 << 20;
/// and on the disks of FoundationDB.
const ON_DISKS: u64 = 64 << 30;

/// See the module.
pub struct Held {
    /// Bytes of contents, as of the last look.
    contents: Cell<u64>,
    contents_shown: Gauge,
    /// Bytes of extended attributes, as of the last look.
    xattrs: Cell<u64>,
    xattrs_shown: Gauge,
    keys: Gauge,
    bytes: Gauge,
    old_bytes: Gauge,
    without_room: Gauge,
    reserve: Gauge,
    room: Gauge,
    refused: Gauge,
}

impl Held {
    /// Nothing is known yet.
    pub fn new() -> Self {
        let r = Registry::global();
        let gauge = |name, help| r.gauge(name, help, &[]);
        Self {
            contents: Cell::new(0),
            contents_shown: gauge(
                "glowfs_meta_contents_bytes",
                "Bytes of contents of small files that are kept with the metadata.",
            ),
            xattrs: Cell::new(0),
            xattrs_shown: gauge(
                "glowfs_meta_xattr_bytes",
                "Bytes of names and values of extended attributes.",
            ),
            keys: gauge("glowfs_meta_engine_keys", "Keys in the memory of the embedded engine."),
            bytes: gauge(
                "glowfs_meta_engine_bytes",
                "Bytes of keys and newest values in the memory of the embedded engine.",
            ),
            old_bytes: gauge(
                "glowfs_meta_engine_old_bytes",
                "Bytes of older values in the memory of the embedded engine.",
            ),
            without_room: gauge(
                "glowfs_meta_engine_checkpoints_without_room",
                "How often the embedded engine found no room for a checkpoint since it was started.",
            ),
            reserve: gauge(
                "glowfs_meta_engine_reserve_bytes",
                "Bytes of its disk that the embedded engine keeps for when it is full.",
            ),
            room: gauge(
                "glowfs_meta_engine_full",
                "0: the embedded engine has room. 1: it refuses what needs more of its disk. 2: it takes no commit.",
            ),
            refused: gauge(
                "glowfs_meta_engine_refused",
                "Commits that the embedded engine refused for want of room since it was started.",
            ),
        }
    }
}

/// How many bytes of either are kept: what the configuration says, or if that is 0 what suits the engine.
fn most(set: u64, engine: &EngineConfig) -> u64 {
    match engine {
        _ if set > 0 => set,
        EngineConfig::Embedded { .. } | EngineConfig::Remote { .. } => IN_MEMORY,
        EngineConfig::Etcd { .. } => IN_ETCD,
        EngineConfig::FoundationDb { .. } => ON_DISKS,
    }
}

impl Service {
    /// Whether more contents may be kept.
    pub(crate) fn has_room_for_contents(&self) -> bool {
        let set = self.config.tuning.contents_bytes_max;
        self.held.contents.get() < most(set, &self.config.engine)
    }
    /// Whether more extended attributes may be kept.
    pub(crate) fn has_room_for_xattrs(&self) -> bool {
        let set = self.config.tuning.xattr_bytes_max;
        self.held.xattrs.get() < most(set, &self.config.engine)
    }

    /// Looks how much there is.
    pub(crate) async fn look_at_contents(&self) -> Result<()> {
        let usage = self.look(async |tx| ns::statfs(tx, VOLUME).await).await?;
        self.held.contents.set(usage.contents);
        self.held.contents_shown.set(shown(usage.contents));
        self.held.xattrs.set(usage.xattrs);
        self.held.xattrs_shown.set(shown(usage.xattrs));
        Ok(())
    }
}

fn shown(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Goes on looking until the service stops.
pub async fn watch(s: Rc<Service>, engine: Option<Embedded>) {
    while pause(&s, LOOK_PAUSE).await {
        log("counting what is kept", s.look_at_contents().await);
        if let Some(stats) = engine.as_ref().map(Embedded::stats) {
            s.held.keys.set(shown(stats.keys));
            s.held.bytes.set(shown(stats.bytes));
            s.held.old_bytes.set(shown(stats.old_bytes));
            s.held.without_room.set(shown(stats.checkpoints_without_room));
            s.held.reserve.set(shown(stats.reserve_bytes));
            s.held.room.set(i64::from(stats.short) + i64::from(stats.full));
            s.held.refused.set(shown(stats.refused));
        }
    }
}
