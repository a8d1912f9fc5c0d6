//! Operations in flight: who is in one, since when, how long the slow ones took, and which failed.

use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operations longer than this are remembered one by one.
const SLOW: Duration = Duration::from_millis(50);
/// The most problems that are kept word by word.
const KEPT_MAX: usize = 200;

/// One worker's place.
struct Lane {
    name: String,
    /// When the operation in flight began, in ns since the start, plus 1; 0: none.
    since: AtomicU64,
    what: Mutex<String>,
    done: AtomicU64,
    slow: Mutex<Vec<(u64, u64)>>,
}

/// What all workers do, as seen from outside.
pub struct Flight {
    began: Instant,
    lanes: Vec<Lane>,
    /// Workers end when it is set.
    pub stop: AtomicBool,
    /// Kills of the third mount that have begun, and fresh ones that are there again.
    pub mount_kills: AtomicU64,
    /// See above.
    pub mount_returns: AtomicU64,
    /// `ENOSPC` is excused while it is set.
    pub full: AtomicBool,
    wrong: Mutex<Vec<String>>,
    errors: Mutex<Vec<String>>,
    counts: [AtomicU64; 3],
    log: Mutex<Vec<String>>,
    faults: Mutex<Vec<Fault>>,
    over: AtomicBool,
}

/// A fault, from when to when in ns since the start; it is over when the cluster is whole again.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// What, to whom.
    pub what: String,
    /// It began.
    pub from: u64,
    /// It was over; none if it is not.
    pub to: Option<u64>,
}

/// What went wrong so far.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    /// Lost or wrong bytes, and names.
    pub wrong: Vec<String>,
    /// How many of them.
    pub wrong_count: u64,
    /// Errors that applications saw and no fault excuses.
    pub errors: Vec<String>,
    /// How many of them.
    pub error_count: u64,
    /// `ENOSPC` while a disk was full.
    pub excused: u64,
}

