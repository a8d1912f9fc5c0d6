//! [`Liveness`]: whether the daemon still serves, for those who wait.
//!
//! The question is an ioctl, which the daemon does not answer as long as it does not come to it, and which no signal but SIGKILL ends. So a thread of its own asks, one for each session at a
//! time. A daemon that is gone is known at once. Guarantees: whoever looks waits [`ANSWER_WITHIN`] at most, but where no thread can be started; a thread of the application's gets no signals of ours, and ours none of the
//! application's. Must never: keep a session from its end once the daemon answers.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an answer is waited for. What comes later is known when somebody looks the next time.
const ANSWER_WITHIN: Duration = Duration::from_millis(5);
/// Stack of a thread that asks.
const STACK_BYTES: usize = 128 << 10;

/// See the module.
#[derive(Default)]
pub(crate) struct Liveness {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    /// A thread is asking.
    asks: bool,
    /// The last answer.
    gone: bool,
}

impl Liveness {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Whether the daemon is gone, as far as is known; has it asked (`is_alive`), if nobody is doing that. `of` is what this belongs to.
    pub fn is_gone<T: Send + Sync + 'static>(
        of: &Arc<T>,
        this: fn(&T) -> &Liveness,
        is_alive: impl Fn(&T) -> bool + Send + Sync + 'static,
    ) -> bool {
        let liveness = this(of);
        let mut state = liveness.lock();
        if !state.asks {
            let (inside, is_alive) = (of.clone(), Arc::new(is_alive));
            let asked = is_alive.clone();
            let ask = move || {
                let gone = !asked(&inside);
                let liveness = this(&inside);
                *liveness.lock() = State { asks: false, gone };
                liveness.answered.notify_all();
            };
            state.asks = without_signals(|| {
                std::thread::Builder::new()
                    .name("glowfs-alive".into())
                    .stack_size(STACK_BYTES)
                    .spawn(ask)
                    .is_ok()
            });
            if !state.asks {
                // No thread is to be had. A daemon that is gone is told at once; for one that is slow this waits, as it must be.
                drop(state);
                let gone = !is_alive(of);
                liveness.lock().gone = gone;
                return gone;
            }
        }
        let waited = liveness.answered.wait_timeout_while(state, ANSWER_WITHIN, |s| s.asks);
        waited.unwrap_or_else(PoisonError::into_inner).0.gone
    }
}

/// Runs something in which threads are started: they have all signals blocked, as this one has meanwhile.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are written before they are read; the thread's own mask is put back as it was.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let done = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::time::Instant;

    struct Session {
        liveness: Liveness,
        asked: AtomicU32,
    }

    #[test]
    fn who_looks_does_not_wait_for_a_daemon_that_is_slow() {
        let session = Arc::new(Session { liveness: Liveness::default(), asked: AtomicU32::new(0) });
        let answer = Arc::new(Barrier::new(2));
        let look = |alive| {
            let answer = answer.clone();
            Liveness::is_gone(
                &session,
                |s| &s.liveness,
                move |s| {
                    s.asked.fetch_add(1, SeqCst);
                    answer.wait();
                    alive
                },
            )
        };
        let begun = Instant::now();
        for _ in 0..10 {
            assert!(!look(false), "nobody knows yet");
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
        answer.wait();
        while session.liveness.lock().asks {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(session.asked.load(SeqCst), 1, "one thread asks");
        assert!(look(true), "it was not there when it was asked last");
        answer.wait();
        while session.liveness.lock().asks {
            std::thread::sleep(Duration::from_millis(1));
        }
        let now = Liveness::is_gone(&session, |s| &s.liveness, |_| true);
        assert!(!now, "it is there again");
        while Arc::strong_count(&session) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(20), "something keeps it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
