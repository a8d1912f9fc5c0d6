//! [`Census`]: counts names and sub-directories over all pages of a pass, to say who has to be looked at closely. Pure.
//!
//! What it says is a suspicion, never a finding: pages are of different moments.

use glowfs_types::InodeId;
use glowfs_types::wire::fsck::{FsckReply, InodeFact};
use glowfs_types::wire::meta::ROOT_INODE;
use std::collections::{BTreeMap, BTreeSet};

/// Inodes whose names are counted at a time.
pub const SLICE_INODES: u64 = 4 << 20;
/// Findings that are kept; more are counted. Mend these, then check again.
pub const FINDINGS_MAX: usize = 100_000;
/// Inodes that are looked at closely in one run.
const SUSPECTS_MAX: usize = 1 << 20;

/// A directory.
#[derive(Clone, Copy, Default)]
struct Dir {
    /// Its own record was seen.
    seen: bool,
    parent: InodeId,
    /// Sub-directories among its entries, less those that are recorded.
    subdirs: i64,
}

/// See the module.
pub struct Census {
    slice: u64,
    slices: u64,
    slice_max: u64,
    names: BTreeMap<InodeId, u32>,
    dirs: BTreeMap<InodeId, Dir>,
    suspects: BTreeSet<InodeId>,
    /// There were more suspects than are kept.
    pub more: bool,
}

impl Census {
    /// For a volume of about so many inodes.
    pub fn new(inodes: u64, slice_max: u64) -> Self {
        let slices = inodes / slice_max.max(1) + 1;
        Self {
            slice: 0,
            slices,
            slice_max: slice_max.max(1),
            names: BTreeMap::new(),
            dirs: BTreeMap::new(),
            suspects: BTreeSet::new(),
            more: false,
        }
    }
    /// Directories seen.
    pub fn directories(&self) -> u64 {
        self.dirs.values().filter(|d| d.seen).count() as u64
    }

    fn counts(&self, id: InodeId) -> bool {
        id.0 % self.slices == self.slice
    }

    /// A page. Entries come before inodes, inodes before what is recorded beside directories: that is the order of their keys.
    pub fn take(&mut self, page: &FsckReply) {
        for n in &page.names {
            if self.slice == 0 {
                if n.odd {
                    self.suspect(n.inode);
                }
                if n.dir {
                    self.dirs.entry(n.parent).or_default().subdirs += 1;
                }
            }
            if self.counts(n.inode) {
                let names = self.names.entry(n.inode).or_default();
                *names = names.saturating_add(1);
            }
        }
        self.shrink();
        for i in &page.inodes {
            self.inode(i);
        }
        if self.slice == 0 {
            for (dir, recorded) in &page.subdirs {
                let dir = self.dirs.entry(*dir).or_default();
                dir.subdirs = dir.subdirs.saturating_sub(*recorded);
            }
        }
    }

    /// The number of inodes was underestimated: fewer at a time. What was left out of a smaller slice is never in it, so it stays complete.
    fn shrink(&mut self) {
        while self.slice == 0 && self.names.len() as u64 > 2 * self.slice_max {
            self.slices *= 2;
            let slices = self.slices;
            self.names.retain(|id, _| id.0 % slices == 0);
        }
    }

    fn inode(&mut self, i: &InodeFact) {
        if self.slice == 0 && i.dir {
            let dir = self.dirs.entry(i.inode).or_default();
            (dir.seen, dir.parent) = (true, i.parent);
        }
        if !self.counts(i.inode) {
            return;
        }
        let names = self.names.remove(&i.inode).unwrap_or(0);
        let root = i.inode == ROOT_INODE;
        let wrong = match (i.dir, root) {
            (_, true) => names != 0 || i.nlink != 1 || i.parent != ROOT_INODE,
            (true, _) => names != 1 || i.nlink != 1,
            _ => names != i.nlink,
        };
        if wrong || i.odd {
            self.suspect(i.inode);
        }
    }

    fn suspect(&mut self, id: InodeId) {
        if self.suspects.len() < SUSPECTS_MAX {
            self.suspects.insert(id);
        } else {
            self.more = true;
        }
    }

