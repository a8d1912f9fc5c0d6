//! [`Threads`]: helper threads for what an application can keep waiting.
//!
//! Guarantees: few of them are at it at a time, and fewer for one user, so that others are left for the rest of the mount; nobody waits for long to get one.

use glowfs_rt::sync::{Permit, Semaphore};
use glowfs_rt::{Duration, Rt};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

/// How long an application waits for a thread.
const PATIENCE: Duration = Duration::from_secs(2);
/// Users of whom is known how many threads are at their work; beyond that those are forgotten who have none.
const USERS_KNOWN: usize = 256;

/// Who has a thread now.
pub(super) struct Threads {
    all: Semaphore,
    of_user: RefCell<BTreeMap<u32, Rc<Semaphore>>>,
    of_user_max: usize,
}

impl Threads {
    /// So many at a time, and so many for the applications of one user. A runtime has eight for what is of no directory ([`glowfs_rt::real::Config`]).
    pub fn new(all: usize, of_user_max: usize) -> Self {
        Self { all: Semaphore::new(all), of_user: RefCell::default(), of_user_max }
    }
    /// The right to a thread for a user; an error if none gets free.
    async fn begin(&self, rt: &Rt, user: u32) -> io::Result<(Permit, Permit)> {
        let most = self.of_user_max;
        let of_user = {
            let mut users = self.of_user.borrow_mut();
            if users.len() >= USERS_KNOWN {
                users.retain(|_, s| Rc::strong_count(s) > 1 || s.free() < most);
            }
            users.entry(user).or_insert_with(|| Rc::new(Semaphore::new(most))).clone()
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

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::sync::join_all;
    use std::sync::{Arc, Condvar, Mutex};

    #[test]
    fn descriptors_that_do_not_answer_hold_few_threads() {
        glowfs_rt::real::run(|rt| async move {
            let threads = Rc::new(Threads::new(4, 2));
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
