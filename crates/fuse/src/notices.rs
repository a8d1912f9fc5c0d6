//! [`Notices`]: notifications on their way to the kernel, on threads of their own.
//!
//! Each may wait in the kernel: for a page that is being read, or for a directory that is being changed. So none takes a helper thread of the runtime, which
//! all else needs that blocks; and what one inode keeps waiting holds up one thread of these, not one for each time that it is told of.
//!
//! Must never: let another one of an inode begin because nobody waits for the first any more. Its thread is still there.

use crate::device::Sender;
use glowfs_rt::Rt;
use glowfs_rt::sync::{OneReceiver, Permit, Semaphore, oneshot};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Inodes whose pages are being forgotten at a time: each may wait for a page.
const PAGES_MAX: usize = 128;
/// Directories of which names are being forgotten at a time: each may wait for a change there.
const NAMES_MAX: usize = 64;
/// Inodes whose attributes are being forgotten at a time: these wait for hardly anything.
const ATTRIBUTES_MAX: usize = 16;
/// A thread that has nothing to do ends after this.
const IDLE: Duration = Duration::from_secs(10);
/// A thread makes one system call.
const STACK_BYTES: usize = 128 << 10;

/// What a notification may wait for in the kernel. One at a time is sent of each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lane {
    /// Pages of an inode.
    Pages(u64),
    /// Names in a directory.
    Names(u64),
    /// Attributes of an inode.
    Attributes(u64),
}

/// See the module.
pub(crate) struct Notices {
    rt: Rt,
    sender: Sender,
    lanes: RefCell<BTreeMap<Lane, Rc<Semaphore>>>,
    pages: Semaphore,
    names: Semaphore,
    attributes: Semaphore,
    threads: Arc<Threads>,
}

/// The right to send one of a lane.
struct Turn {
    notices: Rc<Notices>,
    lane: Lane,
    permit: Option<Permit>,
    of_lane: Rc<Semaphore>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.permit.take();
        // The lane's own, and ours: nobody else has it or waits for it.
        if Rc::strong_count(&self.of_lane) <= 2 {
            self.notices.lanes.borrow_mut().remove(&self.lane);
        }
    }
}

impl Notices {
    pub fn new(rt: &Rt, sender: Sender) -> Rc<Self> {
        Rc::new(Self {
            rt: rt.clone(),
            sender,
            lanes: RefCell::default(),
            pages: Semaphore::new(PAGES_MAX),
            names: Semaphore::new(NAMES_MAX),
            attributes: Semaphore::new(ATTRIBUTES_MAX),
            threads: Arc::default(),
        })
    }

    /// Sends one, after those of its lane. Who gives up before its turn has come has sent nothing.
    pub async fn send(self: &Rc<Self>, lane: Lane, code: i32, body: Vec<u8>) -> io::Result<()> {
        let sender = self.sender.clone();
        self.run(lane, move || sender.send(code, 0, &[IoSlice::new(&body)])).await
    }

    async fn run(
        self: &Rc<Self>,
        lane: Lane,
        call: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let turn = self.turn(lane).await;
        let thread = match lane {
            Lane::Pages(_) => self.pages.acquire(1),
            Lane::Names(_) => self.names.acquire(1),
            Lane::Attributes(_) => self.attributes.acquire(1),
        };
        let thread = thread.await;
        let outcome = self.begin(turn, thread, Box::new(call));
        outcome.await.unwrap_or_else(|_| Err(io::Error::other("the mount goes away")))
    }

    async fn turn(self: &Rc<Self>, lane: Lane) -> Turn {
        let of_lane = self
            .lanes
            .borrow_mut()
            .entry(lane)
            .or_insert_with(|| Rc::new(Semaphore::new(1)))
            .clone();
        let mut turn = Turn { notices: self.clone(), lane, permit: None, of_lane };
        turn.permit = Some(turn.of_lane.acquire(1).await);
        turn
    }

    /// From here on it goes on to its end, whether somebody waits for that or not.
    fn begin(
        self: &Rc<Self>,
        turn: Turn,
        thread: Permit,
        call: Call,
    ) -> OneReceiver<io::Result<()>> {
        let (tell, told) = oneshot();
        let (rt, threads) = (self.rt.clone(), self.threads.clone());
        self.rt.spawn_detached(async move {
            let outcome = match threads.start(call) {
                Ok(ended) => ended.wait().await,
                Err(call) => rt.unblock(call).await,
            };
            drop((thread, turn));
            let _ = tell.send(outcome);
        });
        told
    }
}

