//! Members that join and leave a chain: how data moves to another disk.
//!
//! A new member joins at the end and is brought up to date like one that was away. One that leaves goes in two steps. First it
//! is *retired*: offline under a new version, which becomes active only when it has adopted it or is away, so that it
//! answers no read while writes pass it by. Then, when that version is active, it is taken off the list: from here on the
//! others hold every acknowledged write without it. The order of the others never changes. Between the two it may be called back: then it is
//! away like any other, and is brought up to date.

use crate::{Chain, Change, Evidence, MemberRecord};
use glowfs_types::routing::{ChainMember, PublicState};
use glowfs_types::{Error, NodeId, Result, Status, TargetId};

/// The greatest number of members of a chain, those included that come and go.
pub const MEMBERS_MAX: usize = 32;

impl Chain {
    /// The state of a member.
    pub fn state(&self, target: TargetId) -> Option<PublicState> {
        self.info.members.iter().find(|m| m.target == target).map(|m| m.state)
    }
    /// Whether a member was retired.
    pub fn retired(&self, target: TargetId) -> bool {
        self.records.get(&target).is_some_and(|r| r.retired)
    }
    /// Whether members may come and go now: it serves under an active version.
    pub fn settled(&self) -> bool {
        self.info.activated == self.info.version && self.info.head().is_some()
    }
    /// With one more member, which holds nothing yet.
    pub fn join(&self, target: TargetId, node: NodeId) -> Result<Chain> {
        self.check_settled()?;
        if self.records.contains_key(&target) {
            return Err(self.refuse(format!("has target {target} already")));
        }
        if self.info.members.len() >= MEMBERS_MAX {
            return Err(self.refuse(format!("has {MEMBERS_MAX} members already")));
        }
        let mut next = self.clone();
        next.begin_version(self.info.version);
        next.info.members.push(ChainMember { target, node, state: PublicState::Offline });
        next.info.preferred.push(target);
        next.records.insert(target, MemberRecord::default());
        next.note_serving();
        Ok(next)
    }
    /// The first step of leaving. Another member must be serving.
    pub fn retire(&self, target: TargetId) -> Result<(Chain, Change)> {
        self.check_settled()?;
        let from = self.state(target).ok_or_else(|| self.no_member(target))?;
        if !self.info.serving().any(|m| m.target != target) {
            return Err(self.refuse(format!("is served by target {target} alone")));
        }
        let mut next = self.clone();
        next.begin_version(self.info.version);
        let at = next.info.members.iter().position(|m| m.target == target);
        if let Some(mut m) = at.map(|at| next.info.members.remove(at)) {
            m.state = PublicState::Offline;
            next.info.members.push(m);
        }
        next.records.entry(target).or_default().retired = true;
        next.note_serving();
        let to = PublicState::Offline;
        Ok((next, Change { target, from, to, why: Evidence::Retired }))
    }
    /// The second step: without a retired member.
    pub fn dismiss(&self, target: TargetId) -> Result<Chain> {
        self.check_settled()?;
        self.state(target).ok_or_else(|| self.no_member(target))?;
        if !self.retired(target) {
            return Err(self.refuse(format!("has not retired target {target}")));
        }
        let mut next = self.clone();
        next.begin_version(self.info.version);
        next.info.members.retain(|m| m.target != target);
        next.info.preferred.retain(|t| *t != target);
        next.records.remove(&target);
        next.note_serving();
        Ok(next)
    }
    /// Back from the first step: it is offline only as long as nothing is heard of it. Nobody but mgmtd knows of this, so it makes no version.
    pub fn reinstate(&self, target: TargetId) -> Result<Chain> {
        self.check_settled()?;
        if !self.retired(target) {
            return Err(self.refuse(format!("has not retired target {target}")));
        }
        let mut next = self.clone();
        next.records.entry(target).or_default().retired = false;
        Ok(next)
    }
    fn check_settled(&self) -> Result<()> {
        if self.settled() {
            return Ok(());
        }
        Err(self
            .refuse("is changing, or nobody serves it; its members stay until that is over".into()))
    }
    fn no_member(&self, target: TargetId) -> Error {
        self.refuse(format!("has no target {target}"))
    }
    fn refuse(&self, what: String) -> Error {
        Error::new(Status::Busy, format!("chain {} {what}", self.info.id))
    }
}
