//! One node: a process with its own clock, tasks, chance and disks.

use super::core::Core;
use super::disk::{self, SimDisk};
use super::net;
use super::random::Random;
use glowfs_rt::backend::{Backend, BoxFuture, Dir, Listener, Stream};
use glowfs_rt::process::Simulated;
use glowfs_rt::tasks::Tasks;
use glowfs_rt::timers::Timers;
use glowfs_rt::{Address, Instant, Pool, Rt};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// When the simulated worlds begin, in nanoseconds since the Unix epoch.
const EPOCH_UNIX_NS: u64 = 1_800_000_000_000_000_000;
/// The greatest drift of a clock, in parts per million.
const DRIFT_PPM_MAX: u64 = 200;

/// `n * by / of`. Division of more than 64 bits is slow, and clocks are read all the time.
fn times(n: i128, by: i64, of: i64) -> i128 {
    match i64::try_from(n).ok().and_then(|n| n.checked_mul(by)) {
        Some(product) => i128::from(product / of),
        None => n * i128::from(by) / i128::from(of),
    }
}

pub(crate) struct Node {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) host: usize,
    pub(crate) tasks: Tasks,
    /// In world time.
    pub(crate) timers: Timers,
    /// Counts restarts; a handle of an earlier life does nothing.
    life: Cell<u64>,
    /// Losses of power, and the first start.
    boots: Cell<u32>,
    up: Cell<bool>,
    /// Its process is stopped (SIGSTOP): nothing of it runs, its timers and what arrives wait.
    frozen: Cell<bool>,
    drift_ppm: Cell<i64>,
    offset_ns: Cell<u64>,
    unix_skew_ns: Cell<i64>,
    random: RefCell<Random>,
    pub(crate) next_port: Cell<u16>,
}

impl Node {
    /// What the node's clock shows at a moment of the world.
    pub(crate) fn local(&self, world: u64) -> u64 {
        let drift = times(world.into(), self.drift_ppm.get(), 1_000_000);
        let local = i128::from(self.offset_ns.get()) + i128::from(world) + drift;
        u64::try_from(local).unwrap_or(u64::MAX)
    }
    /// The first moment of the world at which the node's clock shows `local` or more.
    fn world(&self, local: u64) -> u64 {
        let behind = i128::from(local) - i128::from(self.offset_ns.get());
        let guess = times(behind, 1_000_000, 1_000_000 + self.drift_ppm.get());
        let mut world = u64::try_from((guess - 2).max(0)).unwrap_or(u64::MAX);
        while self.local(world) < local && world < u64::MAX {
            world += 1;
        }
        world
    }
    pub(crate) fn ip(&self) -> IpAddr {
        let [high, low] = (self.index as u16 + 1).to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(10, 0, high, low))
    }
    /// What its tasks are told about their process.
    pub(crate) fn process(&self) -> Simulated {
        let pid = self.index as u64 * 1000 + self.life.get();
        Simulated { pid: pid as u32, host: self.host as u32, boot: self.boots.get() }
    }
    pub(crate) fn is_up(&self) -> bool {
        self.up.get()
    }
    /// Tasks that can run now.
    pub(crate) fn ready(&self) -> usize {
        if self.frozen.get() { 0 } else { self.tasks.ready() }
    }
    pub(crate) fn stop(&self) {
        self.up.set(false);
        self.frozen.set(false);
        self.tasks.clear();
        self.timers.clear();
    }
}

/// A handle on a node. Cheap to clone.
#[derive(Clone)]
pub struct SimNode {
    core: Weak<Core>,
    node: Rc<Node>,
}

