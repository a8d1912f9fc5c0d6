//! Erasing files that have lost their last name, when no live client has them open.
//!
//! Readers have no session, so the clients are asked (IN_USE). From the [`Doom`] of a file on nobody opens it any more; so a client's «no» is
//! final, and a file goes when each client that lived at that time has said no or is dead to mgmtd. A client that cannot be
//! asked holds up only the files that were removed while it was alive, and only until its session with mgmtd ends. A file that somebody has open, or has a session of, is
//! looked at again after a while, less and less often.

use crate::clients;
use crate::portions::Portions;
use crate::state::{Service, VOLUME};
use glowfs_kv::{Key, Transaction};
use glowfs_namespace::{self as ns, Context, Doom, Removed};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Duration, Instant};
use glowfs_types::routing::{NodeStatus, Role};
use glowfs_types::wire::meta::{Caller, InUse, InUseReply};
use glowfs_types::wire::method;
use glowfs_types::{ClientId, Error, InodeId, Result, UserId};
use std::collections::{BTreeMap, BTreeSet};

/// Files asked for by one message, and erased by one transaction if the engine takes so many.
const BATCH_FILES: u32 = 256;
/// Batches that wait for answers, at most; more removed files wait in the engine.
const BATCHES_MAX: usize = 64;
/// Pages of removed files that one look goes through; the next one goes on from there.
const PAGES_MAX: usize = 64;
/// How long a client may take to answer.
const ASK_DEADLINE: Duration = Duration::from_secs(2);
/// A file that is open somewhere, or has a session, is looked at again after this time at first; it doubles up to [`HELD_PAUSE_MAX`].
const HELD_PAUSE: Duration = Duration::from_millis(500);
/// Files that have waited for so long for a client's answer are counted, and the client is named.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// The longest pause.
const HELD_PAUSE_MAX: Duration = Duration::from_secs(8);

type Clients = BTreeSet<(ClientId, UserId)>;

/// Doomed files and the clients that have not said no yet.
struct Batch {
    files: BTreeSet<InodeId>,
    waits_for: Clients,
    since: Instant,
}

/// When a file that was open is looked at again.
struct Held {
    /// Since when that is so.
    since: Instant,
    again: Instant,
    pause: Duration,
}

/// Removed files that somebody has open, or has a session of.
#[derive(Default)]
struct HeldFiles(BTreeMap<InodeId, Held>);

impl HeldFiles {
    /// Whether the time of a file has not come yet.
    fn waits(&self, inode: InodeId, now: Instant) -> bool {
        self.0.get(&inode).is_some_and(|h| h.again > now)
    }
    /// It was open when it was looked at.
    fn hold(&mut self, inode: InodeId, now: Instant) {
        let before = self.0.get(&inode).map(|h| h.pause * 2);
        self.hold_for(inode, now, before.unwrap_or(HELD_PAUSE).min(HELD_PAUSE_MAX));
    }
    fn hold_for(&mut self, inode: InodeId, now: Instant, pause: Duration) {
        self.0.insert(inode, Held { since: now, again: now + pause, pause });
    }
    /// Of these files only some could be doomed: the others have sessions, or are not what they were when they were found.
    fn hold_others(&mut self, tried: &[Removed], doomed: &[InodeId], now: Instant) {
        let doomed: BTreeSet<_> = doomed.iter().collect();
        for r in tried.iter().filter(|r| !doomed.contains(&r.inode)) {
            self.hold(r.inode, now);
        }
    }
}

/// A look at all removed files; one round may leave the rest of it to the next one.
struct Look {
    began: Instant,
    from: Option<Key>,
    /// Held files that were found.
    held: BTreeSet<InodeId>,
    damaged: usize,
    first_damaged: Option<InodeId>,
}

impl Look {
    fn new(now: Instant) -> Self {
        let (from, held, damaged, first_damaged) = Default::default();
        Self { began: now, from, held, damaged, first_damaged }
    }
}

