//! Older records that are put back, while the stores hold targets that were made since.
#![allow(missing_docs)]

use crate::common::operate::*;
use crate::common::*;
use glowfs_kv::dump::format::Header;
use glowfs_kv::{Engine, Memory, dump};
use glowfs_mgmtd::{Running, skip_targets};
use glowfs_rt::{Rt, real};
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::*;
use std::collections::BTreeSet;
use std::rc::Rc;

const TABLE: ChainTableId = ChainTableId(1);
/// Of the table before, and behind.
const CHAINS: (usize, u32) = (6, 12);

async fn grow(w: &World, m: &Running) {
    let ask = GrowTable { table: TABLE, chains: CHAINS.1, dry_run: false };
    let _: CreateTableReply = admin(w, m, method::GROW_TABLE, &ask).await.expect("grown");
}

fn grown(r: &RoutingInfo) -> bool {
    r.newest_table(TABLE).is_some_and(|t| t.chains.len() == CHAINS.1 as usize) && complete(r)
}

/// An engine with what is in that one, as `meta load` makes it, or a copy of its directory.
async fn put_back(rt: &Rt, file: &[u8], skips: bool) -> Rc<dyn Engine> {
    let engine = Memory::engine();
    dump::load(rt, &engine, file, false, |_| {}).await.expect("loaded");
    let work = async |tx: &glowfs_kv::Transaction| {
        if skips { skip_targets(tx).await } else { Ok(()) }
    };
    dump::finish(rt, &engine, work).await.expect("in use");
    engine
}

/// The table has grown since the records were copied, and grows again. Where the targets of the first time had their ids given to those of the second, these lay on
/// the same disks, found what was adopted there before, and the new chains were served by nobody.
fn a_table_grows_again(skips: bool) {
    real::run(move |rt| async move {
        let (mut w, m, storages) = cluster(&rt, 3, 0).await;
        let mut file = Vec::new();
        dump::dump(&w.engine, Header::default(), &mut file, |_| {}).await.expect("dumped");
        grow(&w, &m).await;
        until(&rt, &storages[0].agent, BOUND, "grown", grown).await;
        let before = storages[0].agent.routing();
        let made = before.targets.len();
        let mut disks = Vec::new();
        for s in storages {
            for t in before.targets.values().filter(|t| t.store == s.store) {
                s.disk.holds.borrow_mut().insert(t.id, before.chains[&t.chain].version.next());
            }
            disks.push(s.stop().await);
        }
        m.stop().await;

        w.engine = put_back(&rt, &file, skips).await;
        let m = w.mgmtd(100).await;
        let start = |(node, disk)| FakeStorage::start(&w, node, at(&m), disk);
        let storages: Vec<_> = (1..).zip(disks).map(start).collect();
        for s in &storages {
            s.agent.ready().await;
        }
        let watch = &storages[0].agent;
        let as_before = |r: &RoutingInfo| r.chains.len() == CHAINS.0 && complete(r);
        until(&rt, watch, BOUND, "the chains of before", as_before).await;
        grow(&w, &m).await;
        until(&rt, watch, BOUND, "grown again", grown).await;
        let now = watch.routing();
        let old: BTreeSet<_> = before.targets.keys().collect();
        let new = now.targets.keys().filter(|t| !old.contains(t)).count();
        assert_eq!(new, made / 2, "of every new chain all targets are new");
        m.stop().await;
    });
}

#[test]
fn after_a_restore_new_targets_get_ids_that_none_had() {
    a_table_grows_again(true);
}

/// A copy of the engine's directory was put back, and `skip-ids` forgotten.
#[test]
fn new_targets_get_ids_behind_all_that_stores_hold() {
    a_table_grows_again(false);
}
