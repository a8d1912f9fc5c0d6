//! [`LockTable`]: the locks of one file, as Linux has them. Pure.
//!
//! flock and locks of byte ranges do not see each other. An owner never stands in its own way; of what it locks again, or gives back, the
//! old part is cut out. Adjacent ranges of one kind are one.

use glowfs_types::wire::lock::{Lock, LockHolder, LockWish};
use glowfs_types::{ClientId, Error, RequestId, Result, Status};
use minicbor::{Decode, Encode};

/// The greatest number of locks of one file.
pub const LOCKS_MAX: usize = 2048;

/// A lock that is held.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Held {
    /// The client that holds it,
    #[n(0)]
    pub client: ClientId,
    /// and which owner of that client.
    #[n(1)]
    pub owner: u64,
    /// flock.
    #[n(2)]
    pub whole: bool,
    /// For writing.
    #[n(3)]
    pub exclusive: bool,
    /// The first byte.
    #[n(4)]
    pub start: u64,
    /// The last byte.
    #[n(5)]
    pub end: u64,
    /// The process.
    #[n(6)]
    pub pid: u32,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct LockTable {
    #[n(0)]
    locks: Vec<Held>,
    /// Who decides where the end of the file is.
    #[n(1)]
    pub(crate) append: Option<AppendRight>,
}

/// The right to append, as it was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct AppendRight {
    /// The client that has it.
    #[n(0)]
    pub client: ClientId,
    /// The name of this grant.
    #[n(1)]
    pub grant: RequestId,
}

impl Held {
    fn of(q: &Lock) -> Self {
        Self {
            client: q.caller.client,
            owner: q.owner,
            whole: q.whole,
            exclusive: q.wish == LockWish::Exclusive,
            start: q.start,
            end: q.end,
            pid: q.pid,
        }
    }
    fn is_of(&self, other: &Self) -> bool {
        (self.client, self.owner, self.whole) == (other.client, other.owner, other.whole)
    }
    fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
    /// What others are shown of it.
    pub fn holder(&self) -> LockHolder {
        let Self { client, pid, exclusive, start, end, .. } = *self;
        LockHolder { client, pid, exclusive, start, end }
    }
}

impl LockTable {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.append.is_none()
    }
    /// Everybody who holds something, each once.
    pub(crate) fn clients(&self) -> std::collections::BTreeSet<ClientId> {
        let append = self.append.map(|a| a.client);
        self.locks.iter().map(|l| l.client).chain(append).collect()
    }
    /// Whether a client holds something.
    pub fn has(&self, client: ClientId) -> bool {
        self.has_locks(client) || self.append.is_some_and(|a| a.client == client)
    }
    /// Whether a client has a lock.
    pub(crate) fn has_locks(&self, client: ClientId) -> bool {
        self.locks.iter().any(|l| l.client == client)
    }
    /// What stands in the way of a lock.
    pub fn conflicts(&self, q: &Lock) -> impl Iterator<Item = &Held> {
        let want = Held::of(q);
        let wants = matches!(q.wish, LockWish::Shared | LockWish::Exclusive);
        self.locks.iter().filter(move |l| {
            let against = l.whole == want.whole && !l.is_of(&want);
            wants && against && l.overlaps(&want) && (l.exclusive || want.exclusive)
        })
    }
    /// The one of them that comes first in the file, as F_GETLK is to name it.
    pub fn first_conflict(&self, q: &Lock) -> Option<&Held> {
        self.conflicts(q).min_by_key(|l| (l.start, l.end))
    }
    /// Whether its owner has all that a request asks for. Who gives something back asks for nothing.
    pub(crate) fn holds(&self, q: &Lock) -> bool {
        let want = Held::of(q);
        let asks = matches!(q.wish, LockWish::Shared | LockWish::Exclusive);
        // Those of one kind that touch are one, so one lock has it all or none has.
        let has = |l: &Held| l.is_of(&want) && l.start <= want.start && want.end <= l.end;
        !asks || self.locks.iter().any(|l| has(l) && l.exclusive == want.exclusive)
    }
    /// Grants a lock that has no conflicts, or gives one back. True if others may get now what they were refused before.
    pub fn apply(&mut self, q: &Lock) -> Result<bool> {
        let want = Held::of(q);
        let (mut kept, mut weaker) = (Vec::with_capacity(self.locks.len() + 2), false);
        for l in self.locks.drain(..) {
            if !l.is_of(&want) || !l.overlaps(&want) {
                kept.push(l);
                continue;
            }
            weaker |= q.wish == LockWish::Release || (l.exclusive && !want.exclusive);
            if l.start < want.start {
                kept.push(Held { end: want.start - 1, ..l.clone() });
            }
            if l.end > want.end {
                kept.push(Held { start: want.end + 1, ..l });
            }
        }
        if q.wish != LockWish::Release {
            join(&mut kept, want);
        }
        if kept.len() > LOCKS_MAX {
            let e = format!("a file has at most {LOCKS_MAX} locks");
            return Err(Error::new(Status::NoLocks, e));
        }
        self.locks = kept;
        Ok(weaker)
    }
    /// Takes all that a client holds away. True if it had anything.
    pub fn drop_client(&mut self, client: ClientId) -> bool {
        let had = self.has(client);
        self.locks.retain(|l| l.client != client);
        self.append = self.append.filter(|a| a.client != client);
        had
    }
}

