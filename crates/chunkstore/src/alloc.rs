//! Getting slots: from the free ones, or by growing a block file.

use crate::log::is_no_space;
use crate::slots::{bytes_of, file_name, pieces};
use crate::state::Inner;
use glowfs_rt::File;
use glowfs_rt::backend::OpenOptions;
use glowfs_types::{Error, Result, Status};
use std::rc::Rc;

/// Slots that were taken and are not referred to yet; dropping it gives them back.
pub(crate) struct Taken {
    inner: Rc<Inner>,
    /// Class, number, blocks used.
    pub list: Vec<(u8, u32, u32)>,
}

impl Taken {
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
        let mut taken = Taken { inner: self.clone(), list: Vec::new() };
        for (class, used) in pieces(blocks) {
            let index = self.take_slot(class, reserve).await?;
            taken.list.push((class, index, used));
        }
        Ok(taken)
    }

    async fn take_slot(self: &Rc<Self>, class: u8, reserve: bool) -> Result<u32> {
        let capacity = self.config.capacity_bytes;
        let mut flushed = false;
        loop {
            let over = capacity > 0
                && !reserve
                && self.slots.borrow().used_bytes() + bytes_of(class) > capacity;
            if !over {
                if let Some(index) = self.slots.borrow_mut().take(class) {
                    return Ok(index);
                }
                if self.grow(class, reserve).await? {
                    continue;
                }
            }
            // What was removed is free once its removal is durable.
            let waiting = !self.retired.borrow().is_empty();
            if flushed || !waiting {
                return Err(self.no_space("chunks", &"the disk is full"));
            }
            flushed = true;
            if reserve {
                // Who empties the log reads it meanwhile, and must not wait for himself.
                self.flush_to(self.log.written.get()).await?;
                self.reap();
            } else {
                self.free_retired().await?;
            }
        }
    }

    /// Makes the class's file greater; `false` if there is no room. One file grows at a time.
    async fn grow(self: &Rc<Self>, class: u8, reserve: bool) -> Result<bool> {
        let before = self.slots.borrow().total(class);
        self.grown.wait(|| (!self.growing.get()).then_some(())).await;
        if self.slots.borrow().total(class) != before {
            return Ok(true);
        }
        self.growing.set(true);
        let result = self.grow_now(class, reserve).await;
        self.growing.set(false);
        self.grown.wake();
        result
    }

    async fn grow_now(&self, class: u8, reserve: bool) -> Result<bool> {
        let file = self.block_file(class).await?;
        let free = self.dir.space().map_err(|e| self.read_error("space", &e))?.free_bytes;
        let keep = if reserve { 0 } else { self.config.reserve_bytes };
        let total = self.slots.borrow().total(class);
        let mut step = self.slots.borrow().step(class);
        while step > 0 {
            let bytes = u64::from(step) * bytes_of(class);
            if total.checked_add(step).is_some() && free >= keep.saturating_add(bytes) {
                match file.allocate(u64::from(total) * bytes_of(class), bytes).await {
                    Ok(()) => {
                        self.space_taken(bytes);
                        self.flush.dirty_classes.borrow_mut().insert(class);
                        self.slots.borrow_mut().grown(class, total + step);
                        return Ok(true);
                    }
                    Err(e) if is_no_space(&e) => {}
                    Err(e) => {
                        return Err(self.read_error(&format!("growing {}", file_name(class)), &e));
                    }
                }
            }
            step /= 2;
        }
        Ok(false)
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
        let file = self.dir.open(&name, OpenOptions { create: true, direct: true }).await.map_err(
            |e| if is_no_space(&e) { self.no_space(&name, &e) } else { self.read_error(&name, &e) },
        )?;
        self.flush.dirty_dir.set(true);
        Ok(self.block_files.borrow_mut().entry(class).or_insert(file).clone())
    }
}

/// The error for a chunk that cannot be what it should.
pub(crate) fn corrupt(what: String) -> Error {
    Error::new(Status::Corrupt, what)
}
