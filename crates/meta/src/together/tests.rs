//! Calls on one inode over an engine that takes its time, and whose commits go wrong as they are told to.

use super::*;
use glowfs_kv::{Key, Memory, RangePage, RunOptions, Value, Version, run_transaction_with};
use glowfs_rt::sync::join_all;
use glowfs_rt::{BoxFuture, Duration, real};
use glowfs_telemetry::Registry;
use glowfs_types::Error;
use glowfs_types::wire::kv::Commit;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

const FILE: InodeId = InodeId(7);
const CALLS: u64 = 16;
/// How long the engine takes for everything.
const TIME: Duration = Duration::from_millis(2);

/// What becomes of a commit.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Done,
    /// Somebody else has changed what it read.
    Conflict,
    /// Done, and its answer is lost.
    DoneUnknown,
    /// Not done, and nobody knows.
    NotDoneUnknown,
    /// Nobody knows, and it may be done later: see [`Slow::deliver`].
    Late,
}

/// What etcd takes in a transaction beside its own.
const CONDITIONS_TAKEN: usize = 126;

/// See the module.
struct Slow {
    rt: Rt,
    memory: Rc<dyn Engine>,
    fates: RefCell<VecDeque<Fate>>,
    /// Commits that changed something.
    commits: Cell<u64>,
    late: RefCell<Vec<Commit>>,
}

impl Slow {
    /// What comes late does so now.
    async fn deliver(&self) -> Vec<Result<Version>> {
        let late = self.late.take();
        join_all(late.into_iter().map(|c| self.memory.commit(c))).await
    }
}

struct Handle(Rc<Slow>);

impl Engine for Handle {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        let this = self.0.clone();
        Box::pin(async move {
            this.rt.sleep(TIME).await;
            this.memory.begin().await
        })
    }
    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        let this = self.0.clone();
        Box::pin(async move {
            this.rt.sleep(TIME).await;
            this.memory.get(version, keys).await
        })
    }
    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        self.0.memory.get_range(version, begin, end, limit, reverse)
    }
    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        let this = self.0.clone();
        Box::pin(async move {
            this.rt.sleep(TIME).await;
            if commit.mutations.is_empty() {
                return this.memory.commit(commit).await;
            }
            this.commits.set(this.commits.get() + 1);
            if commit.read_conflicts.len() > CONDITIONS_TAKEN {
                return Err(Error::new(Status::TooLarge, "too many conditions"));
            }
            let fate = this.fates.borrow_mut().pop_front().unwrap_or(Fate::Done);
            let unknown = || Err(Error::new(Status::CommitUnknown, "no answer"));
            match fate {
                Fate::Done => this.memory.commit(commit).await,
                Fate::Conflict => Err(Error::new(Status::Conflict, "somebody else")),
                Fate::DoneUnknown => {
                    this.memory.commit(commit).await?;
                    unknown()
                }
                Fate::NotDoneUnknown => unknown(),
                Fate::Late => {
                    this.late.borrow_mut().push(commit);
                    unknown()
                }
            }
        })
    }
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        self.0.memory.flush_barrier()
    }
}

struct Lab {
    rt: Rt,
    slow: Rc<Slow>,
    engine: Rc<dyn Engine>,
    together: Together,
}

