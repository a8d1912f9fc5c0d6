//! [`OpenInode`]: what this client knows of an inode that is open here, shared by all its handles.
//!
//! The length is max(what meta says, our acknowledged writes), under one truncate epoch. Attributes of meta come in any
//! order; `change` tells which are newer, so a late answer never takes the file back in time.

mod dirty;

pub use dirty::Dirty;

use crate::attr::time_of;
use crate::back::{Back, Waiting};
use crate::cut_pages::CutPages;
use crate::direct::DirectWrites;
use crate::filesystem::FileData;
use crate::gate::Gate;
use crate::given_pages::GivenPages;
use crate::kernel_len::Between;
use crate::late::Late;
use crate::old_tails::OldTails;
use crate::running::Running;
use glowfs_client::FileAccess;
use glowfs_rt::Instant;
use glowfs_rt::sync::Notify;
use glowfs_types::wire::meta::{AtimeRule, Attr, Edition, Time};
use glowfs_types::wire::sparse::EXTENT_BLOCK_BYTES;
use glowfs_types::{DataId, Durability, InodeId, TruncateEpoch};
use libc::EIO;
use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;

/// What so many bytes take in whole blocks.
fn whole_blocks(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(EXTENT_BLOCK_BYTES).unwrap_or(bytes)
}

/// A file of the client library with the rights it was opened with.
pub struct OpenedFile<F> {
    /// The file.
    pub file: Rc<F>,
    /// Who opened it, and for what.
    pub access: FileAccess,
    /// Handles that use it.
    pub users: Cell<u32>,
}

/// Whether meta lets both go on in the same cases.
fn same_right(a: &FileAccess, b: &FileAccess) -> bool {
    a.exec == b.exec && a.caller == b.caller
}

impl<F: FileData> OpenedFile<F> {
    /// Whether it can be used so.
    fn allows(&self, read: bool, write: bool) -> bool {
        let a = &self.access;
        (a.read || !read) && (a.write || !write) && self.file.lives()
    }
}

struct State<F> {
    attr: Attr,
    dirty: Dirty,
    /// What meta said when it was last told of writes of ours, and has not said since that they are durable.
    told: Option<Edition>,
    /// What meta last said was durable.
    durable: Option<dirty::Finding>,
    /// When it was read, if that moves the time of last access and meta does not know yet.
    read_at: Option<Time>,
    /// The end of the last append that was given its place.
    reserved: u64,
    writing: u32,
    files: Vec<Rc<OpenedFile<F>>>,
    /// Contents that are kept with the metadata, and the edition of the attributes they came with.
    content: Option<(Edition, Rc<[u8]>)>,
}

/// See the module.
pub struct OpenInode<F> {
    /// The inode.
    pub id: InodeId,
    /// Reads and writes enter together, what sets the length alone.
    pub gate: Gate,
    /// Appends enter one after the other, as they arrive, and leave when they have their places.
    pub line: Gate,
    /// Until when meta would tell us of a change by others; what is known may be used without asking until then.
    pub lease: Cell<Instant>,
    /// Times of last access that meta is being told beside the requests that they are of.
    pub telling_access: Running,
    /// It has no `security.capability`, as far as we have asked.
    pub bare: Cell<bool>,
    /// Another client may have given it one, and the kernel may not ask again before it passes on what takes it away ([`crate::daemon::Context::kill_capability_given`]).
    pub capability_given: Cell<bool>,
    /// Its mode is as meta last said, and no other client has changed anything since that it tells writers of.
    pub mode_known: Cell<bool>,
    /// When its blocks were last counted.
    pub counted: Cell<Instant>,
    /// A set of writes that were answered before they were sent has ended.
    pub sent: Notify,
    /// What of such writes was lost, and what others were.
    pub late: Late,
    /// The newest loss of writes to chunks that its handles hear of.
    losses: Cell<u64>,
    /// Pages that the kernel may have from before others cut it.
    pub cut_pages: CutPages,
    /// Last pages that the kernel took to end before where the file ended.
    pub old_tails: OldTails,
    /// Pages that the kernel may have, for writes that go past them.
    pub given_pages: GivenPages,
    /// Direct writes, and what the kernel takes for the length.
    pub direct: DirectWrites,
    back: RefCell<Back>,
    state: RefCell<State<F>>,
}

