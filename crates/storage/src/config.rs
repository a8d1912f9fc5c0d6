//! Configuration of a storage service: one TOML table, unknown keys refused.

use glowfs_chunkstore::StoreConfig;
use glowfs_net::ConnectorOptions;
use glowfs_types::{ClusterId, Error, NodeId, Result, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Configuration of a storage service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageConfig {
    /// Its identity in the cluster; kept for life.
    pub node_id: u64,
    /// The cluster, 32 hexadecimal digits.
    pub cluster_id: String,
    /// Where it listens, best first: `tcp://HOST:PORT`, `unix:///PATH`.
    #[serde(default = "default_listen")]
    pub listen: Vec<String>,
    /// Where health and metrics are served (`HOST:PORT`); none if absent.
    #[serde(default)]
    pub http: Option<String>,
    /// Where mgmtd listens.
    pub mgmtd: Vec<String>,
    /// The file that holds the cluster's service token.
    pub service_token_file: PathBuf,
    /// One directory per disk. An empty one is formatted.
    pub disks: Vec<PathBuf>,
    /// Transports that connections may use: `tcp`, `unix`, `shm`; empty for all.
    #[serde(default)]
    pub transports: Vec<String>,
    /// Free labels: rack, zone.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Bytes of every disk that are left for logs and checkpoints: no file of chunks grows into them, but for what is in the log already and
    /// finds no other room. What the files have already is used up to a thirty-second of this, so that an update that one replica takes finds
    /// room on the others.
    #[serde(default = "default_reserve")]
    pub reserve_bytes: u64,
    /// Bound on the log of each disk, in bytes; at half of it a checkpoint begins. Disks that are formatted from now on.
    #[serde(default = "default_log_bytes")]
    pub log_bytes: u64,
    /// Bound on bytes of requests in work; more are answered with `Overloaded`. Of several disks none may hold more than it leaves free.
    /// What other nodes forward has bounds of its own, twice as much for each place in a chain.
    #[serde(default = "default_inflight_bytes")]
    pub inflight_bytes: u64,
    /// Bound on requests in work; more are answered with `Overloaded`. The same.
    #[serde(default = "default_inflight_ops")]
    pub inflight_ops: u64,
    /// How long a read waits for a pending version before it says `Pending`, in ms.
    #[serde(default = "default_read_wait")]
    pub read_wait_ms: u64,
    /// Chunks that a resync sends at once.
    #[serde(default = "default_sync_chunks")]
    pub sync_chunks: u32,
    /// Bound on the bytes per second that the resyncs of this node send; 0 is no bound.
    #[serde(default)]
    pub sync_bytes_per_s: u64,
    /// Share of its time, in per cent, that a resync may work at most while clients are being served: as long as they do not feel it.
    #[serde(default = "default_sync_share")]
    pub sync_share_percent: u8,
    /// Bound on the bytes per second and disk that the scrub reads; 0 is off. The cluster's configuration can change it.
    #[serde(default = "default_scrub_bytes")]
    pub scrub_bytes_per_s: u64,
    /// The time from the beginning of a scrub of a disk to that of the next one, in s.
    #[serde(default = "default_scrub_interval")]
    pub scrub_interval_s: u64,
    /// The time between checks whether a disk is there and takes writes, in ms.
    #[serde(default = "default_disk_check")]
    pub disk_check_ms: u64,
    /// A disk that does not do a check within this time, in ms, is taken out of service.
    #[serde(default = "default_disk_stuck")]
    pub disk_stuck_ms: u64,
    /// A disk on which any one operation does not end within this time, in ms, is taken out of service. (`flush_stuck_ms` is its former name.)
    #[serde(default = "default_operation_stuck", alias = "flush_stuck_ms")]
    pub operation_stuck_ms: u64,
    /// How long a successor may hold acknowledgements up before mgmtd is told, in ms.
    #[serde(default = "default_slow_after")]
    pub slow_after_ms: u64,
    /// The time between two such reports, in ms.
    #[serde(default = "default_slow_after")]
    pub slow_report_ms: u64,
    /// How many targets of this node may send a resync at once.
    #[serde(default = "default_sync_targets")]
    pub sync_targets: u32,
    /// Share of its time, in per cent, that a resync works at least while clients are being served, however slow they are for it. Not more than `sync_share_percent`.
    #[serde(default = "default_sync_floor")]
    pub sync_floor_percent: u8,
    /// Chunks that a source asks its receiver about at once. No setting: only simulations have others, whose targets are small and must have several pages all the same.
    #[serde(skip)]
    #[serde(default = "default_sync_page")]
    pub sync_page_chunks: u32,
    /// Channel records in one message of a resync. No setting, likewise.
    #[serde(skip)]
    #[serde(default = "default_sync_channels")]
    pub sync_channels: usize,
}

/// The greatest number of chunks in one page of what a target holds.
pub const SYNC_PAGE_MAX: u32 = 4096;
/// Channel records in one message.
pub const CHANNELS_PER_MESSAGE: usize = 16 << 10;

/// Operations under way at a node, at most, whatever its configuration says; each has a few records for the log of a disk.
pub(crate) const INFLIGHT_OPS_MAX: u64 = 32 << 10;
/// The smallest and the greatest log of a disk, in bytes.
const LOG_BYTES_MIN: u64 = 2 << 20;
const LOG_BYTES_MAX: u64 = 64 << 30;
/// A log has about so many segments.
const LOG_SEGMENTS: u64 = 16;
/// Bytes of a log segment, at least and at most.
const SEGMENT_BYTES: (u64, u64) = (256 << 10, 8 << 20);

fn default_listen() -> Vec<String> {
    vec!["tcp://127.0.0.1:0".into()]
}
fn default_reserve() -> u64 {
    256 << 20
}
fn default_log_bytes() -> u64 {
    128 << 20
}
fn default_inflight_bytes() -> u64 {
    256 << 20
}
fn default_inflight_ops() -> u64 {
    8192
}
fn default_read_wait() -> u64 {
    1000
}
fn default_sync_chunks() -> u32 {
    4
}
fn default_scrub_bytes() -> u64 {
    16 << 20
}
fn default_scrub_interval() -> u64 {
    7 * 24 * 3600
}
fn default_disk_check() -> u64 {
    2000
}
fn default_disk_stuck() -> u64 {
    30_000
}
fn default_operation_stuck() -> u64 {
    40_000
}
fn default_slow_after() -> u64 {
    3000
}
fn default_sync_targets() -> u32 {
    4
}
fn default_sync_share() -> u8 {
    50
}
fn default_sync_floor() -> u8 {
    10
}
fn default_sync_page() -> u32 {
    SYNC_PAGE_MAX
}
fn default_sync_channels() -> usize {
    CHANNELS_PER_MESSAGE
}

impl StorageConfig {
    /// Checks what the types cannot say.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| {
            Err(Error::new(Status::InvalidArgument, format!("storage configuration: {what}")))
        };
        if self.node_id == 0 {
            return bad("node_id: 0 is not a node; give each node its own number from 1 on".into());
        }
        self.cluster()?;
        if self.listen.is_empty() {
            return bad("listen: no address".into());
        }
        if self.mgmtd.is_empty() {
            return bad("mgmtd: no address; name at least one, such as tcp://HOST:PORT".into());
        }
        if let Err(e) = glowfs_rt::check_announced(&self.listen, &self.mgmtd) {
            return bad(format!("listen: {e}"));
        }
        if self.disks.is_empty() {
            return bad("disks: none; name at least one directory".into());
        }
        for (i, disk) in self.disks.iter().enumerate() {
            if self.disks[..i].contains(disk) {
                return bad(format!("disks: {} stands there twice", disk.display()));
            }
        }
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&self.log_bytes) {
            return bad(format!(
                "log_bytes: {}; write a number from {LOG_BYTES_MIN} to {LOG_BYTES_MAX}",
                self.log_bytes
            ));
        }
        if let Err(e) = ConnectorOptions::from_names(&self.transports) {
            return bad(format!("transports: {}", e.message));
        }
        for (name, value) in [
            ("inflight_bytes", self.inflight_bytes),
            ("inflight_ops", self.inflight_ops),
            ("read_wait_ms", self.read_wait_ms),
            ("sync_chunks", self.sync_chunks.into()),
            ("sync_share_percent", self.sync_share_percent.into()),
            ("sync_targets", self.sync_targets.into()),
            ("sync_floor_percent", self.sync_floor_percent.into()),
            ("sync_page_chunks", self.sync_page_chunks.into()),
            ("sync_channels", self.sync_channels as u64),
            ("disk_check_ms", self.disk_check_ms),
            ("disk_stuck_ms", self.disk_stuck_ms),
            ("operation_stuck_ms", self.operation_stuck_ms),
            ("scrub_interval_s", self.scrub_interval_s),
            ("slow_after_ms", self.slow_after_ms),
            ("slow_report_ms", self.slow_report_ms),
        ] {
            if value == 0 {
                return bad(format!("{name}: 0 would stop all work; leave it out for the default"));
            }
        }
        Ok(())
    }

    /// The cluster id.
    pub fn cluster(&self) -> Result<ClusterId> {
        self.cluster_id.parse().map_err(|_| {
            Error::new(
                Status::InvalidArgument,
                format!(
                    "storage configuration: cluster_id: «{}» is not 32 hexadecimal digits",
                    self.cluster_id
                ),
            )
        })
    }

    /// How the store of a disk is opened.
    pub fn store(&self) -> Result<StoreConfig> {
        let segment = (self.log_bytes / LOG_SEGMENTS).next_power_of_two();
        Ok(StoreConfig {
            log_bytes_max: self.log_bytes,
            log_segment_bytes: segment.clamp(SEGMENT_BYTES.0, SEGMENT_BYTES.1),
            reserve_bytes: self.reserve_bytes,
            ..StoreConfig::new(self.cluster()?, self.node())
        })
    }

    /// See `slow_after_ms`.
    pub fn slow_after(&self) -> glowfs_rt::Duration {
        glowfs_rt::Duration::from_millis(self.slow_after_ms)
    }

    /// The node id.
    pub fn node(&self) -> NodeId {
        NodeId(self.node_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_name_of_a_key_is_taken() {
        let text =
            "node_id = 1\ncluster_id = \"\"\nmgmtd = []\nservice_token_file = \"\"\ndisks = []\n";
        let read = |more: &str| toml::from_str::<StorageConfig>(&format!("{text}{more}"));
        let stuck = |more| read(more).expect("a configuration").operation_stuck_ms;
        assert_eq!(stuck(""), default_operation_stuck());
        assert_eq!(stuck("operation_stuck_ms = 5"), 5);
        assert_eq!(stuck("flush_stuck_ms = 5"), 5);
    }
}
