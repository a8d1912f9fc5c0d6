//! Reference model: random POSIX operations on the mount and on a local directory; result, errno and
//! contents are compared after each one, the whole trees now and then. A failing seed is printed and replays with
//! `GLOWFS_MODEL_SEED`.

use crate::harness::{Cluster, large, sh};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// splitmix64: small, seeded, the same everywhere.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[derive(Debug, Clone)]
enum Op {
    Create(String, bool),
    Mkdir(String, u32),
    Symlink(String, String),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, u32),
    Truncate(String, u64),
    Chmod(String, u32),
    Utime(String, i64, i64),
    Open(usize, String, u32),
    Close(usize),
    Write(usize, u64, usize, u8),
    Append(usize, usize, u8),
    Read(usize, u64, usize),
    FTruncate(usize, u64),
    Fsync(usize),
    Stat(String),
    ReadLink(String),
    List(String),
    MkFifo(String),
    SetXattr(String, usize),
    GetXattr(String),
    RemoveXattr(String),
    ListXattr(String),
    /// With the mode of fallocate(2).
    Allocate(usize, u32, u64, u64),
    /// From a handle and place to another one.
    Copy((usize, u64), (usize, u64), usize),
    /// A file without a name, that gets one.
    TmpFile(String),
    /// The length, by `lseek` of a handle.
    End(usize),
}

/// FALLOC_FL_KEEP_SIZE, PUNCH_HOLE and ZERO_RANGE, as they may be together.
const ALLOCATE_MODES: [u32; 5] = [0, 1, 1 | 2, 16, 1 | 16];

const HANDLES: usize = 6;
const FILE_BYTES: u64 = 3 << 20;

fn path(r: &mut Random) -> String {
    let name = |r: &mut Random| ["a", "b", "c", "d", "e"][r.below(5) as usize].to_owned();
    match r.below(4) {
        0 => name(r),
        1 | 2 => format!("{}/{}", name(r), name(r)),
        _ => format!("{}/{}/{}", name(r), name(r), name(r)),
    }
}

fn offset(r: &mut Random) -> u64 {
    match r.below(4) {
        0 => r.below(5000),
        1 => r.below(FILE_BYTES / 4096) * 4096,
        2 => (1 << 20) - r.below(10),
        _ => r.below(FILE_BYTES),
    }
}

fn op(r: &mut Random) -> Op {
    let h = r.below(HANDLES as u64) as usize;
    let len = |r: &mut Random| match r.below(3) {
        0 => r.below(100) as usize,
        1 => 4096 * (1 + r.below(8)) as usize,
        _ => r.below(200_000) as usize,
    };
    match r.below(54) {
        0..=2 => Op::Create(path(r), r.below(2) == 0),
        3..=5 => Op::Mkdir(path(r), [0o755, 0o700, 0o777][r.below(3) as usize]),
        6 => Op::Symlink(path(r), path(r)),
        7 | 8 => Op::Link(path(r), path(r)),
        9 | 10 => Op::Unlink(path(r)),
        11 => Op::Rmdir(path(r)),
        12..=15 => Op::Rename(path(r), path(r), [0, 0, 0, 1, 2][r.below(5) as usize]),
        16 | 17 => Op::Truncate(path(r), offset(r)),
        18 => Op::Chmod(path(r), 0o600 + r.below(0o100) as u32),
        19 => Op::Utime(
            path(r),
            r.below(4_000_000_000) as i64 - 1_000_000_000,
            r.below(999_999_999) as i64,
        ),
        20..=24 => Op::Open(h, path(r), r.below(5) as u32),
        25 => Op::Close(h),
        26..=31 => Op::Write(h, offset(r), len(r), r.next() as u8),
        32 | 33 => Op::Append(h, len(r), r.next() as u8),
        34..=37 => Op::Read(h, offset(r), len(r)),
        38 => Op::FTruncate(h, offset(r)),
        39 => Op::Fsync(h),
        40 => Op::Stat(path(r)),
        41 => Op::ReadLink(path(r)),
        42 => Op::List(path(r)),
        43 => Op::MkFifo(path(r)),
        44 => Op::SetXattr(path(r), r.below(300) as usize),
        45 => Op::GetXattr(path(r)),
        46 => Op::RemoveXattr(path(r)),
        47 => Op::ListXattr(path(r)),
        48 | 49 => {
            let mode = ALLOCATE_MODES[r.below(ALLOCATE_MODES.len() as u64) as usize];
            Op::Allocate(h, mode, offset(r), 1 + len(r) as u64)
        }
        50 | 51 => {
            // Handles that two mounts have in common, if there are two: one parity is one mount.
            let to = (h + 2 * r.below(HANDLES as u64 / 2) as usize) % HANDLES;
            Op::Copy((h, offset(r)), (to, offset(r)), len(r))
        }
        52 => Op::TmpFile(path(r)),
        _ => Op::End(h),
    }
}

