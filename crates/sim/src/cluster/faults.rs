//! What goes wrong, chosen by the world's chance.
//!
//! Rules that keep losses from being legitimate: of the storage nodes that lose power or are killed at once, one replica of every chain
//! stays, and the next ones fall only when every chain serves in full again. An interruption of *all* nodes is told to the
//! checkers: when all are killed (one of them with its machine's power, perhaps), nothing that was acknowledged may be gone; when all lose power, nothing
//! that was flushed.

use super::corners::Corner;
use super::harness::{Cluster, Service, all_serve};
use super::lives::Lives;
use super::operator::Operator;
use super::weights::Faults;
use super::workload::{Interruption, Shared};
use crate::world::{Link, SimNode};
use glowfs_rt::Duration;
use glowfs_types::routing::{PublicState, RoutingInfo};
use glowfs_types::{Incarnation, NodeId, TargetId};
use std::rc::Rc;

/// The latency of slow answers, at most, in ns.
const SLOW_ANSWER_NS: u64 = 400_000_000;
/// How long a loss of power waits for a replica to begin to serve, at most.
const NEW_SERVER_MS: u64 = 3000;
/// How long a loss of the metadata engine's power waits for a client to open a file, at most.
const OPEN_MS: u64 = 1000;
/// How far a wall clock jumps, at most, in ms: a little, or far.
const CLOCK_NEAR_MS: u64 = 10_000;
const CLOCK_FAR_MS: u64 = 3_600_000;
/// How long a client is away whose process ended, at most, in ms.
const CLIENT_AWAY_MS: u64 = 6_000;
/// The oldest life that a node's targets were reported in, if it has any.
fn life_of(info: &RoutingInfo, node: NodeId) -> Option<Incarnation> {
    info.targets.values().filter(|t| t.node == node).map(|t| t.incarnation).min()
}
/// The same to compare with later: any life comes after none.
pub(super) fn life(info: &RoutingInfo, node: NodeId) -> Incarnation {
    life_of(info, node).unwrap_or_default()
}

/// What the one who knows most of the cluster knows of its chains.
pub(super) type Newest = Box<dyn Fn() -> Option<Rc<RoutingInfo>>>;

/// Takes out what is to be mended by now.
fn due<T>(broken: &mut Vec<(T, u64)>, now_ms: u64) -> Vec<T> {
    broken.extract_if(.., |(_, at)| *at <= now_ms).map(|(what, _)| what).collect()
}

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Power,
    Kill,
}

/// What has been broken and is to be mended.
pub struct Breaker<'a> {
    pub(super) cluster: &'a Cluster,
    faults: Faults,
    pub(super) shared: Rc<Shared>,
    lives: Rc<Lives>,
    pub(super) newest: Newest,
    corner: Option<Corner>,
    /// Clients that are down, until then.
    clients_down: Vec<(usize, u64)>,
    down: Vec<(Service, u64)>,
    cut_until: Option<u64>,
    /// The storage nodes that fell last, and the lives their stores were in then.
    pub(super) crashed: Vec<(NodeId, Incarnation)>,
    /// Disks with faults, until then.
    pub(super) bad_disks: Vec<(Service, u64)>,
    /// Full disks, until then.
    pub(super) full_disks: Vec<(Service, u64)>,
    /// Disks that take seconds, until then.
    pub(super) slow_disks: Vec<(Service, u64)>,
    pub(super) operator: Operator,
    /// The node that is being drained, until then.
    pub(super) drained: Option<(Service, u64)>,
    /// What was done, for the report of a failing seed.
    pub log: Vec<String>,
}

impl<'a> Breaker<'a> {
    /// Nothing broken yet.
    pub fn new(
        cluster: &'a Cluster,
        faults: Faults,
        corner: Option<Corner>,
        shared: Rc<Shared>,
        lives: Rc<Lives>,
        newest: Newest,
    ) -> Self {
        Self {
            cluster,
            faults,
            corner,
            shared,
            lives,
            newest,
            clients_down: Vec::new(),
            down: Vec::new(),
            cut_until: None,
            crashed: Vec::new(),
            bad_disks: Vec::new(),
            full_disks: Vec::new(),
            slow_disks: Vec::new(),
            operator: Operator::new(cluster),
            drained: None,
            log: Vec::new(),
        }
    }

    pub(super) fn below(&self, n: u64) -> u64 {
        self.cluster.world.random(|r| r.below(n.max(1)))
    }
    pub(super) fn now_ms(&self) -> u64 {
        self.cluster.world.now().as_millis() as u64
    }
    pub(super) fn note(&mut self, what: String) {
        let at = self.now_ms();
        self.log.push(format!("{:>7}.{:03} s  {what}", at / 1000, at % 1000));
    }

