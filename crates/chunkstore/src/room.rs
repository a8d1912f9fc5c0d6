//! What is kept back so that a full disk gets out of being full: removals must be logged, and a checkpoint must be written, when nothing
//! can be allocated any more.
//!
//! - [`RESERVE_SEGMENTS`] of the log are allocated ahead; only records that take no room, or give some back, go there.
//! - A checkpoint that finds no slot for some blocks of the log leaves them there: their segments stay, all others are free again.
//! - The next checkpoint's file is allocated when the last one was written; a superblock that finds no room takes some of it.
//! - Room goes between the classes of slots ([`crate::slots`]), and from free slots to a checkpoint.

use crate::checkpoint::Upto;
use crate::format::BLOCK;
use crate::log::{is_no_space, segment_name};
use crate::state::Inner;
use glowfs_rt::backend::OpenOptions;
use glowfs_rt::{Duration, File};
use glowfs_types::Result;
use std::io;
use std::rc::Rc;

/// Segments that are kept for records that make room.
pub(crate) const RESERVE_SEGMENTS: usize = 1;
/// The file that the next checkpoint is written to.
pub(crate) const CHECKPOINT_SPARE: &str = "checkpoint.spare";
/// The least size of that file, in bytes.
const SPARE_BYTES_MIN: u64 = 1 << 20;
/// Between two checkpoints that are attempted because the disk is full.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Room that an update will take: as long as this lives, it does not count as free.
pub struct Promise {
    inner: Rc<Inner>,
    bytes: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        let promised = &self.inner.promised;
        promised.set(promised.get().saturating_sub(self.bytes));
    }
}

impl Inner {
    /// See [`crate::Store::promise`].
    pub fn promise(self: &Rc<Self>, payload: u64) -> Promise {
        // Slots are at most twice as great as what they hold (`slots::pieces`).
        let bytes = payload.next_power_of_two().max(BLOCK as u64);
        self.promised.set(self.promised.get().saturating_add(bytes));
        Promise { inner: self.clone(), bytes }
    }

    /// Segment files that the log may have, without the reserve.
    pub fn segments_usual(&self) -> u32 {
        (self.config.log_bytes_max / self.config.log_segment_bytes).max(4) as u32
    }

    /// Segment files at most.
    pub fn segments_max(&self) -> u32 {
        self.segments_usual().saturating_add(RESERVE_SEGMENTS as u32)
    }

    /// Makes one more segment file; it is free.
    pub async fn add_segment_file(&self) -> Result<()> {
        // The number is taken at once: the log and a checkpoint may both want a file.
        let index = self.log.numbers.get();
        self.log.numbers.set(index + 1);
        self.log.files.set(self.log.files.get() + 1);
        match self.make_segment_file(index).await {
            Ok(file) => {
                self.log.free.borrow_mut().insert(0, (index, file));
                Ok(())
            }
            Err(e) => {
                // What is there of it could not be written to. The number is given back only behind that: who takes it makes a file of this name. If
                // another one was made meanwhile, it is left out.
                let _ = self.dir.remove(&segment_name(index)).await;
                self.log.files.set(self.log.files.get() - 1);
                if self.log.numbers.get() == index + 1 {
                    self.log.numbers.set(index);
                }
                Err(if is_no_space(&e) {
                    self.no_space("the log", &e)
                } else {
                    self.poison("making a log segment", &e)
                })
            }
        }
    }

    async fn make_segment_file(&self, index: u32) -> io::Result<File> {
        let options = OpenOptions { create: true, direct: true };
        let file = self.open_waiting(&segment_name(index), options).await?;
        file.allocate(0, self.config.log_segment_bytes).await?;
        // Its room must outlast a loss of power: it may be the reserve of the next life.
        file.sync().await?;
        self.space_taken(self.config.log_segment_bytes);
        self.flush.dirty_dir.set(true);
        Ok(file)
    }

    /// At start-up: free segments without room of their own (made just before a loss of power) get it, or are left alone.
    async fn check_free_segments(&self) -> Result<()> {
        let free = self.log.free.take();
        for (index, file) in free {
            let name = segment_name(index);
            let room = file.room_bytes().map_err(|e| self.read_error(&name, &e))?;
            if room < self.config.log_segment_bytes
                && let Err(e) = file.allocate(0, self.config.log_segment_bytes).await
            {
                tracing::warn!(disk = self.dir.path(), segment = name, error = %e, "no room for a free log segment");
                self.log.files.set(self.log.files.get() - 1);
                continue;
            }
            self.log.free.borrow_mut().push((index, file));
        }
        Ok(())
    }

    /// A segment for a new life. On a full disk whose last life has used the reserve, a checkpoint frees one.
    pub async fn first_segment(self: &Rc<Self>) -> Result<(u32, File)> {
        self.check_free_segments().await?;
        if self.log.free.borrow().is_empty()
            && let Err(e) = self.add_segment_file().await
        {
            let made = self.checkpoint_now(Upto::All).await;
            if self.log.free.borrow().is_empty() {
                return Err(made.err().unwrap_or(e));
            }
        }
        let free = self.log.free.borrow_mut().pop();
        free.ok_or_else(|| self.no_space("the log", &"no segment is free"))
    }

    /// Fills the reserve of the log up, as far as there is room.
    pub async fn keep_reserve(&self) {
        while self.log.free.borrow().len() < RESERVE_SEGMENTS
            && self.log.files.get() < self.segments_max()
        {
            if let Err(e) = self.add_segment_file().await {
                tracing::warn!(error = %e, "no reserve for the log");
                return;
            }
        }
    }

    /// Attempts a checkpoint because the disk is full, unless that was done a moment ago.
    pub fn retry_checkpoint(self: &Rc<Self>) {
        let now = self.rt.now();
        if self.checkpoint_tried.get().is_none_or(|at| now.since(at) >= RETRY_PAUSE) {
            self.checkpoint_tried.set(Some(now));
            self.start_checkpoint();
        }
    }

    /// Allocates the file of the next checkpoint: as much as was written of the last one and a quarter more (its file may be longer). Done as far as there is room.
    pub async fn keep_checkpoint_spare(&self, last: u64) {
        let bytes = (last + last / 4).max(SPARE_BYTES_MIN).next_multiple_of(BLOCK as u64);
        let options = OpenOptions { create: true, direct: true };
        let made = async {
            let file = self.dir.open(CHECKPOINT_SPARE, options).await?;
            self.checkpoint_spare.set(true);
            file.allocate(0, bytes).await
        };
        if let Err(e) = made.await {
            tracing::debug!(error = %e, "no room for the next checkpoint yet");
        }
    }

    /// Gives something up for a thing that is small and cannot wait, while no updates run; whether there was anything.
    pub async fn make_a_little_room(self: &Rc<Self>) -> Result<bool> {
        if self.checkpoint_spare.take() && self.dir.remove(CHECKPOINT_SPARE).await.is_ok() {
            return Ok(true);
        }
        if self.release_room(0, 1).await? > 0 {
            return Ok(true);
        }
        let free = self.log.free.borrow().iter().map(|(_, file)| file.clone()).collect::<Vec<_>>();
        for file in free {
            let error = |e| self.read_error("punching a free log segment", &e);
            if file.room_bytes().map_err(error)? > 0 {
                // It gets its room again before it is used.
                file.punch(0, self.config.log_segment_bytes).await.map_err(error)?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}
