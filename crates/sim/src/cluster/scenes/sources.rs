//! Who has what was flushed, when almost nobody is left.

use super::common::{read_near, wait_serving, with};
use super::forwards::the_chain;
use crate::cluster::harness::{Cluster, DISK, Service, Shape};
use crate::cluster::workload::{open_or_make, report};
use crate::world::Link;
use glowfs_rt::{Buf, Duration};
use glowfs_types::routing::PublicState;
use glowfs_types::wire::method;
use glowfs_types::wire::operate::{MoveAway, MoveAwayReply, away};

/// How long a replica may take to be brought up to date.
const SOON: Duration = Duration::from_secs(60);
/// What mgmtd says to the one that is brought up to date is under way for so long: for that time it counts as one that serves and does not know it. Far below its lease.
const HELD_UP_NS: u64 = 200_000_000;
/// Bytes that are flushed: several messages of a resync.
const BYTES: usize = 40 << 10;
/// Bytes of a write.
const PIECE: usize = 4 << 10;

/// A replica was just brought up to date and counts as one that serves. It has not heard of that when it loses its power; and its source's disk is lost at the same time, and replaced. It
/// alone has what was flushed, and has it.
pub fn one_that_was_just_brought_up_to_date(seed: u64) {
    let cluster = Cluster::start(seed, Shape { storages: 2, replicas: 2, ..Shape::SINGLE });
    cluster.bootstrap().expect("a cluster");
    let on = |at: usize| {
        let node = the_chain(&cluster).members[at].node;
        cluster.storages.iter().find(|s| s.id() == node).expect("it is there").clone()
    };
    let (source, receiver) = (on(0), on(1));
    write(&cluster, 1);
    cluster.crash(&receiver, false);
    cluster.run_for(Duration::from_secs(3));
    write(&cluster, 2);
    for m in &cluster.managers {
        let link = cluster.world.link(&m.node, &receiver.node);
        let late = Link { latency_ns_min: HELD_UP_NS, latency_ns_max: HELD_UP_NS, ..link };
        cluster.world.set_link(&m.node, &receiver.node, late);
    }
    cluster.restart(&receiver);
    let serves = || {
        let known = cluster.watch.storages_routing();
        known.is_some_and(|info| {
            let mut all = info.chains.values().flat_map(|c| &c.members);
            all.any(|m| m.node == receiver.id() && m.state == PublicState::Serving)
        })
    };
    assert!(!serves(), "its source knows that it is away");
    assert!(cluster.run_until(SOON, serves), "it is brought up to date");
    cluster.crash(&receiver, true);
    cluster.crash(&source, true);
    source.node.disk(DISK).wipe();
    cluster.world.mend_links();
    cluster.run_for(Duration::from_secs(1));
    cluster.restart(&receiver);
    cluster.restart(&source);
    replaced(&cluster, &source);
    let found = read_near(&cluster, receiver.id(), "f", BYTES);
    let kept = found.iter().take_while(|b| **b == 2).count();
    assert!(kept == BYTES, "a flushed byte is gone: only {kept} of {BYTES} are there");
    wait_serving(&cluster);
}

/// The whole file, in several writes, and flushed.
fn write(cluster: &Cluster, byte: u8) {
    with(cluster, move |_, client| async move {
        let (file, _) = open_or_make(&client, "f").await?;
        for at in (0..BYTES).step_by(PIECE) {
            file.write(at as u64, Buf::from_vec(vec![byte; PIECE])).await?;
        }
        file.flush().await?;
        client.close_session(report(&client, &file, true)).await.map(drop)
    });
}

/// An operator says that the disk of a node is a new one.
fn replaced(cluster: &Cluster, service: &Service) {
    let (node, what) = (service.id(), away::REPLACE);
    with(cluster, move |rt, client| async move {
        let order = MoveAway { node, disk: Some(0), what, dry_run: false, store: None };
        loop {
            // Until it has been heard of.
            let given: glowfs_types::Result<MoveAwayReply> =
                client.mgmtd(method::MOVE_AWAY, &order).await;
            match given {
                Ok(_) => return Ok(()),
                Err(_) => rt.sleep(Duration::from_millis(200)).await,
            }
        }
    });
}
