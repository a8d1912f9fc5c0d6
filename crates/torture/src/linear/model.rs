//! What one key does when operations come one after another.

use std::collections::BTreeMap;
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
/// between the two look-ups, both renames succeed. Nothing below the kernel can help it, so that answer is allowed as well.
pub struct MountNames;

impl Specification for MountNames {
    type State = BTreeMap<&'static str, u64>;
    type Operation = NameOp;
    fn init() -> Self::State {
        Names::init()
    }
    fn apply(op: &NameOp, state: &Self::State) -> (bool, Self::State) {
        match op {
            NameOp::Rename(from, to, true) if !state.contains_key(from) => {
                (state.contains_key(to), state.clone())
            }
            _ => Names::apply(op, state),
        }
    }
}
