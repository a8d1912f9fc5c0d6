//! Changes of one inode by several calls: while one of them is in work the others wait, and then go together in one transaction.
//!
//! What is noted of a file is read and written by each change of it, so of changes at once one would be done and all others would have a conflict, again and again.
//! Only where the engine is another process: in this one a transaction is over before the next begins. (Names of one directory need no turns: they change sums, which
//! are no conflicts, and engines gather their commits.)
//!
//! Guarantees: each call gets an answer of its own, as if they had been made one after the other; one that fails changes nothing and leaves the others as they are. A
//! transaction of several that fails, or of which it is not known what became of it, is nobody's answer: each of its calls is made once more on its own, as a copy of its own
//! request. Nothing that is right depends on turns: who has waited for long goes without. Must never: answer a call that went by what another one did
//! before both are committed, or let a call read as of a moment before it was made.

use crate::lane::{Joined, Lane, Lanes, Turn};
use crate::state::Service;
use glowfs_kv::{Engine, Transaction, is_tried_again};
use glowfs_rt::Rt;
use glowfs_rt::sync::oneshot;
use glowfs_telemetry::Counter;
use glowfs_types::{InodeId, Result, Status};
use std::rc::Rc;

/// Calls in one transaction.
const TOGETHER_MAX: usize = 32;

impl Service {
    /// Runs a transaction that changes what is noted of one inode. `once`: its request id makes a repetition harmless; it may go together with others then.
    pub async fn run_on<T>(
        &self,
        inode: InodeId,
        (durable, once): (bool, bool),
        work: impl AsyncFn(&Transaction) -> Result<T>,
    ) -> Result<T> {
        let options = self.options(durable, once);
        let alone = async || self.run_with(options, &work).await;
        match self.together.as_ref().filter(|_| once) {
            Some(together) => together.run(inode, options.durable, &work, alone).await,
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
        durable: bool,
        work: impl AsyncFn(&Transaction) -> Result<T>,
        alone: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        let mut joins = true;
        loop {
            match self.lanes.turn(&self.rt, inode, joins).await {
                None => return alone().await,
                Some(Turn::Lead(lane)) => {
                    let led = if joins { self.lead(&lane, durable, &work).await } else { None };
                    return match led {
                        Some(result) => result,
                        // With the turn, so that the others follow one after the other.
                        None => {
                            self.counts.again.add(u64::from(joins));
                            alone().await
                        }
                    };
                }
                Some(Turn::Join(joined)) => match take_part(joined, durable, &work).await {
                    Some(result) => return result,
                    None => joins = false,
                },
            }
        }
    }

    /// Makes a transaction of this call and of those that wait. None: it came to nothing, or nobody knows.
    async fn lead<T>(
        &self,
        lane: &Lane,
        mut durable: bool,
        work: impl AsyncFn(&Transaction) -> Result<T>,
    ) -> Option<Result<T>> {
        lane.begins();
        let tx = Rc::new(Transaction::new(self.engine.clone()));
        let mine = part(&tx, work).await?;
        let mut others = Vec::new();
        while others.len() + 1 < TOGETHER_MAX {
            let (done, is_done) = oneshot();
            let (tell, outcome) = oneshot();
            if !lane.join(Joined { tx: tx.clone(), done, outcome }) {
                break;
            }
            // Dropped without a word: nobody knows what of its part is in the transaction.
            durable |= is_done.await.ok()?;
            others.push(tell);
        }
        tx.commit(durable).await.ok()?;
        self.counts.run.inc();
        self.counts.gathered.add(others.len() as u64);
        for tell in others {
            // Who asked may have gone.
            let _ = tell.send(());
        }
        Some(mine)
    }
}

/// Does a call's part of a transaction that another call leads. None: that came to nothing, or nobody knows.
async fn take_part<T>(
    joined: Joined,
    durable: bool,
    work: impl AsyncFn(&Transaction) -> Result<T>,
) -> Option<Result<T>> {
    let Joined { tx, done, outcome } = joined;
    let result = part(&tx, work).await?;
    drop(tx);
    // Who leads may have gone; then nothing is committed.
    let _ = done.send(durable);
    outcome.await.ok()?;
    Some(result)
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
