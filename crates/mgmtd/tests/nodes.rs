//! Nodes that come twice, and nodes that go for good.
#![allow(missing_docs)]

use crate::common::operate::*;
use crate::common::*;
use glowfs_agent::{Agent, AgentConfig, NoTargets, Report};
use glowfs_kv::EngineConfig;
use glowfs_mgmtd::{Running, start, start_with_engine};
use glowfs_rt::{Duration, real};
use glowfs_types::routing::{LocalState, Role, RoutingInfo};
use glowfs_types::wire::hello::ServiceStatus;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::wire::operate::*;
use glowfs_types::wire::{Empty, method};
use glowfs_types::*;
use std::cell::RefCell;
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

/// What a storage reports that was started with another one's node id: it has heard of its targets, and finds none of them.
struct FindsNothing(NodeId, RefCell<Rc<RoutingInfo>>);

impl Report for FindsNothing {
    fn targets(&self) -> Vec<TargetReport> {
        let routing = self.1.borrow();
        let mine = routing.targets.values().filter(|t| t.node == self.0);
        mine.map(|t| TargetReport {
            target: t.id,
            local: LocalState::Offline,
            incarnation: t.incarnation,
            clean: false,
            machine_since: Incarnation(0),
            adopted: ChainVersion(0),
            used_bytes: 0,
            store: t.store,
            known: ChainVersion(0),
            served: None,
            nonce: 0,
            former: 0,
        })
        .collect()
    }
}

/// A storage with a copied configuration and an empty disk: its link, on which it registers that disk until it is taken, or at once sends heartbeats.
fn copied(w: &World, m: &Running, host: HostId, registers: bool) -> Agent {
    let node = NodeId(3);
    let mut config = AgentConfig::new(CLUSTER, Role::Storage, node, at(m), SERVICE_TOKEN.into());
    config.host = host;
    let report = Rc::new(FindsNothing(node, RefCell::default()));
    let agent = Agent::start(&w.rt, config, report.clone()).expect("agent");
    agent.on_routing_change(move |r| *report.1.borrow_mut() = r.clone());
    let (a, rt) = (agent.clone(), w.rt.clone());
    w.rt.spawn_detached(async move {
        // It has heard how the cluster is before it is heard.
        a.routing_after(RoutingVersion(0)).await;
        let register = stores_of(&a, node, &[(StoreId(999), 0)]);
        let call = || a.link().call::<_, Empty>(method::REGISTER_STORES, &register, ms(5000));
        while registers && call().await.is_err() {
            rt.sleep(ms(50)).await;
        }
        a.announce(vec!["tcp://127.0.0.1:9".into()]);
    });
    agent
}

#[test]
fn a_copied_configuration_takes_no_disk_of_the_node_that_it_was_copied_from() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 3, 0).await;
        let watch = &storages[0].agent;
        let here = glowfs_net::local_host_id();
        let mut table = 1;
        for (host, registers) in [(HostId(77), true), (here, true), (here, false)] {
            let copy = copied(&w, &m, host, registers);
            let joined = rt.timeout(ms(2500), copy.ready()).await;
            assert!(joined.is_err(), "taken: {host:?} {registers}");
            assert!(complete(&watch.routing()), "its targets are out: {host:?} {registers}");
            assert!(storages[2].agent.lease_valid());
            // Its disk is a place as before.
            table += 1;
            let before = on(&watch.routing(), NodeId(3));
            let create = CreateTable {
                table: ChainTableId(table),
                replicas: 3,
                chains: 2,
                description: String::new(),
                dry_run: false,
            };
            let laid: CreateTableReply =
                admin(&w, &m, method::CREATE_TABLE, &create).await.expect("laid over all three");
            assert_eq!(laid.version, 1);
            let more = |r: &RoutingInfo| on(r, NodeId(3)) == before + 2 && complete(r);
            until(&rt, watch, BOUND, "laid", more).await;
            copy.kill();
        }
        m.stop().await;
    });
}

/// A copy that was alone for a while has registered its disk. The node is let in all the same when it comes back, and the copy is not when it is started again.
#[test]
fn a_node_gets_its_id_back_from_a_copy_on_its_host() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        let disk = storages.remove(2).stop().await;
        let here = glowfs_net::local_host_id();
        let copy = copied(&w, &m, here, true);
        rt.timeout(BOUND, copy.ready()).await.expect("nobody else has the id");
        let back = FakeStorage::start(&w, 3, at(&m), disk);
        rt.timeout(SECOND, back.agent.ready()).await.expect("it has the targets");
        until(&rt, &storages[0].agent, BOUND, "whole", complete).await;
        copy.kill();
        let copy = copied(&w, &m, here, true);
        assert!(rt.timeout(ms(2500), copy.ready()).await.is_err(), "the copy was taken");
        assert!(complete(&storages[0].agent.routing()) && back.agent.lease_valid());
        m.stop().await;
    });
}

