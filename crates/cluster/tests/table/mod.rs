//! Every row of the chain state table, and the rules beyond it. Here: chains and views to begin with.
#![allow(missing_docs)]

mod answering;
mod give_way;
mod lives;
mod losses;
mod put_back;
mod restored;
mod rows;
mod takeover;

use glowfs_cluster::*;
use glowfs_types::routing::LocalState::{Offline as Off, Online};
use glowfs_types::routing::PublicState::{self, LastSrv, Serving};
use glowfs_types::routing::{ChainMember, LocalState};
use glowfs_types::*;

/// A chain at version 10, active, with members 1.. in these states; serving ones hold proof.
fn chain(states: &[PublicState]) -> Chain {
    let ids: Vec<_> = (1..=states.len() as u64).map(|i| (TargetId(i), NodeId(i))).collect();
    let mut c = Chain::new(ChainId(1), &ids);
    c.info.version = ChainVersion(10);
    c.info.activated = ChainVersion(10);
    c.info.members = ids
        .iter()
        .zip(states)
        .map(|(&(target, node), &state)| ChainMember { target, node, state })
        .collect();
    for m in &c.info.members {
        let proof = match m.state {
            Serving | LastSrv => Proof::Holds,
            _ => Proof::None,
        };
        let record = MemberRecord {
            incarnation: Incarnation(1),
            proof,
            served: ChainVersion(9),
            ..MemberRecord::default()
        };
        c.records.insert(m.target, record);
        if m.state == Serving {
            c.info.activated_serving.push(m.target);
        }
    }
    c
}

fn seen(local: LocalState) -> Observation {
    Observation {
        local,
        incarnation: Incarnation(1),
        nonce: 0,
        former: 0,
        informed: false,
        clean: false,
        machine_since: Incarnation(0),
        adopted: ChainVersion(10),
        served: ChainVersion(10),
        empty: false,
        may_sync: true,
        known: ChainVersion(10),
        unreachable: false,
        fenced: false,
        replaced: false,
    }
}

fn view(locals: &[LocalState]) -> View {
    (1..).map(TargetId).zip(locals.iter().map(|l| seen(*l))).collect()
}

fn states(c: &Chain) -> Vec<(u64, PublicState)> {
    c.info.members.iter().map(|m| (m.target.0, m.state)).collect()
}

/// What a member that ended cleanly says in its next life.
fn came_back(adopted: ChainVersion, served: ChainVersion) -> Observation {
    let (incarnation, clean) = (Incarnation(2), true);
    Observation { adopted, served, known: adopted, incarnation, clean, ..seen(Online) }
}

/// What follows of itself: who is there adopts each version that is newer than all it knows, and reports it.
fn goes_on(c: &mut Chain, v: &mut View) {
    for _ in 0..4 {
        *c = c.settle(v).map_or(c.clone(), |(next, _)| next);
        for o in v.values_mut().filter(|o| o.local != Off && o.adopted < c.info.version) {
            (o.adopted, o.known) = (c.info.version, c.info.version);
        }
    }
}
