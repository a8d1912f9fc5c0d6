//! [`Session`]: what an application shares with the mount through one open directory.

use super::closing::Kept;
use super::copies::Lent;
use super::names::Named;
use super::turns::Turns;
use super::{SESSION_OPERATIONS_MAX, SESSION_WORK_BYTES_MAX};
use glowfs_rt::sync::Share;
use glowfs_rt::sync::{Notify, Semaphore};
use glowfs_types::Depth;
use glowfs_usrbio::{Consumer, Doorbell, Identity, Kind};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// See the module.
pub(super) struct Session {
    /// Who has it may add files.
    pub secret: u64,
    /// Who opened it.
    pub user: u32,
    /// Memory by number.
    pub buffers: RefCell<BTreeMap<u32, SharedBuffer>>,
    /// FUSE handles by number. A handle that was closed is not there any more, whatever stands here: handles are never reused.
    pub files: RefCell<BTreeMap<u32, u64>>,
    /// Rings by number.
    pub rings: RefCell<BTreeMap<u32, Rc<Ring>>>,
    /// Buffers and rings that are being made.
    pub buffers_coming: Cell<usize>,
    pub rings_coming: Cell<usize>,
    /// Bytes of its operations in work.
    pub turns: Turns,
    /// Operations that its rings may still take.
    pub operations: Semaphore,
    /// It is over: nothing more is added.
    pub ended: Cell<bool>,
    /// What it is of the sessions of its user.
    _share: Share<u32>,
}

/// Memory that an application shares.
pub(super) struct SharedBuffer {
    pub memory: Rc<Lent>,
    /// The process that shared it, its descriptor there, and which memory that was.
    pub place: (u32, i32, Identity),
    /// By what others find it.
    pub name: Option<Named>,
}

/// One ring.
pub(super) struct Ring {
    pub consumer: Kept<Consumer>,
    pub bell: Doorbell,
    pub kind: Kind,
    pub depth: Depth,
    pub priority: i32,
    pub timeout_ms: u32,
    pub flags: u32,
    /// It is over: nothing more is taken.
    pub ended: Cell<bool>,
    /// An operation was completed, or the ring ended.
    pub moved: Notify,
}

impl Ring {
    pub fn end(&self) {
        self.ended.set(true);
        self.consumer.end(libc::ENOTCONN as u32);
        self.moved.notify_all();
    }
}

impl Session {
    pub fn new(secret: u64, user: u32, share: Share<u32>) -> Self {
        Self {
            secret,
            user,
            buffers: RefCell::default(),
            files: RefCell::default(),
            rings: RefCell::default(),
            buffers_coming: Cell::new(0),
            rings_coming: Cell::new(0),
            turns: Turns::new(SESSION_WORK_BYTES_MAX),
            operations: Semaphore::new(SESSION_OPERATIONS_MAX),
            ended: Cell::new(false),
            _share: share,
        }
    }
    /// Whether who opened it may not keep set-user-id on what is written.
    pub fn kills_suid(&self) -> bool {
        self.user != 0
    }
    /// Ends all of it. Operations on their way come to their end unheard.
    pub fn end(&self) {
        self.ended.set(true);
        let rings = std::mem::take(&mut *self.rings.borrow_mut());
        rings.values().for_each(|r| r.end());
        self.files.borrow_mut().clear();
        self.buffers.borrow_mut().clear();
    }
}
