//! The clients of a run. Each has one life after the other: a process that ends in the middle of its work leaves an [`Estate`], and the next one on its
//! node begins with files of its own, and goes on with its part of those that all share.

use super::estate::Estate;
use super::harness::Cluster;
use super::own_file::own_file;
use super::run::SHARED_FILE;
use super::watch::Watch;
use super::workload::{Shared, shared_file};
use super::{contended, locks, names, shared_names, small};
use crate::world::SimNode;
use glowfs_client::{Client, ClientConfig};
use glowfs_rt::BoxFuture;
use glowfs_rt::sync::join_all;
use glowfs_types::routing::RoutingInfo;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// See the module.
pub struct Lives {
    nodes: Vec<SimNode>,
    /// The names by which they are watched.
    observers: Vec<String>,
    config: ClientConfig,
    shared: Rc<Shared>,
    watch: Rc<Watch>,
    /// Clients with work to do.
    working: Rc<Cell<usize>>,
    each: RefCell<Vec<Life>>,
    /// Of those that ended in the middle.
    left: RefCell<Vec<Rc<Estate>>>,
}

/// The present life of a client, if it is up.
#[derive(Default)]
struct Life {
    /// Lives before it.
    former: u64,
    client: Option<Rc<Client>>,
    estate: Option<Rc<Estate>>,
}

/// A client that works, until it is dropped: at the end of its work, or with its process.
struct Working(Rc<Cell<usize>>);

impl Working {
    fn begins(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(count.clone())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Lives {
    /// Nobody works yet.
    pub fn new(cluster: &Cluster, shared: &Rc<Shared>) -> Rc<Self> {
        Rc::new(Self {
            nodes: cluster.clients.clone(),
            observers: (0..cluster.clients.len()).map(|i| format!("client {i}")).collect(),
            config: cluster.client_config(),
            shared: shared.clone(),
            watch: cluster.watch.clone(),
            working: Rc::default(),
            each: RefCell::new(cluster.clients.iter().map(|_| Life::default()).collect()),
            left: RefCell::default(),
        })
    }
    /// How many clients there are, with those that are down.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }
    /// Clients with work to do.
    pub fn working(&self) -> usize {
        self.working.get()
    }
    /// Whether a client's node is up.
    pub fn is_up(&self, i: usize) -> bool {
        self.nodes.get(i).is_some_and(SimNode::is_up)
    }

    /// A client's process starts on its node, which is up, and works until it is told to stop.
    pub fn begin(self: &Rc<Self>, i: usize) {
        let (me, node) = (self.clone(), &self.nodes[i]);
        let estate = Rc::new(Estate::new(i, self.each.borrow()[i].former));
        self.each.borrow_mut()[i].estate = Some(estate.clone());
        let (rt, working) = (node.rt(), Working::begins(&self.working));
        node.rt().spawn_detached(async move {
            let _working = working;
            let shared = me.shared.clone();
            let client = match Client::connect(&rt, me.config.clone()).await {
                Ok(client) => client,
                Err(e) => return shared.problem(format!("client {i}: {e}")),
            };
            me.each.borrow_mut()[i].client = Some(client.clone());
            let all = || (rt.clone(), client.clone(), shared.clone());
            let mut work: Vec<BoxFuture<()>> = Vec::new();
            let (r, c, s) = all();
            work.push(Box::pin(own_file(r, c, s, estate.clone())));
            let (r, c, s) = all();
            work.push(Box::pin(names::work(r, c, s, estate.clone())));
            let (r, c, s) = all();
            work.push(Box::pin(contended::work(r, c, s)));
            let (r, c, s) = all();
            work.push(Box::pin(small::contended(r, c, s)));
            let (r, c, s) = all();
            work.push(Box::pin(small::own(r, c, s, estate)));
            let (r, c, s) = all();
            work.push(Box::pin(locks::work(r, c, s, i)));
            let (r, c, s) = all();
            work.push(Box::pin(shared_names::work(r, c, s)));
            work.push(Box::pin(shared_file(rt, client, shared, SHARED_FILE.into(), i)));
            join_all(work).await;
        });
    }

    /// A client's process ends, as it stands.
    pub fn crash(&self, i: usize) {
        self.nodes[i].kill();
        let life = std::mem::take(&mut self.each.borrow_mut()[i]);
        self.each.borrow_mut()[i].former = life.former + 1;
        self.left.borrow_mut().extend(life.estate);
        drop(life.client);
        // Its next life begins to learn from nothing.
        self.watch.ended(&self.observers[i]);
        let cells = self.shared.cells_of(i);
        self.shared.registers.borrow_mut().inherited(cells);
        self.shared.locks.borrow_mut().forget(i);
    }
    /// Its machine is there again; a new process works, if there is time for that.
    pub fn restart(self: &Rc<Self>, i: usize, works: bool) {
        self.nodes[i].restart();
        if works {
            self.begin(i);
        }
    }

    /// What the one who knows most knows of the cluster. All that they know is looked at.
    pub fn newest(&self) -> Option<Rc<RoutingInfo>> {
        let each = self.each.borrow();
        let known = each.iter().enumerate().filter_map(|(i, life)| {
            let info = life.client.as_ref()?.routing();
            self.watch.routing(&self.observers[i], &info);
            Some(info)
        });
        // The one who knows most: an old view of a client that is cut off would hide what is broken.
        known.chain(self.watch.storages_routing()).max_by_key(|r| r.version)
    }

    /// The clients that are there, with their nodes, to be closed.
    pub fn take_clients(&self) -> Vec<(SimNode, Rc<Client>)> {
        let mut each = self.each.borrow_mut();
        let all = self.nodes.iter().zip(each.iter_mut());
        all.filter_map(|(node, life)| Some((node.clone(), life.client.take()?))).collect()
    }
    /// The files in the root directory that clients which are there have made.
    pub fn own_files(&self) -> Vec<String> {
        self.each.borrow().iter().filter_map(|l| Some(l.estate.as_ref()?.name.clone())).collect()
    }
    /// What others have left.
    pub fn left(&self) -> Vec<Rc<Estate>> {
        self.left.borrow().clone()
    }
}
