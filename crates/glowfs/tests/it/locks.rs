//! Locks across clients (docs/semantics.md): two mounts, many processes.

use crate::harness::{Cluster, Mount, eventually, sh};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the scripts share: `A` and `B` are one directory through two mounts.
const COMMON: &str = r#"
import errno, fcntl, os, signal, struct, sys, time
A, B = sys.argv[1], sys.argv[2]
def refused(act):
    try: act()
    except OSError as e: return e.errno
    return 0
def child(act):
    pid = os.fork()
    if pid == 0:
        try: act(); os._exit(0)
        except BaseException as e: print("child:", repr(e), flush=True); os._exit(1)
    return pid
def ok(*pids):
    for p in pids: assert os.waitpid(p, 0)[1] == 0
def op(d, name="f"): return os.open(d + "/" + name, os.O_RDWR | os.O_CREAT)
EX, SH, UN, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN, fcntl.LOCK_NB
RD, WR, FREE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
def ofd(f, kind, start=0, length=0, how=fcntl.F_OFD_SETLK):
    return struct.unpack("hhqqi4x", fcntl.fcntl(f, how, struct.pack("hhqqi4x", kind, 0, start, length, 0)))
"#;

/// Takes a lock of each kind through B, or waits for each through A.
const HELD: &str = r#"
holds = sys.argv[3] == "holds"
d = B if holds else A
takes = [lambda: fcntl.flock(op(d, "flock"), EX), lambda: fcntl.lockf(op(d, "fcntl"), EX), lambda: ofd(op(d, "ofd"), WR, 0, 0, fcntl.F_OFD_SETLKW)]
if holds:
    fs = [op(d, name) for name in ("flock", "fcntl", "ofd")]
    fcntl.flock(fs[0], EX); fcntl.lockf(fs[1], EX); ofd(fs[2], WR)
    print("holds", flush=True)
    time.sleep(600)
ok(*[child(take) for take in takes])
"#;

fn python(c: &Cluster, other: &Path, script: &str) {
    let file = c.dir.join("script.py");
    std::fs::write(&file, format!("{COMMON}{script}")).expect("script");
    let run =
        format!("timeout 120 python3 {} {} {}", file.display(), c.mnt.display(), other.display());
    sh(&c.dir, &run);
}

#[test]
fn locks_hold_across_mounts() {
    let c = Cluster::up("locks");
    let other = Mount::new(&c, "mnt2");
    // flock, ranges and open files, each against the other mount.
    python(
        &c,
        &other.path,
        r#"
a, b = op(A), op(B)
fcntl.flock(a, EX)
assert refused(lambda: fcntl.flock(b, SH | NB)) == errno.EAGAIN
fcntl.flock(a, SH); fcntl.flock(b, SH | NB)
assert refused(lambda: fcntl.flock(a, EX | NB)) == errno.EAGAIN
fcntl.flock(b, UN); fcntl.flock(a, UN)
fcntl.lockf(a, EX, 10, 0)
def there():
    b = op(B)
    assert refused(lambda: fcntl.lockf(b, EX | NB, 1, 9)) == errno.EAGAIN
    fcntl.lockf(b, EX | NB, 10, 10)
    got = struct.unpack("hhqqi4x", fcntl.fcntl(b, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)))
    assert got[0] == fcntl.F_WRLCK and got[2:4] == (0, 10)
ok(child(there))
"#,
    );
    // Locks of open files: each descriptor that was opened is an owner, whichever process has it.
    python(
        &c,
        &other.path,
        r#"
a, again, b = op(A, "ofd"), op(A, "ofd"), op(B, "ofd")
ofd(a, WR, 10, 10)
for f in (again, b):
    assert refused(lambda: ofd(f, RD, 19, 1)) == errno.EAGAIN
    ofd(f, WR, 20, 5); ofd(f, FREE, 20, 5)
    assert ofd(f, WR, 0, 0, fcntl.F_OFD_GETLK)[:4] == (WR, 0, 10, 10)
# Nor does it give way to a process's own.
assert refused(lambda: fcntl.lockf(again, EX | NB, 1, 10)) == errno.EAGAIN
ok(child(lambda: ofd(a, WR, 12, 1)))
def waits():
    # Its own copy of what holds the lock.
    os.close(a)
    ofd(op(B, "ofd"), WR, 0, 0, fcntl.F_OFD_SETLKW)
waiter = child(waits)
time.sleep(0.3)
assert os.waitpid(waiter, os.WNOHANG) == (0, 0)
# Its copy keeps it, and so does what a child has: that has ended.
copy = os.dup(a); os.close(a)
time.sleep(0.3)
assert os.waitpid(waiter, os.WNOHANG) == (0, 0)
os.close(copy)
ok(waiter)
ofd(b, RD); ofd(again, RD)
assert refused(lambda: ofd(b, WR)) == errno.EAGAIN
ofd(again, FREE); ofd(b, WR)
"#,
    );
    // Of several locks in the way the first one in the file is named; of another client's the process is not.
    python(
        &c,
        &other.path,
        r#"
a = op(A, "several")
for start in (40, 20, 60): fcntl.lockf(a, EX, 5, start)
me = os.getpid()
def names(d, pid):
    got = struct.unpack("hhqqi4x", fcntl.fcntl(op(d, "several"), fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)))
    assert got == (fcntl.F_WRLCK, 0, 20, 5, pid), got
