//! A rate that many share.

use glowfs_rt::{Duration, Instant, Rt};
use std::cell::Cell;

/// What was taken so far, as the time at which it may have been taken.
pub struct Pace(Cell<Instant>);

impl Pace {
    /// Nothing is taken yet.
    pub fn new(now: Instant) -> Self {
        Self(Cell::new(now))
    }
    /// Takes so many, and waits until all that anybody has taken so far may have been, at `per_s` a second. What nobody took in the past is not
    /// made up for.
    pub async fn take(&self, rt: &Rt, n: u64, per_s: u64) {
        let nanos = u128::from(n) * 1_000_000_000 / u128::from(per_s.max(1));
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        let until = self.0.get().max(rt.now()) + Duration::from_nanos(nanos);
        self.0.set(until);
        rt.sleep_until(until).await;
    }
}
