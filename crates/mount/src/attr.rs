//! Attributes as the kernel wants them, and back.

use glowfs_fuse::abi;
use glowfs_rt::Duration;
use glowfs_types::wire::meta::{Attr, InodeKind, Time};

const S_IFMT: u32 = 0o170_000;

/// The type bits of a mode.
pub const fn type_bits(kind: InodeKind) -> u32 {
    match kind {
        InodeKind::File => 0o100_000,
        InodeKind::Directory => 0o040_000,
        InodeKind::Symlink => 0o120_000,
        InodeKind::Fifo => 0o010_000,
        InodeKind::Socket => 0o140_000,
        InodeKind::CharDevice => 0o020_000,
        InodeKind::BlockDevice => 0o060_000,
    }
}

/// `d_type` of a directory entry.
pub const fn dirent_kind(kind: InodeKind) -> u32 {
    type_bits(kind) >> 12
}

/// The kind that the type bits of a mode name; mknod without any means a file.
pub const fn kind_of(mode: u32) -> Option<InodeKind> {
    Some(match mode & S_IFMT {
        0 | 0o100_000 => InodeKind::File,
        0o040_000 => InodeKind::Directory,
        0o120_000 => InodeKind::Symlink,
        0o010_000 => InodeKind::Fifo,
        0o140_000 => InodeKind::Socket,
        0o020_000 => InodeKind::CharDevice,
        0o060_000 => InodeKind::BlockDevice,
        _ => return None,
    })
}

/// For the kernel.
pub fn to_abi(a: &Attr, block_bytes: u32) -> abi::Attr {
    abi::Attr {
        ino: a.inode.0,
        size: a.len,
        blocks: a.allocated.div_ceil(512),
        atime: a.atime.secs as u64,
        mtime: a.mtime.secs as u64,
        ctime: a.ctime.secs as u64,
        atimensec: a.atime.nanos,
        mtimensec: a.mtime.nanos,
        ctimensec: a.ctime.nanos,
        mode: (a.mode & 0o7777) | type_bits(a.kind),
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: block_bytes,
        flags: 0,
    }
}

/// An answer to GETATTR.
pub fn attr_out(a: &Attr, block_bytes: u32, valid: Duration) -> abi::AttrOut {
    abi::AttrOut {
        attr_valid: valid.as_secs(),
        attr_valid_nsec: valid.subsec_nanos(),
        dummy: 0,
        attr: to_abi(a, block_bytes),
    }
}

/// An answer to LOOKUP: for how long the attributes may be kept, and the name.
pub fn entry_out(
    a: &Attr,
    block_bytes: u32,
    (valid, name_valid): (Duration, Duration),
) -> abi::EntryOut {
    abi::EntryOut {
        nodeid: a.inode.0,
        generation: a.generation,
        entry_valid: name_valid.as_secs(),
        attr_valid: valid.as_secs(),
        entry_valid_nsec: name_valid.subsec_nanos(),
        attr_valid_nsec: valid.subsec_nanos(),
        attr: to_abi(a, block_bytes),
    }
}

/// A moment.
pub fn time_of(unix_ns: u64) -> Time {
    Time { secs: (unix_ns / 1_000_000_000) as i64, nanos: (unix_ns % 1_000_000_000) as u32 }
}

/// A moment as the kernel writes it.
pub fn time_from(secs: u64, nanos: u32) -> Time {
    Time { secs: secs as i64, nanos: nanos.min(999_999_999) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip() {
        use InodeKind::*;
        for k in [File, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice] {
            assert_eq!(kind_of(type_bits(k) | 0o644), Some(k));
        }
        assert_eq!(kind_of(0o644), Some(File));
        assert_eq!(kind_of(0o150_000), None);
    }
}
