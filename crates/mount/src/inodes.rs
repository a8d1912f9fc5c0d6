//! The inode table. The FUSE node id is the inode id.
//!
//! Three things are known of an inode, and they differ: what was *seen* (the newest edition that came from meta), what the kernel was *told* (attributes,
//! and of which edition), and whether it may have *kept* something (attributes or pages that a change makes old). `seen` comes before anything is told, `tells`
//! notes what is told, `gives` comes before the kernel gets what it may keep, `recalled` makes what was told old, and `take_kept` says whether the kernel has to be
//! told to forget. Guarantees: what was asked for before the last recall of an inode is not leased to the kernel ([`Inodes::may_lease`]), also if the kernel
//! forgot the inode in between; nor then what was asked for before this client changed it. Must never: tell the kernel from memory what newer attributes have gone by ([`Inodes::tell_again`]).

use crate::back::Waiting;
use crate::filesystem::FileData;
use crate::handles::Handles;
use crate::kernel_len::Between;
use crate::open::OpenInode;
use crate::places::Places;
use crate::rights::ToldRights;
use glowfs_fuse::abi;
use glowfs_rt::Instant;
use glowfs_types::InodeId;
use glowfs_types::wire::meta::{Attr, Edition, InodeKind, ROOT_INODE, Time};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What the kernel may have in its page cache: contents of this time, length, and [`Attr::contents_change`].
type Cached = (Time, u64, u64);

fn contents_of(attr: &Attr) -> Cached {
    (attr.mtime, attr.len, attr.contents_change)
}

#[derive(Default)]
struct Node {
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
    /// The newest edition that was seen.
    edition: Edition,
    cached: Option<Cached>,
    /// The number of the last recall of it.
    recalled: u64,
    /// The number of the last change of it that was seen here: once the kernel has forgotten the inode, it counts as a recall.
    changed: u64,
    /// It has no ACL, as of the newest attributes, and nobody has said since that it is another one.
    no_acl: bool,
    /// The kernel may have attributes or pages of it that a write past the kernel makes old.
    kept: bool,
    /// Until when the kernel may keep what it got with the answers that told it of the inode. It can miss a recall until it has taken
    /// the first of them in.
    introduced: Instant,
    told: Option<Box<Told>>,
    rights: ToldRights,
    /// What the kernel takes for its length, unless it is open here: then [`OpenInode::direct`] has it.
    len: Between,
    /// It has no extended attribute until then: it was made here, and who gives it one has to tell us before.
    bare_until: Instant,
}

impl Node {
    /// Notes what was seen, unless something newer was. Whether it did.
    fn sees(&mut self, edition: Edition, numbers: &Cell<u64>) -> bool {
        let newest = !edition.is_older_than(&self.edition);
        if newest {
            if self.edition != Edition::default() && self.edition.is_older_than(&edition) {
                self.changed = next(numbers);
            }
            self.edition = edition;
        }
        newest
    }
}

fn next(numbers: &Cell<u64>) -> u64 {
    numbers.set(numbers.get() + 1);
    numbers.get()
}

/// What the kernel was last told of an inode.
struct Told {
    /// The edition that these attributes are of. None: they may be old, or nothing leads to the inode any more.
    edition: Option<Edition>,
    entry: abi::EntryOut,
    /// [`Attr::contents_change`].
    contents_change: u64,
}

impl Told {
    fn of(attr: &Attr, entry: &abi::EntryOut) -> Self {
        let (edition, contents_change) = (Some(attr.edition()), attr.contents_change);
        Self { edition, entry: *entry, contents_change }
    }
    /// The contents are not those of before, and the kernel, which goes by time and length, cannot see it.
    fn hides_a_write_since(&self, before: &Told) -> bool {
        let seen = |t: &Told| (t.entry.attr.mtime, t.entry.attr.mtimensec, t.entry.attr.size);
        self.contents_change != before.contents_change && seen(self) == seen(before)
    }
}

/// How many pins, and what they hold.
type Pinned<F> = (u32, Rc<OpenInode<F>>);

/// See the module.
pub struct Inodes<F> {
    nodes: RefCell<BTreeMap<u64, Node>>,
    open: RefCell<BTreeMap<u64, Pinned<F>>>,
    /// Numbers of recalls and of changes that were seen.
    recalls: Cell<u64>,
    /// Numbers of our kernel's changes of rights.
    rights_changes: Cell<u64>,
    /// The number of the last recall of an inode that was not known, or was forgotten since.
    recalled_unknown: Cell<u64>,
    /// What applications have open.
    pub handles: Handles<F>,
    /// What is written to open files and not sent yet.
    pub waiting: Waiting,
    /// Of directories that were looked up, made or listed.
    pub places: Places,
}

