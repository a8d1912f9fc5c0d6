//! The calls of clients: each is one transaction of the namespace, and what has to follow its commit.
//!
//! Guarantees: a call is done once, however often its client sends it; when its answer leaves, every other client that may have cached what it changed has
//! been told, or its lease has ended; a truncate is finished, or the answer is an error. Must never: let a client act as another one, or lease to it what
//! somebody changed while it was looked up (the watch begins before the transaction).

use crate::append;
use crate::background::look_at_space;
use crate::closes;
use crate::cut;
use crate::finishing::Seen;
use crate::fsck;
use crate::inline;
use crate::locks;
use crate::names::{Naming, seen};
use crate::once::Doubt;
use crate::recall::Change;
use crate::reopen;
use crate::state::{Asker, Service, VOLUME};
use crate::trash;
use crate::trees;
use glowfs_kv::{RunOptions, Transaction};
use glowfs_namespace as ns;
use glowfs_namespace::{Context, Made, Opened, is_in_the_way};
use glowfs_net::{Conn, Reply};
use glowfs_rt::Duration;
use glowfs_rt::sync::Share;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::orphans::{Orphans, OrphansReply};
use glowfs_types::wire::{Empty, decode, method};
use glowfs_types::{
    ClientId, Durability, Error, InodeId, RequestId, Result, Status, VolumeId, mode,
};
use std::rc::Rc;

/// How often an operation finishes somebody's truncate and tries again.
const CUT_ATTEMPTS: u32 = 5;
/// After this time it does nothing any more: its client has given up waiting for this call (5 s), and asked again.
const CLEARING_MAX: Duration = Duration::from_secs(5);
/// The attribute that gives a program privileges.
const CAPABILITY: &[u8] = b"security.capability";
/// How long STATFS waits for the first answer of a storage node.
const FIRST_SPACE: Duration = Duration::from_secs(2);

/// Whether a method is one of the file system's.
pub fn takes(m: u16) -> bool {
    (method::LOOKUP..=method::REOPEN).contains(&m)
        || matches!(m, method::ORPHANS | method::TRASH | method::FSCK)
        || matches!(m, method::INLINE_READ | method::INLINE_WRITE)
        || matches!(m, method::REMOVE_TREE | method::TREES)
}

impl Service {
    pub(crate) async fn who(&self, conn: &Conn, caller: &mut Caller) -> Result<()> {
        let identity = &conn.peer().identity;
        // A client speaks for itself only: sessions and leases belong to clients.
        if !identity.service && caller.client != conn.peer().client {
            return Err(Error::new(
                Status::SessionEnded,
                format!("client {} cannot act as client {}", conn.peer().client, caller.client),
            ));
        }
        if caller.volume == VolumeId(0) {
            caller.volume = VOLUME;
        }
        if caller.volume != VOLUME {
            return Err(Error::new(
                Status::NotFound,
                format!("volume {} does not exist", caller.volume),
            ));
        }
        self.users.check(identity, caller).await
    }

    /// Attributes that the client may not keep: it changed them itself.
    fn attr_reply(&self, attr: Attr, open: Option<OpenReply>) -> AttrReply {
        AttrReply { attr, lease_ms: 0, open, dir: None, name_lease_ms: None }
    }

    /// Runs an operation on an inode; if a truncate of it is unfinished, finishes that first, and if its contents have to go into chunks, sees
    /// to that.
    pub(crate) async fn with_cut<T>(
        &self,
        inode: InodeId,
        work: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        self.with_cut_by(ClientId(0), inode, work).await
    }

    /// The same for a client that gets to know by the answer what was done to the inode.
    pub(crate) async fn with_cut_by<T>(
        &self,
        by: ClientId,
        inode: InodeId,
        work: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        let (mut attempts, until) = (0, self.rt.now() + CLEARING_MAX);
        loop {
            match work().await {
                Err(e) if is_in_the_way(&e) && attempts < CUT_ATTEMPTS && self.rt.now() < until => {
                    attempts += 1;
                    let cleared = self.clear_way(by, inode).await;
                    if self.rt.now() >= until {
                        return Err(cleared.err().unwrap_or_else(too_late));
                    }
                    let Err(stuck) = cleared else { continue };
                    // What could not be done may have been in the way of others only.
                    return match work().await {
                        Err(e) if is_in_the_way(&e) => Err(stuck),
                        other => other,
                    };
                }
                other => return other,
            }
        }
    }

    /// What stood in the way of an operation on an inode does so no more.
    async fn clear_way(&self, by: ClientId, inode: InodeId) -> Result<()> {
        cut::finish_inode(self, inode).await?;
        inline::spill(self, by, inode).await
    }
}

