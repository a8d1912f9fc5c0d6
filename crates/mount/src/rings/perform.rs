//! One operation of a ring: checked, carried out in pieces of bounded size, answered with a count or an errno.
//!
//! Bytes go through memory of the daemon's own: what the application can change is never checksummed, stored or forwarded.

use super::copies::Lent;
use super::forget::forget;
use super::session::{Ring, Session};
use crate::daemon::{Context, Failure};
use crate::errno::errno;
use crate::filesystem::FileSystem;
use crate::ops::HowToWrite;
use crate::uses::InUse;
use glowfs_client::Found;
use glowfs_types::InodeId;
use glowfs_usrbio::{Kind, Submission, flags};
use libc::{EBADF, EFAULT, EINVAL, EIO, ENODATA};
use std::rc::Rc;

/// Greater operations are carried out in pieces of so many bytes, one after the other.
const PIECE_BYTES: u64 = 4 << 20;

/// What a submission names, found and checked.
struct Operation<S: FileSystem> {
    memory: Rc<Lent>,
    handle: InUse<S::File>,
    forbid_holes: bool,
}

/// What the application is told of a failure.
fn errno_of(failure: &Failure, inode: InodeId) -> i32 {
    let e = match failure {
        Failure::Errno(e) => *e,
        Failure::Error(e) => errno(e),
    };
    if e == EIO {
        tracing::error!(%inode, "a ring's operation gets EIO");
    }
    e
}

/// Carries it out: bytes done, or a negated errno. Unlike read(2) and write(2) it is one thing, as in 3FS: what was done before an error
/// is not counted, for a count that is short says where the file ends.
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
    let outcome = match ring.kind {
        Kind::Read => read_pieces(context, session, ring, &op, s).await,
        // Apart: a task is copied to the heap, and is as large as the largest of its branches.
        Kind::Write => Box::pin(write_pieces(context, session, ring, &op, s)).await,
    };
    match outcome {
        Ok(done) => done as i64,
        Err(e) => -i64::from(errno_of(&e, op.handle.inode.id)),
    }
}

async fn read_pieces<S: FileSystem>(
    context: &Context<S>,
    session: &Session,
    ring: &Ring,
    op: &Operation<S>,
    s: &Submission,
) -> Result<u64, Failure> {
    let (mut done, mut at, mut in_hole) = (0, 0, false);
    while at < s.len {
        let len = (s.len - at).min(PIECE_BYTES);
        let turn = context.rings.turn(session, len as usize, ring.priority).await;
        let (n, found) = read(context, session, op, s, at, len).await?;
        drop(turn);
        let whole = if in_hole { 0 } else { found.whole };
        // Whether what is missing is a hole, or only never was there, tells what lies behind it.
        if op.forbid_holes && whole < found.end {
            return Err(Failure::Errno(ENODATA));
        }
        in_hole = op.forbid_holes && whole < n;
        done += if in_hole { whole } else { n } as u64;
        at += n as u64;
        if (n as u64) < len {
            break;
        }
    }
    if in_hole && done == 0 {
        return Err(Failure::Errno(ENODATA));
    }
    Ok(done)
}

async fn write_pieces<S: FileSystem>(
    context: &Context<S>,
    session: &Session,
    ring: &Ring,
    op: &Operation<S>,
    s: &Submission,
) -> Result<u64, Failure> {
    let mut done = 0;
    while done < s.len {
        let len = (s.len - done).min(PIECE_BYTES);
        let turn = context.rings.turn(session, len as usize, ring.priority).await;
        write(context, session, op, s, done, len).await?;
        drop(turn);
        done += len;
    }
    if done > 0 && op.handle.durable {
        context.make_durable(&op.handle).await?;
        context.heard(&op.handle)?;
    }
    Ok(done)
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
    let memory = session.buffers.borrow().get(&s.buffer).map(|b| b.memory.clone()).ok_or(EBADF)?;
    if s.buffer_offset.checked_add(s.len).is_none_or(|end| end > memory.memory.len()) {
        return Err(EFAULT);
    }
    let fh = session.files.borrow().get(&s.file).copied().ok_or(EBADF)?;
    let handle = context.inodes.handles.file(fh).ok_or(EBADF)?;
    let may = match ring.kind {
        Kind::Read => handle.read,
        Kind::Write => handle.write,
    };
    if !may {
        return Err(EBADF);
    }
    let handle = InUse::begin(handle).ok_or(EBADF)?;
    let forbid_holes = (s.flags | ring.flags) & flags::FORBID_READ_HOLES != 0;
    Ok(Operation { memory, handle, forbid_holes })
}

/// The buffer cannot be reached, whatever the reason: its pages are gone, or there is no room for them.
fn no_memory(_: std::io::Error) -> Failure {
    Failure::Errno(EFAULT)
}

/// Reads a piece. How many bytes of it the file has, and which of them exist.
async fn read<S: FileSystem>(
    context: &Context<S>,
    session: &Session,
    op: &Operation<S>,
    s: &Submission,
    done: u64,
    len: u64,
) -> Result<(usize, Found), Failure> {
    let rt = &context.rt;
    let got = context.read_at(&op.handle, s.file_offset + done, len, |n| rt.alloc(n)).await?;
    let Some((bytes, found)) = got else { return Ok((0, Found::default())) };
    let n = if op.forbid_holes { found.whole } else { bytes.len() };
    let to = s.buffer_offset + done;
    let copied = context.rings.copies.write(rt, session.user, &op.memory, to, &bytes[..n]).await;
    copied.map_err(Failure::Errno)?;
    Ok((bytes.len(), found))
}

async fn write<S: FileSystem>(
    context: &Context<S>,
    session: &Session,
    op: &Operation<S>,
    s: &Submission,
    done: u64,
    len: u64,
) -> Result<(), Failure> {
    let mut own = context.rt.alloc(len as usize);
    op.memory.memory.read(s.buffer_offset + done, &mut own).map_err(no_memory)?;
    let how =
        HowToWrite { append: false, later: false, kill_suid: session.kills_suid(), piece: None };
    if context.may_have_capability(&op.handle) {
        Box::pin(context.kill_capability(&op.handle)).await?;
    }
    // What a mapping has of before is not to be written over this.
    forget(context, op.handle.inode.id).await;
    let place = s.file_offset + done;
    let written = context.write_at(&op.handle, place, own.freeze(), how, None).await;
    // And what the kernel was given meanwhile is old when the application hears of it, also where it hears that the write failed: some of it may be there.
    forget(context, op.handle.inode.id).await;
    written.map(drop)
}
