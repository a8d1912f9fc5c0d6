//! [`Consumer`]: the daemon's end of a ring. Everything that it reads was written by an application that may be hostile.

use crate::doorbell;
use crate::layout::{self, Completion, Submission, at};
use crate::memory::SharedMemory;
use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

/// The application wrote something that no application may write; the ring is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the application broke its ring: {0}")]
pub struct Broken(pub &'static str);

/// What a ring ends with whose application broke it.
const EPROTO: u32 = libc::EPROTO as u32;

/// See the module.
///
/// Indices of its own are kept outside the shared memory; those of the application are read once for each decision.
pub struct Consumer {
    memory: SharedMemory,
    entries: u32,
    submit_head: Cell<u32>,
    complete_tail: Cell<u32>,
    /// Taken and not completed.
    working: Cell<u32>,
    /// Completions are there that the application was not woken for.
    untold: Cell<bool>,
}

impl Consumer {
    /// Takes over a ring that the application has made.
    pub fn new(memory: SharedMemory, entries: u32) -> Result<Self, Broken> {
        if !layout::valid_entries(entries) {
            return Err(Broken("the number of entries is not a power of two up to 65536"));
        }
        if memory.len() < layout::ring_bytes(entries) {
            return Err(Broken("the memory is too short for so many entries"));
        }
        if memory.load::<u64>(at::MAGIC) != layout::MAGIC {
            return Err(Broken("the memory does not begin with the mark of a ring"));
        }
        if memory.load::<u32>(at::ENTRIES) != entries {
            return Err(Broken("the memory states another number of entries"));
        }
        let zero = Cell::new(0);
        Ok(Self {
            memory,
            entries,
            submit_head: zero.clone(),
            complete_tail: zero.clone(),
            working: zero,
            untold: Cell::new(false),
        })
    }

    /// Entries of each queue.
    pub fn entries(&self) -> u32 {
        self.entries
    }
    /// Taken and not completed.
    pub fn working(&self) -> u32 {
        self.working.get()
    }

    /// How many submissions could be taken now.
    pub fn available(&self) -> Result<u32, Broken> {
        let tail = self.memory.atomic(at::SUBMIT_TAIL).load(Acquire);
        let there = tail.wrapping_sub(self.submit_head.get());
        if there > self.entries {
            return Err(self.give_up("its submit index is wild"));
        }
        // Each one taken must find room for its completion.
        let unread = self.unread()?;
        Ok(there.min(self.entries - unread.saturating_add(self.working.get()).min(self.entries)))
    }
    /// Completions that the application has not taken.
    fn unread(&self) -> Result<u32, Broken> {
        let head = self.memory.atomic(at::COMPLETE_HEAD).load(Acquire);
        let unread = self.complete_tail.get().wrapping_sub(head);
        if unread > self.entries {
            return Err(self.give_up("its completion index is wild"));
        }
        Ok(unread)
    }

    /// Takes the next submission. Call as often as [`Consumer::available`] said.
    pub fn take(&self) -> Submission {
        let head = self.submit_head.get();
        let slot = (head & (self.entries - 1)) as usize;
        let s = self.memory.load(at::SUBMISSIONS + slot * size_of::<Submission>());
        self.submit_head.set(head.wrapping_add(1));
        self.memory.atomic(at::SUBMIT_HEAD).store(head.wrapping_add(1), Release);
        self.working.set(self.working.get() + 1);
        s
    }

    /// Answers one that was taken, and wakes the application if it waits.
    pub fn complete(&self, completion: Completion) {
        self.put(completion);
        self.tell();
    }
    /// Answers one that was taken. The application may find it; if it sleeps, [`Consumer::tell`] must follow.
    pub fn put(&self, completion: Completion) {
        let tail = self.complete_tail.get();
        let slot = (tail & (self.entries - 1)) as usize;
        let at = layout::completions_at(self.entries) + slot * size_of::<Completion>();
        self.memory.store(at, completion);
        self.complete_tail.set(tail.wrapping_add(1));
        self.working.set(self.working.get().saturating_sub(1));
        self.memory.atomic(at::COMPLETE_TAIL).store(tail.wrapping_add(1), SeqCst);
        self.untold.set(true);
    }
    /// Wakes the application if it waits and something was put since.
    pub fn tell(&self) {
        if self.untold.take() {
            doorbell::wake(&self.memory, at::APPLICATION_WAITS);
        }
    }

    /// Says in the memory that the daemon waits for the doorbell (or no longer does). After `true`, ask
    /// [`Consumer::available`] once more before sleeping: the application may have looked just before.
    pub fn sleeps(&self, yes: bool) {
        self.memory.atomic(at::DAEMON_SLEEPS).store(yes.into(), SeqCst);
        std::sync::atomic::fence(SeqCst);
    }

    /// Tells the application that this ring is over.
    fn give_up(&self, why: &'static str) -> Broken {
        self.end(EPROTO);
        Broken(why)
    }
    /// Tells the application that this ring is over, with the errno that it gets from now on.
    pub fn end(&self, errno: u32) {
        self.memory.atomic(at::BROKEN).store(errno, SeqCst);
        doorbell::wake(&self.memory, at::APPLICATION_WAITS);
    }
}
