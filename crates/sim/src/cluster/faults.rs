//! What goes wrong, chosen by the world's chance.
//!
//! Rules that keep losses from being legitimate: of the storage nodes that lose power or are killed at once, one replica of every chain
//! stays, and the next ones fall only when every chain serves in full again. An interruption of *all* nodes is told to the
//! checkers: when all are killed, nothing that was acknowledged may be gone; when all lose power, nothing that was flushed.

use super::harness::{Cluster, Service, all_serve};
use super::workload::Shared;
use crate::world::{DiskFaults, Link, SimNode};
use glowfs_rt::Duration;
use glowfs_types::routing::RoutingInfo;
use glowfs_types::{Incarnation, NodeId};
use std::rc::Rc;

/// The oldest life that a node's targets were reported in.
fn life(info: &RoutingInfo, node: NodeId) -> Incarnation {
    info.targets
        .values()
        .filter(|t| t.node == node)
        .map(|t| t.incarnation)
        .min()
        .unwrap_or_default()
}

/// Which kinds of faults happen, each as a weight among the others (0: never).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Storage nodes lose power or are killed.
    pub storages: u32,
    /// All services lose power or are killed at once.
    pub all: u32,
    /// Metadata services and managers lose power or are killed.
    pub control: u32,
    /// Links are cut (one way, or a node altogether), slow, or break connections.
    pub network: u32,
    /// Processes are stopped for a while.
    pub freezes: u32,
    /// Disks are slow, return wrong bits, or fail.
    pub disks: u32,
    /// Wall clocks jump.
    pub clocks: u32,
    /// Weight of nothing happening in a step.
    pub calm: u32,
}

impl Faults {
    /// None.
    pub const NONE: Self = Self {
        storages: 0,
        all: 0,
        control: 0,
        network: 0,
        freezes: 0,
        disks: 0,
        clocks: 0,
        calm: 1,
    };
    /// All.
    pub const ALL: Self = Self {
        storages: 4,
        all: 1,
        control: 2,
        network: 8,
        freezes: 2,
        disks: 2,
        clocks: 1,
        calm: 6,
    };
}

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Power,
    Kill,
}

/// What has been broken and is to be mended.
pub struct Breaker<'a> {
    cluster: &'a Cluster,
    faults: Faults,
    shared: Rc<Shared>,
    down: Vec<(Service, u64)>,
    cut_until: Option<u64>,
    /// The storage nodes that fell last, and the lives their stores were in then.
    crashed: Vec<(NodeId, Incarnation)>,
    /// Disks with faults, until then.
    bad_disks: Vec<(Service, u64)>,
    /// What was done, for the report of a failing seed.
    pub log: Vec<String>,
}

impl<'a> Breaker<'a> {
    /// Nothing broken yet.
    pub fn new(cluster: &'a Cluster, faults: Faults, shared: Rc<Shared>) -> Self {
        Self {
            cluster,
            faults,
            shared,
            down: Vec::new(),
            cut_until: None,
            crashed: Vec::new(),
            bad_disks: Vec::new(),
            log: Vec::new(),
        }
    }

    fn below(&self, n: u64) -> u64 {
        self.cluster.world.random(|r| r.below(n.max(1)))
    }
    fn now_ms(&self) -> u64 {
        self.cluster.world.now().as_millis() as u64
    }
    fn note(&mut self, what: String) {
        let at = self.now_ms();
        self.log.push(format!("{:>7}.{:03} s  {what}", at / 1000, at % 1000));
    }

    /// Lets `time` pass with faults. `routing` is what a client knows.
    pub fn run(&mut self, time: Duration, routing: impl Fn() -> Option<Rc<RoutingInfo>>) {
        let end = self.now_ms() + time.as_millis() as u64;
        let f = self.faults;
        let weights =
            [f.calm, f.storages, f.all, f.control, f.network, f.freezes, f.disks, f.clocks];
        let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        while self.now_ms() < end {
            let step = 20 + self.below(300);
            self.cluster.run_for(Duration::from_millis(step));
            self.mend_due();
            let mut at = self.below(total);
            let kind = weights.iter().position(|w| {
                let hit = at < u64::from(*w);
                at = at.saturating_sub(u64::from(*w));
                hit
            });
            match kind {
                Some(1) => self.crash_storages(&routing),
                Some(2) => self.crash_all(&routing),
                Some(3) => self.crash_control(),
                Some(4) => match self.below(4) {
                    0 => self.cut(),
                    1 => self.slow(),
                    _ => self.drop_connections(),
                },
                Some(5) => self.freeze(),
                Some(6) => self.break_disk(&routing),
                Some(7) => self.jump_clock(),
                _ => {}
            }
        }
    }

