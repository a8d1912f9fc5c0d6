"""The compiled part: user-space rings of a GlowFS mount."""

import os
from typing_extensions import Buffer as ReadableBuffer
from collections.abc import Sequence
from typing import Any, Literal, Protocol, Self, final

class _HasFileno(Protocol):
    def fileno(self) -> int: ...

_Descriptor = int | _HasFileno
_Errors = Literal["raise", "return"]

@final
class Connection:
    """A session with the daemon of the mount that `path` is on.

    It belongs to the process that made it: after a fork, the child makes one of its own (anything else raises RuntimeError there).
    """

    def __new__(cls, path: str | os.PathLike[str]) -> Self: ...
    @property
    def mount_point(self) -> os.PathLike[str]: ...
    @property
    def device(self) -> int: ...
    def is_alive(self) -> bool: ...
    def buffer(self, size: int) -> Buffer: ...
    def name(self, buffer: Buffer, name: bytes) -> None: ...
    def find(self, name: bytes) -> Buffer: ...
    def register(self, file: _Descriptor) -> File: ...
    def ring(
        self,
        kind: Literal["read", "write"],
        entries: int = 128,
        *,
        depth: int = 0,
        priority: int = 0,
        timeout: float = 0.0,
        forbid_holes: bool = False,
    ) -> Ring: ...

@final
class Buffer:
    """Memory shared with the mount daemon, with the buffer protocol: `memoryview(buffer)`, `numpy.frombuffer(buffer, ...)`.

    It stays mapped as long as a view, an operation on its way or this object uses it. Do not look at bytes of a read, nor
    change those of a write, before its completion.
    """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Gives the memory back. BufferError while a view of it exists or an operation uses it."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *why: object) -> None: ...

@final
class File:
    """A file that rings may use, with the rights it was open with."""

    def fileno(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *why: object) -> None: ...

@final
class Completion:
    """What became of one operation that was prepared."""

    @property
    def tag(self) -> Any: ...
    @property
    def result(self) -> int:
        """Bytes done, or a negated errno."""
    @property
    def error(self) -> OSError | None: ...

_Request = tuple[File, int, int, Buffer, int]

@final
class Ring:
    """A ring of reads or of writes. One thread uses it at a time (another one gets RuntimeError).

    `depth` N > 0: exactly N at a time, fewer wait for at most `timeout` seconds (0: for ever); 0: as soon as possible; N < 0: at most -N at a
    time. `priority` below 0: before others. `forbid_holes`: a read ends before a hole, and one that begins in it fails with ENODATA.
    """

    def transfer(
        self, requests: Sequence[_Request], *, timeout: float | None = None, errors: _Errors = "raise"
    ) -> list[int]:
        """Carries out a batch of `(file, offset, length, buffer, at)`; returns the bytes done of each."""
    def gather(
        self,
        file: File,
        offsets: Sequence[int] | ReadableBuffer,
        size: int,
        buffer: Buffer,
        at: int = 0,
        *,
        stride: int | None = None,
        timeout: float | None = None,
        errors: _Errors = "raise",
    ) -> list[int]:
        """Equal pieces of one file, side by side in the buffer. On a ring of writes they go the other way."""
    def prepare(
        self, file: File, offset: int, length: int, buffer: Buffer, at: int = 0, tag: object = None
    ) -> None: ...
    def submit(self) -> None: ...
    def wait(self, least: int = 1, timeout: float | None = None) -> list[Completion]: ...
    @property
    def outstanding(self) -> int: ...
    @property
    def entries(self) -> int: ...
    @property
    def kind(self) -> Literal["read", "write"]: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *why: object) -> None: ...

def is_glowfs(file: _Descriptor) -> bool:
    """Whether a descriptor (or what has `fileno()`) is of a GlowFS mount."""

def mount_point_of(path: str | os.PathLike[str]) -> os.PathLike[str]:
    """Where the file system that `path` is on is mounted; OSError if that is not GlowFS."""