/// The state of the work; lost with the process, and begun anew by the next one.
pub struct Eraser {
    doom: Doom,
    batches: Vec<Batch>,
    held: HeldFiles,
    look: Look,
    /// How many records could not be read at the last look at all.
    damaged: usize,
    /// Clients of which it was said that they do not answer.
    silent: Clients,
    dooming: Portions,
    erasing: Portions,
}

impl Eraser {
    /// Nothing begun.
    pub fn new(s: &Service) -> Self {
        let doom = Doom { node: s.config.node(), life: s.rt.random() };
        let portions = || Portions::new(BATCH_FILES as usize);
        Self {
            doom,
            batches: Vec::new(),
            held: HeldFiles::default(),
            look: Look::new(s.rt.now()),
            damaged: 0,
            silent: Clients::new(),
            dooming: portions(),
            erasing: portions(),
        }
    }

    /// Asks for what waits, erases what nobody has open, begins with what was removed since.
    pub async fn round(&mut self, s: &Service) -> Result<()> {
        loop {
            let more = self.begin(s).await?;
            if self.batches.is_empty() {
                self.tell_silent(s);
                return Ok(());
            }
            let live = live_clients(s).await?;
            self.ask(s, &live).await?;
            let waiting = self.batches.len();
            self.erase(s).await?;
            self.tell_silent(s);
            // Goes on at once while that brings anything.
            if !more || self.batches.len() == waiting {
                return Ok(());
            }
        }
    }

    /// Dooms removed files of which no attempt is under way. Returns whether there may be more.
    async fn begin(&mut self, s: &Service) -> Result<bool> {
        let mut found: Vec<InodeId> = Vec::new();
        for _ in 0..PAGES_MAX {
            if self.batches.len() >= BATCHES_MAX || found.len() >= BATCH_FILES as usize {
                break;
            }
            let from = self.look.from.as_ref();
            let look = async |tx: &Transaction| ns::removed(tx, VOLUME, from, BATCH_FILES).await;
            let page = s.look(look).await?;
            let look = &mut self.look;
            look.from = page.next;
            look.damaged += page.damaged.len();
            look.first_damaged = look.first_damaged.or(page.damaged.first().copied());
            let page = page.found;
            let known = |i: &InodeId| self.held.0.contains_key(i);
            look.held.extend(page.iter().map(|r| r.inode).filter(known));
            let mine: Vec<Removed> =
                page.iter().copied().filter(|r| self.may_begin(s, r)).collect();
            let doomed = self.doom(s, &mine).await?;
            self.held.hold_others(&mine, &doomed, s.rt.now());
            found.extend(doomed);
            if self.look.from.is_none() {
                self.looked_at_all(s);
                break;
            }
            s.rt.yield_now().await;
        }
        let more = !found.is_empty() && self.look.from.is_some();
        if !found.is_empty() {
            // After the doom: who is not in this list can have opened nothing of it.
            let waits_for = live_clients(s).await?;
            for files in found.chunks(BATCH_FILES as usize) {
                let files = files.iter().copied().collect();
                self.batches.push(Batch { files, waits_for: waits_for.clone(), since: s.rt.now() });
            }
        }
        Ok(more)
    }

    /// Held files that are no orphans any more are forgotten.
    fn looked_at_all(&mut self, s: &Service) {
        let Look { began, held, damaged, first_damaged, .. } =
            std::mem::replace(&mut self.look, Look::new(s.rt.now()));
        // What came to be held behind the look is not in its list.
        self.held.0.retain(|i, h| held.contains(i) || h.since >= began);
        self.tell_damaged(s, damaged, first_damaged);
    }

    /// What a look at all removed files has found that cannot be read: said when it is not what the last one found.
    fn tell_damaged(&mut self, s: &Service, count: usize, first: Option<InodeId>) {
        s.metrics.damaged_removed.set(count as i64);
        if std::mem::replace(&mut self.damaged, count) != count
            && let Some(inode) = first
        {
            tracing::warn!(count, %inode, "records of removed files cannot be read, the first that of this inode; they are kept. Run `glowfs admin fsck`");
        }
    }

