//! The real backend: one thread, its tasks, and one place where it waits.
//!
//! [`run`] makes a runtime on the current thread and drives it until the given future is done; everything that
//! was spawned and has not ended is dropped then. A service with several threads calls it on each
//! ([`spawn_thread`]).

mod commands;
mod driver;
mod epoll;
mod fs;
mod helpers;
mod here;
mod notify;
mod offload;
mod ops;
mod ring;
mod rooms;
mod shares;
mod socket;
mod uring;

use crate::backend::{Backend, BoxFuture, Command, Dir, Listener, Post, Stream};
use crate::mem::POOL_BYTES_DEFAULT;
use crate::tasks::Tasks;
use crate::timers::Timers;
use crate::{Address, Instant, Pool, Rt};
use driver::{Direction, Driver, Source};
use io_uring::squeue::{Entry, Entry128};
use notify::Bell;
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Tasks that run before the loop looks at I/O again.
const TASKS_PER_TURN: usize = 128;
/// Bytes of randomness fetched in one go.
const RANDOM_BYTES: usize = 512;

/// How the loop waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Io {
    /// io_uring if the kernel lets us, else epoll. The environment variable `GLOWFS_IO=epoll` decides, too.
    #[default]
    Auto,
    /// io_uring; an error if the kernel refuses it.
    Uring,
    /// epoll and helper threads.
    Epoll,
}

/// Bounds of one runtime.
#[derive(Clone, Debug)]
pub struct Config {
    /// How it waits.
    pub io: Io,
    /// Helper threads for the work of one directory, at most, and for the work of none. They come when they are needed, and end when they
    /// are idle.
    pub helper_threads_share: usize,
    /// The bound of the buffer pool, in bytes.
    pub pool_bytes: u64,
    /// Whether [`Rt::command`] is wanted, where the kernel has it. Requests to the ring are twice as large then.
    pub commands: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            io: Io::Auto,
            helper_threads_share: 8,
            pool_bytes: POOL_BYTES_DEFAULT,
            commands: false,
        }
    }
}

/// Runs `main` on this thread until it is done.
///
/// # Panics
/// If the kernel gives us not even an epoll instance, or if a task panics.
pub fn run<T: 'static, F: Future<Output = T> + 'static>(main: impl FnOnce(Rt) -> F) -> T {
    run_with(Config::default(), main).expect("a runtime needs a few file descriptors")
}

/// Like [`run`], with a configuration.
pub fn run_with<T: 'static, F: Future<Output = T> + 'static>(
    config: Config,
    main: impl FnOnce(Rt) -> F,
) -> io::Result<T> {
    let real = Real::new(&config)?;
    let rt = Rt::new(real.clone());
    let result: Rc<Cell<Option<T>>> = Rc::default();
    let put = result.clone();
    let future = main(rt);
    real.tasks.spawn(Box::pin(async move {
        put.set(Some(future.await));
    }));
    let outcome = loop {
        real.run_tasks();
        if let Some(out) = result.take() {
            break Ok(out);
        }
        if let Err(e) = real.wait() {
            break Err(e);
        }
    };
    real.close();
    outcome
}

/// Runs `main` on a new thread with a runtime of its own.
pub fn spawn_thread<T: Send + 'static, F: Future<Output = T> + 'static>(
    name: &str,
    config: Config,
    main: impl FnOnce(Rt) -> F + Send + 'static,
) -> io::Result<std::thread::JoinHandle<io::Result<T>>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(move || run_with(config, main))
}

struct Real {
    tasks: Tasks,
    timers: Timers,
    turn_began: Cell<Instant>,
    bell: Bell,
    driver: Rc<dyn Driver>,
    helpers: helpers::Helpers,
    pool: Pool,
    random: RefCell<Random>,
    /// Sources of [`Backend::poll_readable`].
    readable: RefCell<BTreeMap<RawFd, Rc<Source>>>,
    this: Weak<Real>,
}

impl Real {
    fn new(config: &Config) -> io::Result<Rc<Self>> {
        let bell = Bell::new()?;
        let helpers = helpers::Helpers::new(config.helper_threads_share);
        let driver = make_driver(config, &bell, &helpers)?;
        let ring = bell.clone();
        tracing::debug!(io = driver.name(), "runtime starts");
        Ok(Rc::new_cyclic(|this| Self {
            tasks: Tasks::new(Box::new(move || ring.ring())),
            timers: Timers::default(),
            turn_began: Cell::new(boottime()),
            bell,
            driver,
            helpers,
            pool: Pool::shared(config.pool_bytes),
            random: RefCell::new(Random::new()),
            readable: RefCell::default(),
            this: this.clone(),
        }))
    }

    fn rt(&self) -> Rt {
        Rt::new(self.this.upgrade().expect("whoever calls a method holds the runtime"))
    }

    /// Runs what is ready, for a while.
    fn run_tasks(&self) {
        self.tasks.take_remote();
        for _ in 0..TASKS_PER_TURN {
            if !self.tasks.run_next() {
                break;
            }
        }
    }