    /// The pass is over; whether another slice is to be counted.
    pub fn next_slice(&mut self) -> bool {
        self.names.clear();
        self.slice += 1;
        self.slice < self.slices
    }

    /// Inodes whose names are to be looked for.
    pub fn suspects(&mut self) -> BTreeSet<InodeId> {
        std::mem::take(&mut self.suspects)
    }

    /// Directories whose recorded number of sub-directories seems wrong.
    pub fn odd_subdirs(&self) -> Vec<InodeId> {
        self.dirs.iter().filter(|(_, d)| d.seen && d.subdirs != 0).map(|(id, _)| *id).collect()
    }

    /// One directory of each circle of parents.
    pub fn circles(&self) -> Vec<InodeId> {
        // Which walk came by: 0 is none.
        let mut walked: BTreeMap<InodeId, u64> = BTreeMap::new();
        let mut out = Vec::new();
        for (walk, start) in self.dirs.keys().enumerate() {
            let (walk, mut at) = (walk as u64 + 1, *start);
            while at != ROOT_INODE && !walked.contains_key(&at) {
                walked.insert(at, walk);
                match self.dirs.get(&at).filter(|d| d.seen) {
                    Some(dir) => at = dir.parent,
                    None => break,
                }
            }
            let came_back = at != ROOT_INODE && walked.get(&at) == Some(&walk);
            if came_back && self.dirs.get(&at).is_some_and(|d| d.seen) {
                out.push(at);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::wire::fsck::NameFact;

    fn name(parent: u64, inode: u64, dir: bool) -> NameFact {
        NameFact { parent: InodeId(parent), inode: InodeId(inode), dir, odd: false }
    }
    fn inode(inode: u64, dir: bool, nlink: u32, parent: u64) -> InodeFact {
        InodeFact { inode: InodeId(inode), dir, nlink, parent: InodeId(parent), odd: false }
    }
    fn page(names: Vec<NameFact>, inodes: Vec<InodeFact>) -> FsckReply {
        FsckReply { names, inodes, ..FsckReply::default() }
    }

    #[test]
    fn names_are_counted_slice_by_slice() {
        // 2 and 3 have the names that they say; 4 has one more, 5 none, 6 is no longer there.
        let names = [(2, false), (3, false), (3, false), (4, false), (4, false), (6, false)];
        let names: Vec<_> = names.into_iter().map(|(i, d)| name(1, i, d)).collect();
        let inodes = [(1, true, 1), (2, false, 1), (3, false, 2), (4, false, 1), (5, false, 1)];
        let inodes: Vec<_> = inodes.into_iter().map(|(i, d, n)| inode(i, d, n, 1)).collect();
        for (estimate, slice_max) in [(5, 1000), (5, 2), (0, 1), (0, 2)] {
            let mut c = Census::new(estimate, slice_max);
            let mut passes = 0;
            loop {
                for n in &names {
                    c.take(&page(vec![*n], vec![]));
                }
                c.take(&page(vec![], inodes.clone()));
                passes += 1;
                if !c.next_slice() {
                    break;
                }
            }
            assert_eq!(passes, c.slices);
            assert_eq!(c.suspects(), BTreeSet::from([InodeId(4), InodeId(5)]));
        }
    }

    #[test]
    fn circles_are_found_once_each() {
        let parents =
            [(1, 1), (2, 1), (3, 2), (4, 6), (5, 4), (6, 5), (7, 6), (8, 8), (9, 99), (10, 9)];
        let mut c = Census::new(10, 1000);
        let inodes = parents.into_iter().map(|(i, p)| inode(i, true, 1, p)).collect();
        c.take(&page(vec![name(2, 3, true), name(1, 2, true)], inodes));
        assert_eq!(c.circles(), [InodeId(4), InodeId(8)]);
        c.take(&FsckReply { subdirs: vec![(InodeId(1), 1)], ..FsckReply::default() });
        assert_eq!(c.odd_subdirs(), [InodeId(2)]);
    }
}
