"""`BatchReader` where the mount does what it seldom does: with a stand-in for the session, so no mount is needed."""

import errno
import os

import glowfs.batch
import glowfs.fs
import pytest
from glowfs.batch import FILES_OPEN, PIECE_BYTES, BatchReader


class StandIn:
    """A mount. `before_read` is called before each piece is read; `most_open` files can be open at a time; while it is `away`, nobody
    connects."""

    def __init__(self, mount_point):
        self.mount_point = mount_point
        self.sessions = []
        self.away = False
        self.before_read = lambda: None
        self.reads = 0
        self.open = self.opened = 0
        self.most_open = 1 << 16

    def connect(self, path):
        if self.away:
            raise OSError(errno.EINVAL, "not on a GlowFS mount")
        self.sessions.append(StandInSession(self))
        return self.sessions[-1]


class StandInFile:
    def __init__(self, mount, fd):
        if mount.open == mount.most_open:
            raise OSError(errno.EMFILE, "too many")
        self.mount, self.fd = mount, os.dup(fd)
        mount.open += 1
        mount.opened += 1

    def close(self):
        os.close(self.fd)
        self.mount.open -= 1


class StandInSession:
    """What `BatchReader` uses of a connection and its ring."""

    def __init__(self, mount):
        self.mount = mount
        self.mount_point = mount.mount_point
        self.device = os.stat(self.mount_point).st_dev
        self.alive = True

    def is_alive(self):
        return self.alive

    def buffer(self, size):
        return bytearray(size)

    def ring(self, kind, entries):
        return self

    def register(self, fd):
        if not self.alive:
            raise OSError(errno.ENOTCONN, "the mount has ended")
        if self.device != os.fstat(fd).st_dev:
            raise OSError(errno.EACCES, "a file of another mount")
        return StandInFile(self.mount, fd)

    def transfer(self, requests, errors):
        return [self._one(*request) for request in requests]

    def _one(self, file, offset, length, buffer, at):
        self.mount.before_read()
        self.mount.reads += 1
        got = os.pread(file.fd, length, offset)
        buffer[at : at + len(got)] = got
        return len(got)


@pytest.fixture
def mounted(monkeypatch, tmp_path):
    mounted = StandIn(tmp_path)
    monkeypatch.setattr(glowfs.batch, "Connection", mounted.connect)
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


@pytest.fixture
def many(tmp_path):
    """Ranges of files of one number each, in two rounds, among them one that is not there."""
    count = 3 * FILES_OPEN + 5
    for i in range(count):
        (tmp_path / str(i)).write_text(f"{i:06}")
    names = [*range(count), "missing"]
    return [(str(tmp_path / str(name)), start, 3) for start in (0, 3) for name in names]


def check_many(got):
    half = len(got) // 2
    assert isinstance(got[half - 1], FileNotFoundError) and isinstance(got[-1], FileNotFoundError)
    for i in range(half - 1):
        assert (got[i] + got[half + i]).decode() == f"{i:06}"


@pytest.mark.parametrize("most_open", [1, 2, 100, FILES_OPEN])
def test_more_files_than_can_be_open(mounted, tmp_path, many, most_open):
    mounted.most_open = most_open
    check_many(BatchReader(tmp_path).read(many))
    assert mounted.open == 0
    assert mounted.opened == len(many) // 2 - 1, "each is opened once"


def test_without_any_descriptor_it_is_an_error(mounted, tmp_path, many):
    mounted.most_open = 0
    got = BatchReader(tmp_path).read(many[:3])
    assert [e.errno for e in got] == [errno.EMFILE] * 3


def end(session):
    session.alive = False


def mount_another(session):
    session.device += 1


@pytest.mark.parametrize("happens", [end, mount_another])
def test_a_mount_that_was_made_again(mounted, tmp_path, happens):
    path = tmp_path / "f"
    path.write_bytes(b"0123")
    reader = BatchReader(tmp_path)
    for _ in range(3):
        assert reader.read_one(str(path), 1, 2) == b"12"
    assert len(mounted.sessions) == 1, "one session as long as it is good"
    happens(mounted.sessions[0])
    assert reader.read_one(str(path), 1, 2) == b"12"
    assert len(mounted.sessions) == 2


def test_the_rings_come_back_with_the_mount(mounted, tmp_path):
    (tmp_path / "f").write_bytes(b"0123")
    fs = glowfs.fs.GlowFileSystem(mount=str(tmp_path), skip_instance_cache=True)
    for away, through_the_rings in ((False, 1), (True, 1), (False, 2)):
        mounted.away = away
        if away:
            end(mounted.sessions[0])
        assert fs.cat_ranges(["/f"], 1, 3) == [b"12"]
        assert mounted.reads == through_the_rings
