# What POSIX promises of names and attributes: done through one mount (A) of a cluster, looked at through another one (B).
import ctypes, errno, mmap, os, socket, stat, sys, time, traceback
A, B = sys.argv[1], sys.argv[2]
BOTH = (A, B)
S = 10**9
NOBODY = 65534

def refused(act, *args, **named):
    try: act(*args, **named)
    except OSError as e: return errno.errorcode[e.errno]
    return None

# Runs something in a process of a user with these supplementary groups.
def as_user(act, user=NOBODY, groups=()):
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(list(groups)); os.setresgid(user, user, user); os.setresuid(user, user, user)
            act(); os._exit(0)
        except BaseException:
            traceback.print_exc(); os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "a process of user %d with groups %s" % (user, list(groups))

def write(path, data, mode=0o644):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    os.write(fd, data); os.close(fd)

def read(path):
    with open(path, "rb") as f: return f.read()

# A time needs more than 32 bits, and may be before 1970: to the nanosecond, of each kind of inode, for all clients.
def times_far_from_now():
    write(A + "/t-file", b"t"); os.mkdir(A + "/t-dir"); os.symlink("nowhere", A + "/t-link")
    far = [0, -1, -S, -S - 1, -2**31 * S - 1, -2**40 * S - 999999999, 2**31 * S + 5, (2**32 + 1) * S + 999999999, 2**33 * S + 123456789, 253402300800 * S + 1]
    for n, ns in enumerate(far):
        setter, other = (A, B) if n % 2 == 0 else (B, A)
        for name in ("t-file", "t-dir", "t-link"):
            before = time.time_ns()
            os.utime(f"{setter}/{name}", ns=(ns - 7, ns), follow_symlinks=False)
            for d in (other, setter):
                s = os.lstat(f"{d}/{name}")
                assert (s.st_atime_ns, s.st_mtime_ns) == (ns - 7, ns), (d, name, ns, s)
                assert before - S <= s.st_ctime_ns <= time.time_ns() + S, (d, name, s)
    # Through a descriptor, of one time alone, and of now.
    fd = os.open(B + "/t-file", os.O_RDWR)
    os.utime(fd, ns=(-5, 2**34 * S + 3))
    s = os.stat(A + "/t-file"); assert (s.st_atime_ns, s.st_mtime_ns) == (-5, 2**34 * S + 3), s
    before = time.time_ns() - S // 10
    os.utime(fd); s = os.stat(A + "/t-file")
    assert before < s.st_mtime_ns < before + 60 * S and before < s.st_atime_ns < before + 60 * S, s
    os.close(fd)

