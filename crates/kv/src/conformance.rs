//! The suite that every engine passes: what an engine promises, tried out. [`run`] needs an engine that nobody else uses.

macro_rules! ensure {
    ($cond:expr, $($what:tt)*) => {
        if !$cond {
            return Err(Error::new(Status::Internal, format!("conformance: {}", format!($($what)*))));
        }
    };
}

mod basics;
mod conflicts;
mod serializable;
mod stamps;

pub use stamps::stamps_are_versions;

use crate::{Engine, Transaction, Version, key_after, run_transaction};
use basics::{limits, many_keys, own_writes, ranges, snapshots};
use conflicts::{conflicts, no_conflicts, removals};
use glowfs_rt::Rt;
use glowfs_types::{Error, Result, Status};
use serializable::serializable;
use stamps::{concurrent_stamps, stamps};
use std::rc::Rc;

/// Concurrent workers of the serializability check.
const WORKERS: u64 = 8;

fn expect_status<T>(result: Result<T>, want: Status, what: &str) -> Result<()> {
    match result {
        Err(e) if e.status == want => Ok(()),
        Err(e) => Err(e.context(format!("conformance: {what}: expected {want}, got"))),
        Ok(_) => Err(Error::new(
            Status::Internal,
            format!("conformance: {what}: expected {want}, got Ok"),
        )),
    }
}

/// Runs everything; the first broken promise is the error. `rounds` transactions per worker in the concurrent check.
pub async fn run(rt: &Rt, engine: &Rc<dyn Engine>, seed: u64, rounds: u32) -> Result<()> {
    run_beside(rt, engine, engine, seed, rounds).await
}

/// The same, with `other` a second handle of the engine: half of the workers use that one.
pub async fn run_beside(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    other: &Rc<dyn Engine>,
    seed: u64,
    rounds: u32,
) -> Result<()> {
    own_writes(engine).await?;
    ranges(engine).await?;
    snapshots(engine).await?;
    conflicts(engine).await?;
    removals(engine).await?;
    no_conflicts(engine).await?;
    stamps(engine).await?;
    concurrent_stamps(rt, engine).await?;
    many_keys(engine).await?;
    limits(engine).await?;
    serializable(rt, [engine, other], seed, rounds).await
}

fn begin(engine: &Rc<dyn Engine>) -> Transaction {
    Transaction::new(engine.clone())
}

async fn put(engine: &Rc<dyn Engine>, key: &[u8], value: &[u8]) -> Result<Version> {
    let tx = begin(engine);
    tx.put(key, value)?;
    tx.commit(false).await
}

/// Counts up concurrently with read-modify-write transactions in the retry loop; none may be lost.
pub async fn counters(rt: &Rt, engine: &Rc<dyn Engine>, workers: u32, each: u32) -> Result<()> {
    let mut tasks = Vec::new();
    for _ in 0..workers {
        let (rt2, engine) = (rt.clone(), engine.clone());
        tasks.push(rt.spawn(async move {
            for _ in 0..each {
                run_transaction(&rt2, &engine, async |tx| {
                    let n = tx.get(b"counter").await?.map_or(0, |v| v.len());
                    tx.put(b"counter", vec![0; n + 1])
                })
                .await?;
            }
            Ok::<(), Error>(())
        }));
    }
    for t in tasks {
        t.await?;
    }
    let tx = begin(engine);
    let n = tx.get(b"counter").await?.map_or(0, |v| v.len());
    ensure!(n == (workers * each) as usize, "{n} increments are left of {}", workers * each);
    tx.get_range(b"counter", &key_after(b"counter"), 1, false).await.map(|_| ())
}
