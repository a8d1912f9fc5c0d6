//! A cluster of our own, for as long as the value lives: the processes of `glowfs dev`, of this very binary.

use crate::cpu::Processes;
use anyhow::{Context, Result, ensure};
use glowfs_dev::up::{UpRequest, up};
use glowfs_dev::{down, status};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// See the module.
pub struct Cluster {
    dir: PathBuf,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// How to reach it.
    pub access: Access,
    /// The tmpfs that it lies in.
    memory: Option<PathBuf>,
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
        Self::of(dir, storages, disks, false)
    }
    /// One whose services have network namespaces of their own, in memory: `dir` becomes a tmpfs until it ends.
    pub fn separate_in_memory(dir: &Path, storages: u32, disks: u32) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut command = Command::new("mount");
        let out = command.args(["-t", "tmpfs", "glowfs-bench"]).arg(dir).output();
        let out = out.context("running mount(8)")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "a tmpfs (root is needed): {}", said.trim());
        Self::of(dir, storages, disks, true)
    }
    fn of(above: &Path, storages: u32, disks: u32, memory: bool) -> Result<Self> {
        let mount = above.join("mnt");
        let request = UpRequest {
            dir: above.join("cluster"),
            mount: Some(mount.clone()),
            storages: Some(storages),
            disks: Some(disks),
            replicas: Some(storages.min(3)),
            metas: None,
            mgmtds: None,
            chunk_bytes: None,
            disk_durability: None,
            engine: None,
            separate: memory,
        };
        // From here on dropping it removes what there is.
        let (dir, access) = (request.dir.clone(), Access::default());
        let mut cluster = Self { dir, mount, access, memory: memory.then(|| above.to_owned()) };
        up(&request)?;
        let s = cluster.status()?;
        let token = std::fs::read_to_string(&s.token_file)
            .with_context(|| format!("reading {}", s.token_file.display()))?;
        let who = Processes(s.services.iter().filter_map(|r| r.pid).collect());
        cluster.access = Access { mgmtd: s.mgmtd, token: token.trim().to_owned(), who };
        Ok(cluster)
    }
    /// What runs where.
    pub fn status(&self) -> Result<status::Status> {
        status::status(&self.dir)
    }
}

/// Takes a tmpfs away; nothing is the matter where there is none.
fn unmount(dir: &Path) {
    let _ = Command::new("umount").args(["--lazy", "--quiet"]).arg(dir).output();
}

/// A signal came: its thread ends the clusters and the process.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on only the calling thread ends clusters and removes things; it ends the process as well.
pub fn interrupt() {
    INTERRUPTED.store(true, SeqCst);
}

/// If a signal came, what failed for it is not told, and what is to be ended is left to the signal's thread: never returns then.
pub fn leave_to_interrupt() {
    while INTERRUPTED.load(SeqCst) {
        std::thread::park();
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
        unmount(&entry.path());
    }
    let _ = std::fs::remove_dir_all(dir);
}

impl Drop for Cluster {
    fn drop(&mut self) {
        leave_to_interrupt();
        if self.dir.exists()
            && let Err(e) = down::destroy(&self.dir, true)
        {
            eprintln!("the cluster of the benchmark is left in {}: {e:#}", self.dir.display());
            return;
        }
        self.memory.iter().for_each(|dir| unmount(dir));
    }
}
