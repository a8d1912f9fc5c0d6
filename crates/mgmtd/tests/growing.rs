//! Tables that grow onto nodes that came later.
#![allow(missing_docs)]

use crate::common::operate::*;
use crate::common::*;
use glowfs_mgmtd::Running;
use glowfs_rt::real;
use glowfs_types::routing::{Role, RoutingInfo};
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::wire::operate::away;
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

const TABLE: ChainTableId = ChainTableId(1);

async fn grow(w: &World, m: &Running, chains: u32, dry_run: bool) -> Result<CreateTableReply> {
    admin(w, m, method::GROW_TABLE, &GrowTable { table: TABLE, chains, dry_run }).await
}

#[test]
fn more_chains_go_to_disks_that_came_later_and_what_is_there_stays() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        let watch = storages[0].agent.clone();
        let first = watch.routing().newest_table(TABLE).cloned().expect("a table");
        assert!(!first.chains.is_empty() && first.version == 1);
        assert_eq!(first.replicas, 3, "everybody is told");
        for node in [4, 5] {
            storages.push(FakeStorage::start(&w, node, at(&m), Rc::default()));
        }
        let create = CreateTable {
            table: TABLE,
            replicas: 3,
            chains: 6,
            description: "test".into(),
            dry_run: false,
        };
        // Repeated, the first order says what it has not used.
        let end = rt.now() + BOUND;
        loop {
            let again: CreateTableReply =
                admin(&w, &m, method::CREATE_TABLE, &create).await.expect("exists");
            let unused = again.explanation.matches("no chain uses node").count();
            if unused == 2 && again.explanation.contains("grow-table") {
                break;
            }
            assert!(rt.now() < end, "{}", again.explanation);
            rt.sleep(ms(50)).await;
        }

        let before = watch.routing();
        let dry = grow(&w, &m, 12, true).await.expect("explained");
        assert!(dry.version == 2 && dry.explanation.contains("from 6 chains to 12"), "{dry:?}");
        rt.sleep(ms(200)).await;
        assert_eq!(watch.routing().tables, before.tables, "a dry run changes nothing");

        let done = grow(&w, &m, 12, false).await.expect("grown");
        let more = dry.explanation.strip_prefix(&done.explanation);
        assert!(more.is_some_and(|m| m.contains("for the life of the cluster")), "{dry:?}");
        let grown = |r: &RoutingInfo| r.newest_table(TABLE).is_some_and(|t| t.version == 2);
        until(&rt, &watch, BOUND, "grown", |r| grown(r) && complete(r)).await;
        let now = watch.routing();
        let second = now.newest_table(TABLE).expect("a table");
        assert_eq!((second.chains.len(), &second.chains[..6]), (12, &first.chains[..]));
        assert_eq!(now.table(TABLE, 1), Some(&first), "versions never change");
        for chain in &first.chains {
            assert_eq!(now.chains[chain].members, before.chains[chain].members);
        }
        // 36 targets: each of the new ones has one of every new chain, the others share the rest.
        let loads: Vec<_> = (1..=5).map(|n| on(&now, NodeId(n))).collect();
        assert_eq!(loads, [8, 8, 8, 6, 6]);

        let again = grow(&w, &m, 12, false).await.expect("a repetition finds it done");
        assert_eq!(again.version, 2);
        let e = grow(&w, &m, 11, false).await.expect_err("chains stay");
        assert_eq!(e.status, Status::InvalidArgument, "{e}");
        let old: CreateTableReply =
            admin(&w, &m, method::CREATE_TABLE, &create).await.expect("exists");
        assert_eq!(old.version, 1);
        assert_eq!(watch.routing().chains.len(), 12, "none of that laid a chain");

        // The next primary has both versions.
        m.stop().await;
        let m = w.mgmtd(101).await;
        let new = FakeStorage::start(&w, 6, at(&m), Rc::default());
        until(&rt, &new.agent, BOUND, "known", grown).await;
        assert_eq!(new.agent.routing().table(TABLE, 1), Some(&first));
        m.stop().await;
    });
}

async fn set(w: &World, m: &Running, toml: &str) {
    let item = ConfigItem { version: ConfigVersion(0), role: Role::Mgmtd, toml: toml.into() };
    let change = ClusterConfig { items: vec![item], ..ClusterConfig::default() };
    let _: ClusterConfig = admin(w, m, method::SET_CONFIG, &change).await.expect("set");
}

fn loads(r: &RoutingInfo, nodes: u64) -> Vec<usize> {
    (1..=nodes).map(|n| on(r, NodeId(n))).collect()
}

#[test]
fn with_balance_what_is_there_moves_onto_disks_that_came_later_until_it_is_even() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        let watch = storages[0].agent.clone();
        let least = Rc::new(Cell::new(3));
        let low = least.clone();
        watch.on_routing_change(move |r| {
            let now = r.chains.values().map(|c| c.serving().count()).min().unwrap_or(0);
            low.set(low.get().min(now));
        });
        for node in [4, 5] {
            storages.push(FakeStorage::start(&w, node, at(&m), Rc::default()));
        }
        until(&rt, &watch, BOUND, "there", |r| r.nodes.contains_key(&NodeId(5))).await;
        rt.sleep(ms(300)).await;
        assert_eq!(loads(&watch.routing(), 5), [6, 6, 6, 0, 0], "off by default");

        set(&w, &m, "balance = true").await;
        // 18 targets on 5 disks.
        let even = |r: &RoutingInfo| loads(r, 5).iter().all(|n| [3, 4].contains(n)) && complete(r);
        until(&rt, &watch, BOUND, "even", even).await;
        assert_eq!(least.get(), 3, "a chain fell below its replication");
        let version = watch.routing().chains.values().map(|c| c.version.0).sum::<u64>();
        rt.sleep(ms(1000)).await;
        let later = watch.routing().chains.values().map(|c| c.version.0).sum::<u64>();
        assert_eq!(version, later, "it does not come to rest");

        // A drain comes first, and what it has moved is not moved back.
        order_when_possible(&w, &m, (5, None), away::DRAIN).await;
        let rest = |r: &RoutingInfo| {
            on(r, NodeId(5)) == 0 && loads(r, 4).iter().all(|n| [4, 5].contains(n)) && complete(r)
        };
        until(&rt, &watch, BOUND, "drained and even", rest).await;
        assert_eq!(least.get(), 3);
        m.stop().await;
    });
}
