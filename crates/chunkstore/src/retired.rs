//! [`RetiredPlaces`]: places that nothing refers to any more, in the order in which they become free. Guarantees: what the slots among them hold is
//! known without a walk, for each update asks for the room of the disk, and a mass removal retires thousands. Must never: give out one that is not the first.

use crate::slots::bytes_of;
use std::collections::VecDeque;

/// A place that nothing refers to any more, not free yet.
pub(crate) struct Retired {
    /// The batch that superseded it; it must be durable first.
    pub lsn: u64,
    /// All who entered before must have left.
    pub epoch: u64,
    pub place: RetiredPlace,
}

pub(crate) enum RetiredPlace {
    Slot(u8, u32),
    Segment(u64),
}

impl Retired {
    /// Bytes of the slot; 0 for a log segment.
    fn slot_bytes(&self) -> u64 {
        match self.place {
            RetiredPlace::Slot(class, _) => bytes_of(class),
            RetiredPlace::Segment(_) => 0,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct RetiredPlaces {
    queue: VecDeque<Retired>,
    slot_bytes: u64,
}

impl RetiredPlaces {
    /// Adds places that are superseded by the same batch, at the same time.
    pub fn retire(&mut self, lsn: u64, epoch: u64, places: impl Iterator<Item = RetiredPlace>) {
        for place in places {
            let retired = Retired { lsn, epoch, place };
            self.slot_bytes += retired.slot_bytes();
            self.queue.push_back(retired);
        }
    }
    /// Takes the first one, if it is free now.
    pub fn take_if(&mut self, free: impl FnOnce(&Retired) -> bool) -> Option<RetiredPlace> {
        if !free(self.queue.front()?) {
            return None;
        }
        let first = self.queue.pop_front()?;
        self.slot_bytes -= first.slot_bytes();
        Some(first.place)
    }
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
    /// Bytes of all slots among them.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_slots_hold_is_counted_on_all_ways() {
        let mut r = RetiredPlaces::default();
        r.retire(1, 1, [RetiredPlace::Slot(0, 1), RetiredPlace::Segment(7)].into_iter());
        r.retire(2, 1, [RetiredPlace::Slot(2, 1)].into_iter());
        assert_eq!(r.slot_bytes(), bytes_of(0) + bytes_of(2));
        assert!(r.take_if(|_| false).is_none());
        assert!(matches!(r.take_if(|r| r.lsn == 1), Some(RetiredPlace::Slot(0, 1))));
        assert_eq!(r.slot_bytes(), bytes_of(2));
        assert!(matches!(r.take_if(|r| r.lsn == 1), Some(RetiredPlace::Segment(7))));
        assert!(r.take_if(|r| r.lsn == 1).is_none() && !r.is_empty());
        r.clear();
        assert!(r.is_empty() && r.slot_bytes() == 0 && r.take_if(|_| true).is_none());
    }
}
