//! Random operations on one file through two mounts, against its bytes in memory: what one of them has done, the other one sees.
//!
//! `GLOWFS_TWO_FSX_SEED` replays a run, `GLOWFS_TWO_FSX_SECONDS` makes it longer.

use crate::harness::{Cluster, Mount};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long it goes on, if nothing else is said.
const SECONDS: u64 = 12;
/// How much longer the whole test may take before its mounts are given up.
const MARGIN_SECONDS: u64 = 90;
/// Operations on one file, before another one is made.
const STEPS_OF_A_FILE: u64 = 60;
/// Files are at most so long: within one page, or of a few, or of some chunks.
const LENGTHS: [u64; 3] = [4000, 40_000, 3 << 20];
/// Bytes that one operation writes, at most,
const OP_MAX: u64 = 200_000;
/// and one that stores through a mapping.
const STORE_MAX: u64 = 20_000;
/// What is shown of what was done before something was found.
const SHOWN: usize = 12;

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
        self.next() % n.max(1)
    }
    /// Before `end`; every other one at the border of a page.
    fn place(&mut self, end: u64) -> u64 {
        let at = self.below(end);
        if self.below(2) == 0 { at & !4095 } else { at }
    }
}

fn byte(seed: u64, at: u64) -> u8 {
    (seed ^ at ^ (at >> 9)) as u8
}

/// The program that maps files: in a process of its own, so that one that waits for ever can be ended.
const MAPS: &str = r#"
import mmap, os, sys
f = m = None
for line in sys.stdin:
    word, *rest = line.rstrip("\n").split(" ", 1)
    if word == "open":
        if f is not None: os.close(f)
        f = os.open(rest[0], os.O_RDWR)
    elif word == "store":
        at, n, seed = map(int, rest[0].split())
        m = mmap.mmap(f, 0)
        m[at:at + n] = bytes((seed ^ i ^ (i >> 9)) & 255 for i in range(at, at + n))
    elif word == "flush":
        m.flush(); m.close(); m = None
    print("done", flush=True)
"#;

