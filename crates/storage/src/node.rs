//! The node: its disks and targets, and what they share.

use crate::StorageConfig;
use crate::admission::Admission;
use crate::behind::Behind;
use crate::disk::Disk;
use crate::dismiss;
use crate::fence::Fences;
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::repair::Repairs;
use crate::sending::Sending;
use crate::sync_progress::Resyncs;
use crate::sync_turns::SyncTurns;
use crate::target::Target;
use crate::tuning::Tuning;
use crate::verified::Verified;
use glowfs_agent::Agent;
use glowfs_chunkstore::Store;
use glowfs_craq::{Event, View};
use glowfs_net::Conn;
use glowfs_rt::sync::Semaphore;
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::limits::UPDATE_LIFE_MAX_MS;
use glowfs_types::routing::{RoutingInfo, TargetInfo};
use glowfs_types::{ChainId, ChainVersion, Error, NodeId, Result, Status, StoreId, TargetId};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Chunks that a node repairs at once.
const REPAIRS_AT_ONCE: usize = 2;

/// The pause before a target that could not be made is tried again.
const CREATE_RETRY: Duration = Duration::from_secs(5);

/// The pause before the next step of an age.
const FORGET_PAUSE: Duration = Duration::from_millis(5);

/// This part of the reserve stays free of chunks inside the files of chunks.
const SPARE_PART: u64 = 32;

/// Everything of one storage process.
pub(crate) struct Node {
    pub rt: Rt,
    pub config: StorageConfig,
    pub disks: Vec<Disk>,
    pub targets: RefCell<BTreeMap<TargetId, Rc<Target>>>,
    creating: RefCell<BTreeSet<TargetId>>,
    pub agent: OnceCell<Agent>,
    pub lanes: OnceCell<Lanes>,
    pub admission: Rc<Admission>,
    /// The newest truncate epochs.
    pub fences: Fences,
    /// The capabilities of late.
    pub verified: Verified,
    pub metrics: Metrics,
    pub sync_turns: SyncTurns,
    /// What clients feel of resyncs and scrubs.
    pub behind: RefCell<Behind>,
    /// When the next byte of a resync may be sent.
    pub sync_pace: Cell<Instant>,
    /// Resyncs that this node sends or is about to send.
    pub resyncs: Resyncs,
    /// The settings in force.
    pub tuning: Cell<Tuning>,
    /// Repairs that wait, run or failed just now.
    pub repairs: RefCell<Repairs>,
    pub repair_slots: Semaphore,
    /// Nodes of which it is being tried whether they are reached.
    pub trying: RefCell<BTreeSet<NodeId>>,
    /// What is on its way to other nodes.
    pub sending: Rc<Sending>,
    /// How often a scrub was asked for.
    pub scrub_asked: Cell<u64>,
    pub started: Instant,
    pub stopping: Cell<bool>,
    /// It asks no other node any more what may be shown: its stores are about to be closed.
    pub silent: Cell<bool>,
}

impl Node {
    pub fn new(rt: &Rt, config: StorageConfig, disks: Vec<Disk>) -> Result<Rc<Self>> {
        let node = Rc::new(Self {
            rt: rt.clone(),
            admission: Admission::new(
                config.inflight_bytes,
                config.inflight_ops.min(crate::config::INFLIGHT_OPS_MAX),
                disks.len(),
            ),
            fences: Fences::default(),
            verified: Verified::default(),
            behind: RefCell::default(),
            sync_turns: SyncTurns::default(),
            tuning: Cell::new(Tuning::new(&config, &Default::default())),
            resyncs: Resyncs::default(),
            repairs: RefCell::default(),
            repair_slots: Semaphore::new(REPAIRS_AT_ONCE),
            trying: RefCell::default(),
            sending: Rc::default(),
            scrub_asked: Cell::new(0),
            config,
            metrics: Metrics::new(disks.iter().map(|d| d.path.as_str())),
            disks,
            targets: RefCell::default(),
            creating: RefCell::default(),
            agent: OnceCell::new(),
            lanes: OnceCell::new(),
            sync_pace: Cell::new(Instant(0)),
            started: rt.now(),
            stopping: Cell::new(false),
            silent: Cell::new(false),
        });
        for store in node.disks.iter().filter_map(|d| d.store().ok()) {
            for id in store.targets() {
                let target = Target::open(&node, store.clone(), id)?;
                node.targets.borrow_mut().insert(id, target);
            }
        }
        Ok(node)
    }

