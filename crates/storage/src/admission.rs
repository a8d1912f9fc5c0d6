//! Admission: a bound on requests and bytes in work, so that past the knee the rest is refused at once.
//!
//! What is in work counts for the store that it waits for. Of several stores none may hold more than it leaves free: a disk that answers
//! nothing gets at most half, two such a third each, and the node's other disks go on; a disk that is merely busy finds half of it at once.
//! A node's only store may have all. Guarantees: of each store one request is let in, whatever its size; a store that failed holds nothing any
//! more, however long what was begun there takes to end.
//!
//! What is forwarded has bounds of its own, for each rank: by how many members of its chain it has come. A request waits only for such of the
//! next rank, and those of the last one for nobody; so nodes that are full of updates for each other, in pairs or in rings, go on. Each rank has its own
//! connection between two nodes, too (`lanes.rs`), which has bounds of its own.

use glowfs_chunkstore::Store;
use glowfs_rt::sync::Semaphore;
use glowfs_types::{Error, Incarnation, Result, Status, StoreId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// Requests, and bytes of them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Load {
    bytes: u64,
    ops: u64,
}

impl Load {
    fn plus(self, more: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(more.bytes),
            ops: self.ops.saturating_add(more.ops),
        }
    }
    fn minus(self, less: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(less.bytes),
            ops: self.ops.saturating_sub(less.ops),
        }
    }
    fn within(self, max: Self) -> bool {
        self.bytes <= max.bytes && self.ops <= max.ops
    }
}

/// Ranks that are told apart: 0 is what enters here; chains with more members that take updates than that do not exist
/// (`glowfs_cluster::MEMBERS_MAX`).
const RANKS: usize = 32;
/// Of what is forwarded each rank may have so many times the bytes that requests of clients may: while all nodes send as much as they may, each
/// gets that much on average, and now and then more.
const FORWARD_BYTES_TIMES: u64 = 2;
/// Forwarded requests of one rank in work, at most: the log of a disk must be able to hold those of all ranks
/// (`INFLIGHT_OPS_MAX` of clients, and these of up to 16 replicas).
const FORWARD_OPS_MAX: u64 = 4096;

/// What is held, by rank.
type Ranks = [Cell<Load>; RANKS];

/// One life of a store, with its lot.
type Life = (StoreId, Incarnation, u32);

/// Reads that wait for the word of another node may hold one part in so many.
const WAITING_PART: u64 = 4;

/// What is in work now, and how much may be.
pub(crate) struct Admission {
    held: Ranks,
    /// Of rank 0, and of each other one.
    max: Load,
    forward_max: Load,
    /// There is one disk.
    alone: bool,
    /// Bytes of [`Share::whole`].
    pub whole_max: usize,
    shares: RefCell<BTreeMap<Life, Weak<Share>>>,
}

/// What one store has of it.
pub(crate) struct Share {
    admission: Rc<Admission>,
    held: Ranks,
    /// The store failed.
    written_off: Cell<bool>,
    /// Of what is in work, what waits for other nodes before it is answered.
    waiting: Cell<Load>,
    /// Bytes of whole chunks on their way to successors that are brought up to date ([`crate::whole`]).
    pub whole: Semaphore,
}

/// A request in work; gives its part back when dropped.
pub(crate) struct Admitted {
    share: Rc<Share>,
    rank: usize,
    bytes: u64,
}

/// A request in work that waits for other nodes.
pub(crate) struct Waits {
    share: Rc<Share>,
    bytes: u64,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let waiting = &self.share.waiting;
        waiting.set(waiting.get().minus(Load { bytes: self.bytes, ops: 1 }));
    }
}

impl Admission {
    pub fn new(bytes_max: u64, ops_max: u64, disks: usize) -> Rc<Self> {
        Rc::new(Self {
            held: Ranks::default(),
            max: Load { bytes: bytes_max, ops: ops_max },
            forward_max: Load {
                bytes: bytes_max.saturating_mul(FORWARD_BYTES_TIMES),
                ops: ops_max.min(FORWARD_OPS_MAX),
            },
            alone: disks <= 1,
            whole_max: usize::try_from(bytes_max).unwrap_or(usize::MAX) / disks.max(1),
            shares: RefCell::default(),
        })
    }
    /// The share of a store in this life of it.
    pub fn share_of(self: &Rc<Self>, store: &Store) -> Rc<Share> {
        self.share((store.id(), store.incarnation(), store.nonce()))
    }
    fn share(self: &Rc<Self>, life: Life) -> Rc<Share> {
        let mut shares = self.shares.borrow_mut();
        if let Some(known) = shares.get(&life).and_then(Weak::upgrade) {
            return known;
        }
        let (held, written_off, waiting) = Default::default();
        let whole = Semaphore::new(self.whole_max);
        let share = Rc::new(Share { admission: self.clone(), held, written_off, waiting, whole });
        shares.insert(life, Rc::downgrade(&share));
        share
    }
    /// The store failed: nothing of what it was asked need ever end, so none of it is counted any more.
    pub fn write_off(&self, store: &Store) {
        self.write_off_life((store.id(), store.incarnation(), store.nonce()));
    }
    fn write_off_life(&self, life: Life) {
        if let Some(share) = self.shares.borrow_mut().remove(&life).and_then(|s| s.upgrade()) {
            share.written_off.set(true);
            for (all, mine) in self.held.iter().zip(&share.held) {
                all.set(all.get().minus(mine.take()));
            }
        }
    }
    /// Requests in work.
    pub fn ops(&self) -> u64 {
        self.held.iter().map(|h| h.get().ops).sum()
    }
    /// Those that entered the cluster here.
    pub fn client_ops(&self) -> u64 {
        self.held[0].get().ops
    }
}

