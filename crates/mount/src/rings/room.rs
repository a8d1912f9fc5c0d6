//! [`Room`]: the bounds of what rings and buffers cost this process. Their descriptors are fetched on other threads, and meanwhile more may be
//! asked for; so what is being made counts from the beginning ([`Reserved`]).

use super::Rings;
use super::session::Session;
use glowfs_usrbio::ring_bytes;
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
/// Bytes of all rings of a mount together. They are there when a ring is made, but the application may give them back, and then the daemon makes them anew,
/// as its own, when it looks at the ring.
const RING_BYTES_MAX: u64 = 4 << 30;

/// See the module.
pub(super) struct Room {
    /// Descriptors that rings and buffers of all sessions may have together.
    descriptors_max: u64,
    /// Descriptors of those that are being made, and bytes of rings.
    descriptors: Cell<u64>,
    ring_bytes: Cell<u64>,
}

/// What a ring or buffer takes that is being made; given back when dropped. (Then it is there and counts by itself, or it was refused.)
pub(super) struct Reserved<'a> {
    room: &'a Room,
    descriptors: u64,
    ring_bytes: u64,
    /// How many of its kind are being made in its session.
    of_session: &'a Cell<usize>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let Self { room, descriptors, ring_bytes, of_session } = self;
        room.descriptors.set(room.descriptors.get() - *descriptors);
        room.ring_bytes.set(room.ring_bytes.get() - *ring_bytes);
        of_session.set(of_session.get() - 1);
    }
}

impl Room {
    /// For a process that may have so many descriptors.
    pub fn new(descriptors: u64) -> Self {
        Self {
            descriptors_max: descriptors.saturating_sub(DESCRIPTORS_KEPT).max(descriptors / 2),
            descriptors: Cell::new(0),
            ring_bytes: Cell::new(0),
        }
    }
}

impl Rings {
    /// Room for a buffer; None: there is none.
    pub(super) fn reserve_buffer<'a>(&'a self, session: &'a Session) -> Option<Reserved<'a>> {
        let of_session = &session.buffers_coming;
        let there = session.buffers.borrow().len() + of_session.get() < BUFFERS_MAX
            && self.has_descriptors(BUFFER_DESCRIPTORS);
        there.then(|| self.reserve(BUFFER_DESCRIPTORS, 0, of_session))
    }
    /// Room for a ring of so many bytes; None: there is none.
    pub(super) fn reserve_ring<'a>(
        &'a self,
        session: &'a Session,
        bytes: usize,
    ) -> Option<Reserved<'a>> {
        let of_session = &session.rings_coming;
        let there = session.rings.borrow().len() + of_session.get() < RINGS_MAX
            && self.has_descriptors(RING_DESCRIPTORS)
            && self.has_ring_bytes(bytes as u64);
        there.then(|| self.reserve(RING_DESCRIPTORS, bytes as u64, of_session))
    }
    fn reserve<'a>(
        &'a self,
        descriptors: u64,
        ring_bytes: u64,
        of_session: &'a Cell<usize>,
    ) -> Reserved<'a> {
        let room = &self.room;
        room.descriptors.set(room.descriptors.get() + descriptors);
        room.ring_bytes.set(room.ring_bytes.get() + ring_bytes);
        of_session.set(of_session.get() + 1);
        Reserved { room, descriptors, ring_bytes, of_session }
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
    /// Whether rings may take so many more bytes.
    fn has_ring_bytes(&self, more: u64) -> bool {
        let of = |s: &Rc<Session>| {
            let rings = s.rings.borrow();
            rings.values().map(|r| ring_bytes(r.consumer.entries()) as u64).sum::<u64>()
        };
        let used =
            self.room.ring_bytes.get() + self.sessions.borrow().values().map(of).sum::<u64>();
        let there = used + more <= RING_BYTES_MAX;
        if !there {
            tracing::warn!(used, more, limit = RING_BYTES_MAX, "a ring is refused");
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_rings_is_bounded_also_while_they_are_made() {
        let rings = Rings::new(1 << 20);
        let session = Session::new(0, 0, rings.session_shares.take(0).unwrap());
        let bytes = ring_bytes(glowfs_usrbio::ENTRIES_MAX);
        let many = RING_BYTES_MAX as usize / bytes;
        let mut made: Vec<_> =
            std::iter::from_fn(|| rings.reserve_ring(&session, bytes)).take(many + 1).collect();
        assert_eq!(made.len(), many);
        made.pop();
        assert!(rings.reserve_ring(&session, bytes).is_some());
    }
}
