//! A full disk: one disk of the last storage node lies on a small tmpfs, and a ballast file takes what is free.

use crate::cluster::{Cluster, Service};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The size of that disk.
const DISK: &str = "size=768m";
/// What the ballast leaves, in bytes.
pub const LEFT: u64 = 256 << 10;
/// The service may take room between the look at what is free and the filling: then it is filled again.
const TRIES: usize = 100;
/// After room is there again, this long until every service has noticed.
pub const NOTICED: Duration = Duration::from_secs(5);

/// Moves the first disk of the last storage node to a tmpfs. The cluster must be down.
pub fn make_small_disk(c: &Cluster) -> Result<PathBuf> {
    let all = c.services()?;
    let last = all.iter().rfind(|s| s.role == "storage").context("no storage")?;
    let disk = last.data.first().context("no disk")?;
    let text = |p: &Path| p.to_string_lossy().into_owned();
    let aside = disk.with_extension("aside");
    c.run(&["mv".into(), text(disk), text(&aside)])?;
    c.run(&["mkdir".into(), text(disk)])?;
    let mount = ["mount", "-t", "tmpfs", "-o", DISK, "glowfs-torture"].map(String::from);
    c.run(&mount.into_iter().chain([text(disk)]).collect::<Vec<_>>())?;
    c.run(&["cp".into(), "-a".into(), format!("{}/.", text(&aside)), text(disk)])?;
    c.run(&["rm".into(), "-rf".into(), text(&aside)])?;
    Ok(disk.clone())
}

/// Takes the room; gives it back when dropped.
pub struct Ballast(PathBuf);

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Fills the small disk.
pub fn fill(node: &Service) -> Result<Ballast> {
    let disk = node.data.first().context("no disk")?;
    let path = disk.join("ballast");
    let file = File::create(&path)?;
    let ballast = Ballast(path);
    for _ in 0..TRIES {
        let room = free(node)?.saturating_sub(LEFT).max(1);
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, room) {
            Ok(()) => return Ok(ballast),
            Err(rustix::io::Errno::NOSPC) => {}
            Err(e) => return Err(e).context("filling the disk"),
        }
    }
    bail!("the disk is never as full as it is to be: others are faster")
}

/// What is free on that disk, in bytes.
pub fn free(node: &Service) -> Result<u64> {
    let disk = node.data.first().context("no disk")?;
    let stat = rustix::fs::statvfs(disk).context("statvfs")?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
