//! POSIX behaviour of the mount over a RAM file system.

use crate::common::{self, TestMount};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};

macro_rules! mounted {
    ($m:ident) => {
        let Some($m) = TestMount::new(60) else { return };
    };
}

fn names(dir: &std::path::Path) -> Vec<OsString> {
    let mut all: Vec<_> =
        fs::read_dir(dir).expect("list").map(|e| e.expect("entry").file_name()).collect();
    all.sort();
    all
}

#[test]
fn files_and_lengths() {
    mounted!(m);
    let p = m.join("a");
    let mut f =
        OpenOptions::new().create_new(true).read(true).write(true).open(&p).expect("create");
    f.write_all(b"hello").expect("write");
    // Meta has not heard of it yet; this client shows it all the same.
    assert_eq!(f.metadata().expect("fstat").len(), 5);
    assert_eq!(fs::metadata(&p).expect("stat").len(), 5);
    f.write_all_at(b"world", 1 << 20).expect("far");
    assert_eq!(fs::metadata(&p).expect("stat").len(), (1 << 20) + 5);
    let mut hole = vec![1; 4096];
    f.read_exact_at(&mut hole, 8192).expect("hole");
    assert!(hole.iter().all(|b| *b == 0));
    drop(f);
    assert_eq!(fs::metadata(&p).expect("stat").len(), (1 << 20) + 5);
    assert_eq!(fs::read(&p).expect("read").len(), (1 << 20) + 5);
    assert_eq!(fs::read(&p).expect("read")[..5], *b"hello");
}

#[test]
fn truncate_reaches_every_handle() {
    mounted!(m);
    let p = m.join("t");
    fs::write(&p, vec![7u8; 200_000]).expect("write");
    let reader = File::open(&p).expect("reader");
    let writer = OpenOptions::new().write(true).open(&p).expect("writer");
    let mut b = [0; 4];
    reader.read_exact_at(&mut b, 100_000).expect("read");
    assert_eq!(b, [7; 4]);
    writer.set_len(10).expect("cut");
    assert_eq!(reader.metadata().expect("fstat").len(), 10);
    assert_eq!(reader.read_at(&mut b, 100_000).expect("past the end"), 0);
    writer.set_len(0).expect("empty");
    writer.write_all_at(b"new!", 0).expect("write");
    reader.read_exact_at(&mut b, 0).expect("new data");
    assert_eq!(&b, b"new!");
    writer.set_len(150_000).expect("grow");
    reader.read_exact_at(&mut b, 100_000).expect("zeros");
    assert_eq!(b, [0; 4], "old bytes must not come back");
    // O_TRUNC on another handle.
    let again = OpenOptions::new().write(true).truncate(true).open(&p).expect("O_TRUNC");
    assert_eq!(writer.metadata().expect("fstat").len(), 0);
    again.write_all_at(b"x", 0).expect("write");
    assert_eq!(fs::read(&p).expect("read"), b"x");
    writer.write_all_at(b"yz", 1).expect("the old handle writes on");
    drop((reader, writer, again));
    assert_eq!(fs::read(&p).expect("read"), b"xyz");
}

