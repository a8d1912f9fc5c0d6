//! A thread that should wake up each 10 ms. When it does not, the machine itself stood still, and no fault is to blame.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(10);
/// Only longer delays are remembered.
const REMEMBERED: Duration = Duration::from_millis(100);
/// Results of a window in which the machine stood still for longer than this are set aside.
pub const SET_ASIDE: Duration = Duration::from_millis(500);

/// The thread.
pub struct Machine {
    began: Instant,
    stalls: Arc<Mutex<Vec<(Instant, Duration)>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// Starts it.
    pub fn watch() -> Self {
        let stalls: Arc<Mutex<Vec<(Instant, Duration)>>> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let (s, e) = (stalls.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !e.load(Ordering::Relaxed) {
                let before = Instant::now();
                std::thread::sleep(BEAT);
                let late = before.elapsed().saturating_sub(BEAT);
                if late > REMEMBERED {
                    s.lock().unwrap_or_else(|e| e.into_inner()).push((Instant::now(), late));
                }
            }
        });
        Self { began: Instant::now(), stalls, stop, thread: Some(thread) }
    }
    /// The longest stall of the machine that touched the time since `from`.
    pub fn longest_since(&self, from: Instant) -> Duration {
        let all = self.stalls.lock().unwrap_or_else(|e| e.into_inner());
        all.iter().filter(|(end, _)| *end >= from).map(|s| s.1).max().unwrap_or_default()
    }
    /// The longest of all.
    pub fn longest(&self) -> Duration {
        self.longest_since(self.began)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
