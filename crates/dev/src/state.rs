//! What a dev cluster is: the file `cluster.json` in its directory, written when it is made and at every start
//! of a service. It is the only truth about which processes belong to the cluster.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The version of `cluster.json` that this build writes.
const STATE_VERSION: u32 = 1;
/// The name of the file.
const STATE_FILE: &str = "cluster.json";

/// A dev cluster.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Format of this file.
    pub version: u32,
    /// The cluster's id (hex).
    pub cluster_id: String,
    /// Replicas of a chain.
    pub replicas: u32,
    /// Chains of the table.
    pub chains: u32,
    /// Chunk size of new files, bytes.
    pub chunk_bytes: u32,
    /// Whether an acknowledged write of a new file is on disk everywhere.
    #[serde(default)]
    pub disk_durability: bool,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Where its Unix sockets are (short, because socket paths are limited to 107 bytes).
    pub sockets: PathBuf,
    /// The services, in the order in which they start.
    pub services: Vec<Service>,
}

/// One process of the cluster.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// `etcd`, `meta`, `mgmtd`, `storage` or `mount`.
    pub role: String,
    /// `meta-1`, `storage-2`, `mount`: the name on the command line.
    pub id: String,
    /// The node id in the cluster; 0 for the mount.
    pub node: u64,
    /// Where it listens (`HOST:PORT`); empty for the mount.
    pub address: String,
    /// Where health and metrics are served (`HOST:PORT`).
    pub http: String,
    /// Its data directories.
    pub data: Vec<PathBuf>,
    /// Where other members reach it (`HOST:PORT`, etcd only); kept for life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The network namespace it runs in, if it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The process, while it runs.
    pub process: Option<ProcessId>,
}

/// A process that cannot be confused with a later one of the same pid.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ProcessId {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl State {
    /// A new cluster, not started yet.
    pub fn new(cluster_id: String, mount: PathBuf, sockets: PathBuf) -> Self {
        Self {
            version: STATE_VERSION,
            cluster_id,
            replicas: 0,
            chains: 0,
            chunk_bytes: 0,
            disk_durability: false,
            mount,
            sockets,
            services: vec![],
        }
    }

    /// Whether there is a cluster in `dir`.
    pub fn exists(dir: &Path) -> bool {
        dir.join(STATE_FILE).exists()
    }

    /// Reads the cluster in `dir`.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join(STATE_FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => bail!(
                "{} holds no dev cluster; make one with: glowfs dev up --dir {} --mount MOUNTPOINT",
                dir.display(),
                dir.display()
            ),
            Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
        };
        let state: Self = serde_json::from_str(&text).with_context(|| {
            format!("{} is damaged; restore it, or remove the directory", path.display())
        })?;
        if state.version > STATE_VERSION {
            bail!(
                "{} was written by a newer glowfs (format {}); use that one",
                path.display(),
                state.version
            );
        }
        Ok(state)
    }

    /// Writes it, whole or not at all, durably.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join(STATE_FILE);
        let new = dir.join("cluster.json.new");
        let text = serde_json::to_string_pretty(self)?;
        let written = (|| {
            let mut file = std::fs::File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            std::fs::File::open(dir)?.sync_all()
        })();
        written.with_context(|| format!("writing {}", path.display()))
    }

    /// The service of an id.
    pub fn service(&self, id: &str) -> Result<&Service> {
        match self.services.iter().find(|s| s.id == id) {
            Some(s) => Ok(s),
            None => {
                let ids: Vec<_> = self.services.iter().map(|s| s.id.as_str()).collect();
                bail!("there is no service «{id}»; there are: {}", ids.join(", "))
            }
        }
    }

    /// The same, to change it.
    pub fn service_mut(&mut self, id: &str) -> Result<&mut Service> {
        self.service(id)?;
        Ok(self.services.iter_mut().find(|s| s.id == id).expect("found just now"))
    }

    /// Addresses of the mgmtd services.
    pub fn mgmtd(&self) -> Vec<String> {
        self.services.iter().filter(|s| s.role == "mgmtd").map(|s| s.address.clone()).collect()
    }
}

/// The file that is locked.
pub const LOCK_FILE: &str = "lock";

/// Holds the cluster's directory for one command at a time; released on drop.
pub struct DirLock(#[allow(dead_code)] std::fs::File);

impl DirLock {
    /// Waits for other `glowfs dev` commands on the same directory.
    pub fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK_FILE);
        loop {
            let file = std::fs::File::create(&path)
                .with_context(|| format!("opening {}", path.display()))?;
            file.lock().with_context(|| format!("locking {}", path.display()))?;
            // Who held it may have deleted it, with the directory: then it keeps nobody out.
            let own = file.metadata().context("looking at the lock")?;
            if std::fs::metadata(&path).is_ok_and(|m| (m.dev(), m.ino()) == (own.dev(), own.ino()))
            {
                return Ok(Self(file));
            }
        }
    }
}