struct Mapper {
    child: Child,
    tell: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Mapper {
    fn new(seconds: u64) -> Self {
        let mut child = Command::new("timeout")
            .args(["-s", "KILL", &seconds.to_string(), "python3", "-c", MAPS])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let tell = child.stdin.take().expect("its input");
        let said = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { child, tell, said }
    }
    fn has(&mut self, what: &str) {
        writeln!(self.tell, "{what}").expect("told");
        let answer = self.said.next().and_then(Result::ok);
        assert_eq!(answer.as_deref(), Some("done"), "{what}");
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One of the mounts, with the file open.
struct Side {
    path: PathBuf,
    file: File,
    mapper: Mapper,
}

impl Side {
    fn open(&mut self) {
        self.file = open(&self.path, false);
    }
}

fn open(path: &Path, new: bool) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(new).open(path).expect("open")
}

struct Exerciser {
    sides: [Side; 2],
    model: Vec<u8>,
    len_max: u64,
    random: Random,
    done: Vec<String>,
}

impl Exerciser {
    fn new(dirs: [&Path; 2], seed: u64, seconds: u64) -> Self {
        let first = dirs.map(|dir| dir.join("f0"));
        drop(open(&first[0], true));
        let side =
            |path: PathBuf| Side { file: open(&path, false), mapper: Mapper::new(seconds), path };
        let mut all = Self {
            sides: first.map(side),
            model: Vec::new(),
            len_max: LENGTHS[2],
            random: Random(seed),
            done: Vec::new(),
        };
        all.file_anew(0);
        all
    }
    /// Another file, made by one of them.
    fn file_anew(&mut self, number: u64) {
        self.len_max = LENGTHS[self.random.below(3) as usize];
        self.model.clear();
        let maker = self.random.below(2) as usize;
        for side in [maker, 1 - maker] {
            let s = &mut self.sides[side];
            s.path.set_file_name(format!("file-{number}"));
            s.file = open(&s.path, side == maker);
            s.mapper.has(&format!("open {}", s.path.display()));
        }
        self.done = vec![format!("made by {maker}, at most {} long", self.len_max)];
    }

    fn fill(&mut self, from: u64, to: u64, with: impl Fn(u64) -> u8) {
        if self.model.len() < to as usize {
            self.model.resize(to as usize, 0);
        }
        for at in from..to {
            self.model[at as usize] = with(at);
        }
    }
    fn len(&self) -> u64 {
        self.model.len() as u64
    }
    /// A range that an operation is about, before `end`.
    fn range(&mut self, end: u64, longest: u64) -> (u64, u64) {
        let from = self.random.place(end);
        let len = 1 + self.random.below(longest.min(end - from));
        (from, from + len)
    }

    fn cut(&mut self, side: usize, len: u64) {
        let began = Instant::now();
        if self.random.below(2) == 0 {
            self.sides[side].file.set_len(len).expect("ftruncate");
        } else {
            rustix::fs::ftruncate(open(&self.sides[side].path, false), len).expect("truncate");
        }
        self.model.resize(len as usize, 0);
        self.done.push(format!("{side}: cut to {len} in {:?}", began.elapsed()));
    }
    fn store(&mut self, side: usize) -> bool {
        if self.model.is_empty() {
            return false;
        }
        let ((from, to), seed) = (self.range(self.len(), STORE_MAX), self.random.below(256));
        self.done.push(format!("{side}: stored at {from} to {to}"));
        self.sides[side].mapper.has(&format!("store {from} {} {seed}", to - from));
        self.fill(from, to, |at| byte(seed, at));
        true
    }

    /// What it did is to be seen by the other side when this returns.
    fn step(&mut self) {
        let side = self.random.below(2) as usize;
        match self.random.below(14) {
            0..=3 => {
                let ((from, to), seed) = (self.range(self.len_max, OP_MAX), self.random.below(256));
                self.done.push(format!("{side}: written at {from} to {to}"));
                let bytes: Vec<u8> = (from..to).map(|at| byte(seed, at)).collect();
                self.sides[side].file.write_all_at(&bytes, from).expect("write");
                self.fill(from, to, |at| byte(seed, at));
            }
            4 | 5 => {
                if self.store(side) {
                    self.sides[side].mapper.has("flush");
                }
            }
            6 | 7 => {
                // The other one cuts the file while pages of this one are not written back.
                let stored = self.store(side);
                let len = self.random.below(self.len() + 1);
                self.cut(1 - side, len);
                if self.random.below(2) == 0 {
                    // Something may have been written behind the greatest length.
                    let longer = len + self.random.below(self.len_max.saturating_sub(len));
                    self.cut(1 - side, longer);
                }
                if stored {
                    self.sides[side].mapper.has("flush");
                }
            }
            8 => {
                let len = self.random.place(self.len_max);
                self.cut(side, len);
            }
            9 | 10 => {
                let (from, to) = self.range(self.len_max, OP_MAX);
                let (punch, keep) = (self.random.below(2) == 0, self.random.below(2) == 0);
                let flags = match (punch, keep) {
                    (true, _) => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    (false, true) => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                    (false, false) => FallocateFlags::ZERO_RANGE,
                };
                self.done.push(format!("{side}: {flags:?} at {from} to {to}"));
                fallocate(&self.sides[side].file, flags, from, to - from).expect("fallocate");
                let end = if punch || keep { to.min(self.len()) } else { to };
                self.fill(from.min(end), end, |_| 0);
            }
            11 | 12 => {
                // The other one makes the file longer meanwhile, and this one hears of it.
                let stored = self.store(side);
                let at = self.len() + self.random.below(3) * self.random.below(5000);
                let (to, seed) = (at + 1 + self.random.below(5000), self.random.below(256));
                self.done.push(format!("{}: written behind the end, {at} to {to}", 1 - side));
                let bytes: Vec<u8> = (at..to).map(|at| byte(seed, at)).collect();
                let other = &self.sides[1 - side].file;
                other.write_all_at(&bytes, at).expect("write");
                other.sync_all().expect("fsync");
                self.fill(at, to, |at| byte(seed, at));
                let hears = match self.random.below(2) {
                    0 => self.sides[side].file.metadata(),
                    _ => std::fs::metadata(&self.sides[side].path),
                };
                assert_eq!(hears.expect("stat").len(), self.len());
                if stored {
                    self.sides[side].mapper.has("flush");
                }
            }
            _ => {
                self.done.push(format!("{side}: opened anew"));
                self.sides[side].open();
                let path = self.sides[side].path.display().to_string();
                self.sides[side].mapper.has(&format!("open {path}"));
            }
        }
        if self.random.below(3) == 0 {
            self.done.push(format!("{side}: closed and opened"));
            self.sides[side].open();
        } else {
            self.sides[side].file.sync_all().expect("fsync");
        }
    }

    fn check(&mut self) {
        let whole = self.random.below(4) == 0;
        for side in [0, 1] {
            let (from, to) = match whole || self.model.is_empty() {
                true => (0, self.len()),
                false => self.range(self.len(), OP_MAX),
            };
            let s = &self.sides[side];
            let by_name = std::fs::metadata(&s.path).expect("stat").len();
            let by_file = s.file.metadata().expect("fstat").len();
            // One byte more: it must not be there.
            let mut bytes = vec![0; (to - from) as usize + 1];
            let n = read_fully(&s.file, &mut bytes, from);
            let expected = &self.model[from as usize..];
            let expected = &expected[..expected.len().min(bytes.len())];
            let wrong = bytes.iter().zip(expected).position(|(a, b)| a != b);
            let last = bytes.iter().zip(expected).rposition(|(a, b)| a != b);
            let right = by_name == self.len() && by_file == self.len() && n == expected.len();
            assert!(
                right && wrong.is_none(),
                "mount {side} shows lengths of {by_name} and {by_file}, not {}; of {} bytes from {from} on it has {n}; wrong is what lies at {:?} to {:?}, where it has {:?}...; before:\n{}",
                self.len(),
                expected.len(),
                wrong.map(|at| from + at as u64),
                last.map(|at| from + at as u64),
                wrong.map(|at| &bytes[at..n.min(at + 8)]),
                self.done[self.done.len().saturating_sub(SHOWN)..].join("\n"),
            );
        }
    }
}

fn read_fully(file: &File, bytes: &mut [u8], from: u64) -> usize {
    let mut n = 0;
    while n < bytes.len() {
        match file.read_at(&mut bytes[n..], from + n as u64).expect("read") {
            0 => break,
            more => n += more,
        }
    }
    n
}

/// Whoever hangs in one of the mounts goes on with an error.
fn give_up_after(seconds: u64, dirs: [&Path; 2], over: &'static AtomicBool) {
    let connections =
        dirs.map(|dir| rustix::fs::minor(std::fs::metadata(dir).expect("stat").dev()));
    std::thread::spawn(move || {
        for _ in 0..seconds * 10 {
            std::thread::sleep(Duration::from_millis(100));
            if over.load(SeqCst) {
                return;
            }
        }
        eprintln!("TIME-OUT after {seconds} s: the connections of both mounts are aborted");
        for c in connections {
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{c}/abort"), b"1");
        }
    });
}

#[test]
fn what_one_mount_does_to_a_file_the_other_one_sees() {
    static OVER: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let seconds = number("GLOWFS_TWO_FSX_SECONDS").unwrap_or(SECONDS);
    let seed = number("GLOWFS_TWO_FSX_SEED").unwrap_or_else(|| u64::from_le_bytes(random_seed()));
    println!("GLOWFS_TWO_FSX_SEED={seed}");
    let c = Cluster::up("twofsx");
    let other = Mount::new(&c, "mnt2");
    let dirs = [c.mnt.as_path(), other.path.as_path()];
    give_up_after(seconds + MARGIN_SECONDS, dirs, &OVER);
    let mut all = Exerciser::new(dirs, seed, seconds + MARGIN_SECONDS);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut steps = 0;
    while Instant::now() < end {
        if steps % STEPS_OF_A_FILE == 0 {
            all.file_anew(1 + steps / STEPS_OF_A_FILE);
        }
        all.step();
        all.check();
        steps += 1;
    }
    OVER.store(true, SeqCst);
    println!("{steps} operations");
    assert!(steps > 20, "{steps} operations in {seconds} s");
}

fn random_seed() -> [u8; 8] {
    let mut bytes = [0; 8];
    let mut random = File::open("/dev/urandom").expect("randomness");
    std::io::Read::read_exact(&mut random, &mut bytes).expect("randomness");
    bytes
}
