//! The application's end of a ring: fills submissions, takes completions, sleeps and wakes. No daemon is needed to test it.

use crate::doorbell::{self, Doorbell};
use crate::layout::{self, Completion, Submission, at};
use crate::memory::SharedMemory;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The application's end alone, without a daemon: what [`crate::Ring`] is made of, and what benchmarks use. One thread uses it at a time.
pub struct Producer {
    waiter: Waiter,
    bell: Doorbell,
    entries: u32,
    /// Filled in; those up to `submitted` can be seen by the daemon.
    prepared: u32,
    submitted: u32,
    taken: u32,
}

impl Producer {
    /// A new ring.
    pub fn new(entries: u32) -> io::Result<Self> {
        if !layout::valid_entries(entries) {
            let what =
                format!("a ring has a power of two of entries, up to {}", layout::ENTRIES_MAX);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let memory = SharedMemory::new("glowfs-ring", layout::ring_bytes(entries))?;
        memory.store(at::ENTRIES, entries);
        memory.store(at::MAGIC, layout::MAGIC);
        let bell = Doorbell::new()?;
        let waiter = Waiter(Arc::new(Shared { memory, quiet: Mutex::default() }));
        Ok(Self { waiter, bell, entries, prepared: 0, submitted: 0, taken: 0 })
    }
    /// The memory that both ends share.
    pub fn memory(&self) -> &SharedMemory {
        &self.waiter.0.memory
    }
    /// What wakes the daemon.
    pub fn bell(&self) -> &Doorbell {
        &self.bell
    }
    /// Prepared and their completions not taken.
    pub fn outstanding(&self) -> u32 {
        self.prepared.wrapping_sub(self.taken)
    }

    /// Prepared and not shown to the daemon.
    pub fn unsubmitted(&self) -> u32 {
        self.prepared.wrapping_sub(self.submitted)
    }

    /// Fills in the next submission and returns its index; None: as many as the ring has entries are outstanding.
    pub fn prepare(&mut self, s: Submission) -> Option<u32> {
        if self.outstanding() >= self.entries {
            return None;
        }
        let slot = self.prepared & (self.entries - 1);
        self.memory().store(at::SUBMISSIONS + slot as usize * size_of::<Submission>(), s);
        self.prepared = self.prepared.wrapping_add(1);
        Some(slot)
    }

    /// Shows what was prepared to the daemon.
    pub fn submit(&mut self) -> io::Result<()> {
        self.waiter.check()?;
        if self.submitted != self.prepared {
            self.submitted = self.prepared;
            self.memory().atomic(at::SUBMIT_TAIL).store(self.prepared, SeqCst);
        }
        let sleeps = self.memory().atomic(at::DAEMON_SLEEPS);
        if sleeps.load(SeqCst) != 0 && sleeps.swap(0, SeqCst) != 0 {
            self.bell.ring();
        }
        Ok(())
    }

    /// Takes a completion that is there.
    pub fn take(&mut self) -> Option<Completion> {
        let tail = self.memory().atomic(at::COMPLETE_TAIL).load(Acquire);
        if tail == self.taken || self.outstanding() == 0 {
            return None;
        }
        let slot = (self.taken & (self.entries - 1)) as usize;
        let c = self
            .memory()
            .load(layout::completions_at(self.entries) + slot * size_of::<Completion>());
        self.taken = self.taken.wrapping_add(1);
        self.memory().atomic(at::COMPLETE_HEAD).store(self.taken, Release);
        Some(c)
    }

    /// Completions taken so far (it wraps).
    pub fn taken(&self) -> u32 {
        self.taken
    }
    /// What waits for completions; other threads may have it.
    pub fn waiter(&self) -> &Waiter {
        &self.waiter
    }
}

/// Waits for completions, without using the ring: other threads go on preparing and submitting.
#[derive(Clone)]
pub struct Waiter(Arc<Shared>);

struct Shared {
    memory: SharedMemory,
    /// Since when nothing was completed and nobody asked whether the daemon lives, and how many completions there were.
    quiet: Mutex<Option<(u32, Instant)>>,
}

impl Waiter {
    /// Waits until there are more completions than `taken`; false: it was time before. None: no end of time. `Interrupted`: there were none for so long
    /// that the caller is to see whether the daemon still lives.
    pub fn wait(&self, taken: u32, until: Option<Instant>) -> io::Result<bool> {
        let memory = &self.0.memory;
        let there = || memory.atomic(at::COMPLETE_TAIL).load(SeqCst) != taken;
        let waits = memory.atomic(at::APPLICATION_WAITS);
        loop {
            if there() {
                return Ok(true);
            }
            self.check()?;
            let left = until.map(|u| u.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return match self.is_quiet(taken) {
                    true => Err(io::ErrorKind::Interrupted.into()),
                    false => Ok(false),
                };
            }
            if self.look_twice(taken) || self.check().is_err() {
                continue;
            }
            // Not for ever, even without an end of time: a daemon that was killed wakes nobody.
            let piece = left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
            let slept = Instant::now();
            doorbell::wait(waits, 1, Some(piece));
            // Woken for a completion that was taken already, it waits on: only a whole piece without news is a reason to ask.
            if left.is_none_or(|l| l > piece) && slept.elapsed() >= piece && !there() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
    }

    /// Asks to be woken, and says whether there are more completions than `taken` by then. The wish is never taken back, not even by one that
    /// finds news: another thread may sleep on it already, and a wake that nobody needs costs the daemon one call.
    fn look_twice(&self, taken: u32) -> bool {
        self.0.memory.atomic(at::APPLICATION_WAITS).store(1, SeqCst);
        self.0.memory.atomic(at::COMPLETE_TAIL).load(SeqCst) != taken
    }

    /// Whether waits have ended without news for [`LOOK_AGAIN`], each maybe after much less; then that time begins anew.
    fn is_quiet(&self, taken: u32) -> bool {
        let now = Instant::now();
        let mut quiet = self.0.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        let since = quiet.filter(|(then, _)| *then == taken).map(|(_, since)| since);
        let is_quiet = since.is_some_and(|s| now.duration_since(s) >= LOOK_AGAIN);
        if is_quiet || since.is_none() {
            *quiet = Some((taken, now));
        }
        is_quiet
    }

    /// Whether the daemon has given the ring up.
    fn check(&self) -> io::Result<()> {
        match self.0.memory.load::<u32>(at::BROKEN) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.min(4095) as i32)),
        }
    }
}