    /// Looks at timers and I/O; waits for them if nothing is ready.
    fn wait(&self) -> io::Result<()> {
        self.bell.about_to_sleep();
        let timeout = if self.tasks.ready() > 0 || self.tasks.has_remote() {
            Some(Duration::ZERO)
        } else {
            self.timers.next().map(|at| at.since(boottime()))
        };
        self.driver.turn(timeout)?;
        self.bell.awake();
        let now = boottime();
        self.turn_began.set(now);
        self.timers.fire(now);
        Ok(())
    }

    fn close(&self) {
        self.tasks.clear();
        self.timers.clear();
        self.readable.borrow_mut().clear();
        self.driver.drain();
        // What the operations held may have woken or started something.
        self.tasks.clear();
    }
}

fn make_driver(
    config: &Config,
    bell: &Bell,
    helpers: &helpers::Helpers,
) -> io::Result<Rc<dyn Driver>> {
    let io = config.io;
    let offload = || offload::Offload::new(helpers.clone(), bell.clone());
    let io = match std::env::var("GLOWFS_IO").as_deref() {
        Ok("epoll") if io == Io::Auto => Io::Epoll,
        Ok("uring") if io == Io::Auto => Io::Uring,
        _ => io,
    };
    if io != Io::Epoll && config.commands {
        match uring::Uring::<Entry128>::new(bell.clone(), offload()) {
            Ok(ring) => return Ok(Rc::new(ring)),
            Err(error) => tracing::info!(%error, "io_uring takes no commands here"),
        }
    }
    if io != Io::Epoll {
        match uring::Uring::<Entry>::new(bell.clone(), offload()) {
            Ok(ring) => return Ok(Rc::new(ring)),
            Err(e) if io == Io::Uring => return Err(e),
            Err(error) => tracing::info!(%error, "no io_uring here; epoll and helper threads do"),
        }
    }
    Ok(Rc::new(epoll::Epoll::new(bell.clone(), offload())?))
}

fn boottime() -> Instant {
    let t = clock_gettime(ClockId::Boottime);
    Instant((t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64))
}

impl Backend for Real {
    fn now(&self) -> Instant {
        boottime()
    }
    fn turn_began(&self) -> Instant {
        self.turn_began.get()
    }
    fn polls(&self) -> u64 {
        self.tasks.polls()
    }
    fn unix_ns(&self) -> u64 {
        let t = clock_gettime(ClockId::Realtime);
        (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
    }
    fn random(&self) -> u64 {
        self.random.borrow_mut().next()
    }
    fn set_timer(&self, at: Instant, waker: Waker) -> u64 {
        self.timers.set(at, waker)
    }
    fn cancel_timer(&self, key: u64) {
        self.timers.cancel(key);
    }
    fn spawn(&self, task: BoxFuture<()>) {
        self.tasks.spawn(task);
    }
    fn listen(&self, address: &Address) -> io::Result<Listener> {
        socket::listen(&self.driver, address)
    }
    fn connect(&self, address: &Address) -> BoxFuture<io::Result<Stream>> {
        Box::pin(socket::connect(self.driver.clone(), self.rt(), address.clone()))
    }
    fn open_dir(&self, path: &Path) -> io::Result<Dir> {
        fs::open_dir(&self.driver, path)
    }
    fn unblock(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<()> {
        self.helpers.unblock(shares::NOBODY, work)
    }
    fn poll_readable(&self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let source = {
            let mut all = self.readable.borrow_mut();
            let raw = fd.as_raw_fd();
            all.entry(raw).or_insert_with(|| Rc::new(Source::new(&self.driver, raw))).clone()
        };
        source.poll_event(cx, Direction::Read)
    }
    fn forget_readable(&self, fd: BorrowedFd<'_>) {
        let source = self.readable.borrow_mut().remove(&fd.as_raw_fd());
        drop(source);
    }
    fn post(&self, post: Post) -> Result<(), Post> {
        if !self.driver.batches() {
            return Err(post);
        }
        let key = self.driver.ops().insert(ops::Op::post(post));
        self.driver.start(key);
        Ok(())
    }
    fn takes_commands(&self) -> bool {
        self.driver.takes_commands()
    }
    /// # Safety
    ///
    /// As of [`Backend::command`]: the memory that the driver touches lives as long as the command's `keep`.
    unsafe fn command(&self, command: Command) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.driver.command(command) }
    }
    fn poll_handed_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.driver.poll_handed_over(cx)
    }
    fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// The kernel's randomness, a block at a time.
struct Random {
    bytes: [u8; RANDOM_BYTES],
    used: usize,
}

impl Random {
    fn new() -> Self {
        Self { bytes: [0; RANDOM_BYTES], used: RANDOM_BYTES }
    }
    fn next(&mut self) -> u64 {
        if self.used + 8 > RANDOM_BYTES {
            let mut filled = 0;
            while filled < RANDOM_BYTES {
                let flags = rustix::rand::GetRandomFlags::empty();
                match rustix::rand::getrandom(&mut self.bytes[filled..], flags) {
                    Ok(n) => filled += n,
                    Err(rustix::io::Errno::INTR) => {}
                    // Without randomness ids would repeat; nothing may go on.
                    Err(e) => panic!("the kernel gives no random bytes: {e}"),
                }
            }
            self.used = 0;
        }
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[self.used..self.used + 8]);
        // Used bytes are not kept.
        self.bytes[self.used..self.used + 8].fill(0);
        self.used += 8;
        u64::from_ne_bytes(word)
    }
}

#[cfg(test)]
mod tests;
