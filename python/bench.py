"""Random samples a second: through the rings, and by plain file reads of the same mount.

    python bench.py MOUNT [--seconds 3] [--batch 256] [--file-mib 256] [--json]

Plain reads come in two kinds: `pread` of a file that was opened as usual (the kernel's page cache may hold it) and with O_DIRECT (it may not,
as with the rings). One process, one thread.
"""

import argparse
import json
import mmap
import os
import pathlib
import random
import resource
import time

import glowfs
import numpy as np


def rings(path, size, batch):
    samples = glowfs.Samples(path, (size,), np.uint8, reuse=True)
    pick = np.random.default_rng(1)
    while True:
        samples.batch(pick.integers(0, len(samples), batch))
        yield batch


def plain(path, size, batch, flags):
    fd = os.open(path, os.O_RDONLY | flags)
    memory = mmap.mmap(-1, size)  # aligned, as O_DIRECT wants it
    count = os.fstat(fd).st_size // size
    try:
        while True:
            for _ in range(batch):
                if os.preadv(fd, [memory], random.randrange(count) * size) != size:
                    raise OSError("a short read")
            yield batch
    finally:
        os.close(fd)


def measure(steps, seconds):
    next(steps)  # opens what it needs
    began, cpu, done = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF), 0
    while (took := time.monotonic() - began) < seconds:
        done += next(steps)
    after = resource.getrusage(resource.RUSAGE_SELF)
    steps.close()
    spent = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    return {"samples_per_second": done / took, "own_cpu_us_per_sample": spent * 1e6 / done}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mount", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--file-mib", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    path = options.mount / f"glowfs-bench-{os.getpid()}"
    rows = []
    try:
        with open(path, "wb", buffering=0) as f:
            for _ in range(options.file_mib):
                f.write(os.urandom(1 << 20))
            os.fsync(f.fileno())
        for size in (4 << 10, 128 << 10):
            batch = max(1, min(options.batch, (64 << 20) // size))
            ways = {
                "rings": rings(path, size, batch),
                "pread, direct": plain(path, size, batch, os.O_DIRECT),
                "pread, page cache": plain(path, size, batch, 0),
            }
            for way, steps in ways.items():
                rows.append({"size": size, "way": way, "batch": batch, **measure(steps, options.seconds)})
                if not options.json:
                    r = rows[-1]
                    rate, cpu = r["samples_per_second"], r["own_cpu_us_per_sample"]
                    mib = rate * size / (1 << 20)
                    print(f"{size >> 10:>4} KiB  {way:<18} {rate:>9,.0f} samples/s  {mib:>7,.0f} MiB/s  {cpu:>7.1f} us of its own CPU each", flush=True)
    finally:
        path.unlink(missing_ok=True)
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