#[test]
fn append_goes_to_the_end() {
    mounted!(m);
    let p = m.join("log");
    let open = || OpenOptions::new().create(true).append(true).open(&p).expect("open");
    let threads: Vec<_> = (0..4)
        .map(|t| {
            let mut f = open();
            std::thread::spawn(move || {
                for i in 0..200 {
                    f.write_all(format!("{t}:{i:06}\n").as_bytes()).expect("append");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("thread"));
    let text = fs::read_to_string(&p).expect("read");
    let mut lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 800);
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 800, "a line was overwritten");
}

#[test]
fn append_in_large_direct_pieces_keeps_order() {
    mounted!(m);
    let p = m.join("big");
    const O_DIRECT: i32 = libc::O_DIRECT;
    let mut f =
        OpenOptions::new().create(true).append(true).custom_flags(O_DIRECT).open(&p).expect("open");
    let bytes: Vec<u8> = (0..5 << 20).map(|i: u32| (i >> 12) as u8).collect();
    f.write_all(&bytes).expect("append");
    f.write_all(&bytes).expect("append");
    drop(f);
    let back = fs::read(&p).expect("read");
    assert!(back[..bytes.len()] == bytes[..] && back[bytes.len()..] == bytes[..]);
}

#[test]
fn unlinked_files_live_on() {
    mounted!(m);
    let p = m.join("gone");
    fs::write(&p, b"still here").expect("write");
    let mut f = OpenOptions::new().read(true).write(true).open(&p).expect("open");
    fs::remove_file(&p).expect("unlink");
    assert!(fs::metadata(&p).is_err());
    let mut s = String::new();
    f.read_to_string(&mut s).expect("read");
    assert_eq!(s, "still here");
    assert_eq!(f.metadata().expect("fstat").nlink(), 0);
    f.write_all(b", and writable").expect("write");
    f.seek(SeekFrom::Start(0)).expect("seek");
    s.clear();
    f.read_to_string(&mut s).expect("read");
    assert_eq!(s, "still here, and writable");
}

#[test]
fn directories_links_and_renames() {
    mounted!(m);
    fs::create_dir_all(m.join("d/e/f")).expect("mkdir");
    for i in 0..1500 {
        fs::write(m.join(&format!("d/{i:05}-a-rather-long-name-to-need-many-pages")), b"")
            .expect("write");
    }
    assert_eq!(names(&m.join("d")).len(), 1501);
    fs::write(m.join("x"), b"x").expect("write");
    fs::hard_link(m.join("x"), m.join("y")).expect("link");
    assert_eq!(fs::metadata(m.join("y")).expect("stat").nlink(), 2);
    symlink("y", m.join("s")).expect("symlink");
    assert_eq!(fs::read_link(m.join("s")).expect("readlink").to_str(), Some("y"));
    assert_eq!(fs::read(m.join("s")).expect("follow"), b"x");
    fs::rename(m.join("x"), m.join("d/e/x")).expect("rename");
    fs::write(m.join("z"), b"z").expect("write");
    fs::rename(m.join("z"), m.join("y")).expect("replace");
    assert_eq!(fs::read(m.join("y")).expect("read"), b"z");
    assert_eq!(fs::metadata(m.join("d/e/x")).expect("stat").nlink(), 1);
    assert_eq!(fs::remove_dir(m.join("d")).expect_err("not empty").raw_os_error(), Some(39));
    let long = "n".repeat(256);
    assert_eq!(fs::write(m.join(&long), b"").expect_err("long").raw_os_error(), Some(36));
    fs::remove_dir_all(m.join("d")).expect("rm -r");
    assert_eq!(names(m.path()), ["s", "y"]);
}

#[test]
fn listing_goes_on_while_entries_vanish() {
    mounted!(m);
    for i in 0..1000 {
        fs::write(m.join(&format!("{i:04}")), b"").expect("write");
    }
    let mut seen = 0;
    for e in fs::read_dir(m.path()).expect("list") {
        fs::remove_file(e.expect("entry").path()).expect("remove while listing");
        seen += 1;
    }
    assert_eq!(seen, 1000);
    assert!(names(m.path()).is_empty());
}

#[test]
fn attributes() {
    mounted!(m);
    let p = m.join("a");
    fs::write(&p, b"1234").expect("write");
    fs::set_permissions(&p, fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(fs::metadata(&p).expect("stat").mode(), 0o100_640);
    std::os::unix::fs::chown(&p, Some(1000), Some(1001)).expect("chown");
    let md = fs::metadata(&p).expect("stat");
    assert_eq!((md.uid(), md.gid()), (1000, 1001));
    // utimes while it is dirty must win over the time of the last write.
    let mut f = OpenOptions::new().write(true).open(&p).expect("open");
    f.write_all(b"56").expect("write");
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    f.set_modified(then).expect("utimes");
    drop(f);
    assert_eq!(fs::metadata(&p).expect("stat").modified().expect("mtime"), then);
    // chown takes set-user-id away.
    fs::set_permissions(&p, fs::Permissions::from_mode(0o6755)).expect("chmod");
    std::os::unix::fs::chown(&p, Some(0), None).expect("chown");
    assert_eq!(fs::metadata(&p).expect("stat").mode() & 0o7777, 0o755);
}

#[test]
fn special_files_xattrs_and_space() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        mkfifo fifo; test -p fifo
        mknod null c 1 3; test -c null; test "$(stat -c %t:%T null)" = 1:3
        (echo through > fifo &) ; test "$(cat fifo)" = through
        df . | grep -q glowfs
        test "$(stat -f -c %l .)" = 255
        umask 027; touch masked; test "$(stat -c %a masked)" = 640
        fallocate -l 1000000 grown; test "$(stat -c %s grown)" = 1000000
        room=$(($(stat -f -c '%a * %S' .)))
        for how in "" -n; do
            if fallocate $how -l $((room + 1000001)) grown 2>err; then exit 1; fi
            grep -q "No space left" err; test "$(stat -c %s grown)" = 1000000
        done
        head -c 300000 /dev/urandom > full; cp full want
        fallocate -p -o 5000 -l 100000 full; dd if=/dev/zero of=want bs=1000 seek=5 count=100 conv=notrunc status=none; cmp full want
        fallocate -z -o 299000 -l 2000 full; truncate -s 299000 want; truncate -s 301000 want; cmp full want
        fallocate -n -o 400000 -l 1 full; fallocate -p -o 300000 -l 400000 full; cmp full want
        cp --sparse=always grown copy; cmp grown copy
        ls -la . > /dev/null; find . > /dev/null
        flock masked true
        "#,
    );
    use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
    let p = m.join("masked");
    setxattr(&p, "user.k", b"value", XattrFlags::CREATE).expect("set");
    assert!(setxattr(&p, "user.k", b"value", XattrFlags::CREATE).is_err());
    let mut buf = [0u8; 100];
    let n = getxattr(&p, "user.k", &mut buf[..]).expect("get");
    assert_eq!(&buf[..n], b"value");
    assert!(getxattr(&p, "user.k", &mut buf[..2]).is_err(), "ERANGE");
    let n = listxattr(&p, &mut buf[..]).expect("list");
    assert_eq!(&buf[..n], b"user.k\0");
    removexattr(&p, "user.k").expect("remove");
    assert!(getxattr(&p, "user.k", &mut buf[..]).is_err());
}

#[test]
fn shared_mappings_see_each_other() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        python3 - <<'PY'
import mmap, os
fd = os.open("m", os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 65536)
a = mmap.mmap(fd, 65536); fd2 = os.open("m", os.O_RDWR); b = mmap.mmap(fd2, 65536)
a[0:5] = b"first"; assert b[0:5] == b"first"
assert os.pread(fd2, 5, 0) == b"first"
os.pwrite(fd2, b"second", 100); assert a[100:106] == b"second"
a[70:74] = b"last"; a.flush(); os.fsync(fd)
a.close(); b.close(); os.close(fd); os.close(fd2)
assert open("m", "rb").read()[70:74] == b"last"
PY
        "#,
    );
}

