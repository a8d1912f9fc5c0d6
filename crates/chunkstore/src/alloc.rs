//! Getting slots: from the free ones, or by growing a block file.

use crate::log::is_no_space;
use crate::slots::{Run, bytes_of, file_name, pieces};
use crate::state::Inner;
use glowfs_rt::File;
use glowfs_rt::backend::{OpenOptions, Part};
use glowfs_types::{Error, Result, Status};
use std::rc::Rc;

/// Room of other classes that is given back at a time when a class finds none, at most, in bytes.
pub(crate) const RELEASE_BYTES: u64 = 16 << 20;

/// Slots that were taken and are not referred to yet; dropping it gives them back.
pub(crate) struct Taken {
    inner: Rc<Inner>,
    /// Class, number, blocks used.
    pub list: Vec<(u8, u32, u32)>,
}

impl Taken {
    /// None yet.
    pub fn none(inner: &Rc<Inner>) -> Self {
        Self { inner: inner.clone(), list: Vec::new() }
    }
    /// They are referred to now.
    pub fn keep(mut self) {
        self.list.clear();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut slots = self.inner.slots.borrow_mut();
        for (class, index, _) in self.list.drain(..) {
            slots.give_back(class, index);
        }
    }
}

impl Inner {
    /// Slots for so many blocks. `reserve`: may use the room that is kept for checkpoints.
    pub async fn take_slots(self: &Rc<Self>, blocks: u32, reserve: bool) -> Result<Taken> {
        let mut taken = Taken::none(self);
        for (class, used) in pieces(blocks) {
            let index = self.take_slot(class, reserve).await?;
            taken.list.push((class, index, used));
        }
        Ok(taken)
    }

    async fn take_slot(self: &Rc<Self>, class: u8, reserve: bool) -> Result<u32> {
        if let Some(index) = self.try_take(class, reserve).await? {
            return Ok(index);
        }
        // What was removed is free once its removal is durable ...
        self.left().await;
        if !self.retired.borrow().is_empty() {
            self.flush_to(self.log.written.get()).await?;
            self.reap_all().await;
            if let Some(index) = self.try_take(class, reserve).await? {
                return Ok(index);
            }
        }
        // ... and nobody reads it any more. A fold must not wait for that: it counts as a reader itself.
        if !self.retired.borrow().is_empty() && !reserve {
            self.free_retired().await?;
            if let Some(index) = self.try_take(class, reserve).await? {
                return Ok(index);
            }
        }
        if !reserve {
            self.compact_for_room();
        }
        Err(self.no_space("chunks", &"the disk is full"))
    }

    /// A slot, if one is free or there is room for more of them. Waits for no readers.
    pub async fn try_take(self: &Rc<Self>, class: u8, reserve: bool) -> Result<Option<u32>> {
        let capacity = self.config.capacity_bytes;
        loop {
            let used = self.slots.borrow().used_bytes();
            if capacity > 0 && !reserve && used + bytes_of(class) > capacity {
                return Ok(None);
            }
            let free = self.slots.borrow_mut().take(class);
            if free.is_some() || !self.grow(class, reserve).await? {
                return Ok(free);
            }
        }
    }

    /// Makes the class's file greater; `false` if there is no room. One file grows at a time.
    async fn grow(self: &Rc<Self>, class: u8, reserve: bool) -> Result<bool> {
        self.grown.wait(|| (!self.growing.get()).then_some(())).await;
        if self.slots.borrow().has_free(class) {
            return Ok(true);
        }
        self.growing.set(true);
        let result = self.grow_now(class, reserve).await;
        self.growing.set(false);
        self.grown.wake();
        result
    }

    async fn grow_now(self: &Rc<Self>, class: u8, reserve: bool) -> Result<bool> {
        let free = self.dir.space().map_err(|e| self.read_error("space", &e))?.free_bytes;
        if self.grow_by(class, free.saturating_sub(self.config.reserve_bytes)).await? > 0 {
            return Ok(true);
        }
        // What other classes do not use. All of it is ours, even when logs have taken of the reserve: the disk gets no fuller by it.
        let step = u64::from(self.slots.borrow().step(class)) * bytes_of(class);
        let released =
            self.release_room(class, step.min(RELEASE_BYTES).max(bytes_of(class))).await?;
        if self.grow_all(class, released).await? > 0 {
            return Ok(true);
        }
        // Of the reserve the one slot that is needed: free ones would count as room for clients.
        Ok(reserve && self.grow_by(class, bytes_of(class)).await? > 0)
    }

    /// Makes the class's file greater by so many bytes in all, as far as there is room; by how much.
    async fn grow_all(&self, class: u8, bytes: u64) -> Result<u64> {
        let mut grown = 0;
        loop {
            let more = self.grow_by(class, bytes - grown).await?;
            grown += more;
            if more == 0 {
                return Ok(grown);
            }
        }
    }

