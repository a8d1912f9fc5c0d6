//! A file that gets its name only when it is whole, and takes no other file's.

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Names that are tried before it is given up; each is drawn from 2^64.
const NAMES_MAX: u32 = 8;
/// Bytes of the file's own name that its first one begins with: a name may have 255.
const STEM_BYTES: usize = 200;

/// See the module. It is removed if it is dropped without [`Part::name`].
pub struct Part {
    /// Where it is until then.
    pub path: PathBuf,
    /// It.
    pub file: File,
    named: bool,
}

impl Part {
    /// Makes the file, under a name that is nobody's, in the directory in which it shall be. `random` draws a number.
    pub fn new(whole: &Path, mut random: impl FnMut() -> u64) -> Result<Self> {
        let shown = whole.display();
        if std::fs::symlink_metadata(whole).is_ok() {
            bail!("{shown} exists; it is not overwritten");
        }
        let Some(name) = whole.file_name() else {
            bail!("«{shown}» ends in no name of a file; give one, such as meta.dump");
        };
        let stem = &name.as_bytes()[..name.len().min(STEM_BYTES)];
        let stem = String::from_utf8_lossy(stem).replace(char::REPLACEMENT_CHARACTER, "_");
        for _ in 0..NAMES_MAX {
            let path = whole.with_file_name(format!("{stem}.{:016x}.part", random()));
            // A dump holds the keys of the cluster and what small files contain.
            match File::options().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Ok(Self { path, file, named: false }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e).with_context(|| format!("making {}", path.display())),
            }
        }
        bail!("every name beside {shown} is taken");
    }

    /// Gives the file, which is whole and on the disk, its name, unless that is taken by now.
    pub fn name(mut self, whole: &Path) -> Result<()> {
        let named = match renameat_with(CWD, &self.path, CWD, whole, RenameFlags::NOREPLACE) {
            // Not all file systems know of it, and a second name is not given over another file either.
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(&self.path, whole)
                .and_then(|()| std::fs::remove_file(&self.path)),
            other => other.map_err(std::io::Error::from),
        };
        named.with_context(|| format!("naming {} {}", self.path.display(), whole.display()))?;
        self.named = true;
        let dir = whole.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(dir).and_then(|d| d.sync_all());
        synced.with_context(|| format!("flushing {}", dir.display()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.named {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(dir: &Path) -> Vec<String> {
        let all = std::fs::read_dir(dir).expect("directory").flatten();
        let mut names: Vec<_> = all.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn nobodys_file_is_overwritten_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().expect("directory");
        let whole = dir.path().join("all.dump");
        let first = format!("all.dump.{:016x}.part", 7);
        for taken in ["all.part", "all.dump.part", &first] {
            std::fs::write(dir.path().join(taken), "of somebody").expect("written");
        }
        let before = names(dir.path());
        let mut next = 6;
        let mut random = || {
            next += 1;
            next
        };
        drop(Part::new(&whole, &mut random).expect("made"));
        assert_eq!(names(dir.path()), before, "dropped, it is gone");
        next = 6;
        let mut random = || {
            next += 1;
            next
        };
        let mut part = Part::new(&whole, &mut random).expect("made");
        part.file.write_all(b"whole").expect("written");
        let mode = std::os::unix::fs::MetadataExt::mode(&part.file.metadata().expect("it"));
        assert_eq!(mode & 0o077, 0, "nobody else reads it");
        part.name(&whole).expect("named");
        assert_eq!(std::fs::read(&whole).expect("it"), b"whole");
        for taken in before {
            let text = std::fs::read_to_string(dir.path().join(&taken)).expect("as it was");
            assert_eq!(text, "of somebody", "{taken}");
        }
        assert_eq!(names(dir.path()).len(), 4);
        // Its name is taken before, or meanwhile.
        assert!(Part::new(&whole, &mut random).is_err());
        let other = dir.path().join("other");
        let part = Part::new(&other, &mut random).expect("made");
        std::fs::write(&other, "of somebody").expect("written");
        assert!(part.name(&other).is_err());
        assert_eq!(std::fs::read(&other).expect("it"), b"of somebody");
        assert_eq!(names(dir.path()).len(), 5);
    }

    #[test]
    fn a_long_name_has_a_place_beside_it() {
        let dir = tempfile::tempdir().expect("directory");
        let whole = dir.path().join("ä".repeat(127));
        Part::new(&whole, || 1).expect("made").name(&whole).expect("named");
        assert!(whole.exists());
        assert!(Part::new(Path::new("/"), || 1).is_err());
    }
}