/// Keeps the [`OpenInode`] of an inode in the table.
pub struct Pin<F> {
    table: Rc<Inodes<F>>,
    inode: Rc<OpenInode<F>>,
}

impl<F> std::ops::Deref for Pin<F> {
    type Target = OpenInode<F>;
    fn deref(&self) -> &OpenInode<F> {
        &self.inode
    }
}

impl<F> Drop for Pin<F> {
    fn drop(&mut self) {
        let mut open = self.table.open.borrow_mut();
        if let Some((pins, _)) = open.get_mut(&self.inode.id.0) {
            *pins -= 1;
            if *pins == 0 {
                open.remove(&self.inode.id.0);
                self.table.closed(&self.inode);
            }
        }
    }
}

impl<F> Inodes<F> {
    /// An inode is not open here any more.
    fn closed(&self, open: &OpenInode<F>) {
        let mut nodes = self.nodes.borrow_mut();
        let Some(n) = nodes.get_mut(&open.id.0) else {
            // It may have been changed until now.
            return self.recalled_unknown.set(next(&self.recalls));
        };
        // What our writes did came with answers that went to the open file only.
        n.sees(open.edition(), &self.recalls);
        n.len = open.direct.kernel_len();
        if let Some(t) = &mut n.told {
            t.edition = t.edition.filter(|e| open.is_as_of(e));
        }
    }
}

impl<F: FileData> Inodes<F> {
    /// Empty tables.
    pub fn new() -> Rc<Self> {
        // The kernel never looks the root up, and never forgets it.
        let root = Node { lookups: 1, ..Node::default() };
        Rc::new(Self {
            nodes: RefCell::new(BTreeMap::from([(ROOT_INODE.0, root)])),
            open: RefCell::default(),
            handles: Handles::default(),
            recalls: Cell::new(0),
            rights_changes: Cell::new(0),
            recalled_unknown: Cell::new(0),
            waiting: Waiting::default(),
            places: Places::default(),
        })
    }

