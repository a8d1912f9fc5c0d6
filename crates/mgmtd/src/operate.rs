//! What operators ask for: emptying disks and nodes, replacing disks, forcing chains.

use crate::core::Inner;
use crate::edit::Edit;
use crate::ground::{Ground, has_failed};
use crate::records::{StoreRecord, standing};
use crate::repair::leaving;
use crate::state::State;
use glowfs_cluster::{explain, explain_force, force};
use glowfs_types::routing::{LocalState, PublicState};
use glowfs_types::wire::operate::{
    ForceChain, ForceChainReply, Leaver, MoveAway, MoveAwayReply, away,
};
use glowfs_types::{Error, NodeId, Result, Status, StoreId, TargetId};
use std::collections::BTreeSet;
use std::fmt::Write;

impl Inner {
    pub async fn move_away(&self, ask: MoveAway) -> Result<MoveAwayReply> {
        let _held = self.lock.acquire(1).await;
        let (dry_run, what) = (ask.dry_run, ask.what);
        let (edit, reply) = self.with(|s| {
            let stores = marked(s, &ask)?;
            let before: Vec<_> =
                stores.iter().filter_map(|r| s.stores.get(&r.offer.store).cloned()).collect();
            // Explained as if it were so already; in force only when it is stored.
            put(s, &stores);
            let mut reply = explain_move(s, &ask, &stores, leaving(s, None));
            reply.in_force = Some(before == stores);
            put(s, &before);
            Ok::<_, Error>((Edit { stores, ..Edit::default() }, reply))
        })??;
        // An order that is in force stays so, also while another node is away: who only looks at it waits.
        let no_place = |l: &&Leaver| l.to_node == NodeId(0);
        let stuck = reply.left.iter().find(no_place);
        // A disk that is broken is replaced as far as there is room: what has no place shows in what is left.
        let in_part = matches!(what, away::REPLACE | away::GIVE_UP)
            && !reply.left.iter().all(|l| no_place(&l));
        // Who calls off moves nothing: what goes on leaving the disk of before has no place as it had none.
        let stuck = stuck.filter(|_| !in_part && what != away::CANCEL);
        if let Some(stuck) = stuck.filter(|_| !dry_run || reply.in_force != Some(true)) {
            return Err(Error::new(
                Status::NoSpace,
                format!(
                    "there is no other place for target {} of chain {}: every other live node has a replica of it already, or no room for it on a disk that works; add a node or disk first",
                    stuck.target, stuck.chain
                ),
            ));
        }
        if !dry_run {
            self.commit(edit).await?;
            tracing::info!(node = %ask.node, disk = ?ask.disk, what, left = reply.left.len(), "disks marked");
        }
        Ok(reply)
    }

    pub async fn force_chain(&self, ask: ForceChain) -> Result<ForceChainReply> {
        let held = self.lock.acquire(1).await;
        let (epoch, chain) =
            self.with(|s| (s.epoch, s.chains.get(&ask.chain).map(|c| c.value.clone())))?;
        let chain = chain.ok_or_else(|| {
            Error::new(Status::InvalidArgument, format!("there is no chain {}", ask.chain))
        })?;
        let waits = chain.info.head().is_none();
        let mut explanation = explain(&chain);
        if let Some(target) = ask.target {
            let _ = writeln!(explanation, "{}", explain_force(&chain, target)?);
            // A request that is repeated because its answer was lost finds it done.
            let done = chain.info.head().is_some_and(|h| h.target == target);
            // The proof that others have would be gone, and nobody would serve.
            let away = !done && !self.is_up(target)?;
            if away {
                let _ = writeln!(explanation, "target {target} is away: bring it back first");
            }
            if away && !ask.dry_run {
                return Err(Error::new(
                    Status::Busy,
                    format!(
                        "target {target} is away and cannot serve; bring its node and disk back first, or force another one. Nothing was changed"
                    ),
                ));
            }
            if !ask.dry_run && !done {
                let next = force(&chain, target)?;
                self.commit(Edit { chains: vec![next], ..Edit::default() }).await?;
                tracing::warn!(chain = %ask.chain, %target, "chain forced by an operator");
                self.remember(epoch, |s| {
                    s.dirty_chains.insert(ask.chain);
                });
                drop(held);
                self.settle().await?;
            }
        }
        Ok(ForceChainReply { waits, explanation })
    }

    /// Whether its node lives and names it as usable.
    fn is_up(&self, target: TargetId) -> Result<bool> {
        let now = self.now_ms();
        self.with(|s| s.observation(target, now).is_some_and(|o| o.local != LocalState::Offline))
    }
}

fn put(s: &mut State, stores: &[StoreRecord]) {
    for r in stores {
        s.stores.insert(r.offer.store, r.clone());
    }
}

