//! [`Uses`]: operations on an open file that the kernel does not know of, those of rings. It lets go of the file while they are on their
//! way; the file is closed when they have ended, or what they write would count for nothing.

use crate::handles::Handle;
use glowfs_rt::sync::Notify;
use std::cell::Cell;
use std::rc::Rc;

/// See the module. Of one handle.
#[derive(Default)]
pub struct Uses {
    now: Cell<u32>,
    /// The handle is about to be closed: no more begin.
    closing: Cell<bool>,
    ended: Notify,
}

impl Uses {
    fn any(&self) -> bool {
        self.now.get() > 0
    }
    /// From now on none begins. Whether there are any on their way: [`Uses::ended`] waits for them.
    pub fn close(&self) -> bool {
        self.closing.set(true);
        self.any()
    }
    /// Resolves when there are none.
    pub async fn ended(&self) {
        loop {
            let news = self.ended.wait();
            if !self.any() {
                return;
            }
            news.await;
        }
    }
}

/// A handle that is not closed as long as this lives.
pub struct InUse<F>(Rc<Handle<F>>);

impl<F> InUse<F> {
    /// None: it is being closed.
    pub fn begin(handle: Rc<Handle<F>>) -> Option<Self> {
        let uses = &handle.uses;
        if uses.closing.get() {
            return None;
        }
        uses.now.set(uses.now.get() + 1);
        Some(Self(handle))
    }
}

impl<F> std::ops::Deref for InUse<F> {
    type Target = Handle<F>;
    fn deref(&self) -> &Handle<F> {
        &self.0
    }
}

impl<F> Drop for InUse<F> {
    fn drop(&mut self) {
        let uses = &self.0.uses;
        uses.now.set(uses.now.get() - 1);
        if !uses.any() {
            uses.ended.notify_all();
        }
    }
}
