//! The limits that Linux itself has: lengths of files, names, paths and symlinks; and a directory of very many names.

use crate::harness::{Cluster, Mount, large, sh};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The greatest length that an offset can tell.
const LEN_MAX: u64 = i64::MAX as u64;
/// NAME_MAX.
const NAME_BYTES: usize = 255;
/// PATH_MAX without the zero at its end: also of what a symlink leads to.
const PATH_BYTES: usize = 4095;

#[test]
fn a_file_goes_as_far_as_an_offset_does() {
    let c = Cluster::up("limitlen");
    let other = Mount::new(&c, "mnt2");
    let path = c.mnt.join("f");
    let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let f = open().expect("open");
    f.write_all_at(b"first", 0).expect("write");
    f.write_all_at(b"l", LEN_MAX - 1).expect("write");
    // No offset tells where that would end: Linux refuses it itself.
    for (bytes, at) in [(&b"l"[..], LEN_MAX), (b"la", LEN_MAX - 1)] {
        let beyond = f.write_at(bytes, at).expect_err("beyond");
        assert_eq!(beyond.raw_os_error(), Some(libc::EINVAL));
    }
    f.sync_all().expect("fsync");
    let look = |path: &Path, whose: &str| {
        let (f, mut byte) = (File::open(path).expect("open"), [0; 1]);
        let m = f.metadata().expect("stat");
        assert_eq!((m.len(), m.blocks()), (LEN_MAX, 16), "{whose}");
        assert_eq!(f.read_at(&mut byte, LEN_MAX - 1).expect("read"), 1, "{whose}");
        assert_eq!(byte[0], b'l', "{whose}");
        assert_eq!(f.read_at(&mut byte, LEN_MAX / 2).expect("read"), 1, "{whose}");
        assert_eq!(byte, [0], "{whose}");
        let last = LEN_MAX / 4096 * 4096;
        for (from, to) in [
            (SeekFrom::Data(0), Ok(0)),
            (SeekFrom::Hole(0), Ok(4096)),
            (SeekFrom::Data(4096), Ok(last)),
            (SeekFrom::Hole(LEN_MAX - 1), Ok(LEN_MAX)),
            (SeekFrom::Data(LEN_MAX), Err(Errno::NXIO)),
        ] {
            assert_eq!(seek(&f, from), to, "{whose}: {from:?}");
        }
    };
    look(&path, "here");
    look(&other.path.join("f"), "there");
    f.set_len(10).expect("cut");
    assert_eq!(fs::metadata(other.path.join("f")).expect("stat").blocks(), 8);
    f.set_len(LEN_MAX).expect("extend");
    assert_eq!(seek(&f, SeekFrom::Data(4096)), Err(Errno::NXIO), "what was cut is gone");
    // An append finds no room, and spoils nothing.
    let a = File::options().append(true).open(other.path.join("f")).expect("open");
    let full = rustix::io::write(&a, b"x").expect_err("no room");
    assert_eq!(full, Errno::FBIG);
    assert_eq!(fs::metadata(&path).expect("stat").len(), LEN_MAX);
    drop((f, a));
    fs::remove_file(other.path.join("f")).expect("removed");
}

/// Names of every byte that a name may have, of one byte and of as many as there may be.
fn names() -> BTreeSet<OsString> {
    let bytes = (1..=255).filter(|b| *b != b'/');
    let all = bytes.flat_map(|b| {
        let mut turned: Vec<u8> = (0..NAME_BYTES).map(|i| (b as usize + i) as u8).collect();
        turned.iter_mut().filter(|b| matches!(**b, 0 | b'/')).for_each(|b| *b = b'_');
        [vec![b], vec![b; NAME_BYTES], turned]
    });
    all.filter(|n| n != b".").map(OsString::from_vec).collect()
}

fn listed(dir: &Path) -> BTreeSet<OsString> {
    fs::read_dir(dir).expect("list").map(|e| e.expect("entry").file_name()).collect()
}