    fn mend_due(&mut self) {
        let now = self.now_ms();
        let (due, rest) =
            std::mem::take(&mut self.down).into_iter().partition(|(_, at)| *at <= now);
        self.down = rest;
        let due: Vec<(Service, u64)> = due;
        for (s, _) in due {
            self.note(format!("restart {}", s.node.name()));
            self.cluster.restart(&s);
        }
        let (due, rest) =
            std::mem::take(&mut self.bad_disks).into_iter().partition(|(_, at)| *at <= now);
        self.bad_disks = rest;
        let due: Vec<(Service, u64)> = due;
        for (s, _) in due {
            self.mend_disk(&s);
        }
        if self.cut_until.is_some_and(|at| at <= now) {
            self.cut_until = None;
            self.note("mend the network".into());
            self.cluster.world.heal();
        }
    }

    /// A store that saw an error stays offline in its life: the service is started again, with its machine or alone (then the
    /// system's cache may show what the disk does not have since a flush failed).
    fn mend_disk(&mut self, s: &Service) {
        let end = self.end();
        let what = if end == End::Power { "machine" } else { "service" };
        self.note(format!("mend the disk of {} and restart its {what}", s.node.name()));
        s.node.disk(super::harness::DISK).set_faults(DiskFaults::default());
        if s.node.is_up() {
            self.cluster.crash(s, end == End::Power);
            self.cluster.restart(s);
        }
    }

    fn end(&self) -> End {
        if self.below(3) == 0 { End::Kill } else { End::Power }
    }

    fn crash_storages(&mut self, routing: &impl Fn() -> Option<Rc<RoutingInfo>>) {
        let Some(info) = self.may_lose_replicas(routing) else { return };
        let most = u64::from(self.cluster.shape().replicas.saturating_sub(1)).max(1);
        let count = 1 + if self.below(3) == 0 { self.below(most) } else { 0 };
        let mut left = self.cluster.storages.clone();
        for _ in 0..count {
            if left.len() < 2 {
                break;
            }
            let s = left.remove(self.below(left.len() as u64) as usize);
            self.crashed.push((s.id(), life(&info, s.id())));
            let end = self.end();
            let ms = if self.below(3) == 0 { 100 } else { 6000 };
            self.take_down(s, ms, end);
        }
    }

    /// All services at once.
    fn crash_all(&mut self, routing: &impl Fn() -> Option<Rc<RoutingInfo>>) {
        let Some(info) = self.may_lose_replicas(routing) else { return };
        let end = self.end();
        self.note(if end == End::Power { "all power is lost" } else { "all are killed" }.into());
        for s in self.cluster.services() {
            if self.cluster.storages.iter().any(|o| o.id() == s.id()) {
                self.crashed.push((s.id(), life(&info, s.id())));
            }
            if s.node.is_up() {
                self.take_down(s, 3000, end);
            }
        }
        self.shared.interrupted(end == End::Power);
    }

    /// Whether replicas may fall: nothing is cut off or down, and the last fall is over.
    fn may_lose_replicas(
        &mut self,
        routing: &impl Fn() -> Option<Rc<RoutingInfo>>,
    ) -> Option<Rc<RoutingInfo>> {
        let info = routing()?;
        let quiet = self.cut_until.is_none() && self.bad_disks.is_empty();
        let storages_up = self.cluster.storages.iter().all(|s| s.node.is_up());
        if !quiet || !storages_up || !self.recovered(&info) {
            return None;
        }
        self.crashed.clear();
        Some(info)
    }

    /// Whether the last fall is over: noticed, and every chain serves in full again. (The routing info may be old, so the new life
    /// of the crashed stores must be in it.)
    fn recovered(&self, info: &RoutingInfo) -> bool {
        all_serve(info, self.cluster.shape())
            && self.crashed.iter().all(|(node, before)| life(info, *node) > *before)
    }

    fn crash_control(&mut self) {
        let all: Vec<_> =
            self.cluster.managers.iter().chain(&self.cluster.metas).cloned().collect();
        let s = all[self.below(all.len() as u64) as usize].clone();
        if s.node.is_up() {
            let end = self.end();
            self.take_down(s, 3000, end);
        }
    }

    fn take_down(&mut self, s: Service, ms: u64, end: End) {
        let back = self.now_ms() + self.below(ms);
        self.note(match end {
            End::Power => format!("crash {}", s.node.name()),
            End::Kill => format!("kill {}", s.node.name()),
        });
        self.cluster.crash(&s, end == End::Power);
        self.down.push((s, back));
    }

