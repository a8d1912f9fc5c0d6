"""many_names.py MOUNT MOUNT NAMES: one directory of so many names, made by four processes.

Checks that lists are complete, that positions (telldir, seekdir) stay right while names come and go, and that `rm -rf` leaves nothing;
prints what the first and the last tenth took."""

import ctypes, os, subprocess, sys, time

mounts, total = sys.argv[1:3], int(sys.argv[3])
dirs = [os.path.join(m, "many") for m in mounts]
os.mkdir(dirs[0])
WORKERS = 4
tenth = total // 10

libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.readdir.argtypes = libc.telldir.argtypes = libc.closedir.argtypes = libc.rewinddir.argtypes = [ctypes.c_void_p]
libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


def next_name(d):
    e = libc.readdir(d)
    # d_ino, d_off, d_reclen, d_type, d_name
    return e and ctypes.string_at(e + 19).decode()


def real_name(d):
    while (n := next_name(d)) in (".", ".."):
        pass
    return n


def make(begin, end):
    """All workers make their share of [begin, end); seconds."""
    start, pids = time.monotonic(), []
    for w in range(WORKERS):
        if pid := os.fork():
            pids.append(pid)
            continue
        here = os.open(dirs[0], os.O_RDONLY)
        for i in range(begin + w, end, WORKERS):
            os.close(os.open("n%07d" % i, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=here))
        os._exit(0)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0, "a worker failed"
    return time.monotonic() - start


def rate(what, names, seconds):
    print(f"{what}: {names / seconds:.0f} names/s ({seconds:.1f} s)", flush=True)


rate("create, first tenth", tenth, make(0, tenth))
# Positions of every 97th entry, and what stands there.
d = libc.opendir(dirs[0].encode())
places, seen = [], []
while True:
    at = libc.telldir(d)
    name = real_name(d)
    if not name:
        break
    if len(seen) % 97 == 0:
        places.append((at, name))
    seen.append(name)
assert len(seen) == tenth and set(seen) == {"n%07d" % i for i in range(tenth)}, len(seen)
middle = make(tenth, total - tenth)
rate("create, eight tenths", total - 2 * tenth, middle)
rate("create, last tenth", tenth, make(total - tenth, total))
# They are still good, in any order, after nine times as many names have come.
for at, name in reversed(places):
    libc.seekdir(d, at)
    found = real_name(d)
    assert found == name, f"at {at}: {found}, not {name}"
libc.closedir(d)

for where in dirs:
    start = time.monotonic()
    first = last = None
    names = []
    for e in os.scandir(where):
        names.append(e.name)
        if len(names) == tenth:
            first = time.monotonic() - start
        elif len(names) == total - tenth:
            last = time.monotonic()
    end = time.monotonic()
    assert len(names) == total and len(set(names)) == total, (len(names), len(set(names)))
    rate("list, first tenth", tenth, first)
    rate("list, last tenth", tenth, end - last)
assert set(names) == {"n%07d" % i for i in range(total)}

# A listing under way, while others remove and make: what stays comes once, nothing comes twice.
d = libc.opendir(dirs[0].encode())
got = [real_name(d) for _ in range(total // 2)]
here = os.open(dirs[1], os.O_RDONLY)
gone = set(names[::50])
for n in gone:
    os.unlink(n, dir_fd=here)
while n := real_name(d):
    got.append(n)
libc.closedir(d)
assert len(got) == len(set(got)), "a name came twice"
assert set(names) - gone <= set(got), "a name that stayed is missing"

left, start = total - len(gone), time.monotonic()
subprocess.run(["rm", "-rf", dirs[0]], check=True)
rate("rm -rf", left, time.monotonic() - start)
assert not any(os.path.exists(d) for d in dirs)
