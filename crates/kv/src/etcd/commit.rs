//! The commits of one engine: batches, conflicts, and outcomes that are not known.
//!
//! One transaction of etcd is in work at a time; the commits that arrive meanwhile make up the next one (group commit). Each compares and sets
//! the engine's *own key*. So when an answer is lost, a second transaction settles it: it sets the own key if the lost one has not. If that succeeds
//! the lost one can never happen any more, however late it arrives; if not, the own key tells that it did. Nothing here rests on time.

use super::api::{self, Compare, Op, Range, RangeAnswer, TxnAnswer};
use super::members::{Failure, Members};
use super::plan::{self, Base, Fold};
use crate::{Key, Version};
use glowfs_rt::sync::{OneSender, oneshot};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::wire::kv::Commit;
use glowfs_types::{Error, Result, Status};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Commits that wait; more are refused with `Overloaded`.
const WAITING_MAX: usize = 4096;
/// Commits in one transaction of etcd.
const BATCH_COMMITS_MAX: usize = 64;
/// Bytes of one transaction of etcd of several commits, about.
const BATCH_BYTES_MAX: usize = 256 << 10;
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
/// How often the own key is tried to be taken.
const REGISTER_ATTEMPTS: u32 = 8;
/// Sums remembered.
const BASES_MAX: usize = 8192;
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
            own: at(&format!("own/{name}")),
        }
    }
    fn full(&self, key: &[u8]) -> Key {
        [&self.data, key].concat()
    }
}

struct Waiting {
    commit: Commit,
    compares: Vec<Compare>,
    size: usize,
    reply: OneSender<Result<Version>>,
}

