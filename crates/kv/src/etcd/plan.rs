//! Pure: commits as one transaction of etcd.
//!
//! Commits that arrive together are put into one transaction, in order. What each has read becomes compares; what they change is
//! folded into steps that do not overlap, because etcd refuses those that do. Sums and stamps need what stands in the store (a
//! *base*): the caller has it, and the transaction compares that it has not changed.

use super::api::{Compare, Op};
use crate::engine::{key_after, prefix_end};
use crate::{Key, Value, Version};
use glowfs_types::wire::kv::{Commit, Mutation};
use glowfs_types::{Error, Result, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// A base: the value of a key and the version that changed it last (0: it is not there).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// The value.
    pub value: Option<Value>,
    /// The version.
    pub version: Version,
}

/// Whether `[begin, end)` is one key.
fn is_single(begin: &[u8], end: &[u8]) -> bool {
    end.len() == begin.len() + 1 && end.starts_with(begin) && end.last() == Some(&0)
}

/// What must hold for a commit: nothing that it read has changed since.
///
/// A compare over a range fails after an insertion or a change, but holds after a removal; so each key that was
/// there (`Commit::present`) must still be there, too.
pub fn compares(commit: &Commit, prefix: &[u8]) -> Vec<Compare> {
    let bound = commit.read_version + 1;
    let there: BTreeSet<&[u8]> = commit.present.iter().flatten().map(|k| k.as_slice()).collect();
    let full = |key: &[u8]| [prefix, key].concat();
    let mut all = BTreeSet::new();
    for (begin, end) in &commit.read_conflicts {
        let (begin, end) = (begin.as_slice(), end.as_slice());
        if begin >= end {
            continue;
        }
        if is_single(begin, end) {
            if there.contains(begin) {
                all.insert(Compare::ChangedBefore { key: full(begin), end: None, bound });
                all.insert(Compare::Exists(full(begin)));
            } else {
                all.insert(Compare::ChangedAt(full(begin), 0));
            }
            continue;
        }
        let (key, end_key) = (full(begin), Some(full(end)));
        all.insert(Compare::ChangedBefore { key, end: end_key, bound });
        let range = (Bound::Included(begin), Bound::Excluded(end));
        all.extend(there.range::<[u8], _>(range).map(|k| Compare::Exists(full(k))));
    }
    all.into_iter().collect()
}

/// Conditions of several commits, each once: what changed before the earliest of several versions changed before the others.
pub fn unite(all: impl IntoIterator<Item = Compare>) -> Vec<Compare> {
    let (mut bounds, mut others) = (BTreeMap::new(), BTreeSet::new());
    for compare in all {
        match compare {
            Compare::ChangedBefore { key, end, bound } => {
                let least: &mut Version = bounds.entry((key, end)).or_insert(bound);
                *least = bound.min(*least);
            }
            other => drop(others.insert(other)),
        }
    }
    let before = |((key, end), bound)| Compare::ChangedBefore { key, end, bound };
    bounds.into_iter().map(before).chain(others).collect()
}

/// Keys whose bases a commit may need.
pub fn sums(commit: &Commit) -> impl Iterator<Item = &[u8]> {
    commit.mutations.iter().filter_map(|m| match m {
        Mutation::Add { key, .. } => Some(key.as_slice()),
        _ => None,
    })
}

/// Whether a commit needs a stamp.
pub fn stamped(commit: &Commit) -> bool {
    commit.mutations.iter().any(|m| matches!(m, Mutation::PutVersionstamped { .. }))
}

/// The changes of some commits, folded.
#[derive(Default, Debug)]
pub struct Fold {
    /// What becomes of single keys.
    keys: BTreeMap<Key, Option<Value>>,
    /// Cleared ranges; they come before `keys`. Sorted and apart.
    cleared: BTreeMap<Key, Key>,
    /// Explicit write conflicts.
    marked: Vec<(Key, Key)>,
    /// Where stamped keys lie.
    stamped: Vec<(Key, Key)>,
    /// Keys whose base counted.
    used: BTreeSet<Key>,
    /// Stamps given out.
    stamps: u32,
}

impl Fold {
    /// Whether one of these ranges was changed by what is folded in.
    pub fn touches(&self, commit: &Commit) -> bool {
        commit.read_conflicts.iter().any(|(b, e)| {
            let (b, e) = (b.as_slice(), e.as_slice());
            if b >= e {
                return false;
            }
            let range = (Bound::Included(b), Bound::Excluded(e));
            let marks = self.marked.iter().chain(&self.stamped).map(|(b, e)| (b, e));
            self.keys.range::<[u8], _>(range).next().is_some()
                || self
                    .cleared
                    .iter()
                    .chain(marks)
                    .any(|(cb, ce)| cb.as_slice() < e && b < ce.as_slice())
        })
    }

    fn is_cleared(&self, key: &[u8]) -> bool {
        let upto = (Bound::Unbounded, Bound::Included(key));
        self.cleared.range::<[u8], _>(upto).next_back().is_some_and(|(_, e)| key < e.as_slice())
    }

