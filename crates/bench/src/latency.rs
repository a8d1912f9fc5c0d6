//! [`Latencies`]: how long operations took, in bounded memory: sixteen steps for each power of two, so a quantile is off by a sixteenth at most.

use std::time::Duration;

const STEP_BITS: u32 = 4;
const STEPS: usize = 1 << STEP_BITS;
const CELLS: usize = (64 - STEP_BITS as usize + 1) * STEPS;

/// See the module.
pub struct Latencies {
    cells: Vec<u64>,
    count: u64,
    sum_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { cells: vec![0; CELLS], count: 0, sum_ns: 0 }
    }
}

fn cell_of(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros();
    let step = (ns >> (power - STEP_BITS)) as usize & (STEPS - 1);
    (power - STEP_BITS + 1) as usize * STEPS + step
}

fn floor_of(cell: usize) -> u64 {
    if cell < STEPS {
        return cell as u64;
    }
    let power = (cell / STEPS) as u32 + STEP_BITS - 1;
    ((STEPS + cell % STEPS) as u64) << (power - STEP_BITS)
}

impl Latencies {
    /// Notes one.
    pub fn note(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.cells[cell_of(ns)] += 1;
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
                return floor_of(cell) as f64;
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

    #[test]
    fn every_number_has_a_cell() {
        for ns in [0, 1, 15, 16, 17, 1 << 40, u64::MAX] {
            let cell = cell_of(ns);
            assert!(cell < CELLS && floor_of(cell) <= ns, "{ns}");
        }
    }
}