impl Share {
    /// Takes a request of so many bytes in, or says `Overloaded`. One request is always let in, whatever its size.
    pub fn admit(self: &Rc<Self>, bytes: u64) -> Result<Admitted> {
        self.take(bytes, 0)
    }
    /// Lets a request that is in work wait for other nodes, as long as those that do hold no more than that part of what this disk can have just now: what it can do by itself must
    /// not be refused for a disk of another node. One always may.
    pub fn wait_for_others(self: &Rc<Self>, bytes: u64) -> Option<Waits> {
        let max = self.may_hold();
        let max = Load { bytes: max.bytes / WAITING_PART, ops: max.ops / WAITING_PART };
        let all = self.waiting.get().plus(Load { bytes, ops: 1 });
        if all.ops > 1 && !all.within(max) {
            return None;
        }
        self.waiting.set(all);
        Some(Waits { share: self.clone(), bytes })
    }
    /// How much of what enters here may be in work on this disk, by what is on the others: as `take` lets it in.
    fn may_hold(&self) -> Load {
        let a = &self.admission;
        let left = a.max.minus(a.held[0].get().minus(self.held[0].get()));
        if a.alone { a.max } else { Load { bytes: left.bytes / 2, ops: left.ops / 2 } }
    }
    /// [`Share::admit`] for an update that was forwarded to a member of that rank (at least 1).
    pub fn admit_forward(self: &Rc<Self>, bytes: u64, rank: usize) -> Result<Admitted> {
        self.take(bytes, rank.clamp(1, RANKS - 1))
    }
    fn take(self: &Rc<Self>, bytes: u64, rank: usize) -> Result<Admitted> {
        let a = &self.admission;
        let max = if rank == 0 { a.max } else { a.forward_max };
        let (held, own) = (&a.held[rank], &self.held[rank]);
        let more = Load { bytes, ops: 1 };
        let (all, mine) = (held.get().plus(more), own.get().plus(more));
        // Who still comes to a store that failed is told so at once, or has a time of its own.
        if !self.written_off.get() {
            let fits = all.within(max) && (a.alone || mine.within(max.minus(all)));
            if mine.ops > 1 && !fits {
                return Err(self.refusal(rank));
            }
            held.set(all);
            own.set(mine);
        }
        Ok(Admitted { share: self.clone(), rank, bytes })
    }
    fn refusal(&self, rank: usize) -> Error {
        let (mine, all) = (self.held[rank].get(), self.admission.held[rank].get());
        let e = format!(
            "{} requests of rank {rank} with {} bytes are in work on this disk, {} with {} on all; retry after a pause",
            mine.ops, mine.bytes, all.ops, all.bytes
        );
        Error::new(Status::Overloaded, e)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let (share, less) = (&self.share, Load { bytes: self.bytes, ops: 1 });
        if !share.written_off.get() {
            for held in [&share.held[self.rank], &share.admission.held[self.rank]] {
                held.set(held.get().minus(less));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(store: u128, incarnation: u64) -> Life {
        (StoreId(store), Incarnation(incarnation), 1)
    }
    fn refused(share: &Rc<Share>, bytes: u64) -> bool {
        share.admit(bytes).is_err_and(|e| e.status == Status::Overloaded)
    }
    /// Takes requests of so many bytes until one is refused.
    fn fill(share: &Rc<Share>, bytes: u64) -> Vec<Admitted> {
        std::iter::from_fn(|| share.admit(bytes).ok()).collect()
    }

    #[test]
    fn those_who_wait_for_others_leave_room_for_those_who_do_not() {
        let admission = Admission::new(1 << 20, 100, 1);
        let share = admission.share(life(1, 1));
        let large = share.wait_for_others(1 << 19).expect("one always may");
        assert!(share.wait_for_others(1).is_none(), "it holds more than that part");
        drop(large);
        let many: Vec<_> = std::iter::from_fn(|| share.wait_for_others(1 << 12)).collect();
        assert_eq!(many.len(), 25);
        drop(many);
        assert!(share.wait_for_others(1 << 12).is_some());
    }

    /// Each of several disks may have all that are busy with it leave free, so all of them wait for a node that is slow.
    #[test]
    fn those_who_wait_on_several_disks_leave_room_on_each() {
        let admission = Admission::new(1 << 30, 400, 4);
        let shares = [1, 2, 3, 4].map(|store| admission.share(life(store, 1)));
        let mut waiting = [0; 4];
        let mut all = Vec::new();
        loop {
            let before = all.len();
            for (share, waiting) in shares.iter().zip(&mut waiting) {
                let Ok(admitted) = share.admit(4096) else { continue };
                if let Some(waits) = share.wait_for_others(4096) {
                    *waiting += 1;
                    all.push((admitted, waits));
                }
            }
            if all.len() == before {
                break;
            }
        }
        for (share, waiting) in shares.iter().zip(waiting) {
            let free = fill(share, 4096).len();
            assert!(waiting > 20, "{waiting} may wait");
            assert!(free >= 2 * waiting, "{waiting} wait, and there is room for {free}");
        }
    }

    #[test]
    fn bounds_hold_and_room_comes_back() {
        let a = Admission::new(100, 2, 1);
        let only = a.share(life(1, 1));
        let first = only.admit(500).expect("one is always let in");
        assert!(refused(&only, 1));
        drop(first);
        let _one = only.admit(60).expect("room");
        assert!(refused(&only, 60), "bytes");
        let _two = only.admit(40).expect("all of it is the only store's");
        assert!(refused(&only, 0), "requests");
        assert_eq!(a.ops(), 2);
    }

    #[test]
    fn a_store_leaves_as_much_free_as_it_holds() {
        for (bytes, requests) in [(10, 5), (0, 20)] {
            let a = Admission::new(100, 40, 3);
            let [one, two, three] = [1, 2, 3].map(|s| a.share(life(s, 1)));
            // 50 of 100 bytes, or 20 of 40 requests.
            let held = fill(&one, bytes);
            assert_eq!(held.len(), requests, "half of it");
            let more = fill(&two, bytes);
            assert_eq!(more.len(), requests / 2, "half of what is left");
            assert!(!fill(&three, bytes).is_empty(), "and there is more");
            let large = three.admit(1000).expect("one is always let in");
            assert!(refused(&three, 0));
            drop((held, large));
            assert!(fill(&one, bytes).len() > 2, "room comes back");
        }
    }

    fn forwards(share: &Rc<Share>, bytes: u64, rank: usize) -> Vec<Admitted> {
        std::iter::from_fn(|| share.admit_forward(bytes, rank).ok()).collect()
    }

    #[test]
    fn what_is_forwarded_has_bounds_of_its_own_for_each_rank() {
        let a = Admission::new(100, 8, 1);
        let only = a.share(life(1, 1));
        let clients = fill(&only, 0);
        let first = forwards(&only, 10, 1);
        assert_eq!((clients.len(), first.len(), a.ops()), (8, 8, 16), "whatever clients fill");
        let second = forwards(&only, 50, 2);
        assert_eq!(second.len() as u64, FORWARD_BYTES_TIMES * 2, "and bytes");
        assert_eq!(forwards(&only, 1000, 3).len(), 1, "one is always let in");
        drop(first);
        assert_eq!(forwards(&only, 0, 1).len(), 8, "room comes back");
        assert!(refused(&only, 0) && !forwards(&only, 0, 1000).is_empty());
    }

    #[test]
    fn a_disk_leaves_room_for_what_is_forwarded_to_others() {
        let a = Admission::new(100, 8, 2);
        let [one, two] = [1, 2].map(|s| a.share(life(s, 1)));
        let held = forwards(&one, 0, 1);
        assert_eq!((held.len(), forwards(&two, 0, 1).len()), (4, 2));
        a.write_off_life(life(1, 1));
        assert_eq!(a.ops(), 0);
        drop(held);
        assert_eq!((a.ops(), forwards(&two, 0, 1).len()), (0, 4));
    }

    #[test]
    fn what_a_failed_store_holds_is_written_off_once() {
        let a = Admission::new(100, 100, 2);
        let (hung, other) = (a.share(life(1, 1)), a.share(life(2, 1)));
        let stuck = fill(&hung, 10);
        let _held = other.admit(20).expect("room");
        a.write_off_life(life(1, 1));
        assert_eq!((a.ops(), a.held[0].get().bytes), (1, 20));
        // Who still comes is not counted, nor are those that end after all.
        let late = hung.admit(1000).expect("answered without the disk");
        assert_eq!(a.ops(), 1);
        drop((stuck, late));
        assert_eq!(
            (a.held[0].get(), other.held[0].get()),
            (other.held[0].get(), Load { bytes: 20, ops: 1 })
        );
        a.write_off_life(life(1, 1));
        assert_eq!(a.ops(), 1);
        // The store's next life begins with nothing.
        let again = a.share(life(1, 2));
        let _one = again.admit(10).expect("room");
        drop(hung);
        assert_eq!(a.ops(), 2);
    }
}
