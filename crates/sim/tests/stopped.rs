//! Storage services that are stopped in order, and what is left of their stores.

use glowfs_chunkstore::Store;
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::{Cluster, Service, Shape};
use glowfs_sim::world::DiskFaults;
use glowfs_storage::StorageConfig;
use glowfs_types::Result;
use glowfs_types::routing::LocalState;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

const SHAPE: Shape = Shape { disks: 3, ..Shape::SINGLE };
/// What the process of a service has to stop.
const WITHIN: Duration = Duration::from_secs(15);

/// Stores were closed one after the other: behind one that hung the others were found as after a crash.
#[test]
fn a_disk_that_hangs_when_its_service_stops_keeps_no_other_from_being_closed() {
    let cluster = Cluster::start(11, SHAPE);
    let service = cluster.storages[0].clone();
    // Its process in our hands, that it can be stopped.
    cluster.crash(&service, false);
    let (rt, config) = (service.node.restart(), cluster.storage_config(&service));
    let stopped: Rc<RefCell<Option<Result<()>>>> = Rc::default();
    let (node, result, own, store) =
        (service.node.clone(), stopped.clone(), rt.clone(), config.clone());
    rt.spawn_detached(async move {
        let running = glowfs_storage::start(&own, config).await.expect("starts");
        let faults = DiskFaults { hangs: true, ..DiskFaults::default() };
        node.disk("/disk1").set_faults(faults);
        let done = running.stop().await;
        *result.borrow_mut() = Some(done);
    });
    assert!(cluster.run_until(WITHIN, || stopped.borrow().is_some()), "it did not stop");
    let e = stopped.take().and_then(Result::err).expect("one store was not closed");
    assert!(e.message.contains("/disk1"), "{e}");

    service.node.kill();
    service.node.disk("/disk1").set_faults(DiskFaults::default());
    assert_eq!(found_clean(&cluster, &service, &store), [true, false, true]);
}

/// Whether each store of a service, whose process is gone, was closed in order.
fn found_clean(cluster: &Cluster, service: &Service, store: &StorageConfig) -> Vec<bool> {
    let rt = service.node.restart();
    let store = store.store().expect("a configuration");
    let clean: Rc<RefCell<Vec<bool>>> = Rc::default();
    let found = clean.clone();
    rt.clone().spawn_detached(async move {
        for i in 0..SHAPE.disks {
            let dir = rt.open_dir(Path::new(&format!("/disk{i}"))).expect("a disk");
            let opened = Store::open(&rt, dir, store.clone()).await.expect("opens");
            found.borrow_mut().push(opened.was_clean());
        }
    });
    assert!(cluster.run_until(WITHIN, || clean.borrow().len() == SHAPE.disks));
    clean.take()
}

/// A service that cannot start, since its port is taken, say: its stores looked as after a crash, and after one of the machine nobody knew what they lack.
#[test]
fn a_service_that_cannot_start_leaves_its_stores_as_they_were() {
    let cluster = Cluster::start(12, SHAPE);
    let service = cluster.storages[0].clone();
    cluster.crash(&service, false);
    let config = cluster.storage_config(&service);
    let run = |config: StorageConfig, starts: bool| {
        let rt = service.node.restart();
        let done: Rc<Cell<bool>> = Rc::default();
        let (own, end) = (rt.clone(), done.clone());
        rt.spawn_detached(async move {
            match glowfs_storage::start(&own, config).await {
                Ok(running) => {
                    assert!(starts, "it started");
                    running.stop().await.expect("stops");
                }
                Err(e) => assert!(!starts, "{e}"),
            }
            end.set(true);
        });
        assert!(cluster.run_until(WITHIN, || done.get()));
        service.node.kill();
    };
    run(config.clone(), true);
    let taken = [config.listen.clone(), config.listen.clone()].concat();
    run(StorageConfig { listen: taken, ..config.clone() }, false);
    run(StorageConfig { http: Some("nowhere".into()), ..config.clone() }, false);
    assert_eq!(found_clean(&cluster, &service, &config), [true; SHAPE.disks]);
}

/// The store had the last descriptor of its process: its check, which opens the directory once more, waits for one.
#[test]
fn a_disk_is_not_broken_for_want_of_a_descriptor_for_its_check() {
    let cluster = Cluster::start(13, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let (service, client) = (cluster.storages[0].clone(), cluster.clients[0].clone());
    let target = || {
        let info = cluster
            .with_client(&client, WITHIN, |_, client| async move { Ok(client.routing()) })
            .expect("asked");
        let targets: Vec<_> = info.targets.values().map(|t| (t.disk_index, t.local)).collect();
        assert_eq!(targets.len(), SHAPE.chains as usize, "one for each chain");
        targets[0]
    };
    let (index, _) = target();
    cluster.crash(&service, false);
    let disk = service.node.disk(format!("/disk{index}"));
    disk.lack_descriptors(1, 3);
    cluster.restart(&service);
    assert!(cluster.run_until(WITHIN, || disk.descriptors_lacked() == 0), "it was tried again");
    cluster.run_for(WITHIN);
    assert_eq!(target(), (index, LocalState::UpToDate));
}
