//! How well mgmtd's answers come through.
//!
//! The next heartbeat does not wait for the answer to the one before: an answer counts as long as the lease that it grants, so a slow
//! link costs no lease as long as each answer comes before the lease of the one before is over. A process whose answers come later
//! than that, or never, though mgmtd may hear it, says so in its heartbeats ([`Contact::sends`]), and mgmtd takes its targets out.

use glowfs_rt::{Duration, Instant};
use std::cell::Cell;

/// The lease that is expected before mgmtd has granted one.
const LEASE_EXPECTED: Duration = Duration::from_millis(1500);
/// Heartbeats whose answers are waited for, at most, beside the one that was sent last.
const WAITING_MAX: u32 = 16;

/// See the module.
pub struct Contact {
    /// The time between heartbeats.
    interval: Duration,
    lease: Cell<Duration>,
    /// When the newest heartbeat was sent that was answered in time; before there is one, when the first was sent.
    in_time: Cell<Option<Instant>>,
    waiting: Cell<u32>,
}

impl Contact {
    /// Nothing sent yet.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            lease: Cell::new(LEASE_EXPECTED),
            in_time: Cell::new(None),
            waiting: Cell::new(0),
        }
    }
    /// How long an answer to a heartbeat is worth waiting for: as long as a lease lasts.
    pub fn worth(&self) -> Duration {
        self.lease.get()
    }
    /// A heartbeat is sent at `now`: how long ago the newest one was sent that was answered in time.
    pub fn sends(&self, now: Instant) -> Duration {
        let last = self.in_time.get().unwrap_or(now);
        self.in_time.set(Some(last));
        now.since(last)
    }
    /// What was sent at `sent` was answered at `now`, with a lease of `lease` (zero: none is granted just now). It is in time if the next
    /// answer, as late after its heartbeat, comes before that lease is over.
    pub fn answered(&self, sent: Instant, now: Instant, lease: Duration) {
        if !lease.is_zero() {
            self.lease.set(lease);
        }
        if now.since(sent) + self.interval <= self.lease.get() {
            self.in_time.set(self.in_time.get().max(Some(sent)));
        }
    }
    /// Whether one more heartbeat may go on waiting for its answer while the next is sent. If so, [`Contact::waited`] ends that.
    pub fn may_wait(&self) -> bool {
        let waiting = self.waiting.get();
        if waiting < WAITING_MAX {
            self.waiting.set(waiting + 1);
        }
        waiting < WAITING_MAX
    }
    /// One of those has its answer, or waits no more.
    pub fn waited(&self) {
        self.waiting.set(self.waiting.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn only_answers_that_leave_time_for_the_next_count() {
        let lease = Duration::from_millis(1500);
        let c = Contact::new(Duration::from_millis(300));
        assert_eq!(c.sends(at(1000)), Duration::ZERO, "the first");
        c.answered(at(1000), at(2100), lease);
        assert_eq!(c.sends(at(2200)), Duration::from_millis(1200));
        c.answered(at(2200), at(3450), lease);
        assert_eq!(c.sends(at(3500)), Duration::from_millis(2500), "that one was late");
        c.answered(at(3500), at(3600), Duration::ZERO);
        assert_eq!(c.sends(at(3600)), Duration::from_millis(100), "in time, and nothing granted");
        c.answered(at(2200), at(2300), lease);
        assert_eq!(c.sends(at(3700)), Duration::from_millis(200), "an older one changes nothing");
    }

    #[test]
    fn what_waits_is_bounded() {
        let c = Contact::new(Duration::from_millis(300));
        assert_eq!((0..100).filter(|_| c.may_wait()).count() as u32, WAITING_MAX);
        c.waited();
        assert!(c.may_wait() && !c.may_wait());
    }
}
