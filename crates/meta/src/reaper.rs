//! What dead clients held goes back: locks and rights to append, and, apart from them, sessions.
//!
//! A client is dead when mgmtd has not listed it for its grace time. Guarantees: a session is ended with the length that its file's chunks have; one of which that cannot be
//! learned for now (a chain that is away, a node that hangs, a chunk that is always being written) is tried again, and meanwhile keeps its place, and the locks that its
//! client has of that file, but nothing else: no other locks, and of the places for sessions the files of one user have no more than they leave free. Must never: end a
//! session whose file could not be looked at, for by it alone the length is found; or give the right to append to a file away whose length is not known yet.

use crate::background::{Damaged, log, not_away, pause};
use crate::recall::Change;
use crate::state::{Service, VOLUME, ms};
use crate::{clients, locks};
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Context, SessionEntry};
use glowfs_rt::sync::{Notify, Share, Shares, join_all};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::capability::rights;
use glowfs_types::wire::meta::{Attr, Caller, InodeKind, OfInode};
use glowfs_types::{ClientId, Error, Layout, Result, SessionId, Status};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Clients looked at in one step.
const CLIENT_PAGE: usize = 256;
/// Sessions of a client looked at in one step.
const SESSION_PAGE: u32 = 128;
/// Of these, side by side.
const LOOK_PARALLEL: usize = 16;
/// Sessions whose files' lengths are being asked for at once. The files of one user have half of them at most.
const PLACES: usize = 64;
/// How long a round waits, all in all, for places that nobody gives back. Who has none then is looked at in the next round.
const PATIENCE: Duration = Duration::from_secs(1);
/// Sessions of a client that find no place until a round leaves the rest of its sessions to the next one.
const LEFT_OUT_MAX: usize = 4096;
/// Sessions of a client with which a round begins until the turn of the next client comes.
const BEGUN_MAX: usize = 4096;
/// What could not be done is tried again after this time at first; it doubles up to [`AGAIN_MAX`].
const AGAIN: Duration = Duration::from_millis(500);
/// The longest time.
const AGAIN_MAX: Duration = Duration::from_secs(16);

/// Starts both loops. They end when the service stops.
pub fn start(s: &Rc<Service>) {
    let this = s.clone();
    s.rt.spawn_detached(async move {
        let mut holders = Holders::default();
        while pause(&this, ms(this.config.tuning.session_scan_ms)).await {
            log("giving locks of dead clients back", holders.give_back(&this).await);
        }
    });
    let this = s.clone();
    s.rt.spawn_detached(async move {
        let mut reaper = Reaper::default();
        while pause(&this, ms(this.config.tuning.session_scan_ms)).await {
            log("ending sessions of dead clients", reaper.round(&this).await);
        }
    });
}

/// Since when mgmtd does not list clients that have something here.
#[derive(Default)]
struct Missing(BTreeMap<ClientId, Instant>);

impl Missing {
    /// Of the clients that are `gone`, those that have been for so long.
    fn due(&mut self, gone: BTreeSet<ClientId>, now: Instant, grace: Duration) -> Vec<ClientId> {
        self.0.retain(|c, _| gone.contains(c));
        let since = gone.into_iter().map(|c| (c, *self.0.entry(c).or_insert(now)));
        since.filter(|(_, at)| now.since(*at) >= grace).map(|(c, _)| c).collect()
    }
}

/// Clients that hold locks, or rights to append.
#[derive(Default)]
struct Holders {
    missing: Missing,
    /// Those that had files open for writing still when their turn came last.
    writing: BTreeSet<ClientId>,
}

