"""The fsspec file system: fsspec's own abstract tests, and what is ours."""

import io
import os
import pickle
import posixpath
import resource
import shutil

import fsspec
import glowfs.fs
import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)


class Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, mount):
        return fsspec.filesystem("glowfs", mount=str(mount), auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, folder):
        return "/" + folder.name

    @pytest.fixture
    def fs_join(self):
        return posixpath.join


class TestCopy(Fixtures, AbstractCopyTests):
    pass


class TestGet(Fixtures, AbstractGetTests):
    pass


class TestPut(Fixtures, AbstractPutTests):
    pass


class TestOpen(Fixtures, AbstractOpenTests):
    pass


class TestPipe(Fixtures, AbstractPipeTests):
    pass


@pytest.fixture(params=[True, False], ids=["rings", "plain"])
def fs(mount, request):
    return fsspec.filesystem("glowfs", mount=str(mount), rings=request.param)


def test_urls(mount, folder, monkeypatch):
    monkeypatch.setenv("GLOWFS_MOUNT", str(mount))
    url = f"glowfs://{folder.name}/a.txt"
    with fsspec.open(url, "w") as f:
        f.write("hello")
    assert (folder / "a.txt").read_text() == "hello"
    fs, path = fsspec.url_to_fs(url)
    assert isinstance(fs, glowfs.fs.GlowFileSystem) and path == f"/{folder.name}/a.txt"
    assert fs.unstrip_protocol(path) == f"glowfs:///{folder.name}/a.txt"
    assert fs.cat(f"glowfs:///{folder.name}/a.txt") == b"hello"
    assert fs.cat(f"{folder.name}/../../../../{folder.name}/./a.txt") == b"hello", "nothing leads out"
    assert pickle.loads(pickle.dumps(fs)).cat(path) == b"hello"


def test_the_one_mount_is_found(mount, monkeypatch):
    monkeypatch.delenv("GLOWFS_MOUNT", raising=False)
    try:
        assert os.path.ismount(glowfs.fs.the_mount())
    except ValueError as e:
        assert str(mount) in str(e), "with several, they are named"


def mountinfo(point, kind="fuse.glowfs"):
    return b"30 1 0:61 / " + point + b" rw,nosuid shared:7 - " + kind.encode() + b" glowfs rw,user_id=0\n"


@pytest.mark.parametrize(
    "written, point",
    [
        (b"/mnt/glow", "/mnt/glow"),
        ("/mnt/данные".encode(), "/mnt/данные"),
        ("/mnt/größe".encode(), "/mnt/größe"),
        (rb"/mnt/a\040b\011c\134x", "/mnt/a b\tc\\x"),
        (rb"/mnt/\134040", r"/mnt/\040"),
        (rb"/mnt/\x41\n", r"/mnt/\x41\n"),
        (b"/mnt/\xff\r", "/mnt/\udcff\r"),
    ],
)
def test_mount_points_of_all_letters(written, point):
    text = mountinfo(b"/", "ext4") + mountinfo(written) + mountinfo("/данные".encode(), "fuse.other") + mountinfo(written)
    assert glowfs.fs._mount_points(io.BytesIO(text)) == [point]


def test_many_ranges(fs, folder):
    data = {}
    for i in range(5):
        data[f"/{folder.name}/f{i}"] = os.urandom(300_000 + 1_300_000 * i)
        (folder / f"f{i}").write_bytes(data[f"/{folder.name}/f{i}"])
    names = list(data) * 200
    starts = [(i * 7919) % 290_000 for i in range(len(names))]
    ends = [s + i % 9000 for i, s in enumerate(starts)]
    got = fs.cat_ranges(names, starts, ends, on_error="raise")
    assert got == [data[n][s:e] for n, s, e in zip(names, starts, ends)]
    # Python's own slices: negative, none, behind the end.
    slices = [(None, None), (-5, None), (10, -10), (299_999, 10**9), (10**9, None), (7, 3), (0, 0), (-(10**9), 4)]
    name = f"/{folder.name}/f4"
    got = fs.cat_ranges([name] * len(slices), [s for s, _ in slices], [e for _, e in slices])
    assert got == [data[name][s:e] for s, e in slices]
    assert [fs.cat_file(name, s, e) for s, e in slices] == got
    assert fs.cat(list(data)) == data
    assert fs.cat(f"/{folder.name}", recursive=True) == data


