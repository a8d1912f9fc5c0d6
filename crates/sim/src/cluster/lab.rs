//! A cluster with connected clients.

use super::harness::{Cluster, Shape};
use glowfs_client::Client;
use glowfs_meta::Tuning;
use glowfs_rt::Duration;
use std::rc::Rc;

/// One of each service, and two clients.
pub const SHAPE: Shape = Shape { clients: 2, ..Shape::SINGLE };
/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(600);

/// See the module.
pub struct Lab {
    /// The cluster.
    pub cluster: Cluster,
    /// A client on each of its client nodes.
    pub clients: Vec<Rc<Client>>,
}

impl Lab {
    /// One of each service, and two clients.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, SHAPE)
    }
    /// What is wanted; each change of metadata is flushed.
    pub fn with(seed: u64, shape: Shape) -> Self {
        Self::on(Cluster::start(seed, shape))
    }
    /// Only what is asked for is flushed, as it is shipped.
    pub fn as_shipped(seed: u64, shape: Shape) -> Self {
        Self::on(Cluster::start_as_told(seed, shape, Tuning::default()))
    }
    /// With other bounds of the metadata service.
    pub fn tuned(seed: u64, shape: Shape, tuning: Tuning) -> Self {
        Self::on(Cluster::start_tuned(seed, shape, tuning))
    }
    fn on(cluster: Cluster) -> Self {
        cluster.bootstrap().expect("a cluster");
        let clients = cluster.clients.clone().into_iter().map(|node| {
            let (rt, config) = (node.rt(), cluster.client_config());
            let client = async move { Client::connect(&rt, config).await.expect("a client") };
            cluster.world.run(&node, LIMIT, client).expect("in time")
        });
        let clients = clients.collect();
        Self { cluster, clients }
    }
    /// Runs something with one of the clients.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        client: usize,
        work: impl FnOnce(Rc<Client>) -> F,
    ) -> T {
        let work = work(self.clients[client].clone());
        self.cluster.world.run(&self.cluster.clients[client], LIMIT, work).expect("in time")
    }
    /// Ends the service as it stands (with its machine's power, or alone) and starts it again.
    pub fn restart(&self, power: bool) {
        self.cluster.crash(&self.cluster.metas[0], power);
        self.cluster.run_for(Duration::from_millis(300));
        self.cluster.restart(&self.cluster.metas[0]);
    }
}