/// Whoever really is the node must not have to wait for its former life's lease (1.7 s).
#[test]
fn a_node_that_is_started_again_is_let_in_at_once() {
    const AT_ONCE: Duration = Duration::from_millis(1200);
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        let watch = storages[0].agent.clone();
        let second_disk = (StoreId(33), 1);
        register(&storages[2], &[(StoreId(3), 0), second_disk]).await;

        // Its process was killed: the same stores, elsewhere in the network of its host.
        let disk = storages.remove(2).kill();
        let elsewhere = |c: &mut AgentConfig| c.addresses = vec!["tcp://127.0.0.1:11".into()];
        let back = FakeStorage::start_as(&w, 3, StoreId(3), at(&m), disk, elsewhere);
        rt.timeout(AT_ONCE, back.agent.ready()).await.expect("killed, another address");
        until(&rt, &watch, BOUND, "whole", complete).await;

        // It was killed, and of its disks one is lost: that with all of its targets.
        register(&back, &[(StoreId(3), 0), second_disk]).await;
        back.kill();
        let back = FakeStorage::start_as(&w, 3, StoreId(33), at(&m), Rc::default(), |_| {});
        rt.timeout(AT_ONCE, back.agent.ready()).await.expect("a disk lost");

        // Its last disk is replaced while it runs; also by a release that does not say which life it is.
        for (store, known) in [(StoreId(333), true), (StoreId(3333), false)] {
            let mut stores = stores_of(&back.agent, NodeId(3), &[(store, 0)]);
            if !known {
                stores.incarnation = Incarnation(0);
            }
            let taken =
                back.agent.link().call::<_, Empty>(method::REGISTER_STORES, &stores, SECOND);
            taken.await.expect("a disk replaced while it runs");
        }

        // It has lost all its disks, and is let in when its former life is over for certain.
        back.kill();
        let began = rt.now();
        let back = FakeStorage::start_as(&w, 3, StoreId(4444), at(&m), Rc::default(), |_| {});
        rt.timeout(BOUND, back.agent.ready()).await.expect("all disks lost");
        assert!(rt.now().since(began) < ms(4000), "a lease, not longer");

        // All machines were started again: other hosts by their boot ids, and by their names the same.
        for s in storages.drain(..) {
            s.kill();
        }
        m.stop().await;
        let m = w.mgmtd(100).await;
        let again: Vec<_> = (1..=2)
            .map(|n| {
                let booted = |c: &mut AgentConfig| c.host = HostId(1000 + u128::from(n));
                FakeStorage::start_as(&w, n, StoreId(n.into()), at(&m), Rc::default(), booted)
            })
            .collect();
        for s in &again {
            rt.timeout(AT_ONCE, s.agent.ready()).await.expect("its machine was started again");
        }
        m.stop().await;
    });
}

/// Two mgmtd with one node id took the lease from each other, several times a second: nobody was ever declared dead.
#[test]
fn two_mgmtd_with_one_node_id_do_not_take_the_lease_from_each_other() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        let first = w.mgmtd(100).await;
        while !first.is_primary() {
            rt.sleep(ms(5)).await;
        }
        let before = epoch(&w).await;
        let second = w.mgmtd(100).await;
        rt.sleep(ms(3000)).await;
        assert_eq!(epoch(&w).await, before, "the lease changed hands");
        let status = second.status();
        let said = status.detail.contains("node_id 100") && status.detail.contains(&at(&first)[0]);
        assert!(said && !status.healthy, "{status:?}");
        assert!(first.is_primary() && first.status().healthy);
        // It leads to the primary all the same.
        let s = FakeStorage::start(&w, 1, [at(&second), at(&first)].concat(), Rc::default());
        rt.timeout(ms(3000), s.agent.ready()).await.expect("redirected");
        // It is a standby like any other.
        first.crash().await;
        let began = rt.now();
        while !second.is_primary() {
            assert!(rt.now().since(began) < ms(3000), "no take-over");
            rt.sleep(ms(5)).await;
        }
        assert!(second.status().healthy);
        second.stop().await;
    });
}

/// An mgmtd that was killed and started again need not wait until its own lease is over (900 ms).
#[test]
fn an_mgmtd_that_is_started_again_takes_its_lease_up() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        let mut before = w.mgmtd(100).await;
        for (same_place, limit) in [(true, 250), (false, 800)] {
            while !before.is_primary() {
                rt.sleep(ms(5)).await;
            }
            let mut config = w.config(100);
            if same_place {
                config.listen = at(&before);
            }
            before.crash().await;
            // The kernel takes its time with the port.
            let (began, running) = loop {
                let began = rt.now();
                match start_with_engine(&rt, config.clone(), Some(w.engine.clone())).await {
                    Ok(running) => break (began, running),
                    Err(e) => assert!(e.message.contains("in use"), "{e}"),
                }
                rt.sleep(ms(10)).await;
            };
            before = running;
            while !before.is_primary() {
                rt.sleep(ms(5)).await;
            }
            let took = rt.now().since(began);
            assert!(took < ms(limit), "{took:?}, same place: {same_place}");
        }
        before.stop().await;
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
