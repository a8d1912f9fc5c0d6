//! A model of mgmtd: the chain state table, activation, incarnations; one decision a step.

use super::{Choice, World};
use glowfs_types::routing::{ChainInfo, ChainMember, LocalState, PublicState};
use glowfs_types::{ChainId, ChainVersion, NodeId, Redundancy, TargetId};
use std::collections::BTreeSet;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Chain {
    pub version: u64,
    pub activated: u64,
    pub activated_serving: BTreeSet<u8>,
    pub members: Vec<(u8, PublicState)>,
    /// The life of each node that the states are about.
    pub lives: Vec<u8>,
}

impl Chain {
    pub fn new(replicas: u8) -> Self {
        Self {
            version: 1,
            activated: 0,
            activated_serving: BTreeSet::new(),
            members: (0..replicas).map(|i| (i, PublicState::Serving)).collect(),
            lives: vec![0; replicas as usize],
        }
    }
    pub fn state(&self, node: u8) -> PublicState {
        self.members.iter().find(|m| m.0 == node).expect("a member").1
    }
    pub fn head(&self) -> Option<u8> {
        self.members.iter().find(|m| m.1 == PublicState::Serving).map(|m| m.0)
    }
    fn serving(&self) -> impl Iterator<Item = u8> + '_ {
        self.members.iter().filter(|m| m.1 == PublicState::Serving).map(|m| m.0)
    }
    fn writers(&self) -> impl Iterator<Item = u8> + '_ {
        self.members
            .iter()
            .filter(|m| matches!(m.1, PublicState::Serving | PublicState::Syncing))
            .map(|m| m.0)
    }
    fn set(&mut self, node: u8, state: PublicState) {
        self.members.retain(|m| m.0 != node);
        self.members.push((node, state));
        // Serving ones first, then the syncing one; order is kept otherwise.
        self.members.sort_by_key(|m| match m.1 {
            PublicState::Serving => 0,
            PublicState::Syncing => 1,
            PublicState::LastSrv => 2,
            _ => 3,
        });
        self.version += 1;
    }
    pub fn info(&self) -> ChainInfo {
        ChainInfo {
            id: ChainId(1),
            version: ChainVersion(self.version),
            activated: ChainVersion(self.activated),
            activated_serving: self
                .activated_serving
                .iter()
                .map(|&n| TargetId(u64::from(n) + 1))
                .collect(),
            members: self
                .members
                .iter()
                .map(|&(n, state)| ChainMember {
                    target: TargetId(u64::from(n) + 1),
                    node: NodeId(u64::from(n) + 1),
                    state,
                })
                .collect(),
            redundancy: Redundancy::Replicated,
            preferred: Vec::new(),
            lost: ChainVersion(0),
        }
    }
}

impl World {
    /// Whether mgmtd hears from that life of a node.
    pub fn heard(&self, i: u8) -> bool {
        let n = &self.nodes[i as usize];
        n.replica.is_some() && !n.fenced && self.chain.lives[i as usize] == n.life
    }

    pub fn mgmtd_choices(&self, out: &mut Vec<Choice>) {
        let chain = &self.chain;
        let any_serving = chain.serving().next().is_some();
        let any_syncing = chain.members.iter().any(|m| m.1 == PublicState::Syncing);
        for (i, n) in self.nodes.iter().enumerate() {
            let i = i as u8;
            let state = chain.state(i);
            let holds = matches!(state, PublicState::Serving | PublicState::Syncing);
            let other_life = n.replica.is_some() && n.life != chain.lives[i as usize];
            let gone = n.replica.is_none() || n.fenced || other_life;
            if if holds { gone } else { other_life && !n.fenced } {
                out.push(Choice::Declare(i));
            }
            if !self.heard(i) {
                continue;
            }
            match state {
                PublicState::LastSrv => out.push(Choice::TakeOver(i)),
                PublicState::Offline | PublicState::Waiting if any_serving && !any_syncing => {
                    out.push(Choice::Rejoin(i));
                }
                PublicState::Offline | PublicState::Waiting | PublicState::Syncing
                    if !any_serving && chain.activated_serving.contains(&i) =>
                {
                    out.push(Choice::TakeOver(i));
                }
                PublicState::Syncing => {
                    let r = n.replica.as_ref().expect("it is heard");
                    if r.local() == LocalState::UpToDate
                        && r.adopted_version().0 == chain.version
                        && any_serving
                    {
                        out.push(Choice::Promote(i));
                    }
                }
                _ => {}
            }
        }
        if chain.activated < chain.version && any_serving && self.all_adopted() {
            out.push(Choice::Activate);
        }
    }

    fn all_adopted(&self) -> bool {
        self.chain.writers().all(|i| {
            let n = &self.nodes[i as usize];
            self.heard(i)
                && n.replica.as_ref().is_some_and(|r| r.adopted_version().0 == self.chain.version)
        })
    }

    pub fn mgmtd_apply(&mut self, choice: &Choice) {
        let before = (self.chain.version, self.chain.activated);
        self.decide(choice);
        let after = (self.chain.version, self.chain.activated);
        assert!(
            after.0 >= before.0 && after.1 >= before.1,
            "MonotoneIncreasingVersionNumber: the chain goes from {before:?} to {after:?}"
        );
    }

    fn decide(&mut self, choice: &Choice) {
        match *choice {
            Choice::Declare(i) => {
                let n = &self.nodes[i as usize];
                if n.replica.is_some() {
                    self.chain.lives[i as usize] = n.life;
                }
                match self.chain.state(i) {
                    PublicState::Serving if self.chain.serving().count() == 1 => {
                        self.chain.set(i, PublicState::LastSrv);
                    }
                    PublicState::Serving | PublicState::Syncing => {
                        self.chain.set(i, PublicState::Offline);
                    }
                    _ => {}
                }
            }
            Choice::Rejoin(i) => self.chain.set(i, PublicState::Syncing),
            Choice::Promote(i) => self.chain.set(i, PublicState::Serving),
            Choice::TakeOver(i) => {
                // Who begins again may have forgotten its tombstones, and with them the versions of what is not there.
                for (_, version) in self.observed.values_mut().filter(|(seen, _)| seen.is_empty()) {
                    *version = 0;
                }
                for m in &mut self.chain.members {
                    if matches!(m.1, PublicState::LastSrv | PublicState::Syncing) {
                        m.1 = PublicState::Offline;
                    }
                }
                self.chain.set(i, PublicState::Serving);
            }
            Choice::Activate => {
                self.chain.activated = self.chain.version;
                self.chain.activated_serving = self.chain.serving().collect();
            }
            _ => unreachable!("not a decision of mgmtd"),
        }
    }
}
