"""The rings: what they read and write, and what misuse comes to."""

import errno
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import glowfs
import numpy as np
import pytest

KIB = 1024


@pytest.fixture
def connection(mount):
    return glowfs.Connection(mount)


@pytest.fixture
def numbers(folder):
    """A file of the numbers 0 .. 2^18 as int64: 2 MiB, over several chunks."""
    path = folder / "numbers"
    np.arange(1 << 18, dtype=np.int64).tofile(path)
    return path


def registered(connection, path, flags=os.O_RDONLY):
    fd = os.open(path, flags)
    try:
        return connection.register(fd)
    finally:
        os.close(fd)


def test_which_mount(mount, connection, numbers, tmp_path):
    assert os.fspath(connection.mount_point) == str(mount)
    assert connection.device == os.stat(numbers).st_dev
    assert connection.is_alive()
    assert os.fspath(glowfs.mount_point_of(numbers)) == str(mount)
    with open(numbers, "rb") as f:
        assert glowfs.is_glowfs(f)
    with open(__file__, "rb") as f:
        assert not glowfs.is_glowfs(f)
    with pytest.raises(OSError) as e:
        glowfs.Connection(tmp_path)
    assert e.value.errno == errno.EINVAL and "not on a GlowFS mount" in str(e.value)
    with pytest.raises(FileNotFoundError):
        glowfs.Connection("/no/such/place")


def test_numpy_sees_the_shared_memory_itself(connection, numbers):
    buffer = connection.buffer(64 * KIB)
    array = np.frombuffer(buffer, dtype=np.int64)
    assert not array.any() and len(buffer) == array.nbytes == 64 * KIB
    file, ring = registered(connection, numbers), connection.ring("read")
    assert ring.transfer([(file, 8 * 1000, 80, buffer, 160)]) == [80]
    assert list(array[20:30]) == list(range(1000, 1010))
    assert array[19] == 0 and array[30] == 0
    array[0] = 7
    assert memoryview(buffer)[0] == 7, "and it can be written to"


def test_gather_reads_more_than_the_ring_has_entries(connection, numbers):
    file, ring = registered(connection, numbers), connection.ring("read", 16)
    picks = np.random.default_rng(1).integers(0, 1 << 18, 1000)
    buffer = connection.buffer(8 * 1000)
    assert ring.gather(file, picks * 8, 8, buffer) == [8] * 1000
    assert (np.frombuffer(buffer, np.int64, 1000) == picks).all()
    assert ring.gather(file, [0, 80], 16, buffer, at=8, stride=32) == [16, 16]
    assert list(np.frombuffer(buffer, np.int64)[[1, 2, 5, 6]]) == [0, 1, 10, 11]
    assert ring.outstanding == 0


def test_writes_are_seen_through_the_mount(connection, folder):
    path = folder / "written"
    path.write_bytes(b"-" * 300_000)
    file, ring = registered(connection, path, os.O_RDWR), connection.ring("write", 8)
    assert ring.kind == "write" and ring.entries == 8
    buffer = connection.buffer(256 * KIB)
    np.frombuffer(buffer, np.uint8)[:] = np.arange(256 * KIB) % 251
    done = ring.transfer([(file, i * 4096 + 5, 4096, buffer, i * 4096) for i in range(64)])
    assert done == [4096] * 64
    expected = b"-" * 5 + bytes(buffer) + b"-" * (300_000 - 5 - 256 * KIB)
    assert path.read_bytes() == expected


def test_the_end_of_a_file_and_holes(connection, folder):
    path = folder / "short"
    path.write_bytes(b"0123456789")
    buffer, ring = connection.buffer(4096), connection.ring("read")
    file = registered(connection, path)
    assert ring.transfer([(file, 8, 10, buffer, 0), (file, 10, 10, buffer, 100), (file, 99, 1, buffer, 0)]) == [2, 0, 0]
    os.truncate(path, 10 << 20)
    assert ring.transfer([(file, 5 << 20, 100, buffer, 0)]) == [100] and not any(buffer_bytes(buffer, 100))
    strict = connection.ring("read", forbid_holes=True)
    with pytest.raises(OSError) as e:
        strict.transfer([(file, 5 << 20, 100, buffer, 0)])
    assert e.value.errno == errno.ENODATA


def buffer_bytes(buffer, n):
    with memoryview(buffer) as view:
        return bytes(view[:n])


def test_prepare_submit_wait_with_tags(connection, numbers):
    file, ring, buffer = registered(connection, numbers), connection.ring("read", 4), connection.buffer(4096)
    tags = [("any", "thing"), 2, None, object()]
    for i, tag in enumerate(tags):
        ring.prepare(file, i * 80, 80, buffer, i * 80, tag)
    with pytest.raises(BlockingIOError):
        ring.prepare(file, 0, 8, buffer)
    assert ring.outstanding == 4
    assert ring.wait(1, timeout=0.05) == [], "nothing was submitted"
    ring.submit()
    done = ring.wait(4)
    assert {id(c.tag) for c in done} == {id(t) for t in tags}
    assert all(c.result == 80 and c.error is None for c in done)
    with pytest.raises(RuntimeError, match="never"):
        ring.wait(1)


