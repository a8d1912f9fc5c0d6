//! Requests of the kernel, checked and owned.
//!
//! [`parse`] takes the bytes of one request (without the payload of a WRITE) and returns its [`Header`] and
//! [`Op`]. It never panics and never reads outside the given bytes, whatever they are: the kernel is trusted,
//! but a fuzzer drives it.

use crate::abi::{self, opcode};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// The longest name accepted, in bytes: what a kernel may pass on to be refused. (Without MAX_PAGES it is 1024.)
pub const NAME_BYTES_MAX: usize = 4095;
/// The longest target of a symbolic link, in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4096;

/// Who asks for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Names the request in its answer.
    pub unique: u64,
    /// The operation code.
    pub opcode: u32,
    /// The inode.
    pub node: u64,
    /// uid of the caller.
    pub uid: u32,
    /// gid of the caller.
    pub gid: u32,
    /// Thread id of the caller; 0 if it has none that we can see.
    pub pid: u32,
}

/// A request that is not well formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {name} request: {what}", name = abi::opcode_name(*opcode))]
pub struct BadRequest {
    /// What names it in the answer, if it could be read (else 0).
    pub unique: u64,
    /// The operation code, if it could be read.
    pub opcode: u32,
    /// What is wrong.
    pub what: &'static str,
}

/// An operation with its arguments.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Lookup {
        name: Vec<u8>,
    },
    /// (inode, lookups) pairs; never answered.
    Forget(Vec<(u64, u64)>),
    Getattr {
        fh: Option<u64>,
    },
    Setattr(Box<abi::SetattrIn>),
    Readlink,
    Symlink {
        name: Vec<u8>,
        target: Vec<u8>,
    },
    Mknod {
        name: Vec<u8>,
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: Vec<u8>,
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: Vec<u8>,
    },
    Rmdir {
        name: Vec<u8>,
    },
    Rename {
        name: Vec<u8>,
        new_parent: u64,
        new_name: Vec<u8>,
        flags: u32,
    },
    Link {
        inode: u64,
        new_name: Vec<u8>,
    },
    Open {
        flags: u32,
        open_flags: u32,
    },
    Create {
        name: Vec<u8>,
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    },
    Read(abi::ReadIn),
    /// The payload travels beside it.
    Write(abi::WriteIn),
    Statfs,
    Release(abi::ReleaseIn),
    Fsync {
        fh: u64,
        data_only: bool,
    },
    Setxattr {
        name: Vec<u8>,
        value: Vec<u8>,
        flags: u32,
    },
    Getxattr {
        name: Vec<u8>,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: Vec<u8>,
    },
    Flush(abi::FlushIn),
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    },
    Opendir {
        flags: u32,
    },
    Readdir(abi::ReadIn),
    Readdirplus(abi::ReadIn),
    Releasedir(abi::ReleaseIn),
    Fsyncdir {
        fh: u64,
        data_only: bool,
    },
    Getlk(abi::LkIn),
    Setlk {
        lock: abi::LkIn,
        wait: bool,
    },
    Access {
        mask: u32,
    },
    /// Never answered.
    Interrupt {
        unique: u64,
    },
    Bmap(abi::BmapIn),
    Destroy,
    /// With the bytes that the caller passed.
    Ioctl(abi::IoctlIn, Vec<u8>),
    Poll(abi::PollIn),
    /// Never answered.
    NotifyReply,
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    CopyFileRange(abi::CopyFileRangeIn),
    Syncfs,
    Tmpfile {
        mode: u32,
        flags: u32,
        umask: u32,
    },
    Statx(abi::StatxIn),
    /// An operation this build does not know.
    Other,
}

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub header: Header,
    /// For what.
    pub op: Op,
    /// Supplementary groups that the kernel sent along (CREATE_SUPP_GROUP).
    pub groups: Vec<u32>,
}

/// Reads the fixed header; also tells the length the kernel states.
pub fn parse_header(bytes: &[u8]) -> Result<(abi::InHeader, &[u8]), BadRequest> {
    abi::InHeader::read_from_prefix(bytes).map_err(|_| BadRequest {
        unique: 0,
        opcode: 0,
        what: "shorter than its header",
    })
}

/// Parses a request. `bytes` is all of it, but for WRITE, where it ends before the payload.
/// `setxattr_ext` is never negotiated, so the short form of SETXATTR is expected.
pub fn parse(bytes: &[u8]) -> Result<Request, BadRequest> {
    let (h, body) = parse_header(bytes)?;
    let bad = |what| BadRequest { unique: h.unique, opcode: h.opcode, what };
    let stated = h.len as usize;
    let ok = if h.opcode == opcode::WRITE { stated >= bytes.len() } else { stated == bytes.len() };
    if !ok {
        return Err(bad("length differs from what was read"));
    }
    let ext = usize::from(h.total_extlen) * 8;
    if ext > body.len() {
        return Err(bad("extensions longer than the request"));
    }
    let (body, ext) = body.split_at(body.len() - ext);
    let op = parse_op(&h, Args { rest: body, bad: &bad })?;
    let groups = parse_groups(ext).map_err(bad)?;
    let header = Header {
        unique: h.unique,
        opcode: h.opcode,
        node: h.nodeid,
        uid: h.uid,
        gid: h.gid,
        pid: h.pid,
    };
    Ok(Request { header, op, groups })
}

