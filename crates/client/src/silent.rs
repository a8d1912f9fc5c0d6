//! Metadata services that did not answer, until they do. Pure: time is an argument.
//!
//! Who is silent owns nothing ([`crate::owner`]), so no call of an application waits for it. Whether it answers again is asked in the background, of its engine:
//! that its process lives says nothing. Who answers that and is silent again when it is to do something is asked later and later.

use glowfs_rt::{Duration, Instant};
use glowfs_types::NodeId;
use std::collections::BTreeMap;

/// How long one that fell silent again is not asked at first; doubles with each further time.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// The longest such time.
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// Who was well for so long begins anew.
const WELL: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Default)]
pub struct SilentMetas(BTreeMap<NodeId, Silence>);

struct Silence {
    /// Since when it answers, if it does.
    answers: Option<Instant>,
    /// Not asked before.
    not_before: Instant,
    /// Of the last time that it fell silent again.
    pause: Duration,
}

impl SilentMetas {
    /// It did not answer.
    pub fn fell_silent(&mut self, node: NodeId, now: Instant) {
        let fresh = || Silence { answers: None, not_before: now, pause: Duration::ZERO };
        let Some(known) = self.0.get_mut(&node) else {
            self.0.insert(node, fresh());
            return;
        };
        match known.answers.take() {
            // Calls that were under way at once are one silence.
            None => {}
            Some(since) if now.since(since) >= WELL => *known = fresh(),
            Some(_) => {
                known.pause = known.pause.saturating_mul(2).clamp(PAUSE_MIN, PAUSE_MAX);
                known.not_before = now + known.pause;
            }
        }
    }
    /// Whether it has not answered since.
    pub fn is_silent(&self, node: NodeId) -> bool {
        self.0.get(&node).is_some_and(|s| s.answers.is_none())
    }
    /// Whether it is time to ask it.
    pub fn is_to_be_asked(&self, node: NodeId, now: Instant) -> bool {
        self.0.get(&node).is_some_and(|s| s.answers.is_none() && s.not_before <= now)
    }
    /// It answered.
    pub fn answered(&mut self, node: NodeId, now: Instant) {
        if let Some(known) = self.0.get_mut(&node) {
            known.answers.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(10);

    fn at(secs: u64) -> Instant {
        Instant(0) + Duration::from_secs(secs)
    }

    #[test]
    fn who_is_silent_again_and_again_is_asked_later_and_later() {
        let mut all = SilentMetas::default();
        assert!(!all.is_silent(NODE) && !all.is_to_be_asked(NODE, at(0)));
        let mut now = 0;
        for pause in [0, 2, 4, 8, 16, 32, 64, 64] {
            all.fell_silent(NODE, at(now));
            // Another call that was under way.
            all.fell_silent(NODE, at(now));
            assert!(all.is_silent(NODE) && !all.is_silent(NodeId(11)));
            assert!(pause == 0 || !all.is_to_be_asked(NODE, at(now + pause - 1)));
            now += pause;
            assert!(all.is_to_be_asked(NODE, at(now)), "after {pause} s");
            all.answered(NODE, at(now));
            assert!(!all.is_silent(NODE) && !all.is_to_be_asked(NODE, at(now)));
            now += 1;
        }
        now += 600;
        all.fell_silent(NODE, at(now));
        assert!(all.is_to_be_asked(NODE, at(now)), "it was well for long");
    }
}
