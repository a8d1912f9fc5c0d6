//! A disk that dies: one disk of the first storage node is an ext4 file system of its own, which answers everything with EIO, or turns read-only as
//! the kernel makes it when it meets an error. It has to go alone, and comes back as an operator would bring it: repaired, mounted, the node started.
//!
//! What was not flushed to it when it turned read-only is gone, as on a real one.

use crate::cluster::{Cluster, Service};
use crate::shutdown::{self, Memory};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The size of that disk; only what is written takes room.
const SIZE: &str = "4G";
/// Beside its directory: where its blocks are.
const IMAGE: &str = "image";
/// How long its targets may take to be out of service.
const NOTICED_BOUND: Duration = Duration::from_secs(20);
/// How long others may keep a copy of its mount.
const LET_GO_BOUND: Duration = Duration::from_secs(60);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(50);

/// How it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Everything is answered with EIO.
    Eio,
    /// Everything that writes, and what would have to write first, with EROFS.
    ReadOnly,
}

/// Makes the first disk of the first storage node a file system of its own. The cluster must be down.
pub fn make_disk_of_its_own(c: &Cluster) -> Result<PathBuf> {
    let all = c.services()?;
    let first = all.iter().find(|s| s.role == "storage").context("no storage")?;
    let disk = first.data.first().context("no disk")?;
    let image = disk.with_extension(IMAGE);
    let aside = disk.with_extension("aside");
    let words = |w: &[&str], paths: &[&Path]| -> Result<String> {
        let paths = paths.iter().map(|p| p.to_string_lossy().into_owned());
        c.run(&w.iter().map(|w| (*w).to_owned()).chain(paths).collect::<Vec<_>>())
    };
    words(&["truncate", "-s", SIZE], &[&image])?;
    words(&["mkfs.ext4", "-q", "-F"], &[&image])?;
    words(&["mv"], &[disk, &aside])?;
    words(&["mkdir"], &[disk])?;
    words(&MOUNT, &[&image, disk])?;
    words(&["rmdir"], &[&disk.join("lost+found")])?;
    words(&["cp", "-a"], &[&aside.join("."), disk])?;
    words(&["rm", "-rf"], &[&aside])?;
    Ok(disk.clone())
}
const MOUNT: [&str; 3] = ["mount", "-o", "loop,errors=remount-ro"];

/// Has it die.
pub fn kill(node: &Service, death: Death) -> Result<()> {
    let disk = node.data.first().context("no disk")?;
    match death {
        Death::Eio => shutdown::stop(disk, Memory::Written).context("EXT4_IOC_SHUTDOWN"),
        Death::ReadOnly => {
            let device = device(disk)?;
            let lever = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
            std::fs::write(&lever, "torture").with_context(|| format!("{}", lever.display()))
        }
    }
}

/// The name of the device that is mounted there, such as `loop0`.
fn device(disk: &Path) -> Result<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let at = disk.to_string_lossy();
    let line = table.lines().rfind(|l| l.split(' ').nth(4) == Some(&at));
    let line = line.with_context(|| format!("nothing is mounted at {at}"))?;
    let source = line.split(" - ").nth(1).and_then(|l| l.split(' ').nth(1));
    Ok(source.context("mountinfo")?.trim_start_matches("/dev/").to_owned())
}

/// Waits until no target of it serves. Why that proves nothing, if they go on; an error if targets of the node's other disks are out of service as well.
pub fn wait_gone(c: &Cluster, node: &Service) -> Result<Option<String>> {
    let began = Instant::now();
    let serving = |row: &Value| row["public_state"] == "serving";
    loop {
        let targets = c.admin(&["list-targets"])?;
        let rows = targets.as_array().context("no list of targets")?;
        let (dead, other): (Vec<_>, Vec<_>) = rows
            .iter()
            .filter(|r| r["node"].as_u64() == Some(node.node))
            .partition(|r| r["disk_index"] == 0);
        if let Some(row) = other.into_iter().find(|r| !serving(r)) {
            bail!("a target of a sound disk of {} went with the dead one: {row}", node.id);
        }
        if !dead.iter().any(|r| serving(r)) {
            return Ok(None);
        }
        if began.elapsed() > NOTICED_BOUND {
            return Ok(Some(format!("its targets still serve after {NOTICED_BOUND:?}")));
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits until the kernel has let the file system go. As long as somebody has a copy of all mounts (`unshare -m`), a new mount would be of the broken one.
fn wait_let_go(device: &str) -> Result<()> {
    let (began, known) = (Instant::now(), Path::new("/sys/fs/ext4").join(device));
    while known.exists() {
        if began.elapsed() > LET_GO_BOUND {
            bail!(
                "{device} is unmounted and still in use after {LET_GO_BOUND:?}: a process in another mount namespace has a copy of its mount"
            );
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Repairs the file system and mounts it again. The node must not run.
pub fn revive(c: &Cluster, node: &Service) -> Result<()> {
    let disk = node.data.first().context("no disk")?;
    let text = |p: &Path| p.to_string_lossy().into_owned();
    let image = text(&disk.with_extension(IMAGE));
    let device = device(disk)?;
    c.run(&["umount".into(), text(disk)])?;
    wait_let_go(&device)?;
    // It ends with 1 when it has mended something.
    let check = format!("e2fsck -fy '{image}' || [ $? -le 1 ]");
    c.run(&["sh".into(), "-c".into(), check])?;
    let mount = MOUNT.map(String::from).into_iter().chain([image, text(disk)]);
    c.run(&mount.collect::<Vec<_>>()).map(drop)
}
