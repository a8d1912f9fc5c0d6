//! [`Rt`]: the handle that everything with I/O is given.

use crate::backend::{Backend, BoxFuture, Command, Dir, Listener, Post, Stream};
use crate::outcome::Outcome;
use crate::{Address, BufMut, Duration, Instant, Pool};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// How long [`Rt::lock_dir`] waits, and how often it looks.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_LOOK: Duration = Duration::from_millis(20);

/// The runtime of this thread (or of one simulated node). Cheap to clone.
#[derive(Clone)]
pub struct Rt(Rc<dyn Backend>);

/// A time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl Rt {
    /// A handle on a backend.
    pub fn new(backend: Rc<dyn Backend>) -> Self {
        Self(backend)
    }
    /// CLOCK_BOOTTIME of this node.
    pub fn now(&self) -> Instant {
        self.0.now()
    }
    /// When the present turn of the loop began: a moment ago, and asking costs nothing. For what only measures, and for deadlines that a
    /// few milliseconds do not matter to. What a lease, a fence or another node depends on asks [`Rt::now`].
    pub fn turn_began(&self) -> Instant {
        self.0.turn_began()
    }
    /// A number that stays the same for as long as a task runs without waiting: what that does may be bounded by it.
    pub fn polls(&self) -> u64 {
        self.0.polls()
    }
    /// Nanoseconds since the Unix epoch.
    pub fn unix_ns(&self) -> u64 {
        self.0.unix_ns()
    }
    /// 64 random bits.
    pub fn random(&self) -> u64 {
        self.0.random()
    }
    /// 128 random bits, for ids that never repeat.
    pub fn random_u128(&self) -> u128 {
        (u128::from(self.0.random()) << 64) | u128::from(self.0.random())
    }
    /// A number in `[0, below)`; 0 if `below` is 0.
    pub fn random_below(&self, below: u64) -> u64 {
        if below == 0 { 0 } else { self.0.random() % below }
    }
    /// Waits.
    pub fn sleep(&self, d: Duration) -> Sleep {
        self.sleep_until(self.now() + d)
    }
    /// Waits until a moment.
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep { rt: self.clone(), at, key: None }
    }
    /// Runs `work`, at most for `d`; then it is dropped.
    pub async fn timeout<F: Future>(&self, d: Duration, work: F) -> Result<F::Output, Elapsed> {
        let mut work = std::pin::pin!(work);
        let mut sleep = std::pin::pin!(self.sleep(d));
        poll_fn(|cx| {
            if let Poll::Ready(out) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(out));
            }
            sleep.as_mut().poll(cx).map(|()| Err(Elapsed))
        })
        .await
    }
    /// Starts a task. Dropping the handle does not stop it.
    pub fn spawn<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Task<T> {
        let state = Rc::new(RefCell::new(TaskState { result: None, waker: None, done: false }));
        let shared = state.clone();
        self.0.spawn(Box::pin(async move {
            let result = work.await;
            let waker = {
                let mut s = shared.borrow_mut();
                s.result = Some(result);
                s.done = true;
                s.waker.take()
            };
            if let Some(w) = waker {
                w.wake();
            }
        }));
        Task(state)
    }
    /// Starts a task nobody waits for; cheaper than [`Rt::spawn`].
    pub fn spawn_detached(&self, work: impl Future<Output = ()> + 'static) {
        self.0.spawn(Box::pin(work));
    }
    /// Listens.
    pub fn listen(&self, address: &Address) -> io::Result<Listener> {
        self.0.listen(address)
    }
    /// Connects.
    pub fn connect(&self, address: &Address) -> BoxFuture<io::Result<Stream>> {
        self.0.connect(address)
    }
    /// Takes the lock of a directory. Waits a moment (2 s) for it: a process that was killed holds what it held until the kernel has
    /// ended its last thread, and its successor may be there before.
    pub async fn lock_dir(&self, dir: &Dir) -> io::Result<()> {
        let until = self.now() + LOCK_PATIENCE;
        loop {
            match dir.lock() {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy && self.now() < until => {
                    self.sleep(LOCK_LOOK).await;
                }
                done => return done,
            }
        }
    }
    /// Opens a directory, making it if need be.
    pub fn open_dir(&self, path: &Path) -> io::Result<Dir> {
        self.0.open_dir(path)
    }
    /// Runs something that blocks on a helper thread.
    pub async fn unblock<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (outcome, job) = Outcome::of(work);
        self.0.unblock(job).await;
        outcome.take().expect("a backend runs the work before its future resolves")
    }
    /// Resolves when `fd` is readable.
    pub fn poll_readable(&self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_readable(fd, cx)
    }
    /// Forgets what [`Rt::poll_readable`] keeps of `fd`. Call it before the descriptor is closed.
    pub fn forget_readable(&self, fd: BorrowedFd<'_>) {
        self.0.forget_readable(fd);
    }
    /// See [`Backend::post`].
    pub fn post(&self, post: Post) -> Result<(), Post> {
        self.0.post(post)
    }
    /// Whether [`Rt::command`] can be used.
    pub fn takes_commands(&self) -> bool {
        self.0.takes_commands()
    }
    /// See [`Backend::command`].
    ///
    /// # Safety
    /// Whatever memory the driver touches because of the command lives as long as its `keep`.
    pub unsafe fn command(&self, command: Command) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.0.command(command) }
    }
    /// Returns when the kernel has all commands that were given until now.
    pub async fn handed_over(&self) {
        poll_fn(|cx| self.0.poll_handed_over(cx)).await;
    }
    /// The pool that buffers come from.
    pub fn pool(&self) -> &Pool {
        self.0.pool()
    }
    /// A page-aligned buffer of `len` bytes, contents arbitrary.
    pub fn alloc(&self, len: usize) -> BufMut {
        self.0.pool().alloc(len)
    }
    /// Lets other tasks run first.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|cx| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
    pub(crate) fn set_timer(&self, at: Instant, waker: Waker) -> u64 {
        self.0.set_timer(at, waker)
    }
    pub(crate) fn cancel_timer(&self, key: u64) {
        self.0.cancel_timer(key);
    }
}

/// See [`Rt::sleep`].
pub struct Sleep {
    rt: Rt,
    at: Instant,
    key: Option<u64>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(key) = self.key.take() {
            self.rt.cancel_timer(key);
        }
        // What is due since the turn began fires in the next one.
        if self.rt.turn_began() >= self.at {
            return Poll::Ready(());
        }
        self.key = Some(self.rt.set_timer(self.at, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.rt.cancel_timer(key);
        }
    }
}

struct TaskState<T> {
    result: Option<T>,
    waker: Option<Waker>,
    done: bool,
}

/// A started task; a future of its result.
pub struct Task<T>(Rc<RefCell<TaskState<T>>>);

impl<T> Task<T> {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.0.borrow().done
    }
}

impl<T> Future for Task<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut s = self.0.borrow_mut();
        match s.result.take() {
            Some(r) => Poll::Ready(r),
            None => {
                s.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
