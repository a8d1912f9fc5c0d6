//! Members that come and go: drains, replaced disks, and replicas that stood idle for too long. What to do next with a chain
//! decides `cluster`, where a newcomer goes decides `placement` ([`crate::ground`]); here they are fed and their moves are put in force.

use crate::balance;
use crate::core::Inner;
use crate::edit::Edit;
use crate::ground::{Ground, conditions, wanted};
use crate::state::State;
use crate::tables::new_target;
use glowfs_cluster::{Move, next_move};
use glowfs_rt::Duration;
use glowfs_types::routing::{LocalState, PublicState, TargetInfo};
use glowfs_types::wire::mgmtd::TargetReport;
use glowfs_types::{ChainId, TargetId};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The greatest number of chains changed by one transaction.
const MOVES_PER_CHANGE: usize = 128;

/// Targets that are to go now: on disks that are drained or replaced, and members that stood idle for so long.
pub(crate) fn leaving(s: &State, after_ms: Option<u64>) -> BTreeSet<TargetId> {
    let given_up = |t| after_ms.is_some_and(|after| s.idle.for_ms(t, after));
    s.targets
        .values()
        .map(|t| &t.value)
        .filter(|t| s.stores.get(&t.store).is_some_and(|r| r.away != 0) || given_up(t.id))
        .map(|t| t.id)
        .collect()
}

/// Whether its chain does not list a target any more.
pub(crate) fn has_left(s: &State, t: &TargetInfo) -> bool {
    s.chains.get(&t.chain).is_some_and(|c| !c.value.records.contains_key(&t.id))
}

/// A target that no chain lists any more and that its node does not have any more.
fn forgotten(s: &State) -> Vec<(TargetId, ChainId)> {
    let dropped = |t: &TargetInfo| {
        let named = s.heard.contains_key(&t.id);
        let lost = s.stores.get(&t.store).is_none_or(|r| r.superseded);
        lost || (s.said.contains_key(&t.node) && !named)
    };
    let found = s.targets.values().map(|t| &t.value).filter(|t| has_left(s, t) && dropped(t));
    found.map(|t| (t.id, t.chain)).take(MOVES_PER_CHANGE).collect()
}

/// Of the targets that a node names, those that were removed and of which nobody needs what it still has. While too few serve the chain that one was
/// of, it may be all that is left in the end; but where its disk was chosen for a new replica of that very chain, it is in the way of that.
pub(crate) fn removed(s: &State, reports: &[TargetReport]) -> Vec<TargetId> {
    let mut named =
        reports.iter().filter_map(|r| s.gone.get(&r.target).map(|gone| (r, gone.chain))).peekable();
    if named.peek().is_none() {
        return Vec::new();
    }
    let wanted = wanted(s);
    // Builds of before did not note the chain.
    let all_served = s.chains.values().all(|c| c.value.info.head().is_some());
    let spare = |report: &TargetReport, chain: ChainId| {
        let info = s.chains.get(&chain).map(|c| &c.value.info);
        info.is_some_and(|info| {
            let wanted = wanted.get(&chain).copied().unwrap_or(info.members.len());
            let on = |t: TargetId| s.targets.get(&t).is_some_and(|t| t.value.store == report.store);
            let serving = info.serving().count();
            serving >= wanted || (serving > 0 && info.members.iter().any(|m| on(m.target)))
        })
    };
    named
        .filter(|(report, chain)| chain.map_or(all_served, |chain| spare(report, chain)))
        .map(|(report, _)| report.target)
        .collect()
}

