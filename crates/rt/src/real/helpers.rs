//! Helper threads: for what blocks and has no asynchronous form.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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
    threads_max: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl Helpers {
    pub(crate) fn new(threads_max: usize) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            more: Condvar::new(),
            threads_max: threads_max.max(1),
        };
        Self(Arc::new(shared))
    }
    /// Runs `job` on a helper thread; here and now if no thread can be had at all.
    pub(crate) fn run(&self, job: Job) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.jobs.push_back(job);
        if state.jobs.len() > state.idle && state.threads < self.0.threads_max {
            state.threads += 1;
            let shared = self.0.clone();
            let started = std::thread::Builder::new()
                .name("glowfs-helper".into())
                .spawn(move || shared.work());
            if let Err(error) = started {
                state.threads -= 1;
                if state.threads == 0 {
                    tracing::warn!(%error, "no helper thread; blocking work runs on the loop");
                    let jobs = std::mem::take(&mut state.jobs);
                    drop(state);
                    jobs.into_iter().for_each(|job| job());
                    return;
                }
            }
        }
        drop(state);
        self.0.more.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        block_signals();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A panic of a job must not take the thread's place in the count with it.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.idle += 1;
            let (next, timed_out) =
                self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if timed_out.timed_out() && state.jobs.is_empty() {
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