    fn clear(&mut self, begin: &[u8], end: &[u8]) {
        if begin >= end {
            return;
        }
        if is_single(begin, end) {
            self.keys.insert(begin.to_vec(), None);
            return;
        }
        let inside: Vec<Key> = self
            .keys
            .range::<[u8], _>((Bound::Included(begin), Bound::Excluded(end)))
            .map(|(k, _)| k.clone())
            .collect();
        for key in inside {
            self.keys.remove(&key);
        }
        let (mut b, mut e) = (begin.to_vec(), end.to_vec());
        let joined: Vec<(Key, Key)> = self
            .cleared
            .iter()
            .filter(|(cb, ce)| **cb <= e && b <= **ce)
            .map(|(cb, ce)| (cb.clone(), ce.clone()))
            .collect();
        for (cb, ce) in joined {
            self.cleared.remove(&cb);
            b = b.min(cb);
            e = e.max(ce);
        }
        self.cleared.insert(b, e);
    }

    /// Folds a commit in. `base` gives the store's value of a key; `counter` is the stamp of this transaction.
    pub fn add(
        &mut self,
        commit: &Commit,
        base: impl Fn(&[u8]) -> Option<Value>,
        counter: u64,
    ) -> Result<()> {
        for mutation in &commit.mutations {
            match mutation {
                Mutation::Put { key, value } => {
                    self.keys.insert(key.clone(), Some(value.clone()));
                }
                Mutation::ClearRange { begin, end } => self.clear(begin, end),
                Mutation::Add { key, delta } => {
                    let now = match self.keys.get(key) {
                        Some(value) => value.clone(),
                        None if self.is_cleared(key) => None,
                        None => {
                            self.used.insert(key.clone());
                            base(key)
                        }
                    };
                    let sum = number(now.as_deref()).wrapping_add(*delta);
                    self.keys.insert(key.clone(), Some(sum.to_le_bytes().to_vec()));
                }
                Mutation::PutVersionstamped { prefix, suffix, value } => {
                    let order = u16::try_from(self.stamps).map_err(|_| {
                        Error::new(Status::TooLarge, "too many stamps in one transaction")
                    })?;
                    self.stamps += 1;
                    let stamp = [&counter.to_be_bytes()[..], &order.to_be_bytes()].concat();
                    let key = [prefix.as_slice(), &stamp, suffix].concat();
                    self.stamped.push((prefix.clone(), prefix_end(prefix)));
                    self.keys.insert(key, Some(value.clone()));
                }
            }
        }
        for (begin, end) in &commit.write_conflicts {
            self.marked.push((begin.to_vec(), end.to_vec()));
        }
        Ok(())
    }

    /// Keys whose base counted.
    pub fn used(&self) -> &BTreeSet<Key> {
        &self.used
    }
    /// What becomes of single keys.
    pub fn keys(&self) -> &BTreeMap<Key, Option<Value>> {
        &self.keys
    }
    /// Ranges that are cleared.
    pub fn cleared(&self) -> &BTreeMap<Key, Key> {
        &self.cleared
    }
    /// Whether an explicit write conflict is among it.
    pub fn has_marks(&self) -> bool {
        !self.marked.is_empty()
    }
    /// Whether stamps were given out.
    pub fn has_stamps(&self) -> bool {
        self.stamps > 0
    }

    /// The steps: no two of them overlap.
    pub fn ops(&self, prefix: &[u8]) -> Vec<Op> {
        let full = |key: &[u8]| [prefix, key].concat();
        let mut ops = Vec::new();
        for (begin, end) in &self.cleared {
            let mut from = begin.clone();
            let inside = (Bound::Included(begin.as_slice()), Bound::Excluded(end.as_slice()));
            for (key, _) in self.keys.range::<[u8], _>(inside).filter(|(_, v)| v.is_some()) {
                if from < *key {
                    ops.push(Op::Delete(full(&from), Some(full(key))));
                }
                from = key_after(key);
            }
            if from < *end {
                ops.push(Op::Delete(full(&from), Some(full(end))));
            }
        }
        for (key, value) in &self.keys {
            match value {
                Some(value) => ops.push(Op::Put(full(key), value.clone())),
                None if self.is_cleared(key) => {}
                None => ops.push(Op::Delete(full(key), None)),
            }
        }
        ops
    }
}