# Whatever makes, moves or removes a name marks the directory's time of change, and nothing else does.
def times_of_directories():
    past = 10**9 * S
    dirs = ("/p", "/q")
    for d in dirs: os.mkdir(A + d)
    def entries(path): return sum(stat.S_ISDIR(os.lstat(f"{path}/{n}").st_mode) for n in os.listdir(path))
    turn = [0]
    def after(what, act, *changed):
        turn[0] += 1
        here, there = (A, B) if turn[0] % 2 else (B, A)
        for d in dirs: os.utime(there + d, ns=(past, past))
        before = {d: os.stat(there + d) for d in dirs}
        time.sleep(0.002)
        act(here)
        for m in (there, here):
            for d in dirs:
                s, old = os.stat(m + d), before[d]
                if d in changed:
                    assert min(s.st_mtime_ns, s.st_ctime_ns) > old.st_ctime_ns, (what, m + d, s, old)
                else:
                    assert (s.st_mtime_ns, s.st_ctime_ns) == (past, old.st_ctime_ns), (what, m + d, s, old)
                assert s.st_nlink == 2 + entries(m + d), (what, m + d, s)
    def exchange(a, b):
        assert ctypes.CDLL(None, use_errno=True).renameat2(-100, a.encode(), -100, b.encode(), 2) == 0, ctypes.get_errno()
    after("create", lambda m: write(m + "/p/f", b"1"), "/p")
    after("create by an exclusive open", lambda m: os.close(os.open(m + "/q/x", os.O_CREAT | os.O_EXCL)), "/q")
    after("mkdir", lambda m: os.mkdir(m + "/p/d"), "/p")
    after("symlink", lambda m: os.symlink("f", m + "/p/s"), "/p")
    after("mkfifo", lambda m: os.mkfifo(m + "/q/pipe"), "/q")
    after("link", lambda m: os.link(m + "/p/f", m + "/q/f2"), "/q")
    after("rename", lambda m: os.rename(m + "/p/s", m + "/p/s2"), "/p")
    after("rename elsewhere", lambda m: os.rename(m + "/p/s2", m + "/q/s2"), "/p", "/q")
    after("rename of a directory", lambda m: os.rename(m + "/p/d", m + "/q/d"), "/p", "/q")
    after("exchange", lambda m: exchange(m + "/p/f", m + "/q/d"), "/p", "/q")
    after("rename over", lambda m: os.rename(m + "/q/s2", m + "/q/x"), "/q")
    after("unlink", lambda m: os.unlink(m + "/q/x"), "/q")
    after("rmdir", lambda m: os.rmdir(m + "/p/f"), "/p")
    # What is done to what is in it leaves it alone, and so does what fails.
    after("chmod", lambda m: os.chmod(m + "/q/f2", 0o600))
    after("write", lambda m: write(m + "/q/f2", b"more"))
    after("xattr", lambda m: os.setxattr(m + "/q/f2", "user.x", b"x"))
    after("open of what is there", lambda m: os.close(os.open(m + "/q/f2", os.O_CREAT | os.O_RDWR)))
    after("rename to itself", lambda m: os.rename(m + "/q/f2", m + "/q/f2"))
    def failed(m):
        assert refused(os.mkdir, m + "/q/f2") == "EEXIST" and refused(os.unlink, m + "/p/none") == "ENOENT"
        assert refused(os.rmdir, m + "/q/f2") == "ENOTDIR" and refused(os.link, m + "/q/d", m + "/q/f2") == "EEXIST"
    after("what failed", failed)

# The time of the inode's change goes on with its links and names; what a directory is moved with keeps its own.
def times_of_what_is_renamed():
    write(A + "/r", b"r"); past = 10**9 * S
    for what, act in (("link", lambda m: os.link(m + "/r", m + "/r2")), ("unlink", lambda m: os.unlink(m + "/r2")), ("rename", lambda m: os.rename(m + "/r", m + "/r3"))):
        os.utime(B + "/r", ns=(past, past)); before = os.stat(B + "/r")
        time.sleep(0.002); act(A)
        s = os.stat(B + ("/r3" if what == "rename" else "/r"))
        assert s.st_mtime_ns == past and s.st_ctime_ns > before.st_ctime_ns, (what, s, before)

# Sockets, pipes and devices with their numbers.
def special_files():
    os.mkdir(A + "/n"); home = os.getcwd(); os.chdir(A + "/n")
    listener = socket.socket(socket.AF_UNIX); listener.bind("socket"); listener.listen()
    os.mkfifo("pipe", 0o640)
    kinds = {"char": (stat.S_IFCHR, 1, 3), "block": (stat.S_IFBLK, 7, 200), "great-char": (stat.S_IFCHR, 4095, 1048575), "great-block": (stat.S_IFBLK, 259, 300000), "none": (stat.S_IFCHR, 0, 0)}
    for name, (kind, major, minor) in kinds.items(): os.mknod(name, kind | 0o660, os.makedev(major, minor))
    for m in (B, A):
        assert sorted(os.listdir(m + "/n")) == sorted([*kinds, "socket", "pipe"])
        assert stat.S_ISSOCK(os.stat(m + "/n/socket").st_mode) and stat.S_ISFIFO(os.stat(m + "/n/pipe").st_mode)
        for name, (kind, major, minor) in kinds.items():
            s = os.stat(f"{m}/n/{name}")
            assert (stat.S_IFMT(s.st_mode), s.st_mode & 0o777, s.st_size, s.st_nlink) == (kind, 0o660 & ~UMASK, 0, 1), (m, name, s)
            assert (os.major(s.st_rdev), os.minor(s.st_rdev)) == (major, minor), (m, name, s)
    # Moved, linked and changed they are what they were.
    os.rename(B + "/n/great-char", B + "/n/moved"); os.link(B + "/n/moved", B + "/n/linked"); os.chmod(B + "/n/linked", 0o600); os.chown(B + "/n/linked", 5, 6)
    s = os.stat("moved"); assert (s.st_rdev, s.st_mode, s.st_uid, s.st_gid, s.st_nlink) == (os.makedev(4095, 1048575), stat.S_IFCHR | 0o600, 5, 6, 2), s
    # A socket is reached by processes of the same machine and mount, and so is a pipe.
    os.chdir(A + "/n"); socket.socket(socket.AF_UNIX).connect("socket")
    os.chdir(B + "/n"); assert refused(socket.socket(socket.AF_UNIX).connect, "socket") == "ECONNREFUSED"
    fd = os.open("pipe", os.O_RDWR); os.write(fd, b"through"); assert os.read(fd, 10) == b"through"; os.close(fd)
    os.chdir(home); os.chmod(A + "/n", 0o777)
    def ordinary():
        for kind in (stat.S_IFCHR, stat.S_IFBLK): assert refused(os.mknod, B + "/n/mine", kind | 0o600, os.makedev(1, 3)) == "EPERM"
        os.mkfifo(B + "/n/mine"); os.unlink(B + "/n/mine")
    as_user(ordinary)
    for name in os.listdir(B + "/n"): os.unlink(f"{B}/n/{name}")
    assert os.listdir(A + "/n") == []

