//! How long members have stood idle: away, or waiting while they could be brought up to date and are not. Who stands so for too long is given up, and
//! another member takes its place ([`crate::next_move`]).
//!
//! A slow member is not a lost one: time in which it is brought up to date is taken off again, so only who waits for longer than it gets on is given up,
//! and never while it gets on. A member that was away for however long has so begun anew when it is brought up to date. Nor does it count that a
//! member waits for its turn behind another one, or for somebody who serves: it can do nothing about that.
//!
//! Times are milliseconds of mgmtd's own clock, passed in. Nothing counts from before the first look.

use crate::Chain;
use glowfs_types::TargetId;
use glowfs_types::routing::PublicState::{LastSrv, Offline, Serving, Syncing, Waiting};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Stood {
    ms: u64,
    /// Also at the last look.
    now: bool,
}

/// The book of one primary. A member is in it from the first look that finds it not serving to the first that finds it serving.
#[derive(Clone, Debug, Default)]
pub struct Idle {
    of: BTreeMap<TargetId, Stood>,
    looked_ms: u64,
}

impl Idle {
    /// Looks at all chains. Who stands idle for `limit_ms` is given up; of what is more than that nothing need be made up for.
    pub fn look<'a>(
        &mut self,
        chains: impl Iterator<Item = &'a Chain>,
        limit_ms: Option<u64>,
        now_ms: u64,
    ) {
        let passed = now_ms.saturating_sub(self.looked_ms);
        self.looked_ms = now_ms;
        let before = std::mem::take(&mut self.of);
        for chain in chains {
            let members = &chain.info.members;
            let free = members.iter().all(|m| m.state != Syncing) && chain.info.head().is_some();
            for m in members {
                let was = before.get(&m.target);
                let ms = was.map_or(0, |s| s.ms);
                let more = was.map_or(0, |_| passed);
                let stood = match m.state {
                    Serving | LastSrv => continue,
                    Syncing => {
                        let owed = ms.min(limit_ms.unwrap_or(u64::MAX));
                        Stood { ms: owed.saturating_sub(more), now: false }
                    }
                    Waiting if !free => Stood { ms, now: false },
                    Waiting | Offline => Stood { ms: ms.saturating_add(more), now: true },
                };
                self.of.insert(m.target, stood);
            }
        }
    }
    /// Whether a member stands idle, and has for so long.
    pub fn for_ms(&self, target: TargetId, limit_ms: u64) -> bool {
        self.of.get(&target).is_some_and(|s| s.now && s.ms >= limit_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::routing::PublicState;
    use glowfs_types::{ChainId, NodeId};

    const LIMIT: u64 = 600;

    /// The states of a chain's members for so many ms at a time; who is given up in the end.
    fn given_up(course: &[([PublicState; 3], u64)]) -> Vec<u64> {
        let ids: Vec<_> = (1..=3).map(|i| (TargetId(i), NodeId(i))).collect();
        let mut chain = Chain::new(ChainId(1), &ids);
        let (mut idle, mut now_ms) = (Idle::default(), 1_000_000);
        for (states, ms) in course {
            for (m, s) in chain.info.members.iter_mut().zip(states) {
                m.state = *s;
            }
            for _ in 0..=ms / 10 {
                idle.look([&chain].into_iter(), Some(LIMIT), now_ms);
                now_ms += 10;
            }
        }
        (1..=3).filter(|t| idle.for_ms(TargetId(*t), LIMIT)).collect()
    }

    #[test]
    fn who_is_away_or_waits_in_vain_for_too_long_is_given_up() {
        assert_eq!(given_up(&[([Serving, Serving, Offline], 590)]), [0; 0]);
        assert_eq!(given_up(&[([Serving, Serving, Offline], 600)]), [3]);
        assert_eq!(given_up(&[([Serving, Offline, Waiting], 600)]), [2, 3]);
        // It waits for a minute, and fails within seconds, again and again: a full disk.
        let mut course = Vec::new();
        for _ in 0..12 {
            course.push(([Serving, Serving, Waiting], 60));
            course.push(([Serving, Serving, Syncing], 3));
            course.push(([Serving, Serving, Offline], 3));
        }
        assert_eq!(given_up(&course), [3]);
        // While it is tried once more it is not.
        course.push(([Serving, Serving, Syncing], 3));
        assert_eq!(given_up(&course), [0; 0]);
        course.push(([Serving, Serving, Serving], 1));
        course.push(([Serving, Serving, Offline], 590));
        assert_eq!(given_up(&course), [0; 0], "it has served meanwhile");
    }

    #[test]
    fn who_is_slow_or_waits_for_others_is_not_given_up() {
        // Its turn comes after the other one's.
        assert_eq!(given_up(&[([Serving, Syncing, Waiting], 10_000)]), [0; 0]);
        // There is nobody to be brought up to date from.
        assert_eq!(given_up(&[([LastSrv, Waiting, Waiting], 10_000)]), [0; 0]);
        // It was away for long, and is brought up to date for long, with interruptions.
        let mut course =
            vec![([Serving, Serving, Offline], 100_000), ([Serving, Serving, Syncing], 100)];
        for _ in 0..100 {
            course.push(([Serving, Serving, Waiting], 50));
            course.push(([Serving, Serving, Syncing], 100));
        }
        course.push(([Serving, Serving, Waiting], 50));
        assert_eq!(given_up(&course), [0; 0]);
    }
}