impl SimNode {
    pub(crate) fn find_or_make(core: &Rc<Core>, name: &str, host: Option<usize>) -> Self {
        let found = core.nodes.borrow().iter().find(|n| n.name == name).cloned();
        if let Some(node) = found {
            return Self { core: Rc::downgrade(core), node };
        }
        let index = core.nodes.borrow().len();
        let node = core.random(|r| Node {
            index,
            name: name.to_owned(),
            host: host.unwrap_or(index),
            tasks: Tasks::new(Box::new(|| {})),
            timers: Timers::default(),
            life: Cell::new(1),
            boots: Cell::new(1),
            up: Cell::new(true),
            frozen: Cell::new(false),
            drift_ppm: Cell::new(r.below(2 * DRIFT_PPM_MAX + 1) as i64 - DRIFT_PPM_MAX as i64),
            offset_ns: Cell::new(r.between(1_000_000_000, 100_000_000_000_000)),
            unix_skew_ns: Cell::new(r.below(100_000_000) as i64 - 50_000_000),
            random: RefCell::new(Random::new(r.bits())),
            next_port: Cell::new(10_000),
        });
        let node = Rc::new(node);
        core.nodes.borrow_mut().push(node.clone());
        Self { core: Rc::downgrade(core), node }
    }
    fn core(&self) -> Rc<Core> {
        self.core.upgrade().expect("the node's world is gone")
    }
    pub(crate) fn index(&self) -> usize {
        self.node.index
    }
    pub(crate) fn host(&self) -> usize {
        self.node.host
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.node.name
    }
    /// Its runtime, in its present life.
    ///
    /// # Panics
    /// If it is down.
    pub fn rt(&self) -> Rt {
        assert!(self.node.is_up(), "{} is down; restart it", self.node.name);
        Rt::new(Rc::new_cyclic(|this| NodeBackend {
            core: self.core(),
            node: self.node.clone(),
            life: self.node.life.get(),
            pool: Pool::heap(),
            this: this.clone(),
        }))
    }
    /// Its network address; `127.0.0.1` and `0.0.0.0` mean this one on the node itself.
    pub fn ip(&self) -> IpAddr {
        self.node.ip()
    }
    /// Its address with a port.
    pub fn address(&self, port: u16) -> Address {
        Address::Tcp(SocketAddr::new(self.ip(), port))
    }
    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.node.is_up()
    }
    /// Number of its tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.node.tasks.alive()
    }
    /// Sets how much its clock gains, in parts per million (above -1,000,000).
    pub fn set_drift_ppm(&self, ppm: i64) {
        // The clock shows the same now as before; timers that are set fire by the old rate.
        let core = self.core();
        let shown = self.node.local(core.now());
        self.node.drift_ppm.set(ppm.clamp(-900_000, 10_000_000));
        let without = self.node.local(core.now()) - self.node.offset_ns.get();
        self.node.offset_ns.set(shown.saturating_sub(without));
    }
    /// Moves its wall clock, as an operator or a time server may.
    pub fn jump_wall_ns(&self, by: i64) {
        self.node.unix_skew_ns.set(self.node.unix_skew_ns.get().saturating_add(by));
    }
    /// Stops its process for a while, as SIGSTOP and SIGCONT do: its clocks go on.
    pub fn freeze(&self, time: Duration) {
        let core = self.core();
        if !self.node.is_up() || self.node.frozen.replace(true) {
            return;
        }
        let (node, life) = (self.node.clone(), self.node.life.get());
        core.at(time.as_nanos() as u64, move |_| {
            if node.life.get() == life {
                node.frozen.set(false);
            }
        });
    }
    /// See [`super::World::crash`].
    pub fn crash(&self) {
        self.end(true);
    }
    /// Kills its process (SIGKILL): as a crash, but the machine goes on, so everything that was written stays.
    pub fn kill(&self) {
        self.end(false);
    }
    fn end(&self, power: bool) {
        let core = self.core();
        core.trace(3, self.index() as u64, self.node.life.get());
        if power {
            self.node.boots.set(self.node.boots.get() + 1);
        }
        self.node.stop();
        net::forget_node(&core, self.index());
        disk::crash_node(&core, self.index(), power);
    }
    /// Starts a new life after a crash: no tasks, no connections, the disks as the crash left them.
    pub fn restart(&self) -> Rt {
        assert!(!self.node.is_up(), "{} runs; crash it first", self.node.name);
        self.node.life.set(self.node.life.get() + 1);
        self.node.up.set(true);
        self.rt()
    }
    /// The disk that a directory of the node lies on, to break it.
    pub fn disk(&self, path: impl AsRef<Path>) -> SimDisk {
        let core = self.core();
        SimDisk::new(disk::find_or_make(&core, self.index(), path.as_ref()), core)
    }
}

struct NodeBackend {
    core: Rc<Core>,
    node: Rc<Node>,
    life: u64,
    pool: Pool,
    this: Weak<NodeBackend>,
}

impl NodeBackend {
    fn is_alive(&self) -> bool {
        self.node.is_up() && self.node.life.get() == self.life
    }
    fn check(&self) -> io::Result<()> {
        if self.is_alive() { Ok(()) } else { Err(io::Error::other("this node has crashed")) }
    }
}

impl Backend for NodeBackend {
    fn now(&self) -> Instant {
        Instant(self.node.local(self.core.now()))
    }
    fn polls(&self) -> u64 {
        self.node.tasks.polls()
    }
    fn unix_ns(&self) -> u64 {
        let base = EPOCH_UNIX_NS + self.core.now();
        base.saturating_add_signed(self.node.unix_skew_ns.get())
    }
    fn random(&self) -> u64 {
        self.node.random.borrow_mut().bits()
    }
    fn set_timer(&self, at: Instant, waker: Waker) -> u64 {
        let at = self.node.world(at.0);
        self.core.timer_set(at);
        self.node.timers.set(Instant(at), waker)
    }
    fn cancel_timer(&self, key: u64) {
        self.node.timers.cancel(key);
    }
    fn spawn(&self, task: BoxFuture<()>) {
        if self.is_alive() {
            self.node.tasks.spawn(task);
        }
    }
    fn listen(&self, address: &Address) -> io::Result<Listener> {
        self.check()?;
        net::listen(&self.core, &self.node, address)
    }
    fn connect(&self, address: &Address) -> BoxFuture<io::Result<Stream>> {
        match self.check() {
            Ok(()) => net::connect(&self.core, &self.node, address),
            Err(e) => Box::pin(std::future::ready(Err(e))),
        }
    }
    fn open_dir(&self, path: &Path) -> io::Result<Dir> {
        self.check()?;
        let disk = disk::find_or_make(&self.core, self.node.index, path);
        disk::open(&self.core, self.node.index, disk)
    }
    fn unblock(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<()> {
        let delay = self.core.random(|r| r.between(5_000, 100_000));
        let this = self.this.clone();
        self.core.later(delay, move |_| {
            if this.upgrade().is_some_and(|b| b.is_alive()) {
                work();
            }
        })
    }
    fn poll_readable(&self, _: BorrowedFd<'_>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
    fn forget_readable(&self, _: BorrowedFd<'_>) {}
    fn pool(&self) -> &Pool {
        &self.pool
    }
}