#[test]
fn names_are_of_any_bytes() {
    let c = Cluster::up("limitnames");
    let other = Mount::new(&c, "mnt2");
    let (here, there) = (c.mnt.join("d"), other.path.join("d"));
    fs::create_dir(&here).expect("mkdir");
    let (all, mut kept) = (names(), BTreeSet::new());
    for (i, name) in all.iter().enumerate() {
        let path = here.join(name);
        match i % 3 {
            0 => fs::write(&path, name.as_bytes()).expect("write"),
            1 => fs::create_dir(&path).expect("mkdir"),
            _ => std::os::unix::fs::symlink(name, &path).expect("symlink"),
        }
    }
    assert_eq!(listed(&here), all);
    assert_eq!(listed(&there), all);
    for (i, name) in all.iter().enumerate() {
        let path = there.join(name);
        match i % 3 {
            0 => assert_eq!(fs::read(&path).expect("read"), name.as_bytes()),
            1 => assert!(path.is_dir()),
            _ => assert_eq!(fs::read_link(&path).expect("readlink").as_os_str(), name),
        }
        // Removed, or renamed to one that is as long.
        match i % 6 {
            0 => fs::remove_file(&path).expect("removed"),
            1 => fs::remove_dir(&path).expect("removed"),
            _ => {
                let mut new = format!("{i:04}").into_bytes();
                new.resize(NAME_BYTES, 0xff);
                let new = OsString::from_vec(new);
                fs::rename(&path, there.join(&new)).expect("renamed");
                kept.insert(new);
            }
        }
    }
    assert_eq!(listed(&here), kept);
    let long = here.join("x".repeat(NAME_BYTES + 1));
    assert_eq!(
        fs::create_dir(&long).expect_err("too long").raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
}

/// A relative path of so many bytes, of directories with names of 255.
fn deep(bytes: usize) -> PathBuf {
    let mut path = PathBuf::new();
    while bytes - path.as_os_str().len() > NAME_BYTES + 1 {
        path.push("d".repeat(NAME_BYTES));
    }
    let left = bytes - path.as_os_str().len() - 1;
    path.join("f".repeat(left))
}

#[test]
fn paths_and_symlinks_are_as_long_as_linux_lets_them_be() {
    let c = Cluster::up("limitpaths");
    let other = Mount::new(&c, "mnt2");
    let longest = deep(PATH_BYTES);
    assert_eq!(longest.as_os_str().len(), PATH_BYTES);
    let root = |at: &Path| File::open(at).expect("open");
    let (here, there) = (root(&c.mnt), root(&other.path));
    let mut dir = PathBuf::new();
    for part in longest.parent().expect("directories").components() {
        dir.push(part);
        rustix::fs::mkdirat(&here, &dir, 0o755.into()).expect("mkdir");
    }
    use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
    let flags = OFlags::CREATE | OFlags::RDWR;
    let f: File = openat(&here, &longest, flags, Mode::from(0o644)).expect("open").into();
    f.write_all_at(b"deep", 0).expect("write");
    drop(f);
    let f: File = openat(&there, &longest, OFlags::RDONLY, Mode::empty()).expect("open").into();
    let mut read = [0; 4];
    f.read_exact_at(&mut read, 0).expect("read");
    assert_eq!(&read, b"deep");
    let longer =
        longest.with_file_name(format!("{}f", longest.file_name().expect("name").display()));
    assert_eq!(
        statat(&there, &longer, AtFlags::empty()).expect_err("too long"),
        Errno::NAMETOOLONG
    );
    // A symlink as long leads there; a longer one cannot be.
    rustix::fs::symlinkat(&longest, &here, "link").expect("symlink");
    assert_eq!(fs::read_link(other.path.join("link")).expect("readlink"), longest);
    assert_eq!(
        fs::symlink_metadata(other.path.join("link")).expect("stat").len(),
        PATH_BYTES as u64
    );
    assert_eq!(fs::read(other.path.join("link")).expect("followed"), b"deep");
    let any: Vec<u8> = (0..PATH_BYTES).map(|i| (i % 255 + 1) as u8).collect();
    std::os::unix::fs::symlink(OsString::from_vec(any.clone()), c.mnt.join("any"))
        .expect("symlink");
    assert_eq!(
        fs::read_link(other.path.join("any")).expect("readlink").as_os_str().as_bytes(),
        any
    );
    let too_long = std::os::unix::fs::symlink(&longer, c.mnt.join("longer")).expect_err("too long");
    assert_eq!(too_long.raw_os_error(), Some(libc::ENAMETOOLONG));
    // Deeper than any path: by steps.
    sh(
        &c.mnt,
        "python3 -c 'import os\nfor i in range(40): os.mkdir(255 * \"s\"); os.chdir(255 * \"s\")\nopen(\"file\", \"w\")'",
    );
    sh(
        &other.path,
        "[ $(find . -name file | wc -l) = 1 ]; rm -r s* d*; [ -z \"$(find . -type d -name '[ds]*')\" ]",
    );
}

/// Makes names through several processes, with the position of one listing kept meanwhile; then lists, seeks, and removes them all.
const MANY: &str = include_str!("many_names.py");

#[test]
fn a_directory_of_very_many_names() {
    let c = Cluster::up("limitdir");
    let other = Mount::new(&c, "mnt2");
    let names = if large() { 1_000_000 } else { 6_000 };
    let script = c.local.join("many_names.py");
    fs::write(&script, MANY).expect("write");
    let args = format!("{} {} {} {names}", script.display(), c.mnt.display(), other.path.display());
    print!("{}", sh(&c.mnt, &format!("python3 {args}")));
}
