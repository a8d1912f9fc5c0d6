//! Helper threads: for what blocks and has no asynchronous form.
//!
//! Each directory has its share of them ([`super::shares`]): a disk that hangs holds no thread that another one needs.

use super::shares::Shares;
use crate::Instant;
use crate::backend::BoxFuture;
use slab::Slab;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Something to run on a helper thread.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// An idle helper thread ends after this.
const IDLE: Duration = Duration::from_secs(10);

/// The helper threads of one runtime.
#[derive(Clone)]
pub(crate) struct Helpers(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

struct State {
    jobs: Shares<Job>,
    /// Whose jobs are being done, and since when.
    under_way: Slab<(usize, Instant)>,
    threads: usize,
    idle: usize,
}

impl Helpers {
    /// `share`: how many an owner of jobs has at once, at most.
    pub(crate) fn new(share: usize) -> Self {
        let state = State { jobs: Shares::new(share), under_way: Slab::new(), threads: 0, idle: 0 };
        Self(Arc::new(Shared { state: Mutex::new(state), more: Condvar::new() }))
    }
    /// A new owner of jobs.
    pub(crate) fn add_owner(&self) -> usize {
        self.0.lock().jobs.add()
    }
    /// An owner has no more jobs to come.
    pub(crate) fn remove_owner(&self, owner: usize) {
        self.0.lock().jobs.leave(owner);
    }
    /// Since when the oldest job of an owner is being done.
    pub(crate) fn under_way_since(&self, owner: usize) -> Option<Instant> {
        let state = self.0.lock();
        let own = state.under_way.iter().filter(|(_, (whose, _))| *whose == owner);
        own.map(|(_, (_, since))| *since).min()
    }
    /// Runs `job` on a helper thread; here and now if no thread can be had at all.
    pub(crate) fn run(&self, owner: usize, job: Job) {
        let mut state = self.0.lock();
        state.jobs.push(owner, job);
        if state.jobs.startable() > state.idle && state.threads < state.jobs.most() {
            state.threads += 1;
            let shared = self.0.clone();
            let started = std::thread::Builder::new()
                .name("glowfs-helper".into())
                .spawn(move || shared.work());
            if let Err(error) = started {
                state.threads -= 1;
                let threads = state.threads;
                tracing::warn!(%error, threads, "no further helper thread: blocking work waits for one, or runs on the loop if there is none");
                if threads == 0 {
                    drop(self.0.work_off(state));
                    return;
                }
            }
        }
        drop(state);
        self.0.more.notify_one();
    }
    /// Runs `work` on a helper thread, from now on; a future of its end (also if it panicked).
    pub(crate) fn unblock(&self, owner: usize, work: Job) -> BoxFuture<()> {
        let state = Arc::new(Mutex::new(Unblocked::default()));
        let done = Finish(state.clone());
        self.run(
            owner,
            Box::new(move || {
                work();
                drop(done);
            }),
        );
        Box::pin(poll_fn(move |cx| {
            let mut s = state.lock().unwrap_or_else(PoisonError::into_inner);
            if s.done {
                return Poll::Ready(());
            }
            s.waker = Some(cx.waker().clone());
            Poll::Pending
        }))
    }
}

#[derive(Default)]
struct Unblocked {
    done: bool,
    waker: Option<Waker>,
}

/// Reports the end of a job when dropped, so also when it panicked.
struct Finish(Arc<Mutex<Unblocked>>);
impl Drop for Finish {
    fn drop(&mut self) {
        let waker = {
            let mut s = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            s.done = true;
            s.waker.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Runs jobs as long as any can begin.
    fn work_off<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some((owner, job)) = state.jobs.next() {
            let key = state.under_way.insert((owner, super::boottime()));
            drop(state);
            // A panic of a job must not take the thread's place in the count with it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            state = self.lock();
            state.under_way.remove(key);
            state.jobs.ended(owner);
        }
        state
    }
    fn work(&self) {
        block_signals();
        let mut state = self.lock();
        loop {
            state = self.work_off(state);
            state.idle += 1;
            let (next, timed_out) =
                self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if timed_out.timed_out() && state.jobs.startable() == 0 {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// Signals are for the thread that waits for them (see [`crate::signal`]).
fn block_signals() {
    // SAFETY: `set` is a plain structure that sigfillset initialises before it is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}