#[test]
fn read_only_refuses_changes() {
    let Some(m) = TestMount::with(30, |c| c.read_only = true) else { return };
    assert_eq!(fs::write(m.join("a"), b"").expect_err("read-only").raw_os_error(), Some(30));
    assert!(names(m.path()).is_empty());
}

#[test]
fn bad_mount_points_are_explained() {
    mounted!(m);
    let try_at = |path: std::path::PathBuf| {
        let o = glowfs_fuse::MountOptions::new(path, "test", "test");
        glowfs_fuse::mount(&o).map(|_| ()).expect_err("refused").to_string()
    };
    assert!(try_at(m.path().to_owned()).contains("already a mount"));
    assert!(try_at(m.join("missing")).contains("does not exist"));
    fs::write(m.join("file"), b"").expect("write");
    assert!(try_at(m.join("file")).contains("not a directory"));
    assert!(try_at(m.path().parent().expect("parent").to_owned()).contains("not empty"));
}

#[test]
fn other_users_are_checked() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        chmod 755 . ..
        mkdir -m 777 open; mkdir -m 700 closed; echo secret > closed/s
        run() { setpriv --reuid=65534 --regid=65534 --groups=4242 "$@"; }
        run touch open/mine; test "$(stat -c %u open/mine)" = 65534
        ! run cat closed/s 2>/dev/null
        chgrp 4242 closed; chmod 750 closed; run cat closed/s > /dev/null
        run chgrp 4242 open/mine; test "$(stat -c %g open/mine)" = 4242
        chmod 6777 open/mine; run sh -c 'echo x >> open/mine'; test "$(stat -c %a open/mine)" = 777
        "#,
    );
}

