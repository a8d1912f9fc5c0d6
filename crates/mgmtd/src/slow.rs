//! REPORT_SLOW: members that live but hold their chain up.
//!
//! What becomes of the chain is the core's decision ([`glowfs_cluster::Chain`], [`glowfs_cluster::Reach`]); here a report is
//! checked against the newest chain version, so that one that is late or of somebody else changes nothing.

use crate::core::Inner;
use crate::state::State;
use glowfs_cluster::Blame;
use glowfs_rt::Duration;
use glowfs_types::routing::PublicState;
use glowfs_types::wire::Empty;
use glowfs_types::wire::mgmtd::ReportSlow;
use glowfs_types::{NodeId, Result, TargetId};
use std::rc::Rc;

/// How long it counts that a member that waits is not reached, in ms; some times the period in which storages look
/// (`storage/src/slow.rs`), since a report may get lost.
pub const BROKEN_MEMORY_MS: u64 = 5_000;

/// So many serving members stay at least where one of two leaves of which the one behind does not reach the other.
const LEFT_FOR_READS: usize = 2;

/// Who pauses, and until when (milliseconds of this instance's clock).
type Paused = Option<(TargetId, u64)>;

impl Inner {
    pub fn report_slow(self: &Rc<Self>, report: ReportSlow) -> Result<Empty> {
        let now_ms = self.now_ms();
        let (epoch, cut) = self.with(|s| (s.epoch, note_cut(s, &report, now_ms)))?;
        if let Some((node, until_ms)) = cut {
            self.look_again((epoch, until_ms - now_ms), move |s| s.touch_node(node));
            return Ok(Empty {});
        }
        let (epoch, taken) = self.with(|s| (s.epoch, take(s, &report, now_ms)))?;
        let Some((target, until_ms)) = taken else { return Ok(Empty {}) };
        tracing::warn!(
            chain = %report.chain, version = %report.version, reporter = %report.reporter, accused = %report.target,
            unreachable = report.unreachable, out = %target, "a member holds its chain up and is taken out"
        );
        self.work.notify_all();
        self.look_again((epoch, until_ms - now_ms), move |s| {
            s.dirty_chains.insert(report.chain);
        });
        Ok(Empty {})
    }

    /// Has chains of an epoch's state looked at when something has ceased to count. Nobody else would: an unchanged report marks nothing.
    pub fn look_again(
        self: &Rc<Self>,
        (epoch, after_ms): (u64, u64),
        mark: impl FnOnce(&mut State) + 'static,
    ) {
        let (inner, pause) = (self.clone(), Duration::from_millis(after_ms + 1));
        self.rt.spawn_detached(async move {
            inner.rt.sleep(pause).await;
            inner.remember(epoch, mark);
            inner.work.notify_all();
        });
    }
}

/// Notes that a member that waits is not reached by the one that would bring it up to date: its node, and until when that counts.
fn note_cut(s: &mut State, report: &ReportSlow, now_ms: u64) -> Option<(NodeId, u64)> {
    let info = &s.chains.get(&report.chain)?.value.info;
    let accused = info.members.iter().find(|m| m.target == report.target)?;
    let source = info.serving().last()?;
    let waits = accused.state == PublicState::Waiting && report.unreachable;
    if info.version != report.version || !waits || source.target != report.reporter {
        return None;
    }
    let (from, to) = (source.node, accused.node);
    Some((to, s.broken.note(from, to, now_ms)))
}

fn take(s: &mut State, report: &ReportSlow, now_ms: u64) -> Paused {
    let info = &s.chains.get(&report.chain)?.value.info;
    if info.version != report.version {
        return None;
    }
    let writers: Vec<_> = info.writers().copied().collect();
    let at = writers.iter().position(|m| m.target == report.target)?;
    let accused = writers[at];
    // What is not reached from behind is not heard of what may be shown. (One that is brought up to date shows nothing.) That does no harm to the data, and reads go on at the head:
    // no chain is left with one member for it, which that one might not reach either, to bring it up to date.
    let enough = info.serving().count() > LEFT_FOR_READS;
    let before = at.checked_sub(1).and_then(|i| writers.get(i));
    let behind = writers.get(at + 1).filter(|m| enough && m.state == PublicState::Serving);
    let mut neighbours = before.into_iter().chain(behind);
    let reporter = neighbours.find(|m| m.target == report.reporter);
    let blamed = match accused.state {
        PublicState::Syncing => accused.target,
        // Only its neighbours can know, and only that nothing arrives is a reason: a slow disk is no proof against anybody.
        PublicState::Serving if report.unreachable => {
            let reporter = reporter?;
            let blame = s.reach.accuse(reporter.node, accused.node, now_ms);
            let blamed = if blame == Blame::Accused { accused.target } else { reporter.target };
            s.unreachable.insert(report.chain, (info.version, blamed));
            blamed
        }
        _ => return None,
    };
    // Every report is followed by a pause, so reports of one target do not pile up.
    let was_free = s.pauses.may_sync(blamed, now_ms);
    let until_ms = s.pauses.pause(blamed, now_ms);
    s.dirty_chains.insert(report.chain);
    was_free.then_some((blamed, until_ms))
}
