//! The cluster's time, as one process knows it.
//!
//! What ends or is remembered for a while, and is looked at by several services, goes by one clock: that of mgmtd's primary, which tells its time with
//! every answer to a heartbeat. Wall clocks of machines may be set, and differ; this one only goes on, by the primary's monotonic clock, and a
//! new primary takes it over: from what it heard as a standby, from the mark beside the primary's lease, and from services that
//! remember more. It need not show the time of day: while no mgmtd runs at all and no service remembers it, it stands still.
//!
//! Moments of the process itself are nanoseconds of its own monotonic clock, passed in.

/// A service that is so far ahead of a primary knows of a time that this one has not heard of, in ns. Less than that may be the way of a message.
pub const AHEAD_NS: u64 = 2_000_000_000;

/// See the module. Goes never back.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterTime {
    /// A moment of the process, and the cluster's time then.
    known: Option<(u64, u64)>,
    /// The newest time that was given out.
    last_ns: u64,
}

impl ClusterTime {
    fn guess(&self, at_ns: u64) -> Option<u64> {
        self.known.map(|(then, time)| time.saturating_add(at_ns.saturating_sub(then)))
    }
    /// The time at the moment `at_ns`; `None` if it was never told.
    pub fn now(&mut self, at_ns: u64) -> Option<u64> {
        let guess = self.guess(at_ns)?;
        self.last_ns = self.last_ns.max(guess);
        Some(self.last_ns)
    }
    /// The primary said `time_ns` somewhere between `sent_ns` and `at_ns`, so now it is that, and at most the time between those two later.
    pub fn told(&mut self, time_ns: u64, sent_ns: u64, at_ns: u64) {
        let way = at_ns.saturating_sub(sent_ns);
        let guess = self.guess(at_ns).unwrap_or(time_ns.saturating_add(way / 2));
        self.known = Some((at_ns, guess.clamp(time_ns, time_ns.saturating_add(way))));
    }
    /// It is `time_ns` or later at the moment `at_ns`.
    pub fn at_least(&mut self, time_ns: u64, at_ns: u64) {
        if self.guess(at_ns).is_none_or(|guess| guess < time_ns) {
            self.known = Some((at_ns, time_ns));
        }
    }
    /// A primary hears what a service takes for the time: true if that is so far ahead that it was taken over.
    pub fn heard(&mut self, time_ns: u64, at_ns: u64) -> bool {
        let ahead = self.guess(at_ns).is_none_or(|g| time_ns > g.saturating_add(AHEAD_NS));
        if ahead {
            self.at_least(time_ns, at_ns);
        }
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn it_is_never_off_by_more_than_the_way_of_the_message() {
        let mut t = ClusterTime::default();
        assert_eq!(t.now(5 * S), None);
        t.told(1000 * S, 10 * S, 12 * S);
        assert_eq!(t.now(12 * S), Some(1001 * S), "in the middle of what is possible");
        assert_eq!(t.now(20 * S), Some(1009 * S));
        // A better answer says that it was too early, one that says less changes nothing.
        t.told(1010 * S, 20 * S, 20 * S);
        assert_eq!(t.now(20 * S), Some(1010 * S));
        t.told(1005 * S, 15 * S, 25 * S);
        assert_eq!(t.now(25 * S), Some(1015 * S));
    }

    #[test]
    fn it_never_goes_back() {
        let mut t = ClusterTime::default();
        t.told(1000 * S, 0, 0);
        assert_eq!(t.now(10 * S), Some(1010 * S));
        t.told(1005 * S, 10 * S, 10 * S);
        assert_eq!(t.now(10 * S), Some(1010 * S), "it waits");
        assert_eq!(t.now(14 * S), Some(1010 * S));
        assert_eq!(t.now(17 * S), Some(1012 * S));
        t.at_least(1000 * S, 17 * S);
        assert_eq!(t.now(17 * S), Some(1012 * S));
        t.at_least(2000 * S, 17 * S);
        assert_eq!(t.now(18 * S), Some(2001 * S));
    }

    #[test]
    fn a_primary_takes_over_what_only_services_remember() {
        let mut t = ClusterTime::default();
        t.at_least(1000 * S, 0);
        assert!(!t.heard(1000 * S + AHEAD_NS, 0), "that may be the way");
        assert_eq!(t.now(0), Some(1000 * S));
        assert!(t.heard(4600 * S, S));
        assert_eq!(t.now(2 * S), Some(4601 * S));
    }
}
