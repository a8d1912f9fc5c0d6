//! What goes wrong, chosen by the world's chance.
//!
//! Rules that keep losses from being legitimate: a crash here is a power failure, so at most one storage node is down at a time,
//! and the next one crashes only when every chain serves in full again.

use super::harness::{Cluster, Service, all_serve};
use crate::world::Link;
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

/// Which kinds of faults happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Storage nodes lose power.
    pub storage_crashes: bool,
    /// The metadata service and the manager lose power.
    pub control_crashes: bool,
    /// Links are cut, slow, or break connections.
    pub network: bool,
}

impl Faults {
    /// None.
    pub const NONE: Self = Self { storage_crashes: false, control_crashes: false, network: false };
    /// All.
    pub const ALL: Self = Self { storage_crashes: true, control_crashes: true, network: true };
}

/// What has been broken and is to be mended.
pub struct Breaker<'a> {
    cluster: &'a Cluster,
    faults: Faults,
    down: Vec<(Service, u64)>,
    cut_until: Option<u64>,
    /// The storage node that crashed last, and the life its stores were in then.
    crashed: Option<(NodeId, Incarnation)>,
    /// What was done, for the report of a failing seed.
    pub log: Vec<String>,
}

impl<'a> Breaker<'a> {
    /// Nothing broken yet.
    pub fn new(cluster: &'a Cluster, faults: Faults) -> Self {
        Self { cluster, faults, down: Vec::new(), cut_until: None, crashed: None, log: Vec::new() }
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
        while self.now_ms() < end {
            let step = 20 + self.below(400);
            self.cluster.world.run_for(Duration::from_millis(step));
            self.mend_due();
            match self.below(10) {
                0 | 1 if self.faults.storage_crashes => self.crash_storage(&routing),
                2 if self.faults.control_crashes => self.crash_control(),
                3 if self.faults.network => self.cut(),
                4 if self.faults.network => self.slow(),
                5 | 6 if self.faults.network => self.drop_connections(),
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
        if self.cut_until.is_some_and(|at| at <= now) {
            self.cut_until = None;
            self.note("mend the network".into());
            self.cluster.world.heal();
        }
    }

    fn crash_storage(&mut self, routing: &impl Fn() -> Option<Rc<RoutingInfo>>) {
        let Some(info) = routing() else { return };
        if self.cut_until.is_some() || !self.recovered(&info) {
            return;
        }
        let i = self.below(self.cluster.storages.len() as u64) as usize;
        let s = self.cluster.storages[i].clone();
        self.crashed = Some((s.id(), life(&info, s.id())));
        self.take_down(s, 6000);
    }

    /// Whether the last crash is over: noticed, and every chain serves in full again. (The routing info may be old, so the new life
    /// of the crashed stores must be in it.)
    fn recovered(&self, info: &RoutingInfo) -> bool {
        all_serve(info, self.cluster.shape())
            && self.crashed.is_none_or(|(node, before)| life(info, node) > before)
    }

    fn crash_control(&mut self) {
        let s =
            if self.below(2) == 0 { self.cluster.mgmtd.clone() } else { self.cluster.meta.clone() };
        if s.node.is_up() {
            self.take_down(s, 3000);
        }
    }

    fn take_down(&mut self, s: Service, ms: u64) {
        let back = self.now_ms() + self.below(ms);
        self.note(format!("crash {}", s.node.name()));
        self.cluster.crash(&s);
        self.down.push((s, back));
    }

    fn pair(&self) -> (crate::world::SimNode, crate::world::SimNode) {
        let mut nodes: Vec<_> = self.cluster.services().into_iter().map(|s| s.node).collect();
        nodes.extend(self.cluster.clients.iter().cloned());
        let a = self.below(nodes.len() as u64) as usize;
        let b = (a + 1 + self.below(nodes.len() as u64 - 1) as usize) % nodes.len();
        (nodes[a].clone(), nodes[b].clone())
    }

    fn cut(&mut self) {
        if self.cut_until.is_some() {
            return;
        }
        let (a, b) = self.pair();
        if self.below(2) == 0 {
            self.note(format!("cut {} -> {}", a.name(), b.name()));
            self.cluster.world.cut(&a, &b);
        } else {
            self.note(format!("isolate {}", a.name()));
            self.cluster.world.isolate(&a);
        }
        self.cut_until = Some(self.now_ms() + self.below(4000));
    }

    fn slow(&mut self) {
        let (a, b) = self.pair();
        let most = 1_000_000 << self.below(8);
        self.note(format!("slow {} -> {}: up to {} ms", a.name(), b.name(), most / 1_000_000));
        let link = Link { latency_ns_max: most, ..self.cluster.world.link(&a, &b) };
        self.cluster.world.set_link(&a, &b, link);
    }

    fn drop_connections(&mut self) {
        let (a, b) = self.pair();
        self.note(format!("drop connections of {} and {}", a.name(), b.name()));
        self.cluster.world.drop_connections(&a, &b);
    }

    /// Mends everything.
    pub fn mend_all(&mut self) {
        self.note("mend everything".into());
        self.cluster.world.heal();
        self.cut_until = None;
        for (s, _) in std::mem::take(&mut self.down) {
            self.cluster.restart(&s);
        }
    }
}
