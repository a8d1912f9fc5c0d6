//! The cluster's time, and how far this machine's wall clock is off.

use glowfs_cluster::ClusterTime;
use glowfs_rt::{Duration, Instant, Rt};
use std::cell::{Cell, RefCell};

/// A wall clock that is off by more than this is named by the status of its service.
pub const CLOCK_OFF_MAX: Duration = Duration::from_secs(2);

/// What mgmtd's primary said of the time.
#[derive(Default)]
pub struct Time {
    cluster: RefCell<ClusterTime>,
    /// How much later the wall clock here is than the primary's, in ns.
    off_ns: Cell<i64>,
}

impl Time {
    /// The cluster's time, in ns since the Unix epoch, if mgmtd's primary ever told it.
    pub fn told(&self, rt: &Rt) -> Option<u64> {
        self.cluster.borrow_mut().now(rt.now().0)
    }
    /// A heartbeat that was sent at `sent` was answered: with the cluster's time, and what the wall clock of the primary showed (0: not told).
    pub fn answered(&self, rt: &Rt, sent: Instant, (time_ns, wall_ns): (u64, u64)) {
        let now = rt.now();
        if time_ns != 0 {
            self.cluster.borrow_mut().told(time_ns, sent.0, now.0);
        }
        if wall_ns != 0 {
            // The answer was made between the two.
            let way = i128::from(now.0.saturating_sub(sent.0));
            let ahead = i128::from(rt.unix_ns()) - i128::from(wall_ns);
            let off = if ahead > way { ahead - way } else { ahead.min(0) };
            self.off_ns.set(i64::try_from(off).unwrap_or(if off < 0 {
                i64::MIN
            } else {
                i64::MAX
            }));
        }
    }
    /// What to say of a wall clock that is off by more than it may be.
    pub fn complaint(&self) -> Option<String> {
        let off = Duration::from_nanos(self.off_ns.get().unsigned_abs());
        let how = if self.off_ns.get() < 0 { "behind" } else { "ahead of" };
        (off > CLOCK_OFF_MAX).then(|| {
            let seconds = off.as_secs_f64();
            format!("the clock of this machine is {seconds:.1} s {how} that of mgmtd's primary: set them by one time server")
        })
    }
}