def test_errors_have_their_numbers(connection, folder, numbers):
    ring, buffer = connection.ring("read"), connection.buffer(4096)
    for_writing = registered(connection, numbers, os.O_WRONLY)
    good = registered(connection, numbers)
    with pytest.raises(OSError, match="operation 1 of 2") as e:
        ring.transfer([(good, 0, 8, buffer, 0), (for_writing, 0, 8, buffer, 0)])
    assert e.value.errno == errno.EBADF
    requests = [(for_writing, 0, 8, buffer, 0), (good, 8, 8, buffer, 0)]
    assert ring.transfer(requests, errors="return") == [-errno.EBADF, 8]
    ring.prepare(for_writing, 0, 8, buffer)
    ring.submit()
    (c,) = ring.wait()
    assert c.result == -errno.EBADF and isinstance(c.error, OSError) and c.error.errno == errno.EBADF
    with pytest.raises(OSError) as e:
        connection.register(os.pipe()[0])
    assert e.value.errno == errno.ENOTTY
    with pytest.raises(OSError) as e:
        connection.register(-1)
    assert e.value.errno == errno.EBADF
    with pytest.raises(OSError) as e:
        connection.buffer(1 << 50)
    assert e.value.errno == errno.ENOMEM
    with pytest.raises(FileNotFoundError):
        connection.find(uuid.uuid4().bytes)


def test_wrong_arguments_begin_nothing(connection, numbers):
    ring, buffer, file = connection.ring("read", 4), connection.buffer(4096), registered(connection, numbers)
    wrong = [
        [(file, 0, 8, buffer, 0), (file, 0, 4097, buffer, 0)],
        [(file, 0, 8, buffer, 4090)],
        [(file, 0, 8, buffer, 2**63)],
        [(file, 2**63, 8, buffer, 0)],
    ]
    for requests in wrong:
        with pytest.raises(ValueError):
            ring.transfer(requests)
    for offsets in ([-1], np.array([-1]), [2**70]):
        with pytest.raises((ValueError, OverflowError)):
            ring.gather(file, offsets, 8, buffer)
    with pytest.raises(ValueError):
        ring.transfer([], errors="ignore")
    with pytest.raises(ValueError):
        ring.gather(file, [0, 8], 8, buffer, stride=2**63)
    assert ring.outstanding == 0 and ring.transfer([]) == []
    for options in ({"kind": "both"}, {"kind": "read", "entries": 0}, {"kind": "read", "entries": 2, "depth": 3}, {"kind": "read", "timeout": -1}):
        with pytest.raises(ValueError):
            connection.ring(**options)
    other = glowfs.Connection(connection.mount_point)
    with pytest.raises(ValueError, match="different"):
        ring.transfer([(file, 0, 8, other.buffer(4096), 0)])
    # The first one of a batch is not begun, nor prepared for the next call.
    with pytest.raises(ValueError, match="different"):
        ring.transfer([(file, 0, 8, buffer, 0), (file, 8, 8, other.buffer(4096), 0)])
    assert ring.outstanding == 0


def test_depth(connection, numbers):
    file, buffer = registered(connection, numbers), connection.buffer(4096)
    exactly = connection.ring("read", 16, depth=4)
    assert exactly.transfer([(file, 0, 8, buffer, 0)] * 8) == [8] * 8
    with pytest.raises(ValueError, match="for ever"):
        exactly.transfer([(file, 0, 8, buffer, 0)] * 6)
    patient = connection.ring("read", 16, depth=4, timeout=0.15, priority=-1)
    began = time.monotonic()
    assert patient.transfer([(file, 0, 8, buffer, 0)] * 6) == [8] * 6
    assert time.monotonic() - began >= 0.14
    assert connection.ring("read", 16, depth=-2).transfer([(file, 0, 8, buffer, 0)] * 9) == [8] * 9


def test_a_timeout_leaves_the_ring_usable(connection, numbers):
    file, buffer = registered(connection, numbers), connection.buffer(4096)
    ring = connection.ring("read", 4, depth=2, timeout=0.3)
    with pytest.raises(TimeoutError):
        ring.transfer([(file, 0, 8, buffer, 0)], timeout=0.05)
    assert ring.outstanding == 1
    assert ring.transfer([(file, 8, 8, buffer, 8)]) == [8]
    assert ring.outstanding == 0 and ring.wait(0) == []


def test_memory_in_use_is_not_unmapped(connection, numbers):
    buffer = connection.buffer(4096)
    view = memoryview(buffer)
    with pytest.raises(BufferError, match="views"):
        buffer.close()
    view.release()
    ring = connection.ring("read", 4, depth=2)
    file = registered(connection, numbers)
    ring.prepare(file, 0, 8, buffer)
    with pytest.raises(BufferError, match="operations"):
        buffer.close()
    ring.prepare(file, 0, 8, buffer)
    ring.submit()
    assert len(ring.wait(2)) == 2
    buffer.close()
    assert buffer.closed and len(buffer) == 0
    for use in (lambda: memoryview(buffer), lambda: ring.transfer([(file, 0, 0, buffer, 0)])):
        with pytest.raises(ValueError, match="closed"):
            use()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        ring.transfer([(file, 0, 8, connection.buffer(8), 0)])
    ring.close()
    ring.close()
    with pytest.raises(ValueError, match="closed"):
        ring.transfer([])