impl Flight {
    /// Places for these workers.
    pub fn new(workers: impl IntoIterator<Item = String>) -> Self {
        let lane = |name| Lane {
            name,
            since: AtomicU64::new(0),
            what: Mutex::default(),
            done: AtomicU64::new(0),
            slow: Mutex::default(),
        };
        Self {
            began: Instant::now(),
            lanes: workers.into_iter().map(lane).collect(),
            stop: AtomicBool::new(false),
            mount_kills: AtomicU64::new(0),
            mount_returns: AtomicU64::new(0),
            full: AtomicBool::new(false),
            wrong: Mutex::default(),
            errors: Mutex::default(),
            counts: Default::default(),
            log: Mutex::default(),
            faults: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }
    /// Now, in ns since the start.
    pub fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
    /// Runs one operation of a worker.
    pub fn op<T>(&self, lane: usize, what: &str, f: impl FnOnce() -> T) -> T {
        let began = self.begin(lane, what);
        let result = f();
        self.end(lane, began);
        result
    }
    /// An operation begins (see [`Flight::end`]).
    pub fn begin(&self, lane: usize, what: &str) -> u64 {
        let now = self.now();
        if let Some(l) = self.lanes.get(lane) {
            what.clone_into(&mut lock(&l.what));
            l.since.store(now + 1, Ordering::SeqCst);
        }
        now
    }
    /// It ended.
    pub fn end(&self, lane: usize, began: u64) {
        let Some(l) = self.lanes.get(lane) else { return };
        let now = self.now();
        if now - began > SLOW.as_nanos() as u64 {
            lock(&l.slow).push((began, now));
        }
        l.since.store(0, Ordering::SeqCst);
        l.done.fetch_add(1, Ordering::Relaxed);
    }
    /// How many operations are in flight now.
    pub fn in_flight(&self) -> usize {
        self.lanes.iter().filter(|l| l.since.load(Ordering::SeqCst) != 0).count()
    }
    /// Whether this worker has an operation in flight now.
    pub fn flies(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_some_and(|l| l.since.load(Ordering::SeqCst) != 0)
    }
    /// Operations done.
    pub fn done(&self) -> u64 {
        self.lanes.iter().map(|l| l.done.load(Ordering::Relaxed)).sum()
    }
    /// Operations done by each worker.
    pub fn done_by_worker(&self) -> Vec<(String, u64)> {
        let row = |l: &Lane| (l.name.clone(), l.done.load(Ordering::Relaxed));
        self.lanes.iter().map(row).collect()
    }
    /// The longest operation that was in flight at some time between `from` and `to`, with its worker; those that still are count up to now.
    pub fn longest(&self, from: u64, to: u64) -> (Duration, String) {
        let mut longest = (0, String::new());
        let now = self.now();
        for l in &self.lanes {
            let mut consider = |began: u64, ended: u64| {
                if began < to && ended > from && ended - began > longest.0 {
                    longest = (ended - began, l.name.clone());
                }
            };
            for (began, ended) in lock(&l.slow).iter() {
                consider(*began, *ended);
            }
            let since = l.since.load(Ordering::SeqCst);
            if since != 0 {
                consider(since - 1, now.max(since));
            }
        }
        (Duration::from_nanos(longest.0), longest.1)
    }
    /// The longest operation that began between `from` and `to`.
    pub fn longest_begun(&self, from: u64, to: u64) -> Duration {
        let slow = self.lanes.iter().flat_map(|l| lock(&l.slow).clone());
        let times = slow.filter(|(b, _)| (from..to).contains(b)).map(|(b, e)| e - b);
        Duration::from_nanos(times.max().unwrap_or_default())
    }
    /// Whether every operation that began before `at` has ended.
    pub fn settled(&self, at: u64) -> bool {
        self.lanes.iter().all(|l| {
            let since = l.since.load(Ordering::SeqCst);
            since == 0 || since > at
        })
    }
    /// A fault begins.
    pub fn fault_begins(&self, what: String) {
        lock(&self.faults).push(Fault { what, from: self.now(), to: None });
    }
    /// The last one is over.
    pub fn fault_ends(&self) {
        if let Some(f) = lock(&self.faults).last_mut() {
            f.to = Some(self.now());
        }
    }
    /// All of them.
    pub fn faults(&self) -> Vec<Fault> {
        lock(&self.faults).clone()
    }
    /// The operation that goes on for longer than `bound` although no fault has been in force for so long: what, whose, since when, and which
    /// fault there was when it began.
    pub fn hanging(&self, bound: Duration) -> Option<String> {
        let faults = self.faults();
        let quiet = match faults.last() {
            None => 0,
            Some(last) => last.to?,
        };
        let seconds = |ns: u64| ns as f64 / 1e9;
        let (now, bound) = (self.now(), bound.as_nanos() as u64);
        self.lanes.iter().find_map(|l| {
            let since = l.since.load(Ordering::SeqCst).checked_sub(1)?;
            if now.saturating_sub(since.max(quiet)) <= bound {
                return None;
            }
            // The fault in force when it began, or the first after that.
            let fault = faults.iter().find(|f| f.to.is_none_or(|to| to > since));
            let fault = fault.or(faults.last()).map_or("no fault has struck".into(), |f| {
                let to = f.to.map_or("now".into(), |to| format!("{:.1} s", seconds(to)));
                format!("the fault then: {} from {:.1} s to {to}", f.what, seconds(f.from))
            });
            Some(format!(
                "an operation of {} does not end: «{}», begun at {:.1} s, {:.0} s ago; {fault}; no fault since {:.1} s",
                l.name,
                lock(&l.what),
                seconds(since),
                seconds(now.saturating_sub(since)),
                seconds(quiet)
            ))
        })
    }
    /// Between two operations of a worker. False: end.
    pub fn go_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
    /// The run is given up: what the workers meet from here on is its end and no news.
    pub fn give_up(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
    }
    /// Bytes or names are wrong.
    pub fn wrong(&self, what: String) {
        self.note(0, &self.wrong, what);
    }
    /// An operation failed.
    pub fn error(&self, lane: usize, what: &str, e: &std::io::Error) {
        if e.raw_os_error() == Some(28) && self.full.load(Ordering::SeqCst) {
            self.counts[2].fetch_add(1, Ordering::Relaxed);
            return;
        }
        let who = self.lanes.get(lane).map_or("?", |l| l.name.as_str());
        self.note(1, &self.errors, format!("{who}: {what}: {e}"));
    }
    fn note(&self, count: usize, list: &Mutex<Vec<String>>, what: String) {
        if self.over.load(Ordering::SeqCst) {
            return;
        }
        self.counts[count].fetch_add(1, Ordering::Relaxed);
        let what = format!("at {:.3} s: {what}", self.now() as f64 / 1e9);
        self.say(&format!("PROBLEM {what}"));
        let mut list = lock(list);
        if list.len() < KEPT_MAX {
            list.push(what);
        }
    }
    /// Says something on standard error, with the time.
    pub fn say(&self, what: &str) {
        let line = format!("[{:9.3}] {what}", self.now() as f64 / 1e9);
        eprintln!("{line}");
        lock(&self.log).push(line);
    }
    /// What went wrong so far.
    pub fn problems(&self) -> Problems {
        Problems {
            wrong: lock(&self.wrong).clone(),
            wrong_count: self.counts[0].load(Ordering::Relaxed),
            errors: lock(&self.errors).clone(),
            error_count: self.counts[1].load(Ordering::Relaxed),
            excused: self.counts[2].load(Ordering::Relaxed),
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_operation_of_a_window() {
        let f = Flight::new(["a".into(), "b".into()]);
        assert_eq!(f.in_flight(), 0);
        let at = f.now();
        f.op(0, "nap", || {
            assert_eq!(f.in_flight(), 1);
            assert!(!f.settled(f.now()));
            std::thread::sleep(Duration::from_millis(60));
        });
        let (long, who) = f.longest(at, f.now());
        assert!(long >= Duration::from_millis(60) && who == "a", "{long:?} {who}");
        assert_eq!(f.longest(0, at).0, Duration::ZERO, "it began later");
        let began = f.begin(1, "nap");
        std::thread::sleep(Duration::from_millis(80));
        assert_eq!(f.longest(f.now(), u64::MAX).1, "b", "still in flight");
        f.end(1, began);
        assert!(f.settled(u64::MAX) && f.done() == 2);
    }

    #[test]
    fn an_operation_that_hangs_is_named_but_not_while_a_fault_is_in_force() {
        let f = Flight::new(["a".into(), "b".into()]);
        let bound = Duration::from_millis(30);
        let wait = || std::thread::sleep(bound * 2);
        let began = f.begin(0, "quick");
        assert_eq!(f.hanging(bound), None, "too early");
        f.end(0, began);
        f.fault_begins("Kill storage-1".into());
        f.begin(1, "read blocks 1..2");
        wait();
        assert_eq!(f.hanging(bound), None, "a fault holds it up");
        f.fault_ends();
        assert_eq!(f.hanging(bound), None, "not long enough after it");
        wait();
        let said = f.hanging(bound).expect("it hangs");
        for part in ["of b", "«read blocks 1..2»", "Kill storage-1"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn only_a_full_disk_excuses_enospc() {
        let f = Flight::new(["a".into()]);
        let e = std::io::Error::from_raw_os_error(28);
        f.error(0, "write", &e);
        f.full.store(true, Ordering::SeqCst);
        f.error(0, "write", &e);
        f.error(0, "write", &std::io::Error::from_raw_os_error(5));
        let p = f.problems();
        assert_eq!((p.error_count, p.excused), (2, 1));
    }
}
