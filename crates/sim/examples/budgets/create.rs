//! Files made in process: the rules of the namespace over the embedded engine, on a simulated disk.

use crate::{DEPTH, LIMIT, timed_out};
use glowfs_kv::{Embedded, EmbeddedConfig, Engine, run_transaction};
use glowfs_namespace::{Context, Env, RootSpec, bootstrap, make};
use glowfs_sim::world::World;
use glowfs_types::wire::meta::{Caller, InodeKind, Make, Time};
use glowfs_types::{
    ChainTableId, ClusterId, DataId, Durability, Error, InodeId, Layout, Redundancy, RequestId,
    Result, VolumeId,
};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

/// Gives ids out, and no time.
struct Ids(Cell<u64>);

impl Env for Ids {
    fn now(&self) -> Time {
        Time::default()
    }
    fn new_id(&self) -> Result<u64> {
        self.0.set(self.0.get() + 1);
        Ok(self.0.get())
    }
    fn new_data(&self) -> Result<DataId> {
        self.new_id().map(DataId)
    }
    fn place(&self, inherited: &Layout, _: DataId) -> Result<Layout> {
        Ok(*inherited)
    }
}

const LAYOUT: Layout = Layout {
    table: ChainTableId(1),
    table_version: 1,
    chunk_bytes: 1 << 20,
    stripe: 4,
    start: 0,
    redundancy: Redundancy::Replicated,
    durability: Durability::Written,
    inline_bytes: 0,
};

/// So many files in one directory.
pub fn in_process(count: u64) -> Result<()> {
    let world = World::new(1);
    let node = world.node("meta");
    let rt = node.rt();
    let work = async move {
        let dir = rt.open_dir(Path::new("meta"))?;
        let engine = Embedded::open(&rt, dir, EmbeddedConfig::new(ClusterId(1))).await?;
        let engine: Rc<dyn Engine> = Rc::new(engine);
        let ids = Rc::new(Ids(Cell::new(1 << 32)));
        let caller = Caller { volume: VolumeId(1), ..Caller::default() };
        let spec = RootSpec { mode: 0o755, uid: 0, gid: 0, layout: LAYOUT };
        run_transaction(&rt, &engine, async |tx| {
            bootstrap(&Context::new(tx, &caller, &*ids), &spec).await
        })
        .await?;
        let lanes: Vec<_> = (0..DEPTH)
            .map(|lane| {
                let (rt2, engine, ids, caller) =
                    (rt.clone(), engine.clone(), ids.clone(), caller.clone());
                rt.spawn(async move {
                    for i in (lane..count).step_by(DEPTH as usize) {
                        let q = Make {
                            caller: caller.clone(),
                            request: RequestId(rt2.random_u128()),
                            parent: InodeId(1),
                            name: format!("file{i}").into_bytes().into(),
                            kind: InodeKind::File,
                            mode: 0o644,
                            exclusive: true,
                            ..Make::default()
                        };
                        let once =
                            async |tx: &_| make(&Context::new(tx, &q.caller, &*ids), &q).await;
                        run_transaction(&rt2, &engine, once).await?;
                    }
                    Ok::<(), Error>(())
                })
            })
            .collect();
        for lane in lanes {
            lane.await?;
        }
        Ok(())
    };
    world.run(&node, LIMIT, work).unwrap_or_else(|| Err(timed_out()))
}
