//! Answers that are lost, late, or that ask for a retry: nothing is done twice, and nothing that was answered is missing. Over the stand-in only.

mod common;

use common::{Fault, Place, every, real as real_cluster, struck};
use glowfs_kv::{Engine, RunOptions, Transaction, conformance, run_transaction_with};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Duration, Rt, real};
use glowfs_types::{Error, Status};
use std::rc::Rc;

const UNKNOWN: [Fault; 3] = [Fault::UnknownNotDone, Fault::UnknownDone, Fault::UnknownLate];

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("8 bytes"))
}

/// Counts up in two ways (read and write; add), each often. Not idempotent: an unknown outcome would be an error, and a commit done twice one too many.
async fn count_exactly(rt: &Rt, engines: &[Rc<dyn Engine>], workers: u64, each: u64) {
    let mut tasks = Vec::new();
    for engine in engines {
        for _ in 0..workers {
            let (rt, engine) = (rt.clone(), engine.clone());
            tasks.push(async move {
                for _ in 0..each {
                    let deadline = Duration::from_secs(60);
                    let options =
                        RunOptions { deadline, attempts: u32::MAX, ..RunOptions::default() };
                    run_transaction_with(&rt, &engine, options, async |tx| {
                        let n = tx.get(b"counted").await?.map_or(0, |v| number(&v));
                        tx.put(b"counted", (n + 1).to_le_bytes().to_vec())?;
                        tx.add(b"added", 1)
                    })
                    .await?;
                    // Nothing is read: many of these are in work at once.
                    let tx = Transaction::new(engine.clone());
                    tx.add(b"blind", 1)?;
                    while let Err(e) = tx.commit(false).await {
                        // Answered, so not done; but the writes are gone with the attempt.
                        assert!(
                            matches!(
                                e.status,
                                Status::Conflict | Status::TooOld | Status::Overloaded
                            ),
                            "{e}"
                        );
                        tx.add(b"blind", 1)?;
                    }
                }
                Ok::<(), Error>(())
            });
        }
    }
    for result in join_all(tasks).await {
        result.expect("counting");
    }
    for fault in [Fault::TooOld, Fault::FutureVersion] {
        every(fault, 0);
    }
    let tx = Transaction::new(engines[0].clone());
    for key in ["counted", "added", "blind"] {
        let is = tx.get(key.as_bytes()).await.expect("read").map_or(0, |v| number(&v));
        assert_eq!(is, engines.len() as u64 * workers * each, "{key}");
    }
}

/// One test: faults are the whole process's.
#[test]
fn what_is_lost_is_settled() {
    if real_cluster().is_some() {
        return;
    }
    real::run(|rt| async move {
        // The caller of a commit must not see these at all.
        for (fault, n) in UNKNOWN.into_iter().zip([5, 7, 11]) {
            every(fault, n);
        }
        every(Fault::Slow, 13);
        let place = Place::new();
        let engine = place.open(&rt, "a");
        conformance::run(&rt, &engine, 11, 60).await.expect("behind a bad line");
        let engines = [engine, place.open(&rt, "b")];
        count_exactly(&rt, &engines, 4, 25).await;
        // These ask for a retry.
        let place = Place::new();
        for (fault, n) in [(Fault::Conflict, 9), (Fault::TooOld, 17), (Fault::FutureVersion, 19)] {
            every(fault, n);
        }
        let engines = [place.open(&rt, "a"), place.open(&rt, "b")];
        count_exactly(&rt, &engines, 4, 25).await;
        let others = [Fault::Conflict, Fault::TooOld, Fault::FutureVersion, Fault::Slow];
        for fault in UNKNOWN.into_iter().chain(others) {
            assert!(struck(fault) >= 5, "{fault:?} struck {} times", struck(fault));
            every(fault, 0);
        }
        given_up(&rt).await;
        no_answer_at_all(&rt).await;
        never_known(&rt).await;
    });
}

async fn put(engine: &Rc<dyn Engine>, key: &[u8]) -> Result<u64, Error> {
    let tx = Transaction::new(engine.clone());
    tx.put(key, b"x")?;
    tx.commit(false).await
}

/// The library's answers come after nobody waits for them any more, or while that is being said.
async fn given_up(rt: &Rt) {
    let place = Place::new();
    let engine = place.open(rt, "a");
    every(Fault::Slow, 3);
    let mut answered = 0;
    for i in 0..400u64 {
        let patience = Duration::from_micros(i * 29 % 6000);
        let work = async {
            let tx = Transaction::new(engine.clone());
            tx.get(b"k").await?;
            tx.get_range(b"", b"z", 10, false).await?;
            tx.put(i.to_be_bytes(), b"x")?;
            tx.commit(false).await
        };
        match rt.timeout(patience, work).await {
            Ok(done) => {
                // What was given up may still happen, and change what this one read.
                assert!(!matches!(&done, Err(e) if e.status != Status::Conflict), "{done:?}");
                answered += 1;
            }
            Err(_) => rt.yield_now().await,
        }
    }
    every(Fault::Slow, 0);
    assert!((20..380).contains(&answered), "{answered} of 400 were answered");
    put(&engine, b"after").await.expect("committed");
}

/// A commit happens, and nobody says so. That is found out; but not if another process has the same name, which has to be said.
async fn no_answer_at_all(rt: &Rt) {
    let place = Place::new();
    let (alone, first, second) =
        (place.open(rt, "alone"), place.open(rt, "twin"), place.open(rt, "twin"));
    every(Fault::Silent, 1);
    let waiting = [(alone, b"alone"), (first, b"first")];
    let waiting: Vec<_> = waiting
        .into_iter()
        .map(|(engine, key)| rt.spawn(async move { put(&engine, key).await }))
        .collect();
    while struck(Fault::Silent) < 2 {
        rt.sleep(Duration::from_millis(1)).await;
    }
    every(Fault::Silent, 0);
    put(&second, b"second").await.expect("nothing is wrong with this one");
    let mut results = Vec::new();
    for task in waiting {
        results.push(task.await);
    }
    assert!(results[0].is_ok(), "{results:?}");
    let e = results[1].as_ref().expect_err("overwritten");
    assert_eq!(e.status, Status::CommitUnknown, "{e}");
    assert!(e.message.contains("same node id"), "{e}");
}

/// If it cannot be found out, that is the answer; and the engine goes on when it can.
async fn never_known(rt: &Rt) {
    let place = Place::new();
    let engine = place.open(rt, "a");
    put(&engine, b"before").await.expect("committed");
    every(Fault::UnknownNotDone, 1);
    let e = put(&engine, b"lost").await.expect_err("nobody knows");
    assert_eq!(e.status, Status::CommitUnknown, "{e}");
    assert!(e.message.contains("1021"), "{e}");
    every(Fault::UnknownNotDone, 0);
    put(&engine, b"after").await.expect("committed");
    let tx = Transaction::new(engine);
    assert!(tx.get(b"lost").await.expect("read").is_none());
}
