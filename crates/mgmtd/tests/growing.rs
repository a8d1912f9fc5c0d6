//! Tables that grow onto nodes that came later.
#![allow(missing_docs)]

mod common;
use common::operate::*;
use common::*;
use glowfs_rt::real;
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::method;
use std::rc::Rc;

const TABLE: ChainTableId = ChainTableId(1);

async fn grow(w: &World, m: &Running, chains: u32, dry_run: bool) -> Result<CreateTableReply> {
    admin(w, m, method::GROW_TABLE, &GrowTable { table: TABLE, chains, dry_run }).await
}

use glowfs_mgmtd::Running;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::*;

#[test]
fn more_chains_go_to_disks_that_came_later_and_what_is_there_stays() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        let watch = storages[0].agent.clone();
        let first = watch.routing().newest_table(TABLE).cloned().expect("a table");
        assert!(!first.chains.is_empty() && first.version == 1);
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
        assert_eq!(done.explanation, dry.explanation);
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
