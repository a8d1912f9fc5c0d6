//! A target that is brought up to date is sent a whole chunk for each small update: how much of that its source holds in memory.

use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Shape, all_serve};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_telemetry::Registry;
use glowfs_types::Result;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Chunks, with a writer for each: all that a client has under way at once.
const WRITERS: u64 = 256;
/// What a storage node may have of requests in work.
const INFLIGHT_BYTES: u64 = 2 << 20;
/// Between two looks at what is held.
const LOOK_EVERY: Duration = Duration::from_millis(4);

/// Bytes that all storage nodes hold now.
fn held() -> u64 {
    let text = Registry::global().text();
    let mut lines = text.lines();
    let value = lines.find_map(|l| l.strip_prefix("glowfs_storage_forwarded_whole_bytes "));
    value.expect("the gauge").parse().expect("a number")
}

/// In a process of its own: the gauge is one of the process, where other tests have resyncs, too.
#[test]
fn a_source_holds_no_more_than_requests_may_have() {
    if std::env::var_os("GLOWFS_SIM_CHILD").is_none() {
        let child = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "whole::a_source_holds_no_more_than_requests_may_have",
                "--nocapture",
            ])
            .env("GLOWFS_SIM_CHILD", "1")
            .status();
        assert!(child.expect("a child").success());
        return;
    }
    let shape = Shape {
        storages: 2,
        replicas: 2,
        chains: 2,
        stripe: 2,
        inflight_bytes: INFLIGHT_BYTES,
        ..Shape::SINGLE
    };
    let cluster = Cluster::start(81, shape);
    cluster.bootstrap().expect("a cluster");
    let (stop, ended) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(None)));
    let routing = Rc::new(RefCell::new(None));
    let (node, config) = (cluster.clients[0].clone(), cluster.client_config());
    let rt = node.rt();
    let (stopped, out, client_is) = (stop.clone(), ended.clone(), routing.clone());
    node.rt().spawn_detached(async move {
        let work = async {
            let client = glowfs_client::Client::connect(&rt, config).await?;
            *client_is.borrow_mut() = Some(client.clone());
            let (file, _) = open_or_make(&client, "written").await?;
            let writer = async |chunk: u64| {
                let at = chunk * u64::from(CHUNK_BYTES);
                file.write(at, Buf::from_vec(vec![1; CHUNK_BYTES as usize])).await?;
                while !stopped.get() {
                    file.write(at, Buf::from_vec(vec![2; 4096])).await?;
                }
                Ok(())
            };
            join_all((0..WRITERS).map(writer)).await.into_iter().collect::<Result<()>>()
        };
        *out.borrow_mut() = Some(work.await);
    });
    let (most, looked) = (Rc::new(Cell::new(0)), node.rt());
    let greatest = most.clone();
    node.rt().spawn_detached(async move {
        loop {
            looked.sleep(LOOK_EVERY).await;
            greatest.set(held().max(greatest.get()));
        }
    });
    let all = || {
        let client = routing.borrow();
        client.as_ref().is_some_and(|c| all_serve(&c.routing(), shape))
    };
    assert!(cluster.run_until(Duration::from_secs(60), all));
    cluster.run_for(Duration::from_secs(2));
    let other = &cluster.storages[1];
    cluster.crash(other, false);
    assert!(cluster.run_until(Duration::from_secs(60), || !all()));
    cluster.run_for(Duration::from_secs(2));
    cluster.restart(other);
    assert!(cluster.run_until(Duration::from_secs(300), all), "it is brought up to date");
    stop.set(true);
    assert!(cluster.run_until(Duration::from_secs(120), || ended.borrow().is_some()));
    assert!(matches!(*ended.borrow(), Some(Ok(()))), "{:?}", ended.borrow());
    println!("at most {} bytes were held", most.get());
    assert!(most.get() > 0, "nothing was sent whole");
    assert!(most.get() <= INFLIGHT_BYTES, "{} bytes were held", most.get());
    assert_eq!(held(), 0);
}
