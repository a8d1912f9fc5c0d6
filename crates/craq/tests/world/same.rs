//! Two worlds that behave alike are made equal: what can have no effect any more is dropped, and what only has to differ from others of its kind is numbered anew.
//!
//! Each of these changes is one that no later step can tell:
//!
//! - an answer to a former life, or to a message that the core does not wait for any more (`renumber.rs`), is thrown away when it arrives;
//! - a page of a list that nobody waits for likewise;
//! - a forwarded update of a sender that does not wait for the answer, under a chain version that the receiver has left behind, is refused, and the refusal thrown away;
//! - the pauses that nobody waits for change nothing when they end;
//! - chain versions are only ever compared, and a new one is greater than all: they are counted anew, in their order;
//! - requests, messages, transfers and lives are only ever compared for equality, with others of the same node.

use super::node::From;
use super::store::Op;
use super::{Back, Msg, World};
use glowfs_craq::{ForwardId, Renumbered};
use glowfs_types::ChainVersion;
use std::collections::{BTreeMap, BTreeSet};

/// The life of a sender that does not wait for the answer.
const NOBODY: u8 = u8::MAX;
/// The life of a node in the notes of others: it is that one, or it is not.
const THIS_LIFE: u8 = 1;

/// What a node's numbers become.
struct Names {
    life: u8,
    core: Renumbered,
    tags: BTreeMap<u16, u16>,
}

impl Names {
    /// What an answer goes back to; none if nobody waits for it.
    fn back(&self, life: u8, back: Back) -> Option<(u8, Back)> {
        let back = match back {
            _ if life != self.life => return None,
            Back::Forward(id) => Back::Forward(*self.core.forwards.get(&id)?),
            Back::Sync(tag) => Back::Sync(*self.tags.get(&tag)?),
            Back::Done => Back::Done,
        };
        Some((THIS_LIFE, back))
    }
    fn back_or_nobody(&self, life: u8, back: Back) -> (u8, Back) {
        self.back(life, back).unwrap_or((NOBODY, Back::Forward(ForwardId(0))))
    }
}

impl World {
    /// Shows every chain version that is known anywhere but in the cores.
    fn chain_versions(&mut self, mut f: impl FnMut(&mut u64)) {
        f(&mut self.chain.version);
        f(&mut self.chain.activated);
        for n in &mut self.nodes {
            f(&mut n.told.0);
            f(&mut n.told.1);
            f(&mut n.store.adopted);
            n.sync.iter_mut().for_each(|s| f(&mut s.0));
            for op in &mut n.ops {
                if let Op::Adopt(version, _) = op {
                    f(version);
                }
            }
        }
        for (mut msg, count) in std::mem::take(&mut self.msgs) {
            match &mut msg {
                Msg::Forward { f: forwarded, .. } => f(&mut forwarded.chain_version.0),
                Msg::SyncPage { chain_version, .. }
                | Msg::SyncList { chain_version, .. }
                | Msg::SyncDone { chain_version, .. } => f(chain_version),
                Msg::Ask { chain_version, .. } | Msg::Word { chain_version, .. } => {
                    f(chain_version)
                }
                Msg::Answer { .. } | Msg::Request { .. } | Msg::Response { .. } => {}
            }
            *self.msgs.entry(msg).or_default() += count;
        }
    }

    /// What each chain version becomes.
    fn versions(&mut self) -> BTreeMap<u64, u64> {
        let mut all = BTreeSet::from([0]);
        self.chain_versions(|v| {
            all.insert(*v);
        });
        for r in self.nodes.iter().filter_map(|n| n.replica.as_ref()) {
            all.insert(r.adopted_version().0);
            all.extend(r.adopting().map(|v| v.version.0));
        }
        all.into_iter().zip(0..).collect()
    }

    fn names(&self, versions: &BTreeMap<u64, u64>) -> Vec<Names> {
        let version = |v: ChainVersion| ChainVersion(versions[&v.0]);
        let names = |n: &super::Node| {
            let r = n.replica.as_ref().expect("who crashed is back");
            let tags = n.sync.iter().filter_map(|s| s.1.as_ref()).flatten();
            let tags = tags.enumerate().map(|(k, tag)| (*tag, k as u16)).collect();
            Names { life: n.life, core: r.renumbered(true, &version), tags }
        };
        self.nodes.iter().map(names).collect()
    }

    /// See the module. For closed worlds, in which nothing is ever refused for want of room.
    pub fn put_in_order(&mut self) {
        let versions = self.versions();
        let names = self.names(&versions);
        self.chain_versions(|v| *v = versions[v]);
        let of = |i: u8| &names[i as usize];
        let msgs = std::mem::take(&mut self.msgs);
        for (msg, count) in msgs {
            let msg = match msg {
                Msg::Answer { to, life, back, result } => {
                    let Some((life, back)) = of(to).back(life, back) else { continue };
                    Msg::Answer { to, life, back, result }
                }
                Msg::Forward { from, life, to, back, f, pay } => {
                    let (life, back) = of(from).back_or_nobody(life, back);
                    let left = of(to).core.replica.adopted_version() > f.chain_version;
                    if life == NOBODY && left {
                        continue;
                    }
                    Msg::Forward { from, life, to, back, f, pay }
                }
                Msg::SyncPage { to, life, chain_version, page } => {
                    if life != of(to).life
                        || self.nodes[to as usize].sync != Some((chain_version, None))
                    {
                        continue;
                    }
                    Msg::SyncPage { to, life: THIS_LIFE, chain_version, page }
                }
                Msg::SyncList { from, life, to, chain_version } => {
                    if life != of(from).life
                        || self.nodes[from as usize].sync != Some((chain_version, None))
                    {
                        continue;
                    }
                    Msg::SyncList { from, life: THIS_LIFE, to, chain_version }
                }
                Msg::SyncDone { from, life, to, chain_version, channels } => {
                    let life = if life == of(from).life { THIS_LIFE } else { NOBODY };
                    if life == NOBODY && of(to).core.replica.adopted_version().0 > chain_version {
                        continue;
                    }
                    Msg::SyncDone { from, life, to, chain_version, channels }
                }
                Msg::Request { .. } | Msg::Response { .. } | Msg::Ask { .. } | Msg::Word { .. } => {
                    unreachable!("clients, and successors that ask, are answered at once")
                }
            };
            *self.msgs.entry(msg).or_default() += count;
        }
        for n in &mut self.nodes {
            for (from, ..) in n.tickets.values_mut() {
                if let From::Node { node, life, back } = from {
                    (*life, *back) = of(*node).back_or_nobody(*life, *back);
                }
            }
        }
        for ((n, names), life) in self.nodes.iter_mut().zip(names).zip(&mut self.chain.lives) {
            let tickets = std::mem::take(&mut n.tickets).into_iter();
            n.tickets = tickets.map(|(t, from)| (names.core.tickets[&t], from)).collect();
            n.next_ticket = n.tickets.len() as u64;
            n.timers.retain_mut(|t| names.core.timers.get(t).map(|name| *t = *name).is_some());
            if let Some((_, Some(left))) = &mut n.sync {
                *left = left.iter().map(|tag| names.tags[tag]).collect();
            }
            n.next_tag = names.tags.len() as u16;
            *life = if *life == n.life { THIS_LIFE } else { THIS_LIFE - 1 };
            n.life = THIS_LIFE;
            n.replica = Some(names.core.replica);
        }
    }
}
