//! Directories in which clients hold each other up: names there are not leased for a while. Pure.
//!
//! A kernel drops a name only when nothing else is changing the directory on its machine. So two clients that both change a directory, and
//! each wait for the other to drop a name, wait until a lease ends. Once is enough: without leases nobody has to be waited for, and none are given
//! as long as the two go on.

use glowfs_rt::{Duration, Instant};
use glowfs_types::{ClientId, InodeId};
use std::collections::BTreeMap;

/// A wait for another client's kernel that took so long is one in which it was held up.
pub const HELD_UP: Duration = Duration::from_millis(100);
/// For how long names are not leased after the last change of somebody else's: at first, and at the longest.
const FIRST: Duration = Duration::from_secs(4);
const LONGEST: Duration = Duration::from_secs(64);
/// Directories that are remembered; of more than that, none are added.
const DIRECTORIES_MAX: usize = 1 << 16;

/// See the module.
#[derive(Default)]
pub struct Fought(BTreeMap<InodeId, Fight>);

struct Fight {
    until: Instant,
    length: Duration,
    /// Who changed names last.
    last: Option<ClientId>,
}

impl Fought {
    /// Clients held each other up in the directory.
    pub fn note(&mut self, dir: InodeId, now: Instant) {
        if self.0.len() >= DIRECTORIES_MAX {
            self.0.retain(|_, f| f.remembered(now));
        }
        if self.0.len() >= DIRECTORIES_MAX && !self.0.contains_key(&dir) {
            return;
        }
        let length = match self.0.get(&dir) {
            // Several that were held up at the same time.
            Some(f) if f.until > now => return,
            Some(f) if f.remembered(now) => (f.length * 2).min(LONGEST),
            _ => FIRST,
        };
        self.0.insert(dir, Fight { until: now + length, length, last: None });
    }

    /// A client changes names in the directory.
    pub fn changed(&mut self, dir: InodeId, by: ClientId, now: Instant) {
        if let Some(f) = self.0.get_mut(&dir)
            && f.until > now
            && f.last.replace(by) != Some(by)
        {
            f.until = now + f.length;
        }
    }

    /// Whether names in it may not be leased.
    pub fn has(&self, dir: InodeId, now: Instant) -> bool {
        self.0.get(&dir).is_some_and(|f| f.until > now)
    }
}

impl Fight {
    /// Whether the next one would be taken for its continuation.
    fn remembered(&self, now: Instant) -> bool {
        self.until + self.length > now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: InodeId = InodeId(7);
    fn at(secs: u64) -> Instant {
        Instant(0) + Duration::from_secs(secs)
    }

    #[test]
    fn who_goes_on_fighting_waits_longer() {
        let mut f = Fought::default();
        assert!(!f.has(D, at(10)));
        f.note(D, at(10));
        f.note(D, at(11));
        assert!(f.has(D, at(13)) && !f.has(D, at(14)) && !f.has(InodeId(8), at(13)));
        // Again, soon after: for 8 s.
        f.note(D, at(15));
        assert!(f.has(D, at(22)) && !f.has(D, at(23)));
        // Long after: from the beginning.
        f.note(D, at(100));
        assert!(f.has(D, at(103)) && !f.has(D, at(104)));
        let mut now = at(1000);
        for _ in 0..10 {
            f.note(D, now);
            now = f.0[&D].until;
        }
        assert_eq!(f.0[&D].length, LONGEST);
    }

    #[test]
    fn it_goes_on_while_clients_take_turns() {
        let mut f = Fought::default();
        f.changed(D, ClientId(1), at(1));
        assert!(!f.has(D, at(1)));
        f.note(D, at(10));
        f.changed(D, ClientId(1), at(11));
        f.changed(D, ClientId(2), at(13));
        assert!(f.has(D, at(16)));
        // One alone: to the end.
        for s in 13..17 {
            f.changed(D, ClientId(2), at(s));
        }
        assert!(!f.has(D, at(17)));
        f.changed(D, ClientId(1), at(18));
        assert!(!f.has(D, at(18)));
    }

    #[test]
    fn it_is_bounded() {
        let mut f = Fought::default();
        for i in 0..=DIRECTORIES_MAX as u64 {
            f.note(InodeId(i), at(1));
        }
        assert_eq!(f.0.len(), DIRECTORIES_MAX);
        assert!(!f.has(InodeId(DIRECTORIES_MAX as u64), at(2)));
        f.note(D, at(100));
        assert_eq!(f.0.len(), 1);
    }
}
