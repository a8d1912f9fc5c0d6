//! Time: [`Instant`] is CLOCK_BOOTTIME (it goes on while the machine sleeps), so leases cannot outlive a suspend.

pub use std::time::Duration;

/// A moment on the node's own CLOCK_BOOTTIME, in nanoseconds. Moments of two nodes cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// A moment that does not come.
    pub const NEVER: Self = Self(u64::MAX);
    /// The time from `earlier` to here; zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}