impl<F> OpenInode<F> {
    /// Whether nothing was written here, and meta has said nothing newer than attributes of this edition.
    pub fn is_as_of(&self, edition: &Edition) -> bool {
        let s = self.state.borrow();
        let unsent = self.back.borrow().last() != 0;
        s.dirty.generation == 0
            && !unsent
            && s.read_at.is_none()
            && !edition.is_older_than(&s.attr.edition())
    }
    /// The edition of the newest attributes that meta has said.
    pub fn edition(&self) -> Edition {
        self.state.borrow().attr.edition()
    }
}

impl<F: FileData> OpenInode<F> {
    /// Nothing known yet, but what the kernel takes for its length. What is written to it and not sent yet is counted in `waiting`.
    pub fn new(id: InodeId, kernel_len: Between, waiting: &Waiting) -> Self {
        let state = State {
            attr: Attr::default(),
            dirty: Dirty::default(),
            told: None,
            durable: None,
            read_at: None,
            reserved: 0,
            writing: 0,
            files: Vec::new(),
            content: None,
        };
        let (lease, counted) = (Cell::new(Instant(0)), Cell::new(Instant(0)));
        let (back, state) = (RefCell::new(Back::new(waiting.clone())), RefCell::new(state));
        let (sent, late) = (Notify::new(), Late::default());
        let (gate, line, bare) = (Gate::default(), Gate::default(), Cell::new(false));
        let (capability_given, mode_known) = (Cell::new(false), Cell::new(true));
        let (telling_access, losses) = (Running::default(), Cell::new(0));
        let (cut_pages, direct) = (CutPages::default(), DirectWrites::new(kernel_len));
        Self {
            id,
            gate,
            line,
            lease,
            telling_access,
            bare,
            capability_given,
            mode_known,
            counted,
            sent,
            late,
            losses,
            cut_pages,
            old_tails: OldTails::default(),
            given_pages: GivenPages::default(),
            direct,
            back,
            state,
        }
    }
    /// What was written and is not sent yet.
    pub fn back(&self) -> RefMut<'_, Back> {
        self.back.borrow_mut()
    }

    /// Writes to chunks were lost before they were durable; the number of the newest loss, see [`FileData::losses`]. Each handle hears of one once.
    pub fn note_losses(&self, newest: u64) {
        if newest > self.losses.replace(newest) {
            self.late.note(EIO);
        }
    }
    /// Takes what meta said over, unless something newer is known. Returns what is true here. In a later life of its engine, meta may have lost what it
    /// has told us: then the file is as it was before.
    pub fn merge(&self, from_meta: &Attr) -> Attr {
        let files = {
            let mut s = self.state.borrow_mut();
            let (said, knew) = (from_meta.edition(), s.attr.edition());
            let known = s.attr.inode == from_meta.inode;
            if s.told.is_some_and(|told| said.lost(&told)) {
                s.told = None;
                tracing::error!(inode = %self.id, "the metadata service has lost writes of this client with its power before they were made durable; the application hears of it at fsync or close");
                self.late.note(EIO);
            }
            if known && said.is_older_than(&knew) {
                None
            } else {
                let anew = known && said.is_of_later_life_than(&knew);
                let data = from_meta.data != s.attr.data;
                let moved = known && (anew || data || from_meta.epoch > s.attr.epoch);
                // Nobody replaced its contents, or somebody did it over, and was given the same number: what we wrote to the new ones is lost. (What goes into chunks has other data by
                // the same number.)
                let undone = anew && data && !s.attr.inline && from_meta.epoch <= s.dirty.epoch;
                if from_meta.epoch > s.dirty.epoch || undone {
                    // Somebody cut the file: what we wrote before is not its length any more.
                    s.dirty.forget_len();
                }
                // What is heard of it once more takes no place away from an append that is on its way.
                if (known && from_meta.epoch > s.attr.epoch) || undone {
                    s.reserved = 0;
                }
                if undone {
                    s.dirty.epoch = from_meta.epoch;
                }
                let mut back = self.back.borrow_mut();
                if anew {
                    back.went_back(from_meta.epoch);
                }
                // Chunks get another data id by a truncate to nothing only, of which meta may not have told us yet.
                if known && data && !s.attr.inline && from_meta.epoch > s.attr.epoch {
                    back.cut_to_nothing(from_meta.len, from_meta.epoch);
                }
                s.attr = from_meta.clone();
                self.cut_pages.heard(from_meta.len);
                moved.then(|| s.files.clone())
            }
        };
        for f in files.into_iter().flatten() {
            f.file.update_attr(from_meta);
        }
        self.attr()
    }

    /// After a truncate of ours that drained all writes: nothing local is left to report. What is written from here on goes with it, if meta loses it with
    /// its power.
    pub fn merge_truncated(&self, from_meta: &Attr) -> Attr {
        {
            let mut s = self.state.borrow_mut();
            s.dirty.forget_len();
            (s.dirty.wrote, s.dirty.mtime) = (false, None);
            s.dirty.written = 0;
            s.reserved = 0;
        }
        let attr = self.merge(from_meta);
        self.cut_pages.grew(from_meta.len);
        self.meta_was_told(from_meta);
        attr
    }

    /// The attributes as they are on this client.
    pub fn attr(&self) -> Attr {
        let (s, back) = (self.state.borrow(), self.back.borrow());
        let mut a = s.attr.clone();
        a.len = a.len.max(s.dirty.len.unwrap_or(0)).max(back.end());
        let written = s.dirty.written.saturating_add(back.unsent() as u64);
        if written > 0 {
            // As exact as it can be before it is counted.
            let grown = a.allocated.saturating_add(whole_blocks(written));
            a.allocated = grown.min(whole_blocks(a.len));
        }
        if let Some(t) = back.written_ns().map(time_of).or(s.dirty.mtime) {
            a.mtime = t;
            a.ctime = a.ctime.max(t);
        }
        a.atime = a.atime.max(s.read_at.unwrap_or(a.atime));
        a
    }
    /// It was read.
    pub fn accessed(&self, rule: AtimeRule, now_ns: u64) {
        let now = time_of(now_ns);
        let wants = self.attr().wants_atime(rule, now);
        if wants {
            self.state.borrow_mut().read_at = Some(now);
        }
    }
    /// Meta knows that it was read then.
    pub fn access_told(&self, atime: Time) {
        let mut s = self.state.borrow_mut();
        s.attr.atime = s.attr.atime.max(atime);
        if s.read_at.is_some_and(|t| t <= atime) {
            s.read_at = None;
        }
    }
    /// The time of last access that meta does not know.
    pub fn read_at(&self) -> Option<Time> {
        self.state.borrow().read_at
    }
    /// The caller has set it: what was read before does not count.
    pub fn forget_atime(&self) {
        self.state.borrow_mut().read_at = None;
    }
    /// The truncate epoch that meta last said.
    pub fn epoch(&self) -> TruncateEpoch {
        self.state.borrow().attr.epoch
    }
    /// What its chunks are stored under, as meta last said.
    pub fn data(&self) -> DataId {
        self.state.borrow().attr.data
    }
    /// The length as it is on this client.
    pub fn len(&self) -> u64 {
        self.stored_len().max(self.back.borrow().end())
    }
    /// The same without what is not sent yet.
    pub fn stored_len(&self) -> u64 {
        let s = self.state.borrow();
        s.attr.len.max(s.dirty.len.unwrap_or(0))
    }
    /// The length as meta last said.
    pub fn meta_len(&self) -> u64 {
        self.state.borrow().attr.len
    }
    /// Permission bits as meta last said.
    pub fn mode(&self) -> u32 {
        self.state.borrow().attr.mode
    }

    /// Whether a write to it may be answered before it is sent: not if it has flags, nor if what is acknowledged survives the loss of power.
    pub fn may_wait(&self) -> bool {
        let a = &self.state.borrow().attr;
        a.flags == 0 && a.layout.is_none_or(|l| l.durability != Durability::Disk)
    }
    /// Holes may be made by what is going on.
    pub fn note_holes(&self) {
        self.state.borrow_mut().dirty.holes = true;
    }
    /// Whether its contents are with the metadata, as meta last said.
    pub fn is_inline(&self) -> bool {
        self.state.borrow().attr.inline
    }
    /// Contents came with attributes.
    pub fn keep_content(&self, attr: &Attr, bytes: Vec<u8>) {
        self.state.borrow_mut().content = Some((attr.edition(), bytes.into()));
    }
    /// The contents, if they are those of the newest attributes that are known. Good only under a lease.
    pub fn content(&self) -> Option<Rc<[u8]>> {
        let s = self.state.borrow();
        let (edition, bytes) = s.content.as_ref()?;
        (s.attr.inline && *edition == s.attr.edition()).then(|| bytes.clone())
    }

    /// Whether its blocks have to be counted: something was written, and there are holes or may be.
    pub fn wants_count(&self) -> bool {
        let s = self.state.borrow();
        let sparse = s.attr.allocated < whole_blocks(s.attr.len);
        s.dirty.holes || (sparse && s.dirty.written > 0)
    }

    /// A write begins. An append gets its place: the end of what is written or being written. Call inside the gate.
    pub fn begin_write(&self, offset: u64, len: u64, append: bool) -> u64 {
        let end = self.len();
        let mut s = self.state.borrow_mut();
        if s.writing == 0 {
            s.reserved = 0;
        }
        s.writing += 1;
        // The kernel's guess does not count: what it knows of the length may be old.
        let place = if append { end.max(s.reserved) } else { offset };
        if append {
            s.reserved = place.saturating_add(len);
        }
        place
    }
    /// A write ended; if it was acknowledged, `done` is its end and the epoch it counts under. True: the file was cut
    /// elsewhere meanwhile, so meta has to be asked for its length.
    #[must_use]
    pub fn end_write(&self, done: Option<(u64, TruncateEpoch)>, written: u64, now_ns: u64) -> bool {
        let mut s = self.state.borrow_mut();
        s.writing = s.writing.saturating_sub(1);
        let Some((end, epoch)) = done else { return false };
        s.dirty.written = s.dirty.written.saturating_add(written);
        (s.dirty.wrote, s.dirty.mtime) = (true, Some(time_of(now_ns)));
        s.dirty.generation += 1;
        if epoch > s.dirty.epoch {
            s.dirty.forget_len();
            s.dirty.epoch = epoch;
        }
        if epoch == s.dirty.epoch {
            s.dirty.grown |= end > s.attr.len;
            s.dirty.len = Some(s.dirty.len.unwrap_or(0).max(end));
            self.cut_pages.grew(end);
        }
        // Contents that meta had put into chunks under an epoch that is known already are not with it any more either.
        epoch > s.attr.epoch || s.attr.inline
    }
    /// A file with at least these rights that can be used.
    pub fn find(&self, wish: &FileAccess) -> Option<Rc<OpenedFile<F>>> {
        let s = self.state.borrow();
        // Removed, it is not opened anew without what it is open with.
        let gone = s.attr.nlink == 0;
        let fits = |f: &OpenedFile<F>| {
            // Who only reads does not hang by a session for writing, which ends when the cluster has not heard of this client for a while.
            if f.access.write && !wish.write && !gone {
                return false;
            }
            // Without a session, what its opener may do now decides whether it can go on being used.
            let lasts = f.file.session().is_some() || same_right(&f.access, wish);
            f.allows(wish.read, wish.write) && lasts
        };
        s.files.iter().find(|f| fits(f)).cloned()
    }
    /// A file that can be written to.
    pub fn find_writable(&self) -> Option<Rc<OpenedFile<F>>> {
        self.state.borrow().files.iter().find(|f| f.allows(false, true)).cloned()
    }
    /// Whether somebody may store into it through a mapping: that takes a file that is read as well.
    pub fn may_be_mapped(&self) -> bool {
        self.state.borrow().files.iter().any(|f| f.access.read && f.access.write)
    }
    /// Whether one of its files cannot be used any more: the cluster ended the session while it was open.
    pub fn has_dead(&self) -> bool {
        self.state.borrow().files.iter().any(|f| !f.file.lives())
    }
    /// Adds a file.
    pub fn add(&self, file: Rc<F>, access: FileAccess) -> Rc<OpenedFile<F>> {
        let opened = Rc::new(OpenedFile { file, access, users: Cell::new(0) });
        let mut s = self.state.borrow_mut();
        if s.files.is_empty() {
            // What was lost before concerns handles that are gone.
            self.losses.set(opened.file.losses());
        }
        s.files.push(opened.clone());
        opened
    }
    /// Takes a file out that no handle uses. Whether it was there.
    pub fn remove(&self, file: &Rc<OpenedFile<F>>) -> bool {
        let files = &mut self.state.borrow_mut().files;
        let before = files.len();
        files.retain(|f| !Rc::ptr_eq(f, file));
        files.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamFile;

    /// Meta can put contents into chunks under the epoch that is known here already: whoever wrote there does not go on reading from what came with the
    /// attributes.
    #[test]
    fn a_write_to_chunks_of_what_was_with_the_metadata_has_meta_asked() {
        let open = OpenInode::<RamFile>::new(InodeId(5), Between::default(), &Waiting::default());
        let epoch = TruncateEpoch(3);
        let attr = Attr { inode: InodeId(5), epoch, inline: true, change: 7, ..Attr::default() };
        open.merge(&attr);
        open.keep_content(&attr, b"old".to_vec());
        let write = || {
            let end = open.begin_write(0, 10, false) + 10;
            open.end_write(Some((end, epoch)), 10, 0)
        };
        assert!(write(), "«old» is not what was written");
        open.merge(&Attr { inline: false, change: 8, ..attr });
        assert!(open.content().is_none());
        assert!(!write(), "meta has said so");
    }
}