def test_more_files_than_descriptors(fs, folder):
    data = {f"/{folder.name}/f{i}": b"%d" % i for i in range(300)}
    for i in range(300):
        (folder / f"f{i}").write_bytes(b"%d" % i)
    fs.cat_ranges(list(data)[:1], 0, 1, on_error="raise")  # the session is open
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    try:
        assert fs.cat(list(data)) == data
        assert fs.cat(list(data), on_error="omit") == data, "none is left out"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_errors_of_ranges(fs, folder):
    (folder / "there").write_bytes(b"0123456789")
    names = [f"/{folder.name}/{n}" for n in ("there", "missing", "")]
    good, missing, directory = fs.cat_ranges(names, 2, 5)
    assert good == b"234" and isinstance(missing, FileNotFoundError) and isinstance(directory, IsADirectoryError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(names[:2], 0, None, on_error="raise")
    with pytest.raises(FileNotFoundError):
        fs.cat(names[:2])
    assert fs.cat(names[:2], on_error="omit") == {names[0]: b"0123456789"}
    with pytest.raises(ValueError):
        fs.cat_ranges(names, [1], 5)


def test_without_a_mount(tmp_path):
    (tmp_path / "f").write_bytes(b"0123456789")
    plain = glowfs.fs.GlowFileSystem(mount=str(tmp_path), skip_instance_cache=True)
    assert plain.cat_ranges(["/f"] * 2, [0, 5], [2, 7]) == [b"01", b"56"], "no rings: plain reads"
    with pytest.raises(OSError, match="not on a GlowFS mount"):
        glowfs.fs.GlowFileSystem(mount=str(tmp_path), rings=True, skip_instance_cache=True).cat_ranges(["/f"], 0, 1)


def test_names_and_attributes(fs, folder):
    base = f"/{folder.name}"
    fs.mkdir(f"{base}/d/e")
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{base}/d/e")
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{base}/x/y", create_parents=False)
    fs.pipe(f"{base}/d/file", b"12345")
    fs.link(f"{base}/d/file", f"{base}/d/hard")
    fs.symlink("file", f"{base}/d/soft")
    info = fs.info(f"{base}/d/soft")
    assert info["islink"] and info["destination"] == "file" and info["size"] == 5 and info["type"] == "file"
    assert fs.info(f"{base}/d/file")["nlink"] == 2
    assert fs.ls(f"{base}/d", detail=False) == [f"{base}/d/{n}" for n in ("e", "file", "hard", "soft")]
    assert fs.find(base) == [f"{base}/d/{n}" for n in ("file", "hard", "soft")]
    assert fs.glob(f"{base}/d/*a*") == [f"{base}/d/hard"] and fs.du(f"{base}/d/file") == 5
    before = fs.modified(f"{base}/d/file")
    fs.touch(f"{base}/d/file", truncate=False)
    assert fs.modified(f"{base}/d/file") >= before and fs.cat(f"{base}/d/file") == b"12345"
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{base}/d")
    fs.mv(f"{base}/d", f"{base}/moved", recursive=True)
    assert fs.cat(f"{base}/moved/soft") == b"12345" and not fs.exists(f"{base}/d")
    fs.rm(f"{base}/moved/*a*")
    assert fs.ls(f"{base}/moved", detail=False) == [f"{base}/moved/{n}" for n in ("e", "file", "soft")]
    fs.rm(f"{base}/moved", recursive=True)
    assert not fs.exists(f"{base}/moved")


def test_files(fs, folder):
    name = f"/{folder.name}/f"
    with fs.open(name, "wb") as f:
        f.write(b"line 1\nline 2\n")
    with fs.open(name, "ab") as f:
        f.write(b"line 3\n")
    with fs.open(name, "r") as f:
        assert f.readlines() == ["line 1\n", "line 2\n", "line 3\n"]
    with fs.open(name, "rb") as f:
        assert f.size == 21 and f.seek(-7, 2) == 14 and f.read() == b"line 3\n"
    with fs.open(f"{name}.gz", "wb", compression="gzip") as f:
        f.write(b"much " * 1000)
    assert fs.open(f"{name}.gz", "rb", compression="gzip").read() == b"much " * 1000


@pytest.mark.parametrize("alias", ["f", "hard", "soft"])
def test_a_file_is_not_copied_onto_itself(fs, folder, alias):
    (folder / "f").write_bytes(b"precious")
    os.link(folder / "f", folder / "hard")
    os.symlink("f", folder / "soft")
    f, other = f"/{folder.name}/f", f"/{folder.name}/{alias}"
    onto_itself = [
        lambda: fs.cp_file(f, other),
        lambda: fs.cp_file(other, f),
        lambda: fs.put_file(str(folder / "f"), other),
        lambda: fs.get_file(f, str(folder / alias)),
    ]
    for copy in onto_itself:
        with pytest.raises(shutil.SameFileError):
            copy()
        assert (folder / "f").read_bytes() == b"precious"


def test_moved_onto_itself_all_stays(fs, folder):
    (folder / "files").mkdir()
    (folder / "files" / "f").write_bytes(b"precious")
    (folder / "directories" / "d").mkdir(parents=True)
    for name, recursive in (("files", False), ("directories", True)):
        with pytest.raises(shutil.SameFileError):
            fs.mv(f"/{folder.name}/{name}/*", f"/{folder.name}/{name}/", recursive=recursive)
    assert (folder / "files" / "f").read_bytes() == b"precious" and (folder / "directories" / "d").is_dir()


def test_transactions(fs, folder):
    name = f"/{folder.name}/f"
    fs.pipe(name, b"old")
    with fs.transaction:
        with fs.open(name, "wb") as f:
            f.write(b"new")
        assert fs.cat(name) == b"old"
    assert fs.cat(name) == b"new"
    with pytest.raises(ZeroDivisionError):
        with fs.transaction:
            with fs.open(name, "wb") as f:
                f.write(b"newer")
            raise ZeroDivisionError
    assert fs.cat(name) == b"new" and os.listdir(folder) == ["f"]
