//! Ends a run in which an operation never ends: says which, since when and after which fault, what mgmtd knows of the cluster, has everything taken down, and ends the process.

use crate::flight::{Fault, Flight};
use crate::view::View;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// An operation may go on for so long after the last fault is over; clients give up after a minute.
pub const HANG_BOUND: Duration = Duration::from_secs(180);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(500);

/// How long to wait, and where to say that it was in vain.
#[derive(Clone, Debug)]
pub struct Patience {
    /// For one operation.
    pub bound: Duration,
    /// The report's file, if there shall be one.
    pub json: Option<PathBuf>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { bound: HANG_BOUND, json: None }
    }
}

/// The report of a run that hung.
#[derive(Serialize)]
struct Report {
    passed: bool,
    failures: Vec<String>,
    by_worker: Vec<(String, u64)>,
    faults: Vec<Fault>,
}

/// The thread.
pub struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Looks at the operations in `flight` until dropped; `take_down` is called before the process ends.
    pub fn watch(
        flight: Arc<Flight>,
        patience: &Patience,
        view: Arc<View>,
        take_down: impl Fn() + Send + 'static,
    ) -> Self {
        let json = patience.json.clone();
        Self::tell(flight.clone(), patience.bound, move |what| {
            flight.give_up();
            let p = flight.problems();
            // Before anything is taken down.
            let ailing = view.ailing().into_iter().map(|l| format!("mgmtd says: {l}"));
            let all = [what].into_iter().chain(ailing).chain(p.wrong).chain(p.errors);
            let report = Report {
                passed: false,
                failures: all.collect(),
                by_worker: flight.done_by_worker(),
                faults: flight.faults(),
            };
            // Nobody may read it any more: all the same what was started has to end.
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{} operations, {} faults", flight.done(), report.faults.len());
            for f in &report.failures {
                let _ = writeln!(out, "FAILED: {f}");
            }
            let _ = writeln!(out, "FAILED");
            drop(out);
            if let (Some(file), Ok(text)) = (&json, serde_json::to_string_pretty(&report))
                && let Err(e) = std::fs::write(file, text)
            {
                eprintln!("writing {}: {e}", file.display());
            }
            take_down();
            // Threads that hang would keep an ordinary end waiting.
            std::process::exit(1);
        })
    }

    /// Calls `hung` once, with what hangs.
    fn tell(
        flight: Arc<Flight>,
        bound: Duration,
        hung: impl FnOnce(String) + Send + 'static,
    ) -> Self {
        let stop: Arc<AtomicBool> = Arc::default();
        let end = stop.clone();
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if let Some(what) = flight.hanging(bound) {
                    return hung(what);
                }
                std::thread::park_timeout(LOOK);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            t.thread().unpark();
            let _ = t.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_told_and_what_ends_is_not() {
        let flight = Arc::new(Flight::new(["a".into()]));
        let (tell, told) = std::sync::mpsc::channel();
        let put = tell.clone();
        let bound = Duration::from_millis(700);
        let dog = Watchdog::tell(flight.clone(), bound, move |w| drop(put.send(w)));
        flight.op(0, "short", || ());
        std::thread::sleep(bound * 2);
        drop(dog);
        assert!(told.try_recv().is_err(), "nothing hung");
        flight.begin(0, "long");
        let _dog = Watchdog::tell(flight, bound, move |w| drop(tell.send(w)));
        let what = told.recv_timeout(bound * 10).expect("told");
        assert!(what.contains("«long»"), "{what}");
    }
}
