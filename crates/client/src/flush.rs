//! Flush barriers: what was acknowledged of a file before the call, by whomever, is on the disk of every serving target of every chain that can hold
//! data of its layout. A disk that has nothing of it which is not flushed yet has nothing to do.
//!
//! Every node is asked once, for all of its targets of these chains, each under the chain version that our routing info has. When all
//! serving members of a version say, after their flush, that they still serve under it, no later version can have acknowledged
//! anything before the flush began (a version begins only when the members of the one before know it or have lost their lease). Flushes of
//! one node that are asked for while one runs share the next one.

use crate::core::Core;
use crate::heads::{head_call, layout_chains};
use crate::retry::{Retry, again_write};
use crate::routes::{self, Place, Site};
use crate::vain;
use glowfs_net::{Bulk, Request};
use glowfs_rt::sync::{Notify, join_all};
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::data::Flush;
use glowfs_types::wire::flush::{
    FLUSH_FILES_MAX, FLUSH_TARGETS_MAX, FlushTarget, FlushTargets, FlushTargetsReply,
};
use glowfs_types::wire::{decode, encode, method};
use glowfs_types::{
    ChainId, ChainVersion, DataId, Error, Layout, NodeId, Result, Status, VolumeId,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

type Targets = BTreeSet<FlushTarget>;

/// What is flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    /// Whatever the chains have.
    All,
    /// One file's data.
    File(VolumeId, DataId),
}

/// What a round flushes: what those who wait for it want.
#[derive(Clone, Default)]
struct Wanted {
    targets: Targets,
    /// Somebody wants all.
    all: bool,
    files: BTreeSet<(VolumeId, DataId)>,
}

impl Wanted {
    fn add(&mut self, targets: &Targets, of: Of) {
        self.targets.extend(targets);
        match of {
            Of::All => self.all = true,
            Of::File(volume, data) => drop(self.files.insert((volume, data))),
        }
    }
    /// As a message names them.
    fn files(&self) -> Option<Vec<(VolumeId, DataId)>> {
        let named = !self.all && self.files.len() <= FLUSH_FILES_MAX;
        named.then(|| self.files.iter().copied().collect())
    }
}

/// One flush of a node that some callers wait for.
#[derive(Default)]
struct Round {
    /// Who comes later waits for the next one: this one may have passed what was written since.
    begun: Cell<bool>,
    wanted: RefCell<Wanted>,
    answers: RefCell<Option<BTreeMap<FlushTarget, Result<()>>>>,
    done: Notify,
}

struct Lane {
    running: Rc<Round>,
    next: Option<Rc<Round>>,
}

/// The flushes of a client, by node.
#[derive(Default)]
pub(crate) struct Flushes(RefCell<BTreeMap<NodeId, Lane>>);

/// Since which version of each chain what was not flushed before may be gone ([`glowfs_types::routing::ChainInfo::lost`]).
pub(crate) type Losses = BTreeMap<ChainId, ChainVersion>;

/// Flushes that on every chain that can hold data of a layout; what they had lost under the versions in which they were flushed.
pub(crate) async fn flush(core: &Rc<Core>, layout: &Layout, of: Of) -> Result<Losses> {
    let mut chains = layout_chains(core, layout).await?;
    let mut losses = Losses::new();
    let mut retry = core.retry(core.write_policy());
    loop {
        let mut site = Site::default();
        let asked = chains.clone();
        let outcome = attempt(core, &mut chains, of, &retry, &mut site).await;
        if let Some(info) = &site.info {
            let done = asked.iter().filter(|c| outcome.is_ok() || !chains.contains(c));
            losses.extend(done.filter_map(|c| Some((*c, info.chains.get(c)?.lost))));
        }
        let Err(e) = outcome else { return Ok(losses) };
        if e.status == Status::UnknownMethod {
            at_the_heads(core, &chains).await?;
            // It is no older than what the heads were asked by.
            let info = core.routing.borrow().clone();
            losses.extend(chains.iter().filter_map(|c| Some((*c, info.chains.get(c)?.lost))));
            return Ok(losses);
        }
        let again = again_write(e.status) && e.status != Status::BadCapability;
        let what = || format!("flush of {} chains", chains.len());
        core.wait_or_give_up(&mut retry, &what, &site, e, again).await?;
    }
}

