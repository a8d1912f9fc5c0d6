//! When a read is slow enough to ask a second replica, and how often that may happen. Pure.

use glowfs_rt::Duration;

/// Hedges saved up at most.
const BUDGET_MAX: f64 = 10.0;
/// Hedges earned by one read: at most every twentieth read is hedged for long.
const EARN: f64 = 0.05;

/// Latencies of reads (smoothed mean and deviation, as in RFC 6298) and the budget for hedges.
#[derive(Debug)]
pub struct Hedger {
    min: Duration,
    max: Duration,
    mean_ns: f64,
    dev_ns: f64,
    budget: f64,
}

impl Hedger {
    /// Delays stay within `min` and `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), mean_ns: 0.0, dev_ns: 0.0, budget: BUDGET_MAX }
    }
    /// A read took this long.
    pub fn took(&mut self, d: Duration) {
        let ns = d.as_nanos() as f64;
        if self.mean_ns == 0.0 {
            self.mean_ns = ns;
            self.dev_ns = ns / 2.0;
        } else {
            self.dev_ns += ((ns - self.mean_ns).abs() - self.dev_ns) / 4.0;
            self.mean_ns += (ns - self.mean_ns) / 8.0;
        }
        self.budget = (self.budget + EARN).min(BUDGET_MAX);
    }
    /// How long to wait before asking another replica.
    pub fn delay(&self) -> Duration {
        Duration::from_nanos((self.mean_ns + 4.0 * self.dev_ns) as u64).clamp(self.min, self.max)
    }
    /// Whether a hedge may be sent now; if so it is counted.
    pub fn spend(&mut self) -> bool {
        let ok = self.budget >= 1.0;
        if ok {
            self.budget -= 1.0;
        }
        ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_adapts_within_bounds() {
        let ms = Duration::from_millis;
        let mut h = Hedger::new(ms(5), ms(500));
        assert_eq!(h.delay(), ms(5));
        for _ in 0..200 {
            h.took(ms(50));
        }
        assert!(h.delay() >= ms(50) && h.delay() < ms(60), "{:?}", h.delay());
        for _ in 0..200 {
            h.took(ms(5000));
        }
        assert_eq!(h.delay(), ms(500));
    }

    #[test]
    fn hedges_are_rare() {
        let mut h = Hedger::new(Duration::ZERO, Duration::ZERO);
        let mut n = 0;
        for _ in 0..1000 {
            h.took(Duration::from_millis(1));
            n += usize::from(h.spend());
        }
        assert!((50..=65).contains(&n), "{n}");
    }
}
