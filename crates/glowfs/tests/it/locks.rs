//! Locks across clients (docs/semantics.md): two mounts, many processes.

use crate::harness::{Cluster, Mount, eventually, sh};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::Path;
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
    // A meta service that starts anew knows the locks.
    c.dev("kill", &["meta-1"]);
    c.dev("start", &["meta-1"]);
    let ours = File::open(c.mnt.join("f")).expect("open");
    let try_lock = || flock(&ours, FlockOperation::NonBlockingLockExclusive);
    assert!(try_lock().is_err(), "held by another client");
    other.kill();
    let began = Instant::now();
    eventually("the lock of the dead client is free", || try_lock().is_ok());
    assert!(began.elapsed() > Duration::from_secs(2), "not before its capabilities have ended");
}
