//! What meta has to be told of our writes to an open inode, what it was told, and what of that is durable.
//!
//! A write that failed counts as well, but for the length: some of it may be there. Must never: forget a write before meta knows its length and its time under the truncate epoch that it was made under.

use super::OpenInode;
use crate::attr::time_of;
use crate::filesystem::FileData;
use glowfs_types::wire::meta::{Attr, Time};
use glowfs_types::{DataId, Durability, Error, Status, TruncateEpoch};

/// What our writes did that meta does not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// The greatest end of an acknowledged write.
    pub len: Option<u64>,
    /// That was behind the length that meta was known to know, which may come from such a report since.
    pub grown: bool,
    /// The truncate epoch that it was made under.
    pub epoch: TruncateEpoch,
    /// Something was written, or may have been by a write that failed.
    pub wrote: bool,
    /// When the last one ended, unless the caller has set the time since.
    pub mtime: Option<Time>,
    /// Grows with every write.
    pub generation: u64,
    /// Bytes written.
    pub written: u64,
    /// A hole was made, or may have been.
    pub holes: bool,
}

/// Whether others do not hear otherwise of what may have come of a write that ended so: by the cut that was faster, or when meta ends the session. Or nothing was sent.
const fn may_be_done(status: Status) -> bool {
    !matches!(status, Status::Stale | Status::SessionEnded | Status::FileTooBig)
}

impl Dirty {
    pub(super) fn forget_len(&mut self) {
        (self.len, self.grown) = (None, false);
    }
}

/// What of the attributes is needed to find the bytes of a file again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Finding {
    len: u64,
    epoch: TruncateEpoch,
    data: DataId,
    inline: bool,
}

impl Finding {
    fn of(a: &Attr) -> Self {
        Self { len: a.len, epoch: a.epoch, data: a.data, inline: a.inline }
    }
}

impl<F: FileData> OpenInode<F> {
    /// A write has failed of which some may be there, or come to be there: others are to hear of it as of one that was acknowledged. It makes the file no longer: how far it came
    /// nobody knows, and what it has left behind the end is cut off before anybody can see it.
    pub fn failed_to_write(&self, error: &Error, now_ns: u64) {
        if may_be_done(error.status) {
            self.may_have_written(now_ns);
        }
    }
    /// The same, whatever it was that failed: nobody else tells of it.
    pub fn may_have_written(&self, now_ns: u64) {
        let mut s = self.state.borrow_mut();
        (s.dirty.wrote, s.dirty.mtime) = (true, Some(time_of(now_ns)));
        s.dirty.generation += 1;
    }
    /// Times were set by the caller: the last write's time is not to overrule them. That something was written is told all the same.
    pub fn forget_mtime(&self) {
        self.state.borrow_mut().dirty.mtime = None;
    }

    /// Whether the length that meta knows is short of what was written.
    pub fn grew(&self) -> bool {
        let s = self.state.borrow();
        s.dirty.len.is_some_and(|len| len > s.attr.len)
    }
    /// Whether a write must not be answered before meta has its length durably: the file's writes survive the loss of power without an
    /// fsync, and bytes behind a short length would not be there.
    pub fn owes_length(&self) -> bool {
        let s = self.state.borrow();
        let disk = s.attr.layout.is_some_and(|l| l.durability == Durability::Disk);
        disk && s.dirty.len.is_some_and(|len| len > s.attr.len)
    }
    /// What has to be reported to meta, if anything.
    pub fn dirty(&self) -> Option<Dirty> {
        let s = self.state.borrow();
        let d = s.dirty;
        (d.len.is_some() || d.wrote || d.holes).then_some(d)
    }
    /// Meta knows of writes of ours, and may lose that with its power.
    pub fn meta_was_told(&self, from_meta: &Attr) {
        let said = from_meta.edition();
        let mut s = self.state.borrow_mut();
        if s.told.is_none_or(|told| told.is_older_than(&said)) {
            s.told = Some(said);
        }
    }
    /// What meta knows as of this answer is durable.
    pub fn durable(&self, from_meta: &Attr) {
        let mut s = self.state.borrow_mut();
        s.told = s.told.filter(|told| from_meta.edition().is_older_than(told));
        s.durable = Some(Finding::of(from_meta));
        if s.dirty.epoch == from_meta.epoch && s.dirty.len.is_some_and(|l| l <= from_meta.len) {
            s.dirty.grown = false;
        }
    }
    /// Whether bytes on the disks can be found again after a loss of power without a word to meta: it has them durably where they are.
    pub fn is_found_durably(&self) -> bool {
        let s = self.state.borrow();
        !self.grew() && s.told.is_none() && s.durable == Some(Finding::of(&s.attr))
    }
    /// `reported` is known to meta now, with how many blocks there are if they were counted; `from_meta` is its answer.
    pub fn reported(&self, reported: Dirty, counted: bool, from_meta: &Attr) {
        let counted = counted || !self.wants_count();
        // Otherwise the chunks hold what was written, whatever meta loses.
        self.merge(from_meta);
        if reported.grown {
            self.meta_was_told(from_meta);
        }
        let mut s = self.state.borrow_mut();
        if s.dirty.generation == reported.generation {
            s.dirty.forget_len();
            (s.dirty.wrote, s.dirty.mtime) = (false, None);
        }
        if counted {
            // What was written since is counted the next time.
            s.dirty.written -= s.dirty.written.min(reported.written);
            s.dirty.holes = false;
        }
        if s.read_at.is_some_and(|t| t <= from_meta.atime) {
            s.read_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::back::Waiting;
    use crate::kernel_len::Between;
    use crate::ram::RamFile;
    use glowfs_types::InodeId;

    /// What is reported once more, for it was overwritten meanwhile, is no loss if meta has the length durably.
    #[test]
    fn a_length_that_is_durable_has_not_grown() {
        let open = OpenInode::<RamFile>::new(InodeId(5), Between::default(), &Waiting::default());
        let attr = Attr { inode: InodeId(5), change: 7, ..Attr::default() };
        open.merge(&attr);
        let write = |end| {
            open.begin_write(0, end, false);
            let _ = open.end_write(Some((end, attr.epoch)), end, 0);
            open.dirty().expect("written")
        };
        let grown = write(10);
        assert!(grown.grown);
        write(5);
        let after = Attr { len: 10, change: 8, ..attr.clone() };
        open.reported(grown, false, &after);
        assert!(open.dirty().expect("overwritten").grown, "meta may lose it");
        open.durable(&after);
        assert!(!open.dirty().expect("overwritten").grown);
        assert!(write(11).grown);
    }
}
