//! The world of the examples: real time, ids from a counter, one layout, a root directory.

use glowfs_kv::{Engine, run_transaction};
use glowfs_namespace::{Context, Env, RootSpec, bootstrap};
use glowfs_rt::Rt;
use glowfs_types::wire::meta::{Caller, Time};
use glowfs_types::{ChainTableId, DataId, Durability, Layout, Redundancy, Result, VolumeId};
use std::cell::Cell;
use std::rc::Rc;

pub struct World {
    rt: Rt,
    id: Cell<u64>,
}

impl World {
    pub fn new(rt: &Rt) -> Rc<Self> {
        Rc::new(Self { rt: rt.clone(), id: Cell::new(u64::from(std::process::id()) << 32) })
    }
}

impl Env for World {
    fn now(&self) -> Time {
        let ns = self.rt.unix_ns();
        Time { secs: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
    }
    fn new_id(&self) -> Result<u64> {
        self.id.set(self.id.get() + 1);
        Ok(self.id.get())
    }
    fn new_data(&self) -> Result<DataId> {
        self.new_id().map(DataId)
    }
    fn place(&self, inherited: &Layout, _: DataId) -> Result<Layout> {
        Ok(*inherited)
    }
}

fn layout() -> Layout {
    Layout {
        table: ChainTableId(1),
        table_version: 1,
        chunk_bytes: 1 << 20,
        stripe: 4,
        start: 0,
        redundancy: Redundancy::Replicated,
        durability: Durability::Written,
        inline_bytes: 0,
    }
}

/// Who asks.
pub fn caller() -> Caller {
    Caller { volume: VolumeId(1), ..Caller::default() }
}

/// Makes the root directory, where there is none.
pub async fn make_root(rt: &Rt, engine: &Rc<dyn Engine>, world: &World) -> Result<()> {
    let spec = RootSpec { mode: 0o755, uid: 0, gid: 0, layout: layout() };
    let caller = caller();
    let once = async |tx: &_| bootstrap(&Context::new(tx, &caller, world), &spec).await;
    run_transaction(rt, engine, once).await.map(drop)
}
