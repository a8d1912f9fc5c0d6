//! Work beside requests that a later request has to wait for.

use glowfs_rt::sync::Notify;
use std::cell::Cell;
use std::rc::Rc;

/// How much of it there is.
#[derive(Clone, Default)]
pub struct Running(Rc<(Cell<usize>, Notify)>);

/// One piece of work; over when dropped.
pub struct Work(Running);

impl Running {
    /// A piece of work begins.
    pub fn begin(&self) -> Work {
        let (count, _) = &*self.0;
        count.set(count.get() + 1);
        Work(self.clone())
    }
    /// Resolves when none runs.
    pub async fn over(&self) {
        let (count, news) = &*self.0;
        while count.get() > 0 {
            news.wait().await;
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let (count, news) = &*self.0.0;
        count.set(count.get() - 1);
        news.notify_all();
    }
}
