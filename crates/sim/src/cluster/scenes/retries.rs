//! Writes whose answers their clients never heard, at replicas that know of them by a resync alone.

use super::common::{wait_serving, with};
use crate::cluster::harness::{Cluster, Shape};
use crate::cluster::workload::{open_or_make, report};
use glowfs_client::Client;
use glowfs_rt::{Buf, Duration};
use std::cell::Cell;
use std::rc::Rc;

const SOON: Duration = Duration::from_secs(60);

/// A byte at the beginning of the file.
fn write(cluster: &Cluster, byte: u8) {
    with(cluster, move |_, client| async move {
        let (file, _) = open_or_make(&client, "f").await?;
        file.write(0, Buf::from_vec(vec![byte])).await?;
        client.close_session(report(&client, &file, true)).await.map(drop)
    });
}

/// What the file begins with.
fn read(cluster: &Cluster) -> u8 {
    with(cluster, move |rt, client| async move {
        let (file, _) = open_or_make(&client, "f").await?;
        let (result, buf) = file.read(0, rt.alloc(1)).await;
        result?;
        client.close_session(report(&client, &file, false)).await?;
        Ok(buf[0])
    })
}

/// A write that is done and was never answered comes again to a replica which knows of it by a resync alone: it is not done twice, over what another client has written since.
pub fn at_one_that_was_brought_up_to_date(seed: u64) {
    // A record in each message: it need not come with the first one.
    let shape = Shape { storages: 2, replicas: 2, clients: 2, sync_page: (3, 1), ..Shape::SINGLE };
    let cluster = Cluster::start(seed, shape);
    cluster.bootstrap().expect("a cluster");
    write(&cluster, 9);
    let (source, receiver) = (cluster.storages[0].clone(), cluster.storages[1].clone());
    cluster.crash(&receiver, false);
    cluster.run_for(Duration::from_secs(3));
    let node = cluster.clients[1].clone();
    let (rt, config) = (node.rt(), cluster.client_config());
    let (step, now) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (next, at) = (step.clone(), now.clone());
    node.rt().spawn_detached(async move {
        let client = Client::connect(&rt, config).await.expect("a client");
        let (file, _) = open_or_make(&client, "f").await.expect("open");
        // It has a connection from here on.
        file.write(1, Buf::from_vec(vec![1])).await.expect("written");
        at.set(1);
        while next.get() == 0 {
            rt.sleep(Duration::from_millis(1)).await;
        }
        file.write(0, Buf::from_vec(vec![1])).await.expect("written");
        at.set(2);
    });
    assert!(cluster.run_until(SOON, || now.get() == 1));
    for storage in &cluster.storages {
        cluster.world.cut(&storage.node, &node);
    }
    step.set(1);
    cluster.run_for(Duration::from_millis(100));
    assert_eq!(read(&cluster), 1);
    assert_eq!(now.get(), 1, "it was done, and its client has heard nothing");
    write(&cluster, 2);
    cluster.restart(&receiver);
    wait_serving(&cluster);
    cluster.crash(&source, false);
    cluster.run_for(Duration::from_secs(5));
    cluster.world.heal();
    assert!(cluster.run_until(SOON, || now.get() == 2), "answered in the end");
    assert_eq!(read(&cluster), 2, "a retry was done twice, over what was written since");
}
