//! How the embedded engine works, and what it tells of itself.

use crate::{KEPT_FOR, Version};
use glowfs_rt::Duration;
use glowfs_types::ClusterId;

/// How the embedded engine works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// The cluster whose metadata this is.
    pub cluster: ClusterId,
    /// A commit that did not ask for durability is flushed at most this long after its answer (plus one flush).
    pub flush_interval: Duration,
    /// How long an old version can be read.
    pub window: Duration,
    /// At most so many superseded values are kept, whatever `window` says.
    pub window_entries: usize,
    /// Of so many bytes together, at most.
    pub window_bytes: u64,
    /// What is kept for those who read one version for long may take so many bytes; beyond it they have to begin anew.
    pub kept_bytes: u64,
    /// How long a version is kept for them ([`Engine::keep`]).
    pub kept_for: Duration,
    /// Bytes of a log segment.
    pub segment_bytes: u64,
    /// A checkpoint is written when the log behind the last one has so many bytes, and half as many as there are keys and values.
    pub checkpoint_log_bytes: u64,
    /// What the reserve has beyond the room of a checkpoint, in bytes (`embedded/room.rs`).
    pub reserve_bytes: u64,
    /// A checkpoint for which there was no room is tried again after so long.
    pub checkpoint_pause: Duration,
    /// Whether an empty directory is formatted. Otherwise it is refused: the disk that belongs there may not be mounted.
    pub format: bool,
    /// The version that a directory begins with when it is formatted: of the engine whose content is loaded into it, else 0.
    pub first_version: Version,
}

impl EmbeddedConfig {
    /// The defaults for a cluster.
    pub fn new(cluster: ClusterId) -> Self {
        Self {
            cluster,
            flush_interval: Duration::from_millis(50),
            window: Duration::from_secs(5),
            window_entries: 1 << 20,
            window_bytes: 256 << 20,
            kept_bytes: 1 << 30,
            kept_for: KEPT_FOR,
            segment_bytes: 64 << 20,
            checkpoint_log_bytes: 256 << 20,
            reserve_bytes: 16 << 20,
            checkpoint_pause: Duration::from_secs(10),
            format: true,
            first_version: 0,
        }
    }
}

/// What the engine has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmbeddedStats {
    /// The newest version.
    pub version: Version,
    /// The newest version that is on disk.
    pub flushed: Version,
    /// Keys in memory.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Old versions that wait to be dropped.
    pub old_versions: u64,
    /// Bytes of their values.
    pub old_bytes: u64,
    /// Batches written to the log.
    pub batches: u64,
    /// Flushes of the log.
    pub flushes: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// How often there was no room for one.
    pub checkpoints_without_room: u64,
    /// Bytes of log behind the last checkpoint.
    pub log_bytes: u64,
    /// Bytes of the disk that are kept in reserve.
    pub reserve_bytes: u64,
    /// The disk is nearly full: what makes the metadata larger is refused.
    pub short: bool,
    /// It is full, and so is the reserve: no commit is taken.
    pub full: bool,
    /// Segments of the log that are made ahead.
    pub spares: u64,
    /// Segments that were begun in one of those.
    pub recycled: u64,
    /// Commits that were refused for want of room.
    pub refused: u64,
}