/// Storages of a former release: the head of each chain flushes it.
async fn at_the_heads(core: &Rc<Core>, chains: &[ChainId]) -> Result<()> {
    let calls = chains.iter().map(|chain| {
        head_call(core, *chain, method::FLUSH, "flush", |_, chain_version| {
            encode(&Flush { chain: *chain, chain_version })
        })
    });
    join_all(calls).await.into_iter().try_for_each(|r| r.map(|_| ()))
}

/// Asks all nodes once. Those chains stay in `chains` of which not every serving target was flushed; an error if there are any.
async fn attempt(
    core: &Rc<Core>,
    chains: &mut Vec<ChainId>,
    of: Of,
    retry: &Retry,
    site: &mut Site,
) -> Result<()> {
    let late = || Error::new(Status::Disconnected, "the time for this flush is up");
    let time = retry.attempt_time(core.rt.now()).ok_or_else(late)?;
    let info = core.routing(time).await?;
    site.info = Some(info.clone());
    let mut nodes: BTreeMap<NodeId, Targets> = BTreeMap::new();
    for chain in chains.iter() {
        for p in routes::serving(&info, *chain)? {
            let target = FlushTarget { chain: p.chain, chain_version: p.version, target: p.target };
            nodes.entry(p.node).or_default().insert(target);
        }
    }
    let answers = join_all(nodes.iter().map(|(node, targets)| ask(core, *node, targets, of))).await;
    let mut failed = BTreeSet::new();
    let mut error = None;
    for ((node, targets), answers) in nodes.iter().zip(answers) {
        for (t, answer) in targets.iter().zip(answers) {
            let Err(e) = answer else { continue };
            failed.insert(t.chain);
            if error.is_none() {
                site.place = Some(place(*node, t));
                error = Some(e);
            }
        }
    }
    chains.retain(|c| failed.contains(c));
    error.map_or(Ok(()), Err)
}

fn place(node: NodeId, t: &FlushTarget) -> Place {
    Place { chain: t.chain, version: t.chain_version, target: t.target, node }
}

/// Whether one of the targets need not be asked any more, because others serve now.
fn moved(info: &RoutingInfo, node: NodeId, targets: &Targets) -> bool {
    targets.iter().any(|t| vain::serves_no_more(info, &place(node, t)))
}

/// Waits for a flush of these targets that began after this call; an answer for each.
async fn ask(core: &Rc<Core>, node: NodeId, targets: &Targets, of: Of) -> Vec<Result<()>> {
    let round = enter(core, node, targets, of);
    let answers = async {
        loop {
            let news = round.done.wait();
            if let Some(answers) = &*round.answers.borrow() {
                let lost = || Err(Error::new(Status::Internal, "a flush without an answer"));
                return Ok(targets
                    .iter()
                    .map(|t| answers.get(t).cloned().unwrap_or_else(lost))
                    .collect());
            }
            news.await;
        }
    };
    match core.unless(|now| moved(now, node, targets), answers).await {
        Ok(answers) => answers,
        Err(e) => targets.iter().map(|_| Err(e.clone())).collect(),
    }
}

/// The round that covers everything acknowledged so far.
fn enter(core: &Rc<Core>, node: NodeId, targets: &Targets, of: Of) -> Rc<Round> {
    let mut lanes = core.flushes.0.borrow_mut();
    let round = match lanes.get_mut(&node) {
        Some(lane) if !lane.running.begun.get() => lane.running.clone(),
        Some(lane) => lane.next.get_or_insert_with(Rc::default).clone(),
        None => {
            let first = Rc::<Round>::default();
            lanes.insert(node, Lane { running: first.clone(), next: None });
            core.rt.spawn_detached(run(core.clone(), node));
            first
        }
    };
    round.wanted.borrow_mut().add(targets, of);
    round
}