libc = ctypes.CDLL(None, use_errno=True)
def xattr_into(size, path, name=None):
    buf = ctypes.create_string_buffer(size)
    n = libc.listxattr(path.encode(), buf, size) if name is None else libc.getxattr(path.encode(), name, buf, size)
    return n if n >= 0 else errno.errorcode[ctypes.get_errno()]

def extended_attributes():
    write(A + "/x", b"x"); os.chmod(A + "/x", 0o666)
    put = os.setxattr
    assert refused(put, A + "/x", "user.k", b"1", os.XATTR_REPLACE) == "ENODATA"
    put(A + "/x", "user.k", b"first", os.XATTR_CREATE)
    assert refused(put, B + "/x", "user.k", b"2", os.XATTR_CREATE) == "EEXIST"
    assert os.getxattr(B + "/x", "user.k") == b"first"
    put(B + "/x", "user.k", b"second", os.XATTR_REPLACE); assert os.getxattr(A + "/x", "user.k") == b"second"
    put(A + "/x", "user.k", b""); assert os.getxattr(B + "/x", "user.k") == b""
    put(B + "/x", "user.k", b"0123456789"); put(B + "/x", "user.empty", b"")
    for m in BOTH:
        p = m + "/x"
        assert [xattr_into(n, p, b"user.k") for n in (0, 9, 10, 64)] == [10, "ERANGE", 10, 10], m
        names = len(b"user.k\0user.empty\0")
        assert [xattr_into(n, p) for n in (0, names - 1, names)] == [names, "ERANGE", names], m
        assert xattr_into(64, p, b"user.none") == "ENODATA"
    assert refused(put, A + "/x", "user.great", bytes(65537)) in ("E2BIG", "ERANGE")
    # What is for root only: kept for all clients, neither shown to others nor taken from them.
    put(A + "/x", "trusted.t", b"root's", os.XATTR_CREATE)
    assert sorted(os.listxattr(B + "/x")) == ["trusted.t", "user.empty", "user.k"] and os.getxattr(B + "/x", "trusted.t") == b"root's"
    def ordinary():
        for m in BOTH:
            p = m + "/x"
            assert sorted(os.listxattr(p)) == ["user.empty", "user.k"], m
            assert refused(os.getxattr, p, "trusted.t") == "ENODATA"
            assert refused(put, p, "trusted.t", b"mine") == "EPERM" and refused(put, p, "trusted.new", b"mine") == "EPERM"
            assert refused(os.removexattr, p, "trusted.t") == "EPERM"
            put(p, "user.k", b"a writer's")
        os.chdir("/")
    as_user(ordinary)
    assert os.getxattr(A + "/x", "trusted.t") == b"root's" and os.getxattr(A + "/x", "user.k") == b"a writer's"
    os.chmod(A + "/x", 0o644)
    def reader():
        for m in BOTH:
            assert os.getxattr(m + "/x", "user.k") == b"a writer's"
            assert refused(put, m + "/x", "user.k", b"x") == "EACCES" and refused(os.removexattr, m + "/x", "user.k") == "EACCES"
    as_user(reader)
    os.chmod(A + "/x", 0o600)
    as_user(lambda: [refused(os.getxattr, m + "/x", "user.k") == "EACCES" or os._exit(2) for m in BOTH])
    os.removexattr(B + "/x", "user.k"); os.removexattr(B + "/x", "trusted.t")
    assert os.listxattr(A + "/x") == ["user.empty"] and refused(os.removexattr, A + "/x", "user.k") == "ENODATA"

