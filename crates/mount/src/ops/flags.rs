//! Flags of inodes: what chattr(1) and lsattr(1) ask for, as ioctls that the kernel forms.

use crate::daemon::{Answer, Context, Outcome, fail};
use crate::filesystem::FileSystem;
use glowfs_types::wire::meta::{SetAttr, inode_flags};
use glowfs_types::{InodeId, RequestId};
use libc::{EINVAL, EOPNOTSUPP};

/// FS_IOC_GETFLAGS: a u32 of FS_*_FL.
pub const GETFLAGS: u32 = 0x8008_6601;
/// FS_IOC_SETFLAGS.
pub const SETFLAGS: u32 = 0x4008_6602;
/// FS_IOC_FSGETXATTR: a `struct fsxattr`.
pub const FSGETXATTR: u32 = 0x801c_581f;
/// FS_IOC_FSSETXATTR.
pub const FSSETXATTR: u32 = 0x401c_5820;

/// Bytes of `struct fsxattr`; the first four are FS_XFLAG_*, the fourth four the project.
const FSXATTR_BYTES: usize = 28;
const XFLAG_IMMUTABLE: u32 = 0x8;
const XFLAG_APPEND: u32 = 0x10;

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

fn to_xflags(flags: u32) -> u32 {
    let bit = |from, to| if flags & from != 0 { to } else { 0 };
    bit(inode_flags::IMMUTABLE, XFLAG_IMMUTABLE) | bit(inode_flags::APPEND, XFLAG_APPEND)
}

fn from_xflags(flags: u32) -> Option<u32> {
    let bit = |from, to| if flags & from != 0 { to } else { 0 };
    let known = flags & !(XFLAG_IMMUTABLE | XFLAG_APPEND) == 0;
    let found =
        bit(XFLAG_IMMUTABLE, inode_flags::IMMUTABLE) | bit(XFLAG_APPEND, inode_flags::APPEND);
    known.then_some(found)
}

impl<S: FileSystem> Context<S> {
    /// Answers one of the four. Who may change what, meta decides.
    pub(crate) async fn flags(&self, command: u32, data: &[u8]) -> Outcome {
        let inode = InodeId(self.header.node);
        match command {
            GETFLAGS => {
                let flags = self.fresh(inode).await?.0.flags;
                Ok(Answer::Ioctl(flags.to_ne_bytes().to_vec()))
            }
            FSGETXATTR => {
                let attr = self.fresh(inode).await?.0;
                let mut out = vec![0; FSXATTR_BYTES];
                out[..4].copy_from_slice(&to_xflags(attr.flags).to_ne_bytes());
                let project = u32::try_from(attr.project.0).unwrap_or(u32::MAX);
                out[12..16].copy_from_slice(&project.to_ne_bytes());
                Ok(Answer::Ioctl(out))
            }
            SETFLAGS => match word(data, 0) {
                Some(flags) if flags & !inode_flags::KNOWN != 0 => fail(EOPNOTSUPP),
                Some(flags) => self.set_flags(inode, flags).await,
                None => fail(EINVAL),
            },
            _ => {
                let project = self.fresh(inode).await?.0.project.0;
                match (word(data, 0).map(from_xflags), word(data, 12)) {
                    (Some(Some(flags)), Some(p)) if u64::from(p) == project => {
                        self.set_flags(inode, flags).await
                    }
                    (Some(_), Some(_)) => fail(EOPNOTSUPP),
                    _ => fail(EINVAL),
                }
            }
        }
    }

    async fn set_flags(&self, inode: InodeId, flags: u32) -> Outcome {
        // An immutable file takes no more of what was written before.
        self.inode_sent(inode).await;
        let q = SetAttr {
            caller: self.caller(),
            request: RequestId(self.rt.random_u128()),
            inode,
            flags: Some(flags),
            ..SetAttr::default()
        };
        let r = self.fs.setattr(q).await?;
        self.inodes.seen(&r.attr);
        Ok(Answer::Ioctl(Vec::new()))
    }
}
