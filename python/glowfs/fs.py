"""`GlowFileSystem`: GlowFS for fsspec, under ``glowfs://``.

A path is one of the file system, from its root: ``glowfs://data/x`` is ``data/x`` below the mount point. Names, attributes and plain files go
through the mount; many ranges at once (`cat_ranges`, `cat` of several files) go through its rings, if they are there.
"""

from __future__ import annotations

import datetime
import io
import os
import posixpath
import re
import secrets
import shutil
import stat
from collections.abc import Iterable
from typing import Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractFileSystem
from fsspec.utils import isfilelike, stringify_path

from .batch import BatchReader

READ_BYTES = 64 << 10
"""What a file that is read in small pieces reads at a time."""
COPY_BYTES = 4 << 20
"""What a copy reads at a time."""
RANGES_IN_BATCH = 4096
"""How many ranges are asked for at once; what they come to is bounded by the caller's own ranges."""


def the_mount() -> str:
    """Where GlowFS is mounted: GLOWFS_MOUNT, or the one mount of this machine."""
    named = os.environ.get("GLOWFS_MOUNT")
    if named:
        return named
    with open("/proc/self/mountinfo", "rb") as f:
        points = _mount_points(f)
    if len(points) == 1:
        return points[0]
    found = "there is none" if not points else "there are " + ", ".join(points)
    raise ValueError(f"which GlowFS mount? Give mount=..., or set GLOWFS_MOUNT: on this machine {found}")


def _mount_points(mountinfo: Iterable[bytes]) -> list[str]:
    """Where these lines say that GlowFS is mounted, by proc_pid_mountinfo(5), each place once."""
    ours = (line.split(b" ") for line in mountinfo if b" - fuse.glowfs " in line)
    return list(dict.fromkeys(_unescaped(fields[4]) for fields in ours))


def _unescaped(field: bytes) -> str:
    """A path of mountinfo: blanks and backslashes are three octal digits there, all else is as it is."""
    return os.fsdecode(re.sub(rb"\\([0-3][0-7]{2})", lambda octal: bytes([int(octal[1], 8)]), field))


class _Reader(io.BufferedReader):
    """A file that is read, with the size that fsspec's callers ask for."""

    def __init__(self, local: str, path: str, buffer_bytes: int) -> None:
        super().__init__(io.FileIO(local), buffer_bytes)
        self.path, self.blocksize = path, buffer_bytes

    @property
    def size(self) -> int:
        return os.fstat(self.fileno()).st_size


class _Uncommitted(io.BufferedWriter):
    """A file of a transaction: it has another name until it is committed."""

    def __init__(self, target: str, path: str) -> None:
        self.path, self._target = path, target
        parent, name = os.path.split(target)
        self._temporary = os.path.join(parent, f".{name[:200]}.{secrets.token_hex(8)}")
        super().__init__(io.FileIO(self._temporary, "xb"), COPY_BYTES)

    def commit(self) -> None:
        self.close()
        os.replace(self._temporary, self._target)

    def discard(self) -> None:
        self.close()
        os.unlink(self._temporary)