ok(child(lambda: names(A, me)))
ok(child(lambda: names(B, 0)))
"#,
    );
    // Whoever waits is woken at once, and sees what was written under the lock.
    python(
        &c,
        &other.path,
        r#"
n = op(A, "n")
os.pwrite(n, b"0".rjust(12), 0)
# Not written under the lock: without this the first of B may find an empty file.
os.fsync(n)
def count(d, lock, unlock):
    f = op(d, "n")
    for _ in range(25):
        lock(f)
        n = int(os.pread(f, 12, 0)); os.pwrite(f, str(n + 1).encode().rjust(12), 0)
        unlock(f)
began = time.time()
ok(*[child(lambda: count(d, lambda f: fcntl.flock(f, EX), lambda f: fcntl.flock(f, UN))) for d in (A, B, A, B)])
ok(*[child(lambda: count(d, lambda f: fcntl.lockf(f, EX, 5, 3), lambda f: fcntl.lockf(f, UN, 5, 3))) for d in (A, B, A, B)])
assert int(os.pread(op(B, "n"), 12, 0)) == 200
print("200 turns in", time.time() - began)
"#,
    );
    // A circle of those who wait is refused to the one who would close it; an interrupted one leaves nothing behind.
    python(
        &c,
        &other.path,
        r#"
(r1, w1), (r2, w2) = os.pipe(), os.pipe()
def first():
    f = op(A, "x"); fcntl.lockf(f, EX, 1, 0); os.write(w1, b"1"); os.read(r2, 1)
    fcntl.lockf(f, EX, 1, 1)
def second():
    f = op(B, "x"); fcntl.lockf(f, EX, 1, 1); os.write(w2, b"2"); os.read(r1, 1)
    time.sleep(0.5)
    assert refused(lambda: fcntl.lockf(f, EX, 1, 0)) == errno.EDEADLK
ok(child(first), child(second))
f = op(A, "y"); fcntl.lockf(f, EX)
def interrupted():
    class Stop(Exception): pass
    def stop(*_): raise Stop()
    signal.signal(signal.SIGALRM, stop); signal.setitimer(signal.ITIMER_REAL, 0.3)
    g = op(B, "y")
    try: fcntl.lockf(g, EX); raise Exception("granted")
    except Stop: pass
ok(child(interrupted))
fcntl.lockf(f, UN)
ok(child(lambda: fcntl.lockf(op(A, "y"), EX | NB)))
"#,
    );
}

#[test]
fn the_locks_of_a_dead_client_are_given_back() {
    let c = Cluster::up("lockdead");
    c.retune("mgmtd-1", "[timing]\nclient_session_ms = 3000\n");
    c.retune("meta-1", "[tuning]\ncapability_ms = 3000\nsession_grace_ms = 500\n");
    sh(&c.mnt, "echo up > up && rm up");
    let other = Mount::new(&c, "mnt2");
    std::fs::write(c.mnt.join("f"), b"").expect("write");
    let theirs = File::open(other.path.join("f")).expect("open");
    flock(&theirs, FlockOperation::LockExclusive).expect("lock");
    // Of each kind there is one more, which somebody here waits for.
    let held = format!("{COMMON}{HELD}");
    let python = |who: &str, script: &str| {
        let mut run = Command::new("python3");
        run.arg("-c").arg(script).arg(&c.mnt).arg(&other.path).arg(who).stdout(Stdio::piped());
        run.spawn().expect("python")
    };
    let mut holder = python("holds", &held);
    let mut said = BufReader::new(holder.stdout.take().expect("a pipe"));
    said.read_line(&mut String::new()).expect("it holds them");
    let mut waiters = python("waits", &held);
    // A meta service that starts anew knows the locks.
    c.dev("kill", &["meta-1"]);
    c.dev("start", &["meta-1"]);
    let ours = File::open(c.mnt.join("f")).expect("open");
    let try_lock = || flock(&ours, FlockOperation::NonBlockingLockExclusive);
    assert!(try_lock().is_err(), "held by another client");
    assert!(
        waiters.try_wait().expect("waits").is_none(),
        "somebody has a lock of the other client"
    );
    other.kill();
    let began = Instant::now();
    eventually("the lock of the dead client is free", || try_lock().is_ok());
    assert!(began.elapsed() > Duration::from_secs(2), "not before its capabilities have ended");
    eventually("who waited has the locks", || {
        waiters.try_wait().expect("waits").is_some_and(|status| status.success())
    });
    holder.kill().expect("the holder");
    holder.wait().expect("the holder");
}
