//! The commits of one engine: batches, conflicts, and outcomes that are not known.
//!
//! One transaction of etcd is in work at a time; the commits that arrive meanwhile make up the next one (group commit). Each compares and sets
//! the engine's *own key*. So when an answer is lost, a second transaction settles it: it sets the own key if the lost one has not. If that succeeds
//! the lost one can never happen any more, however late it arrives; if not, the own key tells that it did. Nothing here rests on time.

mod bases;
mod batch;
mod own_key;
mod transaction;

use super::api::{self, TxnAnswer};
use super::members::{Failure, Members};
use super::metrics::Metrics;
use super::plan::{self, Base};
use crate::{Key, Version};
use batch::{WAITING_MAX, Waiting, fail, size};
use glowfs_rt::sync::oneshot;
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::kv::Commit;
use glowfs_types::{Error, Result, Status};
use own_key::Done;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// How long a commit may take before it is given up.
const COMMIT_BOUND: Duration = Duration::from_secs(8);
/// The first time-out of an attempt; it doubles with each.
const ATTEMPT_MIN: Duration = Duration::from_millis(600);
/// The greatest time-out of an attempt.
const ATTEMPT_MAX: Duration = Duration::from_secs(3);
/// The pause after an attempt that reached nobody.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a transaction is tried again because others changed the same sums.
const BASE_ATTEMPTS: u32 = 32;
/// Conditions of a transaction beside those of the commits: on the own key and on marks.
const COMPARES_OWN: usize = 2;
/// Keys read by one transaction.
pub const READ_KEYS_MAX: usize = 64;

/// Where things are in etcd: `glowfs/CLUSTER/`, then `d` and a key, or one of the engine's own.
pub struct Space {
    /// Before every key of the users.
    pub data: Vec<u8>,
    /// The counter of stamps.
    stamps: Key,
    /// Set by every explicit write conflict.
    marks: Key,
    /// Set by nothing that matters: a put that etcd counts against its quota.
    growth: Key,
    /// The own key of this engine.
    own: Key,
}

impl Space {
    /// Of a cluster and an engine.
    pub fn new(cluster: glowfs_types::ClusterId, name: &str) -> Self {
        let at = |what: &str| format!("glowfs/{cluster}/{what}").into_bytes();
        Self {
            data: at("d"),
            stamps: at("stamps"),
            marks: at("marks"),
            growth: at("growth"),
            own: at(&format!("own/{name}")),
        }
    }
    /// Where a key of the users is.
    pub fn full(&self, key: &[u8]) -> Key {
        [&self.data, key].concat()
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    running: bool,
    /// The version that set the own key last; not known before the first transaction and after trouble.
    own: Option<Version>,
    seq: u64,
    /// What stands under keys that sums go to, by full key.
    bases: BTreeMap<Key, Base>,
}

/// See the module.
pub struct Committer {
    rt: Rt,
    members: Rc<Members>,
    space: Rc<Space>,
    metrics: Rc<Metrics>,
    /// One life of this engine.
    life: u128,
    txn_ops_max: usize,
    state: RefCell<State>,
}

fn conflict() -> Error {
    Error::new(Status::Conflict, "another transaction changed what this one read; retry it")
}

impl Committer {
    /// None in work yet.
    pub fn new(
        rt: &Rt,
        (members, space): (Rc<Members>, Rc<Space>),
        metrics: Rc<Metrics>,
        txn_ops_max: usize,
    ) -> Rc<Self> {
        let life = rt.random_u128();
        let (rt, state) = (rt.clone(), RefCell::default());
        Rc::new(Self { rt, members, space, metrics, life, txn_ops_max, state })
    }

