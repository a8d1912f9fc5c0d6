//! The directory where a dev cluster is mounted.
//!
//! Guarantees: what is left of a mount whose daemon is gone is cleared away before the next one is made, and when the cluster goes down. Must never: take another
//! file system that is mounted there for the cluster's, or unmount it.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Makes it ready for a mount, while the cluster's daemon does not run: there is a directory, empty, and nothing is mounted on it.
pub fn prepare(mount: &Path) -> Result<()> {
    release_dead(mount)?;
    if is_mounted(mount) {
        bail!(
            "another file system is mounted at {}; unmount it, or choose another directory",
            mount.display()
        );
    }
    match fs::read_dir(mount) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                bail!(
                    "the mount point {} is not empty; its files would be hidden. Choose an empty directory",
                    mount.display()
                );
            }
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => fs::create_dir_all(mount)
            .with_context(|| format!("making the mount point {}", mount.display())),
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            bail!("the mount point {} is not a directory", mount.display())
        }
        Err(e) => Err(e).with_context(|| format!("looking at the mount point {}", mount.display())),
    }
}

/// Unmounts what is left of a mount whose daemon is gone: all that it answers is that.
pub fn release_dead(mount: &Path) -> Result<()> {
    const DEAD: [rustix::io::Errno; 2] =
        [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED];
    let gone = |e: std::io::Error| DEAD.iter().any(|d| Some(d.raw_os_error()) == e.raw_os_error());
    if fs::metadata(mount).is_err_and(gone) { unmount(mount) } else { Ok(()) }
}

/// Unmounts it, at once.
pub fn unmount(mount: &Path) -> Result<()> {
    let out = std::process::Command::new("umount").arg("-l").arg(mount).output();
    if !out.is_ok_and(|o| o.status.success()) {
        bail!(
            "{} is still mounted; unmount it with: umount -l {}",
            mount.display(),
            mount.display()
        );
    }
    Ok(())
}

/// Whether a FUSE file system is mounted at exactly this path (proc_pid_mountinfo(5)).
pub fn is_mounted(path: &Path) -> bool {
    let want = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    has_fuse_at(&std::fs::read("/proc/self/mountinfo").unwrap_or_default(), &want)
}

/// The same of a table of mounts. Paths are of any bytes.
fn has_fuse_at(table: &[u8], want: &Path) -> bool {
    table.split(|&b| b == b'\n').any(|line| {
        let Some(middle) = line.windows(3).position(|w| w == b" - ") else { return false };
        let Some(at) = line[..middle].split(|&b| b == b' ').nth(4) else { return false };
        line[middle + 3..].starts_with(b"fuse") && unescape(at) == want.as_os_str().as_bytes()
    })
}

/// The mounts of this process, as [`below`] reads them.
pub fn table() -> Result<Vec<u8>> {
    fs::read("/proc/self/mountinfo").context("reading which file systems are mounted")
}

/// What is mounted below a directory, by a table of mounts.
pub fn below(table: &[u8], dir: &Path) -> Vec<PathBuf> {
    let at = |line: &[u8]| {
        let field = line.split(|&b| b == b' ').nth(4)?;
        Some(PathBuf::from(OsString::from_vec(unescape(field))))
    };
    let all = table.split(|&b| b == b'\n').filter_map(at);
    all.filter(|path| path != dir && path.starts_with(dir)).collect()
}

/// Undoes the octal escapes of mountinfo (`\040` is a space).
fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = bytes.get(i + 1..i + 4).and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) if bytes[i] == b'\\' => {
                out.push(byte);
                i += 4;
            }
            _ => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn mountinfo_escapes() {
        assert_eq!(unescape(br"/mnt/a\040b"), b"/mnt/a b");
        assert_eq!(unescape(br"/mnt/plain\"), br"/mnt/plain\");
    }

    #[test]
    fn a_mount_point_that_is_no_text_hides_no_other() {
        let table =
            b"30 22 0:41 / /mnt/\xff rw - fuse.x s rw\n31 22 0:42 / /mnt/a rw - fuse.x s rw\n";
        assert!(has_fuse_at(table, Path::new("/mnt/a")) && !has_fuse_at(table, Path::new("/mnt")));
        assert!(has_fuse_at(table, Path::new(OsStr::from_bytes(b"/mnt/\xff"))));
    }

    #[test]
    fn what_is_mounted_below_is_found() {
        let mounts = b"30 22 0:41 / /srv/a\\040b rw - ext4 x rw\n31 22 0:42 / /srv/a\\040b/mnt rw - fuse.x s rw\n\
            32 22 0:43 /x /srv/a\\040bc rw - ext4 x rw\n33 22 0:44 / /srv/a\\040b/c//deleted rw - ext4 x rw\n";
        let found = below(mounts, Path::new("/srv/a b"));
        assert_eq!(found, [Path::new("/srv/a b/mnt"), Path::new("/srv/a b/c//deleted")]);
        let real = table().expect("read");
        assert!(below(&real, Path::new("/")).contains(&PathBuf::from("/proc")));
    }

    #[test]
    fn the_root_is_no_fuse_mount() {
        assert!(!is_mounted(Path::new("/")));
    }
}