    /// Attributes came from meta that were asked for after so many recalls ([`Self::recalls`]): what is true on this client.
    pub fn seen_of(&self, from_meta: &Attr, recalls: u64) -> Attr {
        let attr = self.seen(from_meta);
        // What a recall has overtaken says nothing of an ACL that was given meanwhile.
        if !from_meta.has_acl
            && self.may_lease(from_meta.inode, recalls)
            && let Some(n) = self.nodes.borrow_mut().get_mut(&from_meta.inode.0)
            && n.sees(from_meta.edition(), &self.recalls)
        {
            n.no_acl = true;
        }
        attr
    }
    /// Attributes came from meta: what is true on this client.
    pub fn seen(&self, from_meta: &Attr) -> Attr {
        if let Some(n) = self.nodes.borrow_mut().get_mut(&from_meta.inode.0)
            && n.sees(from_meta.edition(), &self.recalls)
            && from_meta.has_acl
        {
            n.no_acl = false;
        }
        match self.opened(from_meta.inode) {
            Some(open) => open.merge(from_meta),
            None => from_meta.clone(),
        }
    }
    /// Whether meta has to be asked for an ACL of the inode.
    pub fn may_have_acl(&self, inode: InodeId) -> bool {
        self.nodes.borrow().get(&inode.0).is_none_or(|n| !n.no_acl)
    }
    /// Mode and umask for what is made in a directory. Without an ACL there, the umask is applied here: a meta service of an older release
    /// knows of none.
    pub fn masked(&self, dir: InodeId, (mode, umask): (u32, u32)) -> (u32, u32) {
        if self.may_have_acl(dir) { (mode, umask) } else { (mode & !umask, 0) }
    }
    /// The inode may have an ACL from now on.
    pub fn note_acl(&self, inode: InodeId) {
        if let Some(n) = self.nodes.borrow_mut().get_mut(&inode.0) {
            n.no_acl = false;
        }
    }
    /// We have made the inode, and have a lease on it until then.
    pub fn made(&self, inode: InodeId, leased_until: Instant) {
        if let Some(n) = self.nodes.borrow_mut().get_mut(&inode.0) {
            n.bare_until = leased_until;
        }
    }
    /// Whether the inode has no extended attribute, as far as is known here.
    pub fn is_bare(&self, inode: InodeId, now: Instant) -> bool {
        self.nodes.borrow().get(&inode.0).is_some_and(|n| now < n.bare_until)
    }
    /// We give it an extended attribute.
    pub fn dress(&self, inode: InodeId) {
        self.made(inode, Instant(0));
        if let Some(open) = self.opened(inode) {
            open.bare.set(false);
        }
    }
    /// Whether newer attributes of the inode went, or may have gone, through here than these, which were asked for after so many recalls.
    pub fn is_old(&self, attr: &Attr, recalls: u64) -> bool {
        match self.nodes.borrow().get(&attr.inode.0) {
            Some(n) => attr.edition().is_older_than(&n.edition),
            None => self.recalled_unknown.get() > recalls,
        }
    }
    /// The kernel is told of the inode once more, with attributes that it may keep until then.
    pub fn looked_up(&self, inode: InodeId, valid_until: Instant) {
        let mut nodes = self.nodes.borrow_mut();
        // What was asked for before it was recalled, or forgotten, may still be on its way.
        let recalled = self.recalled_unknown.get();
        let node = nodes.entry(inode.0).or_insert_with(|| Node { recalled, ..Node::default() });
        // Even if it is known already: the kernel may have dropped it, and its FORGET be on the way.
        node.introduced = node.introduced.max(valid_until);
        node.lookups += 1;
    }
    /// Whether the kernel has to be told to forget pages of the inode when it is told this of it.
    pub fn would_hide(&self, attr: &Attr, entry: &abi::EntryOut) -> bool {
        let nodes = self.nodes.borrow();
        let before = nodes.get(&attr.inode.0).and_then(|n| n.told.as_ref());
        before.is_some_and(|before| Told::of(attr, entry).hides_a_write_since(before))
    }
    /// The kernel is told this of the inode. True if it has to be told to forget the pages of it as well.
    pub fn tells(&self, attr: &Attr, entry: &abi::EntryOut) -> bool {
        let mut nodes = self.nodes.borrow_mut();
        if let Some(open) = self.opened(attr.inode) {
            open.direct.kernel_was_told(entry.attr.size);
        }
        let Some(n) = nodes.get_mut(&attr.inode.0) else { return false };
        n.len = Between::exactly(entry.attr.size);
        n.rights.tells(attr.into());
        let told = Told::of(attr, entry);
        match &mut n.told {
            Some(before) => {
                let hidden = told.hides_a_write_since(before);
                **before = told;
                hidden
            }
            None => {
                n.told = Some(Box::new(told));
                false
            }
        }
    }
    /// The kernel has changed the inode's attributes, and takes these from the answer.
    pub fn sets_rights(&self, attr: &Attr) {
        self.rights_changes.set(self.rights_changes.get() + 1);
        if let Some(n) = self.nodes.borrow_mut().get_mut(&attr.inode.0) {
            n.rights.holds(attr.into(), self.rights_changes.get());
        }
    }
    /// The number of the last such change.
    pub fn rights_changes(&self) -> u64 {
        self.rights_changes.get()
    }
    /// What the kernel may know of the rights to the inode.
    pub fn rights_told(&self, inode: InodeId) -> Option<ToldRights> {
        Some(self.nodes.borrow().get(&inode.0)?.rights.clone())
    }
    /// Where the kernel takes a file to end that is longer by now, as meta says, if what it has of the page there may have been stored into through a mapping.
    pub fn old_end(&self, from_meta: &Attr) -> Option<Between> {
        let attr = self.seen(from_meta);
        let open = self.opened(attr.inode)?;
        let Between { least, most } = open.direct.kernel_len();
        let longer = attr.len > least && most > 0 && open.may_be_mapped();
        longer.then_some(Between { least, most: most.min(attr.len) })
    }
    /// A request of ours was answered with these attributes; the contents have become others `own` times by it, of which the kernel knows. True if somebody
    /// else changed them as well since it was last told: it has to be told to forget its pages.
    pub fn changed_here(&self, attr: &Attr, own: u64) -> bool {
        let mut nodes = self.nodes.borrow_mut();
        let told = nodes.get_mut(&attr.inode.0).and_then(|n| n.told.as_mut());
        let Some(told) = told.filter(|_| attr.contents_change != 0) else { return false };
        let known = std::mem::replace(&mut told.contents_change, attr.contents_change);
        attr.contents_change != known + own
    }
    /// Tells the kernel of the inode once more, as before and with nothing that it may keep: for a name that is known to lead to it. None if that would
    /// take the kernel back in time: newer attributes are known, or it is open here and the kernel may know more of it than anybody.
    pub fn tell_again(&self, inode: InodeId) -> Option<Box<abi::EntryOut>> {
        if self.open.borrow().contains_key(&inode.0) {
            return None;
        }
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.get_mut(&inode.0)?;
        let told = node.told.as_ref().filter(|t| t.edition == Some(node.edition))?;
        let entry = abi::EntryOut {
            entry_valid: 0,
            attr_valid: 0,
            entry_valid_nsec: 0,
            attr_valid_nsec: 0,
            ..told.entry
        };
        node.lookups += 1;
        Some(Box::new(entry))
    }
    /// Our removal took an inode its last name, and left these attributes.
    pub fn removed(&self, gone: &Attr, mut attr: abi::Attr) {
        if let Some(n) = self.nodes.borrow_mut().get_mut(&gone.inode.0) {
            let told = n.told.get_or_insert_with(|| {
                Box::new(Told {
                    edition: None,
                    entry: abi::EntryOut::default(),
                    contents_change: gone.contents_change,
                })
            });
            if gone.kind == InodeKind::Directory {
                // Meta keeps the time of its entries beside it, and does not look there any more.
                let before = (told.entry.attr.mtime, told.entry.attr.mtimensec);
                (attr.mtime, attr.mtimensec) = before.max((attr.mtime, attr.mtimensec));
            }
            **told = Told { edition: None, entry: abi::EntryOut { attr, ..told.entry }, ..**told };
        }
    }
    /// The attributes that the kernel was told last of an inode.
    pub fn last_told(&self, inode: InodeId) -> Option<abi::Attr> {
        let nodes = self.nodes.borrow();
        Some(nodes.get(&inode.0)?.told.as_ref()?.entry.attr)
    }
    /// Until when the kernel may keep attributes of an inode that it says it does not know: it is about to take them in.
    pub fn introduced(&self, inode: InodeId) -> Instant {
        self.nodes.borrow().get(&inode.0).map_or(Instant(0), |n| n.introduced)
    }
    /// The kernel forgets.
    pub fn forget(&self, inode: u64, lookups: u64) {
        let mut nodes = self.nodes.borrow_mut();
        if let Some(n) = nodes.get_mut(&inode) {
            n.lookups = n.lookups.saturating_sub(lookups);
            if n.lookups == 0 {
                // What was asked for before its last recall, or change, may still be on the way to the kernel.
                let old = n.recalled.max(n.changed);
                self.recalled_unknown.set(self.recalled_unknown.get().max(old));
                nodes.remove(&inode);
                self.places.forget(InodeId(inode));
            }
        }
    }
    /// Whether the page cache may stay as the file is opened with these attributes; notes them.
    pub fn may_keep_cache(&self, attr: &Attr) -> bool {
        let now = contents_of(attr);
        match self.nodes.borrow_mut().get_mut(&attr.inode.0) {
            Some(n) => n.cached.replace(now) == Some(now),
            None => false,
        }
    }
    /// The page cache is not to be trusted at the next open.
    pub fn drop_cache(&self, inode: InodeId) {
        if let Some(n) = self.nodes.borrow_mut().get_mut(&inode.0) {
            n.cached = None;
        }
    }

