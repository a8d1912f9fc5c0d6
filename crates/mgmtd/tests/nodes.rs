//! Nodes that come twice, and nodes that go for good.
#![allow(missing_docs)]

mod common;
use common::operate::*;
use common::*;
use glowfs_agent::{Agent, AgentConfig, NoTargets};
use glowfs_kv::EngineConfig;
use glowfs_mgmtd::{Running, start};
use glowfs_rt::real;
use glowfs_types::routing::{Role, RoutingInfo};
use glowfs_types::wire::hello::ServiceStatus;
use glowfs_types::wire::operate::*;
use glowfs_types::wire::{Empty, method};
use glowfs_types::*;
use std::rc::Rc;

/// A node with a copied configuration: the same id, elsewhere, or something else.
fn second(w: &World, m: &Running, node: u64, host: u128, role: Role) -> Agent {
    let mut config = AgentConfig::new(CLUSTER, role, NodeId(node), at(m), SERVICE_TOKEN.into());
    config.host = HostId(host);
    config.hostname = format!("host-{host}");
    config.addresses = vec!["tcp://127.0.0.1:9".into()];
    Agent::start(&w.rt, config, Rc::new(NoTargets)).expect("agent")
}

#[test]
fn a_copied_node_id_does_not_put_the_node_that_has_it_out_of_its_chains() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        let watch = storages[0].agent.clone();
        for (host, role) in [(77, Role::Storage), (78, Role::Meta)] {
            let copy = second(&w, &m, 3, host, role);
            let joined = rt.timeout(ms(3000), copy.ready()).await;
            assert!(joined.is_err(), "the copy on host {host} was taken");
            assert!(complete(&watch.routing()), "the node that had the id lost it");
            assert!(storages[2].agent.lease_valid());
            copy.kill();
        }
        let copy = second(&w, &m, 100, 77, Role::Mgmtd);
        let joined = rt.timeout(ms(3000), copy.ready()).await;
        assert!(joined.is_err(), "somebody else has the primary's id");
        copy.kill();
        let e = remove(&w, &m, 100, false).await.expect_err("the primary");
        assert!(e.status == Status::Busy && e.message.contains("stop it first"), "{e}");

        // The node moves: it stops, and comes up elsewhere at once.
        storages.remove(2).stop().await;
        let moved = second(&w, &m, 3, 79, Role::Storage);
        rt.timeout(BOUND, moved.ready()).await.expect("it has moved");
        // It moves without a word.
        moved.kill();
        let moved = second(&w, &m, 3, 80, Role::Storage);
        rt.timeout(BOUND, moved.ready()).await.expect("it has moved, a lease later");
        moved.kill();
        m.stop().await;
    });
}

/// A primary that has just taken over has heard of nobody.
#[test]
fn nor_does_it_after_a_primary_has_taken_over() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        storages.remove(2).kill();
        m.stop().await;
        let m = w.mgmtd(100).await;
        let copy = second(&w, &m, 3, 77, Role::Storage);
        assert!(rt.timeout(ms(1000), copy.ready()).await.is_err(), "the copy was taken");
        // The real one has not come back within its lease: then it has moved.
        rt.timeout(BOUND, copy.ready()).await.expect("it has moved, a lease later");
        copy.kill();
        m.stop().await;
    });
}

async fn remove(w: &World, m: &Running, node: u64, dry_run: bool) -> Result<String> {
    let ask = RemoveNode { node: NodeId(node), dry_run };
    let reply: RemoveNodeReply = admin(w, m, method::REMOVE_NODE, &ask).await?;
    Ok(reply.explanation)
}

#[test]
fn a_node_that_is_gone_for_good_is_forgotten() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 4, 0).await;
        let watch = storages[0].agent.clone();
        let e = remove(&w, &m, 4, false).await.expect_err("it lives");
        assert!(e.status == Status::Busy && e.message.contains("stop it first"), "{e}");
        let disk = storages.remove(3).kill();
        let dead = |r: &RoutingInfo| r.chains.values().all(|c| c.serving().count() < 4);
        until(&rt, &watch, BOUND, "dead", dead).await;
        let end = rt.now() + BOUND;
        let e = loop {
            let e = remove(&w, &m, 4, false).await.expect_err("it has targets");
            if !e.message.contains("stop it first") || rt.now() > end {
                break e;
            }
            rt.sleep(ms(100)).await;
        };
        assert!(e.status == Status::Busy && e.message.contains("drain 4"), "{e}");
        order(&w, &m, (4, None), away::DRAIN).await.expect("places");
        let left = |r: &RoutingInfo| {
            r.chains.values().all(|c| c.members.iter().all(|m| m.node != NodeId(4))) && complete(r)
        };
        until(&rt, &watch, BOUND, "drained", left).await;
        assert_ne!(on(&watch.routing(), NodeId(4)), 0, "nobody says that it has dropped them");

        let told = remove(&w, &m, 4, true).await.expect("told");
        assert!(told.contains("would be") && told.contains("1 disks"), "{told}");
        assert!(watch.routing().nodes.contains_key(&NodeId(4)), "a dry run changes nothing");
        remove(&w, &m, 4, false).await.expect("forgotten");
        until(&rt, &watch, BOUND, "forgotten", |r| !r.nodes.contains_key(&NodeId(4))).await;
        assert_eq!(on(&watch.routing(), NodeId(4)), 0);
        remove(&w, &m, 4, false).await.expect("a repetition finds it done");
        let e = remove(&w, &m, 5, false).await.expect_err("nobody");
        assert_eq!(e.status, Status::InvalidArgument, "{e}");

        // The next primary knows no more of it, and whoever asks after it has gone hears so.
        m.stop().await;
        let m = w.mgmtd(101).await;
        let again = FakeStorage::start(&w, 5, at(&m), Rc::default());
        rt.timeout(BOUND, again.agent.ready()).await.expect("joins");
        assert!(!again.agent.routing().nodes.contains_key(&NodeId(4)));
        // It comes back as a new one.
        let back = FakeStorage::start(&w, 4, at(&m), disk);
        until(&rt, &again.agent, BOUND, "back", |r| r.nodes.contains_key(&NodeId(4))).await;
        until(&rt, &back.agent, BOUND, "knows itself", |r| r.nodes.contains_key(&NodeId(4))).await;
        m.stop().await;
    });
}

#[test]
fn an_mgmtd_that_waits_for_its_engine_says_why() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        let mut config = w.config(100);
        config.engine = EngineConfig::Remote { addresses: vec!["tcp://127.0.0.1:1".into()] };
        let m = start(&rt, config).await.expect("it starts, and waits");
        let end = rt.now() + BOUND;
        loop {
            let conn = w.conn(&at(&m), SERVICE_TOKEN).await.expect("a service");
            let status: Result<ServiceStatus> =
                conn.call_msg(method::SERVICE_STATUS, &Empty {}, ms(5000)).await;
            let detail = status.expect("an answer").detail;
            if detail.contains("refused") {
                break;
            }
            assert!(rt.now() < end, "not said: {detail}");
            rt.sleep(ms(50)).await;
        }
        m.stop().await;
    });
}

#[test]
fn one_token_for_root_and_services_is_refused() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        let mut config = w.config(100);
        config.root_token_file = config.service_token_file.clone();
        let e = start(&rt, config).await.err().expect("refused");
        assert!(e.status == Status::InvalidArgument && e.message.contains("its own"), "{e}");
    });
}
