//! Descriptors of an application, by their number there.
//!
//! Everything here runs on a helper thread: a descriptor may be of this very mount, and then closing it, or any question about it, waits
//! for an answer of ours. It may be of a file system that never answers, too, so few of these threads may be at it at a time
//! ([`Adoptions`]): the others are for the rest of the mount.

use glowfs_rt::sync::{Permit, Semaphore};
use glowfs_rt::{Duration, Rt};
use glowfs_usrbio::{Doorbell, Identity, LentMemory, SharedMemory};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Helper threads that look at descriptors of applications, at most; a runtime has eight for what is of no directory ([`glowfs_rt::real::Config`]).
const THREADS_MAX: usize = 4;
/// The same for the applications of one user.
const THREADS_OF_USER_MAX: usize = 2;
/// How long an application waits for one.
const PATIENCE: Duration = Duration::from_secs(2);
/// Users of whom is known how many threads are at their descriptors; beyond that those are forgotten who have none.
const USERS_KNOWN: usize = 256;

/// Who has a thread look at its descriptors now.
pub(super) struct Adoptions {
    all: Semaphore,
    of_user: RefCell<BTreeMap<u32, Rc<Semaphore>>>,
}

impl Adoptions {
    pub fn new() -> Self {
        Self { all: Semaphore::new(THREADS_MAX), of_user: RefCell::default() }
    }
    /// The right to a thread for a user; an error if none gets free.
    async fn begin(&self, rt: &Rt, user: u32) -> io::Result<(Permit, Permit)> {
        let of_user = {
            let mut users = self.of_user.borrow_mut();
            if users.len() >= USERS_KNOWN {
                users.retain(|_, s| Rc::strong_count(s) > 1 || s.free() < THREADS_OF_USER_MAX);
            }
            let new = || Rc::new(Semaphore::new(THREADS_OF_USER_MAX));
            users.entry(user).or_insert_with(new).clone()
        };
        let both = async { (of_user.acquire(1).await, self.all.acquire(1).await) };
        let busy = |_| io::Error::from_raw_os_error(libc::EAGAIN);
        rt.timeout(PATIENCE, both).await.map_err(busy)
    }
    /// Runs `work` on a thread for a user.
    pub async fn run<T: Send + 'static>(
        &self,
        rt: &Rt,
        user: u32,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let begun = self.begin(rt, user).await?;
        // The thread may be at it when nobody waits any more.
        let inner = rt.clone();
        rt.spawn(async move {
            let done = inner.unblock(work).await;
            drop(begun);
            done
        })
        .await
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// The process that a thread belongs to. (FUSE names the thread; a pidfd is of a process.)
fn process_of(thread: u32) -> io::Result<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let id =
        status.lines().find_map(|l| l.strip_prefix("Tgid:")).and_then(|v| v.trim().parse().ok());
    id.and_then(Pid::from_raw).ok_or_else(|| invalid("the caller cannot be seen from here"))
}

fn fetch(thread: u32, number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let process = rustix::process::pidfd_open(process_of(thread)?, PidfdFlags::empty())?;
    Ok(rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}

/// The memory of a buffer, the process it is of, and which memory it is; anything but a memfd that has all its pages, and that nobody can shrink, is refused.
pub(super) fn buffer(
    thread: u32,
    number: i32,
    len: u64,
) -> io::Result<(LentMemory, u32, Identity)> {
    let process = process_of(thread)?.as_raw_nonzero().get().unsigned_abs();
    let memory = LentMemory::adopt(fetch(thread, number)?, len)?;
    let which = memory.identity()?;
    Ok((memory, process, which))
}

/// The memory of a ring.
pub(super) fn memory(thread: u32, number: i32, len: usize) -> io::Result<SharedMemory> {
    SharedMemory::adopt(fetch(thread, number)?, len)
}

/// A doorbell.
pub(super) fn doorbell(thread: u32, number: i32) -> io::Result<Doorbell> {
    Doorbell::adopt(fetch(thread, number)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::sync::join_all;
    use std::sync::{Arc, Condvar, Mutex};

    #[test]
    fn descriptors_that_do_not_answer_hold_few_threads() {
        glowfs_rt::real::run(|rt| async move {
            let adoptions = Rc::new(Adoptions::new());
            let gate = Arc::new((Mutex::new(false), Condvar::new()));
            let stuck = |user| {
                let (rt, adoptions, gate) = (rt.clone(), adoptions.clone(), gate.clone());
                let task = rt.clone();
                task.spawn(async move {
                    let wait = move || {
                        let open = gate.0.lock().unwrap();
                        drop(gate.1.wait_while(open, |open| !*open).unwrap());
                        Ok(())
                    };
                    adoptions.run(&rt, user, wait).await
                })
            };
            let of_one: Vec<_> = (0..8).map(|_| stuck(1)).collect();
            rt.sleep(Duration::from_millis(50)).await;
            assert_eq!(adoptions.run(&rt, 2, || Ok(7)).await.unwrap(), 7, "another user's");
            let of_others: Vec<_> = (3..9).map(stuck).collect();
            rt.sleep(Duration::from_millis(50)).await;
            let refused = adoptions.run(&rt, 2, || Ok(7)).await;
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
            // Notifications, for example.
            let others = join_all((0..20).map(|i| rt.unblock(move || i)));
            let others = rt.timeout(Duration::from_secs(5), others).await;
            assert!(others.is_ok(), "the rest of the mount goes on");
            *gate.0.lock().unwrap() = true;
            gate.1.notify_all();
            let all = join_all(of_one.into_iter().chain(of_others)).await;
            assert_eq!(all.iter().filter(|r| r.is_ok()).count(), THREADS_MAX);
            assert_eq!(adoptions.run(&rt, 2, || Ok(7)).await.unwrap(), 7);
        });
    }
}
