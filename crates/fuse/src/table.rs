//! What is mounted where, from /proc: a stat would ask the file system itself, which may not answer.

use crate::flags::MountFlags;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A line of mountinfo (proc_pid_mountinfo(5)).
pub(crate) struct Entry {
    /// The minor device number. Of a FUSE mount it names the connection.
    pub(crate) minor: Option<u32>,
    options: String,
}

/// What is mounted at exactly this path, the topmost.
pub(crate) fn at(path: &Path) -> Option<Entry> {
    find(&std::fs::read("/proc/self/mountinfo").ok()?, path)
}

/// What the mount at this path does for programs and devices; the other flags are left out.
pub fn lets_through(path: &Path) -> Option<MountFlags> {
    let entry = at(path)?;
    let has = |word: &str| entry.options.split(',').any(|o| o == word);
    Some(MountFlags { suid: !has("nosuid"), dev: !has("nodev"), ..MountFlags::default() })
}

fn find(table: &[u8], path: &Path) -> Option<Entry> {
    let wanted = escape(path.as_os_str().as_bytes());
    let mut found = None;
    for line in table.split(|&b| b == b'\n') {
        let mut fields = line.split(|&b| b == b' ');
        let device = fields.nth(2);
        let at = fields.nth(1);
        if at == Some(&wanted) {
            let minor = device.and_then(|d| d.split(|&b| b == b':').nth(1));
            let options = fields.next().unwrap_or_default();
            found = Some(Entry {
                minor: minor.and_then(|m| std::str::from_utf8(m).ok()?.parse().ok()),
                options: String::from_utf8_lossy(options).into_owned(),
            });
        }
    }
    found
}

/// As the kernel writes paths.
fn escape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for &b in path {
        match b {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend(format!("\\{b:03o}").bytes()),
            _ => out.push(b),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_of_a_path() {
        let table = b"\
            22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            30 22 0:41 / /a\\040b rw,nosuid,nodev,relatime - fuse.x s rw\n\
            31 30 0:42 / /a\\040b rw,nosuid shared:3 - fuse.x t rw,nodev\n";
        let found = find(table, Path::new("/a b")).expect("there");
        assert_eq!((found.minor, &found.options as &str), (Some(42), "rw,nosuid"));
        assert!(find(table, Path::new("/a")).is_none());
    }
}
