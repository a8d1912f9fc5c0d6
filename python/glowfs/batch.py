"""`BatchReader`: many ranges of many files, read at once through a ring."""

from __future__ import annotations

import errno
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

FILES_OPEN = 128
"""Files that a batch has open at once; it reads the others after them."""
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

Range = tuple[str, int, int]
"""Path, offset and length."""
_Tools = tuple[Connection, Ring, Buffer]


class BatchReader:
    """Reads ranges of files of one mount. Any thread may use it, one batch goes at a time; a forked child opens its own session.

    `path` is any path on the mount. Nothing is opened before the first batch, and it can be pickled. When the mount was ended and made
    again, the next batch opens another session.
    """

    def __init__(self, path: str | os.PathLike[str], *, entries: int = ENTRIES, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._path, self._entries, self._buffer_bytes = os.fspath(path), entries, max(buffer_bytes, 4096)
        self._forget()

    def _forget(self) -> None:
        # The process last: a second thread that finds it must find the new lock, too.
        self._lock = threading.Lock()
        self._drop()
        self._process = os.getpid()

    def _drop(self) -> None:
        self._connection: Connection | None = None
        self._ring: Ring | None = None
        self._buffer: Buffer | None = None

    def __getstate__(self) -> tuple[str, int, int]:
        return self._path, self._entries, self._buffer_bytes

    def __setstate__(self, state: tuple[str, int, int]) -> None:
        self._path, self._entries, self._buffer_bytes = state
        self._forget()

    def _tools(self) -> _Tools:
        if self._connection is not None and not _is_current(self._connection):
            self._drop()
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
            self._drop()

    def read(self, ranges: Sequence[Range]) -> list[bytes | OSError]:
        """The bytes of each range (fewer at the end of a file), or the error of it."""
        self._begin()
        with self._lock:
            tools = self._tools()
            reads = [_Read(*one) for one in ranges]
            by_path: dict[str, list[_Read]] = {}
            for read in reads:
                by_path.setdefault(read.path, []).append(read)
            paths, done = list(by_path), 0
            while done < len(paths):
                done += self._read_some(tools, paths[done : done + FILES_OPEN], by_path)
            return [read.result() for read in reads]

    def _read_some(self, tools: _Tools, paths: Sequence[str], by_path: dict[str, list[_Read]]) -> int:
        """Reads what is wanted of the first of these files, as many as can be open at once; how many that were."""
        connection, ring, buffer = tools
        files, failed = _open_some(connection, paths)
        try:
            for path, error in failed.items():
                for read in by_path[path]:
                    read.error = error
            _read_all(ring, buffer, files, (read for path in files for read in by_path[path]))
        except BaseException:
            # Operations may still be on their way into the buffer (Ctrl-C): the next batch gets another one.
            self._drop()
            raise
        finally:
            for file in files.values():
                file.close()
        return len(files) + len(failed)

    def read_one(self, path: str, offset: int, length: int) -> bytes:
        """The bytes of one range."""
        (got,) = self.read([(path, offset, length)])
        if isinstance(got, OSError):
            raise got
        return got


def _is_current(connection: Connection) -> bool:
    """Whether the session's daemon serves still, and no other mount has taken its place."""
    try:
        return connection.is_alive() and connection.device == os.stat(connection.mount_point).st_dev
    except OSError:
        return False


def _open_some(connection: Connection, paths: Iterable[str]) -> tuple[dict[str, File], dict[str, OSError]]:
    """Opens these files up to the first that finds no descriptor left: that one's turn comes when the others are closed."""
    files: dict[str, File] = {}
    failed: dict[str, OSError] = {}
    for path in paths:
        try:
            files[path] = _open(connection, path)
        except OSError as e:
            if files and e.errno in OUT_OF_DESCRIPTORS:
                break
            failed[path] = e
    return files, failed


def _open(connection: Connection, path: str) -> File:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return connection.register(fd)
    finally:
        os.close(fd)


class _Read:
    """A range, and what was read of it."""

    def __init__(self, path: str, offset: int, length: int) -> None:
        self.path, self.offset, self.end = path, offset, offset + length
        self.parts: list[bytes] = []
        self.error: OSError | None = None
        self.ended = False

    def take(self, n: int, piece: memoryview) -> None:
        """What became of the next piece: `n` bytes of it were read, or `n` is a negated errno.

        A short piece is where the file ended, and the range ends there too. The file may have grown before a later piece was read; its
        bytes are not the next ones.
        """
        if n < 0:
            self.error = self.error or OSError(-n, os.strerror(-n), self.path)
        elif not self.ended:
            self.parts.append(bytes(piece[:n]))
        self.ended = self.ended or n < len(piece)

    def result(self) -> bytes | OSError:
        if self.error is not None:
            return self.error
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


_Request = tuple[File, int, int, Buffer, int]


def _read_all(ring: Ring, buffer: Buffer, files: dict[str, File], reads: Iterable[_Read]) -> None:
    batch: list[tuple[_Read, _Request]] = []
    used = 0
    piece_bytes = min(PIECE_BYTES, len(buffer))
    for read in reads:
        while read.offset < read.end and not read.ended:
            n = min(read.end - read.offset, piece_bytes)
            if used + n > len(buffer):
                _transfer(ring, buffer, batch)
                batch, used = [], 0
                continue  # the range may have ended with that
            batch.append((read, (files[read.path], read.offset, n, buffer, used)))
            used += n
            read.offset += n
    _transfer(ring, buffer, batch)


def _transfer(ring: Ring, buffer: Buffer, batch: list[tuple[_Read, _Request]]) -> None:
    if not batch:
        return
    done = ring.transfer([request for _, request in batch], errors="return")
    with memoryview(buffer) as memory:
        for (read, (_, _, length, _, at)), n in zip(batch, done):
            with memory[at : at + length] as piece:
                read.take(n, piece)
