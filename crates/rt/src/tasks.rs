//! The executor's heart: the tasks of one thread and the queue of those that want to run.
//!
//! Both backends drive it: the real one takes the oldest ready task, the simulator any. Futures never leave their
//! thread; a waker may be called and dropped on every thread, for it holds no more than a number and a queue.

use crate::BoxFuture;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// Called when a task is woken from another thread, to end the loop's wait.
pub type Doorbell = Box<dyn Fn() + Send + Sync>;

/// The tasks of one thread (or one simulated node).
pub struct Tasks {
    slots: RefCell<Slots>,
    queue: Arc<Queue>,
    polls: Cell<u64>,
}

#[derive(Default)]
struct Slots {
    all: Vec<Slot>,
    free: Vec<usize>,
    alive: usize,
}

struct Slot {
    /// None while the task is being polled, and when the slot is free.
    future: Option<BoxFuture<()>>,
    handle: Arc<Handle>,
    used: bool,
}

/// What a waker points to. It outlives its task; a stale one is recognised because the slot has another handle.
struct Handle {
    slot: usize,
    queued: AtomicBool,
    queue: Arc<Queue>,
}

struct Queue {
    owner: u64,
    /// Touched by the owner thread only.
    local: UnsafeCell<VecDeque<Arc<Handle>>>,
    remote: Mutex<Remote>,
    has_remote: AtomicBool,
    doorbell: Doorbell,
}

#[derive(Default)]
struct Remote {
    woken: Vec<Arc<Handle>>,
    closed: bool,
}

// SAFETY: `local` is accessed only after `is_owner` said that this is the owner thread, and every access ends
// before other code runs; all other fields are Sync by themselves.
unsafe impl Sync for Queue {}
// SAFETY: the handles in `local` are Arcs of Send data; moving the queue to another thread moves plain memory.
unsafe impl Send for Queue {}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);
thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// A number of this thread that no other thread ever has.
fn thread_number() -> u64 {
    THREAD.with(|t| {
        if t.get() == 0 {
            t.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
        }
        t.get()
    })
}

impl Queue {
    fn is_owner(&self) -> bool {
        thread_number() == self.owner
    }
    fn with_local<R>(&self, f: impl FnOnce(&mut VecDeque<Arc<Handle>>) -> R) -> R {
        assert!(self.is_owner(), "the ready queue belongs to another thread");
        // SAFETY: this is the owner thread, and the closures of this module call nothing that comes back here.
        f(unsafe { &mut *self.local.get() })
    }
    fn push(&self, handle: Arc<Handle>) {
        if self.is_owner() {
            self.with_local(|q| q.push_back(handle));
            return;
        }
        let mut remote = self.remote.lock().unwrap_or_else(PoisonError::into_inner);
        if remote.closed {
            return;
        }
        remote.woken.push(handle);
        self.has_remote.store(true, Ordering::SeqCst);
        drop(remote);
        (self.doorbell)();
    }
}

impl Wake for Handle {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.queue.clone().push(self);
        }
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.queue.push(self.clone());
        }
    }
}

