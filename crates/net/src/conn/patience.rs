//! Calls that go on waiting when their time is up, for what they wait for is on its way.
//!
//! A connection that carries less than is asked of it answers late. Calls that are given up then, and made again, have it carry what is for nobody, and in the end nobody is
//! answered. So a patient call ([`Conn::call_patiently`]) waits as long as the connection delivers: answers to patient calls come without a longer pause than
//! [`DELIVERY_PAUSE_MAX`] (or what we send leaves, if the call sends bulk); and no longer than its caller says.
//!
//! Must never: wait for what waits for something else there, say a disk that does nothing. Answers leave in the order in which they are ready. So one that stands behind others is
//! not overtaken by such as were asked for much later ([`OVERTAKEN_BY`]), and one that is not ready is. The peer is told of the time alone: what it has not begun by then it need
//! not begin.

use super::Conn;
use crate::inbound::Pulse;
use crate::limits::{DELIVERY_PAUSE_MAX, LATE_MAX, OVERTAKEN_BY};
use glowfs_rt::Instant;
use std::cell::Cell;

/// What a connection delivers, in both directions.
#[derive(Default)]
pub(super) struct Delivery {
    /// The bulk of an answer to a patient call is coming.
    coming: Cell<bool>,
    /// When the last such answer was complete.
    came_at: Cell<Instant>,
    /// How much of what we sent had arrived when it was looked last that it was more than before, and when that was.
    taken: Cell<(u64, Instant)>,
    /// Of the answers with bulk that we gave: when the newest call arrived, and when the last one was given.
    served: Cell<(Instant, Instant)>,
}

/// Signs that a connection delivers.
#[derive(Clone, Copy)]
pub(crate) struct Signs {
    /// When something of an answer came last,
    pub(super) came: Instant,
    /// and when something that we sent was taken last.
    pub(super) taken: Instant,
}

impl Delivery {
    /// The bulk of an answer to a patient call begins to come, or has come.
    pub(super) fn comes(&self, coming: bool) {
        self.coming.set(coming);
    }
    /// An answer to a patient call is complete.
    pub(super) fn came(&self, now: Instant) {
        self.came_at.set(now);
    }
}

/// How long a call waits.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// When it was made.
    pub(crate) made: Instant,
    /// How long in any case,
    pub(crate) deadline: Instant,
    /// and how long while its answer is on its way.
    pub(crate) until: Instant,
}

impl Times {
    pub(super) fn is_patient(&self) -> bool {
        self.until > self.deadline
    }
    /// How long one goes on waiting whose time is up, if at all. `overtaker`: when the newest call of its kind was made that is answered.
    pub(super) fn later(
        &self,
        now: Instant,
        receives: bool,
        overtaker: Instant,
        signs: Signs,
    ) -> Option<Instant> {
        if overtaker > self.made + OVERTAKEN_BY {
            return None;
        }
        let last = if receives { signs.came } else { signs.came.max(signs.taken) };
        let later = (last + DELIVERY_PAUSE_MAX).min(self.until);
        (later > now).then_some(later)
    }
}

impl Conn {
    pub(super) fn signs(&self, pulse: &Pulse, now: Instant) -> Signs {
        let delivery = &self.delivery;
        let coming = delivery.coming.get();
        let came = if coming { pulse.heard_at.get() } else { delivery.came_at.get() };
        Signs { came, taken: self.taken_at(now) }
    }
    /// When something that we sent was taken last, as far as was looked.
    pub(super) fn taken_at(&self, now: Instant) -> Instant {
        let (before, at) = self.delivery.taken.get();
        let taken = self.taken();
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
        let idle = self.out.borrow().bytes() == 0 && now.since(last) > DELIVERY_PAUSE_MAX;
        idle || newest > arrived + OVERTAKEN_BY || now >= arrived + LATE_MAX || self.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::Duration;

    fn at(ms: u64) -> Instant {
        Instant(0) + Duration::from_millis(ms)
    }

    #[test]
    fn who_is_behind_others_waits_and_who_is_overtaken_does_not() {
        let call = Times { made: at(10_000), deadline: at(13_000), until: at(40_000) };
        let signs = |came, taken| Signs { came: at(came), taken: at(taken) };
        let later = |now, overtaker, signs| call.later(at(now), true, at(overtaker), signs);
        assert_eq!(later(13_000, 9000, signs(12_500, 0)), Some(at(14_500)));
        assert_eq!(later(13_000, 10_900, signs(13_000, 0)), Some(at(15_000)), "side by side");
        assert_eq!(later(13_000, 11_100, signs(13_000, 0)), None, "overtaken");
        assert_eq!(later(13_000, 9000, signs(10_900, 13_000)), None, "nothing comes");
        assert_eq!(later(39_000, 9000, signs(38_900, 0)), Some(at(40_000)));
        assert_eq!(later(40_000, 9000, signs(39_900, 0)), None, "for ever");
        let sends = call.later(at(13_000), false, at(9000), signs(0, 12_000));
        assert_eq!(sends, Some(at(14_000)), "what it sends is taken");
    }
}
