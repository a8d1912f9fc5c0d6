//! What storage nodes remember of the writes of clients that are gone.

use glowfs_client::Client;
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_types::Result;
use glowfs_types::limits::UPDATE_LIFE_MAX_MS;
use glowfs_types::routing::Role;
use std::rc::Rc;

/// Clients that come one after the other.
const CLIENTS: u64 = 20;
/// A storage node forgets in the second age after a client was seen; ages begin when they like.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(3 * UPDATE_LIFE_MAX_MS);

/// Channels that all storage nodes remember.
fn remembered(cluster: &Cluster) -> u64 {
    let look = |_: Rt, client: Rc<Client>| async move {
        let mut sum = 0;
        for node in client.routing().nodes.values().filter(|n| n.role == Role::Storage) {
            sum += client.storage_info(node.id).await?.channels;
        }
        Ok(sum)
    };
    let limit = Duration::from_secs(60);
    cluster.with_client(&cluster.clients[0].clone(), limit, look).expect("storages answer")
}

fn write(cluster: &Cluster, n: u64) {
    let work = move |rt: Rt, client: Rc<Client>| async move {
        let (file, _) = open_or_make(&client, "written").await?;
        file.write(n * 4096, Buf::from_vec(vec![n as u8; 4096])).await?;
        let (result, buf) = file.read(n * 4096, rt.alloc(4096)).await;
        result?;
        assert!(buf.iter().all(|b| *b == n as u8));
        Result::Ok(())
    };
    let limit = Duration::from_secs(60);
    cluster.with_client(&cluster.clients[1].clone(), limit, work).expect("written");
}

/// Every client leaves a channel on each replica that it wrote to; all of them are forgotten in the end, and not before a retry is
/// impossible.
#[test]
fn the_channels_of_clients_that_are_gone_are_forgotten() {
    let shape = Shape { storages: 2, replicas: 2, clients: 2, ..Shape::SINGLE };
    let cluster = Cluster::start(71, shape);
    cluster.bootstrap().expect("a cluster");
    for n in 0..CLIENTS {
        write(&cluster, n);
    }
    let all = remembered(&cluster);
    assert!(all >= 2 * CLIENTS, "{all} channels on two replicas");
    cluster.run_for(Duration::from_millis(UPDATE_LIFE_MAX_MS - 60_000));
    assert_eq!(remembered(&cluster), all, "a retry may still come");
    cluster.run_for(FORGOTTEN_AFTER);
    assert_eq!(remembered(&cluster), 0);
    write(&cluster, CLIENTS);
    assert_eq!(remembered(&cluster), 2);
}
