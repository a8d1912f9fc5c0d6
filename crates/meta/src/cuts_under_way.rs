//! [`CutsUnderWay`]: the truncates that this service is finishing. [`Left`]: those that nobody finishes any more.
//!
//! Guarantees: one attempt of this service for a file at a time, however many calls want it done; those that wait for it get its outcome, and it goes on when those
//! who asked have left. No call waits longer than [`SHARED_WAIT`], also not the one that began it, so a truncate that takes long keeps no place of the service;
//! of those that are under way the files of one user have no more than they leave free. A truncate that a service and its client left behind is finished within [`LEFT_AFTER`] of being seen, if its chains are
//! there. Must never: count on that nobody else is at a truncate (another service may be: it may be done twice at once, see [`crate::cut`]).

use crate::background::not_away;
use crate::cut;
use crate::state::{Service, VOLUME};
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::sync::{Notify, join_all};
use glowfs_rt::sync::{Share, Shares};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::wire::meta::Caller;
use glowfs_types::{ClientId, Error, InodeId, Result, Status, TruncateEpoch};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long a call waits for the attempt of another one: as long as a client waits for an answer before it asks anew.
pub const SHARED_WAIT: Duration = Duration::from_secs(5);
/// Truncates that are being finished at once; beyond its share of them a user's files wait. As many as calls may be in work by default: none of them costs more than
/// a call.
const UNDER_WAY_MAX: usize = 4096;
/// How long the background waits for one of its own, and with it those in line; what takes longer goes on by itself.
const LEFT_WAIT: Duration = Duration::from_secs(5);
/// Pause between looks for truncates that were left behind.
pub const LEFT_PAUSE: Duration = Duration::from_secs(5);
/// For so long whoever began one has time to finish it: as long as a writer has that does not answer.
const LEFT_AFTER: Duration = Duration::from_secs(30);
/// Unfinished truncates read in one step.
const LEFT_PAGE: u32 = 512;
/// Unfinished truncates remembered; more wait until these are done.
const LEFT_MAX: usize = 1 << 14;
/// Of those, finished side by side.
const LEFT_PARALLEL: usize = 16;

/// See the module.
#[derive(Clone)]
pub struct CutsUnderWay {
    under_way: Rc<RefCell<BTreeMap<InodeId, Rc<Attempt>>>>,
    shares: Rc<Shares<u32>>,
}

impl Default for CutsUnderWay {
    fn default() -> Self {
        Self { under_way: Rc::default(), shares: Rc::new(Shares::new(UNDER_WAY_MAX)) }
    }
}

/// Which truncate.
#[derive(Clone, Copy)]
pub struct Which {
    /// The file.
    pub inode: InodeId,
    /// The epoch that it gave the file.
    pub epoch: TruncateEpoch,
    /// Whose file it is.
    pub owner: u32,
}

/// A truncate that is being finished.
struct Attempt {
    /// Which one: the epoch that it gave the file.
    epoch: TruncateEpoch,
    outcome: RefCell<Option<Result<TruncateEpoch>>>,
    over: Notify,
}

/// The attempt; dropping it lets those who wait see what came of it.
struct Turn {
    all: CutsUnderWay,
    inode: InodeId,
    attempt: Rc<Attempt>,
    _share: Share<u32>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.all.under_way.borrow_mut().remove(&self.inode);
        self.attempt.over.notify_all();
    }
}

impl CutsUnderWay {
    /// Does `work` for the truncate of a file, unless somebody is at it, and waits for so long; its outcome is everybody's. `Overloaded`: it takes long, and goes
    /// on; retry.
    pub async fn shared(
        &self,
        rt: &Rt,
        which: Which,
        wait: Duration,
        work: impl Future<Output = Result<TruncateEpoch>> + 'static,
    ) -> Result<TruncateEpoch> {
        let (until, mut work) = (rt.now() + wait, Some(work));
        loop {
            let other = self.under_way.borrow().get(&which.inode).cloned();
            let attempt = match (other, work.take()) {
                (Some(other), left) => {
                    work = left;
                    other
                }
                (None, Some(work)) => self.begin(rt, which, work)?,
                // It was dropped before its end: with the service.
                (None, None) => return Err(too_long()),
            };
            // First, for it may be over before anybody waits.
            let known = attempt.outcome.borrow().is_some();
            if !known && rt.timeout(until.since(rt.now()), attempt.over.wait()).await.is_err() {
                return Err(too_long());
            }
            let outcome = attempt.outcome.borrow().clone();
            if let Some(outcome) = outcome.filter(|_| attempt.epoch == which.epoch) {
                return outcome;
            }
        }
    }

