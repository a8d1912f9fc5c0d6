//! Who may use what he has opened, and run what he may not read (docs/semantics.md).

use crate::harness::{Cluster, Mount, sh};

#[test]
fn what_may_be_run_need_not_be_readable() {
    let c = Cluster::up("run");
    sh(
        &c.mnt,
        r#"
        chmod 755 .. .
        run() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
        cp "$(type -P echo)" prog; chmod 711 prog
        run cat prog > /dev/null 2>&1 && { echo "it was read"; exit 1; }
        test "$(run ./prog hello)" = hello
        # A file that is open to be run is not one that is open to be read, and the other way round.
        cp "$(type -P sleep)" rest; chmod 711 rest; run ./rest 3 & sleep 0.3
        run cat rest > /dev/null 2>&1 && { echo "it was read"; exit 1; }
        wait; chmod 744 rest
        # (setpriv itself has the privileges of root until it has become another program.)
        run bash -c './rest 0' 2> /dev/null && { echo "it was run"; exit 1; }
        true
        "#,
    );
}

#[test]
fn who_shares_an_open_file_does_not_lose_it_with_another_ones_right() {
    let c = Cluster::up("sharing");
    c.retune("meta-1", "[tuning]\ncapability_ms = 1000\n");
    sh(
        &c.mnt,
        r#"
        chmod 755 .. .; head -c 4M /dev/urandom > f; chown 1000:4242 f; chmod 640 f
        python3 - <<'PY'
import os, time
def act_as(uid, gid):
    os.seteuid(0); os.setegid(gid); os.seteuid(uid)
os.setgroups([])
act_as(1001, 4242); member = os.open("f", os.O_RDONLY); os.pread(member, 4096, 0)
act_as(1000, 1000); owner = os.open("f", os.O_RDONLY); os.pread(owner, 4096, 0)
os.fchmod(owner, 0o600)
time.sleep(2.5)
assert len(os.pread(owner, 4096, 2 << 20)) == 4096
PY
        "#,
    );
}

/// What programs get by being run goes with every change of their contents, however it is made (generic/093, 553, 673, 683 to 688).
#[test]
fn privileges_of_a_program_go_when_it_is_changed() {
    let c = Cluster::up("privileges");
    sh(
        &c.mnt,
        r#"
        chmod 755 .. .
        python3 - <<'PY'
import ctypes, fcntl, mmap, os, stat, struct
CAPS, VALUE = "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
libc = ctypes.CDLL(None, use_errno=True)
def act_as(uid, gid):
    os.seteuid(0); os.setegid(gid); os.seteuid(uid)
def fallocate(fd, mode, at, n):
    if libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(n)): raise OSError(ctypes.get_errno(), "fallocate")
def with_fd(flags, act):
    def done():
        fd = os.open("f", os.O_WRONLY | flags)
        try: act(fd)
        finally: os.close(fd)
    return done
page = mmap.mmap(-1, 4096)
source = os.open("source", os.O_RDWR | os.O_CREAT, 0o644); os.write(source, b"s" * 65536)
ways = {
    "write": with_fd(0, lambda fd: os.write(fd, b"x")),
    "append": with_fd(os.O_APPEND, lambda fd: os.write(fd, b"x")),
    "direct": with_fd(os.O_DIRECT, lambda fd: os.write(fd, page)),
    "O_TRUNC": with_fd(os.O_TRUNC, lambda fd: None),
    "truncate": lambda: os.truncate("f", 10),
    "longer": with_fd(0, lambda fd: os.ftruncate(fd, 1 << 20)),
    "fallocate": with_fd(0, lambda fd: fallocate(fd, 0, 0, 200000)),
    "fallocate inside": with_fd(0, lambda fd: fallocate(fd, 0, 0, 10)),
    "keep size": with_fd(0, lambda fd: fallocate(fd, 1, 0, 200000)),
    "punch": with_fd(0, lambda fd: fallocate(fd, 3, 0, 4096)),
    "zero": with_fd(0, lambda fd: fallocate(fd, 16, 0, 4096)),
    "copy": with_fd(0, lambda fd: os.copy_file_range(source, fd, 5000, 0, 0)),
}
os.setgroups([])
for name, act in ways.items():
    # Who is not root, nor in the group, takes all of it away; whose group may not execute, too.
    for uid, gid, mode, left in [(1001, 1001, 0o6666, 0o666), (1001, 1001, 0o6777, 0o777), (1001, 0, 0o6666, 0o2666), (0, 0, 0o6777, 0o6777)]:
        open("f", "wb").write(b"a" * 100000)
        os.chmod("f", mode); os.setxattr("f", CAPS, VALUE)
        act_as(uid, gid); act(); act_as(0, 0)
        what = (name, uid, gid, oct(mode), oct(os.stat("f").st_mode))
        assert stat.S_IMODE(os.stat("f").st_mode) == left, what
        assert CAPS not in os.listxattr("f"), what
        os.unlink("f")
# What is with an open file already, too.
open("f", "wb").write(b"a" * 10)
fd = os.open("f", os.O_WRONLY | os.O_APPEND)
for _ in range(2):
    os.write(fd, b"x"); os.setxattr("f", CAPS, VALUE); os.write(fd, b"y")
    assert CAPS not in os.listxattr("f")
os.setxattr("f", CAPS, VALUE); os.removexattr("f", CAPS)
try: os.removexattr("f", CAPS); assert False
except OSError as e: assert e.errno == 61
os.setxattr("f", CAPS, VALUE); act_as(1001, 1001)
try: os.removexattr("f", CAPS); assert False
except OSError as e: assert e.errno == 1
act_as(0, 0)
# Immutable and append-only, though it was opened before.
def flags(fd, value): fcntl.ioctl(fd, 0x40086602, struct.pack("l", value))
def refused(act, why):
    try: act(); assert False, why
    except OSError as e: assert e.errno == 1, (why, e)
g = os.open("g", os.O_RDWR | os.O_CREAT); os.write(g, b"g" * 8192)
flags(g, 0x10)
refused(lambda: os.copy_file_range(source, g, 100, 0, 0), "copy")
for mode in (0, 1, 3, 16): refused(lambda: fallocate(g, mode, 0, 20000), mode)
flags(g, 0); os.close(g); g = os.open("g", os.O_WRONLY | os.O_APPEND); flags(g, 0x20)
for mode in (0, 1): fallocate(g, mode, 0, 20000)
assert os.stat("g").st_size == 20000
for mode in (3, 16): refused(lambda: fallocate(g, mode, 0, 4096), mode)
flags(g, 0)
PY
        "#,
    );
}

