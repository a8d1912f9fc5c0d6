//! LOCK, LOCK_TEST, LOCK_WAIT.
//!
//! Waiting holds no right: when nothing stands in the way any more, the answer says so, and the client asks for the lock anew. So whoever is
//! interrupted while he waits has nothing to give back. Who waits is woken by the change itself if it is made here; what another meta
//! service changes is looked at from time to time.

use crate::once::Doubt;
use crate::portions::Portions;
use crate::state::{Asker, Service, VOLUME, ms};
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Context, Locked};
use glowfs_net::{Conn, Reply};
use glowfs_rt::Duration;
use glowfs_rt::sync::{Notify, Share, Shares};
use glowfs_types::wire::lock::{Lock, LockHolder, LockReply, LockWish};
use glowfs_types::wire::meta::Caller;
use glowfs_types::wire::{decode, method};
use glowfs_types::{ClientId, Error, InodeId, RequestId, Result, Status};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How long LOCK_WAIT waits before it answers that the lock is still held: shorter than a client waits for an answer.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// How often it looks at what other meta services may have changed, if there are any.
const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// Calls that wait for locks at once, and such that wait to append. Nobody has more of them than he leaves free; more are refused for a while.
const WAITING_MAX: usize = 16_384;
/// Files whose locks of a dead client end in one transaction, if the engine takes so many.
const END_PAGE: u32 = 128;
/// Sessions of a dead client that are looked at before its locks end. Of one that has more nothing ends, until fewer are left.
const SESSIONS_MAX: usize = 1 << 16;
/// Of these, in one step.
const SESSION_PAGE: u32 = 256;

/// Who waits for locks of which file, and who to append.
pub struct LockWaits {
    all: RefCell<BTreeMap<InodeId, (u32, Rc<Notify>)>>,
    locks: Shares<Asker>,
    appends: Shares<Asker>,
}

/// What somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitsFor {
    /// A lock.
    Lock,
    /// The right to append.
    Append,
}

/// Somebody who waits.
pub struct Entry<'a> {
    waits: &'a LockWaits,
    inode: InodeId,
    _place: Share<Asker>,
    /// Something was given back.
    pub news: Rc<Notify>,
}

impl Default for LockWaits {
    fn default() -> Self {
        let places = || Shares::new(WAITING_MAX);
        Self { all: RefCell::default(), locks: places(), appends: places() }
    }
}

impl LockWaits {
    /// Begins to wait.
    pub fn enter(&self, who: Asker, inode: InodeId, what: WaitsFor) -> Result<Entry<'_>> {
        let places = match what {
            WaitsFor::Lock => &self.locks,
            WaitsFor::Append => &self.appends,
        };
        let Some(place) = places.take(who) else {
            let e = "too many calls of this user wait for locks; retry";
            return Err(Error::new(Status::Overloaded, e));
        };
        let mut all = self.all.borrow_mut();
        let (users, news) = all.entry(inode).or_default();
        *users += 1;
        Ok(Entry { waits: self, inode, _place: place, news: news.clone() })
    }
    /// Locks of the file were given back.
    pub fn wake(&self, inode: InodeId) {
        let news = self.all.borrow().get(&inode).map(|(_, news)| news.clone());
        if let Some(news) = news {
            news.notify_all();
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut all = self.waits.all.borrow_mut();
        if let Some((users, _)) = all.get_mut(&self.inode) {
            *users -= 1;
            if *users == 0 {
                all.remove(&self.inode);
            }
        }
    }
}

/// Whether a call of this method holds nothing up but its caller.
pub fn only_waits(m: u16) -> bool {
    m == method::LOCK_WAIT
}

/// Answers one of the three.
pub async fn answer(s: &Service, m: u16, conn: &Rc<Conn>, body: &[u8]) -> Result<Reply> {
    let mut q: Lock = decode(body)?;
    s.who(conn, &mut q.caller).await?;
    let holder = match m {
        method::LOCK => {
            let locked = lock(s, &q).await?;
            if locked.deadlock {
                return Err(Error::new(Status::Deadlock, "the owners wait for one another"));
            }
            locked.holder
        }
        method::LOCK_TEST => test(s, &q).await?,
        _ => wait(s, Asker::of(conn), &q).await?,
    };
    Ok(Reply::msg(&LockReply { holder }))
}

