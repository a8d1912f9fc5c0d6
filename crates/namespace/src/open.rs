//! OPEN, SYNC, CLOSE, RENEW: sessions and lengths.

use crate::access::{self, READ, WRITE};
use crate::attr::truncate;
use crate::context::{Context, cut_in_the_way, err, file_bytes, gone};
use crate::inline;
use crate::keys;
use crate::record::{Inode, Session, pack, unpack};
use glowfs_types::layout::FILE_BYTES_MAX;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::meta::{AtimeRule, Attr, Caller, InodeKind, Open, OpenFlags, Renew, Sync};
use glowfs_types::{Error, InodeId, Result, SessionId, Status};

/// A file that may be read or written: the service makes a capability of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Attributes after the open.
    pub attr: Attr,
    /// The session, if there is one.
    pub session: Option<SessionId>,
    /// May read.
    pub read: bool,
    /// May write.
    pub write: bool,
    /// All of its contents, if they are kept with the metadata and it was opened for reading.
    pub content: Option<Vec<u8>>,
}

impl Opened {
    /// Without a session, and without contents.
    pub(crate) fn new(attr: Attr, read: bool, write: bool) -> Self {
        Self { attr, session: None, read, write, content: None }
    }
}

/// Opens. A write-open needs a session; a read-open may have one, which keeps the data of a removed file until it is closed.
pub async fn open(cx: &Context<'_>, req: &Open) -> Result<Opened> {
    let f = req.flags;
    if cx.done_before(req).await?.is_some() {
        // While it was open nobody has erased it.
        let inode = cx.find_inode(req.inode).await?.ok_or_else(ended)?;
        let attr = cx.attr_of(req.inode, &inode).await?;
        return opened_before(cx, attr, f).await;
    }
    let mut inode = cx.inode(req.inode).await?;
    let opened = open_inode(cx, req.inode, &mut inode, f, access::check_named).await?;
    if opened.session.is_some() || f.truncate {
        cx.remember(req, req.inode)?;
    }
    Ok(opened)
}

/// The answer to a retry: the session must still be there, and the caller's.
pub(crate) async fn opened_before(cx: &Context<'_>, attr: Attr, f: OpenFlags) -> Result<Opened> {
    let session = own_session(cx, attr.inode, f.session).await?.map(|_| f.session);
    if f.write && session.is_none() {
        return Err(ended());
    }
    Ok(Opened { session, ..Opened::new(attr, f.read, f.write) })
}

/// [`access::check`], or [`access::check_named`].
type Check = fn(&Caller, &Inode, u32) -> Result<()>;

/// Opens an inode that the caller may open, as `check` says.
pub(crate) async fn open_inode(
    cx: &Context<'_>,
    id: InodeId,
    inode: &mut Inode,
    flags: OpenFlags,
    check: Check,
) -> Result<Opened> {
    let writes = flags.write || flags.truncate;
    match inode.kind {
        InodeKind::File => {}
        InodeKind::Directory if writes => return err(Status::IsDirectory),
        InodeKind::Directory => {
            check(cx.caller, inode, READ)?;
            let attr = cx.attr_of(id, inode).await?;
            return Ok(Opened::new(attr, true, false));
        }
        InodeKind::Symlink => return err(Status::Loop),
        _ => {
            return Err(Error::new(
                Status::NotSupported,
                "special files are opened by the client's kernel",
            ));
        }
    }
    let read = if flags.read { access::to_read(flags.exec) } else { 0 };
    check(cx.caller, inode, read | if writes { WRITE } else { 0 })?;
    if writes {
        crate::flags::check_open(inode, flags.append, flags.truncate)?;
    }
    if writes && inode.cut.is_some() {
        return Err(cut_in_the_way(id));
    }
    if inode.is_inline() && !flags.inline {
        return Err(inline::in_the_way("the client that opens it knows chunks only"));
    }
    if inode.nlink == 0
        && crate::removed::is_doomed(cx, id).await?
        && !planted(Mutant::DoomUnchecked)
    {
        return Err(gone(id));
    }
    check_free(cx, id, flags.session).await?;
    let mut changed = false;
    if flags.truncate {
        let before = file_bytes(inode);
        truncate(cx, id, inode, 0).await?;
        cx.count(inode, 0, -before)?;
        changed = true;
    }
    let session = put_session(cx, id, flags)?;
    changed |= flags.write && inode.let_write(session);
    if changed {
        cx.put_inode(id, inode)?;
    }
    // Who opens it to write as well seldom reads it first.
    let content = match inode.is_inline() && flags.read && !flags.write {
        true => Some(inline::content(cx, id).await?),
        false => None,
    };
    Ok(Opened {
        attr: cx.attr_here(id, inode),
        session,
        read: flags.read,
        write: flags.write,
        content,
    })
}