impl Holders {
    async fn give_back(&mut self, s: &Service) -> Result<()> {
        let live = clients::live(s).await?;
        let mut gone = BTreeSet::new();
        let mut after = None;
        loop {
            let work = async |tx: &Transaction| {
                ns::clients_with_locks(tx, VOLUME, after, CLIENT_PAGE).await
            };
            let page = s.look(work).await?;
            after = page.last().copied();
            gone.extend(page.iter().filter(|c| !live.contains_key(c)));
            if page.len() < CLIENT_PAGE {
                break;
            }
        }
        let mut due = self.missing.due(gone, s.rt.now(), locks::grace(s));
        self.writing.retain(|c| due.binary_search(c).is_ok());
        // Those last: whoever keeps something for long is looked at in each round, and others do not wait for that.
        due.sort_by_key(|c| self.writing.contains(c));
        let mut outcome = Ok(());
        for client in due {
            match locks::end_of(s, client).await {
                Ok(true) => _ = self.writing.insert(client),
                Ok(false) => _ = self.writing.remove(&client),
                Err(e) => outcome = Err(e),
            }
        }
        outcome
    }
}

type Which = (ClientId, SessionId);

/// Ends sessions.
#[derive(Default)]
struct Reaper {
    missing: Missing,
    damaged: Damaged,
    attempts: Rc<Attempts>,
}

/// Sessions of which the end is under way, or has failed.
struct Attempts {
    places: Shares<u32>,
    /// None: under way.
    failed: RefCell<BTreeMap<Which, Option<Failed>>>,
    /// One is over.
    over: Notify,
    /// Why the last one that failed did.
    error: RefCell<Option<Error>>,
}

#[derive(Clone, Copy)]
struct Failed {
    again: Instant,
    pause: Duration,
}

/// Which sessions: those of which the end has not failed yet come first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Those {
    New,
    /// And of those that have, the ones whose time had come by then: what fails once more is not tried again in that round.
    Failed(Instant),
}

impl Default for Attempts {
    fn default() -> Self {
        let (failed, over, error) = Default::default();
        Self { places: Shares::new(PLACES), failed, over, error }
    }
}

/// An attempt; over when it is dropped.
struct Attempt {
    of: Rc<Attempts>,
    which: Which,
    before: Option<Failed>,
    /// None: it has not been made.
    outcome: Option<Result<()>>,
    place: Option<Share<u32>>,
    rt: Rt,
}

impl Attempt {
    fn ends(mut self, outcome: Result<()>) {
        self.outcome = Some(outcome);
    }
}

impl Attempts {
    /// Begins with a session, unless it is none of `those`, somebody is at it, or its time has not come.
    fn begin(self: &Rc<Self>, rt: &Rt, which: Which, those: Those) -> Option<Attempt> {
        let mut failed = self.failed.borrow_mut();
        let before = match (failed.get(&which), those) {
            (None, Those::New) => None,
            (Some(Some(f)), Those::Failed(by)) if f.again <= by => Some(*f),
            _ => return None,
        };
        failed.insert(which, None);
        let (of, rt) = (self.clone(), rt.clone());
        Some(Attempt { of, which, before, outcome: None, place: None, rt })
    }
    /// What is not there any more is forgotten.
    fn retain(&self, there: impl Fn(&Which) -> bool) {
        self.failed.borrow_mut().retain(|which, f| f.is_none() || there(which));
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut failed = self.of.failed.borrow_mut();
        match self.outcome.take() {
            Some(Ok(())) => drop(failed.remove(&self.which)),
            Some(Err(e)) => {
                let pause = self.before.map_or(AGAIN, |f| (f.pause * 2).min(AGAIN_MAX));
                let again = self.rt.now() + pause;
                failed.insert(self.which, Some(Failed { again, pause }));
                *self.of.error.borrow_mut() = Some(e);
            }
            // It was given no place.
            None => match self.before {
                None => drop(failed.remove(&self.which)),
                before => drop(failed.insert(self.which, before)),
            },
        }
        drop(failed);
        self.place = None;
        self.of.over.notify_all();
    }
}

/// Whose files a round waits for no more, and for how long it may wait for others.
struct Patience {
    left: Duration,
    stuck: BTreeSet<u32>,
}