/// Another copy of the request is on its way, or its client has given up: what it wants done may not be what anybody expects any more.
fn too_late() -> Error {
    Error::new(Status::Overloaded, "what stood in the way is done, and took too long; retry")
}

/// Answers a call of a client, which has a place among those in work: who only waits leaves it to others, or those who wait would keep those out who give back.
pub async fn answer(
    s: &Service,
    m: u16,
    id: &Rc<Conn>,
    body: &[u8],
    place: Share<Asker>,
) -> Result<Reply> {
    let stat = Change::attributes;
    if m == method::APPEND {
        return append::answer(s, id, body, place).await;
    }
    let _place = (!locks::only_waits(m)).then_some(place);
    Ok(match m {
        method::LOOKUP => Reply::msg(&lookup(s, id, body).await?),
        method::GETATTR => leased!(s, id, body; OfInode, q, cx => ns::getattr(cx, &q).await),
        method::READDIR => Reply::msg(&readdir(s, id, body).await?),
        method::READLINK => {
            let (target, accessed, who) = read_ops!(s, id, body; ReadLink, q, cx => {
                let (target, accessed) = ns::readlink(cx, &q).await?;
                Ok((target, accessed.then_some((q.inode, q.atime)), q.caller.client))
            });
            touch(s, who, accessed).await;
            Reply::msg(&ReadLinkReply { target })
        }
        method::GETXATTR => {
            let value = read_ops!(s, id, body; OfXattr, q, cx => ns::getxattr(cx, &q).await);
            Reply::msg(&XattrReply { value })
        }
        method::LISTXATTR => {
            let names = read_ops!(s, id, body; OfInode, q, cx => ns::listxattr(cx, &q).await);
            Reply::msg(&XattrList { names })
        }
        method::SETXATTR => {
            let capability = write_ops!(s, id, body; SetXattr, q, cx => {
                ns::setxattr(cx, &q).await?;
                Ok((q.name.as_slice() == CAPABILITY).then_some((q.inode, q.caller.client)))
            }; out => vec![stat(q.inode)]);
            if let Some((inode, by)) = capability {
                cut::tell_writers(s, by, Change::attributes(inode)).await?;
            }
            Reply::msg(&Empty {})
        }
        method::REMOVEXATTR => {
            write_ops!(s, id, body; OfXattr, q, cx => ns::removexattr(cx, &q).await; _out => vec![stat(q.inode)]);
            Reply::msg(&Empty {})
        }
        method::LINK => {
            let (attr, dirs, _) = name_ops!(s, id, body; Link, q, cx of [(q.parent, &q.name)], gone false => ns::link(cx, &q).await;
                attr => Some(vec![stat(q.parent), stat(q.inode)]));
            Reply::msg(&AttrReply { dir: only(dirs), ..s.attr_reply(attr, None) })
        }
        method::UNLINK => {
            let (attr, dirs, _) = name_ops!(s, id, body; Unlink, q, cx of [(q.parent, &q.name)], gone true => ns::unlink(cx, &q).await;
                attr => attr.as_ref().map(|a| vec![stat(q.parent), Change::name(a.inode, q.parent, &q.name)]));
            Reply::msg(&UnlinkReply { attr, dir: only(dirs) })
        }
        method::RENAME => {
            let (done, dirs, moved) = name_ops!(s, id, body; Rename, q, cx of [(q.parent, &q.name), (q.new_parent, &q.new_name)], gone true => ns::rename(cx, &q).await;
                done => renamed(&q, &done));
            Reply::msg(&RenameReply { replaced: done.replaced, dirs, moved })
        }
        method::SETATTR => Reply::msg(&setattr(s, id, body).await?),
        method::MAKE => Reply::msg(&make(s, id, body).await?),
        method::OPEN => Reply::msg(&open(s, id, body).await?),
        method::RENEW => Reply::msg(&renew(s, id, body).await?),
        method::REOPEN => Reply::msg(&reopen::answer(s, id, body).await?),
        method::SYNC | method::CLOSE => Reply::msg(&sync(s, id, body, m == method::CLOSE).await?),
        method::CLOSES => Reply::msg(&closes::answer(s, id, body).await?),
        method::LOCK | method::LOCK_TEST | method::LOCK_WAIT => {
            locks::answer(s, m, id, body).await?
        }
        method::INLINE_READ => Reply::msg(&inline::read(s, id, body).await?),
        method::INLINE_WRITE => Reply::msg(&inline::write(s, id, body).await?),
        method::STATFS => Reply::msg(&statfs(s).await?),
        method::TRASH => Reply::msg(&trash::answer(s, id, body).await?),
        method::REMOVE_TREE => Reply::msg(&trees::remove(s, id, body).await?),
        method::TREES => Reply::msg(&trees::list(s, id, body).await?),
        method::FSCK => Reply::msg(&fsck::answer(s, id, body).await?),
        method::ORPHANS => Reply::msg(&orphans(s, id, body)?),
        m => {
            return Err(Error::new(
                Status::UnknownMethod,
                format!("method {} ({m}) is not served by meta", method::name(m)),
            ));
        }
    })
}