impl Tasks {
    /// No tasks yet; they will run on this thread. `doorbell` is rung when another thread wakes one.
    pub fn new(doorbell: Doorbell) -> Self {
        let queue = Queue {
            owner: thread_number(),
            local: UnsafeCell::new(VecDeque::new()),
            remote: Mutex::default(),
            has_remote: AtomicBool::new(false),
            doorbell,
        };
        Self { slots: RefCell::default(), queue: Arc::new(queue), polls: Cell::new(0) }
    }
    /// Adds a task, ready to run.
    pub fn spawn(&self, future: BoxFuture<()>) {
        let handle = {
            let mut slots = self.slots.borrow_mut();
            slots.alive += 1;
            let handle = match slots.free.pop() {
                Some(index) => slots.reuse(index, future, &self.queue),
                None => slots.append(future, &self.queue),
            };
            handle.queued.store(true, Ordering::Relaxed);
            handle
        };
        self.queue.with_local(|q| q.push_back(handle));
    }
    /// Number of tasks that have not ended.
    pub fn alive(&self) -> usize {
        self.slots.borrow().alive
    }
    /// How often a task began to run so far.
    pub fn polls(&self) -> u64 {
        self.polls.get()
    }
    /// Whether tasks were woken by other threads since [`Tasks::take_remote`].
    pub fn has_remote(&self) -> bool {
        self.queue.has_remote.load(Ordering::SeqCst)
    }
    /// Moves what other threads woke to the ready queue.
    pub fn take_remote(&self) {
        if !self.has_remote() {
            return;
        }
        let woken = {
            let mut remote = self.queue.remote.lock().unwrap_or_else(PoisonError::into_inner);
            self.queue.has_remote.store(false, Ordering::SeqCst);
            std::mem::take(&mut remote.woken)
        };
        self.queue.with_local(|q| q.extend(woken));
    }
    /// Number of tasks that want to run (some of which may have ended meanwhile).
    pub fn ready(&self) -> usize {
        self.queue.with_local(|q| q.len())
    }
    /// Runs the task that has waited longest. False if none is ready.
    pub fn run_next(&self) -> bool {
        match self.queue.with_local(VecDeque::pop_front) {
            Some(handle) => {
                self.poll(handle);
                true
            }
            None => false,
        }
    }
    /// Runs the `nth` ready task. False if there are not so many.
    pub fn run_nth(&self, nth: usize) -> bool {
        match self.queue.with_local(|q| q.remove(nth)) {
            Some(handle) => {
                self.poll(handle);
                true
            }
            None => false,
        }
    }
    /// Drops every task, and those that are started while they are dropped.
    pub fn clear(&self) {
        loop {
            let dead: Vec<_> = {
                let mut slots = self.slots.borrow_mut();
                let Slots { all, free, alive } = &mut *slots;
                let used = all.iter_mut().enumerate().filter(|(_, s)| s.future.is_some());
                used.filter_map(|(index, slot)| {
                    slot.used = false;
                    free.push(index);
                    *alive -= 1;
                    slot.future.take()
                })
                .collect()
            };
            if dead.is_empty() {
                break;
            }
            drop(dead);
        }
        let stale = self.queue.with_local(std::mem::take);
        for handle in &stale {
            handle.queued.store(false, Ordering::Release);
        }
    }

    fn poll(&self, handle: Arc<Handle>) {
        // Cleared before the poll: a wake during it must count.
        handle.queued.store(false, Ordering::Release);
        let index = handle.slot;
        let future = {
            let mut slots = self.slots.borrow_mut();
            match slots.all.get_mut(index) {
                Some(slot) if Arc::ptr_eq(&slot.handle, &handle) => slot.future.take(),
                _ => None,
            }
        };
        let Some(mut future) = future else { return };
        self.polls.set(self.polls.get().wrapping_add(1));
        let waker = Waker::from(handle);
        let done = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_ready();
        if !done {
            let mut slots = self.slots.borrow_mut();
            if let Some(slot) = slots.all.get_mut(index) {
                slot.future = Some(future);
            }
            return;
        }
        drop(future);
        drop(waker);
        self.slots.borrow_mut().release(index);
    }
}

impl Slots {
    fn append(&mut self, future: BoxFuture<()>, queue: &Arc<Queue>) -> Arc<Handle> {
        let handle = Handle::new(self.all.len(), queue);
        self.all.push(Slot { future: Some(future), handle: handle.clone(), used: true });
        handle
    }
    fn reuse(&mut self, i: usize, future: BoxFuture<()>, queue: &Arc<Queue>) -> Arc<Handle> {
        let slot = &mut self.all[i];
        // A handle that someone else still holds could wake the wrong task.
        if Arc::strong_count(&slot.handle) > 1 {
            slot.handle = Handle::new(i, queue);
        }
        slot.future = Some(future);
        slot.used = true;
        slot.handle.clone()
    }
    fn release(&mut self, index: usize) {
        let Some(slot) = self.all.get_mut(index) else { return };
        if slot.used {
            slot.used = false;
            self.alive -= 1;
            self.free.push(index);
        }
    }
}

