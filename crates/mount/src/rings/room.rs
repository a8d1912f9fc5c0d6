//! [`Room`]: the bounds of what rings and buffers cost this process. Their descriptors are fetched on other threads, and meanwhile more may be
//! asked for; so what is being made counts from the beginning ([`Taken`]). It counts until it is closed and unmapped.

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
/// Of the mappings that a process may have rings get one in so many. The others are for everything else (memory of this process's own, threads, windows of buffers):
/// without any it gets no memory, and ends.
const MAPPINGS_PART: u64 = 2;
/// Bytes of all rings of a mount together. They are there when a ring is made, but the application may give them back, and then the daemon makes them anew,
/// as its own, when it looks at the ring.
const RING_BYTES_MAX: u64 = 4 << 30;

/// See the module.
pub(super) struct Room {
    /// Descriptors that rings and buffers of all sessions may have together.
    descriptors_max: u64,
    /// Rings of all sessions: each is a mapping.
    rings_max: u64,
    used: Cell<Cost>,
}

/// What a ring or a buffer costs, or all of them.
#[derive(Clone, Copy, Default)]
struct Cost {
    descriptors: u64,
    rings: u64,
    ring_bytes: u64,
}

/// What a ring or buffer has of the room; given back when dropped.
pub(super) struct Taken {
    room: Rc<Room>,
    cost: Cost,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let (used, cost) = (self.room.used.get(), self.cost);
        self.room.used.set(Cost {
            descriptors: used.descriptors - cost.descriptors,
            rings: used.rings - cost.rings,
            ring_bytes: used.ring_bytes - cost.ring_bytes,
        });
    }
}

/// One that is being made: it counts in its session.
pub(super) struct Coming<'a>(&'a Cell<usize>);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Room {
    /// For a process that may have so many descriptors and mappings.
    pub fn new(descriptors: u64, mappings: u64) -> Rc<Self> {
        Rc::new(Self {
            descriptors_max: descriptors.saturating_sub(DESCRIPTORS_KEPT).max(descriptors / 2),
            rings_max: mappings / MAPPINGS_PART,
            used: Cell::default(),
        })
    }
    /// For tests of what has to have some.
    #[cfg(test)]
    pub fn nothing(self: &Rc<Self>) -> Taken {
        Taken { room: self.clone(), cost: Cost::default() }
    }
    /// Room for a buffer; None: there is none.
    pub fn for_buffer<'a>(self: &Rc<Self>, session: &'a Session) -> Option<(Taken, Coming<'a>)> {
        let coming = &session.buffers_coming;
        if session.buffers.borrow().len() + coming.get() >= BUFFERS_MAX {
            return None;
        }
        self.take(Cost { descriptors: BUFFER_DESCRIPTORS, ..Cost::default() }, coming)
    }
    /// Room for a ring of so many bytes; None: there is none.
    pub fn for_ring<'a>(
        self: &Rc<Self>,
        session: &'a Session,
        bytes: usize,
    ) -> Option<(Taken, Coming<'a>)> {
        let coming = &session.rings_coming;
        if session.rings.borrow().len() + coming.get() >= RINGS_MAX {
            return None;
        }
        let cost = Cost { descriptors: RING_DESCRIPTORS, rings: 1, ring_bytes: bytes as u64 };
        self.take(cost, coming)
    }
    fn take<'a>(
        self: &Rc<Self>,
        cost: Cost,
        coming: &'a Cell<usize>,
    ) -> Option<(Taken, Coming<'a>)> {
        let before = self.used.get();
        let used = Cost {
            descriptors: before.descriptors + cost.descriptors,
            rings: before.rings + cost.rings,
            ring_bytes: before.ring_bytes + cost.ring_bytes,
        };
        if let Some((what, limit)) = self.missing(used) {
            tracing::warn!(
                what,
                limit,
                "a ring or buffer is refused: it would be missing elsewhere"
            );
            return None;
        }
        self.used.set(used);
        coming.set(coming.get() + 1);
        Some((Taken { room: self.clone(), cost }, Coming(coming)))
    }
    /// Of what there is not so much.
    fn missing(&self, used: Cost) -> Option<(&'static str, u64)> {
        let bounds = [
            (
                used.descriptors,
                self.descriptors_max,
                "descriptors; raise the mount's limit (ulimit -Hn)",
            ),
            (used.rings, self.rings_max, "mappings; raise vm.max_map_count"),
            (used.ring_bytes, RING_BYTES_MAX, "memory of rings"),
        ];
        bounds.into_iter().find(|(used, most, _)| used > most).map(|(_, most, what)| (what, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rings::{Limits, Rings};
    use glowfs_usrbio::ring_bytes;

    fn rings(descriptors: u64, mappings: u64) -> Rings {
        Rings::new(Limits { descriptors, mappings, requests: 1024 })
    }
    fn session(rings: &Rings) -> Session {
        Session::new(0, 0, rings.session_shares.take(0).unwrap())
    }

    #[test]
    fn the_memory_of_rings_is_bounded_also_while_they_are_made() {
        let large = rings(1 << 20, 1 << 20);
        let session = session(&large);
        let bytes = ring_bytes(glowfs_usrbio::ENTRIES_MAX);
        let many = RING_BYTES_MAX as usize / bytes;
        let mut made: Vec<_> =
            std::iter::from_fn(|| large.room.for_ring(&session, bytes)).take(many + 1).collect();
        assert_eq!(made.len(), many);
        made.pop();
        assert!(large.room.for_ring(&session, bytes).is_some());
    }

    /// Of a process without any more mappings neither a thread nor memory can be had.
    #[test]
    fn rings_leave_mappings_and_descriptors_to_others() {
        let all_of = rings(1 << 20, 65_530);
        let sessions: Vec<_> = (0..4).map(|_| session(&all_of)).collect();
        let room = &all_of.room;
        let all = |s| std::iter::from_fn(move || room.for_ring(s, 4096).map(|(t, _)| t));
        let made: Vec<_> = sessions.iter().flat_map(all).take(65_530).collect();
        assert_eq!(made.len(), 65_530 / 2);
        assert!(all_of.room.for_buffer(&sessions[0]).is_some(), "which is no mapping");
        drop(made);
        let many: Vec<_> = sessions.iter().flat_map(all).take(20_000).collect();
        assert_eq!(many.len(), 20_000, "given back");
        let few = rings(3000, 65_530);
        let session = session(&few);
        let made = std::iter::from_fn(|| few.room.for_ring(&session, 4096));
        assert_eq!(made.take(3000).collect::<Vec<_>>().len(), 1500 / 2);
    }
}
