//! The kernel's FUSE ABI (include/uapi/linux/fuse.h), protocol 7.31 to 7.45: numbers and structures, nothing else.
//!
//! Names are the kernel's, without the `fuse_` prefix. Everything is in the byte order of the machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol.
pub const KERNEL_VERSION: u32 = 7;
/// The newest minor version this build speaks.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// The oldest minor version this build accepts (Linux 5.4).
pub const KERNEL_MINOR_VERSION_MIN: u32 = 31;
/// The node id of the root.
pub const ROOT_ID: u64 = 1;

/// Operation codes.
#[allow(missing_docs)]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SETUPMAPPING: u32 = 48;
    pub const REMOVEMAPPING: u32 = 49;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// The name of an operation, for logs and metrics.
pub const fn opcode_name(code: u32) -> &'static str {
    const NAMES: [&str; 54] = [
        "none",
        "lookup",
        "forget",
        "getattr",
        "setattr",
        "readlink",
        "symlink",
        "none",
        "mknod",
        "mkdir",
        "unlink",
        "rmdir",
        "rename",
        "link",
        "open",
        "read",
        "write",
        "statfs",
        "release",
        "none",
        "fsync",
        "setxattr",
        "getxattr",
        "listxattr",
        "removexattr",
        "flush",
        "init",
        "opendir",
        "readdir",
        "releasedir",
        "fsyncdir",
        "getlk",
        "setlk",
        "setlkw",
        "access",
        "create",
        "interrupt",
        "bmap",
        "destroy",
        "ioctl",
        "poll",
        "notify_reply",
        "batch_forget",
        "fallocate",
        "readdirplus",
        "rename2",
        "lseek",
        "copy_file_range",
        "setupmapping",
        "removemapping",
        "syncfs",
        "tmpfile",
        "statx",
        "copy_file_range_64",
    ];
    if (code as usize) < NAMES.len() { NAMES[code as usize] } else { "unknown" }
}

/// Flags of INIT, both halves (bits 32 and up travel in `flags2`).
#[allow(missing_docs)]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const SPLICE_WRITE: u64 = 1 << 7;
    pub const SPLICE_MOVE: u64 = 1 << 8;
    pub const SPLICE_READ: u64 = 1 << 9;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `valid` of SETATTR.
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `open_flags` of an OPEN answer.
#[allow(missing_docs)]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NONSEEKABLE: u32 = 1 << 2;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const STREAM: u32 = 1 << 4;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// GETATTR: `fh` is valid.
pub const GETATTR_FH: u32 = 1;
/// WRITE: delayed write from the page cache; the handle is a guess.
pub const WRITE_CACHE: u32 = 1;
/// WRITE: set-user-id and set-group-id bits must go.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// OPEN and CREATE: the same, if the file is cut.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// FSYNC: contents only.
pub const FSYNC_FDATASYNC: u32 = 1;
/// Type of the extension of a request that holds supplementary groups.
pub const EXT_GROUPS: u32 = 32;

/// GETLK, SETLK, SETLKW: it is flock.
pub const LK_FLOCK: u32 = 1;
/// RELEASE: flocks of the open file go.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `kind` of a lock: fcntl's F_RDLCK, F_WRLCK, F_UNLCK.
#[allow(missing_docs)]
pub mod lk {
    pub const RDLCK: u32 = 0;
    pub const WRLCK: u32 = 1;
    pub const UNLCK: u32 = 2;
}

/// FUSE over io_uring: here is an entry.
pub const URING_REGISTER: u32 = 1;
/// FUSE over io_uring: here is an answer; and the next request, please.
pub const URING_COMMIT_AND_FETCH: u32 = 2;

/// Codes of notifications.
#[allow(missing_docs)]
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
}

macro_rules! abi {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[allow(missing_docs)]
            pub struct $name { $(pub $field: $ty,)* }
            const _: () = assert!(size_of::<$name>() == $size, stringify!($name));
        )*
    };
}

