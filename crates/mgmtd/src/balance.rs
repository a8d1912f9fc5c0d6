//! Spreading what is stored over disks that came later: with `balance` on (off by default), members of chains move from the disks that carry most for their
//! size to those that carry least, a few at a time, until no move makes it more even.
//!
//! A move is like one of a drain: the newcomer is brought up to date first, and then the other one is retired; redundancy never falls. Nothing is remembered
//! between rounds and primaries: which member of a chain that has one too many is to go follows from what all disks carry ([`to_go`]), and a move is begun
//! only if by that rule it is not the newcomer. It must never begin while anything else is moving or missing, or make a chain share more racks than before.

use crate::ground::Ground;
use crate::state::State;
use glowfs_cluster::Chain;
use glowfs_placement::Place;
use glowfs_types::routing::ChainInfo;
use glowfs_types::{ChainId, StoreId, TargetId};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Moves that are under way at a time. More would not be faster: they share the disks that fill.
pub(crate) const MOVES_MAX: usize = 4;
/// Chains that are looked at for one move, at most: this is the thread that renews the primary's lease.
const LOOKS_MAX: usize = 256;

/// What each usable disk carries, by its store.
struct Loads<'a>(BTreeMap<StoreId, (u32, &'a Place)>);

impl<'a> Loads<'a> {
    fn of(s: &State, places: &'a [Place]) -> Self {
        let mut out: BTreeMap<_, _> = places.iter().map(|p| (p.store, (0, p))).collect();
        for t in s.targets.values() {
            if let Some((count, _)) = out.get_mut(&t.value.store) {
                *count += 1;
            }
        }
        Self(out)
    }
    /// Compares what two stores carry for their size, each with so many targets more. What is not usable carries most.
    fn compare(&self, (a, more_a): (StoreId, i64), (b, more_b): (StoreId, i64)) -> Ordering {
        let (a, b) = match (self.0.get(&a), self.0.get(&b)) {
            (Some(a), Some(b)) => (a, b),
            (a, b) => return a.is_none().cmp(&b.is_none()),
        };
        let load = |n: u32, more: i64| i128::from(n) + i128::from(more);
        let size = |p: &Place| i128::from(p.capacity_bytes.max(1));
        (load(a.0, more_a) * size(b.1)).cmp(&(load(b.0, more_b) * size(a.1)))
    }
    /// Whether a target that moves makes it more even: who gets it must not carry more than who loses it afterwards.
    fn evens(&self, from: StoreId, to: StoreId) -> bool {
        self.compare((to, 1), (from, -1)) != Ordering::Greater
    }
    /// Whether there is any disk to which a target of `from` could move so. If not, which is the rule, no chain need be looked at.
    fn may_even(&self, places: &[Place], from: StoreId) -> bool {
        places.iter().any(|p| self.evens(from, p.store))
    }
}

/// A member as it matters here: its target, store and rack.
type Member = (TargetId, StoreId, String);

fn members(s: &State, info: &ChainInfo) -> Vec<Member> {
    let of = |t: TargetId| s.targets.get(&t).map(|i| i.value.store);
    let all = info
        .members
        .iter()
        .filter_map(|m| Some((m.target, of(m.target)?, crate::tables::rack_of(s, m.node))));
    all.collect()
}

/// How many pairs of members share a rack.
fn shared_racks<'m>(members: impl Iterator<Item = &'m Member> + Clone) -> usize {
    let racks: Vec<&String> = members.map(|m| &m.2).filter(|r| !r.is_empty()).collect();
    racks.iter().enumerate().map(|(i, a)| racks[..i].iter().filter(|b| b == &a).count()).sum()
}

/// Which one of too many members is to go: one without which the fewest share a rack, of those the one on the disk that carries most for its size, of those
/// the oldest.
fn to_go(loads: &Loads<'_>, members: &[Member]) -> Option<TargetId> {
    let without = |gone: &Member| shared_racks(members.iter().filter(|m| m.0 != gone.0));
    let best = members.iter().min_by(|a, b| {
        let heavier = || loads.compare((b.1, 0), (a.1, 0));
        without(a).cmp(&without(b)).then_with(heavier).then(a.0.cmp(&b.0))
    });
    best.map(|m| m.0)
}

