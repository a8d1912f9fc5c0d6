"""One system call on a file whose chain nobody serves by then: gone.py WHAT FILE GO.

Opens the file, says «ready», waits until GO is there, calls, and says the errno (0: none) and the seconds that it took.
"""
import ctypes
import mmap
import os
import sys
import time

what, path, go = sys.argv[1:]
MIB = 1 << 20
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
libc = ctypes.CDLL(None, use_errno=True)
flags = {"direct read": os.O_DIRECT, "direct write": os.O_DIRECT, "append": os.O_APPEND}
fd = os.open(path, os.O_RDWR | flags.get(what, 0))
aligned = mmap.mmap(-1, MIB)
mapped = mmap.mmap(fd, MIB) if what in ("mapped read", "msync") else None
other = os.open(path + ".copy", os.O_RDWR | os.O_CREAT)


def fallocate(mode, at, length):
    if libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), what)


def msync():
    mapped[0] = 120
    mapped.flush()


calls = {
    "read": lambda: os.pread(fd, 4096, 0),
    "direct read": lambda: os.preadv(fd, [aligned], 0),
    "write": lambda: os.pwrite(fd, b"x" * 4096, 8192),
    "direct write": lambda: os.pwritev(fd, [aligned], 0),
    "append": lambda: os.write(fd, b"x"),
    "fsync": lambda: os.fsync(fd),
    "fdatasync": lambda: os.fdatasync(fd),
    "close": lambda: os.close(fd),
    "truncate": lambda: os.ftruncate(fd, 5000),
    "truncate to more": lambda: os.ftruncate(fd, 3 * MIB),
    "truncate to 0": lambda: os.ftruncate(fd, 0),
    "fallocate": lambda: fallocate(0, 0, 3 * MIB),
    "punch": lambda: fallocate(PUNCH_HOLE | KEEP_SIZE, 4096, 8192),
    "zero": lambda: fallocate(ZERO_RANGE, 4096, 8192),
    "copy_file_range": lambda: os.copy_file_range(fd, other, MIB),
    "unlink": lambda: os.unlink(path),
    "mapped read": lambda: mapped[MIB - 1],
    "msync": msync,
}

# What is not flushed yet, and a page that is there.
if what in ("fsync", "fdatasync", "close"):
    os.pwrite(fd, b"y" * 4096, 4096)
if what == "msync":
    mapped[0]
print("ready", flush=True)
while not os.path.exists(go):
    time.sleep(0.02)
number, began = 0, time.monotonic()
try:
    calls[what]()
except OSError as e:
    number = e.errno
print(number, time.monotonic() - began, flush=True)
os._exit(0)