    /// The kernel is about to be given attributes or pages of the inode that it may keep.
    pub fn gives(&self, inode: InodeId) {
        if let Some(n) = self.nodes.borrow_mut().get_mut(&inode.0) {
            n.kept = true;
        }
    }
    /// Whether the kernel has been given such since the last time this was asked. Whoever asks tells the kernel to forget.
    pub fn take_kept(&self, inode: InodeId) -> bool {
        self.nodes.borrow_mut().get_mut(&inode.0).is_some_and(|n| std::mem::take(&mut n.kept))
    }

    /// Another client changed the inode. Returns whether the kernel knows it.
    pub fn recalled(&self, inode: InodeId, data: bool) -> bool {
        let number = next(&self.recalls);
        if let Some(open) = self.opened(inode) {
            open.lease.set(Instant(0));
            open.bare.set(false);
            if !data {
                open.capability_given.set(true);
            }
            open.mode_known.set(false);
        }
        match self.nodes.borrow_mut().get_mut(&inode.0) {
            Some(n) => {
                n.recalled = number;
                if let Some(t) = &mut n.told {
                    t.edition = None;
                }
                // A program may ask for its ACL that asks for nothing else before.
                (n.bare_until, n.no_acl) = (Instant(0), false);
                if data {
                    n.cached = None;
                }
                true
            }
            None => {
                self.recalled_unknown.set(number);
                false
            }
        }
    }
    /// Recalls so far, and changes that were seen.
    pub fn recalls(&self) -> u64 {
        self.recalls.get()
    }
    /// Whether attributes that were asked for after so many recalls may be kept.
    pub fn may_lease(&self, inode: InodeId, recalls: u64) -> bool {
        let unknown = self.recalled_unknown.get();
        self.nodes.borrow().get(&inode.0).map_or(unknown, |n| n.recalled) <= recalls
    }

