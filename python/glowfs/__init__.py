"""GlowFS from Python.

`Connection`, `Buffer`, `File` and `Ring` are the user-space rings of a mount: many reads or writes in one batch, through memory that is
shared with the mount daemon and that NumPy sees without a copy. `BatchReader` reads many ranges of files through them, `Samples`
is a data set of equal records for training. `glowfs.fs` is the fsspec file system behind ``glowfs://``.
"""

from ._glowfs import Buffer, Completion, Connection, File, Ring, is_glowfs, mount_point_of
from .batch import BatchReader
from .samples import Samples

__all__ = [
    "BatchReader",
    "Buffer",
    "Completion",
    "Connection",
    "File",
    "Ring",
    "Samples",
    "is_glowfs",
    "mount_point_of",
]
