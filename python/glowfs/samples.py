"""`Samples`: a data set of equal records in one file, read at random in batches through the rings.

It follows the protocol of PyTorch's map-style data sets (`__len__`, `__getitem__`, and `__getitems__` of PyTorch 2), without needing PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._glowfs import Buffer, Connection, File, Ring

if TYPE_CHECKING:
    import numpy

ENTRIES = 256
BATCH_BYTES_MAX = 1 << 30
"""A batch has at most so many bytes."""


class Samples:
    """Records of `shape` and `dtype` (NumPy's), one after the other in `path`, from byte `offset` on.

    `samples[3]` is one record, `samples[[3, 1, 4]]` a batch of them: one array, read in one go. Arrays are copies of their own unless
    `reuse` is set; then a batch is the shared memory itself, valid until the next one.

    Each process opens its own session when it first reads, so the workers of a `DataLoader` may be forked or spawned. One thread uses it at a time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shape: Sequence[int],
        dtype: Any,
        *,
        offset: int = 0,
        entries: int = ENTRIES,
        reuse: bool = False,
    ) -> None:
        import numpy

        self.path, self.shape, self.dtype = os.fspath(path), tuple(shape), numpy.dtype(dtype)
        self.sample_bytes = self.dtype.itemsize
        for n in self.shape:
            self.sample_bytes *= n
        if self.sample_bytes <= 0 or offset < 0:
            raise ValueError("a sample has at least one byte, and the first one lies at 0 or behind")
        self._offset, self._entries, self._reuse = offset, entries, reuse
        self._count = max(os.stat(self.path).st_size - offset, 0) // self.sample_bytes
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._session: tuple[Connection, Ring, File] | None = None
        self._buffer: Buffer | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_process", "_session", "_buffer"):
            state.pop(name)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> numpy.ndarray:
        if hasattr(index, "__len__"):
            return self.batch(index)
        return self.batch([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[numpy.ndarray]:
        return list(self.batch(indices))

    def batch(self, indices: Sequence[int]) -> numpy.ndarray:
        """The samples of these numbers (negative ones count from the end), as one array."""
        import numpy

        numbers = numpy.asarray(indices, dtype=numpy.int64).reshape(-1)
        numbers = numpy.where(numbers < 0, numbers + self._count, numbers)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self._count):
            raise IndexError(f"there are {self._count} samples")
        out_shape = (numbers.size, *self.shape)
        if numbers.size == 0:
            return numpy.empty(out_shape, self.dtype)
        ring, file, buffer = self._tools(numbers.size * self.sample_bytes)
        try:
            done = ring.gather(file, self._offset + numbers * self.sample_bytes, self.sample_bytes, buffer)
        except BaseException:
            # Reads may still be on their way into the buffer (Ctrl-C): the next batch gets another session.
            self._forget()
            raise
        short = [i for i, n in enumerate(done) if n != self.sample_bytes]
        if short:
            raise EOFError(f"{self.path} ends inside sample {int(numbers[short[0]])}; was it cut?")
        elements = numbers.size * self.sample_bytes // self.dtype.itemsize
        array = numpy.frombuffer(buffer, self.dtype, elements).reshape(out_shape)
        return array if self._reuse else array.copy()

    def _tools(self, size: int) -> tuple[Ring, File, Buffer]:
        if self._process != os.getpid():
            # What was inherited belongs to the parent.
            self._forget()
        if size > BATCH_BYTES_MAX:
            raise ValueError(f"a batch of {size} bytes is more than {BATCH_BYTES_MAX}")
        if self._session is None:
            connection = Connection(self.path)
            with open(self.path, "rb", buffering=0) as f:
                file = connection.register(f)
            self._session = (connection, connection.ring("read", self._entries), file)
        connection, ring, file = self._session
        if self._buffer is None or len(self._buffer) < size:
            # The former one stays as long as arrays of it are in use.
            self._buffer = connection.buffer(max(size, 1 << 16))
        return ring, file, self._buffer
