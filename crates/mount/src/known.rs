//! What this client knows of directories that it changes itself, so that meta need not be asked: their attributes after its own
//! changes, and the names in those that it has made, with the inodes that they lead to.
//!
//! Both hold under meta's lease on the directory only: another client's change takes the lease away before it returns, and what is known
//! here with it ([`Directories::recalled`]). Attributes count from the answer to the newest change, or to a question that
//! no change of ours overlapped. The names of a directory are known from its making on, as of a number of changes of its entries
//! ([`Attr::entries`]): they count while the leased attributes show that number, and are forgotten with the first change that is not our own.
//!
//! Must never: answer from what overlapped a change of ours, or take a name for missing, or for one of another inode, that meta may have.

#[cfg(test)]
mod tests;

use glowfs_rt::{Duration, Instant};
use glowfs_types::InodeId;
use glowfs_types::wire::meta::{Attr, DirChanged, InodeKind, NAME_BYTES_MAX};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Directories of which something is known.
const DIRECTORIES_MAX: usize = 4096;
/// Names in all of them.
const NAMES_MAX: usize = 1 << 18;
/// Counts of changes of names. Directories whose numbers are equal modulo this share one.
const NAME_COUNTS: usize = 4096;

#[derive(Default)]
struct Known {
    /// Changes of ours that are on their way.
    working: u32,
    /// When the last one began or ended, in [`Directories::tick`]s.
    last: u64,
    /// Its attributes, and until when they are leased.
    attr: Option<(Attr, Instant)>,
    names: Option<Names>,
}

/// All names of a directory.
#[derive(Default)]
struct Names {
    /// What each leads to; [`SOME_INODE`]: it is there. Never iterated.
    all: HashMap<Vec<u8>, InodeId>,
    /// As of this life of the metadata engine, and so many changes of entries in it.
    as_of: (u64, u64),
}

impl Names {
    /// Whether they are those of a directory with these attributes.
    fn are_of(&self, attr: &Attr) -> bool {
        attr.entries.is_some_and(|entries| self.as_of == (attr.life, entries))
    }
}

/// The inode of a name is not known.
const SOME_INODE: InodeId = InodeId(0);

/// What is known of a name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// It leads to this inode.
    There(InodeId),
    /// There is none.
    Missing,
    /// There is none, if nobody else has changed the directory: ask for its attributes.
    MissingIfUnchanged,
    /// Not known.
    Unknown,
}