# A right may come from any of a process's groups, also from the last of many.
def supplementary_groups():
    group, many = 4242, [*range(10000, 10100), 4242]
    os.mkdir(A + "/g"); write(A + "/g/f", b"of the group")
    for p, mode in ((A + "/g/f", 0o640), (A + "/g", 0o770)): os.chown(p, 0, group); os.chmod(p, mode)
    def member():
        for m in BOTH:
            assert read(m + "/g/f") == b"of the group" and os.listdir(m + "/g")
            assert refused(os.open, m + "/g/f", os.O_WRONLY) == "EACCES"
            os.mkdir(m + "/g/made"); os.rmdir(m + "/g/made")
        write(B + "/g/mine", b"mine", 0o600); os.chown(B + "/g/mine", -1, group)
        assert os.stat(A + "/g/mine").st_gid == group
        assert refused(os.chown, A + "/g/mine", -1, 4243) == "EPERM" and refused(os.chown, A + "/g/mine", 0, -1) == "EPERM"
    def stranger():
        for m in BOTH:
            assert refused(os.listdir, m + "/g") == "EACCES" and refused(os.stat, m + "/g/f") == "EACCES"
            assert refused(os.mkdir, m + "/g/made") == "EACCES"
    for groups in ([group], many): as_user(member, groups=groups); os.unlink(A + "/g/mine")
    as_user(stranger); as_user(stranger, groups=many[:-1])
    # The group's right is what counts for a member, also where others have more; and a directory that is given away is given at once.
    os.chmod(A + "/g", 0o707); as_user(stranger, groups=[group]); as_user(lambda: os.listdir(B + "/g"))
    os.chmod(A + "/g", 0o770); os.chown(A + "/g", 0, 4243); as_user(stranger, groups=[group])

# What is made in a directory with set-group-id is its group's, and so are directories, which hand it down.
def set_group_id():
    os.mkdir(A + "/sg"); os.chown(A + "/sg", 0, 4242); os.chmod(A + "/sg", 0o2777)
    def stranger():
        os.mkdir(B + "/sg/d"); write(B + "/sg/d/f", b"f"); os.symlink("f", B + "/sg/d/s")
        os.close(os.open(B + "/sg/prog", os.O_CREAT | os.O_WRONLY, 0o2755))
        os.chmod(B + "/sg/d/f", 0o2755)
    as_user(stranger)
    for m in BOTH:
        s = os.stat(m + "/sg/d"); assert (s.st_gid, s.st_uid, s.st_mode & 0o7777) == (4242, NOBODY, 0o2755), s
        for name in ("f", "s"): assert os.lstat(f"{m}/sg/d/{name}").st_gid == 4242, name
        # Who is not in the group gives nobody its rights.
        for name in ("prog", "d/f"): assert os.stat(f"{m}/sg/{name}").st_mode & 0o7777 == 0o755, name
    as_user(lambda: os.chmod(A + "/sg/d/f", 0o2755), groups=[4242])
    assert os.stat(B + "/sg/d/f").st_mode & 0o7777 == 0o2755
    os.chmod(A + "/sg", 0o777); as_user(lambda: write(B + "/sg/own", b"")); assert os.stat(A + "/sg/own").st_gid == NOBODY

# In a sticky directory only the owners of a file or of the directory, and root, move and remove it.
def sticky():
    os.mkdir(A + "/st"); os.chown(A + "/st", 1003, 1003); os.chmod(A + "/st", 0o1777); os.mkdir(A + "/other"); os.chmod(A + "/other", 0o777)
    def makes():
        for name in ("a", "b", "c"): write(B + "/st/" + name, b"1001's")
        os.mkdir(B + "/st/dir")
    as_user(makes, user=1001)
    def another():
        for m in BOTH:
            write(m + "/st/mine", b"1002's")
            assert refused(os.unlink, m + "/st/a") == "EPERM" and refused(os.rmdir, m + "/st/dir") == "EPERM"
            assert refused(os.rename, m + "/st/a", m + "/st/z") == "EPERM" and refused(os.rename, m + "/st/a", m + "/other/z") == "EPERM"
            assert refused(os.rename, m + "/st/mine", m + "/st/a") == "EPERM"
            os.rename(m + "/st/mine", m + "/st/mine2"); os.unlink(m + "/st/mine2")
    as_user(another, user=1002)
    as_user(lambda: (os.rename(A + "/st/a", A + "/other/a"), os.unlink(B + "/st/b")), user=1001)
    as_user(lambda: (os.unlink(A + "/st/c"), os.rmdir(B + "/st/dir")), user=1003)
    assert os.listdir(B + "/st") == [] and os.listdir(A + "/other") == ["a"]

