//! Calls that go on waiting when their time is up, for what they wait for is on its way.
//!
//! A connection that carries less than is asked of it answers late. Calls that are given up then, and made again, have it carry what is for nobody, and in the end nobody is
//! answered. So a patient call ([`Conn::call_patiently`]) waits as long as what stands before it moves, at [`DELIVERY_BYTES_PER_SECOND_MIN`] or faster: before its request has
//! left, what we send; then the bulk of answers, if it receives bulk, or what we send and what is answered of that, if it sends some. No longer than its caller says; and once its request has
//! left behind others, it has its whole time, as the peer reckons it: one without bulk no more than that.
//!
//! Must never: wait for what waits for something else there, say a disk that does nothing. Answers leave in the order in which they are ready. So one that stands behind others is
//! not overtaken by such as were asked for much later ([`OVERTAKEN_BY`]), and one that is not ready is. That is seen late or not at all where little is asked for later: who can ask
//! somebody else is not patient. The peer is told of the time alone: what it has not begun by then it need not begin.

use super::Conn;
use crate::limits::{
    DELIVERY_BYTES_PER_SECOND_MIN, DELIVERY_PAUSE_MAX, LATE_MAX, OVERTAKEN_BY, UPKEEP_PERIOD,
};
use glowfs_rt::{Duration, Instant};
use std::cell::Cell;

/// What a connection delivers, in both directions.
#[derive(Default)]
pub(super) struct Delivery {
    /// Bytes of bulk that came with answers.
    pub(super) received: Cell<u64>,
    /// How much of what we sent had arrived when it was looked last that it was more than before, and when that was.
    taken: Cell<(u64, Instant)>,
    /// When the kernel here was seen last with something that the peer did not have.
    unsent_at: Cell<Instant>,
    /// Of the answers with bulk that we gave: when the newest call arrived, and when the last one was given.
    served: Cell<(Instant, Instant)>,
}

/// How much a connection has delivered since it began, in bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Delivered {
    /// Bulk of answers,
    pub(super) received: u64,
    /// what we sent and the peer's machine has,
    pub(super) taken: u64,
    /// and bulk that we sent with calls that are answered well.
    pub(super) answered: u64,
}

/// Whether so much is more than a trickle.
pub(super) fn is_enough(bytes: u64, in_time: Duration) -> bool {
    u128::from(bytes) * 1_000_000_000
        >= u128::from(DELIVERY_BYTES_PER_SECOND_MIN) * in_time.as_nanos()
}

/// What a call moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// No bulk.
    Bare,
    Sends,
    Receives,
}

/// How long a call waits.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// When it was made.
    pub(super) made: Instant,
    /// How long it waits in any case,
    pub(super) time: Duration,
    /// and how long at the most.
    pub(super) until: Instant,
}

impl Times {
    pub(super) fn is_patient(&self) -> bool {
        self.until > self.deadline()
    }
    /// When its time is up.
    pub(super) fn deadline(&self) -> Instant {
        self.made + self.time
    }
}

/// The waiting of one call.
pub(crate) struct Wait {
    pub(super) times: Times,
    pub(super) kind: Kind,
    /// Where in what we send its request ends, if it stands behind others and was not seen leaving.
    pub(super) behind: Option<u64>,
    /// What had been delivered of what counts for it when it was looked last, and when that was.
    seen: (u64, Instant),
    /// When to look next.
    pub(super) at: Instant,
}

impl Wait {
    /// Begins to wait.
    pub(super) fn new(times: Times, kind: Kind, behind: Option<u64>, d: Delivered) -> Self {
        let behind = behind.filter(|_| times.is_patient());
        let first = if behind.is_some() { times.time.min(DELIVERY_PAUSE_MAX) } else { times.time };
        let at = (times.made + first).min(times.until);
        let mut wait = Self { times, kind, behind, seen: (0, times.made), at };
        wait.seen.0 = wait.counts(d);
        wait
    }
    /// What counts for it as delivered.
    fn counts(&self, d: Delivered) -> u64 {
        match (self.behind, self.kind) {
            (Some(_), _) => d.taken,
            (None, Kind::Receives) => d.received,
            (None, Kind::Sends) => d.taken + d.answered,
            // Its answer may wait for any disk, and nothing that moves tells of that one.
            (None, Kind::Bare) => 0,
        }
    }
    /// When to look again, or nothing if it waits no longer. `overtaker`: when the newest call of its kind was made that is answered.
    pub(super) fn look(
        &mut self,
        now: Instant,
        overtaker: Instant,
        d: impl FnOnce() -> Delivered,
    ) -> Option<Instant> {
        if !self.times.is_patient() || now >= self.times.until {
            return None;
        }
        let d = d();
        let next = if self.behind.is_some_and(|end| d.taken >= end) {
            self.behind = None;
            self.seen = (self.counts(d), now);
            now + self.times.time
        } else {
            let overtaken = self.behind.is_none() && overtaker > self.times.made + OVERTAKEN_BY;
            let (before, looked_at) = self.seen;
            self.seen = (self.counts(d), now);
            let moves = is_enough(self.seen.0.saturating_sub(before), now.since(looked_at));
            if moves && !overtaken { now + DELIVERY_PAUSE_MAX } else { self.times.deadline() }
        };
        self.at = next.min(self.times.until);
        (self.at > now).then_some(self.at)
    }
}

