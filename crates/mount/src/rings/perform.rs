//! One operation of a ring: checked, carried out in pieces of bounded size, answered with a count or an errno.
//!
//! Bytes go through memory of the daemon's own: what the application can change is never checksummed, stored or forwarded.

use super::forget::forget;
use super::session::{Ring, Session};
use crate::daemon::{Context, Failure};
use crate::errno::{EBADF, EINVAL, EIO, errno};
use crate::filesystem::FileSystem;
use crate::ops::HowToWrite;
use crate::uses::InUse;
use glowfs_rt::mem::ForeignRegion;
use glowfs_types::InodeId;
use glowfs_usrbio::{Kind, Submission, flags};

/// Greater operations are carried out in pieces of so many bytes, one after the other.
const PIECE_BYTES: u64 = 4 << 20;
const EFAULT: i32 = 14;
/// A read that may not return holes begins in one.
const ENODATA: i32 = 61;

/// What a submission names, found and checked.
struct Operation<S: FileSystem> {
    region: ForeignRegion,
    handle: InUse<S::File>,
    forbid_holes: bool,
}

/// What the application is told of a failure.
fn told(failure: &Failure, inode: InodeId) -> i32 {
    let e = match failure {
        Failure::Errno(e) => *e,
        Failure::Error(e) => errno(e),
    };
    if e == EIO {
        tracing::error!(%inode, "a ring's operation gets EIO");
    }
    e
}

/// Carries it out: bytes done, or a negated errno. What was done before an error counts, as with read(2) and write(2); what is to be
/// durable and is not does not.
pub(super) async fn perform<S: FileSystem>(
    context: &Context<S>,
    session: &Session,
    ring: &Ring,
    s: &Submission,
) -> i64 {
    let op = match find(context, session, ring, s) {
        Ok(op) => op,
        Err(e) => return -i64::from(e),
    };
    let mut done = 0;
    while done < s.len {
        let len = (s.len - done).min(PIECE_BYTES);
        let turn = context.rings.turn(session, len as usize, ring.priority).await;
        let outcome = match ring.kind {
            Kind::Read => read(context, &op, s, done, len).await,
            Kind::Write => write(context, session, &op, s, done, len).await,
        };
        drop(turn);
        match outcome {
            Ok(n) => {
                done += n;
                if n < len {
                    break;
                }
            }
            Err(e) if done == 0 => {
                return -i64::from(told(&e, op.handle.inode.id));
            }
            Err(_) => break,
        }
    }
    let owes = ring.kind == Kind::Write && done > 0 && op.handle.durable;
    if owes {
        let durable = context.make_durable(&op.handle).await;
        if let Err(e) = durable.and_then(|()| context.heard(&op.handle)) {
            return -i64::from(told(&e, op.handle.inode.id));
        }
    }
    done as i64
}

fn find<S: FileSystem>(
    context: &Context<S>,
    session: &Session,
    ring: &Ring,
    s: &Submission,
) -> Result<Operation<S>, i32> {
    if s.kind != ring.kind as u32 || s.flags & !flags::KNOWN != 0 || s.reserved != [0; 2] {
        return Err(EINVAL);
    }
    let end = s.file_offset.checked_add(s.len);
    if end.is_none_or(|e| i64::try_from(e).is_err()) {
        return Err(EINVAL);
    }
    let region = session.buffers.borrow().get(&s.buffer).map(|b| b.region.clone()).ok_or(EBADF)?;
    if s.buffer_offset.checked_add(s.len).is_none_or(|end| end > region.len()) {
        return Err(EFAULT);
    }
    let fh = session.files.borrow().get(&s.file).copied().ok_or(EBADF)?;
    let handle = context.inodes.file(fh).ok_or(EBADF)?;
    let may = match ring.kind {
        Kind::Read => handle.read,
        Kind::Write => handle.write,
    };
    if !may {
        return Err(EBADF);
    }
    let handle = InUse::begin(handle).ok_or(EBADF)?;
    let forbid_holes = (s.flags | ring.flags) & flags::FORBID_READ_HOLES != 0;
    Ok(Operation { region, handle, forbid_holes })
}

/// Reads a piece. Fewer bytes than asked for: the file ends there, or a hole begins that may not be returned.
async fn read<S: FileSystem>(
    context: &Context<S>,
    op: &Operation<S>,
    s: &Submission,
    done: u64,
    len: u64,
) -> Result<u64, Failure> {
    let rt = &context.rt;
    let got = context.read_at(&op.handle, s.file_offset + done, len, |n| rt.alloc(n)).await?;
    let Some((bytes, exist)) = got else { return Ok(0) };
    let n = if op.forbid_holes { exist } else { bytes.len() };
    if n == 0 {
        return Err(Failure::Errno(ENODATA));
    }
    let mut to =
        op.region.buf_mut(s.buffer_offset + done, n).map_err(|_| Failure::Errno(EFAULT))?;
    to.copy_from_slice(&bytes[..n]);
    Ok(n as u64)
}

async fn write<S: FileSystem>(
    context: &Context<S>,
    session: &Session,
    op: &Operation<S>,
    s: &Submission,
    done: u64,
    len: u64,
) -> Result<u64, Failure> {
    let from = op.region.buf(s.buffer_offset + done, len as usize);
    let mut own = context.rt.alloc(len as usize);
    own.copy_from_slice(&from.map_err(|_| Failure::Errno(EFAULT))?);
    let how =
        HowToWrite { append: false, later: false, kill_suid: session.kills_suid(), piece: None };
    if context.may_have_capability(&op.handle) {
        Box::pin(context.kill_capability(&op.handle)).await?;
    }
    // What a mapping has of before is not to be written over this.
    forget(context, op.handle.inode.id).await;
    context.write_at(&op.handle, s.file_offset + done, own.freeze(), how, None).await?;
    // And what the kernel was given meanwhile is old when the application hears of it.
    forget(context, op.handle.inode.id).await;
    Ok(len)
}
