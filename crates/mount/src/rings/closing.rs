//! [`Kept`]: what is closed and unmapped on a helper thread.
//!
//! The last descriptor of a memfd that is closed gives its pages back: a tenth of a second for each GiB, and buffers have any length. An application that is killed
//! leaves that to the daemon. Guarantees: one helper thread is at it, for all that was dropped meanwhile. Must never: give pages of an application back on the daemon's own thread.

use super::room::Taken;
use glowfs_rt::Rt;
use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

/// What is to be dropped there, and what that gives back of the room of all.
type Gone = (Box<dyn Send>, Taken);

/// What waits to be closed: bounded as rings and buffers are, for it still counts among them.
#[derive(Default)]
pub(super) struct Closing {
    waiting: RefCell<Vec<Gone>>,
    is_at_it: Cell<bool>,
}

impl Closing {
    fn push(self: Rc<Self>, rt: &Rt, gone: Gone) {
        self.waiting.borrow_mut().push(gone);
        if self.is_at_it.replace(true) {
            return;
        }
        let rt_inside = rt.clone();
        rt.spawn_detached(async move {
            loop {
                let all = std::mem::take(&mut *self.waiting.borrow_mut());
                if all.is_empty() {
                    break;
                }
                let (values, taken): (Vec<_>, Vec<_>) = all.into_iter().unzip();
                rt_inside.unblock(move || drop(values)).await;
                drop(taken);
            }
            self.is_at_it.set(false);
        });
    }
}

/// See the module.
pub(super) struct Kept<T: Send + 'static> {
    /// There until it is dropped.
    kept: Option<(T, Taken)>,
    closing: Rc<Closing>,
    rt: Rt,
}

impl<T: Send + 'static> Kept<T> {
    /// `taken` is given back when `value` is gone.
    pub fn new(rt: &Rt, closing: &Rc<Closing>, value: T, taken: Taken) -> Self {
        Self { kept: Some((value, taken)), closing: closing.clone(), rt: rt.clone() }
    }
}

impl<T: Send + 'static> Deref for Kept<T> {
    type Target = T;
    fn deref(&self) -> &T {
        let (value, _) = self.kept.as_ref().expect("it is there until it is dropped");
        value
    }
}

impl<T: Send + 'static> Drop for Kept<T> {
    fn drop(&mut self) {
        if let Some((value, taken)) = self.kept.take() {
            self.closing.clone().push(&self.rt, (Box::new(value), taken));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rings::room::Room;
    use glowfs_rt::Duration;
    use std::sync::{Arc, Condvar, Mutex};

    /// Takes its time to go.
    struct Slow(Arc<(Mutex<(bool, u32)>, Condvar)>);
    impl Drop for Slow {
        fn drop(&mut self) {
            let state = self.0.0.lock().unwrap();
            let patience = std::time::Duration::from_secs(20);
            let mut state = self.0.1.wait_timeout_while(state, patience, |s| !s.0).unwrap().0;
            state.1 += 1;
        }
    }

    #[test]
    fn what_takes_long_to_close_keeps_nobody_waiting() {
        glowfs_rt::real::run(|rt| async move {
            let (closing, room) = (Rc::new(Closing::default()), Room::new(0, 0));
            let state = Arc::new((Mutex::new((false, 0)), Condvar::new()));
            let keep = || Kept::new(&rt, &closing, Slow(state.clone()), room.nothing());
            let first = keep();
            assert_eq!(first.0.0.lock().unwrap().1, 0);
            drop(first);
            rt.sleep(Duration::from_millis(20)).await;
            (0..100).for_each(|_| drop(keep()));
            rt.sleep(Duration::from_millis(20)).await;
            assert_eq!(state.0.lock().unwrap().1, 0);
            state.0.lock().unwrap().0 = true;
            state.1.notify_all();
            while closing.is_at_it.get() {
                rt.sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(state.0.lock().unwrap().1, 101);
            drop(keep());
            while closing.is_at_it.get() {
                rt.sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(state.0.lock().unwrap().1, 102);
        });
    }
}
