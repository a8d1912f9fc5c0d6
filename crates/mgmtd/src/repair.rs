//! Members that come and go: drains, replaced disks, and replicas that were away for too long. What to do next with a chain
//! decides `cluster`, where a newcomer goes decides `placement` ([`crate::ground`]); here they are fed and their moves are put in force.

use crate::balance;
use crate::core::Inner;
use crate::edit::Edit;
use crate::ground::Ground;
use crate::state::State;
use crate::tables::new_target;
use glowfs_cluster::{Move, next_move};
use glowfs_rt::{Duration, Instant};
use glowfs_types::routing::{LocalState, PublicState, TargetInfo};
use glowfs_types::{ChainId, TargetId};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The greatest number of chains changed by one transaction.
const MOVES_PER_CHANGE: usize = 128;
/// Targets that are to go now: on disks that are drained or replaced, and members that were away for too long.
pub(crate) fn leaving(s: &State, now: Instant, after: Option<Duration>) -> BTreeSet<TargetId> {
    let away = |t: TargetId| {
        let since = s.offline_since.get(&t);
        after.zip(since).is_some_and(|(after, since)| now.since(*since) >= after)
    };
    s.targets
        .values()
        .map(|t| &t.value)
        .filter(|t| s.stores.get(&t.store).is_some_and(|r| r.away != 0) || away(t.id))
        .map(|t| t.id)
        .collect()
}

/// Notes since when members are offline.
fn note_offline(s: &mut State, now: Instant) {
    let offline: BTreeSet<TargetId> = s
        .chains
        .values()
        .flat_map(|c| &c.value.info.members)
        .filter(|m| m.state == PublicState::Offline)
        .map(|m| m.target)
        .collect();
    s.offline_since.retain(|t, _| offline.contains(t));
    for t in offline {
        s.offline_since.entry(t).or_insert(now);
    }
}

/// Whether its chain does not list a target any more.
pub(crate) fn has_left(s: &State, t: &TargetInfo) -> bool {
    s.chains.get(&t.chain).is_some_and(|c| !c.value.records.contains_key(&t.id))
}

/// A target that no chain lists any more and that its node does not have any more.
fn forgotten(s: &State) -> Vec<TargetId> {
    let dropped = |t: &TargetInfo| {
        let named = s.heard.contains_key(&t.id);
        let lost = s.stores.get(&t.store).is_none_or(|r| r.superseded);
        lost || (s.said.contains_key(&t.node) && !named)
    };
    let found = s.targets.values().map(|t| &t.value).filter(|t| has_left(s, t) && dropped(t));
    found.map(|t| t.id).take(MOVES_PER_CHANGE).collect()
}

/// The moves of one round.
fn plan_moves(s: &mut State, now: Instant, t: &crate::Timing) -> (Edit, Vec<(ChainId, Move)>) {
    note_offline(s, now);
    let after = s.mgmtd_tuning().replace_after_ms.unwrap_or(t.replace_after_ms);
    let after = (after > 0).then(|| Duration::from_millis(after));
    let s = &*s;
    let mut ground = Ground::new(s, leaving(s, now, after));
    let balance = s.mgmtd_tuning().balance == Some(true);
    // Before anything is planned: whether all is quiet is judged by what is there.
    let leisure = balance && balance::at_leisure(s, &ground);
    if balance {
        balance::go_on(s, &mut ground);
    }
    let mut edit = Edit { removed: forgotten(s), ..Edit::default() };
    let mut log = Vec::new();
    let now_ms = now.0 / 1_000_000;
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
    let alive = || s.targets.get(&target).is_some_and(|t| s.leases.alive(t.value.node));
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
        }
    }

    async fn repair_once(&self) -> glowfs_types::Result<()> {
        let _held = self.lock.acquire(1).await;
        let now = self.rt.now();
        let (edit, log) = self.with(|s| plan_moves(s, now, &self.config.timing))?;
        let removed = edit.removed.clone();
        let chains: Vec<ChainId> = edit.chains.iter().map(|c| c.info.id).collect();
        self.commit(edit).await?;
        self.with(|s| s.dirty_chains.extend(chains))?;
        self.work.notify_all();
        for (chain, step) in log {
            self.metrics.moves.inc();
            tracing::info!(%chain, ?step, "members changed");
        }
        for target in removed {
            tracing::info!(target_id = %target, "target is gone");
        }
        Ok(())
    }
}