/// Whether a file may get a session of this id. It is its client's own, and a strange one must not take its place. And it is of one file: in its client's list of
/// them, by which it is found when the client has died, it leads to one.
pub(crate) async fn check_free(cx: &Context<'_>, id: InodeId, session: SessionId) -> Result<()> {
    if session == SessionId(0) {
        return Ok(());
    }
    let v = cx.volume();
    let ask = [keys::session(v, id, session), keys::client_session(v, cx.caller.client, session)];
    let mut found = cx.tx.get_all(&ask).await?.into_iter();
    let of_file = found.next().flatten().map(|s| unpack("session", &s)).transpose()?;
    check_own(cx, of_file.as_ref())?;
    match found.next().flatten() {
        Some(other) if other != id.0.to_be_bytes() => {
            Err(Error::new(Status::InvalidArgument, "the session is one of another file"))
        }
        _ => Ok(()),
    }
}

/// Records a session, if the flags name one. [`check_free`] comes before.
pub(crate) fn put_session(
    cx: &Context<'_>,
    id: InodeId,
    flags: OpenFlags,
) -> Result<Option<SessionId>> {
    if flags.session == SessionId(0) || !(flags.read || flags.write) {
        return if flags.write {
            Err(Error::new(Status::InvalidArgument, "opening for writing needs a session id"))
        } else {
            Ok(None)
        };
    }
    let record = Session {
        client: cx.caller.client,
        read: flags.read,
        write: flags.write,
        opened: cx.now,
        fence: 0,
    };
    note_session(cx, id, flags.session, &record)?;
    Ok(Some(flags.session))
}

/// Puts a session down, with its file and in the list of its client.
pub(crate) fn note_session(
    cx: &Context<'_>,
    id: InodeId,
    session: SessionId,
    record: &Session,
) -> Result<()> {
    let v = cx.volume();
    cx.tx.put(keys::session(v, id, session), pack(record))?;
    cx.tx.put(keys::client_session(v, record.client, session), id.0.to_be_bytes().to_vec())
}

/// What a session did to a file, without closing it. Without a session, or with one for reading, only when it was read.
pub async fn sync(cx: &Context<'_>, req: &Sync) -> Result<Attr> {
    let mut inode = cx.inode(req.inode).await?;
    let session = match req.session {
        Some(id) => Some(own_session(cx, req.inode, id).await?.ok_or_else(ended)?),
        None => None,
    };
    apply_of(cx, req, session.as_ref(), &mut inode)?;
    if let (Some(id), Some(session)) = (req.session, session)
        && req.fence > session.fence
    {
        let key = keys::session(cx.volume(), req.inode, id);
        cx.tx.put(key, pack(&Session { fence: req.fence, ..session }))?;
    }
    cx.attr_of(req.inode, &inode).await
}

/// Directories and symlinks are read by meta itself: notes the time of last access, if this one moves it.
pub async fn touch(cx: &Context<'_>, id: InodeId, rule: AtimeRule) -> Result<()> {
    let Some(mut inode) = cx.find_inode(id).await? else { return Ok(()) };
    if cx.attr_of(id, &inode).await?.wants_atime(rule, cx.now) {
        inode.atime = cx.now;
        cx.put_inode(id, &mut inode)?;
    }
    Ok(())
}

/// The same, and ends the session. An orphan goes with its last session. Repeating it changes nothing.
pub async fn close(cx: &Context<'_>, req: &Sync) -> Result<Attr> {
    let Some(mut inode) = cx.find_inode(req.inode).await? else {
        // A retry: the inode went with its last session.
        return Ok(Attr { inode: req.inode, ..Attr::default() });
    };
    let Some(id) = req.session else {
        apply_of(cx, req, None, &mut inode)?;
        return Ok(cx.attr_here(req.inode, &inode));
    };
    let Some(session) = own_session(cx, req.inode, id).await? else {
        // A retry finds its own effect. A session that the cluster ended must not swallow what was written.
        let lost = req.epoch == inode.epoch && req.len_at_least.is_some_and(|l| l > inode.len);
        return if lost { Err(ended()) } else { Ok(cx.attr_here(req.inode, &inode)) };
    };
    apply_of(cx, req, Some(&session), &mut inode)?;
    let unwritten = session.write && req.len_at_least.is_none() && req.epoch == inode.epoch;
    end(cx, req.inode, id, session.client, &mut inode, unwritten).await?;
    Ok(cx.attr_here(req.inode, &inode))
}

/// Takes a session away, and the inode with it if that was all that held it.
pub(crate) async fn end(
    cx: &Context<'_>,
    id: InodeId,
    session: SessionId,
    client: glowfs_types::ClientId,
    inode: &mut Inode,
    unwritten: bool,
) -> Result<()> {
    let v = cx.volume();
    cx.tx.clear(keys::session(v, id, session))?;
    cx.tx.clear(keys::client_session(v, client, session))?;
    let orphan = inode.nlink == 0 && inode.trashed.is_none();
    // What others wrote before, or beside it, may be there, also if they were told that it failed.
    let alone = inode.only_writer == Some(session);
    let never_stored = unwritten && alone && inode.stored && inode.len == 0 && inode.cut.is_none();
    if (!orphan && !never_stored) || cx.has_sessions(id).await? {
        return Ok(());
    }
    if never_stored {
        // Nobody wrote: there is nothing to collect later.
        inode.stored = false;
        inode.only_writer = None;
        cx.put_inode(id, inode)?;
    }
    if orphan && !cx.env.keeps_removed() {
        cx.tx.clear(keys::orphan(v, id))?;
        cx.erase(id, inode).await?;
    }
    Ok(())
}