fn only(dirs: Vec<DirChanged>) -> Option<Box<DirChanged>> {
    dirs.into_iter().next().map(Box::new)
}

async fn lookup(s: &Service, id: &Rc<Conn>, body: &[u8]) -> Result<AttrReply> {
    let mut q: Lookup = decode(body)?;
    s.who(id, &mut q.caller).await?;
    let (watch, by) = (s.watch(), q.caller.client);
    let found = s.look(async |tx| ns::lookup(&Context::new(tx, &q.caller, s), &q).await).await;
    s.others_finished(by, seen(&[(q.parent, &q.name)], &[])).await;
    let attr = found?;
    let (lease_ms, name) = watch.lease_or_name(q.parent, attr.inode, by, id);
    Ok(AttrReply { lease_ms, name_lease_ms: Some(name), ..s.attr_reply(attr, None) })
}

/// A page of a directory. What it says of the entries may be kept, as if each of them had been looked up.
async fn readdir(s: &Service, id: &Rc<Conn>, body: &[u8]) -> Result<ReadDirReply> {
    let mut q: ReadDir = decode(body)?;
    s.who(id, &mut q.caller).await?;
    let watch = s.watch();
    let look = async |tx: &Transaction| ns::readdir(&Context::new(tx, &q.caller, s), &q).await;
    let (mut page, accessed) = s.look(look).await?;
    let all = Seen { dir: q.inode, name: None, version: None };
    s.others_finished(q.caller.client, [all]).await;
    for entry in page.entries.iter_mut().filter(|e| e.attr.is_some()) {
        let lease_ms = watch.lease_named(q.inode, entry.inode, q.caller.client, id);
        entry.leased = lease_ms > 0;
        page.lease_ms = page.lease_ms.max(lease_ms);
    }
    touch(s, q.caller.client, accessed.then_some((q.inode, q.atime))).await;
    Ok(page)
}

/// Notes that a directory or symlink was read, if that moves its time of last access. Who reads has what he asked for, also if it cannot be noted: from an
/// engine that takes no more commits, for want of room say, everything can still be copied.
async fn touch(s: &Service, by: ClientId, inode: Option<(InodeId, AtimeRule)>) {
    let Some((inode, rule)) = inode else { return };
    s.wait_for_old_leases().await;
    let caller = Caller { volume: VOLUME, ..Caller::default() };
    let work = async |tx: &Transaction| ns::touch(&Context::new(tx, &caller, s), inode, rule).await;
    // Once only: whoever changes it at the same moment must not keep the one who reads waiting.
    match s.run_with(RunOptions { attempts: 1, ..s.options(false, true) }, work).await {
        Ok(_) => s.changed(by, &[Change::attributes(inode)]).await,
        Err(error) => tracing::debug!(%inode, %error, "a time of last access is not noted"),
    }
}

/// Which inodes and names a rename may have changed; None: a retry, so it is not known.
fn renamed(q: &Rename, done: &ns::Renamed) -> Option<Vec<Change>> {
    let (from, to) = done.led_to?;
    let names = [(Some(from), q.parent, &q.name), (to, q.new_parent, &q.new_name)];
    let named = names.into_iter().filter_map(|(inode, dir, n)| Some(Change::name(inode?, dir, n)));
    let dirs = [q.parent, q.new_parent].map(Change::attributes);
    Some(dirs.into_iter().chain(named).collect())
}

