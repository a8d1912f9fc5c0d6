//! A cluster with connected clients, and what they ask.

use glowfs_client::{Client, OpenFile};
use glowfs_meta::Tuning;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::workload::{caller, open_or_make, report};
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::rc::Rc;

pub const SHAPE: Shape = Shape { clients: 2, ..Shape::SINGLE };
pub const LIMIT: Duration = Duration::from_secs(600);

pub struct Lab {
    pub cluster: Cluster,
    pub clients: Vec<Rc<Client>>,
}

impl Lab {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, SHAPE)
    }
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
    /// The second client writes behind the end of the file "f", which was cut to nothing: the first one reads that, and zeros before it.
    pub fn written_behind_a_cut_is_there(&self, file: Rc<OpenFile>, case: String) {
        self.run(1, move |c| async move {
            file.write(4096, Buf::from_vec(vec![9; 4096])).await.expect("written");
            file.flush().await.expect("flushed");
            c.sync(report(&c, &file, true)).await.expect("synced");
        });
        self.run(0, move |c| async move {
            let file = open_or_make(&c, "f").await.expect("open").0;
            let (result, buf) = file.read(0, c.rt().alloc(8192)).await;
            assert_eq!(result.expect("read"), 8192, "{case}");
            assert!(buf[..4096].iter().all(|b| *b == 0) && buf[4096..].iter().all(|b| *b == 9));
        });
    }
}

pub fn name(name: &str) -> Name {
    name.as_bytes().to_vec().into()
}

pub fn make(client: &Client, request: u128, file: &str) -> Make {
    Make {
        caller: caller(client),
        request: RequestId(request),
        parent: ROOT_INODE,
        name: name(file),
        kind: InodeKind::File,
        mode: 0o644,
        rdev: 0,
        symlink: Vec::new(),
        open: None,
        exclusive: true,
        ..Make::default()
    }
}

pub async fn look(client: &Client, file: &str) -> Result<Attr> {
    let query = Lookup { caller: caller(client), parent: ROOT_INODE, name: name(file) };
    client.lookup(query).await.map(|r| r.attr)
}