impl Attempts {
    /// A place for a file of this owner. Waits while that brings something.
    async fn place(&self, rt: &Rt, owner: u32, patience: &mut Patience) -> Option<Share<u32>> {
        loop {
            if let Some(place) = self.places.take(owner) {
                return Some(place);
            }
            if patience.stuck.contains(&owner) || patience.left.is_zero() {
                patience.stuck.insert(owner);
                return None;
            }
            let began = rt.now();
            let over = self.over.wait();
            let ended = rt.timeout(patience.left, over).await.is_ok();
            if let Some(place) = self.places.take(owner) {
                return Some(place);
            }
            patience.left = patience.left.saturating_sub(rt.now().since(began));
            if !ended {
                patience.left = Duration::ZERO;
            }
        }
    }
}

/// A file whose length its chunks tell.
struct InChunks {
    attr: Attr,
    layout: Layout,
}

impl Reaper {
    /// Begins to end what is to be ended. What takes long goes on by itself.
    async fn round(&mut self, s: &Rc<Service>) -> Result<()> {
        let live = clients::live(s).await?;
        let mut gone = BTreeSet::new();
        let mut after = None;
        loop {
            let work = async |tx: &Transaction| {
                ns::clients_with_sessions(tx, VOLUME, after, CLIENT_PAGE).await
            };
            let page = s.look(work).await?;
            after = page.last().copied();
            gone.extend(page.iter().filter(|c| !live.contains_key(c)));
            if page.len() < CLIENT_PAGE {
                break;
            }
        }
        let grace = ms(s.config.tuning.session_grace_ms);
        let due = self.missing.due(gone, s.rt.now(), grace);
        self.attempts.retain(|(client, _)| due.binary_search(client).is_ok());
        let mut patience = Patience { left: PATIENCE, stuck: BTreeSet::new() };
        let (unreadable, outcome) = self.clients(s, due.clone(), Those::New, &mut patience).await;
        let those = Those::Failed(s.rt.now());
        let (_, failed_again) = self.clients(s, due, those, &mut patience).await;
        s.metrics.damaged_sessions.set(unreadable as i64);
        if self.damaged.is_news(unreadable) {
            tracing::warn!(
                count = unreadable,
                "records of sessions of dead clients cannot be read; they are kept, and so is what they hold. Run `glowfs admin fsck`"
            );
        }
        let failed = self.attempts.error.take().map_or(Ok(()), Err);
        outcome.and(failed_again).and(failed)
    }

    /// The sessions of dead clients, of each so many in turn. Returns how many cannot be read.
    async fn clients(
        &self,
        s: &Rc<Service>,
        mut clients: Vec<ClientId>,
        those: Those,
        patience: &mut Patience,
    ) -> (usize, Result<()>) {
        let (mut unreadable, mut outcome) = (0, Ok(()));
        while !clients.is_empty() && !s.stopping.get() && s.agent.lease_valid() {
            let mut more = Vec::new();
            for client in clients {
                match self.client(s, client, those, patience).await {
                    Ok(Some(damaged)) => unreadable += damaged,
                    Ok(None) => more.push(client),
                    Err(e) => outcome = Err(e),
                }
            }
            clients = more;
        }
        (unreadable, outcome)
    }

    /// Some sessions of one dead client. Returns how many of all cannot be read; None: there are more to begin with.
    async fn client(
        &self,
        s: &Rc<Service>,
        client: ClientId,
        those: Those,
        patience: &mut Patience,
    ) -> Result<Option<usize>> {
        let (mut from, mut damaged) = (None, 0);
        let (mut begun, mut left_out) = (0, 0);
        let mut there = BTreeSet::new();
        loop {
            let work = async |tx: &Transaction| {
                ns::sessions_of(tx, VOLUME, client, from.as_ref(), SESSION_PAGE).await
            };
            let page = s.look(work).await?;
            damaged += page.damaged.len();
            there.extend(page.found.iter().map(|e| e.session));
            for some in page.found.chunks(LOOK_PARALLEL) {
                let all = some.iter().filter_map(|entry| {
                    let which = (client, entry.session);
                    let attempt = self.attempts.begin(&s.rt, which, those)?;
                    begun += 1;
                    Some(begin(s, client, entry, attempt))
                });
                for (entry, attempt, file) in join_all(all).await.into_iter().flatten() {
                    match self.attempts.place(&s.rt, file.attr.uid, patience).await {
                        Some(place) => go_on(s, client, entry, (attempt, place), file),
                        None => left_out += 1,
                    }
                }
            }
            from = page.next;
            if from.is_none() {
                self.attempts.retain(|(c, session)| *c != client || there.contains(session));
                return Ok(Some(damaged));
            }
            if left_out >= LEFT_OUT_MAX {
                return Ok(Some(damaged));
            }
            if begun - left_out >= BEGUN_MAX {
                return Ok(None);
            }
        }
    }
}