    /// For whom removed files wait: said once of each client that goes on living and does not answer.
    fn tell_silent(&mut self, s: &Service) {
        let (files, clients) = silent(&self.batches, s.rt.now());
        s.metrics.removed_waiting.set(files as i64);
        for (client, user) in clients.difference(&self.silent) {
            tracing::warn!(%client, %user, files, "a client that is alive to mgmtd does not say which removed files it has open: their space comes back when it answers, or has ended");
        }
        self.silent = clients;
    }

    fn may_begin(&self, s: &Service, r: &Removed) -> bool {
        if self.batches.iter().any(|b| b.files.contains(&r.inode)) {
            return false;
        }
        if self.held.waits(r.inode, s.rt.now()) {
            return false;
        }
        // Another service that lives is at it.
        let other = r.doomed.filter(|d| d.node != self.doom.node).and_then(|d| {
            let routing = s.agent.routing();
            routing.nodes.get(&d.node).map(|n| (n.role, n.status))
        });
        other != Some((Role::Meta, NodeStatus::Active))
    }

    async fn doom(&self, s: &Service, files: &[Removed]) -> Result<Vec<InodeId>> {
        let caller = Caller { volume: VOLUME, ..Caller::default() };
        let doom = async |some: &[Removed]| {
            s.run(false, true, async |tx| {
                let cx = Context::new(tx, &caller, s);
                let mut doomed = Vec::new();
                for r in some {
                    // A repetition finds its own doom.
                    let done = r.doomed == Some(self.doom);
                    if done || ns::doom(&cx, r, self.doom).await? {
                        doomed.push(r.inode);
                    }
                }
                Ok(doomed)
            })
            .await
        };
        Ok(self.dooming.each(files, doom).await?.concat())
    }

    async fn ask(&mut self, s: &Service, live: &Clients) -> Result<()> {
        let conns = s.peers.borrow().as_ref().map(|p| p.clients()).unwrap_or_default();
        let mut open = BTreeSet::new();
        for batch in &mut self.batches {
            batch.waits_for.retain(|c| live.contains(c));
            let query = InUse { volume: VOLUME, inodes: batch.files.iter().copied().collect() };
            let asked = batch.waits_for.iter().filter_map(|who| {
                let conn = conns.get(who)?.clone();
                let query = &query;
                Some(async move {
                    let answer: Result<InUseReply> =
                        conn.call_msg(method::IN_USE, query, ASK_DEADLINE).await;
                    (*who, answer)
                })
            });
            for (who, answer) in join_all(asked).await {
                match answer {
                    Ok(reply) => {
                        open.extend(reply.open);
                        batch.waits_for.remove(&who);
                    }
                    Err(error) => {
                        tracing::debug!(client = %who.0, %error, "a client does not say which files it has open");
                    }
                }
            }
        }
        self.hold(s, &open).await
    }

    /// Takes files that somebody has open out of their batches.
    async fn hold(&mut self, s: &Service, open: &BTreeSet<InodeId>) -> Result<()> {
        let mut mine = Vec::new();
        for batch in &mut self.batches {
            mine.extend(batch.files.intersection(open).copied());
            batch.files.retain(|i| !open.contains(i));
        }
        if mine.is_empty() {
            return Ok(());
        }
        s.metrics.held.add(mine.len() as u64);
        for inode in &mine {
            self.held.hold(*inode, s.rt.now());
        }
        let caller = Caller { volume: VOLUME, ..Caller::default() };
        let undoom = async |some: &[InodeId]| {
            s.run(false, true, async |tx| {
                let cx = Context::new(tx, &caller, s);
                for inode in some {
                    ns::undoom(&cx, *inode, self.doom).await?;
                }
                Ok(())
            })
            .await
        };
        self.dooming.each(&mine, undoom).await.map(|_| ())
    }