/// Runs rounds until nobody waits for one.
async fn run(core: Rc<Core>, node: NodeId) {
    loop {
        let Some(round) = core.flushes.0.borrow().get(&node).map(|l| l.running.clone()) else {
            return;
        };
        // Whatever else is ready to run may join.
        core.rt.yield_now().await;
        round.begun.set(true);
        let wanted = round.wanted.borrow().clone();
        let files = wanted.files();
        let mut answers = BTreeMap::new();
        let all: Vec<FlushTarget> = wanted.targets.into_iter().collect();
        for some in all.chunks(FLUSH_TARGETS_MAX) {
            match call(&core, node, some, files.clone()).await {
                Ok(results) => answers.extend(some.iter().copied().zip(results)),
                Err(e) => answers.extend(some.iter().map(|t| (*t, Err(e.clone())))),
            }
        }
        *round.answers.borrow_mut() = Some(answers);
        let mut lanes = core.flushes.0.borrow_mut();
        let next = lanes.get_mut(&node).and_then(|lane| lane.next.take());
        let last = next.is_none();
        match (next, lanes.get_mut(&node)) {
            (Some(next), Some(lane)) => lane.running = next,
            _ => drop(lanes.remove(&node)),
        }
        drop(lanes);
        round.done.notify_all();
        if last {
            return;
        }
    }
}

/// Asks one node.
async fn call(
    core: &Rc<Core>,
    node: NodeId,
    targets: &[FlushTarget],
    files: Option<Vec<(VolumeId, DataId)>>,
) -> Result<Vec<Result<()>>> {
    let time = core.write_policy().attempt;
    let info = core.routing(time).await?;
    let body = encode(&FlushTargets { targets: targets.to_vec(), files });
    let asked: Targets = targets.iter().copied().collect();
    // It stands behind what is written there, and there is nobody else to ask.
    let most = core.config.late_attempt.min(core.write_policy().total);
    let request = Request {
        method: method::FLUSH_TARGETS,
        body,
        bulk: Bulk::None,
        tenant: core.config.tenant,
        deadline: time,
    };
    let outcome = async { core.conn(&info, node, time).await?.call_patiently(request, most).await };
    let outcome = core.unless(|now| moved(now, node, &asked), outcome);
    let response = outcome.await.inspect_err(|e| core.blame(node, e))?;
    let reply: FlushTargetsReply = decode(&response.body)?;
    if reply.statuses.len() != targets.len() {
        let text = format!("{} answers to a flush of {}", reply.statuses.len(), targets.len());
        return Err(Error::new(Status::BadMessage, text));
    }
    let result = |code| match Status::from_code(code) {
        Status::Ok => Ok(()),
        status => Err(Error::new(status, "the target did not flush")),
    };
    Ok(reply.statuses.into_iter().map(result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_of_the_files_that_those_who_wait_have_written_or_of_all() {
        let file = |n| Of::File(VolumeId(1), DataId(n));
        let mut w = Wanted::default();
        w.add(&Targets::new(), file(7));
        w.add(&Targets::new(), file(3));
        w.add(&Targets::new(), file(7));
        assert_eq!(w.files(), Some(vec![(VolumeId(1), DataId(3)), (VolumeId(1), DataId(7))]));
        let mut all = w.clone();
        all.add(&Targets::new(), Of::All);
        assert_eq!(all.files(), None);
        // More than a message names.
        (0..=FLUSH_FILES_MAX as u64).for_each(|n| w.add(&Targets::new(), file(n)));
        assert_eq!(w.files(), None);
    }
}