/// The disks that an order names. One that was in a place before is not drained with the one that works there now: of that the number tells.
fn meant<'a>(s: &'a State, ask: &MoveAway) -> Vec<&'a StoreRecord> {
    let named =
        |r: &&StoreRecord| r.node == ask.node && ask.disk.is_none_or(|d| d == r.offer.disk_index);
    let mut all: Vec<&StoreRecord> = s.stores.values().filter(named).collect();
    let works = |r: &&StoreRecord| !r.superseded && r.away != standing::UNVOUCHED;
    if ask.what == away::DRAIN && ask.disk.is_some() && all.iter().any(works) {
        all.retain(|r| !r.superseded);
    }
    all
}

/// Which disks these are, for people: a number alone may be taken for another one. Of a replacement also what becomes of each.
fn named(what: u8, all: &[&StoreRecord]) -> String {
    let mut out = String::new();
    for r in all {
        let was = if r.superseded { "was" } else { "is" };
        let gib = r.offer.capacity_bytes as f64 / f64::from(1 << 30);
        let becomes = match (what, r.away) {
            (away::REPLACE | away::GIVE_UP, standing::REPLACED) => ", which is given up",
            (away::REPLACE, standing::STAYS) if !r.superseded => ", which takes targets",
            _ => "",
        };
        // Writing into a String cannot fail.
        let _ = write!(
            out,
            "; {}:{} {was} store {} of {gib:.1} GiB{becomes}",
            r.node, r.offer.disk_index, r.offer.store
        );
    }
    out
}

/// Whether a chain lists a target that is recorded on this store.
fn has_members(s: &State, r: &StoreRecord) -> bool {
    let mut on = s.targets.values().filter(|t| t.value.store == r.offer.store);
    on.any(|t| {
        s.chains.get(&t.value.chain).is_some_and(|c| c.value.records.contains_key(&t.value.id))
    })
}

/// The stores that a replacement concerns, as they should be marked: those that had the number before are given up, and the new one takes targets. What is there and was
/// vouched for is another disk, which has that number by now: nothing is said of it.
fn replaced(s: &State, ask: &MoveAway, name: &str) -> Result<Vec<StoreRecord>> {
    let bad = |what: String| Err(Error::new(Status::InvalidArgument, what));
    let mark = |r: &StoreRecord, away| StoreRecord { away, ..r.clone() };
    let mut all = meant(s, ask);
    // One that nobody vouched for and that is not there any more has replaced nothing, and has nothing.
    all.retain(|r| !(r.superseded && r.away == standing::UNVOUCHED));
    let (old, mut new): (Vec<_>, Vec<_>) = all.into_iter().partition(|r| r.superseded);
    new.retain(|r| r.away == standing::UNVOUCHED);
    // Where the one that was there before has only moved, there is no old one.
    if old.is_empty() && new.is_empty() {
        // A dry run touches no disk, so its node has not looked at what is in the place of one that failed.
        let untaken = match ask.dry_run {
            true => {
                " that its node has taken up; in earnest the node takes up what is in the place of one that failed first. If nothing is"
            }
            false => "",
        };
        return bad(format!(
            "{name} has no new disk{untaken}: put an empty one in its place and repeat this (a disk that works cannot be replaced: drain it, or stop its storage service); to do without a new one, drain {name}"
        ));
    }
    let gives_up = |r: &&StoreRecord| r.away != standing::REPLACED && has_members(s, r);
    let given_up: Vec<_> = old.iter().copied().filter(gives_up).collect();
    if given_up.len() > 1 {
        return bad(format!(
            "several disks had the number {name}, and one of them may only be not mounted. Give up each that is lost, by its store: `glowfs admin disk replace {name} --store STORE --yes`{}",
            named(ask.what, &given_up)
        ));
    }
    let new = new.into_iter().map(|r| mark(r, standing::STAYS));
    Ok(new.chain(old.into_iter().map(|r| mark(r, standing::REPLACED))).collect())
}

/// The one store that is given up.
fn given_up(s: &State, ask: &MoveAway, name: &str) -> Result<StoreRecord> {
    let bad = |what: String| Err(Error::new(Status::InvalidArgument, what));
    let all = meant(s, ask);
    let Some(r) = all.iter().find(|r| Some(r.offer.store) == ask.store) else {
        return bad(format!("{name} had no such store{}", named(ask.what, &all)));
    };
    if !r.superseded {
        return bad(format!("store {} has the number {name} now: drain {name}", r.offer.store));
    }
    Ok(StoreRecord { away: standing::REPLACED, ..(*r).clone() })
}

