//! How often a node has fallen (was declared dead, or became deaf, and came back in the same life), and how long it must be well before it counts again.
//!
//! The first fall costs nothing more: who was away once is back with its first sound heartbeats. Who falls again before it has been well for long is
//! kept out for longer each time, so that one that is too slow now and then does not stop its chains again and again. For each good time one fall is
//! forgotten. A new life begins anew.
//!
//! Must never: keep out whom others wait for. That is for the caller, who knows who is left ([`crate::Beat::needed`]).

/// Falls that are told apart: more make no longer pause, and are forgotten with these.
const FALLS_MAX: u32 = 8;

/// How long nodes are kept out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FallPauses {
    /// After the second fall, in ms; doubled with each further one.
    pub first_ms: u64,
    /// At most, in ms.
    pub longest_ms: u64,
}

impl FallPauses {
    /// Who has counted and been well for so long has fallen once less.
    fn good_ms(self) -> u64 {
        self.longest_ms / 2
    }
}

/// Of one node, in one life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Falls {
    times: u32,
    /// Since when it has been heard without a gap, and hears its answers in time.
    well_since_ms: Option<u64>,
}

impl Falls {
    /// Since when it is well, to be put in other words ([`crate::NodeLeases::reword`]).
    pub fn since_ms(&mut self) -> Option<&mut u64> {
        self.well_since_ms.as_mut()
    }
    /// See [`crate::NodeLeases::forget_long_ago`]; `gap`: it is not heard steadily.
    pub fn forget_long_ago(&mut self, gap: bool, falls: u32, pauses: FallPauses, now_ms: u64) {
        self.times = self.times.min(falls);
        let since = self.well_since_ms.filter(|_| !gap);
        self.well_since_ms = since.map(|since| since.max(now_ms.saturating_sub(pauses.longest_ms)));
    }
    /// It was declared dead, or found deaf.
    pub fn fell(&mut self) {
        self.times = (self.times + 1).min(FALLS_MAX);
        self.well_since_ms = None;
    }
    /// It is heard, `steadily` if there was no gap before, and `hears` its answers or does not.
    pub fn heard(&mut self, steadily: bool, hears: bool, now_ms: u64) {
        if !(steadily && hears) {
            self.well_since_ms = None;
        }
        if hears {
            self.well_since_ms.get_or_insert(now_ms);
        }
    }
    /// How long it must be well before it counts again, in ms.
    pub fn pause_ms(&self, pauses: FallPauses) -> u64 {
        match self.times.checked_sub(2) {
            None => 0,
            Some(more) => pauses.first_ms.saturating_mul(1 << more).min(pauses.longest_ms),
        }
    }
    /// Whether it has been well for so long.
    pub fn well_for(&self, ms: u64, now_ms: u64) -> bool {
        self.well_since_ms.is_some_and(|since| now_ms.saturating_sub(since) >= ms)
    }
    /// It counts: what was long ago is forgotten.
    pub fn forget_old(&mut self, pauses: FallPauses, now_ms: u64) {
        if self.times > 0 && self.well_for(pauses.good_ms(), now_ms) {
            self.times -= 1;
            self.well_since_ms = Some(now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_shrink_in_good_times() {
        let pauses = FallPauses { first_ms: 5, longest_ms: 20 };
        let mut f = Falls::default();
        let mut told = Vec::new();
        for _ in 0..100 {
            f.fell();
            told.push(f.pause_ms(pauses));
        }
        assert_eq!(told[..6], [0, 5, 10, 20, 20, 20]);
        assert_eq!(told.last(), Some(&20));
        f.heard(false, true, 100);
        assert!(!f.well_for(20, 119) && f.well_for(20, 120));
        let mut f = Falls::default();
        (0..3).for_each(|_| f.fell());
        f.heard(false, true, 100);
        let mut left = |now_ms| {
            f.forget_old(pauses, now_ms);
            f.pause_ms(pauses)
        };
        assert_eq!([left(109), left(110), left(119), left(120), left(130)], [10, 5, 5, 0, 0]);
        f.fell();
        assert_eq!(f.pause_ms(pauses), 0, "all is forgotten");
    }

    #[test]
    fn a_gap_or_a_late_answer_begins_the_good_time_anew() {
        let mut f = Falls::default();
        f.heard(true, true, 0);
        f.heard(true, true, 10);
        assert!(f.well_for(10, 10));
        f.heard(false, true, 12);
        assert!(!f.well_for(10, 20) && f.well_for(10, 22));
        f.heard(true, false, 30);
        assert!(!f.well_for(0, 30), "it does not hear");
        f.heard(true, true, 31);
        assert!(f.well_for(0, 31) && !f.well_for(10, 40));
    }
}