#[test]
fn names_go_while_their_file_is_open() {
    mounted!(m);
    let (a, b, c) = (m.join("a"), m.join("b"), m.join("c"));
    for p in [&a, &b, &c] {
        fs::write(p, b"old").expect("write");
    }
    // Open for reading only, so without a session until the name goes.
    let (fa, fb) = (File::open(&a).expect("open"), File::open(&b).expect("open"));
    fs::remove_file(&a).expect("unlink");
    fs::rename(&c, &b).expect("replace");
    for f in [&fa, &fb] {
        let mut bytes = [0; 3];
        f.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"old");
        assert_eq!(f.metadata().expect("fstat").nlink(), 0);
    }
}

#[test]
fn files_without_a_name() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        python3 - <<'PY'
import os
def link(fd, name):
    here = os.open(".", os.O_PATH)
    os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=here, follow_symlinks=True)
    os.close(here)
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(fd, b"first")
assert os.fstat(fd).st_nlink == 0 and os.listdir(".") == []
link(fd, "named")
assert os.fstat(fd).st_nlink == 1 and os.listdir(".") == ["named"]
os.write(fd, b", second"); os.close(fd)
assert open("named", "rb").read() == b"first, second"
assert os.stat("named").st_mode & 0o7777 == 0o640
fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
try:
    link(fd, "never"); assert False
except FileNotFoundError:
    pass
os.close(fd)
PY
        "#,
    );
}

#[test]
fn reading_moves_the_time_of_last_access_as_relatime_says() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        python3 - <<'PY'
import os, time
def at(): return os.stat("f").st_atime_ns
def read(flags=0):
    fd = os.open("f", os.O_RDONLY | flags); os.read(fd, 10); os.close(fd)
open("f", "w").write("contents")
old = time.time_ns() - 3600 * 10**9
os.utime("f", ns=(old, old)); assert at() == old
read(os.O_NOATIME); assert at() == old, "O_NOATIME"
os.close(os.open("f", os.O_RDONLY)); assert at() == old, "an open is no access"
read(); first = at(); assert first > old, "the first read after a change"
time.sleep(0.05); read(); assert at() == first, "and only that"
os.chmod("f", 0o600); time.sleep(0.05); read(); assert at() > first, "a change of the inode, too"
now = time.time_ns(); os.utime("f", ns=(now - 25 * 3600 * 10**9, now - 26 * 3600 * 10**9))
read(); assert at() >= now, "once a day"
fd = os.open("f", os.O_RDWR); os.read(fd, 3); os.utime(fd, ns=(old, old)); os.close(fd)
assert at() == old, "a time that was set after the read stays"
PY
        "#,
    );
}

#[test]
fn times_far_from_now_and_names_of_any_bytes() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        python3 - <<'PY'
import os
for ns in [-1, -2**40 * 10**9 - 999999999, 10**9 * 2**33 + 123456789, 10**9 * 253402300800 + 1]:
    open("t", "w").close(); os.utime("t", ns=(ns, ns - 7))
    assert (os.stat("t").st_atime_ns, os.stat("t").st_mtime_ns) == (ns, ns - 7)
os.mkdir("names"); os.chdir("names")
all = [bytes([b]) for b in range(1, 256) if b != 0x2f and b != 0x2e] + [bytes([b]) * 255 for b in (1, 10, 0x80, 0xff)]
for n in all: open(n, "w").close()
assert sorted(os.listdir(b".")) == sorted(all)
for n in all: os.unlink(n)
PY
        "#,
    );
}