    async fn erase(&mut self, s: &Service) -> Result<()> {
        let (done, waiting) =
            self.batches.drain(..).partition::<Vec<_>, _>(|b| b.waits_for.is_empty());
        self.batches = waiting;
        // A batch that fails here is found again, with its doom, by a later round.
        let mut outcome = Ok(());
        for batch in done {
            let files: Vec<InodeId> = batch.files.into_iter().collect();
            match self.erase_batch(s, &files).await {
                // The engine is away, for the others as well.
                Err(e) if e.status.is_retriable() => return Err(e),
                done => outcome = outcome.and(done),
            }
            s.rt.yield_now().await;
        }
        outcome
    }

    async fn erase_batch(&mut self, s: &Service, files: &[InodeId]) -> Result<()> {
        let caller = Caller { volume: VOLUME, ..Caller::default() };
        let erase = async |some: &[InodeId]| {
            s.run(false, true, async |tx| {
                let cx = Context::new(tx, &caller, s);
                let mut erased = 0;
                for inode in some {
                    erased += u64::from(ns::erase_removed(&cx, *inode, self.doom).await?);
                }
                Ok(erased)
            })
            .await
        };
        let mut kept = Vec::new();
        let damaged = |inode: &InodeId, error: &Error| {
            tracing::warn!(%inode, %error, "a removed file cannot be erased; run `glowfs admin fsck`");
            kept.push(*inode);
        };
        let erased = self.erasing.each_sound(files, erase, damaged).await?;
        for inode in files {
            self.held.0.remove(inode);
        }
        // It stays in the list, and must not be what every round begins with.
        for inode in kept {
            self.held.hold_for(inode, s.rt.now(), HELD_PAUSE_MAX);
        }
        s.metrics.erased.add(erased.into_iter().sum());
        Ok(())
    }
}

/// How many files have waited for long, and for whom.
fn silent(batches: &[Batch], now: Instant) -> (usize, Clients) {
    let long = batches.iter().filter(|b| now.since(b.since) >= SILENT_FOR);
    long.fold((0, Clients::new()), |(files, mut clients), batch| {
        clients.extend(batch.waits_for.iter().copied());
        (files + batch.files.len(), clients)
    })
}

/// The clients that mgmtd takes for alive, with their users.
async fn live_clients(s: &Service) -> Result<Clients> {
    Ok(clients::live(s).await?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One client that lived and did not answer kept all removed space, and nobody was told.
    #[test]
    fn who_keeps_removed_files_for_long_is_known() {
        let who = |n: u128| (ClientId(n), UserId(5));
        let at = |s| Instant(0) + Duration::from_secs(s);
        let batch = |first: u64, clients: &[u128], since| Batch {
            files: (first..first + 3).map(InodeId).collect(),
            waits_for: clients.iter().map(|n| who(*n)).collect(),
            since: at(since),
        };
        let batches = [batch(1, &[1], 0), batch(4, &[1, 2], 10), batch(7, &[3], 11)];
        assert_eq!(silent(&batches, at(59)), (0, Clients::new()));
        assert_eq!(silent(&batches, at(70)), (6, [who(1), who(2)].into()));
    }

    /// Files that were removed while they were open for writing were tried again every half a second, all of them.
    #[test]
    fn what_has_a_session_is_tried_less_and_less_often() {
        let (mut held, mut tries) = (HeldFiles::default(), 0);
        let file = Removed { inode: InodeId(7), doomed: None };
        let other = Removed { inode: InodeId(8), doomed: None };
        for round in 0..240 {
            let now = Instant(0) + Duration::from_millis(500) * round;
            if !held.waits(file.inode, now) {
                tries += 1;
                held.hold_others(&[file, other], &[other.inode], now);
            }
            assert!(!held.waits(other.inode, now), "it was doomed");
        }
        assert!((15..25).contains(&tries), "{tries} in two minutes");
    }
}
