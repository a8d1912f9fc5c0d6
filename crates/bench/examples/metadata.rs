//! What names cost: threads make, look at and remove files on the mounts of a `glowfs dev` cluster, and the CPU time of all of the
//! cluster's processes is counted.
//!
//! `metadata DIR MOUNT OTHER_MOUNT PID [files a thread] [rows, separated by commas]`: the second mount is one of `glowfs mount`, with
//! that process id. Without rows, all but `big`.
//! It writes into a directory of its own on the mount, and removes it at the end.

use anyhow::{Context, Result, bail, ensure};
use glowfs_dev::status;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Threads side by side.
const THREADS: usize = 4;
/// Clients of the rows about one directory and many.
const MANY: usize = 16;
/// What a small file holds.
const SMALL: [u8; 1024] = [7; 1024];
/// Files of the tree that is unpacked.
const TREE_FILES: usize = 10_000;
/// CPU time is counted until work in the background has ended, as good as.
const SETTLE: Duration = Duration::from_millis(300);

struct Bench {
    cluster: PathBuf,
    mount: PathBuf,
    other: PathBuf,
    other_pid: u32,
    files: usize,
    rows: Vec<String>,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [cluster, mount, other, pid, rest @ ..] = args.as_slice() else {
        bail!("metadata DIR MOUNT OTHER_MOUNT PID [files a thread] [rows]");
    };
    let bench = Bench {
        cluster: cluster.into(),
        mount: Path::new(mount).join("metadata-bench"),
        other: Path::new(other).join("metadata-bench"),
        other_pid: pid.parse()?,
        files: rest.first().map_or(Ok(10_000), |n| n.parse())?,
        rows: rest.get(1).map(|r| r.split(',').map(str::to_owned).collect()).unwrap_or_default(),
    };
    fs::create_dir(&bench.mount)?;
    println!("{:<28} {:>10} {:>8}   by process", "row", "ops/s", "us/op");
    let done = bench.run();
    fs::remove_dir_all(&bench.mount)?;
    done
}

