//! Contents that are kept with the metadata, put into chunks by two services.

use super::lab::{LIMIT, Lab, SHAPE};
use glowfs_client::Client;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::Shape;
use glowfs_sim::cluster::small;
use glowfs_sim::cluster::workload::{open_or_make_in, report};
use glowfs_types::layout::INLINE_BYTES_MAX;
use glowfs_types::*;
use std::cell::RefCell;
use std::rc::Rc;

/// A service is slow to put a small file's contents into chunks, and another one does it in its place. What the first one stores late is
/// refused, for its place is given up; whoever asked the first one gets chunks all the same.
#[test]
fn contents_that_another_service_put_into_chunks_are_no_error() {
    let lab = Lab::with(31, Shape { metas: 2, ..SHAPE });
    let (cluster, world) = (&lab.cluster, &lab.cluster.world);
    cluster.run_for(Duration::from_secs(3));
    lab.run(0, |c| async move { small::prepare(&c).await.expect("a directory of small files") });
    let open = async |c: &Rc<Client>| {
        let dir = small::dir(c).await.expect("found");
        open_or_make_in(c, dir, "f").await.expect("open").0
    };
    lab.run(0, move |c| async move {
        let file = open(&c).await;
        file.write(0, Buf::from_vec(vec![7; 4096])).await.expect("written");
        c.close_session(report(&c, &file, true)).await.expect("closed");
    });
    // Each client has a service of its own, and what the first one sends to the storage node is on its way for longer than the other has patience.
    for (client, meta) in [(0, 1), (1, 0)] {
        world.cut(&cluster.clients[client], &cluster.metas[meta].node);
        world.drop_connections(&cluster.clients[client], &cluster.metas[meta].node);
    }
    let (slow, storage) = (&cluster.metas[0].node, &cluster.storages[0].node);
    let (link, late) = (world.link(slow, storage), 4_300_000_000);
    world.set_link(
        slow,
        storage,
        glowfs_sim::world::Link { latency_ns_min: late, latency_ns_max: late, ..link },
    );
    let written: Rc<RefCell<Vec<Result<()>>>> = Rc::default();
    for (i, client) in lab.clients.iter().enumerate() {
        let (client, written) = (client.clone(), written.clone());
        cluster.clients[i].rt().spawn_detached(async move {
            let file = open(&client).await;
            let behind = u64::from(INLINE_BYTES_MAX) + 4096 * (1 + i as u64);
            let result = file.write(behind, Buf::from_vec(vec![8; 4096])).await;
            written.borrow_mut().push(result);
        });
        cluster.run_for(Duration::from_millis(50));
    }
    assert!(cluster.run_until(LIMIT, || written.borrow().len() == 2), "both");
    written.take().into_iter().for_each(|w| w.expect("written"));
    world.heal();
    lab.run(1, move |c| async move {
        let file = open(&c).await;
        let (result, buf) = file.read(0, c.rt().alloc(4096)).await;
        assert_eq!(result.expect("read"), 4096);
        assert!(buf.iter().all(|b| *b == 7), "the first contents");
    });
}
