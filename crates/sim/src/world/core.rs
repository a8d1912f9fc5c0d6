//! [`World`]: the loop, the clock behind all clocks, and the events to come.

use super::disk::Disk;
use super::net::Net;
use super::node::{Node, SimNode};
use super::random::Random;
use glowfs_rt::sync::oneshot;
use glowfs_rt::{BoxFuture, Instant};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

thread_local!(static RUNNING: Cell<(u64, usize)> = const { Cell::new((0, 0)) });

/// The simulated moment, in nanoseconds since the world began, and the number of the node whose code this thread runs (or ran
/// last): for logs.
pub fn running() -> (u64, usize) {
    RUNNING.get()
}

/// What happens at some moment.
type Event = Box<dyn FnOnce(&Rc<Core>)>;

/// What all parts of a world share.
pub(crate) struct Core {
    /// Nanoseconds since the world began.
    now: Cell<u64>,
    random: RefCell<Random>,
    trace: Cell<u64>,
    events: RefCell<BTreeMap<(u64, u64), Event>>,
    next_event: Cell<u64>,
    /// No timer of any node is due before this moment; it may be that none is then, either.
    timers_from: Cell<u64>,
    pub(crate) nodes: RefCell<Vec<Rc<Node>>>,
    pub(crate) net: RefCell<Net>,
    /// By node and path; they outlive crashes.
    pub(crate) disks: RefCell<BTreeMap<(usize, PathBuf), Rc<Disk>>>,
}

impl Core {
    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }
    /// What a node's clock shows.
    pub(crate) fn time_of(&self, node: usize) -> Instant {
        Instant(self.nodes.borrow()[node].local(self.now()))
    }
    /// Uses the world's chance. The closure must not call back into the world.
    pub(crate) fn random<T>(&self, f: impl FnOnce(&mut Random) -> T) -> T {
        f(&mut self.random.borrow_mut())
    }
    /// Adds something that happened to the trace.
    pub(crate) fn trace(&self, kind: u64, a: u64, b: u64) {
        let mut h = self.trace.get();
        for word in [self.now.get(), kind, a, b] {
            h = (h ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
        self.trace.set(h);
    }
    /// Lets something happen later.
    pub(crate) fn at(&self, delay_ns: u64, event: impl FnOnce(&Rc<Core>) + 'static) {
        let number = self.next_event.get();
        self.next_event.set(number + 1);
        let moment = self.now.get().saturating_add(delay_ns);
        self.events.borrow_mut().insert((moment, number), Box::new(event));
    }
    /// Does `work` later, also if the future of its outcome is dropped meanwhile.
    pub(crate) fn later<T: 'static>(
        &self,
        delay_ns: u64,
        work: impl FnOnce(&Rc<Core>) -> T + 'static,
    ) -> BoxFuture<T> {
        let (tx, rx) = oneshot();
        self.at(delay_ns, move |core| {
            // Nobody may wait any more.
            let _ = tx.send(work(core));
        });
        Box::pin(async move {
            match rx.await {
                Ok(out) => out,
                // The world ended.
                Err(_) => std::future::pending().await,
            }
        })
    }

    /// Runs one ready task of one node. False if none is ready.
    fn run_one_task(&self) -> bool {
        let total: usize = self.nodes.borrow().iter().map(|n| n.ready()).sum();
        if total == 0 {
            return false;
        }
        let (mut nth, cost) =
            self.random(|r| (r.below(total as u64) as usize, r.between(100, 1500)));
        self.trace(1, nth as u64, total as u64);
        let chosen = self.nodes.borrow().iter().find_map(|node| {
            let ready = node.ready();
            if nth < ready {
                return Some(node.clone());
            }
            nth -= ready;
            None
        });
        if let Some(node) = chosen {
            RUNNING.set((self.now.get(), node.index));
            glowfs_rt::process::pretend(Some(node.process()));
            node.tasks.run_nth(nth);
            glowfs_rt::process::pretend(None);
        }
        self.now.set(self.now.get() + cost);
        true
    }
    /// A node has set a timer.
    pub(crate) fn timer_set(&self, at: u64) {
        self.timers_from.set(self.timers_from.get().min(at));
    }
    /// The moment of the next timer, as it is now; notes it.
    fn next_timer(&self) -> u64 {
        let timers = self.nodes.borrow().iter().filter_map(|n| n.timers.next()).map(|i| i.0).min();
        let next = timers.unwrap_or(u64::MAX);
        self.timers_from.set(next);
        next
    }
    /// The moment of the next timer or event.
    fn next_moment(&self) -> Option<u64> {
        let event = self.events.borrow().first_key_value().map(|(k, _)| k.0);
        if event.is_some_and(|at| at <= self.timers_from.get()) {
            return event;
        }
        let timer = Some(self.next_timer()).filter(|at| *at < u64::MAX);
        event.into_iter().chain(timer).min()
    }
    /// Lets everything happen whose moment has come.
    fn fire(self: &Rc<Self>) {
        loop {
            let event = {
                let mut events = self.events.borrow_mut();
                match events.first_key_value() {
                    Some((key, _)) if key.0 <= self.now.get() => events.pop_first(),
                    _ => None,
                }
            };
            let Some(((_, number), event)) = event else { break };
            self.trace(2, number, 0);
            event(self);
        }
        if self.timers_from.get() > self.now.get() {
            return;
        }
        // Firing only wakes tasks; no code of theirs runs that could want the list.
        for node in self.nodes.borrow().iter() {
            node.timers.fire(glowfs_rt::Instant(self.now.get()));
        }
        self.next_timer();
    }
    /// Makes one step; false if nothing can happen before `limit`.
    fn step(self: &Rc<Self>, limit: u64) -> bool {
        self.fire();
        if self.run_one_task() {
            return true;
        }
        match self.next_moment() {
            Some(moment) if moment <= limit => {
                self.now.set(moment.max(self.now.get()));
                true
            }
            _ => {
                self.now.set(limit.max(self.now.get()));
                false
            }
        }
    }
}

