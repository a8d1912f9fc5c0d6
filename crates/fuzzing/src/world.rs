//! The smallest world that code of ours runs in: virtual time, memory, one script of a stream. No clock, no socket, no disk.

use crate::stream::Script;
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

/// Steps of tasks after which an input is taken for one that never ends.
const STEPS_MAX: u64 = 2_000_000;
/// Virtual nanoseconds after which a run that only waits is over.
const TIME_MAX: u64 = 600_000_000_000;

/// See the module.
pub struct World {
    tasks: Tasks,
    timers: Timers,
    now: Cell<u64>,
    random: Cell<u64>,
    pool: Pool,
    script: RefCell<Option<Rc<Script>>>,
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
        self.random.set(self.random.get() + 1);
        glowfs_types::layout::splitmix64(self.random.get())
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
        Ok(Rc::new(One(address.clone(), RefCell::new(self.script.take()))))
    }
    fn connect(&self, _: &Address) -> BoxFuture<io::Result<Stream>> {
        let script = self.script.take();
        Box::pin(async move {
            match script {
                Some(script) => Ok(script as Stream),
                None => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
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

/// A listener with one connection to give.
struct One(Address, RefCell<Option<Rc<Script>>>);

impl glowfs_rt::backend::ListenerIo for One {
    fn poll_accept(&self, _: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        match self.1.take() {
            Some(script) => Poll::Ready(Ok(script as Stream)),
            None => Poll::Pending,
        }
    }
    fn local(&self) -> Address {
        self.0.clone()
    }
}

/// Runs `main` to its end; `None` if it waits for what never comes, or for longer than ten virtual minutes. Panics if it does
/// not end although it could.
pub fn run<T: 'static, F: Future<Output = T> + 'static>(
    script: Option<Rc<Script>>,
    main: impl FnOnce(Rt) -> F,
) -> Option<T> {
    let world = Rc::new(World {
        tasks: Tasks::new(Box::new(|| {})),
        timers: Timers::default(),
        now: Cell::new(1_000_000_000),
        random: Cell::new(7),
        pool: Pool::heap(),
        script: RefCell::new(script),
    });
    let rt = Rt::new(world.clone());
    let out = Rc::new(RefCell::new(None));
    let put = out.clone();
    let work = main(rt.clone());
    rt.spawn_detached(async move { *put.borrow_mut() = Some(work.await) });
    drop(rt);
    let mut steps = 0;
    while out.borrow().is_none() {
        if world.tasks.ready() > 0 {
            world.tasks.run_nth(0);
            steps += 1;
            assert!(steps < STEPS_MAX, "this input keeps it busy for ever");
            continue;
        }
        let Some(next) = world.timers.next().filter(|t| t.0 < TIME_MAX) else { break };
        world.now.set(next.0.max(world.now.get()));
        world.timers.fire(next);
    }
    world.tasks.clear();
    world.timers.clear();
    let result = out.take();
    // Tasks may have held the last handle of something that spawned again.
    world.tasks.clear();
    result
}