impl Lab {
    fn new(rt: &Rt, fates: &[Fate]) -> Self {
        let slow = Rc::new(Slow {
            rt: rt.clone(),
            memory: Rc::new(Memory::new()),
            fates: RefCell::new(fates.iter().copied().collect()),
            commits: Cell::new(0),
            late: RefCell::default(),
        });
        let engine: Rc<dyn Engine> = Rc::new(Handle(slow.clone()));
        let count = |name| Registry::global().counter(name, "Of tests.", &[]);
        let counts = Counts {
            run: count("test_run_total"),
            again: count("test_again_total"),
            gathered: count("test_gathered_total"),
        };
        let together = Together::new(rt, engine.clone(), counts);
        Self { rt: rt.clone(), slow, engine, together }
    }
    async fn call<T>(&self, work: impl AsyncFn(&Transaction) -> Result<T>) -> Result<T> {
        self.call_in(&Doubt::default(), work).await
    }
    async fn call_in<T>(
        &self,
        doubt: &Doubt,
        work: impl AsyncFn(&Transaction) -> Result<T>,
    ) -> Result<T> {
        let options = RunOptions { idempotent: true, ..RunOptions::default() };
        let alone = async || run_transaction_with(&self.rt, &self.engine, options, &work).await;
        self.together.run(FILE, (false, doubt), &work, alone).await
    }
    /// Has the turn first, so that these calls wait and go together.
    async fn behind_another<F: Future>(&self, calls: impl Iterator<Item = F>) -> Vec<F::Output> {
        let first = self.call(async |tx| {
            tx.get(b"first").await?;
            tx.put(b"first", [0; 8])
        });
        let (first, answers) = glowfs_rt::sync::join(first, join_all(calls)).await;
        first.expect("nobody is in its way");
        answers
    }
    /// Call `n`: counts up, once; says which it was.
    async fn count(&self, n: u64) -> Result<u64> {
        self.call(async |tx| {
            if let Some(before) = tx.get(&request(n)).await? {
                return Ok(number(&before));
            }
            let count = tx.get(b"count").await?.map_or(0, |v| number(&v));
            tx.put(b"count", (count + 1).to_le_bytes())?;
            tx.put(request(n), count.to_le_bytes())?;
            Ok(count)
        })
        .await
    }
    async fn read(&self, key: &[u8]) -> Option<u64> {
        let tx = Transaction::new(self.engine.clone());
        tx.get(key).await.expect("read").map(|v| number(&v))
    }
    /// All calls at once: each was done once, and heard which it was.
    async fn count_all(&self) {
        let answers = self.behind_another((0..CALLS).map(|n| self.count(n))).await;
        let mut answers: Vec<u64> = answers.into_iter().map(|a| a.expect("counted")).collect();
        for (n, answer) in (0..CALLS).zip(&answers) {
            assert_eq!(self.read(&request(n)).await, Some(*answer), "call {n}");
        }
        answers.sort_unstable();
        assert_eq!(answers, (0..CALLS).collect::<Vec<_>>());
        assert_eq!(self.read(b"count").await, Some(CALLS));
        self.nobody_waits();
    }
    fn nobody_waits(&self) {
        assert!(self.together.lanes.is_empty());
    }
}

fn request(n: u64) -> Vec<u8> {
    format!("request-{n:02}").into_bytes()
}
fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("8 bytes"))
}

#[test]
fn calls_at_once_go_together_and_each_has_its_own_answer() {
    real::run(|rt| async move {
        let lab = Lab::new(&rt, &[]);
        lab.count_all().await;
        assert_eq!(lab.slow.commits.get(), 2, "the first, and all that waited for it");
        // Copies of the requests change nothing.
        lab.count_all().await;
        assert_eq!(lab.slow.commits.get(), 3, "the first");
    });
}

#[test]
fn one_that_fails_changes_nothing_and_leaves_the_others_as_they_are() {
    real::run(|rt| async move {
        let lab = Lab::new(&rt, &[]);
        let call = async |n: u64| {
            lab.call(async |tx| {
                tx.add(b"tried", 1)?;
                let count = tx.get(b"count").await?.map_or(0, |v| number(&v));
                tx.put(b"count", (count + 1).to_le_bytes())?;
                tx.put(request(n), count.to_le_bytes())?;
                match n % 4 {
                    1 => Err(Error::new(Status::Exists, format!("call {n}"))),
                    _ => Ok(count),
                }
            })
            .await
        };
        let answers = lab.behind_another((0..CALLS).map(call)).await;
        let failed = CALLS / 4;
        for (n, answer) in (0..CALLS).zip(answers) {
            let there = lab.read(&request(n)).await;
            match answer {
                Ok(count) => assert_eq!(there, Some(count)),
                Err(e) => assert_eq!((n % 4, e.status, there), (1, Status::Exists, None)),
            }
        }
        assert_eq!(lab.read(b"count").await, Some(CALLS - failed));
        assert_eq!(lab.read(b"tried").await, Some(CALLS - failed));
        assert_eq!(lab.slow.commits.get(), 2, "those that failed have not spoilt it");
    });
}

#[test]
fn who_fails_because_of_another_call_hears_that_when_it_is_so() {
    real::run(|rt| async move {
        for fate in [Fate::Done, Fate::Conflict, Fate::NotDoneUnknown, Fate::DoneUnknown] {
            let lab = Lab::new(&rt, &[Fate::Done, fate]);
            let make = async |n: u64| {
                lab.call(async |tx| {
                    let there = tx.get_all(&[b"name".to_vec(), request(n)]).await?;
                    match (&there[0], &there[1]) {
                        (_, Some(_)) => Ok(()),
                        (Some(_), None) => Err(Error::new(Status::Exists, "name")),
                        (None, None) => {
                            tx.put(request(n), [0; 8])?;
                            tx.put(b"name", n.to_le_bytes())
                        }
                    }
                })
                .await
            };
            let answers = lab.behind_another((0..CALLS).map(make)).await;
            let made: Vec<_> = (0..CALLS).filter(|n| answers[*n as usize].is_ok()).collect();
            assert_eq!(made.len(), 1, "{fate:?}");
            assert_eq!(lab.read(b"name").await, Some(made[0]), "{fate:?}");
        }
    });
}