/// What one of our changes did to the names of a directory.
pub enum Edit<'a> {
    /// The name is there now.
    Add(&'a [u8], InodeId),
    /// It is not.
    Remove(&'a [u8]),
    /// The name leads to what the same change has removed another name of.
    Arrived(&'a [u8]),
    /// It leads to another inode.
    Changed(&'a [u8]),
}

/// See the module.
#[derive(Default)]
pub struct Directories {
    known: RefCell<BTreeMap<u64, Known>>,
    tick: Cell<u64>,
    names: Cell<usize>,
    name_changes: NameCounts,
}

struct NameCounts(Vec<Cell<u64>>);

impl Default for NameCounts {
    fn default() -> Self {
        Self(vec![Cell::new(0); NAME_COUNTS])
    }
}

/// A change of ours that is on its way. Dropped without [`Changing::done`], its outcome is not known.
pub struct Changing {
    table: Rc<Directories>,
    /// Which, and when it began to change.
    dirs: Vec<(u64, u64)>,
    /// It may change which names there are.
    entries: bool,
}

impl Directories {
    /// The count of beginnings and ends of own changes so far: take it before meta is asked.
    pub fn tick(&self) -> u64 {
        self.tick.get()
    }
    fn next(&self) -> u64 {
        self.tick.set(self.tick.get() + 1);
        self.tick.get()
    }

    /// The count of beginnings and ends of own changes of names in the directory: while it stays as it was before meta was asked, what meta
    /// said of names there holds, as far as we are concerned. (Of another directory's, too, which does no harm.)
    pub fn name_changes(&self, dir: InodeId) -> u64 {
        self.name_count(dir.0).get()
    }
    fn name_count(&self, dir: u64) -> &Cell<u64> {
        &self.name_changes.0[(dir % NAME_COUNTS as u64) as usize]
    }
    fn count_names(&self, dir: u64) {
        let count = self.name_count(dir);
        count.set(count.get() + 1);
    }

    /// We are about to change these directories, and with `entries` the names in them.
    pub fn change(self: &Rc<Self>, dirs: &[InodeId], entries: bool) -> Changing {
        let mut begun: Vec<(u64, u64)> = Vec::with_capacity(dirs.len());
        for dir in dirs {
            if begun.iter().any(|(d, _)| *d == dir.0) {
                continue;
            }
            self.make_room();
            if entries {
                self.count_names(dir.0);
            }
            let began = self.next();
            let mut all = self.known.borrow_mut();
            let known = all.entry(dir.0).or_default();
            known.working += 1;
            (known.last, known.attr) = (began, None);
            begun.push((dir.0, began));
        }
        Changing { table: self.clone(), dirs: begun, entries }
    }

    /// We have made a directory; meta said this of it.
    pub fn made(&self, attr: &Attr, leased_until: Instant) {
        let leased = leased_until > Instant(0);
        if attr.kind != InodeKind::Directory || attr.entries != Some(0) || !leased {
            return;
        }
        self.make_room();
        let last = self.next();
        let mut all = self.known.borrow_mut();
        let known = all.entry(attr.inode.0).or_default();
        if known.working == 0 && known.names.is_none() {
            known.last = last;
            known.attr = Some((attr.clone(), leased_until));
            known.names = Some(Names { as_of: (attr.life, 0), ..Names::default() });
        }
    }

    /// Meta said this of a directory, when it was asked at `tick`.
    pub fn heard(&self, attr: &Attr, leased_until: Instant, tick: u64) {
        let mut all = self.known.borrow_mut();
        let Some(known) = all.get_mut(&attr.inode.0) else { return };
        if known.working > 0 || known.last > tick || leased_until == Instant(0) {
            return;
        }
        if known.names.as_ref().is_some_and(|n| !n.are_of(attr)) {
            self.forget_names(known);
        }
        known.attr = Some((attr.clone(), leased_until));
    }

    /// Another client changed it, or we did in a way that is not followed: nothing is known any more.
    pub fn recalled(&self, inode: InodeId) {
        let mut all = self.known.borrow_mut();
        if let Some(known) = all.get_mut(&inode.0) {
            (known.attr, known.last) = (None, self.next());
            self.forget_names(known);
        }
    }
    /// Only its attributes are not what they were.
    pub fn touched(&self, inode: InodeId) {
        if let Some(known) = self.known.borrow_mut().get_mut(&inode.0) {
            (known.attr, known.last) = (None, self.next());
        }
    }
    /// One of our changes may have concerned any directory.
    pub fn forget_all(&self) {
        for known in self.known.borrow_mut().values_mut() {
            (known.attr, known.last) = (None, self.next());
            self.forget_names(known);
        }
    }

    /// Its attributes, if they are leased for longer than `margin` from now on.
    pub fn attr(&self, inode: InodeId, now: Instant, margin: Duration) -> Option<(Attr, Instant)> {
        let all = self.known.borrow();
        let (attr, until) = all.get(&inode.0)?.attr.as_ref()?;
        (*until > now + margin).then(|| (attr.clone(), *until))
    }

    /// What is known of a name. Of one that is there only while the directory is leased: to ask for the name itself costs no more.
    pub fn named(&self, dir: InodeId, name: &[u8], now: Instant) -> Named {
        let all = self.known.borrow();
        let Some(known) = all.get(&dir.0) else { return Named::Unknown };
        let odd = name.len() > NAME_BYTES_MAX || matches!(name, b"" | b"." | b"..");
        let Some(names) = known.names.as_ref().filter(|_| !odd) else { return Named::Unknown };
        let leased =
            known.attr.as_ref().is_some_and(|(attr, until)| *until > now && names.are_of(attr));
        match names.all.get(name) {
            None if leased => Named::Missing,
            None => Named::MissingIfUnchanged,
            Some(inode) if leased && *inode != SOME_INODE => Named::There(*inode),
            Some(_) => Named::Unknown,
        }
    }

    fn forget_names(&self, known: &mut Known) {
        if let Some(names) = known.names.take() {
            self.names.set(self.names.get() - names.all.len());
        }
    }
    /// `taken` is what the change has removed the name of, if that is known.
    fn edit(
        &self,
        known: &mut Known,
        edits: &[Edit<'_>],
        taken: &mut Option<InodeId>,
        as_of: (u64, u64),
    ) {
        let Some(names) = &mut known.names else { return };
        let before = names.all.len();
        for edit in edits {
            let (name, inode) = match edit {
                Edit::Remove(name) => {
                    *taken = names.all.remove(*name);
                    continue;
                }
                Edit::Add(name, inode) => (name, *inode),
                Edit::Arrived(name) => (name, taken.unwrap_or(SOME_INODE)),
                Edit::Changed(name) => (name, SOME_INODE),
            };
            names.all.insert(name.to_vec(), inode);
        }
        names.as_of = as_of;
        self.names.set(self.names.get() + names.all.len() - before);
        if self.names.get() > NAMES_MAX {
            self.forget_names(known);
        }
    }
    /// Makes room for one more directory.
    fn make_room(&self) {
        let mut all = self.known.borrow_mut();
        if all.len() < DIRECTORIES_MAX {
            return;
        }
        for known in all.values_mut().filter(|k| k.working == 0) {
            self.forget_names(known);
        }
        all.retain(|_, k| k.working > 0);
    }
}

impl Changing {
    /// Meta did it. `dirs` is what it said of the directories: attributes, and until when they are leased. `edits` is what became of the names of
    /// each directory.
    pub fn done<'a>(
        mut self,
        dirs: &[(&DirChanged, Instant)],
        edits: impl Fn(InodeId) -> Vec<Edit<'a>>,
    ) {
        let table = self.table.clone();
        let mut taken = None;
        for (dir, began) in std::mem::take(&mut self.dirs) {
            let now = table.next();
            if self.entries {
                table.count_names(dir);
            }
            let mut all = table.known.borrow_mut();
            let Some(known) = all.get_mut(&dir) else { continue };
            let alone = known.working == 1 && known.last == began;
            known.working -= 1;
            known.last = now;
            let said = dirs.iter().find(|(d, _)| d.attr.inode.0 == dir).filter(|_| alone);
            let Some((said, until)) = said else {
                known.attr = None;
                table.forget_names(known);
                continue;
            };
            let life = said.attr.life;
            let follows = known.names.as_ref().is_some_and(|n| n.as_of == (life, said.before));
            match said.attr.entries {
                // Nothing was done: the name that was to be made was there, or both are names of one file.
                Some(entries) if follows && entries == said.before => {}
                Some(entries) if follows => {
                    table.edit(known, &edits(InodeId(dir)), &mut taken, (life, entries));
                }
                _ => table.forget_names(known),
            }
            known.attr = (*until > Instant(0)).then(|| (said.attr.clone(), *until));
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        for (dir, _) in &self.dirs {
            let now = self.table.next();
            if self.entries {
                self.table.count_names(*dir);
            }
            let mut all = self.table.known.borrow_mut();
            let Some(known) = all.get_mut(dir) else { continue };
            known.working -= 1;
            (known.last, known.attr) = (now, None);
            if self.entries {
                self.table.forget_names(known);
            }
            if known.working == 0 && known.names.is_none() {
                all.remove(dir);
            }
        }
    }
}