impl Bench {
    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|r| r == row)
    }

    fn run(&self) -> Result<()> {
        if self.wants("files") {
            self.files()?;
        }
        if self.wants("dirs") {
            self.dirs()?;
        }
        if self.wants("small") {
            self.small()?;
        }
        if self.wants("tree") {
            self.tree()?;
        }
        if self.wants("many") {
            self.many()?;
        }
        // A million files take minutes: only by name.
        if self.rows.iter().any(|r| r == "big") {
            self.big()?;
        }
        Ok(())
    }

    fn files(&self) -> Result<()> {
        let n = self.files;
        self.make_dirs("f", THREADS)?;
        self.each("create", THREADS, n, |t, i| {
            OpenOptions::new().write(true).create_new(true).open(name(&self.mount, "f", t, i))?;
            Ok(())
        })?;
        self.each("stat by another client", THREADS, n, |t, i| {
            fs::symlink_metadata(name(&self.other, "f", t, i))?;
            Ok(())
        })?;
        self.each("rename", THREADS, n, |t, i| {
            let to = self.mount.join(format!("f{t}/renamed-{i}"));
            Ok(fs::rename(name(&self.mount, "f", t, i), to)?)
        })?;
        self.each("remove", THREADS, n, |t, i| {
            Ok(fs::remove_file(self.mount.join(format!("f{t}/renamed-{i}")))?)
        })
    }

    fn dirs(&self) -> Result<()> {
        self.make_dirs("d", THREADS)?;
        self.each("mkdir", THREADS, self.files, |t, i| {
            Ok(fs::create_dir(name(&self.mount, "d", t, i))?)
        })?;
        self.each("rmdir", THREADS, self.files, |t, i| {
            Ok(fs::remove_dir(name(&self.mount, "d", t, i))?)
        })
    }

    fn small(&self) -> Result<()> {
        self.make_dirs("s", THREADS)?;
        self.each("1 KiB create+write+close", THREADS, self.files, |t, i| {
            let mut file = File::create_new(name(&self.mount, "s", t, i))?;
            Ok(file.write_all(&SMALL)?)
        })?;
        let read = |root: &Path, t, i| {
            let read = fs::read(name(root, "s", t, i))?;
            ensure!(read == SMALL, "other bytes than written");
            Ok(())
        };
        self.each("1 KiB open+read, other", THREADS, self.files, |t, i| read(&self.other, t, i))?;
        self.each("1 KiB open+read, again", THREADS, self.files, |t, i| read(&self.other, t, i))
    }

    fn tree(&self) -> Result<()> {
        let scratch = std::env::temp_dir().join(format!("metadata-bench-{}", std::process::id()));
        let tar = scratch.join("tree.tar");
        for at in 0..TREE_FILES {
            let dir = scratch.join(format!("tree/{}", at / 100));
            if at % 100 == 0 {
                fs::create_dir_all(&dir)?;
            }
            fs::write(dir.join(format!("file-{at}")), SMALL)?;
        }
        let all = TREE_FILES;
        command("tar", &[&"-cf", &tar, &"-C", &scratch, &"tree"])?;
        let done = (|| {
            self.measured("untar", all, || command("tar", &[&"-xf", &tar, &"-C", &self.mount]))?;
            let (here, there) = (self.mount.join("tree"), self.other.join("tree"));
            self.measured("find, other", all, || command("find", &[&there]))?;
            self.measured("find -size, other", all, || {
                command("find", &[&there, &"-size", &"+9"])
            })?;
            self.measured("read all, other", all, || {
                command("grep", &[&"-r", &"no such text", &there]).or(Ok(()))
            })?;
            self.measured("rm -rf", all, || command("rm", &[&"-rf", &here]))
        })();
        fs::remove_dir_all(&scratch)?;
        done
    }

    fn many(&self) -> Result<()> {
        let n = self.files * THREADS / MANY;
        let make = |dir: &str, t: usize, i: usize| {
            let path = self.mount.join(dir).join(format!("of-{t}-{i}"));
            OpenOptions::new().write(true).create_new(true).open(path)?;
            Ok(())
        };
        self.make_dirs("m", MANY)?;
        self.each("16 threads, 16 directories", MANY, n, |t, i| make(&format!("m{t}"), t, i))?;
        fs::create_dir(self.mount.join("one"))?;
        self.each("16 threads, one directory", MANY, n, |t, i| make("one", t, i))
    }

    /// One directory of a million files, a tenth at a time.
    fn big(&self) -> Result<()> {
        const TENTH: usize = 100_000;
        let dir = self.mount.join("big");
        fs::create_dir(&dir)?;
        let path = |tenth: usize, t: usize, i: usize| dir.join(format!("{tenth}-{t}-{i}"));
        for tenth in 0..10 {
            self.each(&format!("million: create {tenth}"), THREADS, TENTH / THREADS, |t, i| {
                File::create_new(path(tenth, t, i))?;
                Ok(())
            })?;
        }
        let mut list = fs::read_dir(&dir)?;
        for tenth in 0..10 {
            self.measured(&format!("million: list {tenth}"), TENTH, || {
                for _ in 0..TENTH {
                    list.next().context("an entry is missing")??;
                }
                Ok(())
            })?;
        }
        for tenth in 0..10 {
            self.each(&format!("million: remove {tenth}"), THREADS, TENTH / THREADS, |t, i| {
                Ok(fs::remove_file(path(tenth, t, i))?)
            })?;
        }
        Ok(())
    }

    fn make_dirs(&self, prefix: &str, count: usize) -> Result<()> {
        for t in 0..count {
            fs::create_dir(self.mount.join(format!("{prefix}{t}")))?;
        }
        Ok(())
    }

    /// `work(thread, number)`, `count` times by each of so many threads.
    fn each(
        &self,
        row: &str,
        threads: usize,
        count: usize,
        work: impl Fn(usize, usize) -> Result<()> + Sync,
    ) -> Result<()> {
        self.measured(row, threads * count, || {
            std::thread::scope(|scope| {
                let work = &work;
                let one = |t| scope.spawn(move || (0..count).try_for_each(|i| work(t, i)));
                let all: Vec<_> = (0..threads).map(one).collect();
                for thread in all {
                    match thread.join() {
                        Ok(done) => done?,
                        Err(_) => bail!("a thread of the benchmark panicked"),
                    }
                }
                Ok(())
            })
        })
    }

    fn measured(&self, row: &str, ops: usize, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = self.cpu()?;
        let begin = Instant::now();
        work().with_context(|| format!("row «{row}»"))?;
        let took = begin.elapsed();
        std::thread::sleep(SETTLE);
        let after = self.cpu()?;
        let ops = ops as f64;
        let of = |name: &str| {
            let sum = |all: &[(String, u64)]| -> u64 {
                all.iter().filter(|(n, _)| n.starts_with(name)).map(|(_, ns)| ns).sum()
            };
            sum(&after).saturating_sub(sum(&before)) as f64 / 1e3 / ops
        };
        let parts: Vec<String> =
            ["mount", "meta", "storage", "mgmtd"].map(|n| format!("{n} {:.1}", of(n))).into();
        let rate = ops / took.as_secs_f64();
        println!("{row:<28} {rate:>10.0} {:>8.1}   {}", of(""), parts.join(", "));
        Ok(())
    }

    /// Nanoseconds on a CPU of each of the cluster's processes.
    fn cpu(&self) -> Result<Vec<(String, u64)>> {
        let services = status::status(&self.cluster)?.services;
        let running = services.iter().filter_map(|s| Some((s.role.clone(), s.pid?)));
        let other = ("mount-other".to_owned(), self.other_pid);
        running.chain([other]).map(|(name, pid)| Ok((name, run_time(pid)?))).collect()
    }
}

fn name(root: &Path, prefix: &str, thread: usize, number: usize) -> PathBuf {
    root.join(format!("{prefix}{thread}/{prefix}-{number}"))
}

/// The first field of schedstat, of all threads of a process.
fn run_time(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

fn command(program: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) -> Result<()> {
    let mut command = Command::new(program);
    for arg in args {
        command.arg(arg);
    }
    let status = command.stdout(std::process::Stdio::null()).status()?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}