impl Conn {
    pub(super) fn delivered(&self) -> Delivered {
        let received = self.delivery.received.get();
        Delivered { received, taken: self.taken(), answered: 0 }
    }
    /// The same without asking the kernel: what was taken as it was looked last.
    pub(super) fn delivered_at_least(&self) -> Delivered {
        let received = self.delivery.received.get();
        Delivered { received, taken: self.delivery.taken.get().0, answered: 0 }
    }
    /// When something that we sent was taken last, as far as was looked.
    pub(super) fn taken_at(&self, now: Instant) -> Instant {
        let (before, at) = self.delivery.taken.get();
        // What the kernel has not got it need not be asked about.
        if self.out.borrow().written() <= before {
            return at;
        }
        let taken = self.taken();
        if taken < self.out.borrow().written() {
            self.delivery.unsent_at.set(now);
        }
        if taken <= before {
            return at;
        }
        self.delivery.taken.set((taken, now));
        now
    }

    /// A call of the peer is answered with bulk.
    pub(crate) fn serves(&self, arrived: Instant, now: Instant) {
        let newest = self.delivery.served.get().0.max(arrived);
        self.delivery.served.set((newest, now));
    }
    /// Whether the caller has given a call up, as far as can be told from here, by the same rules.
    pub(crate) fn gave_up(&self, arrived: Instant, deadline: Instant, now: Instant) -> bool {
        if now < deadline {
            return false;
        }
        let (newest, last) = self.delivery.served.get();
        // It still receives what the kernel here holds, which is looked at so often.
        self.taken_at(now);
        let sent = now.since(self.delivery.unsent_at.get()) > DELIVERY_PAUSE_MAX + UPKEEP_PERIOD;
        let queued = self.out.borrow().bytes() > 0;
        let idle = !queued && sent && now.since(last) > DELIVERY_PAUSE_MAX;
        idle || newest > arrived + OVERTAKEN_BY || now >= arrived + LATE_MAX || self.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the time of a call.
    const ENOUGH: u64 = 3 * DELIVERY_BYTES_PER_SECOND_MIN as u64;

    fn at(ms: u64) -> Instant {
        Instant(0) + Duration::from_millis(ms)
    }
    fn received(received: u64) -> Delivered {
        Delivered { received, ..Delivered::default() }
    }
    fn taken(taken: u64) -> Delivered {
        Delivered { taken, ..Delivered::default() }
    }
    fn wait(kind: Kind, behind: Option<u64>) -> Wait {
        let (made, time, until) = (at(10_000), Duration::from_secs(3), at(40_000));
        Wait::new(Times { made, time, until }, kind, behind, Delivered::default())
    }

    #[test]
    fn who_is_behind_others_waits_and_who_is_overtaken_does_not() {
        let look =
            |now, overtaker, d| wait(Kind::Receives, None).look(at(now), at(overtaker), || d);
        assert_eq!(wait(Kind::Receives, None).at, at(13_000));
        assert_eq!(look(13_000, 9000, received(ENOUGH)), Some(at(15_000)));
        assert_eq!(look(13_000, 10_900, received(ENOUGH)), Some(at(15_000)), "side by side");
        assert_eq!(look(13_000, 11_100, received(ENOUGH)), None, "overtaken");
        assert_eq!(look(13_000, 9000, received(ENOUGH - 1)), None, "too little comes");
        assert_eq!(look(13_000, 9000, taken(10 * ENOUGH)), None, "it has left, and nothing comes");
        assert_eq!(look(39_000, 9000, received(10 * ENOUGH)), Some(at(40_000)));
        assert_eq!(look(40_000, 9000, received(20 * ENOUGH)), None, "for ever");
        // What came before the last look is no sign at the next one.
        let mut call = wait(Kind::Receives, None);
        let all = received(100 * ENOUGH);
        assert_eq!(call.look(at(13_000), at(0), || all), Some(at(15_000)));
        assert_eq!(call.look(at(15_000), at(0), || all), None);
        // A call that sends.
        assert_eq!(
            wait(Kind::Sends, None).look(at(13_000), at(0), || taken(ENOUGH)),
            Some(at(15_000))
        );
    }

    #[test]
    fn who_has_not_left_goes_by_what_leaves_and_then_has_its_time() {
        let mut call = wait(Kind::Receives, Some(10 * ENOUGH));
        assert_eq!(call.at, at(12_000));
        assert_eq!(call.look(at(12_000), at(0), || received(ENOUGH)), Some(at(13_000)), "stuck");
        let mut call = wait(Kind::Receives, Some(10 * ENOUGH));
        assert_eq!(call.look(at(12_000), at(0), || taken(4 * ENOUGH)), Some(at(14_000)));
        assert_eq!(call.look(at(14_000), at(12_000), || taken(8 * ENOUGH)), Some(at(16_000)));
        assert_eq!(call.look(at(16_000), at(0), || taken(10 * ENOUGH)), Some(at(19_000)), "left");
        assert_eq!(call.look(at(19_000), at(0), || taken(20 * ENOUGH)), None);
        let mut call = wait(Kind::Bare, Some(10 * ENOUGH));
        assert_eq!(call.look(at(12_000), at(0), || taken(1)), Some(at(13_000)));
        assert_eq!(call.look(at(13_000), at(0), || taken(2)), None, "its time is up");
        // One without bulk does not wait for a disk because others go on.
        let mut call = wait(Kind::Bare, Some(ENOUGH));
        assert_eq!(call.look(at(12_000), at(0), || taken(ENOUGH)), Some(at(15_000)), "left");
        assert_eq!(call.look(at(15_000), at(0), || taken(9 * ENOUGH)), None);
        assert_eq!(wait(Kind::Bare, None).look(at(13_000), at(0), || taken(9 * ENOUGH)), None);
    }
}