#[test]
fn a_transaction_of_several_that_goes_wrong_is_nobodys_answer() {
    real::run(|rt| async move {
        for fate in [Fate::Conflict, Fate::DoneUnknown, Fate::NotDoneUnknown] {
            for more in [Fate::Done, Fate::Conflict, Fate::DoneUnknown, Fate::NotDoneUnknown] {
                let lab = Lab::new(&rt, &[Fate::Done, fate, more, more]);
                lab.count_all().await;
                let commits = lab.slow.commits.get();
                assert!(commits <= CALLS + 4, "{fate:?} {more:?}: {commits} commits");
            }
        }
    });
}

/// Its part is half in the transaction: nothing of it may be committed, and nobody waits for it.
#[test]
fn one_that_goes_away_in_the_middle_of_its_part_leaves_the_others() {
    real::run(|rt| async move {
        for goes in [0, 1, 5] {
            let lab = Lab::new(&rt, &[]);
            let call = async |n: u64| {
                let in_the_middle = async |tx: &Transaction| {
                    let count = tx.get(b"count").await?.map_or(0, |v| number(&v));
                    tx.put(b"count", (count + 1000).to_le_bytes())?;
                    std::future::pending::<Result<u64>>().await
                };
                match n == goes {
                    true => {
                        let bound = Duration::from_millis(300);
                        rt.timeout(bound, lab.call(in_the_middle)).await.expect_err("gone");
                    }
                    false => drop(lab.count(n).await.expect("counted")),
                }
            };
            let began = rt.now();
            lab.behind_another((0..CALLS).map(call)).await;
            assert_eq!(lab.read(b"count").await, Some(CALLS - 1));
            assert!(rt.now().since(began) < Duration::from_secs(5));
            lab.nobody_waits();
        }
    });
}

#[test]
fn nobody_waits_for_long_for_one_that_hangs() {
    real::run(|rt| async move {
        let lab = Lab::new(&rt, &[]);
        let hangs = lab.call(async |_: &Transaction| std::future::pending::<Result<()>>().await);
        let others = async {
            rt.sleep(TIME).await;
            join_all((0..CALLS).map(|n| lab.count(n))).await
        };
        let bound = Duration::from_secs(8);
        let both = glowfs_rt::sync::select(hangs, others);
        let Ok(glowfs_rt::sync::Either::Right(answers)) = rt.timeout(bound, both).await else {
            panic!("the others wait for it");
        };
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(lab.read(b"count").await, Some(CALLS));
    });
}

/// It would miss what was answered before it was made.
#[test]
fn who_comes_when_the_transaction_has_begun_takes_no_part_in_it() {
    real::run(|rt| async move {
        let lab = Lab::new(&rt, &[]);
        let Some(Turn::Lead(lane)) = lab.together.lanes.turn(&rt, FILE, true).await else {
            panic!("nobody has it");
        };
        let part = || {
            let ((done, _), (_, outcome)) = (oneshot(), oneshot());
            Joined { tx: Rc::new(Transaction::new(lab.engine.clone())), done, outcome }
        };
        let before = lab.together.lanes.turn(&rt, FILE, true);
        let after = lab.together.lanes.turn(&rt, FILE, true);
        let (tell, begun) = oneshot();
        let lead = async {
            lane.begins();
            let _ = tell.send(());
            // All that can go on has done so before this does.
            rt.sleep(TIME).await;
            assert!(lane.join(part()) && !lane.join(part()));
            drop(lane);
        };
        let after = async {
            begun.await.expect("it has begun");
            after.await
        };
        let (before, (after, ())) =
            glowfs_rt::sync::join(before, glowfs_rt::sync::join(after, lead)).await;
        assert!(matches!(before, Some(Turn::Join(_))));
        assert!(matches!(after, Some(Turn::Lead(_))));
    });
}

#[test]
fn other_inodes_wait_for_nothing() {
    real::run(|rt| async move {
        let lab = Lab::new(&rt, &[]);
        let Some(Turn::Lead(first)) = lab.together.lanes.turn(&rt, FILE, true).await else {
            panic!("nobody has it");
        };
        let Some(Turn::Lead(other)) = lab.together.lanes.turn(&rt, InodeId(8), true).await else {
            panic!("nobody has that");
        };
        let second = lab.together.lanes.turn(&rt, FILE, true);
        let release = async {
            rt.sleep(TIME).await;
            drop(first);
        };
        let (second, ()) = glowfs_rt::sync::join(second, release).await;
        assert!(matches!(second, Some(Turn::Lead(_))));
        drop((second, other));
        lab.nobody_waits();
    });
}

