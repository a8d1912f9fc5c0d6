//! Two processes with one node id: that of a configuration that was copied, and the node that it was copied from.
//!
//! Guarantees: while a node lives, whoever comes with its id from elsewhere, or does something else, changes nothing of it: neither its lease nor its stores. On
//! one host, where a storage that was just started again is let in at once, it is known by its stores: a copy cannot hold one of them, for the node has them
//! open. Of two mgmtd with one id, one stays primary ([`glowfs_cluster::Election`]), and the other says why it is none. What comes in the place of one that is dead is taken for the node that moved, or has lost all its disks.

use crate::core::Inner;
use crate::state::State;
use glowfs_types::routing::{LocalState, Role};
use glowfs_types::wire::mgmtd::{Heartbeat, RegisterStores, StoreOffer, TargetReport};
use glowfs_types::{Error, HostId, Incarnation, NodeId, Result, Status, StoreId};

/// Who comes.
struct Comer<'a> {
    node: NodeId,
    role: Role,
    host: HostId,
    /// "" if it does not say.
    hostname: &'a str,
    /// Its life; 0 if it does not say.
    life: Incarnation,
}

/// Refuses the heartbeat of a second one. `own` is the primary's id: it sends itself no heartbeats.
pub(crate) fn refuse_heartbeat(s: &mut State, own: NodeId, heartbeat: &Heartbeat) -> Result<()> {
    let new = &heartbeat.node;
    let (node, life) = (new.id, heartbeat.incarnation);
    let comer = Comer { node, role: new.role, host: new.host, hostname: &new.hostname, life };
    refuse(s, own, comer, |s| {
        let none = || !s.targets.values().any(|t| t.value.node == node);
        s.registered.get(&node) == Some(&life)
            || heartbeat.targets.iter().any(|r| holds(s, node, r))
            || none()
    })
}

/// Refuses the stores of a second one, which comes with them before its first heartbeat. `peer` is what the other end of the connection said.
pub(crate) fn refuse_stores(
    s: &mut State,
    own: NodeId,
    (role, host): (Option<Role>, HostId),
    register: &RegisterStores,
) -> Result<()> {
    let (node, life) = (register.node, register.incarnation);
    let role = role.unwrap_or(Role::Storage);
    let comer = Comer { node, role, host, hostname: &register.hostname, life };
    refuse(s, own, comer, |s| {
        let none = || !s.stores.values().any(|r| r.node == node && !r.absent);
        register.stores.iter().any(|o| has(s, node, o)) || none()
    })?;
    s.registered.insert(node, life);
    Ok(())
}

/// Refuses who is not the node that has the id. `is_it` says whether one that comes with a new life to the same host is the node all the same.
///
/// A primary that has just taken over goes by the record, or whoever it hears first would have the id.
fn refuse(
    s: &mut State,
    own: NodeId,
    new: Comer<'_>,
    is_it: impl FnOnce(&State) -> bool,
) -> Result<()> {
    let node = new.node;
    let lives = node == own || s.leases.is_heard(node);
    let known = s.said.get(&node).or_else(|| s.nodes.get(&node).map(|i| &i.value));
    let Some(old) = known.filter(|_| lives) else { return Ok(()) };
    // A host that was started anew has another id, and its name. Of one that this primary has heard it would know.
    let again = !s.said.contains_key(&node) && old.hostname == new.hostname;
    let same_host =
        old.host == new.host || [old.host, new.host].contains(&HostId::default()) || again;
    if old.role == new.role && same_host {
        // Older releases do not say which life registers stores: it may be the living one, with another disk.
        let old_life = [Incarnation(0), s.leases.life(node)].contains(&new.life);
        if new.role != Role::Storage || old_life || is_it(s) {
            return Ok(());
        }
    }
    let elsewhere = if same_host { "with other disks, on" } else { "on" };
    let e = Error::new(
        Status::InvalidArgument,
        format!(
            "node id {node} is that of the {} on {}, which lives: give the {} {elsewhere} {} a node_id of its own",
            old.role,
            old.hostname,
            new.role,
            if new.hostname.is_empty() { "another host" } else { new.hostname },
        ),
    );
    let place = (new.host, new.role);
    if s.second.insert(node, place) != Some(place) {
        tracing::warn!("{}", e.message);
    }
    Err(e)
}

/// Whether a report is of a target whose store the sender has open. (Everybody knows of all targets, and tells of its own that it does not find.)
fn holds(s: &State, node: NodeId, r: &TargetReport) -> bool {
    let of_it = s.targets.get(&r.target).map(|t| &t.value);
    r.local != LocalState::Offline && of_it.is_some_and(|t| t.node == node && t.store == r.store)
}

/// Whether a store that is offered is one of the node: it is in use there, or holds targets. What a copy registered while the node was away does neither.
fn has(s: &State, node: NodeId, offer: &StoreOffer) -> bool {
    let id: StoreId = offer.store;
    s.stores.get(&id).is_some_and(|r| r.node == node && !r.absent)
        || s.targets.values().any(|t| t.value.node == node && t.value.store == id)
}

impl Inner {
    /// What is wrong, if another mgmtd has this one's node id and is primary.
    pub(crate) fn twin(&self) -> Option<String> {
        let election = self.election.borrow();
        let (at, node) = (election.twin()?.addresses.join(", "), self.config.node());
        Some(format!(
            "another mgmtd with node_id {node} is primary, at {at}: give one of them a node_id of its own"
        ))
    }
    /// Says so in the log, once.
    pub(crate) fn tell_of_twin(&self) {
        let twin = self.twin();
        if !self.twin_told.replace(twin.is_some())
            && let Some(what) = twin
        {
            tracing::error!("{what}");
        }
    }
}
