//! Files whose contents are kept with the metadata, as an open file uses them: every read and write asks meta, until it says that there are chunks.
//!
//! Must never: touch a chunk of a file before meta has said that its contents are in chunks. (Until then no capability allows it either.)

use crate::file::{Go, OpenFile};
use crate::read::Found;
use glowfs_rt::{Buf, BufMut};
use glowfs_types::wire::inline::{InlineRead, InlineReply, InlineWrite};
use glowfs_types::wire::meta::{Attr, Sync};
use glowfs_types::{Error, RequestId, Result, Status, TruncateEpoch};
use std::rc::Rc;

/// How often a capability for chunks is asked for by somebody who just missed one.
const SPILLS_MAX: u32 = 3;
/// How often a write is sent that comes too late, because others were given up.
const FENCES_MAX: u32 = 5;

/// All of the contents; none if they are in chunks.
pub(crate) async fn content(file: &OpenFile) -> Result<Option<InlineReply>> {
    if !file.is_inline() {
        return Ok(None);
    }
    file.check_owner()?;
    let caller = file.access().caller.clone();
    let (session, exec) = (file.session(), file.access().exec);
    let q = InlineRead { caller, inode: file.inode(), session, exec };
    let client = file.client();
    let call = async |_| client.inline_read(q.clone()).await;
    let reply = match session {
        Some(_) => client.in_session((q.inode, session), call).await?,
        None => call(Go::First).await?,
    };
    file.update_attr(&reply.attr);
    Ok(Some(reply).filter(|r| r.content.is_some()))
}

/// As [`OpenFile::read`].
pub(crate) async fn read(
    file: &Rc<OpenFile>,
    offset: u64,
    mut buf: BufMut,
) -> (Result<Found>, BufMut) {
    let reply = match content(file).await {
        Ok(reply) => reply,
        Err(e) => return (Err(e), buf),
    };
    let Some(bytes) = reply.and_then(|r| r.content) else {
        let core = &file.client().core;
        return crate::read::read(core, file, offset, buf).await;
    };
    let from = usize::try_from(offset).map_or(bytes.len(), |o| o.min(bytes.len()));
    let n = (bytes.len() - from).min(buf.len());
    buf[..n].copy_from_slice(&bytes[from..from + n]);
    buf[n..].fill(0);
    (Ok(Found::first(n)), buf)
}

/// Writes to the contents with the metadata; none if they are in chunks, as they are at last when they would become too long. `under`: as in
/// [`OpenFile::write_told`].
pub(crate) async fn write(
    file: &Rc<OpenFile>,
    offset: u64,
    buf: &Buf,
    under: Option<TruncateEpoch>,
) -> Result<Option<Attr>> {
    let limit = u64::from(file.layout().inline_bytes);
    if offset.checked_add(buf.len() as u64).is_none_or(|end| end > limit) {
        return spill(file).await.map(|()| None);
    }
    let session = file.session().ok_or_else(|| Error::from(Status::Internal))?;
    let mut came_back = None;
    for _ in 0..FENCES_MAX {
        file.check_owner()?;
        file.client().settle_doubts(file.inode()).await?;
        let mut sent = file.doubts().sent();
        let q = InlineWrite {
            caller: file.access().caller.clone(),
            request: RequestId(0),
            inode: file.inode(),
            session,
            offset,
            bytes: buf.to_vec().into(),
            fence: sent.fence,
            under,
        };
        let outcome = file.client().inline_write(q).await;
        if let Err(e) = &outcome
            && e.status == Status::SessionEnded
        {
            // In doubt: when the session is there again, so may be a copy of it.
            drop(sent);
            let life = Box::pin(file.come_back(e.clone())).await?;
            // Once in each life of the engine that has lost it.
            if came_back.replace(life) == Some(life) {
                return Err(e.clone());
            }
            continue;
        }
        sent.answered(&outcome);
        match outcome {
            // It had no effect, and never will: another write through this file was given up meanwhile, and all that were on their way with it.
            Err(e) if e.status == Status::BadCapability => {}
            outcome => {
                let reply = outcome?;
                file.update_attr(&reply.attr);
                return Ok(Some(reply.attr).filter(|_| reply.done));
            }
        }
    }
    let e = format!("writes to inode {} are given up again and again", file.inode());
    Err(Error::new(Status::TimedOut, e))
}

/// Makes what is with the metadata durable. If the contents turn out to be in chunks, the file knows it afterwards, and those are not flushed.
pub(crate) async fn flush(file: &OpenFile) -> Result<()> {
    file.check_owner()?;
    let q = Sync {
        caller: file.access().caller.clone(),
        inode: file.inode(),
        session: file.session(),
        epoch: file.epoch(),
        durable: true,
        ..Sync::default()
    };
    let reply = file.client().sync(q).await?;
    file.update_attr(&reply.attr);
    Ok(())
}

/// Has the contents put into chunks, if they are not there.
pub(crate) async fn spill(file: &OpenFile) -> Result<()> {
    for _ in 0..SPILLS_MAX {
        if !file.is_inline() {
            return Ok(());
        }
        file.renew_with(true).await?;
    }
    if !file.is_inline() {
        return Ok(());
    }
    let e = format!(
        "the metadata service does not put the contents of inode {} into chunks",
        file.inode()
    );
    Err(Error::new(Status::Internal, e))
}