/// The number in a value.
fn number(value: Option<&[u8]>) -> i64 {
    value.and_then(|v| <[u8; 8]>::try_from(v).ok()).map_or(0, i64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::Mvcc;
    use proptest::prelude::*;

    fn commit(mutations: Vec<Mutation>) -> Commit {
        Commit { mutations, ..Commit::default() }
    }

    fn apply(ops: &[Op], state: &mut BTreeMap<Key, Value>) {
        let mut seen: Vec<(Key, Key)> = Vec::new();
        for op in ops {
            let (b, e) = match op {
                Op::Put(k, _) | Op::Delete(k, None) => (k.clone(), key_after(k)),
                Op::Delete(b, Some(e)) => (b.clone(), e.clone()),
                _ => panic!("no other step"),
            };
            assert!(b < e, "an empty step");
            assert!(seen.iter().all(|(sb, se)| *se <= b || e <= *sb), "steps overlap: {ops:?}");
            seen.push((b.clone(), e.clone()));
            match op {
                Op::Put(k, v) => drop(state.insert(k.clone(), v.clone())),
                _ => state.retain(|k, _| *k < b || *k >= e),
            }
        }
    }

    fn key() -> impl Strategy<Value = Key> {
        proptest::collection::vec(0u8..4, 1..3)
    }

    fn mutation() -> impl Strategy<Value = Mutation> {
        prop_oneof![
            (key(), any::<u8>()).prop_map(|(key, v)| Mutation::Put { key, value: vec![v; 8] }),
            (key(), key()).prop_map(|(begin, end)| Mutation::ClearRange { begin, end }),
            key().prop_map(|begin| Mutation::ClearRange { end: key_after(&begin), begin }),
            (key(), -3i64..3).prop_map(|(key, delta)| Mutation::Add { key, delta }),
        ]
    }

    proptest! {
        /// What is folded does what the commits do one after the other in the reference engine.
        #[test]
        fn folds_as_the_reference(commits in proptest::collection::vec(proptest::collection::vec(mutation(), 0..5), 0..5)) {
            let mut reference = Mvcc::default();
            let mut state = BTreeMap::new();
            for half in commits.chunks(2) {
                let mut fold = Fold::default();
                for mutations in half {
                    let c = commit(mutations.clone());
                    reference.apply(&c, &mut ());
                    fold.add(&c, |k| state.get(k).cloned(), 1).expect("small");
                }
                apply(&fold.ops(b""), &mut state);
            }
            let want = reference.get_range(reference.version(), &[], &[9], 1000, false).expect("range");
            prop_assert_eq!(want.entries, state.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn stamps_go_on_through_the_transaction() {
        let one = commit(vec![Mutation::PutVersionstamped {
            prefix: b"p".to_vec(),
            suffix: b"s".to_vec(),
            value: vec![],
        }]);
        let mut fold = Fold::default();
        for _ in 0..2 {
            fold.add(&one, |_| None, 7).expect("small");
        }
        let keys: Vec<_> = fold.keys().keys().cloned().collect();
        assert_eq!(keys, [b"p\0\0\0\0\0\0\0\x07\0\0s", b"p\0\0\0\0\0\0\0\x07\0\x01s"]);
    }

    #[test]
    fn what_was_read_is_compared() {
        let read = |b: &[u8], e: &[u8]| (b.to_vec().into(), e.to_vec().into());
        let c = Commit {
            read_version: 4,
            read_conflicts: vec![
                read(b"a", b"a\0"),
                read(b"b", b"b\0"),
                read(b"a", b"a\0"),
                read(b"m", b"p"),
                read(b"z", b"y"),
            ],
            present: Some([b"a", b"n", b"o", b"q"].map(|k| k.to_vec().into()).into()),
            ..Commit::default()
        };
        let got = compares(&c, b"/");
        let before = |key: &[u8], end: Option<&[u8]>| Compare::ChangedBefore {
            key: key.to_vec(),
            end: end.map(<[u8]>::to_vec),
            bound: 5,
        };
        assert_eq!(
            got,
            [
                before(b"/a", None),
                before(b"/m", Some(b"/p")),
                Compare::Exists(b"/a".to_vec()),
                Compare::Exists(b"/n".to_vec()),
                Compare::Exists(b"/o".to_vec()),
                Compare::ChangedAt(b"/b".to_vec(), 0),
            ]
        );
    }

    #[test]
    fn conditions_of_several_are_united() {
        let before =
            |key: &[u8], bound| Compare::ChangedBefore { key: key.to_vec(), end: None, bound };
        let exists = || Compare::Exists(b"a".to_vec());
        let new = || Compare::ChangedAt(b"b".to_vec(), 0);
        let all =
            [before(b"a", 7), exists(), before(b"a", 5), new(), exists(), before(b"c", 6), new()];
        assert_eq!(unite(all), [before(b"a", 5), before(b"c", 6), exists(), new()]);
    }

    #[test]
    fn a_read_of_what_another_one_wrote_is_seen() {
        let mut fold = Fold::default();
        let writes = vec![
            Mutation::Put { key: b"a".to_vec(), value: vec![] },
            Mutation::ClearRange { begin: b"m".to_vec(), end: b"p".to_vec() },
        ];
        let marks = vec![(b"x".to_vec().into(), b"z".to_vec().into())];
        let first = Commit { write_conflicts: marks, ..commit(writes) };
        fold.add(&first, |_| None, 1).expect("small");
        for (b, e, want) in [
            (&b"a"[..], &b"a\0"[..], true),
            (b"", b"b", true),
            (b"b", b"m", false),
            (b"o", b"o\0", true),
            (b"p", b"x", false),
            (b"y", b"y\0", true),
        ] {
            let read = vec![(b.to_vec().into(), e.to_vec().into())];
            let c = Commit { read_conflicts: read, ..Commit::default() };
            assert_eq!(fold.touches(&c), want, "{b:?} {e:?}");
        }
    }
}