#[test]
fn locks_of_processes_and_of_open_files() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        python3 - <<'PY'
import errno, fcntl, os, signal, struct, time
OFD_SETLK, OFD_SETLKW = 37, 38
def ofd(fd, kind, start, length, cmd=OFD_SETLK):
    fcntl.fcntl(fd, cmd, struct.pack("hhqqi4x", kind, 0, start, length, 0))
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
def ok(pid): assert os.waitpid(pid, 0)[1] == 0
fd = os.open("f", os.O_RDWR | os.O_CREAT)
# Ranges: the process is the owner; closing any handle gives them back.
fcntl.lockf(fd, fcntl.LOCK_EX, 100, 0)
fcntl.lockf(fd, fcntl.LOCK_UN, 20, 40)
def other():
    g = os.open("f", os.O_RDWR)
    assert refused(lambda: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 39)) == errno.EAGAIN
    fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 20, 40)
    kind, _, start, length, pid = struct.unpack("hhqqi4x", fcntl.fcntl(g, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 70, 5, 0)))
    assert (kind, start, length) == (fcntl.F_WRLCK, 60, 40), (kind, start, length)
ok(child(other))
os.close(os.open("f", os.O_RDONLY))
ok(child(lambda: fcntl.lockf(os.open("f", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)))
# OFD: the open file is the owner, whoever closes another one.
ofd(fd, fcntl.F_WRLCK, 0, 10)
os.close(os.open("f", os.O_RDONLY))
g = os.open("f", os.O_RDWR)
assert refused(lambda: ofd(g, fcntl.F_RDLCK, 5, 1)) == errno.EAGAIN
os.close(fd); ofd(g, fcntl.F_WRLCK, 0, 10)
# flock: not seen by ranges; one that waits is woken, one that is interrupted has nothing.
fcntl.flock(g, fcntl.LOCK_EX)
h = os.open("f", os.O_RDWR)
assert refused(lambda: fcntl.flock(h, fcntl.LOCK_SH | fcntl.LOCK_NB)) == errno.EAGAIN
def interrupted():
    i = os.open("f", os.O_RDWR)
    class Stop(Exception): pass
    def stop(*_): raise Stop()
    signal.signal(signal.SIGALRM, stop); signal.setitimer(signal.ITIMER_REAL, 0.2)
    try: fcntl.flock(i, fcntl.LOCK_EX); raise Exception("granted")
    except Stop: pass
ok(child(interrupted))
waits = [child(lambda: fcntl.flock(os.open("f", os.O_RDWR), fcntl.LOCK_EX)) for _ in range(5)]
time.sleep(0.2); began = time.time()
fcntl.flock(g, fcntl.LOCK_UN)
for w in waits: ok(w)
assert time.time() - began < 5
fcntl.flock(h, fcntl.LOCK_EX | fcntl.LOCK_NB)
PY
        "#,
    );
}

/// Closing another handle of the file gives back what the process has, but not what it gets afterwards: that goes with the next close.
#[test]
fn a_lock_that_was_waited_for_during_a_close_is_given_back() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        timeout 60 python3 - <<'PY'
import fcntl, os, threading, time
def child(act):
    if (pid := os.fork()) == 0:
        try: act(); os._exit(0)
        except BaseException as e: print("child:", repr(e), flush=True); os._exit(1)
    return pid
def ok(pid): assert os.waitpid(pid, 0)[1] == 0
os.close(os.open("f", os.O_RDWR | os.O_CREAT))
has, go = os.pipe(), os.pipe()
def holds():
    g = os.open("f", os.O_RDWR)
    fcntl.lockf(g, fcntl.LOCK_EX)
    os.write(has[1], b"1"); os.read(go[0], 1)
    fcntl.lockf(g, fcntl.LOCK_UN)
holder = child(holds)
os.read(has[0], 1)
fd = os.open("f", os.O_RDWR)
waits = threading.Thread(target=lambda: fcntl.lockf(fd, fcntl.LOCK_EX))
waits.start(); time.sleep(0.3); os.close(os.open("f", os.O_RDWR))
assert waits.is_alive()
os.write(go[1], b"1"); ok(holder); waits.join()
def tries(): fcntl.lockf(os.open("f", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
def locked():
    try: tries(); raise Exception("not locked")
    except BlockingIOError: pass
ok(child(locked))
os.close(fd); ok(child(tries))
PY
        "#,
    );
}