/// In the transaction that comes late it goes by what another call did there, and is not refused: whoever is told of a refusal must know that it will not come.
#[test]
fn who_is_refused_while_a_transaction_may_come_late_is_in_doubt() {
    real::run(|rt| async move {
        for (fate, late) in [(Fate::Late, 1), (Fate::NotDoneUnknown, 0), (Fate::Conflict, 0)] {
            let lab = Lab::new(&rt, &[Fate::Done, fate]);
            let (tries, doubt) = (Cell::new(0), Doubt::default());
            // Goes away when it is to be made once more.
            let opens = async |tx: &Transaction| {
                tries.set(tries.get() + 1);
                if tries.get() > 1 {
                    std::future::pending::<()>().await;
                }
                tx.put(b"open", [0; 8])
            };
            let goes = async {
                let bound = Duration::from_millis(300);
                rt.timeout(bound, lab.call(opens)).await.expect_err("gone");
                Ok(())
            };
            let enters = lab.call_in(&doubt, async |tx| {
                let there = tx.get_all(&[b"open".to_vec(), request(1)]).await?;
                if there[0].is_none() {
                    return Err(Error::new(Status::AccessDenied, "not open"));
                }
                tx.put(b"entered", [0; 8])?;
                tx.put(request(1), [0; 8])
            });
            let both: [std::pin::Pin<Box<dyn Future<Output = Result<()>>>>; 2] =
                [Box::pin(goes), Box::pin(enters)];
            let answers = lab.behind_another(both.into_iter()).await;
            let refused = answers[1].as_ref().expect_err("what the other one did is not there");
            assert_eq!((refused.status, tries.get()), (Status::AccessDenied, 2), "{fate:?}");
            assert_eq!(doubt.is_there(), fate != Fate::Conflict, "{fate:?}");
            // The refusal is remembered, as by `once`: then it has no effect any more.
            lab.call(async |tx| tx.put(request(1), [1; 8])).await.expect("remembered");
            let delivered = lab.slow.deliver().await;
            assert_eq!(delivered.len(), late);
            assert!(
                delivered.iter().all(|d| d.as_ref().is_err_and(|e| e.status == Status::Conflict))
            );
            assert_eq!(lab.read(b"entered").await, None, "{fate:?}");
        }
    });
}

#[test]
fn no_more_go_together_than_the_engine_takes() {
    real::run(|rt| async move {
        let lab = Lab::new(&rt, &[]);
        let reads = |n: u64| {
            lab.call(async move |tx| {
                let keys: Vec<Key> = (0..16).map(|k| format!("{n}-{k}").into_bytes()).collect();
                tx.get_all(&keys).await?;
                tx.put(request(n), [0; 8])
            })
        };
        let answers = lab.behind_another((0..CALLS).map(reads)).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(lab.slow.commits.get(), 1 + CALLS / 4, "four in each, and none was in vain");
        lab.nobody_waits();
    });
}

/// Others wait as long as the transaction takes.
#[test]
fn calls_that_take_long_go_together_with_few() {
    real::run(|rt| async move {
        let lab = Lab::new(&rt, &[]);
        let slow = |n: u64| {
            let (lab, rt) = (&lab, rt.clone());
            lab.call(async move |tx| {
                rt.sleep(Duration::from_millis(60)).await;
                tx.put(request(n), [0; 8])
            })
        };
        let answers = lab.behind_another((0..CALLS).map(slow)).await;
        assert!(answers.iter().all(Result::is_ok));
        let commits = lab.slow.commits.get();
        assert!(commits > CALLS / 4, "{commits} commits: at most four in one");
        lab.nobody_waits();
    });
}

#[test]
fn who_waits_is_patient_while_the_others_go_on() {
    real::run(|rt| async move {
        let lanes = Lanes::default();
        let hold = async |for_ms: u64| {
            let turn = lanes.turn(&rt, FILE, false).await;
            rt.sleep(Duration::from_millis(for_ms)).await;
            turn.is_some()
        };
        let began = rt.now();
        let all = join_all([hold(600), hold(600), hold(0)]).await;
        assert!(rt.now().since(began) > Duration::from_secs(1));
        assert_eq!(all, [true; 3]);
        assert!(lanes.is_empty());
    });
}

#[test]
fn who_has_gone_takes_no_place() {
    real::run(|rt| async move {
        let lanes = Lanes::default();
        let Some(Turn::Lead(lane)) = lanes.turn(&rt, FILE, true).await else {
            panic!("nobody has it");
        };
        let many = join_all((0..crate::lane::WAITING_MAX).map(|_| lanes.turn(&rt, FILE, true)));
        assert!(rt.timeout(TIME, many).await.is_err(), "they wait, and go");
        let next = lanes.turn(&rt, FILE, true);
        let release = async {
            rt.sleep(TIME).await;
            drop(lane);
        };
        let (next, ()) = glowfs_rt::sync::join(next, release).await;
        assert!(matches!(next, Some(Turn::Lead(_))));
    });
}