def test_a_view_keeps_its_memory(connection, numbers):
    file, ring, buffer = registered(connection, numbers), connection.ring("read"), connection.buffer(8000)
    ring.gather(file, range(0, 8000, 8), 8, buffer)
    array = np.frombuffer(buffer, np.int64)
    del file, ring, buffer
    connection = None  # noqa: F841
    gc.collect()
    assert (array == np.arange(1000)).all()
    array[:] = 1


def test_everything_dropped_in_the_middle(connection, numbers):
    for _ in range(20):
        ring, buffer = connection.ring("read", 64), connection.buffer(1 << 20)
        file = registered(connection, numbers)
        for i in range(16):
            ring.prepare(file, i, 65536, buffer, i * 65536)
        ring.submit()
        del ring, buffer, file
    assert connection.is_alive()


def test_the_interpreter_is_free_while_waiting(connection, numbers):
    file, buffer = registered(connection, numbers), connection.buffer(4096)
    ring = connection.ring("read", 4, depth=2, timeout=0.4)
    counted, done = 0, threading.Event()

    def transfer():
        ring.transfer([(file, 0, 8, buffer, 0)])
        done.set()

    thread = threading.Thread(target=transfer)
    thread.start()
    time.sleep(0.1)
    with pytest.raises(RuntimeError):
        ring.submit()  # one thread at a time
    while not done.is_set():
        counted += 1
        time.sleep(0.001)
    thread.join()
    assert counted > 20


def test_signals_are_heard_while_waiting(connection, numbers):
    file, buffer = registered(connection, numbers), connection.buffer(4096)
    ring = connection.ring("read", 4, depth=2)
    ring.prepare(file, 0, 8, buffer)
    ring.submit()  # waits for a second one for ever

    class Heard(Exception):
        pass

    def hear(*_):
        raise Heard

    before = signal.signal(signal.SIGALRM, hear)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Heard):
            ring.wait(1)
    finally:
        signal.signal(signal.SIGALRM, before)
    ring.prepare(file, 0, 8, buffer)
    ring.submit()
    assert len(ring.wait(2)) == 2


def test_named_memory_is_found_by_another_process(mount, connection):
    buffer, name = connection.buffer(4096), uuid.uuid4().bytes
    connection.name(buffer, name)
    program = "import glowfs, sys; b = glowfs.Connection(sys.argv[1]).find(bytes.fromhex(sys.argv[2])); memoryview(b)[:5] = b'hello'"
    subprocess.run([sys.executable, "-P", "-c", program, str(mount), name.hex()], check=True, timeout=60)
    assert buffer_bytes(buffer, 5) == b"hello"


def _in_child(tools, mount, path, results):
    connection, ring, file, buffer = tools
    for use in (connection.is_alive, lambda: ring.transfer([(file, 0, 8, buffer, 0)]), lambda: connection.buffer(4096)):
        try:
            use()
            results.put("it was let through")
            return
        except RuntimeError:
            pass
    del connection, ring, file, buffer, tools
    gc.collect()
    own = glowfs.Connection(mount)
    mine = own.buffer(4096)
    own.ring("read").gather(registered(own, path), [8 * 41, 8 * 42], 8, mine)
    results.put(np.frombuffer(mine, np.int64, 2).tolist())


def test_a_forked_child_cannot_harm_its_parent(mount, connection, numbers):
    ring, file, buffer = connection.ring("read"), registered(connection, numbers), connection.buffer(4096)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    tools = (connection, ring, file, buffer)
    child = context.Process(target=_in_child, args=(tools, mount, numbers, results))
    child.start()
    assert results.get(timeout=60) == [41, 42]
    child.join()
    assert child.exitcode == 0
    assert ring.transfer([(file, 80, 8, buffer, 0)]) == [8]
    assert np.frombuffer(buffer, np.int64, 1)[0] == 10


def test_batch_reader(mount, folder):
    contents = {str(folder / f"f{i}"): bytes([i]) * (700_000 * i + 1) for i in range(4)}
    for path, data in contents.items():
        with open(path, "wb") as f:
            f.write(data)
    reader = glowfs.BatchReader(mount, buffer_bytes=1 << 20)
    missing = str(folder / "missing")
    ranges = [(path, 0, len(data) + 10) for path, data in contents.items()] + [(missing, 0, 5)]
    *got, error = reader.read(ranges)
    assert got == list(contents.values())
    assert isinstance(error, FileNotFoundError)
    assert reader.read_one(str(folder / "f1"), 1, 3) == b"\1\1\1"
    with pytest.raises(FileNotFoundError):
        reader.read_one(missing, 0, 1)
    assert reader.read([]) == []
    reader.close()
    assert reader.read_one(str(folder / "f1"), 0, 0) == b""
