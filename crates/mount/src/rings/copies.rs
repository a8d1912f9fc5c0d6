//! [`Copies`]: into the memory of applications, so that none of them keeps the daemon waiting.
//!
//! They are made on the daemon's own thread through [`Windows`], which do not wait for locks of the application's. They do wait for a hole that it makes just there.
//! So each copy is timed: who has kept the daemon for longer than copies take has his made on helper threads for a while, of which there are few; then only he and
//! those like him wait. Guarantees: a copy is whole or an error, and over when that is said: nothing is written into memory whose operation has ended. One user keeps the daemon no longer than
//! [`AT_ONCE`] and a part in [`SHARE`] of the time, and twice beyond that. Time in which others had the processor is nobody's fault. Must never: have the daemon wait for an application without end
//! (the operation of who made it hang does).

use super::closing::Kept;
use super::threads::{Bounds, Threads};
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_usrbio::{LentMemory, Windows};
use libc::{EAGAIN, EFAULT, ENOSYS, EPERM};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// What a copy may take: this, and a microsecond for each KiB, a few times what it does take. What is beyond is lost time.
const USUAL: Duration = Duration::from_millis(1);
/// One part in so many of the time a user may lose,
const SHARE: u32 = 100;
/// and so much at once.
const AT_ONCE: Duration = Duration::from_millis(200);
/// Users of whom is known what they lost; beyond that the one who lost least is forgotten.
const USERS_KNOWN: usize = 256;
/// Helper threads for those who lost more. Their operations are no requests, and are bounded by themselves.
const COPIERS: Bounds =
    Bounds { threads: 2, of_user: 1, line: usize::MAX, line_of_user: usize::MAX };
/// For so long at most somebody is one of them for what he lost until now.
const OUT_MAX: Duration = Duration::from_secs(60);
/// After a copy that was slow it is looked for so long at whether the daemon sleeps in one: that is a call of the system for each copy.
const WATCH: Duration = Duration::from_secs(10);

/// A buffer of an application, for as long as anybody here uses it.
pub(super) struct Lent {
    pub memory: Kept<Arc<LentMemory>>,
    windows: Rc<RefCell<Windows>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.windows.borrow_mut().forget(&self.memory);
    }
}

/// See the module.
pub(super) struct Copies {
    windows: Rc<RefCell<Windows>>,
    lost: RefCell<Lost>,
    /// Until when each copy is looked at.
    watched: Cell<Option<Instant>>,
    threads: Threads,
}

/// How often this thread has slept: waited for something, while others having the processor counts for nothing.
fn sleeps() -> i64 {
    // SAFETY: a plain structure of numbers, for which zeros are a value; the kernel fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nvcsw
    }
}

impl Copies {
    pub fn new() -> Self {
        let threads = Threads::new(COPIERS);
        let (windows, lost, watched) = (Rc::default(), RefCell::default(), Cell::new(None));
        Self { windows, lost, watched, threads }
    }
    /// Memory that was adopted.
    pub fn lend(&self, memory: Kept<Arc<LentMemory>>) -> Rc<Lent> {
        Rc::new(Lent { memory, windows: self.windows.clone() })
    }
    /// Copies bytes into a buffer of a user. The errno: EFAULT if it cannot be reached, whatever the reason; EAGAIN if the memory of this user keeps others waiting, and does not come.
    pub async fn write(
        &self,
        rt: &Rt,
        user: u32,
        to: &Lent,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), i32> {
        let begun = rt.now();
        if self.lost.borrow().too_much(user, begun) {
            // In a box: it is rare, and tasks are to be small.
            return Box::pin(self.write_elsewhere(rt, user, to, offset, bytes)).await;
        }
        let slept = self.watched.get().filter(|until| *until > begun).map(|_| sleeps());
        let done = self.windows.borrow_mut().write(&to.memory, offset, bytes);
        let took = rt.now().since(begun);
        let beyond = took.saturating_sub(USUAL + Duration::from_micros(bytes.len() as u64 >> 10));
        if beyond > Duration::ZERO {
            self.watched.set(Some(rt.now() + WATCH));
            // Of the first one after a while nobody knows whether the thread slept.
            let has_slept = slept.is_some_and(|before| sleeps() > before);
            if has_slept {
                self.lost.borrow_mut().add(user, rt.now(), beyond);
            }
            tracing::debug!(
                user,
                ?took,
                has_slept,
                bytes = bytes.len(),
                "a copy into a buffer was slow"
            );
        }
        match done {
            // Where such copies are not known or forbidden (a container's filter of system calls).
            Err(e) if matches!(e.raw_os_error(), Some(ENOSYS | EPERM)) => {
                Box::pin(self.write_elsewhere(rt, user, to, offset, bytes)).await
            }
            done => done.map_err(|_| EFAULT),
        }
    }
    async fn write_elsewhere(
        &self,
        rt: &Rt,
        user: u32,
        to: &Lent,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), i32> {
        let (memory, bytes) = (Arc::clone(&to.memory), bytes.to_vec());
        let work = move || Ok(memory.write(offset, &bytes));
        // For a thread it waits for a while only; what has begun is answered when it has ended, for until then the memory is not the application's.
        let done = self.threads.run(rt, user, work).await.map_err(|_| EAGAIN)?;
        done.map_err(|_: io::Error| EFAULT)
    }
}