/// Tells the C library's allocator to keep what is freed: worlds take and free a hundred megabytes again and again, and
/// giving that to the kernel and back costs a third of the time.
fn keep_memory() {
    #[cfg(target_env = "gnu")]
    {
        const KEEP_BYTES: libc::c_int = 1 << 30;
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: sets two numbers of the allocator, which may be done at any time.
            unsafe {
                libc::mallopt(libc::M_MMAP_THRESHOLD, KEEP_BYTES);
                libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP_BYTES);
            }
        });
    }
}

/// A simulated world. See the [module](super).
pub struct World {
    core: Rc<Core>,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64) -> Self {
        keep_memory();
        let core = Core {
            now: Cell::new(0),
            random: RefCell::new(Random::new(seed)),
            trace: Cell::new(seed),
            events: RefCell::default(),
            next_event: Cell::new(0),
            timers_from: Cell::new(u64::MAX),
            nodes: RefCell::default(),
            net: RefCell::default(),
            disks: RefCell::default(),
        };
        Self { core: Rc::new(core) }
    }
    pub(crate) fn core(&self) -> &Rc<Core> {
        &self.core
    }
    /// The node of that name, on a host of its own; made if it is new.
    pub fn node(&self, name: &str) -> SimNode {
        SimNode::find_or_make(&self.core, name, None)
    }
    /// The node of that name; made on the host of `neighbour` if it is new. They share Unix addresses.
    pub fn node_beside(&self, name: &str, neighbour: &SimNode) -> SimNode {
        SimNode::find_or_make(&self.core, name, Some(neighbour.host()))
    }
    /// Time since the world began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.core.now())
    }
    /// Lets time pass.
    pub fn run_for(&self, time: Duration) {
        self.run_until(time, || false);
    }
    /// Lets time pass until `done` says so, at most `limit`. False if that was reached.
    pub fn run_until(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let end = self.core.now().saturating_add(nanos);
        loop {
            if done() {
                return true;
            }
            if self.core.now() >= end || !self.core.step(end) {
                return done();
            }
        }
    }
    /// Runs `work` on a node until it is done, at most `limit`.
    pub fn run<T: 'static>(
        &self,
        node: &SimNode,
        limit: Duration,
        work: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let out: Rc<RefCell<Option<T>>> = Rc::default();
        let put = out.clone();
        node.rt().spawn_detached(async move {
            let result = work.await;
            *put.borrow_mut() = Some(result);
        });
        self.run_until(limit, || out.borrow().is_some());
        out.take()
    }
    /// A number of what has happened so far: equal runs have equal numbers.
    pub fn trace_hash(&self) -> u64 {
        self.core.trace.get()
    }
    /// Chance for the test itself, from the world's seed.
    pub fn random<T>(&self, f: impl FnOnce(&mut Random) -> T) -> T {
        self.core.random(f)
    }
    /// Kills a node's process: its tasks are dropped, its connections break, and of what its files were not
    /// synced any part may be lost. [`SimNode::restart`] brings it back.
    pub fn crash(&self, node: &SimNode) {
        node.crash();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let nodes = self.core.nodes.borrow().clone();
        for node in nodes {
            node.stop();
        }
        // Events hold the world's parts, and these hold the world.
        loop {
            let events = std::mem::take(&mut *self.core.events.borrow_mut());
            if events.is_empty() {
                break;
            }
            drop(events);
        }
        self.core.net.take();
        // Parts of services that hold each other hold their files, too.
        self.core.disks.take().values().for_each(|d| d.forget());
        self.core.nodes.take();
    }
}