/// The disks that are meant, as they should be marked.
fn marked(s: &State, ask: &MoveAway) -> Result<Vec<StoreRecord>> {
    let bad = |what: String| Err(Error::new(Status::InvalidArgument, what));
    let name = ask.disk.map_or_else(|| ask.node.to_string(), |d| format!("{}:{d}", ask.node));
    let all = meant(s, ask);
    if all.is_empty() {
        return bad(format!(
            "{name} has no disk that was ever registered; see `glowfs admin list-targets`"
        ));
    }
    let mark = |r: &StoreRecord, away| StoreRecord { away, ..r.clone() };
    Ok(match ask.what {
        away::DRAIN => all.into_iter().map(|r| mark(r, r.away.max(standing::DRAINED))).collect(),
        away::CANCEL => {
            let drained =
                all.into_iter().filter(|r| !r.superseded && r.away != standing::UNVOUCHED);
            drained.map(|r| mark(r, standing::STAYS)).collect()
        }
        away::REPLACE | away::GIVE_UP if ask.disk.is_none() => {
            return bad("name the disk that was replaced, as NODE:DISK".into());
        }
        away::REPLACE => replaced(s, ask, &name)?,
        away::GIVE_UP => vec![given_up(s, ask, &name)?],
        other => return bad(format!("MOVE_AWAY knows no word {other}; run the same release")),
    })
}

/// What is left to do for the disks that are meant, of which some were `marked`.
fn explain_move(
    s: &State,
    ask: &MoveAway,
    marked: &[StoreRecord],
    leaving: BTreeSet<TargetId>,
) -> MoveAwayReply {
    let mut ground = Ground::new(s, leaving);
    let mut left = Vec::new();
    let mut disks = meant(s, ask);
    if matches!(ask.what, away::REPLACE | away::GIVE_UP) {
        disks.retain(|r| marked.iter().any(|m| m.offer.store == r.offer.store));
    }
    let stores: BTreeSet<StoreId> = disks.iter().map(|r| r.offer.store).collect();
    for item in s.targets.values() {
        let t = &item.value;
        let goes = s.stores.get(&t.store).is_some_and(|r| r.away != 0);
        if !goes || !stores.contains(&t.store) {
            continue;
        }
        let Some(chain) = s.chains.get(&t.chain).map(|c| &c.value) else { continue };
        // A chain that no table lists holds nothing (its table was never finished), and nobody moves its members.
        let Some(wanted) = ground.wanted.get(&t.chain).copied() else { continue };
        let dismissed = !chain.records.contains_key(&t.id);
        if dismissed && s.heard.get(&t.id).is_some_and(|h| has_failed(&h.report)) {
            // Its chain goes on without it, and its disk removes nothing any more.
            continue;
        }
        let stay: Vec<_> =
            chain.info.members.iter().filter(|m| !ground.leaving.contains(&m.target)).collect();
        // Its copy, as long as nothing else is the matter with the chain.
        let newest = stay.iter().max_by_key(|m| m.target);
        let serving = stay.iter().filter(|m| m.state == PublicState::Serving).count();
        let (to, doing) = if dismissed {
            (Some((t.node, t.disk_index)), "its chain goes on without it; its node drops it".into())
        } else if stay.len() >= wanted {
            let place = newest.and_then(|m| {
                s.targets.get(&m.target).map(|t| ((t.value.node, t.value.disk_index), m.state))
            });
            let doing = match place {
                Some((_, PublicState::Serving)) if serving < wanted => {
                    let others = stay.iter().filter(|m| m.state != PublicState::Serving);
                    let others: Vec<String> =
                        others.map(|m| format!("target {} is {}", m.target, m.state)).collect();
                    format!("copied; waits until {wanted} serve without it: {}", others.join(", "))
                }
                Some((_, PublicState::Serving)) => "copied; it leaves its chain".into(),
                Some((_, state)) => format!("its copy is {state}"),
                None => String::new(),
            };
            (place.map(|p| p.0), doing)
        } else {
            let place = ground.take_place(t.chain);
            let doing = if place.is_some() { "waits for its turn" } else { "no place for it" };
            (place.map(|p| (p.node, p.disk_index)), doing.to_owned())
        };
        let (to_node, to_disk) = to.unwrap_or_default();
        let bytes = s.heard.get(&t.id).map_or(t.used_bytes, |h| h.report.used_bytes);
        left.push(Leaver { target: t.id, chain: t.chain, to_node, to_disk, doing, bytes });
    }
    let mut explanation = match (ask.what, left.len()) {
        (away::CANCEL, _) => "the disks stay; what was copied already is kept where it is".into(),
        (_, 0) => "nothing is left on it; it can be taken away".into(),
        (_, n) => format!("{n} targets have to go"),
    };
    if ask.disk.is_some() {
        explanation += &named(ask.what, &disks);
    }
    MoveAwayReply { left, explanation, in_force: None }
}