async fn setattr(s: &Service, id: &Rc<Conn>, body: &[u8]) -> Result<AttrReply> {
    let mut q: SetAttr = decode(body)?;
    s.who(id, &mut q.caller).await?;
    s.wait_for_old_leases().await;
    let once = q.request != RequestId(0);
    let work = async |tx: &Transaction| ns::setattr(&Context::new(tx, &q.caller, s), &q).await;
    let set = async |doubt: &Doubt| {
        let run = async || s.run_on(q.inode, (false, once), doubt, &work).await;
        s.with_cut_by(q.caller.client, q.inode, run).await
    };
    let (mut attr, cut) = s.once(&q, set).await?;
    let change = match q.len {
        Some(_) => Change::contents(q.inode, Some(attr.epoch)),
        None => Change::attributes(q.inode),
    };
    s.changed(q.caller.client, &[change]).await;
    if q.mode.is_some_and(|m| m & (mode::SETUID | mode::SETGID) != 0) {
        cut::tell_writers(s, q.caller.client, Change::attributes(q.inode)).await?;
    }
    match cut {
        Some(cut) => {
            // Who changes something else of a file that another one cuts may have writes on their way.
            let by = q.len.map_or(ClientId(0), |_| q.caller.client);
            attr.epoch = cut::finish(s, &cut, by).await?;
        }
        None if q.len.is_some() => cut::replaced(s, &attr, q.caller.client).await?,
        None => {}
    }
    Ok(s.attr_reply(attr, None))
}

async fn make(s: &Service, id: &Rc<Conn>, body: &[u8]) -> Result<AttrReply> {
    let mut q: Make = decode(body)?;
    s.who(id, &mut q.caller).await?;
    s.wait_for_old_leases().await;
    let (watch, by) = (s.watch(), q.caller.client);
    // What has no name yet, the kernel makes without locking the directory.
    let names = if q.unnamed { &[][..] } else { &[(q.parent, &q.name)][..] };
    let naming = s.begin_names((by, id), q.request, names, false);
    let run = async |_: &Doubt| make_named(s, &q, naming.as_ref()).await;
    let (made, mut dirs) = match s.once(&q, run).await {
        Ok(made) => made,
        Err(e) => {
            s.names_failed(naming, &e);
            s.others_finished(by, seen(names, &[])).await;
            return Err(e);
        }
    };
    let mut changes = vec![Change::attributes(q.parent)];
    // What is new, nobody has anything of.
    let new = dirs.iter().any(|d| d.attr.entries != Some(d.before));
    let cut = !new && q.open.is_some_and(|f| f.truncate);
    if cut {
        changes.push(Change::contents(made.attr.inode, Some(made.attr.epoch)));
    }
    s.names_committed(naming.as_ref(), by, &changes, &dirs);
    s.changed_dirs(by, &changes, (&watch, &dirs)).await;
    s.others_finished(by, seen(names, &dirs)).await;
    drop(naming);
    if cut {
        cut::replaced(s, &made.attr, by).await?;
    }
    if let Some(opened) = &made.opened {
        settle_session(s, opened).await?;
    }
    // Where a copy of the request finds it done, others may have removed or renamed it since: the name was not looked at, and nothing is leased.
    let lease_ms = match q.unnamed || !dirs.is_empty() {
        true => watch.lease_named(q.parent, made.attr.inode, by, id),
        false => 0,
    };
    watch.lease_dirs(&mut dirs, by, id);
    let open = made.opened.map(|o| s.open_reply(o, by, 0)).transpose()?;
    Ok(AttrReply { lease_ms, dir: only(dirs), ..s.attr_reply(made.attr, open) })
}

/// Makes what is asked for; if it opens what is there, finishes an unfinished truncate of that first.
async fn make_named(
    s: &Service,
    q: &Make,
    naming: Option<&Naming>,
) -> Result<(Made, Vec<DirChanged>)> {
    let once = q.request != RequestId(0);
    let (mut attempts, until) = (0, s.rt.now() + CLEARING_MAX);
    loop {
        let work = async |tx: &Transaction| {
            let cx = Context::new(tx, &q.caller, s);
            Ok((ns::make(&cx, q).await?, cx.dirs_changed()))
        };
        match s.run_naming(naming, once, work).await {
            Err(e) if is_in_the_way(&e) && attempts < CUT_ATTEMPTS => {
                attempts += 1;
                let there =
                    Lookup { caller: q.caller.clone(), parent: q.parent, name: q.name.clone() };
                let look = async |tx: &Transaction| {
                    ns::lookup(&Context::new(tx, &there.caller, s), &there).await
                };
                match s.look(look).await {
                    Ok(attr) => s.clear_way(ClientId(0), attr.inode).await?,
                    // Somebody has removed it meanwhile: then it is to be made.
                    Err(e) if matches!(e.status, Status::NotFound | Status::Stale) => {}
                    Err(e) => return Err(e),
                }
                if s.rt.now() >= until {
                    return Err(too_late());
                }
            }
            other => return other,
        }
    }
}

