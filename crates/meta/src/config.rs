//! Configuration of a metadata service: one TOML table, unknown keys refused.

use glowfs_kv::EngineConfig;
use glowfs_types::layout::{
    CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, INLINE_BYTES_DEFAULT, INLINE_BYTES_MAX,
};
use glowfs_types::limits::{CAPABILITY_LIFE_MAX_MS, REQUEST_KEEP_MIN_MS};
use glowfs_types::{ClusterId, Durability, Error, NodeId, Result, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Bits of a mode by which the owner of a directory lists and enters it.
const OWNER_ENTERS: u32 = 0o500;

/// Configuration of a metadata service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetaConfig {
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
    /// Where the metadata is kept.
    pub engine: EngineConfig,
    /// Transports that connections may use: `tcp`, `unix`, `shm`; empty for all.
    #[serde(default)]
    pub transports: Vec<String>,
    /// Free labels: rack, zone.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// What new file systems begin with. Only read when the root directory is made.
    #[serde(default)]
    pub root: RootConfig,
    /// Bounds and periods.
    #[serde(default)]
    pub tuning: Tuning,
    /// Whether an empty directory of the embedded engine is formatted. Said on the command line, for one start: in a file it would be there still when the disk is not
    /// mounted.
    #[serde(skip)]
    pub format: bool,
}

/// The root directory and the layout that everything inherits from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RootConfig {
    /// Permission bits of the root directory.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The chain table of new files.
    pub table: u64,
    /// Bytes in a chunk of new files.
    pub chunk_bytes: u32,
    /// Chains a new file is striped over.
    pub stripe: u32,
    /// What an acknowledged write of a new file has reached.
    pub durability: WriteDurability,
    /// Files that were never longer than so many bytes keep their contents with the metadata (at most 16 KiB); 0: none.
    pub inline_bytes: u32,
}

/// What an acknowledged write has reached, as the configuration says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteDurability {
    /// Written on every serving replica; fsync makes it survive the loss of power.
    #[default]
    Written,
    /// Flushed on every serving replica.
    Disk,
}

impl From<WriteDurability> for Durability {
    fn from(d: WriteDurability) -> Self {
        match d {
            WriteDurability::Written => Self::Written,
            WriteDurability::Disk => Self::Disk,
        }
    }
}

impl Default for RootConfig {
    fn default() -> Self {
        Self {
            mode: 0o755,
            uid: 0,
            gid: 0,
            table: 1,
            chunk_bytes: 1 << 20,
            stripe: 16,
            durability: WriteDurability::Written,
            inline_bytes: INLINE_BYTES_DEFAULT,
        }
    }
}

/// When a change of metadata is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitMode {
    /// When it is in the log file; it is flushed within `flush_interval_ms` plus one flush. fsync and durable closes still flush.
    Background,
    /// When it is flushed.
    Flush,
}

/// Bounds and periods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tuning {
    /// When a change of metadata is answered.
    pub commit: CommitMode,
    /// The bound of background commits, in ms (embedded engine).
    pub flush_interval_ms: u64,
    /// How long a capability lasts, in ms.
    pub capability_ms: u64,
    /// How long clients may keep attributes, in ms; 0: not at all.
    pub attr_lease_ms: u64,
    /// Calls in work; more are answered with `Overloaded`. Nobody has more of them than he leaves free: a user with a token of his own, with all his clients; else a
    /// client.
    pub inflight_ops: u64,
    /// Contents of small files that are kept with the metadata, in bytes, about: beyond it files begin with chunks, and those that get longer get chunks;
    /// 0: as much as fits the engine (1 GiB in memory, 256 MiB in etcd, 64 GiB in FoundationDB).
    pub contents_bytes_max: u64,
    /// Bytes of extended attributes, names and values, of all files together: beyond that new ones are refused. 0: what suits the engine.
    pub xattr_bytes_max: u64,
    /// Pause between looks for dead clients' sessions, in ms.
    pub session_scan_ms: u64,
    /// A client must be missing from mgmtd's list for this long before its sessions are ended, in ms.
    pub session_grace_ms: u64,
    /// Pause between looks into the garbage queue, in ms.
    pub gc_pause_ms: u64,
    /// Chunks that garbage collection removes per second, at most.
    pub gc_chunks_per_s: u64,
    /// The time between two searches for chunks that nobody owns, in s; 0: only when an operator asks for one.
    pub orphan_scan_s: u64,
    /// Whether those searches reclaim what they find.
    pub orphan_reclaim: bool,
    /// How long a request id is remembered at least, in ms: longer than clients retry.
    pub request_keep_ms: u64,
    /// Log bytes after which the embedded engine writes a checkpoint, at least: it waits for a log of half of what it holds.
    pub checkpoint_log_bytes: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            commit: CommitMode::Background,
            flush_interval_ms: 50,
            capability_ms: 30_000,
            attr_lease_ms: 1000,
            inflight_ops: 4096,
            contents_bytes_max: 0,
            xattr_bytes_max: 0,
            session_scan_ms: 2000,
            session_grace_ms: 10_000,
            gc_pause_ms: 500,
            gc_chunks_per_s: 20_000,
            orphan_scan_s: 3600,
            orphan_reclaim: true,
            request_keep_ms: 75_000,
            checkpoint_log_bytes: 256 << 20,
        }
    }
}