/// The time that users have lost for everybody: until when each would have to lose no more to have lost only his share.
#[derive(Default)]
struct Lost(BTreeMap<u32, Instant>);

impl Lost {
    fn too_much(&self, user: u32, now: Instant) -> bool {
        self.0.get(&user).is_some_and(|until| until.since(now) > AT_ONCE * SHARE)
    }
    fn add(&mut self, user: u32, now: Instant, beyond: Duration) {
        self.0.retain(|_, until| *until > now);
        if self.0.len() >= USERS_KNOWN
            && !self.0.contains_key(&user)
            && let Some(least) = self.0.iter().min_by_key(|(_, until)| **until).map(|(u, _)| *u)
        {
            self.0.remove(&least);
        }
        let until = self.0.entry(user).or_insert(now);
        *until = ((*until).max(now) + beyond * SHARE).min(now + AT_ONCE * SHARE + OUT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rings::room::Room;
    use glowfs_usrbio::SharedMemory;
    use std::os::fd::AsFd;
    use std::sync::Barrier;

    #[test]
    fn who_lost_too_much_waits_alone() {
        glowfs_rt::real::run(|rt| async move {
            let own = SharedMemory::new("t", 8192).unwrap();
            let fd = own.as_fd().try_clone_to_owned().unwrap();
            let copies = Rc::new(Copies::new());
            let memory = Arc::new(LentMemory::adopt(fd, 8192).unwrap());
            let to = copies.lend(Kept::new(&rt, &Rc::default(), memory, Room::new(0, 0).nothing()));
            let there = |at, n: usize| {
                let mut bytes = vec![0; n];
                to.memory.read(at, &mut bytes).unwrap();
                bytes
            };
            copies.lost.borrow_mut().add(7, rt.now(), Duration::from_secs(60));
            for (user, bytes) in [(8, [3; 5]), (7, [4; 5])] {
                copies.write(&rt, user, &to, 4094, &bytes).await.unwrap();
                assert_eq!(there(4094, 5), bytes);
                assert_eq!(copies.write(&rt, user, &to, 8190, &[1; 5]).await, Err(EFAULT));
            }
            // Its memory does not come.
            let come = Arc::new(Barrier::new(2));
            let (task, rt2, wait, of) = (rt.clone(), rt.clone(), come.clone(), copies.clone());
            let stuck = task.spawn(async move {
                of.threads.run(&rt2, 7, move || Ok(wait.wait())).await.map(drop)
            });
            rt.sleep(Duration::from_millis(20)).await;
            copies.write(&rt, 8, &to, 0, &[5; 9]).await.unwrap();
            let begun = rt.now();
            assert_eq!(copies.write(&rt, 7, &to, 0, &[6; 9]).await, Err(EAGAIN));
            assert!(rt.now().since(begun) < Duration::from_secs(5), "not for ever");
            assert_eq!(there(0, 9), [5; 9]);
            come.wait();
            stuck.await.unwrap();
            copies.write(&rt, 7, &to, 0, &[6; 9]).await.unwrap();
            assert_eq!(there(0, 9), [6; 9]);
        });
    }

    /// A thread that waits sleeps; one that only works does not, whoever else has the processor meanwhile.
    #[test]
    fn sleeps_are_counted() {
        let before = sleeps();
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(sleeps() > before);
    }

    #[test]
    fn who_keeps_others_waiting_is_known_for_as_long_as_it_takes() {
        glowfs_rt::real::run(|rt| async move {
            let ms = Duration::from_millis;
            let (start, mut lost) = (rt.now(), Lost::default());
            for i in 0..20 {
                lost.add(7, start + ms(i), ms(10));
                assert!(!lost.too_much(7, start + ms(20)), "a slow machine");
            }
            lost.add(7, start + ms(20), ms(2));
            assert!(lost.too_much(7, start + ms(20)));
            assert!(!lost.too_much(8, start + ms(20)), "another user");
            assert!(!lost.too_much(7, start + ms(300)), "it is forgiven");
            lost.add(8, start, Duration::from_secs(5));
            assert!(lost.too_much(8, start + Duration::from_secs(59)));
            assert!(!lost.too_much(8, start + Duration::from_secs(61)), "not for ever");
            for user in 0..2 * USERS_KNOWN as u32 {
                lost.add(user + 100, start, ms(1));
            }
            assert!(lost.0.len() <= USERS_KNOWN);
            assert!(lost.too_much(8, start + ms(1)), "who lost most is not forgotten");
        });
    }
}
