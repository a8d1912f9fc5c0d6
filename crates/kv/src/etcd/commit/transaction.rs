//! The transaction of a batch as etcd takes it, and what its answer says.

use super::bases::counter;
use super::{Committer, Waiting, conflict};
use crate::etcd::api::{self, Compare, Op, Range, TxnAnswer};
use crate::etcd::plan::{self, Base, Fold};
use crate::{Key, Version};
use glowfs_types::Result;

impl Committer {
    /// The transaction of a batch, as text.
    pub(super) fn transaction(&self, batch: &[Waiting], seq: u64) -> Result<(Fold, String)> {
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
        let grows = batch.iter().any(|w| w.commit.grows);
        let own = Compare::ChangedAt(self.space.own.clone(), s.own.unwrap_or(0));
        let mut or_else =
            vec![Op::Range(Range { key: self.space.own.clone(), ..Range::default() })];
        let mut compared = Vec::new();
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
            compared.append(&mut all);
        }
        let mut compares = vec![own];
        compares.append(&mut plan::unite(compared));
        let outer = compares.len().max(or_else.len() + 1);
        ops = spread(ops, self.txn_ops_max.saturating_sub(outer + needed.len() + 1));
        if !needed.is_empty() {
            let compares =
                needed.iter().map(|k| Compare::ChangedAt(k.clone(), base(k).version)).collect();
            let read = |k: &Key| Op::Range(Range { key: k.clone(), ..Range::default() });
            let or_else = needed.iter().map(read).collect();
            ops = vec![Op::Txn(api::Txn { compares, then: ops, or_else })];
        } else if !grows {
            ops = beside_the_quota(ops);
        }
        if grows {
            // Refused at the quota. Otherwise it is done after a conflict only, and nobody looks at it.
            or_else.push(Op::Put(self.space.growth.clone(), Vec::new()));
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
    pub(super) fn read(
        &self,
        answer: &TxnAnswer,
        fold: &Fold,
        batch: &mut Vec<Waiting>,
    ) -> Option<Version> {
        let first = answer.responses.first();
        if answer.succeeded {
            let inner = first.and_then(|r| r.response_txn.as_ref());
            let needed = self.needed(fold);
            return match inner {
                Some(inner) if !needed.is_empty() && !inner.succeeded => {
                    self.metrics.sums_again.inc();
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
            batch.drain(..).for_each(|w| self.refuse(w));
            return None;
        }
        let mut flags = answer.responses.iter().skip(1);
        for w in std::mem::take(batch) {
            let holds = flags.next().and_then(|r| r.response_txn.as_ref());
            if holds.is_none_or(|t| t.succeeded) {
                batch.push(w);
            } else {
                self.refuse(w);
            }
        }
        None
    }

    /// Another one has changed what it read.
    fn refuse(&self, w: Waiting) {
        self.metrics.conflicts.inc();
        w.answer(Err(conflict()));
    }

    /// Answers a batch that is committed, and those who wait and have a conflict with it.
    pub(super) fn committed(&self, batch: Vec<Waiting>, fold: &Fold, version: Version) {
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
            self.refuse(w);
        }
        for w in batch {
            w.answer(Ok(version));
        }
    }
}

/// `ops` in a transaction inside. At its quota etcd refuses what has a put on either branch, but counts those of the outer transaction only: so what frees room, or
/// keeps the cluster going, passes.
pub(super) fn beside_the_quota(ops: Vec<Op>) -> Vec<Op> {
    vec![Op::Txn(api::Txn { then: ops, ..api::Txn::default() })]
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
