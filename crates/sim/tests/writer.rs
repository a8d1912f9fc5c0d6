//! A client that writes to all chains in turn, and what it knows of the cluster meanwhile; for tests of what a fault costs.

use glowfs_client::{Client, ClientConfig, OpenFile};
use glowfs_rt::{Buf, Duration, Instant, Rt};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, all_serve};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_types::Result;
use glowfs_types::routing::RoutingInfo;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Chunks of the file, some on each chain.
pub const CHUNKS: u64 = 12;
/// Bytes of a write, and so much of each chunk is written.
pub const WRITE: usize = 4096;
/// The file.
pub const FILE: &str = "file";

/// A client that writes to all chains in turn.
#[derive(Default)]
pub struct Writer {
    stop: Cell<bool>,
    outcome: RefCell<Option<Result<()>>>,
    pub done: Cell<u64>,
    worst: Cell<Duration>,
    began: Cell<Option<Instant>>,
    client: RefCell<Option<Rc<Client>>>,
}

impl Writer {
    pub fn start(cluster: &Cluster) -> Rc<Self> {
        let w = Rc::<Self>::default();
        let node = &cluster.clients[1];
        let (me, rt, config) = (w.clone(), node.rt(), cluster.client_config());
        node.rt().spawn_detached(async move {
            let outcome = me.write(&rt, config).await;
            *me.outcome.borrow_mut() = Some(outcome);
        });
        w
    }
    async fn write(&self, rt: &Rt, config: ClientConfig) -> Result<()> {
        let client = Client::connect(rt, config).await?;
        *self.client.borrow_mut() = Some(client.clone());
        let (file, _) = open_or_make(&client, FILE).await?;
        for n in 0.. {
            if self.stop.get() {
                break;
            }
            self.began.set(Some(rt.now()));
            one_write(&file, n).await?;
            let took = self.began.take().map_or(Duration::ZERO, |at| rt.now().since(at));
            self.worst.set(self.worst.get().max(took));
            self.done.set(n + 1);
            rt.sleep(Duration::from_millis(5)).await;
        }
        client.close().await;
        Ok(())
    }
    /// It has written every chunk some times.
    pub fn warm(&self, cluster: &Cluster) {
        assert!(cluster.run_until(Duration::from_secs(60), || self.done.get() > 100));
        self.worst.take();
    }
    /// The longest write since [`Writer::warm`], also if it has not ended.
    pub fn worst(&self, cluster: &Cluster) -> Duration {
        let now = cluster.clients[1].rt().now();
        let running = self.began.get().map_or(Duration::ZERO, |at| now.since(at));
        self.worst.get().max(running)
    }
    /// The version of the routing info that it has.
    pub fn version(&self) -> u64 {
        self.routing().version.0
    }
    pub fn routing(&self) -> Rc<RoutingInfo> {
        self.client.borrow().as_ref().map(|c| c.routing()).unwrap_or_default()
    }
    /// Nothing is wrong any more: every chain serves in full again, and no write has failed.
    pub fn finish(&self, cluster: &Cluster) {
        let healthy = || all_serve(&self.routing(), cluster.shape());
        let known = || self.routing();
        assert!(cluster.run_until(Duration::from_secs(180), healthy), "{:?}", known().chains);
        self.stop.set(true);
        assert!(cluster.run_until(Duration::from_secs(120), || self.outcome.borrow().is_some()));
        self.outcome.take().expect("it has ended").expect("no write fails");
        assert_eq!(cluster.watch.problems(), Vec::<String>::new());
    }
}

async fn one_write(file: &OpenFile, n: u64) -> Result<()> {
    let at = n % CHUNKS * u64::from(CHUNK_BYTES);
    file.write(at, Buf::from_vec(vec![n as u8; WRITE])).await
}
