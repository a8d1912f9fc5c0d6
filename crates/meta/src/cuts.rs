//! [`Cuts`]: the truncates that this service is finishing. [`Left`]: those that nobody finishes any more.
//!
//! Guarantees: one attempt of this service for a file at a time, however many calls want it done; those that wait for it get its outcome, and it goes on when those
//! who asked have left. Nobody waits longer than [`SHARED_WAIT`], so who has left keeps no place of the service. A truncate that a service and its client left behind is finished within [`LEFT_AFTER`] of being seen, if its chains are
//! there. Must never: count on that nobody else is at a truncate (another service may be: it may be done twice at once, see [`crate::cut`]).

use crate::background::not_away;
use crate::cut;
use crate::state::{Service, VOLUME};
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::sync::{Notify, join_all};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::wire::meta::Caller;
use glowfs_types::{ClientId, Error, InodeId, Result, Status, TruncateEpoch};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long a call waits for the attempt of another one: as long as a client waits for an answer before it asks anew.
const SHARED_WAIT: Duration = Duration::from_secs(5);
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
pub struct Cuts {
    under_way: RefCell<BTreeMap<InodeId, Rc<Attempt>>>,
    /// [`SHARED_WAIT`], but in tests.
    wait: Duration,
}

impl Default for Cuts {
    fn default() -> Self {
        Self { under_way: RefCell::default(), wait: SHARED_WAIT }
    }
}

/// A truncate that is being finished.
struct Attempt {
    /// Which one: the epoch that it gave the file.
    epoch: TruncateEpoch,
    outcome: RefCell<Option<Result<TruncateEpoch>>>,
    over: Notify,
}

/// The attempt of whoever came first; dropping it lets the others see what came of it.
struct Turn<'a>(&'a Cuts, InodeId, Rc<Attempt>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.under_way.borrow_mut().remove(&self.1);
        self.2.over.notify_all();
    }
}

impl Cuts {
    /// Does `work` for the truncate of a file, or waits until somebody has who is at it; its outcome is everybody's. `Overloaded`: it takes long; retry.
    pub async fn shared(
        &self,
        rt: &Rt,
        inode: InodeId,
        epoch: TruncateEpoch,
        work: impl Future<Output = Result<TruncateEpoch>>,
    ) -> Result<TruncateEpoch> {
        let until = rt.now() + self.wait;
        loop {
            let Some(other) = self.under_way.borrow().get(&inode).cloned() else { break };
            let wait = until.since(rt.now());
            if rt.timeout(wait, other.over.wait()).await.is_err() {
                let told = "a truncate of the file is being finished; retry";
                return Err(Error::new(Status::Overloaded, told));
            }
            let outcome = other.outcome.borrow().clone();
            if let Some(outcome) = outcome.filter(|_| other.epoch == epoch) {
                return outcome;
            }
        }
        let (outcome, over) = (RefCell::default(), Notify::default());
        let attempt = Rc::new(Attempt { epoch, outcome, over });
        self.under_way.borrow_mut().insert(inode, attempt.clone());
        let turn = Turn(self, inode, attempt);
        let outcome = work.await;
        *turn.2.outcome.borrow_mut() = Some(outcome.clone());
        outcome
    }
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
            cut::finish(s, &cut, ClientId(0)).await?;
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

    /// Each copy of a request, and everybody who came to write, removed the same chunks once more, side by side.
    #[test]
    fn a_truncate_is_finished_by_one_and_all_get_the_outcome() {
        real::run(|rt| async move {
            for outcome in [Ok(TruncateEpoch(4)), Err(Error::from(Status::ChainUnavailable))] {
                let (cuts, runs) = (Cuts::default(), Cell::new(0));
                let finish = async |epoch, outcome: &Result<TruncateEpoch>| {
                    let work = async {
                        runs.set(runs.get() + 1);
                        rt.sleep(Duration::from_millis(20)).await;
                        outcome.clone()
                    };
                    cuts.shared(&rt, InodeId(7), TruncateEpoch(epoch), work).await
                };
                let all = join_all((0..5).map(|_| finish(3, &outcome))).await;
                assert!(all.iter().all(|o| *o == outcome));
                assert_eq!(runs.get(), 1);
                // Another truncate of the file is another thing; one that came to no end is begun anew.
                let left = rt.timeout(Duration::from_millis(5), finish(3, &outcome)).await;
                assert!(left.is_err());
                let (one, other) = (finish(3, &outcome), finish(5, &Ok(TruncateEpoch(6))));
                let (one, other) = glowfs_rt::sync::join(one, other).await;
                assert_eq!((one, other), (outcome, Ok(TruncateEpoch(6))));
                assert_eq!(runs.get(), 4);
                assert!(cuts.under_way.borrow().is_empty());
            }
        });
    }

    /// Calls of clients that had long asked anew kept their places at the service until the truncate was done.
    #[test]
    fn nobody_waits_for_a_truncate_longer_than_a_client_waits_for_an_answer() {
        real::run(|rt| async move {
            let cuts = Cuts { wait: Duration::from_millis(30), ..Cuts::default() };
            let (id, epoch) = (InodeId(7), TruncateEpoch(3));
            let (told, asked) = (Notify::default(), Cell::new(false));
            let long = cuts.shared(&rt, id, epoch, async {
                told.wait().await;
                Ok(TruncateEpoch(4))
            });
            let waits = async {
                rt.sleep(Duration::from_millis(1)).await;
                let again = cuts.shared(&rt, id, epoch, async {
                    asked.set(true);
                    Ok(epoch)
                });
                let said = rt.timeout(Duration::from_secs(20), again).await;
                told.notify_all();
                let said = said.expect("it is told soon").map_err(|e| e.status);
                assert_eq!(said, Err(Status::Overloaded));
            };
            let (done, ()) = glowfs_rt::sync::join(long, waits).await;
            assert_eq!((done, asked.get()), (Ok(TruncateEpoch(4)), false));
        });
    }
}
