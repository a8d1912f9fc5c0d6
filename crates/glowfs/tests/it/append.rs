//! O_APPEND across clients (docs/semantics.md): records of many processes on two mounts, each whole and once.

use crate::harness::{Cluster, Mount, eventually, sh};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Appends records for some seconds from processes of both mounts: whose, which one, length, then bytes that follow from these.
/// `HOW` is how they are opened.
const WRITERS: &str = r#"
import fcntl, os, random, struct, sys, time
A, B, name, seconds, how = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5]
def body(who, i, n): return (b"%08d%08d" % (who, i) * (n // 16 + 1))[:n]
def writer(who, d):
    rnd = random.Random(who)
    flags = os.O_WRONLY | os.O_CREAT
    f = os.open(d + "/" + name, flags if how == "later" else flags | os.O_APPEND)
    if how == "later": fcntl.fcntl(f, fcntl.F_SETFL, fcntl.fcntl(f, fcntl.F_GETFL) | os.O_APPEND)
    end, i = time.time() + seconds, 0
    while time.time() < end:
        n = rnd.choice([20, 100, 4096, 5000, 70000, 300000, 1500000 if how == "large" else 3])
        record = struct.pack("<III", who, i, n) + body(who, i, n)
        assert os.write(f, record) == len(record)
        i += 1
        if how == "reopen":
            os.close(f); f = os.open(d + "/" + name, flags | os.O_APPEND)
    os.close(f)
    open("%s/count-%d" % (sys.argv[6], who), "w").write(str(i))
pids = []
for who in range(4):
    pid = os.fork()
    if pid == 0:
        try: writer(who, (A, B)[who % 2]); os._exit(0)
        except BaseException as e: print("writer", who, repr(e), flush=True); os._exit(1)
    pids.append(pid)
bad = [p for p in pids if os.waitpid(p, 0)[1] != 0]
assert not bad
for d in (A, B):
    data, at, seen = open(d + "/" + name, "rb").read(), 0, [0] * 4
    while at < len(data):
        who, i, n = struct.unpack_from("<III", data, at)
        assert who < 4 and i == seen[who], (d, at, who, i, n, seen)
        assert data[at + 12:at + 12 + n] == body(who, i, n), (d, at, who, i, n)
        seen[who] += 1; at += 12 + n
    assert at == len(data)
    assert seen == [int(open("%s/count-%d" % (sys.argv[6], w)).read()) for w in range(4)], seen
print(how, seen, "records,", len(data), "bytes")
"#;

fn writers(c: &Cluster, other: &Path, how: &str, seconds: f32) {
    let script = c.local.join("writers.py");
    std::fs::write(&script, WRITERS).expect("script");
    let (script, a, b, tmp) =
        (script.display(), c.mnt.display(), other.display(), c.local.display());
    let out = sh(
        &c.dir,
        &format!("timeout 120 python3 {script} {a} {b} log-{how} {seconds} {how} {tmp}"),
    );
    print!("{out}");
}

#[test]
fn appends_of_two_mounts_are_whole_and_once() {
    let c = Cluster::up("append");
    let other = Mount::new(&c, "mnt2");
    // Opened for appending; made so later; opened and closed each time; larger than one request.
    for how in ["open", "later", "reopen", "large"] {
        writers(&c, &other.path, how, 2.0);
    }
    // Whoever appends after a truncate by the other begins at the new end.
    let open =
        |p: &Path| File::options().append(true).create(true).open(p.join("cut")).expect("open");
    let (mut a, mut b) = (open(&c.mnt), open(&other.path));
    a.write_all(&[b'a'; 10_000]).expect("append");
    b.write_all(b"b").expect("append");
    b.set_len(3).expect("truncate");
    a.write_all(b"x").expect("append");
    b.write_all(b"y").expect("append");
    assert_eq!(sh(&c.mnt, "cat cut"), "aaaxy");
    assert_eq!(sh(&other.path, "cat cut"), "aaaxy");
    // Nobody sees bytes that are not written yet.
    let log = File::open(other.path.join("cut")).expect("open");
    for i in 0..50u8 {
        a.write_all(&[b'r'; 3000]).expect("append");
        let len = log.metadata().expect("stat").len();
        let mut bytes = vec![0; len as usize];
        log.read_exact_at(&mut bytes, 0).expect("read");
        assert!(!bytes.contains(&0), "zeros after {i} appends");
    }
}

/// Each life of the metadata service has the right noted anew; a write(2) of several requests that is under way stays whole.
#[test]
fn appends_are_whole_and_once_while_the_metadata_service_starts_again() {
    let c = Cluster::up("appendlives");
    let other = Mount::new(&c, "mnt2");
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1500));
                c.dev("kill", &["meta-1"]);
                c.dev("start", &["meta-1"]);
            }
        });
        let written = std::panic::catch_unwind(|| writers(&c, &other.path, "large", 8.0));
        done.store(true, Ordering::Relaxed);
        written.expect("whole");
    });
}

#[test]
fn a_client_that_dies_does_not_keep_the_right_to_append() {
    let c = Cluster::up("appenddead");
    c.retune("mgmtd-1", "[timing]\nclient_session_ms = 3000\n");
    c.retune("meta-1", "[tuning]\ncapability_ms = 3000\nsession_grace_ms = 500\n");
    sh(&c.mnt, "echo up > up && rm up");
    let other = Mount::new(&c, "mnt2");
    let open =
        |p: &Path| File::options().append(true).create(true).open(p.join("log")).expect("open");
    let (mut ours, mut theirs) = (open(&c.mnt), open(&other.path));
    ours.write_all(b"one ").expect("append");
    theirs.write_all(b"two ").expect("append");
    // A meta service that starts anew knows who has the right.
    c.dev("kill", &["meta-1"]);
    c.dev("start", &["meta-1"]);
    theirs.write_all(b"three ").expect("append");
    other.kill();
    let began = Instant::now();
    ours.write_all(b"four").expect("append");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(sh(&c.mnt, "cat log"), "one two three four");
    // One that was not used for a while is given back by itself.
    let third = Mount::new(&c, "mnt3");
    let mut last = open(&third.path);
    last.write_all(b" five").expect("append");
    eventually("told", || std::fs::metadata(c.mnt.join("log")).expect("stat").size() == 23);
    std::thread::sleep(Duration::from_millis(2500));
    third.kill();
    let began = Instant::now();
    ours.write_all(b" six").expect("append");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(sh(&c.mnt, "cat log"), "one two three four five six");
}
