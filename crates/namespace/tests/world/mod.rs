//! A file system in memory for the tests of the rules: an engine, a clock that they move, ids from a counter.

use glowfs_kv::{Engine, Memory, run_transaction};
use glowfs_namespace::{self as ns, Context, Env, RootSpec};
use glowfs_rt::Rt;
use glowfs_types::wire::meta::{Caller, Time};
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

/// The volume of all tests.
pub const V: VolumeId = VolumeId(1);
/// Ids from here on are given to nobody.
pub const NEXT: u64 = 1 << 32;
/// A chain table that does not exist.
pub const NO_TABLE: u64 = 99;

/// See the module.
pub struct World {
    pub rt: Rt,
    pub engine: Rc<dyn Engine>,
    /// The newest id that was given out.
    pub id: Cell<u64>,
    /// In seconds.
    pub clock: Cell<i64>,
    /// The cluster's time, in seconds, if it is not the clock.
    pub cluster: Cell<Option<i64>>,
    /// The clock goes on by a second each time it is asked.
    pub ticks: bool,
    /// Removed files go to the trash, where there is one.
    pub keeps_removed: bool,
    /// More contents of small files may be kept.
    pub room: Cell<bool>,
}

impl Env for World {
    fn now(&self) -> Time {
        if self.ticks {
            self.clock.set(self.clock.get() + 1);
        }
        Time { secs: self.clock.get(), nanos: 0 }
    }
    fn memory_secs(&self) -> Option<i64> {
        self.cluster.get()
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
    fn knows_layout(&self, layout: &Layout, _: bool) -> bool {
        layout.table.0 != NO_TABLE
    }
    fn room_for_contents(&self) -> bool {
        self.room.get()
    }
    fn room_for_xattrs(&self) -> bool {
        self.room.get()
    }
    fn keeps_removed(&self) -> bool {
        self.keeps_removed
    }
}

/// The layout of the root.
pub fn layout(inline_bytes: u32) -> Layout {
    Layout {
        table: ChainTableId(1),
        table_version: 1,
        chunk_bytes: 65536,
        stripe: 4,
        start: 0,
        redundancy: Redundancy::Replicated,
        durability: Durability::Written,
        inline_bytes,
    }
}

impl World {
    /// One with an empty root, in which everybody may write.
    pub async fn new(rt: &Rt, inline_bytes: u32) -> Self {
        Self::over(rt, inline_bytes, Memory::engine()).await
    }
    /// The same over an engine with nothing in it.
    pub async fn over(rt: &Rt, inline_bytes: u32, engine: Rc<dyn Engine>) -> Self {
        let w = Self {
            rt: rt.clone(),
            engine,
            id: Cell::new(1),
            clock: Cell::new(1_000_000),
            cluster: Cell::new(None),
            ticks: false,
            keeps_removed: false,
            room: Cell::new(true),
        };
        let spec = RootSpec { mode: 0o777, uid: 0, gid: 0, layout: layout(inline_bytes) };
        let caller = Caller { client: ClientId(1), volume: V, ..Caller::default() };
        for expected in [true, false] {
            let made = run_transaction(&w.rt, &w.engine, async |tx| {
                ns::bootstrap(&Context::new(tx, &caller, &w), &spec).await
            });
            assert_eq!(made.await.expect("root"), expected);
        }
        // The world gives out ids by itself.
        let given = run_transaction(&w.rt, &w.engine, async |tx| {
            ns::take_ids(tx, V, NEXT).await?;
            ns::take_data_ids(tx, V, NEXT).await
        });
        given.await.expect("ids");
        w
    }
}
