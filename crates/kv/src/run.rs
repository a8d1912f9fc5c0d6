//! [`run_transaction`]: the retry loop that every transaction runs in.

use crate::{Engine, Transaction};
use glowfs_rt::{Duration, Rt};
use glowfs_types::{Result, Status};
use std::rc::Rc;

/// How a transaction is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// The commit is on disk before it returns.
    pub durable: bool,
    /// Running it twice does no harm, so an unknown outcome of its commit is retried as well.
    pub idempotent: bool,
    /// At most so many attempts.
    pub attempts: u32,
    /// No new attempt after this time.
    pub deadline: Duration,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { durable: false, idempotent: false, attempts: 64, deadline: Duration::from_secs(10) }
    }
}

impl RunOptions {
    /// The default, with commits on disk before they return.
    pub fn durable() -> Self {
        Self { durable: true, ..Self::default() }
    }
}

/// The pause after the second conflict; doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_micros(500);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Runs `work` in a transaction and commits it, again and again until it succeeds or fails for good.
///
/// `work` may run several times: it must have no effect but through the transaction.
pub async fn run_transaction<T>(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    work: impl AsyncFn(&Transaction) -> Result<T>,
) -> Result<T> {
    run_transaction_with(rt, engine, RunOptions::default(), work).await
}

/// The same with options.
pub async fn run_transaction_with<T>(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    options: RunOptions,
    work: impl AsyncFn(&Transaction) -> Result<T>,
) -> Result<T> {
    run_transaction_telling(rt, engine, options, work, |_| {}).await
}

/// What becomes of the commit of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is sent at this moment: from now on others may see what it changes, and not before.
    Now,
    /// Nothing came of the last one, and nothing will.
    ForNothing,
}

/// The same, and `tell` hears of the commit of each attempt. Of one after which it hears nothing more before the next one, it is not known whether it was committed.
pub async fn run_transaction_telling<T>(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    options: RunOptions,
    work: impl AsyncFn(&Transaction) -> Result<T>,
    tell: impl Fn(Sent),
) -> Result<T> {
    let give_up = rt.now() + options.deadline;
    let mut attempt = 1;
    loop {
        let tx = Transaction::new(engine.clone());
        let error = match work(&tx).await {
            Ok(value) => {
                tell(Sent::Now);
                match tx.commit(options.durable).await {
                    Ok(_) => return Ok(value),
                    Err(e) => {
                        if never_happens(e.status) {
                            tell(Sent::ForNothing);
                        }
                        e
                    }
                }
            }
            Err(e) => match e.status {
                _ if retriable(e.status, options) => e,
                // What the work concluded may rest on a read that was not settled, or not serializable: check that first.
                _ => match tx.check_reads().await {
                    Ok(()) => return Err(e),
                    Err(conflict) => conflict,
                },
            },
        };
        if !retriable(error.status, options) {
            return Err(error);
        }
        if attempt >= options.attempts || rt.now() >= give_up {
            return Err(error.context(format!("transaction given up after {attempt} attempts")));
        }
        if attempt > 1 {
            let longest = PAUSE_MIN.saturating_mul(1 << (attempt - 2).min(8)).min(PAUSE_MAX);
            let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
            rt.sleep(Duration::from_nanos(nanos / 2 + rt.random_below(nanos / 2))).await;
        }
        attempt += 1;
    }
}

fn retriable(status: Status, options: RunOptions) -> bool {
    is_tried_again(status) || status == Status::CommitUnknown && options.idempotent
}

/// Whether a commit that failed so has changed nothing and never will. Only what says so for sure counts: doubt does no harm.
pub const fn never_happens(status: Status) -> bool {
    matches!(status, Status::Conflict | Status::TooOld | Status::TooLarge | Status::NoSpace)
}

/// Whether a transaction that failed so is tried again, since nothing came of it.
pub const fn is_tried_again(status: Status) -> bool {
    matches!(
        status,
        Status::Conflict
            | Status::TooOld
            | Status::Overloaded
            | Status::TimedOut
            | Status::Disconnected
            | Status::ShuttingDown
            | Status::NotPrimary
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use std::cell::{Cell, RefCell};

    /// Who waits for what may have been committed hears of each attempt when its commit is sent, and of one that had a conflict that nothing came of it.
    #[test]
    fn each_attempt_is_told_of_when_it_is_sent() {
        glowfs_rt::real::run(|rt| async move {
            let (engine, told) = (Memory::engine(), RefCell::new(Vec::new()));
            let attempts = Cell::new(0);
            let other = async |n: u8| {
                run_transaction(&rt, &engine, async |tx| tx.put(b"a", vec![n])).await.expect("put");
            };
            let work = async |tx: &Transaction| {
                assert_eq!(told.borrow().len(), 2 * attempts.get(), "nothing before the commit");
                attempts.set(attempts.get() + 1);
                tx.get(b"a").await?;
                if attempts.get() < 3 {
                    other(attempts.get() as u8).await;
                }
                tx.put(b"b", b"mine")
            };
            let tell = |sent| told.borrow_mut().push(sent);
            let options = RunOptions::default();
            let done = run_transaction_telling(&rt, &engine, options, work, tell).await;
            done.expect("done");
            let nothing = [Sent::Now, Sent::ForNothing];
            assert_eq!(*told.borrow(), [&nothing[..], &nothing, &[Sent::Now]].concat());
            // One that is refused by its own work has sent nothing.
            told.borrow_mut().clear();
            let refuse = async |_: &Transaction| Err::<(), _>(Status::AccessDenied.into());
            let refused = run_transaction_telling(&rt, &engine, options, refuse, tell).await;
            assert_eq!(refused.expect_err("refused").status, Status::AccessDenied);
            assert!(told.borrow().is_empty());
        });
    }
}