/// Whoever waits, once or again and again, returns at least so often to see whether the daemon still lives.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Broken, Consumer};
    use proptest::prelude::*;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    fn pair(entries: u32) -> (Producer, Consumer) {
        let p = Producer::new(entries).unwrap();
        let fd = p.memory().as_fd().try_clone_to_owned().unwrap();
        let memory = SharedMemory::adopt(fd, layout::ring_bytes(entries)).unwrap();
        (p, Consumer::new(memory, entries).unwrap())
    }

    proptest! {
        /// Any interleaving: everything arrives once, in order, and is answered once; no more is outstanding than there are entries.
        #[test]
        fn nothing_is_lost_or_doubled(steps in prop::collection::vec(0u8..4, 1..400), bits in 0u32..5) {
            let (mut p, c) = pair(1 << bits);
            let (mut prepared, mut seen, mut answered, mut taken) = (0u64, 0u64, 0u64, 0u64);
            for step in steps {
                match step {
                    0 => {
                        let fits = p.prepare(Submission { user: prepared, ..Submission::default() }).is_some();
                        prop_assert_eq!(fits, prepared - taken < 1 << bits);
                        prepared += u64::from(fits);
                    }
                    1 => p.submit().unwrap(),
                    2 => for _ in 0..c.available().unwrap() {
                        prop_assert_eq!(c.take().user, seen);
                        seen += 1;
                    },
                    _ => {
                        if answered < seen {
                            c.complete(Completion { user: answered, result: 1 });
                            answered += 1;
                        }
                        while let Some(got) = p.take() {
                            prop_assert_eq!(got.user, taken);
                            taken += 1;
                        }
                        prop_assert_eq!(taken, answered);
                    }
                }
            }
        }

        /// A hostile application: whatever stands in the page of indices, the daemon gives the ring up or takes at most what fits.
        #[test]
        fn wild_indices_are_refused(tail: u32, head: u32) {
            let (p, c) = pair(8);
            p.memory().atomic(at::SUBMIT_TAIL).store(tail, Ordering::SeqCst);
            p.memory().atomic(at::COMPLETE_HEAD).store(head, Ordering::SeqCst);
            match c.available() {
                Ok(n) => {
                    prop_assert!(n <= 8 && tail <= 8 && head == 0);
                    for _ in 0..n { c.take(); }
                    prop_assert!(c.working() <= 8);
                }
                Err(Broken(_)) => prop_assert!(p.waiter().check().is_err()),
            }
        }
    }

    #[test]
    fn waiting_ends_with_a_completion_or_with_the_time() {
        let (mut p, c) = pair(2);
        assert!(
            !p.waiter().wait(p.taken(), Some(Instant::now() + Duration::from_millis(20))).unwrap()
        );
        p.prepare(Submission { user: 9, ..Submission::default() }).unwrap();
        c.sleeps(true);
        p.submit().unwrap();
        assert!(p.bell().take(), "the daemon sleeps, so it is woken");
        p.submit().unwrap();
        assert!(!p.bell().take(), "once");
        let (waiter, taken) = (p.waiter().clone(), p.taken());
        let soon = Some(Instant::now() + Duration::from_secs(10));
        let waker = std::thread::spawn(move || waiter.wait(taken, soon));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(c.available(), Ok(1));
        assert_eq!(c.take().user, 9);
        c.complete(Completion { user: 9, result: 3 });
        assert!(waker.join().unwrap().unwrap());
        assert_eq!(p.take(), Some(Completion { user: 9, result: 3 }));
    }

    #[test]
    fn who_waits_for_short_times_only_is_asked_to_look_at_the_daemon_as_well() {
        let (mut p, c) = pair(2);
        let begun = Instant::now();
        let mut short = |p: &Producer| {
            let until = Instant::now() + Duration::from_millis(20);
            p.waiter().wait(p.taken(), Some(until)).map_err(|e| e.kind())
        };
        let asked =
            |p: &Producer, short: &mut dyn FnMut(&Producer) -> Result<bool, io::ErrorKind>| {
                std::iter::repeat_with(|| short(p)).take(500).position(|r| r.is_err())
            };
        assert!(asked(&p, &mut short).is_some());
        assert!(begun.elapsed() >= LOOK_AGAIN && begun.elapsed() < 3 * LOOK_AGAIN);
        assert_eq!(short(&p), Ok(false), "not each time");
        // News is a sign of life.
        std::thread::sleep(LOOK_AGAIN);
        p.prepare(Submission::default()).unwrap();
        p.submit().unwrap();
        assert_eq!(c.available(), Ok(1));
        c.complete(Completion { user: c.take().user, result: 3 });
        assert_eq!(short(&p), Ok(true));
        p.take().unwrap();
        assert_eq!(short(&p), Ok(false));
        assert!(asked(&p, &mut short).is_some());
    }

    #[test]
    fn a_wake_for_what_was_taken_already_ends_no_wait() {
        let (mut p, c) = pair(2);
        p.prepare(Submission { user: 9, ..Submission::default() }).unwrap();
        p.submit().unwrap();
        let (waiter, taken) = (p.waiter().clone(), p.taken());
        let waits = std::thread::spawn(move || waiter.wait(taken, None));
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(5));
            doorbell::wake(p.memory(), at::APPLICATION_WAITS);
        }
        assert_eq!(c.available(), Ok(1));
        c.complete(Completion { user: c.take().user, result: 3 });
        assert!(waits.join().unwrap().unwrap());
    }

    #[test]
    fn who_finds_news_leaves_the_wish_of_others_to_be_woken() {
        let (mut p, c) = pair(2);
        for user in 0..2 {
            p.prepare(Submission { user, ..Submission::default() }).unwrap();
        }
        p.submit().unwrap();
        assert_eq!(c.available(), Ok(2));
        c.put(Completion { user: c.take().user, result: 0 });
        // One waits for the second completion.
        let (waiter, memory) = (p.waiter().clone(), p.waiter().0.clone());
        let waits = std::thread::spawn(move || {
            let begun = Instant::now();
            (waiter.wait(1, None).unwrap(), begun.elapsed())
        });
        let asleep = || memory.memory.atomic(at::APPLICATION_WAITS).load(SeqCst) == 1;
        while !asleep() {
            std::thread::yield_now();
        }
        // The other one announces itself, too, and finds the first.
        assert!(p.waiter().look_twice(0), "there is news");
        assert!(asleep(), "the sleeper is woken still");
        c.complete(Completion { user: c.take().user, result: 0 });
        let (there, waited) = waits.join().unwrap();
        assert!(there && waited < LOOK_AGAIN / 2, "{waited:?}");
    }

    #[test]
    fn a_ring_that_lies_about_itself_is_refused() {
        let p = Producer::new(8).unwrap();
        let again = || {
            let fd = p.memory().as_fd().try_clone_to_owned().unwrap();
            SharedMemory::adopt(fd, layout::ring_bytes(8)).unwrap()
        };
        assert!(Consumer::new(again(), 16).is_err());
        assert!(Consumer::new(again(), 7).is_err());
        assert!(Consumer::new(again(), 4096).is_err(), "too short");
        p.memory().store(at::MAGIC, 0u64);
        assert!(Consumer::new(again(), 8).is_err());
        assert!(Producer::new(0).is_err() && Producer::new(12).is_err());
    }
}
