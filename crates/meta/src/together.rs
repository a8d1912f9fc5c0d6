//! Changes of one inode by several calls: while one of them is in work the others wait, and then go together in one transaction.
//!
//! What is noted of a file is read and written by each change of it, so of changes at once one would be done and all others would have a conflict, again and again.
//! Only where the engine is another process: in this one a transaction is over before the next begins. (Names of one directory need no turns: they change sums, which
//! are no conflicts, and engines gather their commits.)
//!
//! Guarantees: each call gets an answer of its own, as if they had been made one after the other; one that fails changes nothing and leaves the others as they are. A
//! transaction of several that fails, or of which it is not known what became of it, is nobody's answer: each of its calls is made once more on its own, as a copy of its own
//! request: if nobody knows, a refusal of it is remembered before it is told ([`Doubt`]). Nothing that is right depends on turns: who has waited for long goes without.
//! Must never: answer a call that went by what another one did
//! before both are committed, or let a call read as of a moment before it was made.

use crate::lane::{End, Joined, Lane, Lanes, Turn};
use crate::once::Doubt;
use crate::state::Service;
use glowfs_kv::{Engine, Transaction, is_tried_again, never_happens};
use glowfs_rt::sync::{OneSender, oneshot};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_telemetry::Counter;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::{InodeId, Result, Status};
use std::rc::Rc;

/// Calls in one transaction.
const TOGETHER_MAX: usize = 32;
/// So long after the beginning of a transaction others are let in. Their parts come one after the other, and others wait for them: longer than
/// [`crate::lane`] bounds it, they would go without a turn and be in the way.
const LET_IN_MAX: Duration = Duration::from_millis(200);
/// Nobody is let in any more when so many keys and ranges were read: etcd takes 126 conditions in a transaction, and one call, as LOCK, may add half of them.
const CONDITIONS_MAX: usize = 60;

impl Service {
    /// Runs a transaction that changes what is noted of one inode. `once`: its request id makes a repetition harmless; it may go together with others then, and there may
    /// be `doubt`.
    pub async fn run_on<T>(
        &self,
        inode: InodeId,
        (durable, once): (bool, bool),
        doubt: &Doubt,
        work: impl AsyncFn(&Transaction) -> Result<T>,
    ) -> Result<T> {
        let options = self.options(durable, once);
        let alone = async || self.run_with(options, &work).await;
        match self.together.as_ref().filter(|_| once) {
            Some(together) => together.run(inode, (options.durable, doubt), &work, alone).await,
            None => alone().await,
        }
    }
}

/// See the module.
pub struct Together {
    rt: Rt,
    engine: Rc<dyn Engine>,
    lanes: Lanes,
    counts: Counts,
}

/// What is counted.
pub struct Counts {
    /// Transactions.
    pub run: Counter,
    /// Those that came to nothing.
    pub again: Counter,
    /// Calls that were done in the transaction of another one.
    pub gathered: Counter,
}

impl Together {
    /// Nobody is at work.
    pub fn new(rt: &Rt, engine: Rc<dyn Engine>, counts: Counts) -> Self {
        Self { rt: rt.clone(), engine, lanes: Lanes::default(), counts }
    }

    /// Does `work` in a transaction: `alone`, or once before that with others.
    async fn run<T>(
        &self,
        inode: InodeId,
        (durable, doubt): (bool, &Doubt),
        work: impl AsyncFn(&Transaction) -> Result<T>,
        alone: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        let mut joins = true;
        loop {
            match self.lanes.turn(&self.rt, inode, joins).await {
                None => return alone().await,
                Some(Turn::Lead(lane)) => {
                    if joins {
                        match self.lead(&lane, durable, &work).await {
                            Ok(result) => return result,
                            Err(none) => none.raises(doubt),
                        }
                        self.counts.again.inc();
                    }
                    // With the turn, so that the others follow one after the other.
                    return alone().await;
                }
                Some(Turn::Join(joined)) => match take_part(joined, durable, &work).await {
                    Ok(result) => return result,
                    Err(none) => {
                        none.raises(doubt);
                        joins = false;
                    }
                },
            }
        }
    }