async fn open(s: &Service, id: &Rc<Conn>, body: &[u8]) -> Result<OpenReply> {
    let mut q: Open = decode(body)?;
    s.who(id, &mut q.caller).await?;
    if q.flags.truncate {
        s.wait_for_old_leases().await;
    }
    let once = q.request != RequestId(0);
    let watch = s.watch();
    let work = async |tx: &Transaction| ns::open(&Context::new(tx, &q.caller, s), &q).await;
    let open = async |doubt: &Doubt| {
        let run = async || match q.flags.write || q.flags.truncate {
            true => s.run_on(q.inode, (false, once), doubt, &work).await,
            false => s.run(false, once, &work).await,
        };
        s.with_cut(q.inode, run).await
    };
    let opened = s.once(&q, open).await?;
    settle_session(s, &opened).await?;
    if q.flags.truncate {
        let change = Change::contents(q.inode, Some(opened.attr.epoch));
        s.changed(q.caller.client, &[change]).await;
        cut::replaced(s, &opened.attr, q.caller.client).await?;
    }
    let lease_ms = watch.lease(q.inode, q.caller.client, id);
    s.open_reply(opened, q.caller.client, lease_ms)
}

/// Writes of a file with `durability = "disk"` survive the loss of power without an fsync, so its name and the session that leads to
/// the file's length must do so before the first of them; and so must the epoch that it is written under.
pub(crate) async fn settle_session(s: &Service, opened: &Opened) -> Result<()> {
    let disk = opened.attr.layout.is_some_and(|l| l.durability == Durability::Disk);
    let first = disk || s.cuts_ended.has(opened.attr.inode);
    if first && opened.write { s.flush().await } else { Ok(()) }
}

async fn renew(s: &Service, id: &Rc<Conn>, body: &[u8]) -> Result<OpenReply> {
    let mut q: Renew = decode(body)?;
    s.who(id, &mut q.caller).await?;
    if q.spill {
        s.wait_for_old_leases().await;
    }
    let opened = s
        .with_cut_by(q.caller.client, q.inode, async || {
            s.look(async |tx| ns::renew(&Context::new(tx, &q.caller, s), &q).await).await
        })
        .await?;
    // What is written to chunks from here on is lost, if what has put the contents there is.
    settle_session(s, &opened).await?;
    s.open_reply(opened, q.caller.client, 0)
}

async fn sync(s: &Service, id: &Rc<Conn>, body: &[u8], close: bool) -> Result<AttrReply> {
    let mut q: Sync = decode(body)?;
    s.who(id, &mut q.caller).await?;
    s.wait_for_old_leases().await;
    let attr = settle_length(s, &q, close).await?;
    let changes: Vec<Change> = change_of(&q).into_iter().collect();
    s.changed(q.caller.client, &changes).await;
    Ok(s.attr_reply(attr, None))
}

/// Notes what a session did to a file, and ends the session if it is to be closed.
pub(crate) async fn settle_length(s: &Service, q: &Sync, close: bool) -> Result<Attr> {
    let durable = q.durable && !planted(Mutant::FsyncNotDurable);
    s.with_cut(q.inode, async || {
        // Both may be repeated: lengths and times only grow, and a closed session stays closed.
        s.run_on(q.inode, (durable, true), &Doubt::default(), async |tx| {
            let cx = &Context::new(tx, &q.caller, s);
            if close { ns::close(cx, q).await } else { ns::sync(cx, q).await }
        })
        .await
    })
    .await
}

/// What others may have to be told of after a SYNC or CLOSE.
pub(crate) fn change_of(q: &Sync) -> Option<Change> {
    if q.len_at_least.is_some() || q.tells_of_writes() {
        Some(Change::contents(q.inode, None))
    } else {
        q.atime.map(|_| Change::attributes(q.inode))
    }
}

fn orphans(s: &Service, conn: &Conn, body: &[u8]) -> Result<OrphansReply> {
    let identity = &conn.peer().identity;
    if !identity.service && !identity.admin && !identity.root {
        let e = "only operators and services may look for data without an owner";
        return Err(Error::new(Status::AccessDenied, e));
    }
    let q: Orphans = decode(body)?;
    s.orphans.ask(q.what)?;
    Ok(s.show_orphans())
}

async fn statfs(s: &Service) -> Result<StatFsReply> {
    let usage = s.look(async |tx| ns::statfs(tx, VOLUME).await).await?;
    // A cluster that has just started: its storage nodes are not known yet, or have not answered yet.
    let until = s.rt.now() + FIRST_SPACE;
    while s.space.borrow().total_bytes == 0 {
        look_at_space(s).await;
        if s.rt.now() >= until {
            break;
        }
        s.rt.sleep(FIRST_SPACE / 20).await;
    }
    Ok(StatFsReply { inodes: usage.inodes, ..s.space.borrow().clone() })
}