/// A system call that may take long.
type Call = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// Threads that come as they are needed, and end when they are not. There is one for each call at most, and callers see to it that there are not too many of
/// these.
#[derive(Default)]
struct Threads {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    calls: VecDeque<(Call, Arc<Ended>)>,
    idle: usize,
}

/// The outcome of a call, for another thread.
#[derive(Default)]
struct Ended(Mutex<(Option<io::Result<()>>, Option<Waker>)>);

impl Ended {
    fn tell(&self, outcome: io::Result<()>) {
        let waker = {
            let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            slot.0 = Some(outcome);
            slot.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
    async fn wait(&self) -> io::Result<()> {
        poll_fn(|cx| {
            let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(outcome) = slot.0.take() {
                return Poll::Ready(outcome);
            }
            slot.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Threads {
    /// Has a thread make the call; gives it back if no thread can be had.
    fn start(self: &Arc<Self>, call: Call) -> Result<Arc<Ended>, Call> {
        let ended = Arc::new(Ended::default());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.calls.push_back((call, ended.clone()));
        if state.calls.len() > state.idle {
            let threads = self.clone();
            let started = std::thread::Builder::new()
                .name("glowfs-notices".into())
                .stack_size(STACK_BYTES)
                .spawn(move || threads.work());
            if let Err(error) = started {
                tracing::warn!(%error, "no thread for a notification; a helper thread sends it");
                // Nobody took it: the lock is held since it was put there.
                if let Some((call, _)) = state.calls.pop_back() {
                    return Err(call);
                }
            }
        }
        drop(state);
        self.more.notify_one();
        Ok(ended)
    }

    fn work(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((call, ended)) = state.calls.pop_front() {
                drop(state);
                ended.tell(call());
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.idle += 1;
            let (next, waited) =
                self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if waited.timed_out() && state.calls.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::Duration;
    use glowfs_rt::real;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc;

    /// Of a device that nobody reads.
    fn notices(rt: &Rt) -> Rc<Notices> {
        let fd = OwnedFd::from(std::fs::File::open("/dev/null").expect("/dev/null"));
        Notices::new(rt, Sender::of(fd))
    }

    #[test]
    fn what_waits_for_pages_of_some_files_holds_up_nothing_else() {
        real::run(|rt| async move {
            let all = notices(&rt);
            let mut gates = Vec::new();
            let mut stuck = Vec::new();
            for inode in 0..40 {
                for _ in 0..3 {
                    let (open, gate) = mpsc::channel::<()>();
                    gates.push(open);
                    let all = all.clone();
                    let wait = move || {
                        let _ = gate.recv_timeout(std::time::Duration::from_secs(20));
                        Ok(())
                    };
                    stuck.push(rt.spawn(async move { all.run(Lane::Pages(inode), wait).await }));
                }
            }
            rt.sleep(Duration::from_millis(50)).await;
            let soon = Duration::from_secs(5);
            for lane in [Lane::Pages(99), Lane::Names(1), Lane::Attributes(1)] {
                let told = rt.timeout(soon, all.run(lane, || Ok(()))).await;
                assert!(matches!(told, Ok(Ok(()))), "{lane:?}");
            }
            assert!(rt.timeout(soon, rt.unblock(|| ())).await.is_ok(), "helper threads are free");
            drop(gates);
            for one in stuck {
                assert!(one.await.is_ok());
            }
            assert!(all.lanes.borrow().is_empty());
        });
    }

    #[test]
    fn one_of_an_inode_is_sent_at_a_time_also_if_nobody_waits_for_it() {
        real::run(|rt| async move {
            let all = notices(&rt);
            let (open, gate) = mpsc::channel::<()>();
            let wait = move || {
                let _ = gate.recv_timeout(std::time::Duration::from_secs(20));
                Ok(())
            };
            let short = Duration::from_millis(50);
            assert!(rt.timeout(short, all.run(Lane::Pages(1), wait)).await.is_err());
            let next = rt.timeout(short, all.run(Lane::Pages(1), || Ok(()))).await;
            assert!(next.is_err(), "the first one is still there");
            drop(open);
            let next = rt.timeout(Duration::from_secs(5), all.run(Lane::Pages(1), || Ok(()))).await;
            assert!(matches!(next, Ok(Ok(()))));
        });
    }
}
