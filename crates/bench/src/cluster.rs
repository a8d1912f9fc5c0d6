//! A cluster of our own, for as long as the value lives: the processes of `glowfs dev`, of this very binary.

use crate::cpu::Processes;
use anyhow::{Context, Result};
use glowfs_dev::up::{UpRequest, up};
use glowfs_dev::{down, status};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// See the module.
pub struct Cluster {
    dir: PathBuf,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// How to reach it.
    pub access: Access,
}

/// How to reach a cluster.
#[derive(Clone, Default)]
pub struct Access {
    /// Addresses of mgmtd.
    pub mgmtd: Vec<String>,
    /// The token of its root user.
    pub token: String,
    /// Its processes.
    pub who: Processes,
}

impl Cluster {
    /// Makes and starts one in `dir`, which is not there yet.
    pub fn start(dir: &Path, storages: u32, disks: u32) -> Result<Self> {
        let mount = dir.join("mnt");
        let request = UpRequest {
            dir: dir.join("cluster"),
            mount: Some(mount.clone()),
            storages: Some(storages),
            disks: Some(disks),
            replicas: Some(storages.min(3)),
            metas: None,
            mgmtds: None,
            chunk_bytes: None,
            disk_durability: None,
            engine: None,
            separate: false,
        };
        // From here on dropping it removes what there is.
        let mut cluster = Self { dir: request.dir.clone(), mount, access: Access::default() };
        up(&request)?;
        let s = status::status(&request.dir)?;
        let token = std::fs::read_to_string(&s.token_file)
            .with_context(|| format!("reading {}", s.token_file.display()))?;
        let who = Processes(s.services.iter().filter_map(|r| r.pid).collect());
        cluster.access = Access { mgmtd: s.mgmtd, token: token.trim().to_owned(), who };
        Ok(cluster)
    }
}

/// How often ending clusters in the middle of their work is tried, and the pause between: fio may hold a mount for a while yet.
const TRIES: (u32, Duration) = (20, Duration::from_millis(500));

/// Ends the clusters in the directories of `dir`, in the middle of their work, and removes `dir`. What cannot be ended is left and named.
pub fn remove_all(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let cluster = entry.path().join("cluster");
        let mut ended = if cluster.exists() { down::destroy(&cluster, true) } else { Ok(()) };
        for _ in 1..TRIES.0 {
            if ended.is_ok() {
                break;
            }
            std::thread::sleep(TRIES.1);
            ended = down::destroy(&cluster, true);
        }
        if let Err(e) = ended {
            eprintln!("the cluster in {} is left: {e:#}", cluster.display());
            return;
        }
    }
    let _ = std::fs::remove_dir_all(dir);
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.dir.exists()
            && let Err(e) = down::destroy(&self.dir, true)
        {
            eprintln!("the cluster of the benchmark is left in {}: {e:#}", self.dir.display());
        }
    }
}