/// The arguments that are left to read.
struct Args<'a, F> {
    rest: &'a [u8],
    bad: F,
}

impl<F: Fn(&'static str) -> BadRequest> Args<'_, F> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, BadRequest> {
        match T::read_from_prefix(self.rest) {
            Ok((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            Err(_) => Err((self.bad)("arguments are cut short")),
        }
    }
    /// A string that ends with NUL, 1 to `max` bytes.
    fn string(&mut self, max: usize) -> Result<Vec<u8>, BadRequest> {
        let Some(end) = self.rest.iter().position(|&b| b == 0) else {
            return Err((self.bad)("a string without its end"));
        };
        let (string, rest) = self.rest.split_at(end);
        if string.is_empty() || string.len() > max {
            return Err((self.bad)("a string is empty or too long"));
        }
        self.rest = &rest[1..];
        Ok(string.to_vec())
    }
    /// A name in a directory.
    fn name(&mut self) -> Result<Vec<u8>, BadRequest> {
        let name = self.string(NAME_BYTES_MAX)?;
        if name.contains(&b'/') {
            return Err((self.bad)("a name with a slash"));
        }
        Ok(name)
    }
    fn bytes(&mut self, n: usize) -> Result<Vec<u8>, BadRequest> {
        if n > self.rest.len() {
            return Err((self.bad)("a value is cut short"));
        }
        let (value, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(value.to_vec())
    }
}

fn parse_op<F: Fn(&'static str) -> BadRequest>(
    h: &abi::InHeader,
    mut a: Args<'_, F>,
) -> Result<Op, BadRequest> {
    Ok(match h.opcode {
        opcode::LOOKUP => Op::Lookup { name: a.name()? },
        opcode::FORGET => Op::Forget(vec![(h.nodeid, a.take::<abi::ForgetIn>()?.nlookup)]),
        opcode::BATCH_FORGET => parse_batch_forget(a)?,
        opcode::GETATTR => {
            let i: abi::GetattrIn = a.take()?;
            Op::Getattr { fh: (i.getattr_flags & abi::GETATTR_FH != 0).then_some(i.fh) }
        }
        opcode::SETATTR => Op::Setattr(Box::new(a.take()?)),
        opcode::READLINK => Op::Readlink,
        opcode::SYMLINK => Op::Symlink { name: a.name()?, target: a.string(SYMLINK_BYTES_MAX)? },
        opcode::MKNOD => {
            let i: abi::MknodIn = a.take()?;
            Op::Mknod { name: a.name()?, mode: i.mode, rdev: i.rdev, umask: i.umask }
        }
        opcode::MKDIR => {
            let i: abi::MkdirIn = a.take()?;
            Op::Mkdir { name: a.name()?, mode: i.mode, umask: i.umask }
        }
        opcode::UNLINK => Op::Unlink { name: a.name()? },
        opcode::RMDIR => Op::Rmdir { name: a.name()? },
        opcode::RENAME => {
            let i: abi::RenameIn = a.take()?;
            let name = a.name()?;
            Op::Rename { name, new_parent: i.newdir, new_name: a.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let i: abi::Rename2In = a.take()?;
            let name = a.name()?;
            Op::Rename { name, new_parent: i.newdir, new_name: a.name()?, flags: i.flags }
        }
        opcode::LINK => {
            let i: abi::LinkIn = a.take()?;
            Op::Link { inode: i.oldnodeid, new_name: a.name()? }
        }
        opcode::CREATE => {
            let i: abi::CreateIn = a.take()?;
            let name = a.name()?;
            let abi::CreateIn { flags, mode, umask, open_flags } = i;
            Op::Create { name, flags, mode, umask, open_flags }
        }
        opcode::TMPFILE => {
            let i: abi::CreateIn = a.take()?;
            Op::Tmpfile { mode: i.mode, flags: i.flags, umask: i.umask }
        }
        opcode::SETXATTR => {
            let i: abi::SetxattrIn = a.take()?;
            let name = a.string(NAME_BYTES_MAX)?;
            Op::Setxattr { name, value: a.bytes(i.size as usize)?, flags: i.flags }
        }
        opcode::GETXATTR => {
            let i: abi::GetxattrIn = a.take()?;
            Op::Getxattr { name: a.string(NAME_BYTES_MAX)?, size: i.size }
        }
        opcode::LISTXATTR => Op::Listxattr { size: a.take::<abi::GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Op::Removexattr { name: a.string(NAME_BYTES_MAX)? },
        opcode::STATFS => Op::Statfs,
        opcode::ACCESS => Op::Access { mask: a.take::<abi::AccessIn>()?.mask },
        opcode::INTERRUPT => Op::Interrupt { unique: a.take::<abi::InterruptIn>()?.unique },
        opcode::INIT => parse_init(a)?,
        opcode::DESTROY => Op::Destroy,
        opcode::NOTIFY_REPLY => Op::NotifyReply,
        opcode::SYNCFS => Op::Syncfs,
        _ => parse_file_op(h, a)?,
    })
}

/// Operations on open files and directories.
fn parse_file_op<F: Fn(&'static str) -> BadRequest>(
    h: &abi::InHeader,
    mut a: Args<'_, F>,
) -> Result<Op, BadRequest> {
    Ok(match h.opcode {
        opcode::OPEN => {
            let i: abi::OpenIn = a.take()?;
            Op::Open { flags: i.flags, open_flags: i.open_flags }
        }
        opcode::OPENDIR => Op::Opendir { flags: a.take::<abi::OpenIn>()?.flags },
        opcode::READ => Op::Read(a.take()?),
        opcode::WRITE => {
            let i: abi::WriteIn = a.take()?;
            if abi::WRITE_HEAD_BYTES as u64 + u64::from(i.size) != u64::from(h.len) {
                return Err((a.bad)("the payload has another length than stated"));
            }
            Op::Write(i)
        }
        opcode::RELEASE => Op::Release(a.take()?),
        opcode::FLUSH => Op::Flush(a.take()?),
        opcode::FSYNC => {
            let i: abi::FsyncIn = a.take()?;
            Op::Fsync { fh: i.fh, data_only: i.fsync_flags & abi::FSYNC_FDATASYNC != 0 }
        }
        opcode::READDIR => Op::Readdir(a.take()?),
        opcode::READDIRPLUS => Op::Readdirplus(a.take()?),
        opcode::RELEASEDIR => Op::Releasedir(a.take()?),
        opcode::FSYNCDIR => {
            let i: abi::FsyncIn = a.take()?;
            Op::Fsyncdir { fh: i.fh, data_only: i.fsync_flags & abi::FSYNC_FDATASYNC != 0 }
        }
        opcode::GETLK => Op::Getlk(a.take()?),
        opcode::SETLK => Op::Setlk { lock: a.take()?, wait: false },
        opcode::SETLKW => Op::Setlk { lock: a.take()?, wait: true },
        opcode::BMAP => Op::Bmap(a.take()?),
        opcode::IOCTL => {
            let i: abi::IoctlIn = a.take()?;
            Op::Ioctl(i, a.bytes(i.in_size as usize)?)
        }
        opcode::POLL => Op::Poll(a.take()?),
        opcode::FALLOCATE => Op::Fallocate(a.take()?),
        opcode::LSEEK => Op::Lseek(a.take()?),
        opcode::COPY_FILE_RANGE => Op::CopyFileRange(a.take()?),
        opcode::STATX => Op::Statx(a.take()?),
        _ => Op::Other,
    })
}

fn parse_batch_forget<F: Fn(&'static str) -> BadRequest>(
    mut a: Args<'_, F>,
) -> Result<Op, BadRequest> {
    let count = a.take::<abi::BatchForgetIn>()?.count as usize;
    if count > a.rest.len() / size_of::<abi::ForgetOne>() {
        return Err((a.bad)("fewer entries than stated"));
    }
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let one: abi::ForgetOne = a.take()?;
        all.push((one.nodeid, one.nlookup));
    }
    Ok(Op::Forget(all))
}

fn parse_init<F: Fn(&'static str) -> BadRequest>(mut a: Args<'_, F>) -> Result<Op, BadRequest> {
    let i: abi::InitIn = a.take()?;
    let mut flags = u64::from(i.flags);
    if flags & abi::init::INIT_EXT != 0 {
        flags |= u64::from(a.take::<abi::InitInExt>()?.flags2) << 32;
    }
    Ok(Op::Init { major: i.major, minor: i.minor, max_readahead: i.max_readahead, flags })
}

/// The supplementary groups among the extensions; unknown extensions are skipped.
fn parse_groups(mut ext: &[u8]) -> Result<Vec<u32>, &'static str> {
    let mut groups = Vec::new();
    while !ext.is_empty() {
        let (head, _) =
            abi::ExtHeader::read_from_prefix(ext).map_err(|_| "an extension is cut short")?;
        let size = head.size as usize;
        if size < size_of::<abi::ExtHeader>() || size > ext.len() {
            return Err("an extension has an impossible length");
        }
        let body = &ext[size_of::<abi::ExtHeader>()..size];
        if head.kind == abi::EXT_GROUPS {
            let (count, list) =
                u32::read_from_prefix(body).map_err(|_| "a list of groups is cut short")?;
            if count as usize > list.len() / 4 {
                return Err("fewer groups than stated");
            }
            let ids = list.chunks_exact(4).take(count as usize);
            groups.extend(ids.map(|g| u32::from_ne_bytes([g[0], g[1], g[2], g[3]])));
        }
        ext = &ext[size.next_multiple_of(8).min(ext.len())..];
    }
    Ok(groups)
}