    /// Makes the class's file greater by a step, and by at most `most` bytes; by how much. 0: there is no room for a slot.
    async fn grow_by(&self, class: u8, most: u64) -> Result<u64> {
        let file = self.block_file(class).await?;
        let slots = u32::try_from(most / bytes_of(class)).unwrap_or(u32::MAX);
        let mut step = self.slots.borrow().step(class).min(slots);
        while step > 0 {
            let Some(run) = self.slots.borrow().growth(class, step) else { return Ok(0) };
            let (at, bytes) = run.range();
            match file.allocate(at, bytes).await {
                Ok(()) => {
                    self.space_taken(bytes);
                    self.flush.dirty_classes.borrow_mut().insert(class);
                    self.slots.borrow_mut().filled(run);
                    return Ok(bytes);
                }
                // The greatest file that the file system takes is no failure of the disk.
                Err(e) if is_no_space(&e) || e.kind() == std::io::ErrorKind::FileTooLarge => {}
                Err(e) => {
                    return Err(self.read_error(&format!("growing {}", file_name(class)), &e));
                }
            }
            step = step.min(run.count) / 2;
        }
        Ok(0)
    }

    /// Gives room of free slots of other classes back to the file system, about so much; how much it was, in bytes.
    pub async fn release_room(self: &Rc<Self>, but: u8, bytes: u64) -> Result<u64> {
        let mut released = 0;
        while released < bytes {
            let run = self.slots.borrow_mut().release(but, bytes - released);
            let Some(run) = run else { break };
            self.punch(run).await?;
            released += run.range().1;
        }
        if released > 0 {
            tracing::debug!(disk = self.dir.path(), released, "free slots given back");
        }
        Ok(released)
    }

    async fn punch(&self, run: Run) -> Result<()> {
        let file = self.block_file(run.class).await?;
        let (at, bytes) = run.range();
        let punched = file.punch(at, bytes).await;
        self.slots.borrow_mut().punched(run, punched.is_ok());
        punched.map_err(|e| self.read_error(&format!("punching {}", file_name(run.class)), &e))?;
        self.flush.dirty_classes.borrow_mut().insert(run.class);
        self.space_given(bytes);
        Ok(())
    }

    /// At start-up: which free slots are holes is not written down. Those become holes that lack room, of which a part may be there; the others keep theirs,
    /// which on a nearly full disk could not be had again. Where the file system does not tell where a file has room, all free ones of a file that lacks some become
    /// holes.
    pub async fn find_holes(&self) -> Result<()> {
        let files: Vec<_> =
            self.block_files.borrow().iter().map(|(c, f)| (*c, f.clone())).collect();
        for (class, file) in files {
            let error = |e| self.read_error(&file_name(class), &e);
            let missing =
                file.len().map_err(error)?.saturating_sub(file.room_bytes().map_err(error)?);
            if missing == 0 {
                continue;
            }
            let rooms = file.rooms().await.map_err(error)?;
            let has = |at, bytes| rooms.as_ref().is_some_and(|parts| covers(parts, at, bytes));
            let lacking = self.slots.borrow_mut().take_lacking(class, has);
            for run in lacking {
                self.punch(run).await?;
            }
        }
        Ok(())
    }

    /// An error of the disk that does not put the store's state in doubt.
    pub fn read_error(&self, what: &str, cause: &dyn std::fmt::Display) -> Error {
        Error::new(
            Status::DiskFailed,
            format!("{}: {what} failed: {cause}; check the disk", self.dir.path()),
        )
    }

    /// The file of a class, made if need be.
    pub async fn block_file(&self, class: u8) -> Result<File> {
        if let Some(file) = self.block_files.borrow().get(&class) {
            return Ok(file.clone());
        }
        let name = file_name(class);
        let options = OpenOptions { create: true, direct: true };
        let file = self.open_waiting(&name, options).await.map_err(|e| {
            if is_no_space(&e) { self.no_space(&name, &e) } else { self.read_error(&name, &e) }
        })?;
        self.flush.dirty_dir.set(true);
        Ok(self.block_files.borrow_mut().entry(class).or_insert(file).clone())
    }
}

/// Whether one of the parts holds all of these bytes.
fn covers(parts: &[Part], at: u64, bytes: u64) -> bool {
    let first = parts.partition_point(|p| p.end <= at);
    parts.get(first).is_some_and(|p| p.start <= at && at + bytes <= p.end)
}

/// The error for a chunk that cannot be what it should.
pub(crate) fn corrupt(what: String) -> Error {
    Error::new(Status::Corrupt, what)
}