/// Adds a lock, one with those of its kind that it touches.
fn join(locks: &mut Vec<Held>, mut new: Held) {
    locks.retain(|l| {
        let near = l.start <= new.end.saturating_add(1) && new.start <= l.end.saturating_add(1);
        let same = l.is_of(&new) && l.exclusive == new.exclusive && near;
        if same {
            (new.start, new.end) = (new.start.min(l.start), new.end.max(l.end));
        }
        !same
    });
    locks.push(new);
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::wire::meta::Caller;
    use proptest::prelude::*;

    fn ask(client: u128, owner: u64, wish: LockWish, start: u64, end: u64) -> Lock {
        let caller = Caller { client: ClientId(client), ..Caller::default() };
        Lock { caller, owner, wish, start, end, ..Lock::default() }
    }

    #[test]
    fn neighbours_become_one_and_holes_split() {
        let mut t = LockTable::default();
        for (a, b) in [(0, 9), (20, 29), (10, 19)] {
            t.apply(&ask(1, 1, LockWish::Exclusive, a, b)).expect("lock");
        }
        assert_eq!(t.locks.len(), 1);
        assert!(t.apply(&ask(1, 1, LockWish::Release, 5, 24)).expect("unlock"));
        let ranges: Vec<_> = t.locks.iter().map(|l| (l.start, l.end)).collect();
        assert_eq!(ranges, [(0, 4), (25, 29)]);
        assert!(!t.apply(&ask(1, 1, LockWish::Release, 5, 24)).expect("nothing there"));
        assert!(t.apply(&ask(1, 1, LockWish::Shared, 0, u64::MAX)).expect("weaker"));
        assert_eq!((t.locks.len(), t.locks[0].end), (1, u64::MAX));
    }

    #[test]
    fn flock_and_ranges_do_not_see_each_other() {
        let mut t = LockTable::default();
        let flock = Lock { whole: true, ..ask(1, 1, LockWish::Exclusive, 0, u64::MAX) };
        t.apply(&flock).expect("flock");
        assert_eq!(t.conflicts(&ask(2, 1, LockWish::Exclusive, 0, 5)).count(), 0);
        assert_eq!(t.conflicts(&Lock { owner: 2, ..flock.clone() }).count(), 1);
        assert!(t.drop_client(ClientId(1)) && t.is_empty());
    }

    #[test]
    fn of_several_locks_in_the_way_the_first_in_the_file_is_named() {
        let mut t = LockTable::default();
        for (owner, start) in [(1, 40), (1, 20), (2, 5), (1, 60)] {
            t.apply(&ask(1, owner, LockWish::Exclusive, start, start + 9)).expect("lock");
        }
        let first = |owner, start| {
            let q = ask(3, owner, LockWish::Shared, start, u64::MAX);
            t.first_conflict(&q).map(|l| l.start)
        };
        assert_eq!(
            [0, 15, 30, 50, 70].map(|at| first(9, at)),
            [Some(5), Some(20), Some(40), Some(60), None]
        );
    }

    proptest! {
        /// Against an array of bytes, each with its owners.
        #[test]
        fn as_if_each_byte_had_its_own_lock(ops in prop::collection::vec((0u64..3, 0u8..3, 0u64..12, 0u64..12), 1..60)) {
            let mut t = LockTable::default();
            // 0 none, 1 shared, 2 exclusive; by owner and byte.
            let mut bytes = [[0u8; 12]; 3];
            for (owner, wish, a, b) in ops {
                let (start, end) = (a.min(b), a.max(b));
                let wish = [LockWish::Shared, LockWish::Exclusive, LockWish::Release][wish as usize];
                let q = ask(1, owner, wish, start, end);
                let range = start as usize..=end as usize;
                let want = match wish { LockWish::Shared => 1, LockWish::Exclusive => 2, _ => 0 };
                let clash = (0..3).filter(|o| *o != owner as usize)
                    .any(|o| bytes[o][range.clone()].iter().any(|h| want > 0 && *h > 0 && (*h == 2 || want == 2)));
                prop_assert_eq!(t.conflicts(&q).next().is_some(), clash);
                if !clash {
                    let had = bytes[owner as usize][range.clone()].iter().any(|h| *h > want);
                    prop_assert_eq!(t.apply(&q).expect("few locks"), had);
                    bytes[owner as usize][range].fill(want);
                }
                let mut seen = [[0u8; 12]; 3];
                for l in &t.locks {
                    for b in l.start..=l.end {
                        prop_assert_eq!(std::mem::replace(&mut seen[l.owner as usize][b as usize], 1 + u8::from(l.exclusive)), 0);
                    }
                }
                prop_assert_eq!(seen, bytes);
            }
        }
    }
}