/// Ends a session, unless its file's chunks have to be asked first.
async fn begin<'a>(
    s: &Service,
    client: ClientId,
    entry: &'a SessionEntry,
    attempt: Attempt,
) -> Option<(&'a SessionEntry, Attempt, InChunks)> {
    match in_chunks(s, client, entry).await {
        Ok(Some(file)) => return Some((entry, attempt, file)),
        Ok(None) => attempt.ends(end(s, client, entry, None, None).await),
        Err(e) => attempt.ends(Err(e)),
    }
    None
}

/// The file of a session, if its length is to be asked for.
async fn in_chunks(
    s: &Service,
    client: ClientId,
    entry: &SessionEntry,
) -> Result<Option<InChunks>> {
    if !entry.write {
        return Ok(None);
    }
    let caller = Caller { client, volume: VOLUME, ..Caller::default() };
    let of = OfInode { caller: caller.clone(), inode: entry.inode };
    let attr = s.look(async |tx| ns::getattr(&Context::new(tx, &caller, s), &of).await).await;
    let Some(attr) = if_there(attr)? else { return Ok(None) };
    match (attr.kind, attr.layout) {
        (InodeKind::File, Some(layout)) if !attr.inline => {
            not_away(s, &layout)?;
            Ok(Some(InChunks { attr, layout }))
        }
        _ => Ok(None),
    }
}

