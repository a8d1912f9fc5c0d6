//! Seeded random numbers (SplitMix64): small, fast, the same everywhere.

use std::time::Duration;

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed; `lane` separates the generators of one run.
    pub fn new(seed: u64, lane: u64) -> Self {
        let mut r = Self(seed ^ lane.wrapping_mul(0xd134_2543_de82_ef95));
        r.next();
        r
    }
    /// 64 random bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
    /// Below `n` (0 if `n` is 0).
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }
    /// True in `percent` of the cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    /// Between two durations, in whole milliseconds.
    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let (from, to) = (from.as_millis() as u64, to.as_millis() as u64);
        Duration::from_millis(from + self.below(to.saturating_sub(from) + 1))
    }
    /// One of them.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }
}

/// A good hash of 64 bits.
pub fn mix(x: u64) -> u64 {
    let mut z = x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
