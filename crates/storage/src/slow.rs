//! Watching the successor, and the predecessor: what to do when it holds acknowledgements, or readers, up.
//!
//! An update is sent again for ever ([`glowfs_craq`]), so a successor that takes nothing holds the writes of its chain until mgmtd
//! changes the chain. mgmtd sees dead nodes by itself; what it cannot see is reported here: a syncing successor that is too
//! slow (or full), and a serving one that lives but is not reached from here. A member that waits to be brought up to date by us is
//! tried beforehand: while it is not reached, mgmtd leaves it out, since with it in the chain every write would wait for it.
//! Of a predecessor that is not reached from here nothing is heard of what may be shown (`vouch.rs`), though its updates come: readers would wait for ever.
//!
//! Must never: take a neighbour that only waits (for its own successor, its disk) for one that is not reached: a serving one is
//! reported only when its node did not even answer an empty call.

use crate::node::Node;
use crate::target::Target;
use glowfs_craq::View;
use glowfs_rt::{Duration, Instant};
use glowfs_types::routing::PublicState;
use glowfs_types::wire::mgmtd::ReportSlow;
use glowfs_types::wire::{Empty, method};
use glowfs_types::{
    ChainVersion, ChunkId, ChunkVersion, DataId, NodeId, Result, Status, TargetId, VolumeId,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The time between two looks at the successors.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Empty calls that must fail, one after the other, before a serving neighbour counts as not reached.
const PROBES_MIN: u32 = 2;
/// The time between two tries whether a node is reached whose targets wait to be brought up to date from here. mgmtd remembers the
/// outcome for some of these (`mgmtd/src/slow.rs`).
const WAITING_PERIOD: Duration = Duration::from_secs(1);
/// So many times as long as a successor a predecessor may be silent: where nothing goes either way it is the one before that says so.
const PREDECESSOR_TIMES: u32 = 2;
/// How long the report to mgmtd may take.
const REPORT_DEADLINE: Duration = Duration::from_secs(2);

/// A question to the predecessor stands where updates to the successor do.
const QUESTION: (ChunkId, ChunkVersion) =
    (ChunkId { volume: VolumeId(0), data: DataId(0), index: 0 }, ChunkVersion(0));

/// What a target knows of its successor's pace, or its predecessor's, under one chain version.
#[derive(Default)]
pub(crate) struct Watch {
    version: Cell<ChainVersion>,
    /// Updates that it has not taken.
    unanswered: RefCell<BTreeMap<(ChunkId, ChunkVersion), Sent>>,
    /// Since when every attempt of the resync failed.
    sync_fails: Cell<Option<Instant>>,
    probing: Cell<bool>,
    /// Empty calls that failed since the last sign of life.
    probes_failed: Cell<u32>,
    reported: Cell<Option<Instant>>,
}

/// An update that was sent.
#[derive(Clone, Copy)]
struct Sent {
    /// The first time.
    at: Instant,
    /// What its bytes may take on their way.
    way: Duration,
}

impl Watch {
    /// Whether that is the newest version that it has heard of: what had to be read for a former one may come late, and says nothing any more.
    fn turn(&self, version: ChainVersion) -> bool {
        if version < self.version.get() {
            return false;
        }
        if self.version.replace(version) != version {
            self.unanswered.borrow_mut().clear();
            self.sync_fails.set(None);
            self.probes_failed.set(0);
            self.reported.set(None);
        }
        true
    }
    /// An update is on its way to the successor, which may take so long.
    pub fn sent(
        &self,
        version: ChainVersion,
        update: (ChunkId, ChunkVersion),
        now: Instant,
        way: Duration,
    ) {
        if self.turn(version) {
            self.unanswered.borrow_mut().entry(update).or_insert(Sent { at: now, way });
        }
    }
    /// The successor took it.
    pub fn taken(&self, version: ChainVersion, update: (ChunkId, ChunkVersion)) {
        if self.version.get() == version {
            self.unanswered.borrow_mut().remove(&update);
            self.probes_failed.set(0);
        }
    }
    /// A question is on its way to the predecessor.
    pub fn asked(&self, version: ChainVersion, now: Instant) {
        self.sent(version, QUESTION, now, Duration::ZERO);
    }
    /// The predecessor said something, whatever it was.
    pub fn answered(&self, version: ChainVersion) {
        self.taken(version, QUESTION);
    }
    /// There is nothing to ask any more.
    pub fn nothing_to_ask(&self) {
        self.settled(QUESTION);
    }
    /// It is not sent any more.
    pub fn settled(&self, update: (ChunkId, ChunkVersion)) {
        self.unanswered.borrow_mut().remove(&update);
    }
    /// The resync got on.
    pub fn sync_moved(&self, version: ChainVersion) {
        if self.version.get() == version {
            self.sync_fails.set(None);
        }
    }
    /// The resync failed and begins again.
    pub fn sync_failed(&self, version: ChainVersion, now: Instant) {
        if self.turn(version) && self.sync_fails.get().is_none() {
            self.sync_fails.set(Some(now));
        }
    }
    /// How long the oldest update waits.
    fn waits(&self, now: Instant) -> Duration {
        let oldest = self.unanswered.borrow().values().map(|s| s.at).min();
        oldest.map_or(Duration::ZERO, |at| now.since(at))
    }
    /// How long any waits at the successor, by what it may have taken to get there.
    fn waits_there(&self, now: Instant) -> Duration {
        let first = self.unanswered.borrow().values().map(|s| s.at + s.way).min();
        first.map_or(Duration::ZERO, |at| now.since(at))
    }
    fn sync_fails_for(&self, now: Instant) -> Duration {
        self.sync_fails.get().map_or(Duration::ZERO, |at| now.since(at))
    }
}

impl Node {
    /// Looks at the successors of all targets, again and again.
    pub(crate) async fn watch_successors(self: Rc<Self>) {
        let mut tried = self.rt.now();
        while !self.stopping.get() {
            self.rt.sleep(LOOK_PERIOD).await;
            if self.rt.now().since(tried) >= WAITING_PERIOD {
                tried = self.rt.now();
                self.try_waiting();
            }
            for target in self.all_targets() {
                self.look_at_successor(&target);
                self.look_at_predecessor(&target);
            }
        }
    }

    /// Tries to reach those who wait to be brought up to date from here, each node once for all its targets.
    fn try_waiting(self: &Rc<Self>) {
        let routing = self.routing();
        let mut ask: BTreeMap<NodeId, ReportSlow> = BTreeMap::new();
        for target in self.all_targets() {
            let last = |v: &View| v.serving() && v.successor.is_none_or(|(_, _, syncing)| syncing);
            let Some(view) = target.view().filter(last) else { continue };
            let chain = routing.chains.get(&view.chain).filter(|c| c.version == view.version);
            let members = chain.into_iter().flat_map(|c| &c.members);
            for m in members.filter(|m| m.state == PublicState::Waiting) {
                ask.entry(m.node).or_insert(ReportSlow {
                    chain: view.chain,
                    version: view.version,
                    target: m.target,
                    reporter: target.id,
                    unreachable: true,
                });
            }
        }
        let deadline = self.config.slow_after() / 3;
        for (to, report) in ask {
            if !self.trying.borrow_mut().insert(to) {
                continue;
            }
            let me = self.clone();
            self.rt.spawn_detached(async move {
                let answered = me.answers(to, deadline).await;
                me.trying.borrow_mut().remove(&to);
                if !answered && let Some(agent) = me.agent() {
                    tracing::debug!(chain = %report.chain, node = %to, "a member that waits is not reached");
                    let link = agent.link();
                    // Lost, it is said again in a second.
                    let _ = link.call::<_, Empty>(method::REPORT_SLOW, &report, REPORT_DEADLINE).await;
                }
            });
        }
    }

    fn look_at_successor(self: &Rc<Self>, target: &Rc<Target>) {
        let Some(view) = target.view().filter(|v| v.serving()) else { return };
        let Some((successor, node, syncing)) = view.successor else { return };
        let watch = &target.watch;
        if watch.version.get() != view.version || target.replica.borrow().adopting().is_some() {
            return;
        }
        let (now, bound) = (self.rt.now(), self.config.slow_after());
        if syncing {
            // The first update of a chunk brings all of it.
            let takes = self.sending.takes(node, now, bound);
            let waits = if takes { watch.waits_there(now) } else { watch.waits(now) };
            if waits >= bound || watch.sync_fails_for(now) >= bound {
                self.report_slow(target, watch, successor, false);
            }
            return;
        }
        self.look_at(target, |t| &t.watch, view.version, (successor, node), bound);
    }

    fn look_at_predecessor(self: &Rc<Self>, target: &Rc<Target>) {
        let view = target.replica.borrow().asks_predecessor().filter(|v| v.serving());
        let Some(view) = view.filter(|v| v.version == target.ahead.version.get()) else { return };
        let Some(predecessor) = view.predecessor else { return };
        let bound = self.config.slow_after() * PREDECESSOR_TIMES;
        self.look_at(target, |t| &t.ahead, view.version, predecessor, bound);
    }

    /// Tries a serving neighbour that does not answer, and tells mgmtd if it is not reached.
    fn look_at(
        self: &Rc<Self>,
        target: &Rc<Target>,
        of: fn(&Target) -> &Watch,
        version: ChainVersion,
        (neighbour, node): (TargetId, NodeId),
        bound: Duration,
    ) {
        let watch = of(target);
        let waits = watch.waits(self.rt.now());
        if waits < bound / 3 {
            watch.probes_failed.set(0);
        } else if waits >= bound && watch.probes_failed.get() >= PROBES_MIN {
            self.report_slow(target, watch, neighbour, true);
        }
        if waits >= bound / 3 && !watch.probing.replace(true) {
            let (me, target) = (self.clone(), target.clone());
            self.rt.spawn_detached(async move {
                let answered = me.answers(node, bound / 3).await;
                let watch = of(&target);
                watch.probing.set(false);
                if watch.version.get() == version {
                    watch.probes_failed.set(if answered {
                        0
                    } else {
                        watch.probes_failed.get() + 1
                    });
                }
            });
        }
    }

    /// Whether anything at all comes back from a node.
    async fn answers(&self, node: NodeId, deadline: Duration) -> bool {
        let call = async {
            let conn = self.connect(node).await?;
            conn.call_msg::<_, Empty>(method::ECHO, &Empty {}, deadline).await
        };
        let answer: Result<Result<Empty>, _> = self.rt.timeout(deadline, call).await;
        !matches!(
            answer.map(|r| r.map_err(|e| e.status)),
            Err(_) | Ok(Err(Status::Disconnected | Status::TimedOut))
        )
    }

    fn report_slow(
        self: &Rc<Self>,
        target: &Target,
        watch: &Watch,
        neighbour: TargetId,
        unreachable: bool,
    ) {
        let (Some(view), Some(agent)) = (target.view(), self.agent().cloned()) else { return };
        let now = self.rt.now();
        let pause = Duration::from_millis(self.config.slow_report_ms);
        if watch.reported.get().is_some_and(|at| now.since(at) < pause) {
            return;
        }
        watch.reported.set(Some(now));
        self.metrics.slow_reports.inc();
        tracing::warn!(
            target = %target.id, chain = %view.chain, version = %view.version, %neighbour, unreachable,
            "a neighbour holds the chain up; telling mgmtd"
        );
        let report = ReportSlow {
            chain: view.chain,
            version: view.version,
            target: neighbour,
            reporter: target.id,
            unreachable,
        };
        self.rt.spawn_detached(async move {
            let call = agent.link().call::<_, Empty>(method::REPORT_SLOW, &report, REPORT_DEADLINE);
            if let Err(e) = call.await {
                tracing::warn!(error = %e, "mgmtd did not take the report; it is repeated");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(index: u64) -> (ChunkId, ChunkVersion) {
        (ChunkId { volume: VolumeId(1), data: DataId(1), index }, ChunkVersion(1))
    }

    #[test]
    fn what_comes_late_under_a_former_version_takes_nothing_away() {
        let (watch, [former, now]) = (Watch::default(), [1, 2].map(ChainVersion));
        let at = |s: u64| Instant(s * 1_000_000_000);
        watch.sent(former, update(1), at(1), Duration::ZERO);
        watch.sent(now, update(2), at(2), Duration::ZERO);
        watch.sync_failed(now, at(3));
        watch.sent(former, update(3), at(4), Duration::ZERO);
        watch.sync_failed(former, at(4));
        assert_eq!(watch.waits(at(5)), Duration::from_secs(3));
        assert_eq!(watch.sync_fails_for(at(5)), Duration::from_secs(2));
        watch.taken(now, update(2));
        assert_eq!(watch.waits(at(5)), Duration::ZERO, "nor is anything noted");
    }

    #[test]
    fn what_is_long_on_its_way_does_not_wait_there() {
        let (watch, now) = (Watch::default(), ChainVersion(2));
        let (at, second) = (|s: u64| Instant(s * 1_000_000_000), Duration::from_secs(1));
        watch.sent(now, update(1), at(1), 8 * second);
        watch.sent(now, update(2), at(4), second);
        // Sent again it was sent when it was first.
        watch.sent(now, update(2), at(6), 8 * second);
        assert_eq!((watch.waits(at(7)), watch.waits_there(at(7))), (6 * second, 2 * second));
        watch.taken(now, update(2));
        assert_eq!((watch.waits(at(7)), watch.waits_there(at(7))), (6 * second, Duration::ZERO));
        assert_eq!(watch.waits_there(at(12)), 3 * second);
    }

    #[test]
    fn a_predecessor_waits_from_the_first_question_without_an_answer() {
        let (watch, now) = (Watch::default(), ChainVersion(2));
        let at = |s: u64| Instant(s * 1_000_000_000);
        watch.asked(now, at(1));
        watch.asked(now, at(3));
        assert_eq!(watch.waits(at(5)), Duration::from_secs(4));
        watch.answered(now);
        assert_eq!(watch.waits(at(5)), Duration::ZERO);
        watch.asked(now, at(6));
        watch.nothing_to_ask();
        assert_eq!(watch.waits(at(9)), Duration::ZERO);
    }
}
