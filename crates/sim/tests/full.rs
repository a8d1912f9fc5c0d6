//! Disks without room, in the shipped services: what the rest of a chain took and one replica cannot hold puts that replica offline,
//! and it comes back by itself when there is room again.

use glowfs_client::Client;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{Cluster, DISK, Shape, all_serve};
use glowfs_sim::cluster::workload::{open_or_make, write_patiently};
use glowfs_sim::world::DISK_BYTES;
use glowfs_types::routing::{LocalState, RoutingInfo};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes of one write.
const WRITE: usize = 16 << 10;
/// Writes to one file, one behind the other, again and again.
const PLACES: u64 = 64;
/// Times that a disk is filled, at most, until a target went offline.
const ROUNDS: u64 = 60;
/// How long a disk has no room.
const FULL: Duration = Duration::from_millis(900);
/// How long the chains may take to be whole again.
const WHOLE: Duration = Duration::from_secs(60);

fn offline(info: &RoutingInfo) -> usize {
    info.targets.values().filter(|t| t.local == LocalState::Offline).count()
}

#[test]
fn a_target_that_a_full_disk_put_offline_comes_back() {
    let shape = Shape {
        managers: 1,
        metas: 1,
        storages: 3,
        chains: 3,
        stripe: 3,
        clients: 3,
        ..Shape::default()
    };
    let cluster = Cluster::start(41, shape);
    cluster.bootstrap().expect("a cluster");
    let (stop, problem) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(None)));
    let known: Rc<RefCell<Option<Rc<Client>>>> = Rc::default();
    for (i, node) in cluster.clients.iter().enumerate() {
        let (rt, config) = (node.rt(), cluster.client_config());
        let (stop, problem, known) = (stop.clone(), problem.clone(), known.clone());
        node.rt().spawn_detached(async move {
            let work = async {
                let client = Client::connect(&rt, config).await?;
                *known.borrow_mut() = Some(client.clone());
                let (file, _) = open_or_make(&client, &format!("file{i}")).await?;
                while !stop.get() {
                    let place = rt.random_below(PLACES);
                    let buf = Buf::from_vec(vec![i as u8 + 1; WRITE]);
                    write_patiently(&rt, &file, place * WRITE as u64, buf).await?;
                    rt.sleep(Duration::from_micros(500)).await;
                }
                Ok::<(), glowfs_types::Error>(())
            };
            if let Err(e) = work.await {
                *problem.borrow_mut() = Some(e.to_string());
            }
        });
    }
    let routing = || known.borrow().as_ref().map(|c| c.routing()).unwrap_or_default();
    assert!(cluster.run_until(WHOLE, || all_serve(&routing(), shape)));
    let mut seen = 0;
    for round in 0..ROUNDS {
        let disk = cluster.storages[(round % 3) as usize].node.disk(DISK);
        disk.set_bytes(disk.used_bytes() + round * 4099 % (128 << 10));
        let mut most = 0;
        cluster.run_until(FULL, || {
            most = most.max(offline(&routing()));
            false
        });
        disk.set_bytes(DISK_BYTES);
        seen += most;
        let whole = || all_serve(&routing(), shape) && offline(&routing()) == 0;
        assert!(cluster.run_until(WHOLE, whole), "round {round}: {:?}", routing().chains);
        if seen > 0 {
            break;
        }
    }
    assert!(seen > 0, "no target ever went offline: the test proves nothing");
    stop.set(true);
    cluster.run_for(Duration::from_secs(5));
    assert_eq!(*problem.borrow(), None);
}
