//! The executor: one task at a time, in an order that the seed gives; time passes when all wait.

use super::{Disk, Rng};
use glowfs_rt::backend::{Backend, BoxFuture};
use glowfs_rt::tasks::Tasks;
use glowfs_rt::timers::Timers;
use glowfs_rt::{Address, Dir, Instant, Listener, Pool, Rt, Stream};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

pub struct World {
    tasks: Tasks,
    timers: Timers,
    now: Cell<u64>,
    pool: Pool,
    pub rng: Rng,
}

impl Backend for World {
    fn now(&self) -> Instant {
        Instant(self.now.get())
    }
    fn polls(&self) -> u64 {
        self.tasks.polls()
    }
    fn unix_ns(&self) -> u64 {
        self.now.get()
    }
    fn random(&self) -> u64 {
        self.rng.next()
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
    fn listen(&self, _: &Address) -> io::Result<Listener> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn connect(&self, _: &Address) -> BoxFuture<io::Result<Stream>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
    fn open_dir(&self, _: &Path) -> io::Result<Dir> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn unblock(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<()> {
        work();
        Box::pin(async {})
    }
    fn poll_readable(&self, _: BorrowedFd<'_>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
    fn forget_readable(&self, _: BorrowedFd<'_>) {}
    fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// Runs `main` in a seeded world until it ends (its result) or `disk` was cut off (`None`).
pub fn run<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    disk: &Rc<Disk>,
    main: impl FnOnce(Rt) -> F,
) -> Option<T> {
    run_observed(seed, disk, || {}, main)
}

/// The same; `observe` is called after every operation that changed something on the disk (if it [`Disk::yields`]).
pub fn run_observed<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    disk: &Rc<Disk>,
    mut observe: impl FnMut(),
    main: impl FnOnce(Rt) -> F,
) -> Option<T> {
    let world = Rc::new(World {
        tasks: Tasks::new(Box::new(|| {})),
        timers: Timers::default(),
        now: Cell::new(1),
        pool: Pool::heap(),
        rng: Rng::new(seed),
    });
    let rt = Rt::new(world.clone());
    let out = Rc::new(RefCell::new(None));
    let put = out.clone();
    let work = main(rt.clone());
    rt.spawn_detached(async move { *put.borrow_mut() = Some(work.await) });
    drop(rt);
    let mut seen = disk.ops.get();
    while out.borrow().is_none() && !disk.is_cut() {
        if disk.ops.get() != seen {
            seen = disk.ops.get();
            observe();
        }
        let ready = world.tasks.ready() as u64;
        if ready > 0 {
            let nth = if world.rng.below(2) == 0 { 0 } else { world.rng.below(ready) };
            world.tasks.run_nth(nth as usize);
            continue;
        }
        let next = world.timers.next().expect("a task waits for nothing: deadlock");
        world.now.set(next.0.max(world.now.get()));
        world.timers.fire(next);
    }
    world.tasks.clear();
    out.take()
}
