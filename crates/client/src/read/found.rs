//! What a read found, and its buffers put together again.

use crate::core::Core;
use glowfs_rt::BufMut;
use glowfs_types::Result;

/// What a read found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Up to where bytes exist.
    pub end: usize,
    /// Up to where all of them do.
    pub whole: usize,
}

impl Found {
    /// The first bytes of a piece.
    pub fn first(n: usize) -> Self {
        Self { end: n, whole: n }
    }
    /// `next` was found at `at`.
    pub fn add(&mut self, at: usize, next: Self) {
        if next.end > 0 {
            self.end = at + next.end;
        }
        if self.whole == at {
            self.whole = at + next.whole;
        }
    }
}

/// Puts the parts together again: in place if they are still neighbours, by copying if one was replaced.
pub(super) fn assemble(
    core: &Core,
    total: usize,
    parts: Vec<(Result<Found>, BufMut)>,
    rest: BufMut,
) -> (Result<Found>, BufMut) {
    let mut result = Ok(Found::default());
    let mut at = 0;
    let mut bufs = Vec::with_capacity(parts.len() + 1);
    for (outcome, part) in parts {
        match (outcome, &mut result) {
            (Ok(next), Ok(found)) => found.add(at, next),
            (Err(e), Ok(_)) => result = Err(e),
            _ => {}
        }
        at += part.len();
        bufs.push(part);
    }
    if !rest.is_empty() {
        bufs.push(rest);
    }
    (result, join_buffers(core, total, bufs))
}

fn join_buffers(core: &Core, total: usize, bufs: Vec<BufMut>) -> BufMut {
    let mut runs: Vec<BufMut> = Vec::new();
    for b in bufs {
        match runs.last_mut() {
            Some(last) => {
                if let Err(b) = last.unsplit(b) {
                    runs.push(b);
                }
            }
            None => runs.push(b),
        }
    }
    if runs.len() == 1
        && let Some(only) = runs.pop()
    {
        return only;
    }
    let mut whole = core.rt.alloc(total);
    let mut at = 0;
    for run in runs {
        whole[at..at + run.len()].copy_from_slice(&run);
        at += run.len();
    }
    whole
}