fn default_listen() -> Vec<String> {
    vec!["tcp://127.0.0.1:0".into()]
}

impl MetaConfig {
    /// Checks what the types cannot say.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| {
            Err(Error::new(Status::InvalidArgument, format!("meta configuration: {what}")))
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
        self.engine.validate().or_else(bad)?;
        let chunk = self.root.chunk_bytes;
        if !chunk.is_power_of_two() || !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk) {
            return bad(format!(
                "root.chunk_bytes: {chunk} is not a power of two from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}"
            ));
        }
        if self.root.stripe == 0 || self.root.table == 0 {
            return bad("root.stripe and root.table begin at 1".into());
        }
        let inline = self.root.inline_bytes;
        if inline > INLINE_BYTES_MAX {
            return bad(format!("root.inline_bytes: {inline} is more than {INLINE_BYTES_MAX}"));
        }
        if self.root.mode > 0o7777 {
            return bad(format!("root.mode: {:o} has more than permission bits", self.root.mode));
        }
        // TOML knows no 0755, and 755 is 01363.
        if self.root.mode & OWNER_ENTERS != OWNER_ENTERS {
            return bad(format!(
                "root.mode: {0} is {0:04o}, by which its owner may not list and enter the root directory; an octal number is written 0o755",
                self.root.mode
            ));
        }
        let t = &self.tuning;
        for (name, value) in [
            ("flush_interval_ms", t.flush_interval_ms),
            ("capability_ms", t.capability_ms),
            ("inflight_ops", t.inflight_ops),
            ("session_scan_ms", t.session_scan_ms),
            ("gc_pause_ms", t.gc_pause_ms),
            ("gc_chunks_per_s", t.gc_chunks_per_s),
            ("request_keep_ms", t.request_keep_ms),
            ("checkpoint_log_bytes", t.checkpoint_log_bytes),
        ] {
            if value == 0 {
                return bad(format!(
                    "tuning.{name}: 0 would stop all work; leave it out for the default"
                ));
            }
        }
        if t.request_keep_ms < REQUEST_KEEP_MIN_MS {
            return bad(format!(
                "tuning.request_keep_ms: at least {REQUEST_KEEP_MIN_MS}; clients repeat a request for so long, and it would be done twice"
            ));
        }
        if t.capability_ms > CAPABILITY_LIFE_MAX_MS {
            return bad(format!(
                "tuning.capability_ms: at most {CAPABILITY_LIFE_MAX_MS}; storage forgets by then what it was asked for"
            ));
        }
        Ok(())
    }

    /// The node.
    pub fn node(&self) -> NodeId {
        NodeId(self.node_id)
    }

    /// The cluster.
    pub fn cluster(&self) -> Result<ClusterId> {
        let bad = |_| {
            Error::new(
                Status::InvalidArgument,
                format!(
                    "meta configuration: cluster_id: «{}» is not 32 hexadecimal digits",
                    self.cluster_id
                ),
            )
        };
        self.cluster_id.parse().map_err(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> MetaConfig {
        MetaConfig {
            node_id: 1,
            cluster_id: "0123456789abcdef0123456789abcdef".into(),
            listen: default_listen(),
            http: None,
            mgmtd: vec!["tcp://127.0.0.1:1".into()],
            service_token_file: "token".into(),
            engine: EngineConfig::Embedded { dir: "engine".into() },
            transports: Vec::new(),
            tags: BTreeMap::new(),
            root: RootConfig::default(),
            tuning: Tuning::default(),
            format: false,
        }
    }

    #[test]
    fn a_mode_of_the_root_that_was_written_as_a_decimal_number_is_refused() {
        let config =
            |mode| MetaConfig { root: RootConfig { mode, ..RootConfig::default() }, ..config() };
        for good in [0o755, 0o1777, 0o700, 0o500, 0o2775] {
            config(good).validate().expect("a mode");
        }
        for bad in [755, 1777, 700, 777, 750, 770, 775, 1755, 2775] {
            let e = config(bad).validate().expect_err("decimal");
            assert!(e.message.contains("0o755"), "{e}");
        }
    }

    #[test]
    fn a_limit_of_small_files_that_no_layout_can_have_is_refused() {
        let config = |inline_bytes| MetaConfig {
            root: RootConfig { inline_bytes, ..RootConfig::default() },
            ..config()
        };
        for good in [0, 1, INLINE_BYTES_DEFAULT, INLINE_BYTES_MAX] {
            config(good).validate().expect("a limit");
        }
        let e = config(INLINE_BYTES_MAX + 1).validate().expect_err("too much");
        assert!(e.message.contains("root.inline_bytes"), "{e}");
    }

    /// A request id that is forgotten while its client may repeat the request: it would be done twice.
    #[test]
    fn requests_are_remembered_for_as_long_as_clients_repeat_them() {
        let config = |request_keep_ms| MetaConfig {
            tuning: Tuning { request_keep_ms, ..Tuning::default() },
            ..config()
        };
        config(REQUEST_KEEP_MIN_MS).validate().expect("long enough");
        let e = config(REQUEST_KEEP_MIN_MS - 1).validate().expect_err("too short");
        assert!(e.message.contains("tuning.request_keep_ms"), "{e}");
    }
}