/// The root of a user namespace may do so with his own files, as on local file systems: the kernel says in the value for whom it counts.
#[test]
fn the_root_of_a_user_namespace_gives_capabilities() {
    let c = Cluster::up("capabilities");
    sh(
        &c.mnt,
        r#"
        chmod 755 .. .; touch f; chown 1000:1000 f
        timeout 60 python3 - <<'PY'
import ctypes, os, struct
CAPS, VALUE = "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
libc = ctypes.CDLL(None, use_errno=True)
def child(act):
    pid = os.fork()
    if pid == 0:
        try: act(); os._exit(0)
        except BaseException as e: print("child:", repr(e), flush=True); os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
def user():
    os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
def refused():
    user()
    try: os.setxattr("f", CAPS, VALUE)
    except PermissionError: return
    raise Exception("set")
def given():
    user()
    CLONE_NEWUSER, PR_SET_DUMPABLE = 0x10000000, 4
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    if libc.unshare(CLONE_NEWUSER): print("no user namespaces here"); os._exit(0)
    for name, text in (("setgroups", "deny"), ("uid_map", "0 1000 1"), ("gid_map", "0 1000 1")):
        with open("/proc/self/" + name, "w") as f: f.write(text)
    os.setxattr("f", CAPS, VALUE)
    os._exit(0)
child(refused)
child(given)
if CAPS in os.listxattr("f"):
    value = os.getxattr("f", CAPS)
    assert value == struct.pack("<IIIIII", 0x03000001, 1 << 13, 0, 0, 0, 1000), value
PY
        "#,
    );
}

/// generic/426, 467, 477: the kernel asks for an inode by its number.
#[test]
fn what_is_opened_by_handle_need_not_be_known() {
    let c = Cluster::up("handles");
    let other = Mount::new(&c, "mnt2");
    let script = c.local.join("handles.py");
    let text = r#"
import ctypes, errno, os, struct, sys
here, there = sys.argv[1], sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
def handle_of(path):
    h = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128)); mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), h, ctypes.byref(mount), 0): raise OSError(ctypes.get_errno(), path)
    return h
def open_handle(mount, h, flags):
    fd = libc.open_by_handle_at(mount, h, flags)
    if fd < 0: raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd
os.mkdir(here + "/d", 0o700); os.mkdir(here + "/d/e"); open(here + "/d/f", "w").write("contents"); os.symlink("x", here + "/d/s")
mount = os.open(there, os.O_RDONLY)
f, e, s = (handle_of(here + "/d/" + n) for n in "fes")
assert os.read(open_handle(mount, f, os.O_RDONLY), 99) == b"contents"
assert os.fstat(open_handle(mount, s, os.O_PATH)).st_ino == os.lstat(here + "/d/s").st_ino
assert os.fstat(open_handle(mount, e, os.O_RDONLY)).st_ino == os.stat(here + "/d/e").st_ino
# Also where the names of the directory are followed.
mine = os.open(here, os.O_RDONLY); os.mkdir(there + "/g"); g = handle_of(there + "/g"); open_handle(mine, g, os.O_RDONLY)
os.unlink(here + "/d/f"); os.rmdir(here + "/d/e")
for h in (f, e):
    try: open_handle(mine, h, os.O_RDONLY); assert False
    except OSError as x: assert x.errno == errno.ESTALE, x
"#;
    std::fs::write(&script, text).expect("script");
    let (a, b) = (c.mnt.display(), other.path.display());
    sh(&c.local, &format!("timeout 60 python3 {} {a} {b}", script.display()));
}

/// Another client gives a program privileges, or takes permissions away, while somebody has it open for writing.
#[test]
fn privileges_that_another_client_has_just_given_go_with_a_write() {
    let c = Cluster::up("givenelse");
    let other = Mount::new(&c, "mnt2");
    let as_owner = &c.mnt;
    sh(as_owner, &format!("chmod 755 .. . {}", other.path.display()));
    for (name, before, after, expected, flags) in [
        ("cached", "666", "4755", "755", "0"),
        ("direct", "666", "6775", "775", "os.O_DIRECT"),
        // The writer's client believes in the mode of before: it must not bring it back.
        ("undone", "4777", "700", "700", "os.O_DIRECT"),
        ("both", "4777", "4700", "700", "os.O_DIRECT"),
    ] {
        let script = format!(
            r#"
            head -c 8192 /dev/zero > {name}; chown 1000:1000 {name}; chmod {before} {name}
            cat > ../{name}.py <<'PY'
import mmap, os, sys, time
os.setgroups([]); os.setegid(1001); os.seteuid(1001)
fd = os.open(sys.argv[1], os.O_WRONLY | {flags})
page = mmap.mmap(-1, 4096)
page.write(b"x" * 4096)
if os.stat(sys.argv[1]).st_mode & 0o6000 == 0: os.pwritev(fd, [page], 0)
# No lease is left.
time.sleep(1.5)
print("ready", flush=True)
sys.stdin.readline()
os.pwritev(fd, [page], 4096)
PY
            mkfifo ../{name}.go
            python3 ../{name}.py {other}/{name} < ../{name}.go > ../{name}.out & writer=$!
            exec 3> ../{name}.go
            for i in $(seq 200); do grep -q ready ../{name}.out && break; sleep 0.05; done
            chown 0:0 {name}; chmod {after} {name}
            echo >&3; exec 3>&-; wait $writer
            test "$(stat -c %a {name})" = {expected} || {{ echo "{name}: $(stat -c %a {name})"; exit 1; }}
            "#,
            other = other.path.display(),
        );
        sh(as_owner, &script);
    }
}

/// Rights are asked for when something is opened; a time that is set is the last word; a whiteout is no device.
#[test]
fn what_programs_do_with_what_they_have_just_had_open() {
    let c = Cluster::up("justopen");
    sh(
        &c.mnt,
        r#"
        chmod 755 .. .; mkdir d; chmod 700 d; touch d/a d/b; mkdir w; chown 1000 w
        head -c 100000 /dev/urandom > f
        python3 - <<'PY'
import os, time
fd = os.open("d", os.O_RDONLY)
os.setgroups([]); os.setegid(1001); os.seteuid(1001)
assert sorted(os.listdir(fd)) == ["a", "b"]
os.seteuid(0); os.setegid(0)
for i in range(10):
    # A time of last access that is before that of the contents moves with the next read.
    os.utime("f", (1000, time.time()))
    with open("f", "rb" if i % 2 else "r+b") as f: f.read()
    os.utime("f", (2000 + i, 3000))
    time.sleep(0.05)
    assert os.stat("f").st_atime == 2000 + i, (i, os.stat("f").st_atime)
PY
        setpriv --reuid=1000 --regid=1000 --clear-groups mknod w/whiteout c 0 0
        setpriv --reuid=1000 --regid=1000 --clear-groups mknod w/null c 1 3 2> /dev/null && exit 1
        test "$(stat -c %F,%t,%T w/whiteout)" = "character special file,0,0"
        "#,
    );
}