    /// In a task of its own: whoever has asked for it may have to leave.
    fn begin(
        &self,
        rt: &Rt,
        which: Which,
        work: impl Future<Output = Result<TruncateEpoch>> + 'static,
    ) -> Result<Rc<Attempt>> {
        let Some(share) = self.shares.take(which.owner) else {
            let told = "too many truncates of this user's files are being finished; retry";
            return Err(Error::new(Status::Overloaded, told));
        };
        let (epoch, outcome, over) = (which.epoch, RefCell::default(), Notify::default());
        let attempt = Rc::new(Attempt { epoch, outcome, over });
        self.under_way.borrow_mut().insert(which.inode, attempt.clone());
        let (all, inode) = (self.clone(), which.inode);
        let turn = Turn { all, inode, attempt: attempt.clone(), _share: share };
        rt.spawn_detached(async move {
            let outcome = work.await;
            *turn.attempt.outcome.borrow_mut() = Some(outcome);
        });
        Ok(attempt)
    }
}

fn too_long() -> Error {
    Error::new(Status::Overloaded, "a truncate of the file is being finished; retry")
}

/// Notes unfinished truncates of which no key says that they are ([`ns::note_cut`]).
pub async fn note(s: &Service, found: &[InodeId]) -> Result<()> {
    let caller = Caller { volume: VOLUME, ..Caller::default() };
    for id in found {
        let work = async |tx: &Transaction| ns::note_cut(&Context::new(tx, &caller, s), *id).await;
        s.run(false, true, work).await?;
    }
    Ok(())
}

/// The unfinished truncates of the last look, and since when each was seen.
#[derive(Default)]
pub struct Left(BTreeMap<(InodeId, TruncateEpoch), Instant>);

impl Left {
    /// Finishes those that have been there for long.
    pub async fn round(&mut self, s: &Service) -> Result<()> {
        let now = s.rt.now();
        let (mut seen, mut from) = (BTreeMap::new(), None);
        while seen.len() < LEFT_MAX {
            let look =
                async |tx: &Transaction| ns::cuts_begun(tx, VOLUME, from.as_ref(), LEFT_PAGE).await;
            let (page, next) = s.look(look).await?;
            seen.extend(page.into_iter().map(|c| (c, *self.0.get(&c).unwrap_or(&now))));
            from = next;
            if from.is_none() {
                break;
            }
        }
        self.0 = seen;
        let due = self.0.iter().filter(|(_, since)| now.since(**since) >= LEFT_AFTER);
        let due: Vec<_> = due.map(|(cut, _)| *cut).collect();
        let mut outcome = Ok(());
        for some in due.chunks(LEFT_PARALLEL) {
            if s.stopping.get() || !s.agent.lease_valid() {
                break;
            }
            // What cannot be finished does not keep the others.
            let done = join_all(some.iter().map(|(inode, epoch)| finish_left(s, *inode, *epoch)));
            outcome = done.await.into_iter().fold(outcome, |all, one| one.and(all));
        }
        outcome
    }
}

