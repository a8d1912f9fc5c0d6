//! Log-linear histograms: four steps per power of two, so that a quantile is off by an eighth at most.

use crate::steps::Steps;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Four steps for each power of two.
type Scale = Steps<2>;
/// Cells of one histogram; covers all of `u64`.
pub(crate) const CELLS: usize = Scale::CELLS;

/// What the recorded numbers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Nanoseconds; shown in seconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
    /// Things.
    Count,
}

/// The cells of one thread. One thread writes, any may read.
pub(crate) struct Cells {
    counts: [AtomicU64; CELLS],
    sum: AtomicU64,
}

impl Cells {
    pub(crate) fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; CELLS], sum: AtomicU64::new(0) }
    }
    pub(crate) fn add_to(&self, total: &mut Snapshot) {
        for (cell, sum) in self.counts.iter().zip(total.counts.iter_mut()) {
            *sum = sum.saturating_add(cell.load(Relaxed));
        }
        total.sum = total.sum.saturating_add(self.sum.load(Relaxed));
    }
}

/// Adds without a locked instruction: right, since one thread only writes to the cell.
pub(crate) fn bump(cell: &AtomicU64, by: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
}

/// A distribution, recorded on one thread. Clones share the cells.
#[derive(Clone)]
pub struct Histogram {
    pub(crate) cells: Arc<Cells>,
    pub(crate) _thread: PhantomData<Rc<()>>,
}

impl Histogram {
    /// Records one value.
    pub fn record(&self, value: u64) {
        if let Some(cell) = self.cells.counts.get(Scale::cell_of(value)) {
            bump(cell, 1);
        }
        bump(&self.cells.sum, value);
    }
    /// What this handle's cells hold now.
    pub fn snapshot(&self) -> Snapshot {
        let mut out = Snapshot::default();
        self.cells.add_to(&mut out);
        out
    }
}

/// A summed-up distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    counts: Vec<u64>,
    sum: u64,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self { counts: vec![0; CELLS], sum: 0 }
    }
}

impl Snapshot {
    /// How many values were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
    /// The sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum
    }
    /// How many values are below `limit`; exact if it is a power of two.
    pub fn below(&self, limit: u64) -> u64 {
        self.counts.iter().take(Scale::cell_of(limit)).sum()
    }
    /// The value that a share `q` (0 to 1) of the recorded ones does not exceed, to an eighth; 0 if there are none.
    pub fn quantile(&self, q: f64) -> u64 {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        let rank = ((count as f64 * q.clamp(0.0, 1.0)).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (cell, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                let low = Scale::floor_of(cell);
                let high = if cell + 1 < CELLS { Scale::floor_of(cell + 1) } else { u64::MAX };
                return low + (high - low) / 2;
            }
        }
        u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_close(mut values in proptest::collection::vec(1u64..1 << 40, 1..200), q in 0.0f64..1.0) {
            let h = Histogram { cells: Arc::new(Cells::new()), _thread: PhantomData };
            values.iter().for_each(|&v| h.record(v));
            values.sort_unstable();
            let rank = ((values.len() as f64 * q).ceil() as usize).clamp(1, values.len());
            let want = values[rank - 1] as f64;
            let got = h.snapshot().quantile(q) as f64;
            prop_assert!((got - want).abs() <= want / 7.0 + 1.0, "{got} for {want}");
            prop_assert_eq!(h.snapshot().sum(), values.iter().sum::<u64>());
        }
        #[test]
        fn below_is_exact_at_powers_of_two(values: Vec<u64>, power in 0u32..64) {
            let h = Histogram { cells: Arc::new(Cells::new()), _thread: PhantomData };
            values.iter().for_each(|&v| h.record(v));
            let want = values.iter().filter(|&&v| v < 1 << power).count() as u64;
            prop_assert_eq!(h.snapshot().below(1 << power), want);
        }
    }
}
