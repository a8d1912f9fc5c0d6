//! What one key does when operations come one after another.

use std::collections::{BTreeMap, BTreeSet};
use todc_utils::Specification;

/// An operation on a block. Values are unique; 0 is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterOp {
    /// Wrote it.
    Write(u64),
    /// Read it.
    Read(u64),
}

/// A block.
pub struct Register;

impl Specification for Register {
    type State = u64;
    type Operation = RegisterOp;
    fn init() -> u64 {
        0
    }
    fn apply(op: &RegisterOp, state: &u64) -> (bool, u64) {
        match op {
            RegisterOp::Write(v) => (true, *v),
            RegisterOp::Read(v) => (v == state, *state),
        }
    }
}

/// An operation on a directory, with what it answered. Files are told apart by their inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameOp {
    /// O_CREAT | O_EXCL: the new file, or none if the name was there.
    Create(&'static str, Option<u64>),
    /// Opened: which file, or none.
    Open(&'static str, Option<u64>),
    /// Renamed over whatever was there: whether the first name was there.
    Rename(&'static str, &'static str, bool),
    /// Removed: whether it was there.
    Unlink(&'static str, bool),
}

/// A directory.
pub struct Names;

impl Specification for Names {
    type State = BTreeMap<&'static str, u64>;
    type Operation = NameOp;
    fn init() -> Self::State {
        BTreeMap::new()
    }
    fn apply(op: &NameOp, state: &Self::State) -> (bool, Self::State) {
        let mut next = state.clone();
        let valid = match op {
            NameOp::Create(name, Some(file)) => next.insert(name, *file).is_none(),
            NameOp::Create(name, None) => state.contains_key(name),
            NameOp::Open(name, found) => state.get(name) == found.as_ref(),
            NameOp::Rename(from, to, true) => match next.remove(from) {
                Some(file) => {
                    next.insert(to, file);
                    true
                }
                None => false,
            },
            NameOp::Rename(from, _, false) => !state.contains_key(from),
            NameOp::Unlink(name, was) => next.remove(name).is_some() == *was,
        };
        if valid { (true, next) } else { (false, state.clone()) }
    }
}

/// A directory as applications see it through the kernel. Its rename looks both names up, one after the other, and when they are the same
/// file it succeeds without asking the file system (two links of one file stay as they are, says POSIX). When somebody else renames that file
/// between the two look-ups, both renames succeed, and this one does nothing, even if the first name is there again by then. Nothing below
/// the kernel can help it, so that answer is allowed as well: with the file at the second name, which had the first one before.
///
/// As an answer may mean either, the state is every directory that it may be.
pub struct MountNames;

/// A directory, and the name that each file had before its present one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    names: BTreeMap<&'static str, u64>,
    before: BTreeMap<u64, &'static str>,
}

impl Place {
    /// What the file system does; none if it would have answered something else.
    fn done(&self, op: &NameOp) -> Option<Self> {
        let (valid, names) = Names::apply(op, &self.names);
        let mut before = self.before.clone();
        if let NameOp::Rename(from, to, true) = op
            && let Some(file) = self.names.get(from)
            && from != to
        {
            before.insert(*file, from);
        }
        before.retain(|file, _| names.values().any(|f| f == file));
        valid.then_some(Self { names, before })
    }
    /// What the kernel answers by itself.
    fn not_asked(&self, op: &NameOp) -> bool {
        let NameOp::Rename(from, to, true) = op else { return false };
        self.names.get(to).is_some_and(|file| self.before.get(file) == Some(from))
    }
}

impl Specification for MountNames {
    type State = BTreeSet<Place>;
    type Operation = NameOp;
    fn init() -> Self::State {
        BTreeSet::from([Place::default()])
    }
    fn apply(op: &NameOp, state: &Self::State) -> (bool, Self::State) {
        let done = state.iter().filter_map(|p| p.done(op));
        let idle = state.iter().filter(|p| p.not_asked(op)).cloned();
        let next: Self::State = done.chain(idle).collect();
        if next.is_empty() { (false, state.clone()) } else { (true, next) }
    }
}
