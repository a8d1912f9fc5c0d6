//! [`Latencies`]: how long operations took, in bounded memory: sixteen steps for each power of two, so a quantile is off by a sixteenth at most.

use glowfs_telemetry::Steps;
use std::time::Duration;

/// Sixteen steps for each power of two.
type Scale = Steps<4>;

/// See the module.
pub struct Latencies {
    cells: Vec<u64>,
    count: u64,
    sum_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { cells: vec![0; Scale::CELLS], count: 0, sum_ns: 0 }
    }
}

impl Latencies {
    /// Notes one.
    pub fn note(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.cells[Scale::cell_of(ns)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }
    /// Takes in those of another one.
    pub fn add(&mut self, other: &Latencies) {
        self.cells.iter_mut().zip(&other.cells).for_each(|(a, b)| *a += b);
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }
    /// Mean, half, 99 of 100, in microseconds.
    pub fn summary(&self) -> [f64; 3] {
        let mean = self.sum_ns as f64 / self.count.max(1) as f64;
        [mean / 1e3, self.quantile(0.5) / 1e3, self.quantile(0.99) / 1e3]
    }
    fn quantile(&self, q: f64) -> f64 {
        let rank = (self.count as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (cell, n) in self.cells.iter().enumerate() {
            seen += n;
            if seen >= rank.max(1) {
                return Scale::floor_of(cell) as f64;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near() {
        let mut all = Latencies::default();
        let mut half = Latencies::default();
        for us in 1..=1000u64 {
            if us % 2 == 0 { &mut all } else { &mut half }.note(Duration::from_micros(us));
        }
        all.add(&half);
        let [mean, p50, p99] = all.summary();
        assert!((mean - 500.5).abs() < 0.1, "{mean}");
        assert!((460.0..=500.0).contains(&p50) && (925.0..=990.0).contains(&p99), "{p50} {p99}");
        assert_eq!(all.count(), 1000);
    }
}