# Stores through a private mapping are nobody else's: they reach neither the file nor its times.
def private_mappings():
    size = 3 << 20
    for mode in (os.O_RDWR, os.O_RDONLY):
        write(A + "/m", b"f" * size); os.utime(A + "/m", ns=(S, S)); kept = os.stat(B + "/m")
        fd = os.open(A + "/m", mode)
        m = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        for at in (0, 4095, size // 2, size - 5): m[at:at + 5] = b"mine!"
        m.flush()
        if mode == os.O_RDWR: os.fsync(fd)
        def child():
            assert m[0:5] == b"mine!"; m[0:5] = b"child"
        as_user(child)
        assert m[0:5] == b"mine!" and m[size - 5:] == b"mine!" and m[5:4095] == b"f" * 4090
        assert os.pread(fd, size, 0) == b"f" * size and read(B + "/m") == b"f" * size
        m.close(); os.close(fd)
        assert read(A + "/m") == b"f" * size and read(B + "/m") == b"f" * size
        s = os.stat(B + "/m"); assert (s.st_mtime_ns, s.st_ctime_ns, s.st_size) == (S, kept.st_ctime_ns, size), (s, kept)

# Who reads through a mapping and asks for nothing sees a change all the same, if he asked less than a lease ago (docs/semantics.md).
def shared_mappings():
    write(A + "/sm", b"0" * 8192); fd = os.open(B + "/sm", os.O_RDONLY); m = mmap.mmap(fd, 8192, prot=mmap.PROT_READ)
    told = 0
    for n in range(1, 8):
        if told == 2: break
        # What was recalled is not leased again at once: for up to three lease times, where hardly anybody asks for anything (`meta/leases.rs: turn`).
        time.sleep(3.1)
        asked = time.time(); os.fstat(fd); assert m[0] == m[5000] == 47 + n
        with open(A + "/sm", "r+b", buffering=0) as f: f.write(b"%d" % n * 8192)
        seen, took = (m[0], m[5000]), time.time() - asked
        if took < 0.6: assert seen == (48 + n, 48 + n), (n, seen, took); told += 1
        else: os.fstat(fd); os.pread(fd, 10, 0)
    assert told, "a change took longer than a lease each time"
    m.close(); os.close(fd)

# Directories, pipes, devices and links that another client removes while somebody has them, or works in them: what is asked of them is answered as of
# something without a name, and no more can be done with them.
def what_another_client_removes():
    for m in BOTH:
        other = B if m == A else A
        os.mkdir(m + "/rm"); os.mkdir(m + "/rm/d", 0o750); os.mkdir(m + "/rm/cwd", 0o710); os.mkfifo(m + "/rm/pipe", 0o640); os.symlink("away", m + "/rm/link"); os.mknod(m + "/rm/dev", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        had = {n: os.open(f"{m}/rm/{n}", flags) for n, flags in (("d", os.O_RDONLY), ("cwd", os.O_RDONLY), ("pipe", os.O_RDWR), ("link", os.O_PATH | os.O_NOFOLLOW), ("dev", os.O_PATH))}
        was = {n: os.fstat(fd) for n, fd in had.items()}
        home = os.getcwd(); os.chdir(m + "/rm/cwd")
        for n in had: (os.rmdir if n in ("d", "cwd") else os.unlink)(f"{other}/rm/{n}")
        for n, fd in had.items():
            s, old = os.fstat(fd), was[n]
            assert (s.st_nlink, s.st_ino, s.st_mode, s.st_rdev, s.st_mtime_ns) == (0, old.st_ino, old.st_mode, old.st_rdev, old.st_mtime_ns), (m, n, s, old)
            assert not os.path.lexists(f"{m}/rm/{n}"), n
        for n in ("d", "cwd"):
            assert refused(os.mkdir, "x", dir_fd=had[n]) in ("ENOENT", "ESTALE") and refused(os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=had[n]) in ("ENOENT", "ESTALE"), n
        assert refused(os.mkdir, "x") in ("ENOENT", "ESTALE") and os.stat(".").st_nlink == 0
        os.write(had["pipe"], b"still"); assert os.read(had["pipe"], 9) == b"still"
        os.chdir(home)
        for fd in had.values(): os.close(fd)
        assert os.listdir(m + "/rm") == []; os.rmdir(other + "/rm")

def until(what, holds):
    end = time.time() + 60
    while not holds():
        assert time.time() < end, "not after a minute: " + what
        time.sleep(0.05)

# What is free falls with what is written and comes back when it is removed, for all clients; inodes are counted at once.
def statfs():
    size, files = 64 << 20, 20
    used = lambda m: (lambda s: (s.f_blocks - s.f_bfree) * s.f_frsize)(os.statvfs(m))
    inodes = lambda m: (lambda s: s.f_files - s.f_ffree)(os.statvfs(m))
    s = os.statvfs(B)
    assert (s.f_namemax, s.f_bsize, s.f_frsize) == (255, 4096, 4096) and 0 < s.f_bavail <= s.f_bfree < s.f_blocks, s
    before, had = used(B), inodes(B)
    os.mkdir(A + "/space")
    for n in range(files): write(f"{A}/space/{n}", b"")
    assert inodes(B) == inodes(A) == had + files + 1, (had, inodes(A), inodes(B))
    fd = os.open(A + "/space/0", os.O_WRONLY); os.write(fd, os.urandom(size)); os.fsync(fd); os.close(fd)
    until("what was written is used", lambda: min(used(A), used(B)) - before > size * 3 // 4)
    for n in range(files): os.unlink(f"{B}/space/{n}")
    os.rmdir(B + "/space")
    until("what was removed is free", lambda: max(used(A), used(B)) - before < size // 2)
    until("inodes that were removed are gone", lambda: inodes(A) == inodes(B) == had)

# A file without a name is nobody else's until it is given one, which shows it whole.
def files_without_a_name():
    os.mkdir(A + "/tmp"); parent = os.stat(B + "/tmp")
    fd = os.open(A + "/tmp", os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"made unseen" * 1000); os.fchmod(fd, 0o604); os.setxattr(fd, "user.k", b"v"); os.fsync(fd)
    for m in BOTH:
        assert os.listdir(m + "/tmp") == []
        s = os.stat(m + "/tmp"); assert (s.st_mtime_ns, s.st_nlink) == (parent.st_mtime_ns, 2), s
    assert os.fstat(fd).st_nlink == 0
    def link(name): os.link(f"/proc/self/fd/{fd}", A + "/tmp/" + name, src_dir_fd=os.open("/", os.O_PATH), follow_symlinks=True)
    write(B + "/tmp/taken", b""); assert refused(link, "taken") == "EEXIST"; os.unlink(B + "/tmp/taken")
    link("named"); s = os.stat(B + "/tmp/named")
    assert (s.st_nlink, s.st_mode & 0o7777, s.st_size, s.st_ino) == (1, 0o604, 11000, os.fstat(fd).st_ino), s
    assert read(B + "/tmp/named") == b"made unseen" * 1000 and os.getxattr(B + "/tmp/named", "user.k") == b"v"
    os.write(fd, b", and goes on"); os.close(fd)
    assert read(B + "/tmp/named").endswith(b"unseen, and goes on")
    os.unlink(B + "/tmp/named"); assert os.listdir(A + "/tmp") == []
    fd = os.open(A + "/tmp", os.O_TMPFILE | os.O_RDWR | os.O_EXCL); assert refused(link, "never") == "ENOENT"; os.close(fd)

os.umask(0o022); UMASK = 0o022
for act in (times_far_from_now, times_of_directories, times_of_what_is_renamed, special_files, extended_attributes, supplementary_groups,
            set_group_id, sticky, private_mappings, shared_mappings, what_another_client_removes, statfs, files_without_a_name):
    began = time.time(); act(); print("%-26s %.2f s" % (act.__name__, time.time() - began), flush=True)