    fn nodes(&self) -> Vec<SimNode> {
        let mut nodes: Vec<_> = self.cluster.services().into_iter().map(|s| s.node).collect();
        nodes.extend(self.cluster.clients.iter().cloned());
        nodes
    }

    fn pair(&self) -> (SimNode, SimNode) {
        let nodes = self.nodes();
        let a = self.below(nodes.len() as u64) as usize;
        let b = (a + 1 + self.below(nodes.len() as u64 - 1) as usize) % nodes.len();
        (nodes[a].clone(), nodes[b].clone())
    }

    fn cut(&mut self) {
        if self.cut_until.is_some() {
            return;
        }
        let (a, b) = self.pair();
        match self.below(3) {
            0 => {
                self.note(format!("cut {} -> {}", a.name(), b.name()));
                self.cluster.world.cut(&a, &b);
            }
            1 => {
                self.note(format!("isolate {}", a.name()));
                self.cluster.world.isolate(&a);
            }
            _ => self.cut_from_control(&a),
        }
        self.cut_until = Some(self.now_ms() + self.below(4000));
    }

    /// A node hears nothing of the managers any more, or they nothing of it; everyone else reaches it.
    fn cut_from_control(&mut self, a: &SimNode) {
        let mutely = self.below(2) == 0;
        let what =
            if mutely { "the managers do not hear" } else { "the managers are not heard by" };
        self.note(format!("{what} {}", a.name()));
        for m in &self.cluster.managers {
            if m.node.name() == a.name() {
                continue;
            }
            if mutely {
                self.cluster.world.cut(a, &m.node);
            } else {
                self.cluster.world.cut(&m.node, a);
            }
        }
    }

    fn slow(&mut self) {
        let (a, b) = self.pair();
        let most = 1_000_000 << self.below(10);
        self.note(format!("slow {} -> {}: up to {} ms", a.name(), b.name(), most / 1_000_000));
        let link = Link { latency_ns_max: most, ..self.cluster.world.link(&a, &b) };
        self.cluster.world.set_link(&a, &b, link);
    }

    fn drop_connections(&mut self) {
        let (a, b) = self.pair();
        self.note(format!("drop connections of {} and {}", a.name(), b.name()));
        self.cluster.world.drop_connections(&a, &b);
    }

    fn freeze(&mut self) {
        let nodes = self.nodes();
        let node = &nodes[self.below(nodes.len() as u64) as usize];
        let ms = 50 + self.below(if self.below(2) == 0 { 500 } else { 4000 });
        self.note(format!("stop the process of {} for {ms} ms", node.name()));
        node.freeze(Duration::from_millis(ms));
    }

    fn break_disk(&mut self, routing: &impl Fn() -> Option<Rc<RoutingInfo>>) {
        let i = self.below(self.cluster.storages.len() as u64) as usize;
        let s = self.cluster.storages[i].clone();
        let errors = 20_000;
        let (what, faults) = match self.below(5) {
            0 => ("slow", DiskFaults { slow_per_million: 200_000, ..DiskFaults::default() }),
            1 => (
                "flips bits",
                DiskFaults { read_flips_per_million: errors, ..DiskFaults::default() },
            ),
            2 => (
                "fails reads",
                DiskFaults { read_errors_per_million: errors, ..DiskFaults::default() },
            ),
            3 => (
                "fails writes",
                DiskFaults { write_errors_per_million: errors, ..DiskFaults::default() },
            ),
            _ => (
                "fails flushes",
                DiskFaults { sync_errors_per_million: 500_000, ..DiskFaults::default() },
            ),
        };
        // A disk that fails may take a replica away; and the service is started again in the end.
        let Some(info) = self.may_lose_replicas(routing) else { return };
        self.crashed.push((s.id(), life(&info, s.id())));
        self.note(format!("the disk of {} {what}", s.node.name()));
        s.node.disk(super::harness::DISK).set_faults(faults);
        let until = self.now_ms() + self.below(3000);
        self.bad_disks.push((s, until));
    }

    fn jump_clock(&mut self) {
        let nodes = self.nodes();
        let node = &nodes[self.below(nodes.len() as u64) as usize];
        let ms = self.below(20_000) as i64 - 10_000;
        self.note(format!("the wall clock of {} jumps by {ms} ms", node.name()));
        node.jump_wall_ns(ms * 1_000_000);
    }

    /// Mends everything.
    pub fn mend_all(&mut self) {
        self.note("mend everything".into());
        self.cluster.world.mend_links();
        self.cut_until = None;
        for (s, _) in std::mem::take(&mut self.down) {
            self.cluster.restart(&s);
        }
        for (s, _) in std::mem::take(&mut self.bad_disks) {
            self.mend_disk(&s);
        }
    }
}