impl Waiting {
    fn answer(self, result: Result<Version>) {
        // Whoever asked may have gone.
        let _ = self.reply.send(result);
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
    /// One life of this engine.
    life: u128,
    txn_ops_max: usize,
    state: RefCell<State>,
}

/// What became of a transaction.
enum Done {
    Committed(Version),
    /// Nothing happened, and nothing will.
    Not,
    /// It cannot be found out.
    Unknown(String),
}

fn conflict() -> Error {
    Error::new(Status::Conflict, "another transaction changed what this one read; retry it")
}

impl Committer {
    /// None in work yet.
    pub fn new(rt: &Rt, members: Rc<Members>, space: Rc<Space>, txn_ops_max: usize) -> Rc<Self> {
        let life = rt.random_u128();
        let (rt, state) = (rt.clone(), RefCell::default());
        Rc::new(Self { rt, members, space, life, txn_ops_max, state })
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

    /// Commits that can be one transaction: none reads what one before it writes, and together they are within the limits.
    fn next_batch(&self) -> Vec<Waiting> {
        let mut s = self.state.borrow_mut();
        let mut batch: Vec<Waiting> = Vec::new();
        let (mut rest, mut fold) = (VecDeque::new(), Fold::default());
        let (mut bytes, mut ops) = (0, 8);
        while let Some(w) = s.queue.pop_front() {
            let steps = w.compares.len() + 2 * w.commit.mutations.len() + 1;
            let fits = batch.is_empty()
                || batch.len() < BATCH_COMMITS_MAX
                    && bytes + w.size <= BATCH_BYTES_MAX
                    && ops + steps <= self.txn_ops_max
                    && !fold.touches(&w.commit);
            // Values do not matter here, only what is touched.
            if !fits || fold.add(&w.commit, |_| None, 0).is_err() && !batch.is_empty() {
                rest.push_back(w);
                if rest.len() > BATCH_COMMITS_MAX {
                    break;
                }
                continue;
            }
            bytes += w.size;
            ops += steps;
            batch.push(w);
        }
        rest.append(&mut s.queue);
        s.queue = rest;
        s.running = !batch.is_empty();
        batch
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

    /// Stamps count transactions here: the counter is set to at least `least`. For an engine that nobody else uses.
    pub async fn raise_stamps(&self, least: u64) -> Result<()> {
        if self.stamps().await? >= least {
            return Ok(());
        }
        let key = &self.space.stamps;
        let put = Op::Put(key.clone(), least.to_be_bytes().to_vec());
        let mut text = String::new();
        api::Txn { then: vec![put], ..api::Txn::default() }.json(&mut text);
        self.members.ask(api::TXN, &text).await?;
        self.state.borrow_mut().bases.remove(key);
        Ok(())
    }

    /// The counter of stamps.
    pub async fn stamps(&self) -> Result<u64> {
        let mut text = String::new();
        Range { key: self.space.stamps.clone(), ..Range::default() }.json(&mut text);
        let answer: RangeAnswer = self.parse(&self.members.ask(api::RANGE, &text).await?)?;
        let now = answer.kvs.first().and_then(|kv| kv.value.0.as_slice().try_into().ok());
        Ok(now.map_or(0, u64::from_be_bytes))
    }

    /// Fetches what a transaction needs to know: the own key, and bases that are not remembered.
    async fn prepare(&self, batch: &[Waiting]) -> Result<()> {
        if self.state.borrow().own.is_none() {
            self.register().await?;
        }
        let mut missing: BTreeSet<Key> = BTreeSet::new();
        for w in batch {
            missing.extend(plan::sums(&w.commit).map(|k| self.space.full(k)));
            if plan::stamped(&w.commit) {
                missing.insert(self.space.stamps.clone());
            }
        }
        {
            let mut s = self.state.borrow_mut();
            if s.bases.len() + missing.len() > BASES_MAX {
                s.bases.clear();
            }
            missing.retain(|k| !s.bases.contains_key(k));
        }
        let missing: Vec<Key> = missing.into_iter().collect();
        for some in missing.chunks(READ_KEYS_MAX) {
            let read = |k: &Key| Op::Range(Range { key: k.clone(), ..Range::default() });
            let txn = api::Txn { then: some.iter().map(read).collect(), ..api::Txn::default() };
            let mut text = String::new();
            txn.json(&mut text);
            let body = self.members.ask(api::TXN, &text).await?;
            let answer: TxnAnswer = self.parse(&body)?;
            self.learn(some, &answer)?;
        }
        Ok(())
    }

    /// Takes the own key. What an earlier life, or an earlier try, has on its way fails from now on.
    async fn register(&self) -> Result<()> {
        let own = &self.space.own;
        let value = self.own_value(0, b'r');
        for _ in 0..REGISTER_ATTEMPTS {
            let mut text = String::new();
            Range { key: own.clone(), ..Range::default() }.json(&mut text);
            let body = self.members.ask(api::RANGE, &text).await?;
            let before: RangeAnswer = self.parse(&body)?;
            let before = before.kvs.first().map_or(0, |kv| kv.mod_revision.0);
            let txn = api::Txn {
                compares: vec![Compare::ChangedAt(own.clone(), before)],
                then: vec![Op::Put(own.clone(), value.clone())],
                ..api::Txn::default()
            };
            text.clear();
            txn.json(&mut text);
            // Conditional, so it may be repeated and arrive late.
            let body = self.members.ask(api::TXN, &text).await?;
            let answer: TxnAnswer = self.parse(&body)?;
            if answer.succeeded {
                self.state.borrow_mut().own = Some(answer.header.revision.0);
                return Ok(());
            }
        }
        let what = "the engine's own key in etcd changes all the time: another process has the same node id";
        Err(Error::new(Status::Busy, what))
    }

    fn parse<'a, T: serde::Deserialize<'a>>(&self, body: &'a [u8]) -> Result<T> {
        api::parse(body).map_err(|e| Error::new(Status::BadMessage, e))
    }

    /// Remembers bases from an answer that has one range read for each key.
    fn learn(&self, keys: &[Key], answer: &TxnAnswer) -> Result<()> {
        if answer.responses.len() != keys.len() {
            return Err(Error::new(Status::BadMessage, "etcd: wrong number of answers"));
        }
        let mut s = self.state.borrow_mut();
        for (key, response) in keys.iter().zip(&answer.responses) {
            let kv = response.response_range.as_ref().and_then(|r| r.kvs.first());
            let base = kv.map_or_else(Base::default, |kv| Base {
                value: Some(kv.value.0.clone()),
                version: kv.mod_revision.0,
            });
            s.bases.insert(key.clone(), base);
        }
        Ok(())
    }

    fn own_value(&self, seq: u64, kind: u8) -> Vec<u8> {
        [&self.life.to_be_bytes()[..], &seq.to_be_bytes(), &[kind]].concat()
    }

    /// The transaction of a batch, as text.
    fn transaction(&self, batch: &[Waiting], seq: u64) -> Result<(Fold, String)> {
        let s = self.state.borrow();
        let base = |key: &Key| s.bases.get(key).cloned().unwrap_or_default();
        let stamps = base(&self.space.stamps);
        let counter = counter(&stamps) + 1;
        let mut fold = Fold::default();
        for w in batch {
            fold.add(&w.commit, |k| base(&self.space.full(k)).value, counter)?;
        }
        let mut ops = fold.ops(&self.space.data);
        ops.push(Op::Put(self.space.own.clone(), self.own_value(seq, b'c')));
        if fold.has_stamps() {
            ops.push(Op::Put(self.space.stamps.clone(), counter.to_be_bytes().to_vec()));
        }
        if fold.has_marks() {
            ops.push(Op::Put(self.space.marks.clone(), Vec::new()));
        }
        let needed = self.needed(&fold);
        let compared: usize = batch.iter().map(|w| w.compares.len() + 1).sum();
        ops = spread(ops, self.txn_ops_max.saturating_sub(compared + needed.len() + 2));
        if !needed.is_empty() {
            let compares =
                needed.iter().map(|k| Compare::ChangedAt(k.clone(), base(k).version)).collect();
            let read = |k: &Key| Op::Range(Range { key: k.clone(), ..Range::default() });
            let or_else = needed.iter().map(read).collect();
            ops = vec![Op::Txn(api::Txn { compares, then: ops, or_else })];
        }
        let own = Compare::ChangedAt(self.space.own.clone(), s.own.unwrap_or(0));
        let mut compares = vec![own];
        let mut or_else =
            vec![Op::Range(Range { key: self.space.own.clone(), ..Range::default() })];
        for w in batch {
            let mut all = w.compares.clone();
            if !all.is_empty() {
                let bound = w.commit.read_version + 1;
                let key = self.space.marks.clone();
                all.push(Compare::ChangedBefore { key, end: None, bound });
            }
            if batch.len() > 1 {
                // Tells who has the conflict.
                or_else.push(Op::Txn(api::Txn { compares: all.clone(), ..api::Txn::default() }));
            }
            compares.extend(all);
        }
        let mut text = String::new();
        api::Txn { compares, then: ops, or_else }.json(&mut text);
        Ok((fold, text))
    }

    /// Keys whose base counts for these changes.
    fn needed(&self, fold: &Fold) -> Vec<Key> {
        let mut needed: Vec<Key> = fold.used().iter().map(|k| self.space.full(k)).collect();
        if fold.has_stamps() {
            needed.push(self.space.stamps.clone());
        }
        needed
    }

    /// The version, if it is committed; else answers those that have a conflict, and learns what is needed for the next attempt.
    fn read(&self, answer: &TxnAnswer, fold: &Fold, batch: &mut Vec<Waiting>) -> Option<Version> {
        let first = answer.responses.first();
        if answer.succeeded {
            let inner = first.and_then(|r| r.response_txn.as_ref());
            let needed = self.needed(fold);
            return match inner {
                Some(inner) if !needed.is_empty() && !inner.succeeded => {
                    if self.learn(&needed, inner).is_err() {
                        self.state.borrow_mut().bases.clear();
                    }
                    None
                }
                _ => Some(answer.header.revision.0),
            };
        }
        let own = first.and_then(|r| r.response_range.as_ref()).and_then(|r| r.kvs.first());
        let own = own.map(|kv| kv.mod_revision.0);
        if own.is_none() || own != self.state.borrow().own {
            // An old request arrived late, or another process has the same name: say who we are once more.
            tracing::warn!("the engine's own key in etcd was changed; setting it again");
            self.state.borrow_mut().own = None;
            return None;
        }
        if batch.len() == 1 {
            batch.drain(..).for_each(|w| w.answer(Err(conflict())));
            return None;
        }
        let mut flags = answer.responses.iter().skip(1);
        for w in std::mem::take(batch) {
            let holds = flags.next().and_then(|r| r.response_txn.as_ref());
            if holds.is_none_or(|t| t.succeeded) {
                batch.push(w);
            } else {
                w.answer(Err(conflict()));
            }
        }
        None
    }

    /// What became of transaction `seq`, which etcd refused, unless nothing did: one that meets the end of the quota as it is applied is done, and answered
    /// with «no space» all the same.
    async fn refused(&self, seq: u64, e: &Error) -> Option<Done> {
        if e.status != Status::NoSpace {
            return None;
        }
        let mut text = String::new();
        Range { key: self.space.own.clone(), ..Range::default() }.json(&mut text);
        let read = self.members.ask(api::RANGE, &text).await;
        match read.and_then(|body| self.parse::<RangeAnswer>(&body)) {
            Ok(answer) => {
                let ours = self.own_value(seq, b'c');
                let own = answer.kvs.first().filter(|kv| kv.value.0 == ours);
                own.map(|kv| Done::Committed(kv.mod_revision.0))
            }
            Err(e) => Some(Done::Unknown(e.message)),
        }
    }

    /// Finds out what became of transaction `seq`, whose answer is lost.
    async fn settle(&self, seq: u64, end: Instant, why: String) -> Done {
        let before = self.state.borrow().own.unwrap_or(0);
        let own = &self.space.own;
        let (ours, fence) = (self.own_value(seq, b'c'), self.own_value(seq, b'f'));
        let txn = api::Txn {
            compares: vec![Compare::ChangedAt(own.clone(), before)],
            then: vec![Op::Put(own.clone(), fence.clone())],
            or_else: vec![Op::Range(Range { key: own.clone(), ..Range::default() })],
        };
        let mut text = String::new();
        txn.json(&mut text);
        tracing::debug!(why, "settling a commit");
        let mut attempt = ATTEMPT_MIN;
        loop {
            let last = match self.members.once(api::TXN, &text, attempt).await {
                Ok(body) => match api::parse::<TxnAnswer>(&body) {
                    Ok(answer) if answer.succeeded => {
                        self.state.borrow_mut().own = Some(answer.header.revision.0);
                        return Done::Not;
                    }
                    Ok(answer) => {
                        let range =
                            answer.responses.first().and_then(|r| r.response_range.as_ref());
                        let kv = range.and_then(|r| r.kvs.first());
                        let version = kv.map_or(0, |kv| kv.mod_revision.0);
                        return match kv.map(|kv| &kv.value.0) {
                            Some(value) if *value == ours => Done::Committed(version),
                            Some(value) if *value == fence => {
                                self.state.borrow_mut().own = Some(version);
                                Done::Not
                            }
                            _ => Done::Unknown(
                                "another process has used the engine's name meanwhile".into(),
                            ),
                        };
                    }
                    Err(e) => e,
                },
                Err(Failure::Refused(e)) => e.message,
                Err(Failure::NotSent(e) | Failure::Unknown(e)) => e,
            };
            if self.rt.now() >= end {
                return Done::Unknown(last);
            }
            attempt = (attempt * 2).min(ATTEMPT_MAX);
            self.rt.sleep(PAUSE).await;
        }
    }

    /// Answers a batch that is committed, and those who wait and have a conflict with it.
    fn committed(&self, batch: Vec<Waiting>, fold: &Fold, version: Version) {
        let mut s = self.state.borrow_mut();
        s.own = Some(version);
        for (begin, end) in fold.cleared() {
            let range = self.space.full(begin)..self.space.full(end);
            for (_, base) in s.bases.range_mut(range) {
                *base = Base::default();
            }
        }
        for (key, value) in fold.keys() {
            if let Some(base) = s.bases.get_mut(&self.space.full(key)) {
                let at = if value.is_some() { version } else { 0 };
                *base = Base { value: value.clone(), version: at };
            }
        }
        if fold.has_stamps()
            && let Some(base) = s.bases.get_mut(&self.space.stamps)
        {
            let next = counter(base) + 1;
            *base = Base { value: Some(next.to_be_bytes().to_vec()), version };
        }
        let mut late = Vec::new();
        for w in std::mem::take(&mut s.queue) {
            if w.commit.read_version < version && fold.touches(&w.commit) {
                late.push(w);
            } else {
                s.queue.push_back(w);
            }
        }
        drop(s);
        for w in late {
            w.answer(Err(conflict()));
        }
        for w in batch {
            w.answer(Ok(version));
        }
    }
}

/// `ops`, in transactions inside if they are more than `max`: etcd counts along each branch.
fn spread(ops: Vec<Op>, max: usize) -> Vec<Op> {
    if ops.len() <= max {
        return ops;
    }
    let (mut out, mut rest) = (Vec::new(), ops.into_iter().peekable());
    while rest.peek().is_some() {
        let then = rest.by_ref().take((max / 2).max(1)).collect();
        out.push(Op::Txn(api::Txn { then, ..api::Txn::default() }));
    }
    out
}

fn fail(batch: Vec<Waiting>, e: Error) {
    for w in batch {
        w.answer(Err(e.clone()));
    }
}

fn counter(base: &Base) -> u64 {
    let bytes = base.value.as_deref().and_then(|v| <[u8; 8]>::try_from(v).ok());
    bytes.map_or(0, u64::from_be_bytes)
}

/// Bytes of a commit, about.
fn size(commit: &Commit) -> usize {
    use glowfs_types::wire::kv::Mutation;
    let mutations = commit.mutations.iter().map(|m| match m {
        Mutation::Put { key, value } => key.len() + value.len(),
        Mutation::ClearRange { begin, end } => begin.len() + end.len(),
        Mutation::Add { key, .. } => key.len() + 8,
        Mutation::PutVersionstamped { prefix, suffix, value } => {
            prefix.len() + suffix.len() + value.len() + 10
        }
    });
    let reads = commit.read_conflicts.iter().map(|(b, e)| b.len() + e.len());
    mutations.sum::<usize>() + reads.sum::<usize>()
}