impl Handle {
    fn new(slot: usize, queue: &Arc<Queue>) -> Arc<Self> {
        Arc::new(Self { slot, queued: AtomicBool::new(false), queue: queue.clone() })
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.clear();
        let woken = {
            let mut remote = self.queue.remote.lock().unwrap_or_else(PoisonError::into_inner);
            remote.closed = true;
            std::mem::take(&mut remote.woken)
        };
        drop(woken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::task::Poll;

    fn tasks() -> Tasks {
        Tasks::new(Box::new(|| {}))
    }

    #[test]
    fn runs_in_order_and_wakes() {
        let tasks = tasks();
        let log = Rc::new(RefCell::new(Vec::new()));
        for name in 0..3 {
            let log = log.clone();
            let mut polls = 0;
            tasks.spawn(Box::pin(poll_fn(move |cx| {
                log.borrow_mut().push(name);
                polls += 1;
                cx.waker().wake_by_ref();
                if polls == 2 { Poll::Ready(()) } else { Poll::Pending }
            })));
        }
        while tasks.run_next() {}
        assert_eq!(*log.borrow(), [0, 1, 2, 0, 1, 2]);
        assert_eq!(tasks.alive(), 0);
    }

    #[test]
    fn a_stale_waker_does_not_wake_the_slots_next_task() {
        let tasks = tasks();
        let kept: Rc<RefCell<Option<Waker>>> = Rc::default();
        let keep = kept.clone();
        tasks.spawn(Box::pin(poll_fn(move |cx| {
            *keep.borrow_mut() = Some(cx.waker().clone());
            Poll::Ready(())
        })));
        tasks.run_next();
        let polls = Rc::new(Cell::new(0));
        let count = polls.clone();
        tasks.spawn(Box::pin(poll_fn(move |_| {
            count.set(count.get() + 1);
            Poll::Pending
        })));
        tasks.run_next();
        kept.borrow_mut().take().expect("kept").wake();
        while tasks.run_next() {}
        assert_eq!(polls.get(), 1);
    }

    #[test]
    fn another_thread_wakes_through_the_doorbell() {
        let rung = Arc::new(AtomicBool::new(false));
        let bell = rung.clone();
        let tasks = Tasks::new(Box::new(move || bell.store(true, Ordering::SeqCst)));
        let polls = Rc::new(Cell::new(0));
        let (count, slot) = (polls.clone(), Arc::new(Mutex::new(None)));
        let put = slot.clone();
        tasks.spawn(Box::pin(poll_fn(move |cx| {
            count.set(count.get() + 1);
            *put.lock().expect("lock") = Some(cx.waker().clone());
            Poll::Pending
        })));
        tasks.run_next();
        let waker = slot.lock().expect("lock").take().expect("a waker");
        std::thread::spawn(move || waker.wake()).join().expect("join");
        assert!(rung.load(Ordering::SeqCst) && tasks.has_remote());
        tasks.take_remote();
        assert!(tasks.run_next());
        assert_eq!(polls.get(), 2);
    }

    #[test]
    fn clear_drops_tasks_that_hold_each_other() {
        let tasks = Rc::new(tasks());
        let guard = Rc::new(());
        for _ in 0..4 {
            let held = guard.clone();
            tasks.spawn(Box::pin(async move {
                std::future::pending::<()>().await;
                drop(held);
            }));
        }
        while tasks.run_next() {}
        tasks.clear();
        assert_eq!((Rc::strong_count(&guard), tasks.alive()), (1, 0));
    }
}
