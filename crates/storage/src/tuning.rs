//! What of this node can be changed while it runs: its own configuration file, under what mgmtd pushed last.

use crate::StorageConfig;
use crate::node::Node;
use glowfs_types::tuning::StorageTuning;
use glowfs_types::wire::mgmtd::ConfigItem;

/// The settings in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Chunks that one resync sends at once.
    pub sync_chunks: usize,
    /// Targets of the node that may send a resync at once.
    pub sync_targets: usize,
    /// Bound on the bytes per second of all resyncs of the node; 0 is no bound.
    pub sync_bytes_per_s: u64,
    /// Share of its time that a resync may work while clients are being served, 1 to 100 per cent: as long as they do not feel it, and however much they do.
    pub sync_share_percent: u8,
    /// See above; not more than that.
    pub sync_floor_percent: u8,
    /// Bound on the bytes per second and disk that the scrub reads; 0 is off.
    pub scrub_bytes_per_s: u64,
}

impl Tuning {
    pub fn new(config: &StorageConfig, pushed: &StorageTuning) -> Self {
        let [share, floor] = [
            pushed.sync_share_percent.unwrap_or(config.sync_share_percent),
            pushed.sync_floor_percent.unwrap_or(config.sync_floor_percent),
        ]
        .map(|percent| percent.clamp(1, 100));
        Self {
            sync_chunks: pushed.sync_chunks.unwrap_or(config.sync_chunks).max(1) as usize,
            sync_targets: pushed.sync_targets.unwrap_or(config.sync_targets).max(1) as usize,
            sync_bytes_per_s: pushed.sync_bytes_per_s.unwrap_or(config.sync_bytes_per_s),
            scrub_bytes_per_s: pushed.scrub_bytes_per_s.unwrap_or(config.scrub_bytes_per_s),
            sync_share_percent: share,
            sync_floor_percent: floor.min(share),
        }
    }
}

impl Node {
    /// Takes what mgmtd pushed. It was checked there; a text of a newer build that this one does not understand changes nothing.
    pub fn tune(&self, item: &ConfigItem) {
        let read = toml::from_str::<StorageTuning>(&item.toml)
            .map_err(|e| e.to_string())
            .and_then(|t| t.validate().map(|()| t).map_err(|e| e.to_string()));
        match read {
            Ok(pushed) => {
                let tuning = Tuning::new(&self.config, &pushed);
                tracing::info!(version = %item.version, ?tuning, "configuration of the cluster taken");
                self.tuning.set(tuning);
                // What was reserved at the old bandwidth is reserved again at the new one.
                self.sync_pace.set(self.rt.now());
                self.sync_turns.changed();
            }
            Err(e) => {
                tracing::error!(version = %item.version, error = e, "configuration of the cluster not understood; the old one stays");
            }
        }
    }
}
