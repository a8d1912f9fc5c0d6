//! Commands to drivers: what the ring keeps of them, and the wide requests that carry them.

use crate::backend::{Command, Commanded};
use io_uring::{opcode, squeue, types};
use slab::Slab;
use std::any::Any;
use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Waker};

/// Where a request has its length (include/uapi/linux/io_uring.h); the crate has no way to set it for a command.
const LEN_OFFSET_BYTES: usize = 24;

/// The width of a ring's requests.
pub(crate) trait Width: squeue::EntryMarker + 'static {
    /// Whether they have room for commands.
    const COMMANDS: bool;
    /// The request of a command.
    fn command(command: &Command) -> Option<Self>;
}

impl Width for squeue::Entry {
    const COMMANDS: bool = false;
    fn command(_: &Command) -> Option<Self> {
        None
    }
}

impl Width for squeue::Entry128 {
    const COMMANDS: bool = true;
    fn command(command: &Command) -> Option<Self> {
        let (place, len) = command.place;
        let mut entry = opcode::UringCmd80::new(types::Fd(command.fd.as_raw_fd()), command.op)
            .cmd(command.data)
            .addr(Some(place as u64))
            .build();
        // SAFETY: an entry is 128 plain bytes laid out as the kernel wants them, of which these four are the length.
        unsafe {
            let at = std::ptr::from_mut(&mut entry).cast::<u8>().add(LEN_OFFSET_BYTES);
            at.cast::<u32>().write(len);
        }
        Some(entry)
    }
}

struct Kept {
    _fd: Arc<OwnedFd>,
    _memory: Rc<dyn Any>,
    tell: Weak<dyn Commanded>,
    tag: u64,
}

/// The commands that drivers have. They end when their drivers please, so nothing waits for them: what they keep goes with the ring.
#[derive(Default)]
pub(crate) struct Commands {
    kept: RefCell<Slab<Kept>>,
    /// Who waits until the kernel has taken them.
    waiting: RefCell<Vec<Waker>>,
}

impl Commands {
    /// The key that [`Commands::insert`] gives next.
    pub(crate) fn next_key(&self) -> usize {
        self.kept.borrow().vacant_key()
    }
    pub(crate) fn insert(&self, command: Command) {
        let Command { fd, keep, tell, tag, .. } = command;
        self.kept.borrow_mut().insert(Kept { _fd: fd, _memory: keep, tell, tag });
    }
    pub(crate) fn answered(&self, key: usize, answer: i32) {
        let kept = self.kept.borrow_mut().try_remove(key);
        if let Some(kept) = kept
            && let Some(tell) = kept.tell.upgrade()
        {
            tell.commanded(kept.tag, answer);
        }
    }
    pub(crate) fn wait_until_handed_over(&self, cx: &Context<'_>) {
        self.waiting.borrow_mut().push(cx.waker().clone());
    }
    pub(crate) fn handed_over(&self) {
        if !self.waiting.borrow().is_empty() {
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
    }
}