/// What a file that a dead client had open is like, if it is still there. Not to learn that is another thing: the session stays, for by it alone the
/// length is found that the file's chunks have.
fn if_there(attr: Result<Attr>) -> Result<Option<Attr>> {
    match attr {
        Ok(attr) => Ok(Some(attr)),
        Err(e) if matches!(e.status, Status::Stale | Status::NotFound) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Asks the chunks of the file and ends the session, in a task of its own.
fn go_on(
    s: &Rc<Service>,
    client: ClientId,
    entry: &SessionEntry,
    (mut attempt, place): (Attempt, Share<u32>),
    file: InChunks,
) {
    attempt.place = Some(place);
    let (this, entry) = (s.clone(), entry.clone());
    s.rt.spawn_detached(async move {
        let outcome = ask_and_end(&this, client, &entry, &file).await;
        attempt.ends(outcome);
    });
}

async fn ask_and_end(
    s: &Service,
    client: ClientId,
    entry: &SessionEntry,
    file: &InChunks,
) -> Result<()> {
    let InChunks { attr, layout } = file;
    let extent = s.chunks.query_extent(layout, VOLUME, attr.data).await?;
    let cap = s.capability(attr, Default::default(), rights::READ)?;
    let allocated = s.chunks.allocated(layout, &cap).await.ok();
    end(s, client, entry, Some((extent.len, attr.epoch)), allocated).await
}

async fn end(
    s: &Service,
    client: ClientId,
    entry: &SessionEntry,
    settled: Option<(u64, glowfs_types::TruncateEpoch)>,
    allocated: Option<u64>,
) -> Result<()> {
    // What was asked before may have taken long: another service may be at it by now.
    if s.stopping.get() || !s.agent.lease_valid() {
        return Err(Error::new(Status::ShuttingDown, "it may not go on with dead clients"));
    }
    let caller = Caller { client, volume: VOLUME, ..Caller::default() };
    s.run(false, true, async |tx| {
        let cx = Context::new(tx, &caller, s);
        ns::end_session(&cx, client, entry.inode, entry.session, settled, allocated).await
    })
    .await?;
    s.changed(client, &[Change::contents(entry.inode, None)]).await;
    s.metrics.reaped.inc();
    tracing::info!(%client, inode = %entry.inode, ?settled, "ended the session of a dead client");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::real;

    /// An engine that did not answer was taken for a file that is gone, and its session ended without its length.
    #[test]
    fn only_a_file_that_is_gone_is_gone() {
        let asked = |status: Status| if_there(Err(status.into()));
        assert_eq!(asked(Status::Stale), Ok(None));
        assert_eq!(asked(Status::NotFound), Ok(None));
        for away in [Status::Disconnected, Status::TimedOut, Status::Conflict, Status::Overloaded] {
            assert_eq!(asked(away).expect_err("not known").status, away);
        }
        assert_eq!(if_there(Ok(Attr::default())), Ok(Some(Attr::default())));
    }

    #[test]
    fn a_client_is_dead_when_it_was_missing_all_the_time() {
        let (mut missing, grace) = (Missing::default(), Duration::from_secs(10));
        let at = |s| Instant(0) + Duration::from_secs(s);
        let gone = |all: &[u128]| all.iter().map(|c| ClientId(*c)).collect::<BTreeSet<_>>();
        assert_eq!(missing.due(gone(&[1, 2]), at(0), grace), Vec::new());
        assert_eq!(missing.due(gone(&[2, 3]), at(9), grace), Vec::new());
        assert_eq!(missing.due(gone(&[1, 2, 3]), at(10), grace), [ClientId(2)]);
        assert_eq!(missing.due(gone(&[1, 2, 3]), at(19), grace), [ClientId(2), ClientId(3)]);
        assert_eq!(missing.due(gone(&[1]), at(20), grace), [ClientId(1)]);
    }

    /// Sessions that could not be ended were tried again in every round, and kept all others from their turn.
    #[test]
    fn what_cannot_be_ended_leaves_places_to_others() {
        real::run(|rt| async move {
            let attempts = Rc::new(Attempts::default());
            let session = |n| (ClientId(1), SessionId(n));
            let mut patience = Patience { left: Duration::from_millis(20), stuck: BTreeSet::new() };
            let mut hang = Vec::new();
            for n in 0..200 {
                let mut attempt = attempts.begin(&rt, session(n), Those::New).expect("it is new");
                attempt.place = attempts.place(&rt, 5, &mut patience).await;
                hang.extend(attempt.place.is_some().then_some(attempt));
            }
            assert_eq!(hang.len(), PLACES / 2);
            assert!(attempts.begin(&rt, session(0), Those::New).is_none(), "it is under way");
            assert!(
                attempts.begin(&rt, session(100), Those::New).is_some(),
                "it has had no place yet"
            );
            // Another user, in the same round: nobody waits for him.
            let (began, mut other) = (rt.now(), None);
            for n in 200..216 {
                let attempt = attempts.begin(&rt, session(n), Those::New).expect("it is new");
                other = attempts.place(&rt, 6, &mut patience).await;
                assert!(other.is_some() && attempt.outcome.is_none());
            }
            assert!(rt.now().since(began) < Duration::from_millis(20));
            drop(other);
            // What has failed waits for longer each time.
            for pause in [AGAIN, AGAIN * 2, AGAIN * 4] {
                let mut attempt = hang.pop().expect("one that hangs");
                let before = attempts.failed.borrow().get(&session(300)).copied().flatten();
                (attempt.which, attempt.before) = (session(300), before);
                attempt.outcome = Some(Err(Status::TimedOut.into()));
                drop(attempt);
                for those in [Those::New, Those::Failed(rt.now())] {
                    assert!(attempts.begin(&rt, session(300), those).is_none());
                }
                let failed = attempts.failed.borrow();
                let next = failed.get(&session(300)).and_then(Option::as_ref).expect("failed");
                assert!(next.pause == pause && next.again > rt.now() + pause / 2);
            }
            attempts.retain(|_| false);
            let under_way = attempts.failed.borrow().values().filter(|f| f.is_none()).count();
            assert_eq!(under_way, attempts.failed.borrow().len());
        });
    }
}