    /// The open state of an inode, if it is open here.
    pub fn opened(&self, inode: InodeId) -> Option<Rc<OpenInode<F>>> {
        self.open.borrow().get(&inode.0).map(|(_, o)| o.clone())
    }
    /// The open state of an inode, made if need be.
    pub fn pin(self: &Rc<Self>, inode: InodeId) -> Pin<F> {
        let mut open = self.open.borrow_mut();
        let new = || {
            let kernel_len =
                self.nodes.borrow().get(&inode.0).map_or(Between::default(), |n| n.len);
            (0, Rc::new(OpenInode::new(inode, kernel_len, &self.waiting)))
        };
        let (pins, o) = open.entry(inode.0).or_insert_with(new);
        *pins += 1;
        Pin { table: self.clone(), inode: o.clone() }
    }

    /// Every inode that is open here.
    pub fn open_inodes(self: &Rc<Self>) -> Vec<Pin<F>> {
        let all: Vec<u64> = self.open.borrow().keys().copied().collect();
        all.into_iter().map(|i| self.pin(InodeId(i))).collect()
    }
    /// Open inodes, for metrics.
    pub fn open_count(&self) -> usize {
        self.open.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamFile;

    #[test]
    fn what_was_recalled_before_the_kernel_forgot_it_is_not_leased() {
        let (inodes, a, b) = (Inodes::<RamFile>::new(), InodeId(5), InodeId(6));
        inodes.looked_up(a, Instant(0));
        inodes.looked_up(b, Instant(0));
        // A page of a listing is fetched, and waits to be delivered.
        let asked = inodes.recalls();
        assert!(inodes.recalled(a, false), "known");
        assert!(!inodes.may_lease(a, asked));
        inodes.forget(b.0, 1);
        assert!(inodes.may_lease(b, asked), "nobody recalled it");
        inodes.forget(a.0, 1);
        assert!(!inodes.may_lease(a, asked), "the page is from before the recall");
        assert!(inodes.may_lease(a, inodes.recalls()), "asked for since");
    }
    #[test]
    fn what_was_changed_here_before_the_kernel_forgot_it_is_old() {
        let (inodes, inode) = (Inodes::<RamFile>::new(), InodeId(5));
        let attr = |change| Attr { inode, change, ..Attr::default() };
        let told = |attr: &Attr| {
            inodes.looked_up(attr.inode, Instant(0));
            inodes.seen(attr);
        };
        told(&attr(1));
        let asked = inodes.recalls();
        inodes.forget(inode.0, 1);
        assert!(!inodes.is_old(&attr(1), asked), "nobody changed it");
        told(&attr(1));
        inodes.seen(&attr(2));
        assert!(inodes.is_old(&attr(1), asked));
        inodes.forget(inode.0, 1);
        assert!(inodes.is_old(&attr(1), asked) && !inodes.may_lease(inode, asked));
        assert!(!inodes.is_old(&attr(2), inodes.recalls()), "asked for since");
        inodes.looked_up(inode, Instant(0));
        assert!(!inodes.may_lease(inode, asked), "nor when the kernel knows it again");
        let other = InodeId(6);
        inodes.looked_up(other, Instant(0));
        let then = inodes.recalls();
        inodes.seen(&attr(3));
        inodes.seen(&attr(4));
        inodes.forget(inode.0, 1);
        assert!(inodes.may_lease(other, then), "nobody changed that one");
        // Its last write ends when the kernel has forgotten it.
        let asked = inodes.recalls();
        drop(inodes.pin(inode));
        assert!(inodes.is_old(&attr(2), asked) && !inodes.may_lease(inode, asked));
    }
}
