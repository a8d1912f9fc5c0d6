"""`BatchReader` where the mount does what it seldom does: with a stand-in for the session, so no mount is needed."""

import os

import glowfs.batch
import pytest
from glowfs.batch import PIECE_BYTES, BatchReader


class StandIn:
    """A mount. `before_read` is called before each piece is read."""

    def __init__(self):
        self.before_read = lambda: None
        self.reads = 0


class StandInFile:
    def __init__(self, fd):
        self.fd = os.dup(fd)

    def close(self):
        os.close(self.fd)


class StandInSession:
    """What `BatchReader` uses of a connection and its ring."""

    def __init__(self, mount):
        self.mount = mount

    def buffer(self, size):
        return bytearray(size)

    def ring(self, kind, entries):
        return self

    def register(self, fd):
        return StandInFile(fd)

    def transfer(self, requests, errors):
        return [self._one(*request) for request in requests]

    def _one(self, file, offset, length, buffer, at):
        self.mount.before_read()
        self.mount.reads += 1
        got = os.pread(file.fd, length, offset)
        buffer[at : at + len(got)] = got
        return len(got)


@pytest.fixture
def mounted(monkeypatch):
    mounted = StandIn()
    monkeypatch.setattr(glowfs.batch, "Connection", lambda path: StandInSession(mounted))
    return mounted


@pytest.mark.parametrize("pieces_in_batch", [1, 2, 8])
def test_a_file_that_grows_has_no_gap(mounted, tmp_path, pieces_in_batch):
    path = tmp_path / "f"
    data = os.urandom(PIECE_BYTES * 5)
    path.write_bytes(data[: PIECE_BYTES + 7])

    def grow():
        if mounted.reads == 2:
            path.write_bytes(data)

    mounted.before_read = grow
    reader = BatchReader(tmp_path, buffer_bytes=PIECE_BYTES * pieces_in_batch)
    assert reader.read_one(str(path), 0, len(data)) == data[: PIECE_BYTES + 7], "what was there when its end was read"
    assert reader.read_one(str(path), 0, len(data)) == data


def test_nothing_is_read_far_behind_the_end(mounted, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"short")
    reader = BatchReader(tmp_path, buffer_bytes=PIECE_BYTES)
    assert reader.read_one(str(path), 0, PIECE_BYTES * 1000) == b"short"
    assert mounted.reads == 1