    pub fn agent(&self) -> Option<&Agent> {
        self.agent.get()
    }
    /// The cluster's time, in ns: capabilities end by it.
    pub(crate) fn cluster_ns(&self) -> u64 {
        self.agent().map_or_else(|| self.rt.unix_ns(), Agent::cluster_ns)
    }
    /// An error if this node may not serve now.
    pub fn check_lease(&self) -> Result<()> {
        match self.agent() {
            Some(agent) if !self.stopping.get() => agent.lease().check(),
            _ => Err(Error::new(
                Status::ShuttingDown,
                "this storage service is starting or stopping; retry",
            )),
        }
    }
    /// The same for an answer to what was taken before the service began to stop.
    pub fn check_answer(&self) -> Result<()> {
        let agent = self.agent().ok_or_else(|| Error::from(Status::ShuttingDown))?;
        agent.lease().check()
    }
    pub fn routing(&self) -> Rc<RoutingInfo> {
        self.agent().map(|a| a.routing()).unwrap_or_default()
    }
    pub fn target(&self, id: TargetId) -> Result<Rc<Target>> {
        self.targets.borrow().get(&id).cloned().ok_or_else(|| {
            Error::new(
                Status::NoTarget,
                format!(
                    "target {id} does not live on node {}; refresh the routing info",
                    self.config.node_id
                ),
            )
        })
    }
    /// All targets, in order.
    pub fn all_targets(&self) -> Vec<Rc<Target>> {
        self.targets.borrow().values().cloned().collect()
    }
    /// The target of a chain for which `role` holds under that chain version, and that can go on: one that could not, and has not heard of the
    /// chain without it yet, does not know what the chain holds by now.
    pub fn member(
        &self,
        chain: ChainId,
        version: ChainVersion,
        what: &str,
        role: impl Fn(&View) -> bool,
    ) -> Result<(Rc<Target>, View)> {
        let mut refusal = Error::new(
            Status::NoTarget,
            format!(
                "chain {chain} has no target on node {}; refresh the routing info",
                self.config.node_id
            ),
        );
        for target in self.all_targets() {
            let Some(view) = target.view().filter(|v| v.chain == chain) else { continue };
            // A newer version that is being adopted ends the old one.
            if view.version != version || target.replica.borrow().adopting().is_some() {
                if version > view.version {
                    self.refresh();
                }
                refusal = Error::new(
                    Status::WrongChainVersion,
                    format!(
                        "chain {chain} has version {} here, the request {version}",
                        view.version
                    ),
                );
            } else if !target.can_go_on(version) {
                let e = format!("target {} of chain {chain} could not go on", target.id);
                refusal = Error::new(Status::NotServing, e);
            } else if role(&view) {
                return Ok((target, view));
            } else {
                refusal = Error::new(
                    Status::NotServing,
                    format!(
                        "target {} of chain {chain} is not {what} (it is {})",
                        target.id, view.state
                    ),
                );
            }
        }
        Err(refusal)
    }
    /// Asks mgmtd for newer routing info (a heartbeat brings it).
    pub fn refresh(&self) {
        self.report();
    }
    /// Lets the targets forget which updates they took from clients, once none of them can be asked for again.
    pub(crate) async fn forget_old_channels(self: Rc<Self>) {
        while !self.stopping.get() {
            self.rt.sleep(Duration::from_millis(UPDATE_LIFE_MAX_MS)).await;
            let ids: Vec<TargetId> = self.targets.borrow().keys().copied().collect();
            for id in ids {
                // Held no longer than it takes: one that is idle may be replaced.
                let Ok(target) = self.target(id) else { continue };
                target.feed(Event::Age);
                self.forget_on(&target).await;
            }
        }
    }
    /// Goes on with that in steps, each when the log has what was forgotten by the one before, so that updates find a place in its queue.
    async fn forget_on(&self, target: &Rc<Target>) {
        loop {
            self.rt.sleep(FORGET_PAUSE).await;
            if self.stopping.get() || target.store.failure().is_some() {
                return;
            }
            if target.forgets.get() {
                continue;
            }
            if !target.replica.borrow().is_ageing() {
                return;
            }
            target.feed(Event::AgeOn);
        }
    }
    /// Tells mgmtd how the targets are, now.
    pub fn report(&self) {
        if let Some(agent) = self.agent() {
            agent.report_now();
        }
    }

    /// A connection to another storage node, for what is not forwarded.
    pub async fn connect(&self, node: NodeId) -> Result<Rc<Conn>> {
        self.connect_lane(node, 0).await
    }
    /// The one for what comes to its target there with this rank.
    pub async fn connect_lane(&self, node: NodeId, rank: usize) -> Result<Rc<Conn>> {
        if let Some(conn) = self.lane_now(node, rank) {
            return Ok(conn);
        }
        let lanes = self.lanes.get().ok_or_else(|| Error::from(Status::ShuttingDown))?;
        let routing = self.routing();
        let target = {
            let info = routing.nodes.get(&node).ok_or_else(|| {
                Error::new(Status::Disconnected, format!("node {node} is not in the routing info"))
            })?;
            glowfs_net::Target {
                addresses: info.addresses.clone(),
                host: Some(info.host),
                node: Some(node),
            }
        };
        let conn = lanes.connect(&target, rank).await?;
        lanes.note((node, rank), routing.version, &conn);
        Ok(conn)
    }
    /// The same, if it was found by this version of the routing info before.
    pub fn lane_now(&self, node: NodeId, rank: usize) -> Option<Rc<Conn>> {
        self.lanes.get()?.near((node, rank), self.routing().version)
    }