    /// Lets `time` pass with faults.
    pub fn run(&mut self, time: Duration) {
        let end = self.now_ms() + time.as_millis() as u64;
        let f = self.faults;
        let weights = [
            f.calm,
            f.storages,
            f.all,
            f.control,
            f.network,
            f.freezes,
            f.disks,
            f.clocks,
            f.corners,
            f.resyncs,
            f.clients,
            f.slow_disks,
            f.operator,
            f.hangs,
        ];
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
                Some(1) => self.crash_storages(),
                Some(2) => self.crash_all(),
                Some(3) => self.crash_control(),
                Some(4) => match self.below(4) {
                    0 => self.cut(),
                    1 => self.slow(),
                    _ => self.drop_connections(),
                },
                Some(5) => self.freeze(),
                Some(6) => self.break_disk(),
                Some(7) => self.jump_clock(),
                Some(8) => self.corner(self.corner),
                Some(9) => self.fail_resync(),
                Some(10) => self.crash_client(),
                Some(11) => self.slow_disk(),
                Some(12) => self.operate(),
                Some(13) => self.hang_disk(),
                _ => {}
            }
        }
    }

    pub(super) fn mend_due(&mut self) {
        let now = self.now_ms();
        for s in due(&mut self.down, now) {
            self.note(format!("restart {}", s.node.name()));
            self.restart(&s);
        }
        for s in due(&mut self.bad_disks, now) {
            self.mend_disk(&s);
        }
        for s in due(&mut self.full_disks, now) {
            self.make_room(&s);
        }
        for s in due(&mut self.slow_disks, now) {
            self.hurry_disk(&s);
        }
        for i in due(&mut self.clients_down, now) {
            self.note(format!("a new process of client {i} starts"));
            self.lives.restart(i, true);
        }
        if self.drained.as_ref().is_some_and(|(_, at)| *at <= now) {
            self.call_off_drain();
        }
        if self.cut_until.is_some_and(|at| at <= now) {
            self.cut_until = None;
            self.note("mend the network".into());
            self.cluster.world.heal();
        }
    }

    pub(super) fn end(&self) -> End {
        if self.below(3) == 0 { End::Kill } else { End::Power }
    }

    fn crash_storages(&mut self) {
        let Some(info) = self.may_lose_replicas() else { return };
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

    /// All services at once. What was flushed survives the loss of all power at any moment, also while replicas are down or being
    /// brought up to date; what was only acknowledged needs every replica's own life to have been whole before.
    fn crash_all(&mut self) {
        let mut end = self.end();
        let quiet = self.may_lose_replicas();
        if quiet.is_none() {
            if !self.bad_disks.is_empty() {
                return;
            }
            end = End::Power;
        }
        if end == End::Power {
            if self.below(2) == 0 {
                self.await_new_server();
            } else {
                self.await_open();
            }
        }
        let Some(info) = quiet.or_else(|| (self.newest)()) else { return };
        let unplugged = (end == End::Kill && self.below(2) == 0).then(|| {
            let all = &self.cluster.storages;
            all[self.below(all.len() as u64) as usize].id()
        });
        self.end_all(&info, end, unplugged);
    }

    /// The end of all services at once; each is started again at a time of its own. One storage node may lose power while the others are
    /// killed: every chain has replicas that lose nothing.
    pub(super) fn end_all(&mut self, info: &RoutingInfo, end: End, unplugged: Option<NodeId>) {
        self.note(if end == End::Power { "all power is lost" } else { "all are killed" }.into());
        for s in self.cluster.services() {
            if self.cluster.storages.iter().any(|o| o.id() == s.id()) {
                self.crashed.push((s.id(), life(info, s.id())));
            }
            if s.node.is_up() {
                let end = if unplugged == Some(s.id()) { End::Power } else { end };
                self.take_down(s, 3000, end);
            }
        }
        self.shared.interrupted(match end {
            End::Power => Interruption::Power,
            End::Kill => Interruption::Killed,
        });
    }

    /// Lets time pass until a replica that was being brought up to date begins to serve, a while at most.
    fn await_new_server(&mut self) {
        let syncing = |info: &RoutingInfo| -> Vec<TargetId> {
            let all = info.chains.values().flat_map(|c| &c.members);
            all.filter(|m| m.state == PublicState::Syncing).map(|m| m.target).collect()
        };
        let until = self.now_ms() + NEW_SERVER_MS;
        let mut before = (self.newest)().map(|i| syncing(&i)).unwrap_or_default();
        while self.now_ms() < until {
            self.cluster.run_for(Duration::from_micros(100));
            self.mend_due();
            let Some(info) = (self.newest)() else { continue };
            let serves = |t: &TargetId| {
                let mut all = info.chains.values().flat_map(|c| &c.members);
                all.any(|m| m.target == *t && m.state == PublicState::Serving)
            };
            if before.iter().any(serves) {
                self.note("a replica begins to serve".into());
                return;
            }
            before = syncing(&info);
        }
    }

    /// Where the metadata engine flushes in the background: lets time pass until a client has just opened a file, a while at most. Its session goes with the engine's power then.
    fn await_open(&mut self) {
        let (before, until) = (self.shared.opens.get(), self.now_ms() + OPEN_MS);
        let awaited = |b: &Self| b.shared.opens.get() == before && b.now_ms() < until;
        while self.shared.background.get() && awaited(self) {
            self.cluster.run_for(Duration::from_micros(100));
            self.mend_due();
        }
    }

    /// Whether replicas may fall: nothing is cut off or down, and the last fall is over.
    pub(super) fn may_lose_replicas(&mut self) -> Option<Rc<RoutingInfo>> {
        let info = (self.newest)()?;
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
            && self.crashed.iter().all(|(node, before)| {
                // What is drained, or on a new disk that has nothing yet, has no life to wait for.
                life_of(info, *node).is_none_or(|life| life > *before)
            })
    }

    fn crash_control(&mut self) {
        let all: Vec<_> =
            self.cluster.managers.iter().chain(&self.cluster.metas).cloned().collect();
        let s = all[self.below(all.len() as u64) as usize].clone();
        if s.node.is_up() {
            let end = self.end();
            if end == End::Power && s.id() == self.cluster.metas[0].id() {
                self.await_open();
            }
            self.take_down(s, 3000, end);
        }
    }

    /// Some do not come back before the end.
    fn crash_client(&mut self) {
        let i = self.below(self.lives.count() as u64) as usize;
        if !self.lives.is_up(i) {
            return;
        }
        self.note(format!("the process of client {i} ends"));
        self.lives.crash(i);
        let back = self.now_ms() + self.below(CLIENT_AWAY_MS);
        self.clients_down.push((i, back));
    }

    pub(super) fn take_down(&mut self, s: Service, ms: u64, end: End) {
        let back = self.now_ms() + self.below(ms);
        self.note(match end {
            End::Power => format!("crash {}", s.node.name()),
            End::Kill => format!("kill {}", s.node.name()),
        });
        self.cluster.crash(&s, end == End::Power);
        if end == End::Power && s.id() == self.cluster.metas[0].id() {
            self.shared.engine_lost_power();
        }
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
        if self.below(3) == 0 {
            // What the managers answer is under way when it stops, and old when it goes on.
            for m in self.cluster.managers.iter().filter(|m| m.node.name() != node.name()) {
                let link = self.cluster.world.link(&m.node, node);
                let slow = Link { latency_ns_max: SLOW_ANSWER_NS, ..link };
                self.cluster.world.set_link(&m.node, node, slow);
            }
            self.note(format!("the managers' answers to {} are slow", node.name()));
            self.cluster.run_for(Duration::from_nanos(2 * SLOW_ANSWER_NS));
        }
        self.note(format!("stop the process of {} for {ms} ms", node.name()));
        node.freeze(Duration::from_millis(ms));
    }

    fn jump_clock(&mut self) {
        let nodes = self.nodes();
        let node = &nodes[self.below(nodes.len() as u64) as usize];
        let most = if self.below(2) == 0 { CLOCK_NEAR_MS } else { CLOCK_FAR_MS };
        let ms = self.below(2 * most) as i64 - most as i64;
        self.note(format!("the wall clock of {} jumps by {ms} ms", node.name()));
        node.jump_wall_ns(ms * 1_000_000);
    }

    /// Whether all that an operator was to ask for is asked for.
    pub fn is_operated(&self) -> bool {
        self.operator.is_done()
    }
    /// Mends everything.
    pub fn mend_all(&mut self) {
        self.note("mend everything".into());
        self.cluster.world.mend_links();
        self.cut_until = None;
        self.call_off_drain();
        for (i, _) in std::mem::take(&mut self.clients_down) {
            self.lives.restart(i, false);
        }
        for (s, _) in std::mem::take(&mut self.slow_disks) {
            self.hurry_disk(&s);
        }
        for (s, _) in std::mem::take(&mut self.down) {
            self.restart(&s);
        }
        for (s, _) in std::mem::take(&mut self.full_disks) {
            self.make_room(&s);
        }
        for (s, _) in std::mem::take(&mut self.bad_disks) {
            self.mend_disk(&s);
        }
    }
}