/// One side: a directory and the handles that are open in it.
struct Side {
    root: OwnedFd,
    handles: BTreeMap<usize, OwnedFd>,
}

type Outcome = Result<String, Errno>;

impl Side {
    fn new(root: &Path) -> Self {
        let root = rustix::fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .expect("root");
        Self { root, handles: BTreeMap::new() }
    }

    fn handle(&self, h: usize) -> Result<&OwnedFd, Errno> {
        self.handles.get(&h).ok_or(Errno::BADF)
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        use rustix::fs;
        let root = &self.root;
        let mode = Mode::from_raw_mode;
        match op {
            Op::Create(p, excl) => {
                let excl = if *excl { OFlags::EXCL } else { OFlags::empty() };
                fs::openat(
                    root,
                    p,
                    OFlags::CREATE | OFlags::WRONLY | OFlags::NONBLOCK | excl,
                    mode(0o644),
                )
                .map(|_| String::new())
            }
            Op::Mkdir(p, m) => fs::mkdirat(root, p, mode(*m)).map(|()| String::new()),
            Op::Symlink(target, p) => fs::symlinkat(target, root, p).map(|()| String::new()),
            Op::Link(a, b) => {
                fs::linkat(root, a, root, b, AtFlags::empty()).map(|()| String::new())
            }
            Op::Unlink(p) => fs::unlinkat(root, p, AtFlags::empty()).map(|()| String::new()),
            Op::Rmdir(p) => fs::unlinkat(root, p, AtFlags::REMOVEDIR).map(|()| String::new()),
            Op::Rename(a, b, f) => {
                let flags = RenameFlags::from_bits_retain(*f);
                fs::renameat_with(root, a, root, b, flags).map(|()| String::new())
            }
            Op::Truncate(p, len) => {
                let fd = fs::openat(root, p, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty())?;
                fs::ftruncate(&fd, *len).map(|()| String::new())
            }
            Op::Chmod(p, m) => {
                fs::chmodat(root, p, mode(*m), AtFlags::empty()).map(|()| String::new())
            }
            Op::Utime(p, secs, nanos) => {
                let t = rustix::fs::Timespec { tv_sec: *secs, tv_nsec: *nanos };
                let times = rustix::fs::Timestamps { last_access: t, last_modification: t };
                fs::utimensat(root, p, &times, AtFlags::SYMLINK_NOFOLLOW).map(|()| String::new())
            }
            Op::Open(h, p, how) => {
                let flags = [
                    OFlags::RDWR,
                    OFlags::RDWR | OFlags::CREATE,
                    OFlags::RDONLY,
                    OFlags::RDWR | OFlags::TRUNC,
                    OFlags::RDWR | OFlags::APPEND | OFlags::CREATE,
                ][*how as usize];
                let fd =
                    fs::openat(root, p, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, mode(0o640))?;
                self.handles.insert(*h, fd);
                Ok(String::new())
            }
            Op::Close(h) => Ok(format!("{}", self.handles.remove(h).is_some())),
            Op::Write(h, at, len, byte) => {
                let data: Vec<u8> = (0..*len).map(|i| byte.wrapping_add((i / 7) as u8)).collect();
                rustix::io::pwrite(self.handle(*h)?, &data, *at).map(|n| n.to_string())
            }
            Op::Append(h, len, byte) => {
                let fd = self.handle(*h)?;
                rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0))?;
                rustix::io::write(fd, &vec![*byte; *len]).map(|n| n.to_string())
            }
            Op::Read(h, at, len) => {
                let mut data = vec![0; *len];
                let n = rustix::io::pread(self.handle(*h)?, &mut data, *at)?;
                Ok(format!("{n} {:08x}", glowfs_types::checksum::crc32c(&data[..n])))
            }
            Op::FTruncate(h, len) => fs::ftruncate(self.handle(*h)?, *len).map(|()| String::new()),
            Op::Fsync(h) => fs::fsync(self.handle(*h)?).map(|()| String::new()),
            Op::Stat(p) => self.stat(p),
            Op::ReadLink(p) => fs::readlinkat(root, p, vec![]).map(|t| format!("{t:?}")),
            Op::List(p) => self.list(p),
            Op::MkFifo(p) => {
                fs::mknodat(root, p, fs::FileType::Fifo, mode(0o600), 0).map(|()| String::new())
            }
            Op::SetXattr(p, len) => {
                let fd = fs::openat(root, p, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
                fs::fsetxattr(&fd, "user.model", &vec![7; *len], fs::XattrFlags::empty())
                    .map(|()| String::new())
            }
            Op::RemoveXattr(p) => {
                let fd = fs::openat(root, p, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
                fs::fremovexattr(&fd, "user.model").map(|()| String::new())
            }
            Op::ListXattr(p) => {
                let fd = fs::openat(root, p, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
                let mut names = [0u8; 512];
                fs::flistxattr(&fd, &mut names).map(|n| format!("{:?}", &names[..n]))
            }
            Op::Allocate(h, bits, at, len) => {
                let flags = fs::FallocateFlags::from_bits_retain(*bits);
                fs::fallocate(self.handle(*h)?, flags, *at, *len).map(|()| String::new())
            }
            Op::Copy((from, at), (to, there), len) => {
                let (mut at, mut there) = (*at, *there);
                let (from, to) = (self.handle(*from)?, self.handle(*to)?);
                // The kernel copies as far as the length that it was last told (docs/semantics.md).
                fs::fstat(from)?;
                let mut copied = 0;
                // A local file system may copy less at a time.
                while copied < *len {
                    let left = len - copied;
                    match fs::copy_file_range(from, Some(&mut at), to, Some(&mut there), left)? {
                        0 => break,
                        n => copied += n,
                    }
                }
                Ok(copied.to_string())
            }
            Op::TmpFile(p) => {
                let dir = Path::new(p).parent().unwrap_or(Path::new("."));
                let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let fd = fs::openat(root, dir, flags, mode(0o600))?;
                rustix::io::write(&fd, p.as_bytes())?;
                let proc = format!("/proc/self/fd/{}", fd.as_raw_fd());
                fs::linkat(fs::CWD, proc, root, p, AtFlags::SYMLINK_FOLLOW).map(|()| String::new())
            }
            Op::End(h) => {
                let fd = self.handle(*h)?;
                // Where a directory ends is the file system's own.
                let dir = fs::FileType::from_raw_mode(fs::fstat(fd)?.st_mode).is_dir();
                if dir {
                    return Ok(String::new());
                }
                fs::seek(fd, fs::SeekFrom::End(0)).map(|end| end.to_string())
            }
            Op::GetXattr(p) => {
                let fd = fs::openat(root, p, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
                let mut value = [0u8; 512];
                fs::fgetxattr(&fd, "user.model", &mut value).map(|n| n.to_string())
            }
        }
    }

    /// What stat shows and both sides must share. A directory's size and link count are the file system's own.
    fn stat(&self, p: &str) -> Outcome {
        let s = rustix::fs::statat(&self.root, p, AtFlags::SYMLINK_NOFOLLOW)?;
        let dir = s.st_mode & 0o170_000 == 0o040_000;
        let (len, links) = if dir { (0, 0) } else { (s.st_size, s.st_nlink) };
        Ok(format!("{:o} {len} {links} {} {}", s.st_mode, s.st_uid, s.st_gid))
    }

    fn list(&self, p: &str) -> Outcome {
        let fd = rustix::fs::openat(&self.root, p, OFlags::DIRECTORY, Mode::empty())?;
        let mut names = vec![];
        for entry in rustix::fs::Dir::read_from(&fd)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names.join(","))
    }
}

fn run_seed(c: &Cluster, seed: u64, ops: usize) {
    let (here, there) = (c.mnt.join(format!("m{seed}")), c.local.join(format!("m{seed}")));
    std::fs::create_dir(&here).expect("directory");
    std::fs::create_dir(&there).expect("directory");
    let (mut ours, mut theirs) = (Side::new(&here), Side::new(&there));
    let mut r = Random(seed);
    let mut last = vec![];
    for i in 0..ops {
        let op = op(&mut r);
        let (got, want) = (ours.apply(&op), theirs.apply(&op));
        last.push(format!("{op:?} -> {want:?}"));
        if last.len() > 25 {
            last.remove(0);
        }
        assert_eq!(
            got,
            want,
            "seed {seed}, operation {i}: {op:?}; before it:\n{}",
            last.join("\n")
        );
        if i % 200 == 199 {
            same_trees(&here, &there, &format!("seed {seed} after operation {i}"));
        }
    }
    drop((ours, theirs));
    same_trees(&here, &there, &format!("seed {seed} at the end"));
    sh(&c.mnt, &format!("rm -rf m{seed}"));
}

/// Names, kinds, modes, lengths, links and contents.
fn same_trees(a: &Path, b: &Path, when: &str) {
    let (mut left, mut right) = (BTreeMap::new(), BTreeMap::new());
    walk(a, a, &mut left);
    walk(b, b, &mut right);
    for (path, want) in &right {
        assert_eq!(left.get(path), Some(want), "{when}: {}", String::from_utf8_lossy(path));
    }
    assert_eq!(left.len(), right.len(), "{when}: names that should not be there");
}

fn walk(root: &Path, at: &Path, out: &mut BTreeMap<Vec<u8>, String>) {
    use std::os::unix::fs::MetadataExt;
    for entry in std::fs::read_dir(at).expect("listing") {
        let path = entry.expect("entry").path();
        let m = std::fs::symlink_metadata(&path).expect("stat");
        let content = if m.is_file() {
            format!(
                "{:08x}",
                glowfs_types::checksum::crc32c(&std::fs::read(&path).expect("contents"))
            )
        } else if m.is_symlink() {
            format!("{:?}", std::fs::read_link(&path).expect("link"))
        } else {
            String::new()
        };
        let key = path.strip_prefix(root).expect("inside").as_os_str().as_bytes().to_vec();
        let (len, links) = if m.is_dir() { (0, 0) } else { (m.len(), m.nlink()) };
        out.insert(key, format!("{:o} {len} {links} {content}", m.mode()));
        if m.is_dir() {
            walk(root, &path, out);
        }
    }
}

#[test]
fn random_operations_equal_a_local_directory() {
    let c = Cluster::up("model");
    let (seeds, ops) = if large() { (200, 5000) } else { (6, 1500) };
    let first = std::env::var("GLOWFS_MODEL_SEED").ok().and_then(|s| s.parse().ok());
    for seed in first.map_or(1..=seeds, |s| s..=s) {
        run_seed(&c, seed, ops);
    }
}

/// Two mounts of one file system: a name is used through either of them, a handle through the one that it was opened with.
struct Pair([Side; 2]);

impl Pair {
    /// Through which mount, and what came of it.
    fn apply(&mut self, op: &Op, r: &mut Random) -> (usize, Outcome) {
        let by = match op {
            Op::Open(h, ..)
            | Op::Close(h)
            | Op::Write(h, ..)
            | Op::Append(h, ..)
            | Op::Read(h, ..)
            | Op::FTruncate(h, _)
            | Op::Allocate(h, ..)
            | Op::Copy((h, _), ..)
            | Op::End(h)
            | Op::Fsync(h) => h % 2,
            _ => r.below(2) as usize,
        };
        let side = &mut self.0[by];
        let mut outcome = side.apply(op);
        // docs/status.md, G123: something is open in a directory that the other one has moved.
        if let (Op::Rename(a, b, _), Err(Errno::STALE)) = (op, &outcome)
            && !side.handles.is_empty()
        {
            let _ = (side.apply(&Op::Stat(a.clone())), side.apply(&Op::Stat(b.clone())));
            outcome = side.apply(op);
        }
        // What others see of a write is what was flushed.
        let changed = match op {
            Op::Write(h, ..) | Op::Append(h, ..) | Op::FTruncate(h, _) => Some(h),
            Op::Allocate(h, ..) | Op::Copy(_, (h, _), _) => Some(h),
            _ => None,
        };
        if let (Some(h), Ok(_)) = (changed, &outcome)
            && let Err(e) = side.apply(&Op::Fsync(*h))
        {
            return (by, Err(e));
        }
        (by, outcome)
    }
}

/// Kills a service of the cluster and starts it again a moment later, beside what goes on. One shell for both: a process that is started while meta is
/// away would first have to close its copies of our open files (and one that inherits them would do so when it ends).
fn strike(c: &Cluster, id: &str) -> std::process::Child {
    let (glowfs, dir) = (crate::harness::binary().display(), c.dir.display());
    let script = format!(
        "{glowfs} dev kill --dir {dir} {id} >/dev/null; sleep 0.2; {glowfs} dev start --dir {dir} {id} >/dev/null"
    );
    std::process::Command::new("bash").arg("-c").arg(script).spawn().expect("bash")
}

/// Operations that are shown before one that fails.
const SHOWN: usize = 150;

fn run_pair(c: &Cluster, other: &Path, seed: u64, ops: usize, victims: &[&str]) {
    let name = format!("pair{seed}");
    let (here, there) = (c.mnt.join(&name), c.local.join(&name));
    std::fs::create_dir(&here).expect("directory");
    std::fs::create_dir(&there).expect("directory");
    let mut ours = Pair([Side::new(&here), Side::new(&other.join(&name))]);
    let (mut theirs, mut r) = (Side::new(&there), Random(seed));
    let (mut last, mut striking) = (vec![], None::<std::process::Child>);
    for i in 0..ops {
        if i % 150 == 149 {
            if let Some(mut before) = striking.take() {
                assert!(before.wait().expect("bash").success(), "a service did not come back");
            }
            striking = Some(strike(c, victims[r.below(victims.len() as u64) as usize]));
        }
        // Names are what two mounts have in common: every other one is moved.
        let flags = [0, 0, 0, 1, 2][r.below(5) as usize];
        let op = match r.below(3) {
            0 => Op::Rename(path(&mut r), path(&mut r), flags),
            _ => op(&mut r),
        };
        // A pipe connects processes of one client.
        let op = if let Op::MkFifo(p) = op { Op::Mkdir(p, 0o755) } else { op };
        let ((by, got), want) = (ours.apply(&op, &mut r), theirs.apply(&op));
        if want.is_ok() || got != want {
            last.push(format!("{i} by {by}: {op:?} -> {want:?}"));
        }
        let before = || last[last.len().saturating_sub(SHOWN)..].join("\n");
        assert_eq!(got, want, "seed {seed}, operation {i}: {op:?}; before it:\n{}", before());
        if i % 300 == 299 {
            same_trees(&here, &there, &format!("seed {seed} after operation {i}"));
            same_trees(&other.join(&name), &there, &format!("seed {seed} after operation {i}"));
        }
    }
    if let Some(mut before) = striking {
        assert!(before.wait().expect("bash").success(), "a service did not come back");
    }
    drop((ours, theirs));
    same_trees(&other.join(&name), &there, &format!("seed {seed} at the end"));
    sh(&c.mnt, &format!("rm -rf {name}"));
}

fn pairs(name: &str, options: &[&str], victims: &[&str]) {
    let c = Cluster::up_with(name, options);
    let other = crate::harness::Mount::new(&c, "other");
    let (seeds, ops) = if large() { (100, 5000) } else { (3, 1200) };
    let first = std::env::var("GLOWFS_MODEL_SEED").ok().and_then(|s| s.parse().ok());
    for seed in first.map_or(1..=seeds, |s| s..=s) {
        run_pair(&c, &other.path, seed, ops, victims);
    }
    assert_eq!(c.admin(&["fsck"])["problems"], serde_json::json!([]));
}

#[test]
fn two_mounts_equal_a_local_directory_while_their_metadata_service_dies() {
    pairs("pair", &[], &["meta-1"]);
}

#[test]
fn two_mounts_equal_a_local_directory_while_one_of_two_metadata_services_dies() {
    pairs("pairs", &["--metas", "2"], &["meta-1", "meta-2", "meta-2"]);
}
