//! Which mount a path is on.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What the kernel calls a GlowFS mount (proc_pid_mountinfo(5)).
const KIND: &[u8] = b"fuse.glowfs";

/// The mount point that a path lies under, if it is a GlowFS mount: the highest directory above it on the same file system that answers
/// for GlowFS; for who may only pass through that, the kernel answers.
pub fn mount_point_of(path: &Path) -> io::Result<PathBuf> {
    let path = path.canonicalize()?;
    let device = path.metadata()?.dev();
    let mut top = path.as_path();
    while let Some(parent) = top.parent()
        && parent.metadata().is_ok_and(|m| m.dev() == device)
    {
        top = parent;
    }
    let is_ours = match File::open(top) {
        Ok(root) => crate::connection::is_ours(&root),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            kind(&std::fs::read("/proc/self/mountinfo")?, device) == Some(KIND)
        }
        Err(e) => return Err(e),
    };
    if is_ours {
        return Ok(top.to_owned());
    }
    let what = format!("{} is not on a GlowFS mount", path.display());
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// The mount point of the file system with this device number (`st_dev`), by proc_pid_mountinfo(5).
pub fn mount_point_of_device(device: u64) -> io::Result<PathBuf> {
    find(&std::fs::read("/proc/self/mountinfo")?, device).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "the file system is not mounted here")
    })
}

/// What a table of mounts has of this device, from the field behind its number on. Paths are of any bytes.
fn entry(table: &[u8], device: u64) -> Option<impl Iterator<Item = &[u8]>> {
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    table.split(|&b| b == b'\n').find_map(|line| {
        let mut fields = line.split(|&b| b == b' ');
        (fields.nth(2)? == wanted.as_bytes()).then_some(fields)
    })
}

/// Where this device is mounted.
fn find(table: &[u8], device: u64) -> Option<PathBuf> {
    entry(table, device)?.nth(1).map(unescape)
}

/// Of what kind it is. (Before that there are any number of fields, and one that ends them.)
fn kind(table: &[u8], device: u64) -> Option<&[u8]> {
    entry(table, device)?.skip(2).skip_while(|f| *f != b"-").nth(1)
}

/// A path of mountinfo: blanks and backslashes are three octal digits there.
fn unescape(field: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let (mut out, mut rest) = (Vec::new(), field);
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten();
        let code = octal.and_then(|o| u8::from_str_radix(std::str::from_utf8(o).ok()?, 8).ok());
        out.push(code.unwrap_or(first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    std::ffi::OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_paths() {
        assert_eq!(unescape(b"/a\\040b\\134c\\x"), PathBuf::from("/a b\\c\\x"));
        let dev = Path::new("/proc").metadata().unwrap().dev();
        assert_eq!(mount_point_of_device(dev).unwrap(), PathBuf::from("/proc"));
        assert!(mount_point_of_device(u64::MAX >> 13).is_err());
    }
    #[test]
    fn a_mount_point_that_is_no_text_hides_no_other() {
        use std::os::unix::ffi::OsStrExt;
        let table = b"30 22 0:41 / /mnt/\xff rw - fuse.x s rw\n31 22 0:42 / /mnt/a\\040b rw - fuse.x s rw\n";
        let odd = std::ffi::OsStr::from_bytes(b"/mnt/\xff");
        assert_eq!(find(table, rustix::fs::makedev(0, 41)).as_deref(), Some(Path::new(odd)));
        assert_eq!(find(table, rustix::fs::makedev(0, 42)), Some(PathBuf::from("/mnt/a b")));
        assert_eq!(find(table, rustix::fs::makedev(0, 43)), None);
        let table = b"30 22 0:41 / /mnt/- rw - fuse.x s rw\n31 22 0:42 / /a rw shared:1 master:2 - fuse.glowfs - rw\n";
        assert_eq!(kind(table, rustix::fs::makedev(0, 41)), Some(&b"fuse.x"[..]));
        assert_eq!(kind(table, rustix::fs::makedev(0, 42)), Some(KIND));
        assert_eq!(kind(table, rustix::fs::makedev(0, 43)), None);
    }
}