/// Has the members go that moves of before are to take away.
pub(crate) fn go_on(s: &State, ground: &mut Ground<'_>) {
    let loads = Loads::of(s, &ground.places);
    let mut gone = Vec::new();
    for (id, item) in &s.chains {
        let info = &item.value.info;
        let leaves = info.members.iter().any(|m| ground.leaving.contains(&m.target));
        // With fewer that serve something is amiss, and what comes first is another matter.
        let too_many = ground
            .wanted
            .get(id)
            .is_some_and(|w| info.members.len() > *w && info.serving().count() >= *w);
        if too_many && !leaves {
            gone.extend(to_go(&loads, &members(s, info)));
        }
    }
    ground.leaving.extend(gone);
}

/// Whether every chain is as it should be, so that there is leisure to move something.
pub(crate) fn at_leisure(s: &State, ground: &Ground<'_>) -> bool {
    let whole = |(id, chain): (&ChainId, &Chain)| {
        // One that no table lists (older releases could leave such) is nobody's, however it is.
        let Some(&wanted) = ground.wanted.get(id) else { return true };
        chain.settled()
            && chain.info.serving().count() == wanted
            && chain.info.members.len() == wanted
    };
    ground.leaving.is_empty() && s.chains.iter().all(|(id, item)| whole((id, &item.value)))
}

/// The next move that makes it more even: a chain, and the disk that gets a new member of it. `begun` are chains that have a move already.
pub(crate) fn next(
    s: &State,
    ground: &mut Ground<'_>,
    begun: &[ChainId],
) -> Option<(ChainId, Place)> {
    let places = ground.places.clone();
    let mut loads = Loads::of(s, &places);
    for (place, more) in &ground.moved {
        if let Some((count, _)) = loads.0.get_mut(place) {
            *count = count.saturating_add_signed(*more);
        }
    }
    let heaviest = places.iter().max_by(|a, b| loads.compare((a.store, 0), (b.store, 0)))?;
    if !loads.may_even(&places, heaviest.store) {
        return None;
    }
    let of = s.targets.values().map(|t| &t.value).filter(|t| t.store == heaviest.store);
    for target in of.filter(|t| !begun.contains(&t.chain)).take(LOOKS_MAX) {
        let Some(chain) = s.chains.get(&target.chain).map(|c| &c.value) else { continue };
        // One that has left its chain, or whose chain is of no table: nobody would say that it has a member too many.
        if !chain.records.contains_key(&target.id) || !ground.wanted.contains_key(&target.chain) {
            continue;
        }
        ground.leaving.insert(target.id);
        let found = ground.take_place(target.chain);
        ground.leaving.remove(&target.id);
        let Some(place) = found else { continue };
        if loads.evens(heaviest.store, place.store)
            && goes(s, &mut loads, &chain.info, target.id, &place)
        {
            ground.moved.push((heaviest.store, -1));
            ground.moved.push((place.store, 1));
            return Some((target.chain, place));
        }
        ground.give_back(target.chain, &place);
    }
    None
}

/// Whether by [`to_go`] it is `target` that goes once the newcomer is there, and no rack is shared by more than before.
fn goes(s: &State, loads: &mut Loads<'_>, info: &ChainInfo, target: TargetId, to: &Place) -> bool {
    let mut all = members(s, info);
    let before = shared_racks(all.iter());
    // The newest of all ids, as it will be.
    all.push((s.next_target(), to.store, to.rack.clone()));
    let after = shared_racks(all.iter().filter(|m| m.0 != target));
    let add = |loads: &mut Loads<'_>, more: i32| {
        if let Some((count, _)) = loads.0.get_mut(&to.store) {
            *count = count.saturating_add_signed(more);
        }
    };
    add(loads, 1);
    let first = to_go(loads, &all);
    add(loads, -1);
    after <= before && first == Some(target)
}
