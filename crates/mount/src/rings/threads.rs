//! [`Threads`]: helper threads for what an application can keep waiting.
//!
//! Guarantees: few of them are at it at a time, and fewer for one user, so that others are left for the rest of the mount; nobody waits for long to get one. Requests that wait
//! count among those of the mount that are outstanding, so only so many wait.

use glowfs_rt::sync::{Permit, Semaphore};
use glowfs_rt::{Duration, Rt};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

/// How long an application waits for a thread.
const PATIENCE: Duration = Duration::from_secs(2);
/// Users of whom is known how many threads are at their work; beyond that those are forgotten who have none.
const USERS_KNOWN: usize = 256;

/// How many may be at it, and wait to be.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// At a time. A runtime has eight threads for what is of no directory ([`glowfs_rt::real::Config`]).
    pub threads: usize,
    /// The same for the applications of one user.
    pub of_user: usize,
    /// Who stand in line for one; the next is refused at once.
    pub line: usize,
    /// The same for the applications of one user.
    pub line_of_user: usize,
}

/// Who has a thread now, and who stands in line.
pub(super) struct Threads {
    bounds: Bounds,
    all: Line,
    of_user: RefCell<BTreeMap<u32, Rc<Line>>>,
}

/// Threads, and how many wait for one.
struct Line {
    threads: Semaphore,
    waiting: Cell<usize>,
}

impl Line {
    fn new(threads: usize) -> Self {
        Self { threads: Semaphore::new(threads), waiting: Cell::new(0) }
    }
}

/// One that waits.
struct InLine<'a>(&'a Line);

impl<'a> InLine<'a> {
    /// None: so many wait already.
    fn enter(line: &'a Line, most: usize) -> Option<Self> {
        let waiting = line.waiting.get();
        (waiting < most).then(|| {
            line.waiting.set(waiting + 1);
            Self(line)
        })
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Threads {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, all: Line::new(bounds.threads), of_user: RefCell::default() }
    }
    /// The right to a thread for a user; EAGAIN if none gets free, or too many wait for one.
    async fn begin(&self, rt: &Rt, user: u32) -> io::Result<(Permit, Permit)> {
        let Bounds { of_user: most, line, line_of_user, .. } = self.bounds;
        let of_user = {
            let mut users = self.of_user.borrow_mut();
            if users.len() >= USERS_KNOWN {
                users.retain(|_, l| Rc::strong_count(l) > 1 || l.threads.free() < most);
            }
            users.entry(user).or_insert_with(|| Rc::new(Line::new(most))).clone()
        };
        let busy = || io::Error::from_raw_os_error(libc::EAGAIN);
        let _of_user = InLine::enter(&of_user, line_of_user).ok_or_else(busy)?;
        let _of_all = InLine::enter(&self.all, line).ok_or_else(busy)?;
        let both = async { (of_user.threads.acquire(1).await, self.all.threads.acquire(1).await) };
        rt.timeout(PATIENCE, both).await.map_err(|_| busy())
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

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::sync::join_all;
    use std::sync::{Arc, Condvar, Mutex};

    const BOUNDS: Bounds = Bounds { threads: 4, of_user: 2, line: 20, line_of_user: 12 };

    /// Each would be an outstanding request for as long as it waits.
    #[test]
    fn only_so_many_stand_in_line() {
        glowfs_rt::real::run(|rt| async move {
            let threads = Rc::new(Threads::new(BOUNDS));
            let gate = Arc::new((Mutex::new(false), Condvar::new()));
            let (done, refused) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            for user in 1..4 {
                for _ in 0..100 {
                    let (rt, threads, gate) = (rt.clone(), threads.clone(), gate.clone());
                    let (done, refused) = (done.clone(), refused.clone());
                    let task = rt.clone();
                    task.spawn_detached(async move {
                        let wait = move || {
                            let open = gate.0.lock().unwrap();
                            drop(gate.1.wait_while(open, |open| !*open).unwrap());
                            Ok(())
                        };
                        let count = match threads.run(&rt, user, wait).await {
                            Ok(()) => done,
                            Err(_) => refused,
                        };
                        count.set(count.get() + 1);
                    });
                }
                rt.sleep(Duration::from_millis(20)).await;
                // Two of each of the first two users have a thread.
                let (at_it, in_line) = [(2, 12), (4, 20), (4, 20)][user as usize - 1];
                assert_eq!(refused.get(), user * 100 - at_it - in_line, "with {user} users");
            }
            *gate.0.lock().unwrap() = true;
            gate.1.notify_all();
            while done.get() + refused.get() < 300 {
                rt.sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(done.get(), 24, "all who stood in line");
        });
    }

    #[test]
    fn descriptors_that_do_not_answer_hold_few_threads() {
        glowfs_rt::real::run(|rt| async move {
            let threads = Rc::new(Threads::new(BOUNDS));
            let gate = Arc::new((Mutex::new(false), Condvar::new()));
            let stuck = |user| {
                let (rt, threads, gate) = (rt.clone(), threads.clone(), gate.clone());
                let task = rt.clone();
                task.spawn(async move {
                    let wait = move || {
                        let open = gate.0.lock().unwrap();
                        drop(gate.1.wait_while(open, |open| !*open).unwrap());
                        Ok(())
                    };
                    threads.run(&rt, user, wait).await
                })
            };
            let of_one: Vec<_> = (0..8).map(|_| stuck(1)).collect();
            rt.sleep(Duration::from_millis(50)).await;
            assert_eq!(threads.run(&rt, 2, || Ok(7)).await.unwrap(), 7, "another user's");
            let of_others: Vec<_> = (3..9).map(stuck).collect();
            rt.sleep(Duration::from_millis(50)).await;
            let refused = threads.run(&rt, 2, || Ok(7)).await;
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
            // Notifications, for example.
            let others = join_all((0..20).map(|i| rt.unblock(move || i)));
            let others = rt.timeout(Duration::from_secs(5), others).await;
            assert!(others.is_ok(), "the rest of the mount goes on");
            *gate.0.lock().unwrap() = true;
            gate.1.notify_all();
            let all = join_all(of_one.into_iter().chain(of_others)).await;
            assert_eq!(all.iter().filter(|r| r.is_ok()).count(), 4);
            assert_eq!(threads.run(&rt, 2, || Ok(7)).await.unwrap(), 7);
        });
    }
}
