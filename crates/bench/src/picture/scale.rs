//! [`Scale`]: where a number lies on an axis, and which numbers to write beside it.

/// A logarithmic or linear axis.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
    /// Numbers of bytes: ticks are powers of two.
    binary: bool,
}

impl Scale {
    /// Logarithmic; widened to whole steps of 1, 2, 5. `from` and `to` are where the axis begins and ends in the picture.
    pub fn log(low: f64, high: f64, from: f64, to: f64) -> Self {
        let low = if low > 0.0 { low } else { 1.0 };
        let high = high.max(low * 2.0);
        let steps: Vec<f64> =
            (-9..=15).flat_map(|p| [1.0, 2.0, 5.0].map(|s| s * 10f64.powi(p))).collect();
        let below = steps.iter().rev().find(|s| **s <= low * 1.001).copied().unwrap_or(low);
        let above = steps.iter().find(|s| **s >= high * 0.999).copied().unwrap_or(high);
        Self { low: below, high: above, from, to, log: true, binary: false }
    }
    /// Logarithmic, for bytes: widened to powers of two.
    pub fn bytes(low: f64, high: f64, from: f64, to: f64) -> Self {
        let low = 2f64.powf(low.max(1.0).log2().floor());
        let high = 2f64.powf(high.max(low * 2.0).log2().ceil());
        Self { low, high, from, to, log: true, binary: true }
    }
    /// Linear from 0.
    pub fn linear(high: f64, from: f64, to: f64) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let power = 10f64.powf(high.log10().floor());
        let top = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0].map(|s| s * power);
        let high = top.into_iter().find(|t| *t >= high * 0.999).unwrap_or(high);
        Self { low: 0.0, high, from, to, log: false, binary: false }
    }
    /// Where it lies; outside the axis: at its end.
    pub fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(1e-12) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }
    /// The numbers beside it: about six.
    pub fn ticks(&self) -> Vec<f64> {
        if !self.log {
            return (0..=4).map(|i| self.high * f64::from(i) / 4.0).collect();
        }
        if self.binary {
            let octaves = (self.high / self.low).log2();
            let every = (octaves / 6.0).ceil().max(1.0) as i32;
            let all = (0..63).filter(|p| p % every == 0).map(|p| 2f64.powi(p));
            return all.filter(|t| *t >= self.low * 0.999 && *t <= self.high * 1.001).collect();
        }
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (decades / 6.0).ceil().max(1.0) as i32;
        let all = (-9..=15)
            .filter(|p| p % every == 0)
            .flat_map(|p| steps.iter().map(move |s| s * 10f64.powi(p)));
        all.filter(|t| *t >= self.low * 0.999 && *t <= self.high * 1.001).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes() {
        let s = Scale::log(30.0, 9000.0, 0.0, 100.0);
        assert_eq!((s.at(20.0).round(), s.at(10_000.0).round()), (0.0, 100.0));
        assert_eq!((s.at(1.0), s.at(1e9), s.at(0.0)), (0.0, 100.0, 0.0), "nothing outside");
        assert_eq!(s.ticks(), [100.0, 1000.0, 10_000.0]);
        let s = Scale::bytes(5000.0, 1e6, 0.0, 80.0);
        assert_eq!((s.at(4096.0), s.at(1048576.0)), (0.0, 80.0));
        assert_eq!(s.ticks(), [4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0]);
        let s = Scale::linear(730.0, 100.0, 0.0);
        assert_eq!((s.at(0.0), s.at(800.0), s.ticks().len()), (100.0, 0.0, 5));
        assert!(
            Scale::log(0.0, 0.0, 0.0, 1.0).at(f64::NAN).is_finite()
                && Scale::linear(0.0, 0.0, 1.0).at(5.0) == 1.0
        );
    }
}