async fn finish_left(s: &Service, inode: InodeId, epoch: TruncateEpoch) -> Result<()> {
    let caller = Caller { volume: VOLUME, ..Caller::default() };
    let look = async |tx: &Transaction| ns::pending_cut(&Context::new(tx, &caller, s), inode).await;
    match s.look(look).await? {
        Some(cut) if cut.attr.epoch == epoch => {
            if let Some(layout) = &cut.attr.layout {
                not_away(s, layout)?;
            }
            match cut::finish_within(s, &cut, ClientId(0), LEFT_WAIT).await {
                // The next look tells. Or the files of its owner have all that they may have under way: others' come first.
                Err(e) if e.status == Status::Overloaded => return Ok(()),
                done => done?,
            };
            s.metrics.cuts_left.inc();
            tracing::info!(%inode, "finished a truncate that was left behind");
            Ok(())
        }
        _ => {
            let work = async |tx: &Transaction| {
                ns::forget_cut(&Context::new(tx, &caller, s), inode, epoch).await
            };
            s.run(false, true, work).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::real;
    use glowfs_types::{Error, Status};
    use std::cell::Cell;

    fn which(inode: u64, epoch: u64) -> Which {
        Which { inode: InodeId(inode), epoch: TruncateEpoch(epoch), owner: 5 }
    }

    /// Each copy of a request, and everybody who came to write, removed the same chunks once more, side by side.
    #[test]
    fn a_truncate_is_finished_by_one_and_all_get_the_outcome() {
        real::run(|rt| async move {
            for outcome in [Ok(TruncateEpoch(4)), Err(Error::from(Status::ChainUnavailable))] {
                let (cuts, runs) = (CutsUnderWay::default(), Rc::new(Cell::new(0)));
                let finish = async |epoch, outcome: &Result<TruncateEpoch>| {
                    let (runs, rt2, outcome) = (runs.clone(), rt.clone(), outcome.clone());
                    let work = async move {
                        runs.set(runs.get() + 1);
                        rt2.sleep(Duration::from_millis(20)).await;
                        outcome
                    };
                    cuts.shared(&rt, which(7, epoch), SHARED_WAIT, work).await
                };
                let all = join_all((0..5).map(|_| finish(3, &outcome))).await;
                assert!(all.iter().all(|o| *o == outcome));
                assert_eq!(runs.get(), 1);
                // It goes on when who asked for it has left.
                let left = rt.timeout(Duration::from_millis(5), finish(3, &outcome)).await;
                assert!(left.is_err());
                assert_eq!(finish(3, &outcome).await, outcome);
                assert_eq!(runs.get(), 2);
                // One that came to its end is begun anew if somebody wants it, and another truncate of the file is another thing.
                let (one, other) = (finish(3, &outcome), finish(5, &Ok(TruncateEpoch(6))));
                let (one, other) = glowfs_rt::sync::join(one, other).await;
                assert_eq!((one, other), (outcome, Ok(TruncateEpoch(6))));
                assert_eq!(runs.get(), 4);
                assert!(cuts.under_way.borrow().is_empty() && cuts.shares.taken() == 0);
            }
        });
    }

    /// The call that had begun a truncate kept its place at the service until it was done, for half a minute if a writer did not answer: one user with as many files as
    /// there are places stopped everybody.
    #[test]
    fn nobody_waits_for_a_truncate_longer_than_a_client_waits_for_an_answer() {
        real::run(|rt| async move {
            let (cuts, told) = (CutsUnderWay::default(), Rc::new(Notify::default()));
            let (wait, asked) = (Duration::from_millis(30), Rc::new(Cell::new(0)));
            let finish = async || {
                let (told, asked) = (told.clone(), asked.clone());
                let work = async move {
                    asked.set(asked.get() + 1);
                    told.wait().await;
                    Ok(TruncateEpoch(4))
                };
                cuts.shared(&rt, which(7, 3), wait, work).await.map_err(|e| e.status)
            };
            for who in ["the one who begins it", "another one"] {
                let said = rt.timeout(Duration::from_secs(20), finish()).await;
                assert_eq!(said.expect("it is told soon"), Err(Status::Overloaded), "{who}");
            }
            let over = async {
                rt.sleep(Duration::from_millis(1)).await;
                told.notify_all();
            };
            let (said, ()) = glowfs_rt::sync::join(finish(), over).await;
            assert_eq!((said, asked.get()), (Ok(TruncateEpoch(4)), 1));
        });
    }

    /// Attempts are bounded, and nobody's files have them all.
    #[test]
    fn one_users_files_leave_truncates_to_others() {
        real::run(|rt| async move {
            let cuts = CutsUnderWay { shares: Rc::new(Shares::new(8)), ..CutsUnderWay::default() };
            let begin = async |inode, owner| {
                let which = Which { owner, ..which(inode, 3) };
                let never = std::future::pending();
                let asked = rt
                    .timeout(Duration::from_millis(1), cuts.shared(&rt, which, SHARED_WAIT, never));
                asked.await.is_err()
            };
            let mut began = Vec::new();
            for n in 0..8 {
                began.push(begin(n, 1).await);
            }
            assert_eq!(began.iter().filter(|b| **b).count(), 4, "half of them");
            assert!(begin(20, 2).await, "another user's");
        });
    }
}
