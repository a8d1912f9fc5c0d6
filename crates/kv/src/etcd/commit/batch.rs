//! Commits that wait for their turn, and which of them go together.

use super::{COMPARES_OWN, Committer};
use crate::etcd::api::Compare;
use crate::etcd::plan::{self, Fold};
use crate::{Key, Version};
use glowfs_rt::sync::OneSender;
use glowfs_types::wire::kv::Commit;
use glowfs_types::{Error, Result};
use std::collections::{BTreeSet, VecDeque};

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

/// What the commits of a batch look at, each place and each sum once.
#[derive(Default)]
struct Looks {
    compared: BTreeSet<(Key, Option<Key>, bool)>,
    sums: BTreeSet<Key>,
    /// Conditions of the commit that has most of them.
    most: usize,
}

impl Looks {
    fn places(w: &Waiting) -> impl Iterator<Item = (Key, Option<Key>, bool)> {
        let owned = |c: &Compare| {
            let (key, end, there) = c.place();
            (key.clone(), end.cloned(), there)
        };
        w.compares.iter().map(owned)
    }
    fn add(&mut self, w: &Waiting) {
        self.compared.extend(Self::places(w));
        self.sums.extend(plan::sums(&w.commit).map(<[u8]>::to_vec));
        self.most = self.most.max(w.compares.len());
    }
    /// Whether, with one more, so many commits fit into one transaction. etcd adds up what stands along each branch, and of each level counts the longest of
    /// conditions, steps and steps otherwise: half is for the outer level, with all conditions and a transaction for each commit, and half for what is inside.
    fn has_room(&self, w: &Waiting, commits: usize, ops_max: usize) -> bool {
        let places = Self::places(w).filter(|p| !self.compared.contains(p)).count();
        let sums = plan::sums(&w.commit).filter(|k| !self.sums.contains(*k)).count();
        let conditions = self.compared.len() + places + COMPARES_OWN;
        let outer = conditions.max(commits + COMPARES_OWN + 1);
        let inner = (self.most.max(w.compares.len()) + 1).max(2 * (self.sums.len() + sums + 1));
        outer <= ops_max / 2 && inner <= ops_max / 2
    }
}

impl Committer {
    /// Commits that can be one transaction: none reads what one before it writes, and together they are within the limits.
    pub(super) fn next_batch(&self) -> Vec<Waiting> {
        let mut s = self.state.borrow_mut();
        let mut batch: Vec<Waiting> = Vec::new();
        let (mut rest, mut fold) = (VecDeque::new(), Fold::default());
        let (mut bytes, mut looks) = (0, Looks::default());
        while let Some(w) = s.queue.pop_front() {
            let fits = batch.is_empty()
                || batch.len() < BATCH_COMMITS_MAX
                    && bytes + w.size <= BATCH_BYTES_MAX
                    && looks.has_room(&w, batch.len() + 1, self.txn_ops_max)
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
            looks.add(&w);
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