pub(crate) fn ended() -> Error {
    let e = "the session was ended by the cluster; open the file again";
    Error::new(Status::SessionEnded, e)
}

pub(crate) async fn own_session(
    cx: &Context<'_>,
    id: InodeId,
    session: SessionId,
) -> Result<Option<Session>> {
    if session == SessionId(0) {
        return Ok(None);
    }
    let found = cx.find_session(id, session).await?;
    check_own(cx, found.as_ref())?;
    Ok(found)
}

fn check_own(cx: &Context<'_>, found: Option<&Session>) -> Result<()> {
    match found {
        Some(s) if s.client != cx.caller.client => {
            Err(Error::new(Status::SessionEnded, "the session belongs to another client"))
        }
        _ => Ok(()),
    }
}

/// Takes over what the holder of `session` may say of a file.
fn apply_of(
    cx: &Context<'_>,
    req: &Sync,
    session: Option<&Session>,
    inode: &mut Inode,
) -> Result<()> {
    match session {
        Some(s) if s.write => apply(cx, req, inode),
        Some(_) => apply_times(cx, req, inode),
        // Who may not read it cannot have read it. No error: its mode may have changed since it was opened.
        None if access::owns_named(cx.caller, inode)
            || access::check(cx.caller, inode, READ).is_ok() =>
        {
            apply_times(cx, req, inode)
        }
        None => Ok(()),
    }
}

fn apply(cx: &Context<'_>, req: &Sync, inode: &mut Inode) -> Result<()> {
    let before = file_bytes(inode);
    let mut changed = false;
    if req.len_at_least.is_some() && inode.is_inline() {
        // It was told that there are chunks, and the metadata has lost that together with the power.
        return Err(ended());
    }
    if req.len_at_least.is_some() && inode.only_writer.take().is_some() {
        changed = true;
    }
    // Bytes written under an older epoch were cut off.
    if let Some(len) = req.len_at_least.filter(|_| req.epoch == inode.epoch) {
        if len > FILE_BYTES_MAX {
            return err(Status::FileTooBig);
        }
        if len > inode.len {
            if inode.cut.is_some() {
                return Err(cut_in_the_way(req.inode));
            }
            inode.len = len;
            changed = true;
        }
    }
    if let Some(t) = req.mtime.filter(|t| t.nanos <= 999_999_999) {
        inode.written(t, cx.now);
        changed = true;
    } else if req.wrote {
        inode.written_before_its_time(cx.now);
        changed = true;
    }
    if let Some(t) = req.atime.filter(|t| *t > inode.atime && t.nanos <= 999_999_999) {
        inode.atime = t;
        changed = true;
    }
    if let Some(bytes) = req.allocated.filter(|_| req.epoch == inode.epoch) {
        let before = inode.allocated;
        inode.set_allocated(bytes);
        changed |= inode.allocated != before;
    }
    if changed {
        cx.put_inode(req.inode, inode)?;
        cx.count(inode, 0, file_bytes(inode) - before)?;
    }
    Ok(())
}

/// A reader may only say when it read.
fn apply_times(cx: &Context<'_>, req: &Sync, inode: &mut Inode) -> Result<()> {
    if let Some(t) = req.atime.filter(|t| *t > inode.atime && t.nanos <= 999_999_999) {
        inode.atime = t;
        cx.put_inode(req.inode, inode)?;
    }
    Ok(())
}

/// Whether an open file may go on being used. With a session what it was opened for counts, without one the mode bits.
pub async fn renew(cx: &Context<'_>, req: &Renew) -> Result<Opened> {
    let inode = cx.inode(req.inode).await?;
    if inode.kind != InodeKind::File {
        return err(Status::InvalidArgument);
    }
    if req.write && inode.cut.is_some() {
        return Err(cut_in_the_way(req.inode));
    }
    // Who has it open for both may go on reading.
    let write = req.write && crate::flags::check_touch(&inode).is_ok();
    if !req.read && req.write && !write {
        return err(Status::NotPermitted);
    }
    let session = match req.session {
        Some(id) => Some(own_session(cx, req.inode, id).await?.ok_or_else(ended)?),
        None => None,
    };
    match &session {
        Some(s) if (!req.write || s.write) && (!req.read || s.read) => {}
        Some(_) => return err(Status::AccessDenied),
        None if req.write => {
            return Err(Error::new(Status::InvalidArgument, "writing needs a session"));
        }
        None if access::owns_named(cx.caller, &inode) => {}
        None => access::check_named(cx.caller, &inode, access::to_read(req.exec))?,
    }
    if req.spill && inode.is_inline() {
        return Err(inline::in_the_way("the client that has it open needs chunks"));
    }
    Ok(Opened {
        session: req.session,
        ..Opened::new(cx.attr_here(req.inode, &inode), req.read, write)
    })
}