    /// Makes a transaction of this call and of those that wait. Its answer, or why there is none.
    async fn lead<T>(
        &self,
        lane: &Lane,
        durable: bool,
        work: impl AsyncFn(&Transaction) -> Result<T>,
    ) -> std::result::Result<Result<T>, NoAnswer> {
        lane.begins();
        let until = self.rt.now() + LET_IN_MAX;
        let tx = Rc::new(Transaction::new(self.engine.clone()));
        let mine = part(&tx, work).await.ok_or(NoAnswer::Nothing)?;
        let mut others = Vec::new();
        let end = match self.let_in(lane, (&tx, until), &mut others).await {
            Some(on_disk) => end_of(
                tx.commit(durable || on_disk && !planted(Mutant::FsyncOfAnother)).await.map(drop),
            ),
            None => End::Nothing,
        };
        if end == End::Committed {
            self.counts.run.inc();
            self.counts.gathered.add(others.len() as u64);
        }
        for tell in others {
            // Who asked may have gone.
            let _ = tell.send(end);
        }
        NoAnswer::unless_committed(Some(end)).map(|()| mine)
    }

    /// Lets others do their parts, one after the other. Whether one of them has to be on disk; None: the transaction is good for nothing any more.
    async fn let_in(
        &self,
        lane: &Lane,
        (tx, until): (&Rc<Transaction>, Instant),
        others: &mut Vec<OneSender<End>>,
    ) -> Option<bool> {
        let mut durable = false;
        while others.len() + 1 < TOGETHER_MAX
            && self.rt.now() < until
            && tx.conditions() < CONDITIONS_MAX
        {
            let (done, is_done) = oneshot();
            let (tell, outcome) = oneshot();
            if !lane.join(Joined { tx: tx.clone(), done, outcome }) {
                break;
            }
            // Dropped without a word: nobody knows what of its part is in the transaction.
            durable |= is_done.await.ok()?;
            others.push(tell);
        }
        Some(durable)
    }
}

/// Why a transaction of several is no answer.
#[derive(Clone, Copy)]
enum NoAnswer {
    /// Nothing came of it, and nothing will.
    Nothing,
    /// Nobody knows: it may come late.
    Unknown,
}

impl NoAnswer {
    /// `end`: None if who led the transaction has gone.
    fn unless_committed(end: Option<End>) -> std::result::Result<(), Self> {
        match end {
            Some(End::Committed) => Ok(()),
            Some(End::Nothing) => Err(Self::Nothing),
            Some(End::Unknown) | None => Err(Self::Unknown),
        }
    }
    fn raises(self, doubt: &Doubt) {
        if matches!(self, Self::Unknown) {
            doubt.arises();
        }
    }
}

/// What a commit came to. Doubt costs one transaction more, and only who is refused afterwards.
fn end_of(committed: Result<()>) -> End {
    match committed {
        Ok(()) => End::Committed,
        Err(e) if never_happens(e.status) => End::Nothing,
        Err(_) => End::Unknown,
    }
}

/// Does a call's part of a transaction that another call leads. Its answer, or why there is none.
async fn take_part<T>(
    joined: Joined,
    durable: bool,
    work: impl AsyncFn(&Transaction) -> Result<T>,
) -> std::result::Result<Result<T>, NoAnswer> {
    let Joined { tx, done, outcome } = joined;
    let result = part(&tx, work).await.ok_or(NoAnswer::Nothing)?;
    drop(tx);
    // Who leads may have gone; then nothing is told.
    let _ = done.send(durable);
    NoAnswer::unless_committed(outcome.await.ok())?;
    Ok(result)
}

/// One call's part. An error that is its answer leaves the transaction as it was; None: the transaction is good for nothing any more.
async fn part<T>(
    tx: &Transaction,
    work: impl AsyncFn(&Transaction) -> Result<T>,
) -> Option<Result<T>> {
    let before = tx.savepoint();
    let result = work(tx).await;
    if let Err(e) = &result {
        // Too large may be what the others did.
        if is_tried_again(e.status) || e.status == Status::TooLarge {
            return None;
        }
        tx.back_to(before);
    }
    Some(result)
}

#[cfg(test)]
mod tests;