async fn lock(s: &Service, q: &Lock) -> Result<Locked> {
    let once = q.request != RequestId(0);
    let work = async |tx: &Transaction| ns::lock(&Context::new(tx, &q.caller, s), q).await;
    let run = async |doubt: &Doubt| s.run_on(q.inode, (false, once), doubt, &work).await;
    let locked = s.once(q, run).await?;
    if locked.weaker {
        s.lock_waits.wake(q.inode);
    }
    // What the caller relies on from here on: that nobody else has what he got, and that nobody waits for what he gave back.
    let relied_on = locked.holder.is_none() || locked.weaker;
    if relied_on && !locked.deadlock && q.wish != LockWish::GiveUp {
        s.engine.flush_barrier().await?;
    }
    Ok(locked)
}

async fn test(s: &Service, q: &Lock) -> Result<Option<LockHolder>> {
    s.look(async |tx| ns::lock_test(&Context::new(tx, &q.caller, s), q).await).await
}

async fn wait(s: &Service, who: Asker, q: &Lock) -> Result<Option<LockHolder>> {
    let entry = s.lock_waits.enter(who, q.inode, WaitsFor::Lock)?;
    let until = s.rt.now() + WAIT_MAX;
    loop {
        let news = entry.news.wait();
        let holder = test(s, q).await?;
        let left = until.since(s.rt.now());
        if holder.is_none() || left.is_zero() || s.stopping.get() {
            return Ok(holder);
        }
        let pause = if s.has_others() { left.min(LOOK_PAUSE) } else { left };
        let _ = s.rt.timeout(pause, news).await;
    }
}

/// How long a client must have been silent before its locks are given to others: what it holds may protect writes under capabilities that
/// it got just before, so these have ended by then.
pub fn grace(s: &Service) -> Duration {
    ms(s.config.tuning.session_grace_ms.max(s.config.tuning.capability_ms))
}

/// Gives the locks and rights of a dead client back, but for those of files that it has open for writing still: until its session has ended, nobody knows how long such a
/// file is. Whether there were such files.
pub async fn end_of(s: &Service, client: ClientId) -> Result<bool> {
    // Before the locks: the session of one that is taken away has ended by then.
    let Some(written) = written_by(s, client).await? else { return Ok(true) };
    let caller = Caller { client, volume: VOLUME, ..Caller::default() };
    let portions = Portions::new(END_PAGE as usize);
    let mut from = None;
    loop {
        let limit = portions.items();
        let work = async |tx: &Transaction| {
            let cx = &Context::new(tx, &caller, s);
            ns::end_locks(cx, client, &written, from.as_ref(), limit as u32).await
        };
        let ended = match s.run(false, true, work).await {
            Err(e) if portions.smaller(limit, e.status) => continue,
            ended => ended?,
        };
        if !ended.files.is_empty() {
            let files = ended.files.len();
            tracing::info!(%client, files, "gave the locks of a dead client back");
        }
        ended.files.into_iter().for_each(|f| s.lock_waits.wake(f));
        from = ended.next;
        if from.is_none() {
            return Ok(!written.is_empty());
        }
    }
}

/// The files that a client has open for writing; None: it has too many sessions.
async fn written_by(s: &Service, client: ClientId) -> Result<Option<BTreeSet<InodeId>>> {
    let (mut all, mut from) = (BTreeSet::new(), None);
    for _ in 0..SESSIONS_MAX / SESSION_PAGE as usize {
        let work = async |tx: &Transaction| {
            ns::written_by(tx, VOLUME, client, from.as_ref(), SESSION_PAGE).await
        };
        let (files, next) = s.look(work).await?;
        all.extend(files);
        from = next;
        if from.is_none() {
            return Ok(Some(all));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::UserId;

    /// One user's calls that waited for one lock took all places, and nobody could wait to append any more.
    #[test]
    fn who_waits_for_locks_leaves_places_to_others_and_to_appends() {
        let waits = LockWaits::default();
        let user = |n| Asker::User(UserId(n));
        let all = |who, what| {
            let enter = || waits.enter(who, InodeId(7), what).ok();
            std::iter::from_fn(enter).collect::<Vec<_>>()
        };
        let mut first = all(user(1), WaitsFor::Lock);
        assert_eq!(first.len(), WAITING_MAX / 2);
        assert_eq!(all(user(2), WaitsFor::Lock).len(), WAITING_MAX / 4);
        assert_eq!(all(user(1), WaitsFor::Append).len(), WAITING_MAX / 2);
        let refused = waits.enter(user(1), InodeId(8), WaitsFor::Lock).err();
        assert_eq!(refused.map(|e| e.status), Some(Status::Overloaded));
        drop(first.pop());
        assert!(waits.enter(user(1), InodeId(8), WaitsFor::Lock).is_ok());
        drop(first);
        assert!(waits.all.borrow().is_empty(), "nobody waits any more");
    }
}
