//! Commits that wait for their turn, and which of them go together.

use super::Committer;
use crate::Version;
use crate::etcd::api::Compare;
use crate::etcd::plan::Fold;
use glowfs_rt::sync::OneSender;
use glowfs_types::wire::kv::Commit;
use glowfs_types::{Error, Result};
use std::collections::VecDeque;

/// Commits that wait; more are refused with `Overloaded`.
pub(super) const WAITING_MAX: usize = 4096;
/// Commits in one transaction of etcd.
const BATCH_COMMITS_MAX: usize = 64;
/// Bytes of one transaction of etcd of several commits, about.
const BATCH_BYTES_MAX: usize = 256 << 10;

pub(super) struct Waiting {
    pub(super) commit: Commit,
    pub(super) compares: Vec<Compare>,
    pub(super) size: usize,
    pub(super) reply: OneSender<Result<Version>>,
}

impl Waiting {
    pub(super) fn answer(self, result: Result<Version>) {
        // Whoever asked may have gone.
        let _ = self.reply.send(result);
    }
}

impl Committer {
    /// Commits that can be one transaction: none reads what one before it writes, and together they are within the limits.
    pub(super) fn next_batch(&self) -> Vec<Waiting> {
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
}

pub(super) fn fail(batch: Vec<Waiting>, e: Error) {
    for w in batch {
        w.answer(Err(e.clone()));
    }
}

/// Bytes of a commit, about.
pub(super) fn size(commit: &Commit) -> usize {
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
