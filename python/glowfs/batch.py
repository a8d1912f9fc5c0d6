"""`BatchReader`: many ranges of many files, read at once through a ring."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence

from ._glowfs import Buffer, Connection, File, Ring

ENTRIES = 256
"""Operations that are on their way at once."""
BUFFER_BYTES = 16 << 20
"""Shared memory of a reader; what is more is read in several batches."""
PIECE_BYTES = 1 << 20
"""Longer ranges are read in pieces of so many bytes, side by side."""

Range = tuple[str, int, int]
"""Path, offset and length."""


class BatchReader:
    """Reads ranges of files of one mount. Any thread may use it, one batch goes at a time; a forked child opens its own session.

    `path` is any path on the mount. Nothing is opened before the first batch, and it can be pickled.
    """

    def __init__(self, path: str | os.PathLike[str], *, entries: int = ENTRIES, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._path, self._entries, self._buffer_bytes = os.fspath(path), entries, max(buffer_bytes, 4096)
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._ring: Ring | None = None
        self._buffer: Buffer | None = None

    def __getstate__(self) -> tuple[str, int, int]:
        return self._path, self._entries, self._buffer_bytes

    def __setstate__(self, state: tuple[str, int, int]) -> None:
        self._path, self._entries, self._buffer_bytes = state
        self._forget()

    def _tools(self) -> tuple[Connection, Ring, Buffer]:
        if self._connection is None or self._ring is None or self._buffer is None:
            connection = Connection(self._path)
            self._buffer = connection.buffer(self._buffer_bytes)
            self._ring = connection.ring("read", self._entries)
            self._connection = connection
        return self._connection, self._ring, self._buffer

    def _begin(self) -> None:
        if self._process != os.getpid():
            # What was inherited belongs to the parent; the lock may have been held by one of its threads.
            self._forget()

    def open(self) -> None:
        """Opens the session now; OSError if the mount has no rings for us."""
        self._begin()
        with self._lock:
            self._tools()

    def close(self) -> None:
        """Ends the session; the next batch opens another one."""
        self._begin()
        with self._lock:
            if self._ring is not None:
                self._ring.close()
            self._connection = self._ring = self._buffer = None

    def read(self, ranges: Sequence[Range]) -> list[bytes | OSError]:
        """The bytes of each range (fewer at the end of a file), or the error of it."""
        self._begin()
        with self._lock:
            connection, ring, buffer = self._tools()
            files, failed = _open_all(connection, (path for path, _, _ in ranges))
            try:
                try:
                    return _read_all(ring, buffer, files, failed, ranges)
                except BaseException:
                    # Operations may still be on their way into the buffer (Ctrl-C): the next batch gets another one.
                    self._connection = self._ring = self._buffer = None
                    raise
            finally:
                for file in files.values():
                    file.close()

    def read_one(self, path: str, offset: int, length: int) -> bytes:
        """The bytes of one range."""
        (got,) = self.read([(path, offset, length)])
        if isinstance(got, OSError):
            raise got
        return got


def _open_all(connection: Connection, paths: Iterable[str]) -> tuple[dict[str, File], dict[str, OSError]]:
    files: dict[str, File] = {}
    failed: dict[str, OSError] = {}
    for path in dict.fromkeys(paths):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                files[path] = connection.register(fd)
            finally:
                os.close(fd)
        except OSError as e:
            failed[path] = e
    return files, failed


def _read_all(
    ring: Ring, buffer: Buffer, files: dict[str, File], failed: dict[str, OSError], ranges: Sequence[Range]
) -> list[bytes | OSError]:
    parts: list[list[bytes]] = [[] for _ in ranges]
    errors: dict[int, OSError] = {}
    batch: list[tuple[int, tuple[File, int, int, Buffer, int]]] = []
    used = 0
    piece_bytes = min(PIECE_BYTES, len(buffer))

    def flush() -> None:
        nonlocal used
        done = ring.transfer([request for _, request in batch], errors="return")
        with memoryview(buffer) as memory:
            for (index, (_, _, _, _, at)), n in zip(batch, done):
                if n < 0:
                    errors.setdefault(index, OSError(-n, os.strerror(-n), ranges[index][0]))
                else:
                    parts[index].append(bytes(memory[at : at + n]))
        batch.clear()
        used = 0

    for index, (path, offset, length) in enumerate(ranges):
        if path in failed:
            errors[index] = failed[path]
            continue
        end = offset + length
        while offset < end:
            n = min(end - offset, piece_bytes)
            if used + n > len(buffer):
                flush()
            batch.append((index, (files[path], offset, n, buffer, used)))
            used += n
            offset += n
    if batch:
        flush()
    return [errors[i] if i in errors else p[0] if len(p) == 1 else b"".join(p) for i, p in enumerate(parts)]
