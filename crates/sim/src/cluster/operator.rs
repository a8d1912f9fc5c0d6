//! What an operator asks for in the middle of everything: a node is drained, and that is called off; a disk that was wiped is said to be replaced.
//!
//! Nothing happens to the operator's own machine.

use super::faults::{Breaker, End, life};
use super::harness::{Cluster, DISK, Service};
use crate::world::SimNode;
use glowfs_client::{Client, ClientConfig};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::method;
use glowfs_types::wire::operate::{MoveAway, MoveAwayReply, away};
use glowfs_types::{Result, Status};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// The pause before an order is repeated.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a node is drained before that is called off, at most, in ms.
const DRAINED_MS: u64 = 4_000;
/// How long a node is away whose disk is replaced, at most, in ms.
const AWAY_MS: u64 = 2_000;

/// Gives orders, one after the other.
#[derive(Clone)]
pub(super) struct Operator {
    node: SimNode,
    config: ClientConfig,
    orders: Rc<RefCell<VecDeque<MoveAway>>>,
    works: Rc<Cell<bool>>,
}

impl Operator {
    pub fn new(cluster: &Cluster) -> Self {
        let (node, config) = (cluster.world.node("operator"), cluster.client_config());
        Self { node, config, orders: Rc::default(), works: Rc::default() }
    }
    /// Whether all orders are given.
    pub fn is_done(&self) -> bool {
        !self.works.get()
    }
    fn order(&self, s: &Service, disk: Option<u32>, what: u8) {
        let order = MoveAway { node: s.id(), disk, what, dry_run: false, store: None };
        self.orders.borrow_mut().push_back(order);
        if !self.works.replace(true) {
            let (me, rt) = (self.clone(), self.node.rt());
            self.node.rt().spawn_detached(async move {
                while me.give_all(&rt).await.is_err() {
                    rt.sleep(PAUSE).await;
                }
                me.works.set(false);
            });
        }
    }
    async fn give_all(&self, rt: &Rt) -> Result<()> {
        let client = Client::connect(rt, self.config.clone()).await?;
        loop {
            let Some(order) = self.orders.borrow().front().cloned() else { break };
            let given: Result<MoveAwayReply> = client.mgmtd(method::MOVE_AWAY, &order).await;
            // Where there is no other place now, the node is not drained; all else is repeated until it is done: its node may not be there yet.
            let refused = |s: Status| s == Status::NoSpace && order.what == away::DRAIN;
            match given {
                Err(e) if !refused(e.status) => rt.sleep(PAUSE).await,
                _ => drop(self.orders.borrow_mut().pop_front()),
            }
        }
        client.close().await;
        Ok(())
    }
}

impl Breaker<'_> {
    /// One or the other.
    pub(super) fn operate(&mut self) {
        if self.below(2) == 0 { self.drain() } else { self.replace_disk() }
    }
    fn drain(&mut self) {
        if self.drained.is_some() {
            return;
        }
        let s = self.any_storage();
        self.note(format!("{} is drained", s.node.name()));
        self.operator.order(&s, None, away::DRAIN);
        let until = self.now_ms() + self.below(DRAINED_MS);
        self.drained = Some((s, until));
    }
    /// It stays where it is then, with what it still has.
    pub(super) fn call_off_drain(&mut self) {
        let Some((s, _)) = self.drained.take() else { return };
        self.note(format!("the drain of {} is called off", s.node.name()));
        self.operator.order(&s, None, away::CANCEL);
    }
    /// A node loses its disk, and comes back with an empty one, which is said to replace it.
    fn replace_disk(&mut self) {
        let Some(info) = self.may_lose_replicas() else { return };
        let s = self.any_storage();
        self.crashed.push((s.id(), life(&info, s.id())));
        self.note(format!("the disk of {} is replaced by a new one", s.node.name()));
        self.take_down(s.clone(), AWAY_MS, End::Power);
        s.node.disk(DISK).wipe();
        self.operator.order(&s, Some(0), away::REPLACE);
    }
}