abi! {
    /// What stat shows.
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32,
    }
    /// The header of a request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// The header of an answer or notification.
    OutHeader = 16 { len: u32, error: i32, unique: u64, }
    /// LOOKUP and everything that makes a name.
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    /// FORGET.
    ForgetIn = 8 { nlookup: u64, }
    /// One of BATCH_FORGET.
    ForgetOne = 16 { nodeid: u64, nlookup: u64, }
    /// BATCH_FORGET.
    BatchForgetIn = 8 { count: u32, dummy: u32, }
    /// GETATTR.
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64, }
    /// GETATTR, SETATTR.
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    /// MKNOD.
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// MKDIR.
    MkdirIn = 8 { mode: u32, umask: u32, }
    /// RENAME.
    RenameIn = 8 { newdir: u64, }
    /// RENAME2.
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32, }
    /// LINK.
    LinkIn = 8 { oldnodeid: u64, }
    /// SETATTR.
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    /// OPEN, OPENDIR.
    OpenIn = 8 { flags: u32, open_flags: u32, }
    /// CREATE.
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// OPEN, OPENDIR, CREATE.
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: u32, }
    /// RELEASE, RELEASEDIR.
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// FLUSH.
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// READ, READDIR, READDIRPLUS.
    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// WRITE.
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// WRITE, COPY_FILE_RANGE.
    WriteOut = 8 { size: u32, padding: u32, }
    /// STATFS.
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// FSYNC, FSYNCDIR.
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32, }
    /// SETXATTR without SETXATTR_EXT.
    SetxattrIn = 8 { size: u32, flags: u32, }
    /// GETXATTR, LISTXATTR.
    GetxattrIn = 8 { size: u32, padding: u32, }
    /// GETXATTR, LISTXATTR with size 0.
    GetxattrOut = 8 { size: u32, padding: u32, }
    /// GETLK, SETLK, SETLKW.
    LkIn = 48 {
        fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32, padding: u32,
    }
    /// GETLK.
    LkOut = 24 { start: u64, end: u64, kind: u32, pid: u32, }
    /// ACCESS.
    AccessIn = 8 { mask: u32, padding: u32, }
    /// INIT, up to where 7.31 ends.
    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// INIT, what INIT_EXT adds.
    InitInExt = 48 { flags2: u32, unused: [u32; 11], }
    /// INIT.
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    /// INTERRUPT.
    InterruptIn = 8 { unique: u64, }
    /// BMAP.
    BmapIn = 16 { block: u64, blocksize: u32, padding: u32, }
    /// IOCTL.
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    /// IOCTL; the data follows.
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    /// POLL.
    PollIn = 24 { fh: u64, kh: u64, flags: u32, events: u32, }
    /// FALLOCATE.
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// LSEEK.
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// LSEEK.
    LseekOut = 8 { offset: u64, }
    /// COPY_FILE_RANGE.
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// The fixed part of a directory entry; the name follows, padded to 8 bytes.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// STATX.
    StatxIn = 24 {
        getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32,
    }
    /// SYNCFS.
    SyncfsIn = 8 { padding: u64, }
    /// The head of an extension of a request; `size` includes it.
    ExtHeader = 8 { size: u32, kind: u32, }
    /// FUSE over io_uring: about the payload of an entry.
    UringEntInOut = 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
    /// FUSE over io_uring: goes with a command.
    UringCmdReq = 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
    /// Notification: forget the pages and attributes of an inode.
    NotifyInvalInodeOut = 24 { ino: u64, off: i64, len: i64, }
    /// Notification: forget a name.
    NotifyInvalEntryOut = 16 { parent: u64, namelen: u32, flags: u32, }
}

/// Bytes before the payload of a WRITE.
pub const WRITE_HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// What a record in a listing is padded to.
pub const fn dirent_align(bytes: usize) -> usize {
    bytes.div_ceil(8) * 8
}