/// The moves of one round.
fn plan_moves(s: &mut State, now_ms: u64, t: &crate::Timing) -> (Edit, Vec<(ChainId, Move)>) {
    let after_ms = s.mgmtd_tuning().replace_after_ms.unwrap_or(t.replace_after_ms);
    let after_ms = (after_ms > 0).then_some(after_ms);
    s.idle.look(s.chains.values().map(|c| &c.value), after_ms, now_ms);
    let s = &*s;
    let mut ground = Ground::new(s, leaving(s, after_ms));
    let balance = s.mgmtd_tuning().balance == Some(true);
    // Before anything is planned: whether all is quiet is judged by what is there.
    let leisure = balance && balance::at_leisure(s, &ground);
    if balance {
        balance::go_on(s, &mut ground);
    }
    let mut edit = Edit { removed: forgotten(s), ..Edit::default() };
    let mut log = Vec::new();
    let mut recovering = s
        .chains
        .values()
        .filter(|c| c.value.info.members.iter().any(|m| copying(s, &c.value, m.target, now_ms)))
        .count();
    let mut next_id = s.next_target();
    for (id, item) in &s.chains {
        let chain = &item.value;
        let Some(&wanted) = ground.wanted.get(id) else { continue };
        let Some(step) = next_move(chain, wanted, &ground.leaving) else { continue };
        let next = match step {
            Move::Dismiss(target) => chain.dismiss(target),
            Move::Reinstate(target) => chain.reinstate(target),
            Move::Retire(target) => chain.retire(target).map(|(next, _)| next),
            Move::Join if recovering >= t.recoveries_max as usize => continue,
            Move::Join => {
                let Some(place) = ground.take_place(*id) else { continue };
                let joined = chain.join(next_id, place.node);
                if joined.is_ok() {
                    edit.targets.push(new_target(next_id, *id, &place));
                    next_id = next_id.next();
                    recovering += 1;
                }
                joined
            }
        };
        // Refused: it is changing; the next round looks again.
        let Ok(next) = next else { continue };
        edit.chains.push(next);
        log.push((*id, step));
        if log.len() >= MOVES_PER_CHANGE {
            break;
        }
    }
    if leisure && log.is_empty() {
        let mut begun = Vec::new();
        while begun.len() < balance::MOVES_MAX
            && let Some((id, place)) = balance::next(s, &mut ground, &begun)
        {
            begun.push(id);
            let Some(Ok(next)) = s.chains.get(&id).map(|c| c.value.join(next_id, place.node))
            else {
                continue;
            };
            edit.targets.push(new_target(next_id, id, &place));
            next_id = next_id.next();
            edit.chains.push(next);
            log.push((id, Move::Join));
        }
    }
    (edit, log)
}

/// Whether a member is being brought up to date, or is about to be. One that waits until it is reached or has room, or until somebody serves, is
/// not: that may take for ever.
fn copying(s: &State, chain: &glowfs_cluster::Chain, target: TargetId, now_ms: u64) -> bool {
    use PublicState::{Offline, Syncing, Waiting};
    let hears = |node| s.leases.alive(node) && !s.leases.deaf(node);
    let alive = || s.targets.get(&target).is_some_and(|t| hears(t.value.node));
    // One that says itself that it is offline has a disk that is broken: nothing brings it up to date.
    let broken = || s.heard.get(&target).is_some_and(|h| h.report.local == LocalState::Offline);
    match chain.state(target) {
        Some(Syncing) => true,
        Some(Waiting) => {
            chain.info.head().is_some() && s.observation(target, now_ms).is_some_and(|o| o.may_sync)
        }
        Some(Offline) => !chain.retired(target) && alive() && !broken(),
        _ => false,
    }
}

impl Inner {
    /// Looks for moves to make, again and again.
    pub async fn repair(self: Rc<Self>) {
        let period = Duration::from_millis(self.config.timing.repair_ms);
        while !self.stopping.get() {
            self.rt.sleep(period).await;
            if self.primary().is_ok()
                && let Err(e) = self.repair_once().await
            {
                tracing::warn!(error = %e, "members of chains could not be changed; trying on");
            }
            // Not by whom has just stepped down.
            if let Ok(counts) = self.with(|s| conditions(s)) {
                self.metrics.set_chains(counts);
            }
        }
    }

    async fn repair_once(&self) -> glowfs_types::Result<()> {
        let _held = self.lock.acquire(1).await;
        let now_ms = self.now_ms();
        let (epoch, (edit, log)) =
            self.with(|s| (s.epoch, plan_moves(s, now_ms, &self.config.timing)))?;
        let removed = edit.removed.clone();
        let chains: Vec<ChainId> = edit.chains.iter().map(|c| c.info.id).collect();
        self.commit(edit).await?;
        self.remember(epoch, |s| s.dirty_chains.extend(chains));
        self.work.notify_all();
        for (chain, step) in log {
            self.metrics.moves.inc();
            tracing::info!(%chain, ?step, "members changed");
        }
        for (target, chain) in removed {
            tracing::info!(target_id = %target, %chain, "target is gone");
        }
        Ok(())
    }
}
