//! All replicas of a chain are gone: what each system call on its files answers, and when. Nothing that POSIX does not allow, and nothing that hangs.

use crate::harness::{Cluster, eventually, sh};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const EIO: i32 = 5;
const SIGBUS: i32 = 7;

/// How long the daemon tries.
const TRIES: Duration = Duration::from_secs(60);
/// How much longer a call may take.
const MORE: Duration = Duration::from_secs(15);

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// An errno; 0: it succeeds.
    Errno(i32),
    Signal(i32),
}

/// It needs the chain, and says so as its manual page has it.
const FAILS: End = End::Errno(EIO);
/// It needs only the metadata.
const SUCCEEDS: End = End::Errno(0);

/// Each call, what becomes of it, and how often the daemon is asked at most: of a page that could not be read ahead the kernel asks again, and a page fault once more.
const CALLS: [(&str, End, u32); 18] = [
    ("read", FAILS, 2),
    ("direct read", FAILS, 1),
    ("write", FAILS, 1),
    ("direct write", FAILS, 1),
    ("append", FAILS, 1),
    ("fsync", FAILS, 1),
    ("fdatasync", FAILS, 1),
    ("close", SUCCEEDS, 0),
    ("truncate", FAILS, 1),
    ("truncate to more", FAILS, 1),
    ("truncate to 0", SUCCEEDS, 0),
    ("fallocate", SUCCEEDS, 0),
    ("punch", FAILS, 1),
    ("zero", FAILS, 1),
    ("copy_file_range", FAILS, 1),
    ("unlink", SUCCEEDS, 0),
    ("mapped read", End::Signal(SIGBUS), 3),
    ("msync", FAILS, 1),
];

/// A process that makes one of them.
struct Caller {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Caller {
    /// It has its file open when this returns.
    fn new(c: &Cluster, script: &str, what: &str) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", script, what])
            .args([c.mnt.join(what), c.local.join("go")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut caller = Self { child, out };
        assert_eq!(caller.line(), "ready\n", "{what}");
        caller
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("its output");
        line
    }
    /// Its end, once it is there, within the time that is left.
    fn end(&mut self, what: &str, until: Instant) -> (End, f64) {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < until, "«{what}» hangs");
            std::thread::sleep(Duration::from_millis(20));
        };
        if let Some(signal) = status.signal() {
            return (End::Signal(signal), 0.0);
        }
        // Said before it ended.
        let line = self.line();
        let mut words = line.split_whitespace();
        let errno = words.next().and_then(|w| w.parse().ok());
        let seconds = words.next().and_then(|w| w.parse().ok());
        (End::Errno(errno.expect("a number")), seconds.expect("a number"))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_each_call_answers_when_all_replicas_are_gone() {
    let c = Cluster::up_with("gone", &["--storages", "2", "--disks", "1", "--replicas", "2"]);
    let script = include_str!("gone.py");
    for (what, ..) in CALLS {
        sh(&c.mnt, &format!("head -c 1M /dev/urandom > '{what}'"));
    }
    let sums = || {
        sh(&c.local, "echo 3 > /proc/sys/vm/drop_caches");
        sh(&c.mnt, "md5sum read 'direct read' 'mapped read'")
    };
    sh(&c.mnt, "sync *");
    let before = sums();
    sh(&c.local, "echo 3 > /proc/sys/vm/drop_caches");
    let mut callers: Vec<_> = CALLS.map(|(what, ..)| Caller::new(&c, script, what)).into();
    c.dev("kill", &["storage-1"]);
    c.dev("kill", &["storage-2"]);
    eventually("nobody serves", || {
        let chains = c.admin(&["list-chains"]);
        chains.as_array().expect("chains").iter().all(|k| k["status"] == "unavailable")
    });
    std::fs::write(c.local.join("go"), "").expect("a file");
    let begun = Instant::now();
    let mut wrong = vec![];
    for ((what, end, times), caller) in CALLS.iter().zip(&mut callers) {
        let may_take = TRIES * *times + MORE;
        // Its end closes the files: of one that has got holes the blocks are counted then, which asks its chains.
        let (ended, seconds) = caller.end(what, begun + may_take + TRIES);
        println!("{what}: {ended:?} after {seconds:.1} s");
        assert!(seconds < may_take.as_secs_f64(), "{what}: {seconds} s");
        if ended != *end {
            wrong.push(format!("{what}: {ended:?}, not {end:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    drop(callers);
    // It was no more than that: with the replicas all of it goes on.
    c.dev("start", &["storage-1"]);
    c.dev("start", &["storage-2"]);
    c.wait_serving(Duration::from_secs(90));
    assert_eq!(sums(), before);
    sh(&c.mnt, "for f in *; do cat \"$f\" > /dev/null; echo more >> \"$f\"; done; sync *");
    sh(&c.mnt, "[ ! -e unlink ]; [ $(stat -c %s 'truncate to 0') = 5 ]");
}
