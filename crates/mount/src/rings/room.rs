//! [`Room`]: the bounds of what rings and buffers cost this process. Their descriptors are fetched on other threads, and meanwhile more may be
//! asked for; so what is being made counts from the beginning ([`Reserved`]).

use super::Rings;
use super::session::Session;
use std::cell::Cell;
use std::rc::Rc;

/// Buffers of a session.
const BUFFERS_MAX: usize = 4096;
/// Rings of a session.
const RINGS_MAX: usize = 16_384;
/// Descriptors that this process keeps for everything else: connections, files, logs. Rings and buffers get no more than what it may have
/// beyond that, or half if it may have less than twice this.
const DESCRIPTORS_KEPT: u64 = 2048;
/// Descriptors of a ring here: its memory and its doorbell.
const RING_DESCRIPTORS: u64 = 2;
/// Descriptors of a buffer here.
const BUFFER_DESCRIPTORS: u64 = 1;
/// Bytes of all buffers of a mount together: they cost addresses, of which the daemon needs some for itself, also where there is no memory
/// behind them yet. (A process has 128 TiB.)
const BUFFER_BYTES_MAX: u64 = 32 << 40;

/// See the module.
pub(super) struct Room {
    /// Descriptors that rings and buffers of all sessions may have together.
    descriptors_max: u64,
    /// Descriptors and bytes of addresses of those that are being made.
    descriptors: Cell<u64>,
    addresses: Cell<u64>,
}

/// What a ring or buffer takes that is being made; given back when dropped. (Then it is there and counts by itself, or it was refused.)
pub(super) struct Reserved<'a> {
    room: &'a Room,
    descriptors: u64,
    addresses: u64,
    /// How many of its kind are being made in its session.
    of_session: &'a Cell<usize>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let Self { room, descriptors, addresses, of_session } = self;
        room.descriptors.set(room.descriptors.get() - *descriptors);
        room.addresses.set(room.addresses.get() - *addresses);
        of_session.set(of_session.get() - 1);
    }
}

impl Room {
    /// For a process that may have so many descriptors.
    pub fn new(descriptors: u64) -> Self {
        Self {
            descriptors_max: descriptors.saturating_sub(DESCRIPTORS_KEPT).max(descriptors / 2),
            descriptors: Cell::new(0),
            addresses: Cell::new(0),
        }
    }
}

impl Rings {
    /// Room for a buffer of so many bytes; None: there is none.
    pub(super) fn reserve_buffer<'a>(
        &'a self,
        session: &'a Session,
        bytes: u64,
    ) -> Option<Reserved<'a>> {
        let of_session = &session.buffers_coming;
        let there = session.buffers.borrow().len() + of_session.get() < BUFFERS_MAX
            && self.has_descriptors(BUFFER_DESCRIPTORS)
            && self.has_addresses(bytes);
        there.then(|| self.reserve(BUFFER_DESCRIPTORS, bytes, of_session))
    }
    /// Room for a ring; None: there is none.
    pub(super) fn reserve_ring<'a>(&'a self, session: &'a Session) -> Option<Reserved<'a>> {
        let of_session = &session.rings_coming;
        let there = session.rings.borrow().len() + of_session.get() < RINGS_MAX
            && self.has_descriptors(RING_DESCRIPTORS);
        there.then(|| self.reserve(RING_DESCRIPTORS, 0, of_session))
    }
    fn reserve<'a>(
        &'a self,
        descriptors: u64,
        addresses: u64,
        of_session: &'a Cell<usize>,
    ) -> Reserved<'a> {
        let room = &self.room;
        room.descriptors.set(room.descriptors.get() + descriptors);
        room.addresses.set(room.addresses.get() + addresses);
        of_session.set(of_session.get() + 1);
        Reserved { room, descriptors, addresses, of_session }
    }

    /// Whether rings and buffers may take so many more descriptors: without any left, the mount could not even reach its cluster again.
    fn has_descriptors(&self, more: u64) -> bool {
        let of = |s: &Rc<Session>| {
            let (rings, buffers) = (s.rings.borrow().len(), s.buffers.borrow().len());
            rings as u64 * RING_DESCRIPTORS + buffers as u64 * BUFFER_DESCRIPTORS
        };
        let used =
            self.room.descriptors.get() + self.sessions.borrow().values().map(of).sum::<u64>();
        if used + more > self.room.descriptors_max {
            let limit = self.room.descriptors_max;
            tracing::warn!(
                used,
                limit,
                "a ring or buffer is refused: its descriptors would be missing elsewhere; raise the limit of descriptors of the mount (ulimit -Hn)"
            );
            return false;
        }
        true
    }
    /// Whether buffers may take so many more bytes of addresses.
    fn has_addresses(&self, more: u64) -> bool {
        let of = |s: &Rc<Session>| s.buffers.borrow().values().map(|b| b.region.len()).sum::<u64>();
        let used = self.room.addresses.get() + self.sessions.borrow().values().map(of).sum::<u64>();
        let there = more <= BUFFER_BYTES_MAX.saturating_sub(used);
        if !there {
            tracing::warn!(used, more, limit = BUFFER_BYTES_MAX, "a buffer is refused");
        }
        there
    }
}