    /// Commits; `present` of the commit is known.
    pub async fn commit(self: &Rc<Self>, commit: Commit) -> Result<Version> {
        let compares = plan::compares(&commit, &self.space.data);
        if compares.len() + COMPARES_OWN > self.txn_ops_max {
            let e = format!(
                "{} conditions in one transaction: raise --max-txn-ops of etcd, and then txn_ops_max ({})",
                compares.len(),
                self.txn_ops_max
            );
            return Err(Error::new(Status::TooLarge, e));
        }
        self.metrics.commits.inc();
        let (reply, result) = oneshot();
        let size = size(&commit);
        let waiting = Waiting { commit, compares, size, reply };
        {
            let mut s = self.state.borrow_mut();
            if s.queue.len() >= WAITING_MAX {
                let e = "too many transactions wait for etcd; retry";
                return Err(Error::new(Status::Overloaded, e));
            }
            s.queue.push_back(waiting);
            if !std::mem::replace(&mut s.running, true) {
                let this = self.clone();
                self.rt.spawn_detached(async move { this.run().await });
            }
        }
        result.await.unwrap_or_else(|_| {
            Err(Error::new(Status::Internal, "the commit was dropped without an answer"))
        })
    }

    async fn run(self: Rc<Self>) {
        loop {
            let batch = self.next_batch();
            if batch.is_empty() {
                return;
            }
            self.work(batch).await;
        }
    }

    async fn work(&self, mut batch: Vec<Waiting>) {
        let end = self.rt.now() + COMMIT_BOUND;
        let mut attempt = ATTEMPT_MIN;
        let mut bases = 0;
        while !batch.is_empty() {
            if let Err(e) = self.prepare(&batch).await {
                return fail(batch, e);
            }
            let seq = {
                let mut s = self.state.borrow_mut();
                s.seq += 1;
                s.seq
            };
            let (fold, text) = match self.transaction(&batch, seq) {
                Ok(made) => made,
                Err(e) => return fail(batch, e),
            };
            self.metrics.transactions.inc();
            let trouble = match self.members.once(api::TXN, &text, attempt).await {
                Ok(body) => match api::parse::<TxnAnswer>(&body) {
                    Ok(answer) => match self.read(&answer, &fold, &mut batch) {
                        Some(version) => return self.committed(batch, &fold, version),
                        None => {
                            bases += 1;
                            if bases > BASE_ATTEMPTS {
                                return fail(batch, conflict());
                            }
                            continue;
                        }
                    },
                    Err(e) => self.settle(seq, end, e).await,
                },
                Err(Failure::Refused(e)) => match self.refused(seq, &e).await {
                    Some(done) => done,
                    None if batch.len() > 1 => {
                        // One of them is to blame: each on its own.
                        tracing::debug!(error = %e, "etcd refused a batch");
                        for one in batch {
                            Box::pin(self.work(vec![one])).await;
                        }
                        return;
                    }
                    None => return fail(batch, e),
                },
                Err(Failure::NotSent(e)) => {
                    if self.rt.now() >= end {
                        return fail(batch, Error::new(Status::Disconnected, e));
                    }
                    self.rt.sleep(PAUSE).await;
                    continue;
                }
                Err(Failure::Unknown(e)) => self.settle(seq, end, e).await,
            };
            match trouble {
                Done::Committed(version) => return self.committed(batch, &fold, version),
                Done::Not if self.rt.now() >= end => {
                    let e = self.members.silent("a commit took too long and was taken back");
                    return fail(batch, Error::new(Status::Disconnected, e));
                }
                Done::Not => {
                    attempt = (attempt * 2).min(ATTEMPT_MAX);
                    self.rt.sleep(PAUSE).await;
                }
                Done::Unknown(e) => {
                    self.state.borrow_mut().own = None;
                    let e = format!("whether the commit happened is not known: {e}");
                    return fail(batch, Error::new(Status::CommitUnknown, e));
                }
            }
        }
    }

    fn parse<'a, T: serde::Deserialize<'a>>(&self, body: &'a [u8]) -> Result<T> {
        api::parse(body).map_err(|e| Error::new(Status::BadMessage, e))
    }
}
