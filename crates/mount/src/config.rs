//! Configuration of a mount: one TOML table, unknown keys refused.

use glowfs_fuse::MountFlags;
use glowfs_types::wire::meta::{AtimeRule, InodeKind};
use glowfs_types::{Error, Result, Status};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The farthest that the kernel is asked to read ahead, in bytes: what one reader may have in memory and on the wire that nobody has asked for.
const READ_AHEAD_BYTES_MAX: u32 = 64 << 20;

/// How requests of the kernel come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FuseTransport {
    /// As the environment variable `GLOWFS_FUSE` says (`dev`, `uring`), else `Dev`.
    #[default]
    Auto,
    /// By reading `/dev/fuse`.
    Dev,
    /// By FUSE over io_uring, if the kernel offers it; else as `Dev`.
    Uring,
}

/// Which reads move times of last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Atime {
    /// The first one after a change, and then one a day.
    #[default]
    Relatime,
    /// Every one that the kernel does not answer from its pages.
    Strictatime,
    /// None.
    Noatime,
}

/// Configuration of a mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MountConfig {
    /// Where to mount: an existing directory.
    pub mountpoint: PathBuf,
    /// Where mgmtd listens.
    pub mgmtd: Vec<String>,
    /// The file that holds the user's token.
    pub token_file: PathBuf,
    /// The cluster, 32 hexadecimal digits; empty: whichever answers.
    pub cluster_id: String,
    /// Where health and metrics are served (`HOST:PORT`); none if absent.
    pub http: Option<String>,
    /// Transports that connections may use: `tcp`, `unix`, `shm`; empty for all.
    pub transports: Vec<String>,
    /// How long the start waits for the cluster, in ms.
    pub connect_ms: u64,
    /// The volume.
    pub volume: u64,
    /// Refuse all changes.
    pub read_only: bool,
    /// Whether other users may use the mount; absent: if we are root.
    pub allow_other: Option<bool>,
    /// Whether the mount point may have entries.
    pub allow_non_empty: bool,
    /// What stands in the first column of /proc/mounts.
    pub source: String,
    /// How long the kernel may keep attributes, in ms; never longer than what is left of the lease that meta gave.
    pub attr_timeout_ms: u64,
    /// Which reads move times of last access: `relatime`, `strictatime`, `noatime`. Absent: as `relatime` says. With `read_only` none do.
    pub atime: Option<Atime>,
    /// Listing a directory does not move its time of last access.
    pub nodiratime: bool,
    /// The older form of `atime`: false is `noatime`, true or absent is `relatime`.
    pub relatime: Option<bool>,
    /// Whether set-user-id and set-group-id bits of programs count.
    pub suid: bool,
    /// Whether special files can be opened as devices.
    pub dev: bool,
    /// Whether programs can be run.
    pub exec: bool,
    /// The greatest request payload, in bytes.
    pub max_request_bytes: u32,
    /// How far the kernel reads ahead of whoever reads a file in order through its cache, in bytes. Takes effect where the daemon may write below `/sys`; else it
    /// is what the kernel begins with (128 KiB). Reads of mapped files take as much around what they touch. 0: as the kernel begins.
    pub read_ahead_bytes: u32,
    /// The greatest number of requests in work.
    pub max_outstanding: usize,
    /// The greatest number of background requests (read-ahead, buffered reads, asynchronous I/O, pages that are written back, closes) in work. When there are so many, the
    /// kernel has all others of that kind wait, of whatever file.
    pub max_background: u16,
    /// How requests of the kernel come: `dev`, `uring` (if the kernel offers it) or `auto`.
    pub fuse_transport: FuseTransport,
    /// With `uring`: requests in work for each processor of the machine, each with `max_request_bytes` of the buffer pool. Fewer, where all
    /// together would take more than a quarter of the pool.
    pub fuse_queue_depth: usize,
    /// Whether small buffered writes are answered before they are sent. Absent: as the environment variable `GLOWFS_WRITE_BACK` says (`1`), else not.
    pub write_back: Option<bool>,
    /// How long such a write may wait at most before it is sent, in ms.
    pub write_back_ms: u64,
    /// The preferred I/O size that stat shows, in bytes.
    pub block_bytes: u32,
    /// How long a reading operation goes on for a caller that was killed, and an append for one that got a signal, in ms; then it is answered with EINTR.
    pub interrupt_grace_ms: u64,
    /// How long supplementary groups of a process are kept, in ms.
    pub groups_ttl_ms: u64,
    /// How long a stop waits for the mount to fall idle before it is detached, in ms.
    pub stop_ms: u64,
}

impl Default for MountConfig {
    fn default() -> Self {
        Self {
            mountpoint: PathBuf::new(),
            mgmtd: Vec::new(),
            token_file: PathBuf::new(),
            cluster_id: String::new(),
            http: None,
            transports: Vec::new(),
            connect_ms: 30_000,
            volume: 1,
            read_only: false,
            allow_other: None,
            allow_non_empty: false,
            source: "glowfs".into(),
            attr_timeout_ms: 10_000,
            atime: None,
            nodiratime: false,
            relatime: None,
            suid: false,
            dev: false,
            exec: true,
            max_request_bytes: 1 << 20,
            read_ahead_bytes: 1 << 20,
            max_outstanding: 1024,
            max_background: 768,
            fuse_transport: FuseTransport::Auto,
            fuse_queue_depth: 32,
            write_back: None,
            write_back_ms: 1000,
            block_bytes: 128 << 10,
            interrupt_grace_ms: 10_000,
            groups_ttl_ms: 1000,
            stop_ms: 5000,
        }
    }
}

