//! What scenes have in common: a client of its own for all that is asked, waiting, and what each replica shows.

use crate::cluster::harness::{Cluster, all_serve};
use crate::cluster::workload::{open_or_make, report};
use glowfs_client::{Client, ClientConfig};
use glowfs_rt::{Duration, Rt};
use glowfs_types::{NodeId, Result};
use std::rc::Rc;

/// How long anything may take.
pub(super) const LIMIT: Duration = Duration::from_secs(600);

/// Runs something with a client of its own.
pub(super) fn with<T: 'static, F: Future<Output = Result<T>> + 'static>(
    cluster: &Cluster,
    work: impl FnOnce(Rt, Rc<Client>) -> F + 'static,
) -> T {
    cluster.with_client(&cluster.clients[0].clone(), LIMIT, work).expect("done")
}

/// Waits until everybody serves.
pub(super) fn wait_serving(cluster: &Cluster) {
    let shape = cluster.shape();
    with(cluster, move |rt, client| async move {
        while !all_serve(&client.routing(), shape) {
            rt.sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    });
}

/// The first bytes of a file, so many, as the replica on that node has them.
pub(super) fn read_near(cluster: &Cluster, node: NodeId, name: &str, len: usize) -> Vec<u8> {
    let name = name.to_owned();
    with(cluster, move |rt, client| async move {
        let host = client.routing().nodes[&node].host;
        let config = ClientConfig { host, hedge: false, ..client.config().clone() };
        let near = Client::connect(&rt, config).await?;
        let (file, _) = open_or_make(&near, &name).await?;
        let (read, buf) = file.read(0, rt.alloc(len)).await;
        read?;
        near.close_session(report(&near, &file, false)).await?;
        near.close().await;
        Ok(buf.to_vec())
    })
}