class GlowFileSystem(AbstractFileSystem):
    """GlowFS through one of its mounts.

    Parameters
    ----------
    mount: str
        Where it is mounted; default: the environment's GLOWFS_MOUNT, or the only GlowFS mount of this machine.
    rings: bool or None
        Read many ranges at once through the rings: True: always (an error if they are not there), False: never, None: if they are there.
    auto_mkdir: bool
        Make missing parent directories of what is written.
    """

    protocol = "glowfs"
    root_marker = "/"
    cachable = True

    def __init__(self, mount: str | None = None, rings: bool | None = None, auto_mkdir: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mount = os.path.abspath(stringify_path(mount) if mount else the_mount())
        self.rings, self.auto_mkdir = rings, auto_mkdir
        self._batch: BatchReader | None = None if rings is False else BatchReader(self.mount)

    # Paths.

    @property
    def fsid(self) -> str:
        return f"glowfs:{self.mount}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = stringify_path(path)
        path = path.removeprefix("glowfs://").removeprefix("glowfs:")
        # «..» ends at the root, as in every file system: nothing leads out of the mount by name.
        return posixpath.normpath("/" + path.lstrip("/"))

    @classmethod
    def _parent(cls, path: Any) -> str:
        return posixpath.dirname(cls._strip_protocol(path))

    def _local(self, path: Any) -> str:
        return self.mount + self._strip_protocol(path).rstrip("/")

    def _for_writing(self, path: Any) -> str:
        local = self._local(path)
        if self.auto_mkdir:
            os.makedirs(os.path.dirname(local), exist_ok=True)
        return local

    # Looking.

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        return self._describe(name, self._local(path))

    def _describe(self, name: str, local: str) -> dict[str, Any]:
        st = os.lstat(local)
        out: dict[str, Any] = {"name": name, "islink": stat.S_ISLNK(st.st_mode)}
        if out["islink"]:
            out["destination"] = os.readlink(local)
            try:
                st = os.stat(local)
            except FileNotFoundError:
                pass  # it leads nowhere: described as it is
        kind = "directory" if stat.S_ISDIR(st.st_mode) else "file" if stat.S_ISREG(st.st_mode) else "other"
        out.update(size=0 if kind == "directory" else st.st_size, type=kind, created=st.st_ctime)
        out.update(mode=st.st_mode, uid=st.st_uid, gid=st.st_gid, mtime=st.st_mtime, ino=st.st_ino, nlink=st.st_nlink)
        return out

    def ls(self, path: Any, detail: bool = False, **kwargs: Any) -> list[Any]:
        name, local = self._strip_protocol(path), self._local(path)
        if not os.path.isdir(local):
            info = self.info(path)
            return [info] if detail else [info["name"]]
        found = []
        for entry in sorted(os.listdir(local)):
            child = posixpath.join(name, entry)
            try:
                found.append(self._describe(child, os.path.join(local, entry)) if detail else child)
            except FileNotFoundError:
                pass  # removed meanwhile
        return found

    def exists(self, path: Any, **kwargs: Any) -> bool:
        return os.path.exists(self._local(path))

    def lexists(self, path: Any, **kwargs: Any) -> bool:
        return os.path.lexists(self._local(path))

    def isfile(self, path: Any) -> bool:
        return os.path.isfile(self._local(path))

    def isdir(self, path: Any) -> bool:
        return os.path.isdir(self._local(path))

    def islink(self, path: Any) -> bool:
        return os.path.islink(self._local(path))

    def created(self, path: Any) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)["created"], datetime.timezone.utc)

    def modified(self, path: Any) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], datetime.timezone.utc)

    # Names.

    def mkdir(self, path: Any, create_parents: bool = True, **kwargs: Any) -> None:
        local = self._local(path)
        if create_parents:
            os.makedirs(local)
        else:
            os.mkdir(local)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        os.makedirs(self._local(path), exist_ok=exist_ok)

    def rmdir(self, path: Any) -> None:
        os.rmdir(self._local(path))

    def rm_file(self, path: Any) -> None:
        os.remove(self._local(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            for one in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
                self.rmdir(one) if self.isdir(one) and not self.islink(one) else self.rm_file(one)
            return
        for one in path if isinstance(path, list) else [path]:
            for name in self.expand_path(one) if "*" in stringify_path(one) else [one]:
                local = self._local(name)
                if not os.path.isdir(local) or os.path.islink(local):
                    os.remove(local)
                elif recursive:
                    shutil.rmtree(local)
                else:
                    raise IsADirectoryError(f"{name} is a directory: pass recursive=True")

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Renames: at once and as a whole, unlike fsspec's own way of copying and removing. Lists and patterns go one by one."""
        if isinstance(path1, list) or "*" in stringify_path(path1):
            return super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
        source, target = self._local(path1), self._for_writing(path2)
        if os.path.isdir(source) and not recursive:
            raise IsADirectoryError(f"{path1} is a directory: pass recursive=True")
        if stringify_path(path2).endswith("/") or os.path.isdir(target):
            os.makedirs(target, exist_ok=True)
            target = os.path.join(target, os.path.basename(source))
        os.rename(source, target)

    def cp_file(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        source, target = self._local(path1), self._for_writing(path2)
        if os.path.isdir(source):
            _refuse_same(os.stat(source), source, target)
            os.makedirs(target, exist_ok=True)
        else:
            _copy(source, target)

    def link(self, src: Any, dst: Any, **kwargs: Any) -> None:
        os.link(self._local(src), self._for_writing(dst))

    def symlink(self, src: str, dst: Any, **kwargs: Any) -> None:
        """A symbolic link at `dst` with the text `src`, which is not changed."""
        os.symlink(src, self._for_writing(dst))

    def chmod(self, path: Any, mode: int) -> None:
        os.chmod(self._local(path), mode)

    def touch(self, path: Any, truncate: bool = True, **kwargs: Any) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if truncate else 0)
        fd = os.open(self._for_writing(path), flags, 0o666)
        try:
            os.utime(fd)
        finally:
            os.close(fd)

    # Contents.

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return _Reader(self._local(path), path, block_size or READ_BYTES)
        local = self._for_writing(path)
        if not autocommit and mode in ("wb", "xb"):
            if mode == "xb" and os.path.lexists(local):
                raise FileExistsError(path)
            return _Uncommitted(local, path)
        return open(local, mode, buffering=block_size or COPY_BYTES)

    def put_file(self, lpath: Any, rpath: Any, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create" and self.exists(rpath):
            raise FileExistsError(rpath)
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
        else:
            _copy(stringify_path(lpath), self._for_writing(rpath), callback)

    def get_file(self, rpath: Any, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **kwargs: Any) -> None:
        outfile = lpath if outfile is None and isfilelike(lpath) else outfile
        if outfile is not None:
            with open(self._local(rpath), "rb") as f:
                shutil.copyfileobj(f, outfile, COPY_BYTES)
        elif self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
        else:
            lpath = os.fspath(lpath)
            os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            _copy(self._local(rpath), lpath, callback)

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        with open(self._local(path), "rb", buffering=0) as f:
            offset, length = _range(start, end, lambda: os.fstat(f.fileno()).st_size)
            parts = []
            while length > 0 and (got := os.pread(f.fileno(), min(length, COPY_BYTES), offset)):
                parts.append(got)
                offset, length = offset + len(got), length - len(got)
        return b"".join(parts)

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        paths = self.expand_path(path, recursive=recursive)
        if not isinstance(path, list) and paths == [self._strip_protocol(path)]:
            return self.cat_file(paths[0], **kwargs)
        paths = [p for p in paths if not self.isdir(p)] if recursive else paths
        start, end = kwargs.get("start"), kwargs.get("end")
        got = self.cat_ranges(paths, start, end, on_error="return")
        for one in got if on_error == "raise" else ():
            if isinstance(one, Exception):
                raise one
        return {p: g for p, g in zip(paths, got) if on_error != "omit" or not isinstance(g, Exception)}

    def cat_ranges(
        self, paths: list[Any], starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **kwargs: Any
    ) -> list[Any]:
        """Byte ranges of files, in large batches through the rings (if they are there)."""
        if not isinstance(paths, list):
            raise TypeError("paths is a list")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("paths, starts and ends are of one length")
        if not self._has_rings():
            return super().cat_ranges(paths, starts, ends, None, on_error, **kwargs)
        out: list[Any] = []
        for first in range(0, len(paths), RANGES_IN_BATCH):
            part = slice(first, first + RANGES_IN_BATCH)
            out += self._batch_of(paths[part], starts[part], ends[part])
        for one in out if on_error == "raise" else ():
            if isinstance(one, Exception):
                raise one
        return out

    def _has_rings(self) -> bool:
        if self._batch is None:
            return False
        try:
            self._batch.open()
        except OSError:
            if self.rings:
                raise
            return False  # for now: the mount may only be on its way back
        return True

    def _batch_of(self, paths: list[Any], starts: list[Any], ends: list[Any]) -> list[Any]:
        assert self._batch is not None
        out: list[Any] = [None] * len(paths)
        ranges, places = [], []
        sizes: dict[str, int] = {}
        for i, (path, start, end) in enumerate(zip(paths, starts, ends)):
            local = self._local(path)

            def size(local: str = local) -> int:
                if local not in sizes:
                    sizes[local] = os.stat(local).st_size
                return sizes[local]

            try:
                if os.path.isdir(local):
                    raise IsADirectoryError(path)
                ranges.append((local, *_range(start, end, size)))
                places.append(i)
            except OSError as e:
                out[i] = e
        for i, got in zip(places, self._batch.read(ranges)):
            out[i] = got
        return out


def _range(start: int | None, end: int | None, size: Any) -> tuple[int, int]:
    """Offset and length of Python's slice [start:end]; `size` is asked only if it matters."""
    if start is None:
        start = 0
    elif start < 0:
        start = max(size() + start, 0)
    if end is None:
        end = size()
    elif end < 0:
        end = size() + end
    return start, max(end - start, 0)


def _refuse_same(seen: os.stat_result, source: str, target: str) -> None:
    """SameFileError if `target` is what was `seen` of `source`, by whatever name: opened for writing it would be emptied."""
    try:
        same = os.path.samestat(seen, os.stat(target))
    except FileNotFoundError:
        return
    if same:
        raise shutil.SameFileError(f"{source} and {target} are the same file")


def _copy(source: str, target: str, callback: Any = DEFAULT_CALLBACK) -> None:
    with open(source, "rb", buffering=0) as f:
        seen = os.fstat(f.fileno())
        _refuse_same(seen, source, target)
        callback.set_size(seen.st_size)
        with open(target, "wb", buffering=0) as to:
            _copy_bytes(f, to, callback)


def _copy_bytes(f: io.FileIO, to: io.FileIO, callback: Any) -> None:
    memory = memoryview(bytearray(COPY_BYTES))
    while n := f.readinto(memory):
        written = 0
        while written < n:
            written += to.write(memory[written:n])
        callback.relative_update(n)