impl MountConfig {
    /// Whether FUSE over io_uring is to be used if the kernel offers it. The runtime must take commands then.
    pub fn wants_uring(&self) -> bool {
        match self.fuse_transport {
            FuseTransport::Dev => false,
            FuseTransport::Uring => true,
            FuseTransport::Auto => std::env::var_os("GLOWFS_FUSE").is_some_and(|v| v == "uring"),
        }
    }
    /// Whether small buffered writes are answered before they are sent.
    pub fn writes_back(&self) -> bool {
        let asked = || std::env::var_os("GLOWFS_WRITE_BACK").is_some_and(|v| v == "1");
        self.write_back.unwrap_or_else(asked)
    }
    /// The mode of times of last access, as configured.
    fn atime(&self) -> Atime {
        let older = if self.relatime == Some(false) { Atime::Noatime } else { Atime::Relatime };
        self.atime.unwrap_or(older)
    }
    /// Which reads move a time of last access.
    pub fn atime_rule(&self, kind: InodeKind) -> AtimeRule {
        if self.read_only || (self.nodiratime && kind == InodeKind::Directory) {
            return AtimeRule::Never;
        }
        match self.atime() {
            Atime::Relatime => AtimeRule::Relative,
            Atime::Strictatime => AtimeRule::Always,
            Atime::Noatime => AtimeRule::Never,
        }
    }
    /// What the kernel itself is to do with the mount.
    pub fn flags(&self) -> MountFlags {
        MountFlags {
            read_only: self.read_only,
            suid: self.suid,
            dev: self.dev,
            noexec: !self.exec,
            noatime: self.atime() == Atime::Noatime,
            strictatime: self.atime() == Atime::Strictatime,
            nodiratime: self.nodiratime,
        }
    }
    /// How the runtime of the mount's thread is to be.
    pub fn runtime(&self) -> glowfs_rt::real::Config {
        glowfs_rt::real::Config { commands: self.wants_uring(), ..Default::default() }
    }
    /// Checks what the types cannot say.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::new(Status::InvalidArgument, format!("mount: {what}")));
        if self.mountpoint.as_os_str().is_empty() {
            return bad("`mountpoint` is missing: name an existing directory");
        }
        if self.volume == 0 {
            return bad("`volume` 0 does not exist; the first volume is 1");
        }
        if !(4096..=4 << 20).contains(&self.max_request_bytes)
            || !self.max_request_bytes.is_multiple_of(4096)
        {
            return bad("`max_request_bytes` must be a multiple of 4096 from 4096 to 4194304");
        }
        if self.read_ahead_bytes > READ_AHEAD_BYTES_MAX
            || !self.read_ahead_bytes.is_multiple_of(4096)
        {
            return bad("`read_ahead_bytes` must be a multiple of 4096 up to 67108864, or 0");
        }
        if self.max_outstanding == 0 || self.max_background == 0 {
            return bad("`max_outstanding` and `max_background` must be at least 1");
        }
        if !(1..=1024).contains(&self.fuse_queue_depth) {
            return bad("`fuse_queue_depth` must be from 1 to 1024");
        }
        if !(1..=10_000).contains(&self.write_back_ms) {
            return bad("`write_back_ms` must be from 1 to 10000");
        }
        if !self.block_bytes.is_power_of_two() || !(4096..=16 << 20).contains(&self.block_bytes) {
            return bad("`block_bytes` must be a power of two from 4096 to 16777216");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use InodeKind::{Directory, File, Symlink};

    fn rules(text: &str) -> [AtimeRule; 3] {
        let config: MountConfig = toml::from_str(text).expect("a configuration");
        [File, Directory, Symlink].map(|kind| config.atime_rule(kind))
    }

    #[test]
    fn times_of_last_access() {
        use AtimeRule::*;
        assert_eq!(rules(""), [Relative; 3]);
        assert_eq!(rules("atime = 'relatime'"), [Relative; 3]);
        assert_eq!(rules("atime = 'strictatime'"), [Always; 3]);
        assert_eq!(rules("atime = 'noatime'"), [Never; 3]);
        assert_eq!(rules("nodiratime = true"), [Relative, Never, Relative]);
        assert_eq!(rules("atime = 'strictatime'\nread_only = true"), [Never; 3]);
        assert!(toml::from_str::<MountConfig>("atime = 'sometimes'").is_err());
    }

    #[test]
    fn the_older_key_is_read() {
        use AtimeRule::*;
        assert_eq!(rules("relatime = true"), [Relative; 3]);
        assert_eq!(rules("relatime = false"), [Never; 3]);
        assert_eq!(rules("relatime = false\natime = 'strictatime'"), [Always; 3]);
    }
}