    /// Brings the targets to what the routing info says: makes those that it binds to our stores, and tells every one of its
    /// chain.
    pub fn routing_changed(self: &Rc<Self>, routing: &Rc<RoutingInfo>) {
        for info in routing.targets.values() {
            if self.targets.borrow().contains_key(&info.id) || !dismiss::bound(routing, info.id) {
                continue;
            }
            if let Some(store) = self.store(info.store)
                && self.creating.borrow_mut().insert(info.id)
            {
                let (node, id) = (self.clone(), info.id);
                self.rt.spawn_detached(async move { node.create(store, id).await });
            }
        }
        for target in self.all_targets() {
            self.tell_chain(&target, routing);
            if dismiss::dismissed(routing, target.id) {
                self.dismiss(&target);
            }
        }
    }
    fn store(&self, id: StoreId) -> Option<Store> {
        let mut stores = self.disks.iter().filter_map(|d| d.store().ok());
        stores.find(|s| s.id() == id && s.failure().is_none())
    }
    pub(crate) fn tell_chain(&self, target: &Rc<Target>, routing: &RoutingInfo) {
        // What mgmtd decided about a former life of the store is not for this one: it says so when it has accounted for it.
        let info = routing.targets.get(&target.id);
        let store = &target.store;
        let drew = |t: &TargetInfo| t.nonce == 0 || t.nonce == store.nonce();
        let info = info.filter(|t| t.incarnation == store.incarnation() && drew(t));
        let chain = info.and_then(|t| routing.chains.get(&t.chain));
        if let Some(chain) = chain {
            target.feed(Event::Chain(Some(chain.clone())));
        }
    }
    async fn create(self: Rc<Self>, store: Store, id: TargetId) {
        let wanted = || {
            let bound = || dismiss::bound(&self.routing(), id);
            !self.stopping.get() && store.failure().is_none() && bound()
        };
        let make = async || {
            store.create_target(id).await?;
            Target::open(&self, store.clone(), id)
        };
        if let Some(target) = made(&self.rt, id, CREATE_RETRY, wanted, make).await {
            tracing::info!(target = %id, "target created");
            self.targets.borrow_mut().insert(id, target.clone());
            self.tell_chain(&target, &self.routing());
            self.report();
        }
        self.creating.borrow_mut().remove(&id);
    }
    /// Whether a target is being made.
    pub fn is_creating(&self, id: TargetId) -> bool {
        self.creating.borrow().contains(&id)
    }
    /// Whether a store may take one more update that needs room.
    pub fn has_room(&self, store: &Store) -> bool {
        store.free_bytes() > self.config.reserve_bytes / SPARE_PART
    }
}

/// Makes a target, again and again as long as it is wanted: its chain waits for it, and a disk without room may have some later.
async fn made<T>(
    rt: &Rt,
    id: TargetId,
    pause: Duration,
    wanted: impl Fn() -> bool,
    make: impl AsyncFn() -> Result<T>,
) -> Option<T> {
    let mut said = false;
    loop {
        match make().await {
            Ok(target) => return Some(target),
            Err(e) if !std::mem::replace(&mut said, true) => {
                tracing::error!(target = %id, error = %e, "target could not be created; trying on");
            }
            Err(_) => {}
        }
        rt.sleep(pause).await;
        if !wanted() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was tried once for each change of the routing info: where nothing else happened, a new chain waited for its target for ever.
    #[test]
    fn a_target_that_found_no_room_is_made_later() {
        glowfs_rt::real::run(|rt| async move {
            let tried = Cell::new(0);
            let full_until = |times: u32| {
                let tried = &tried;
                async move || {
                    tried.set(tried.get() + 1);
                    if tried.get() < times { Err(Status::NoSpace.into()) } else { Ok(7) }
                }
            };
            let pause = Duration::from_millis(1);
            let target = made(&rt, TargetId(1), pause, || true, full_until(3)).await;
            assert_eq!((target, tried.replace(0)), (Some(7), 3));
            // Its chain has another member by now.
            let wanted = || tried.get() < 2;
            let target = made(&rt, TargetId(1), pause, wanted, full_until(9)).await;
            assert_eq!((target, tried.get()), (None, 2));
        });
    }
}
