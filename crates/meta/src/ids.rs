//! Fresh ids: ranges taken from the engine in commits that are on disk, so that no id is ever given out twice, whatever is lost.

use crate::state::{Service, VOLUME};
use glowfs_kv::{Engine, RunOptions, Transaction, run_transaction_with};
use glowfs_namespace::{IdRange, skip_ids, take_data_ids, take_ids};
use glowfs_rt::Rt;
use glowfs_types::{Error, Result, Status, VolumeId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Ids of one range.
const RANGE: u64 = 16_384;

/// Which kind of id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdKind {
    /// Inodes and directory cookies.
    Inode,
    /// Data.
    Data,
}

/// The ids of one kind that this service may give out.
pub struct Ids {
    kind: IdKind,
    ranges: RefCell<VecDeque<IdRange>>,
    fetching: Cell<bool>,
    /// Smaller ones are not given out, also of ranges that are still being fetched.
    least: Cell<u64>,
}

impl Ids {
    /// None yet.
    pub fn new(kind: IdKind) -> Rc<Self> {
        Rc::new(Self {
            kind,
            ranges: RefCell::default(),
            fetching: Cell::new(false),
            least: Cell::new(0),
        })
    }

    /// The next one.
    pub fn take(&self) -> Result<u64> {
        let mut ranges = self.ranges.borrow_mut();
        while let Some(range) = ranges.front_mut() {
            if range.next < range.end {
                range.next += 1;
                return Ok(range.next - 1);
            }
            ranges.pop_front();
        }
        Err(Error::new(Status::Overloaded, "fresh ids are being fetched; retry"))
    }

    /// Those that it has and has given to nobody.
    pub fn unused(&self) -> Vec<IdRange> {
        self.ranges.borrow().iter().copied().filter(|r| r.next < r.end).collect()
    }

    fn left(&self) -> u64 {
        self.ranges.borrow().iter().map(|r| r.end - r.next).sum()
    }

    /// Fetches a range in the background if half of one is used up.
    pub fn keep_filled(self: &Rc<Self>, rt: &Rt, engine: &Rc<dyn Engine>, volume: VolumeId) {
        if self.left() > RANGE / 2 || self.fetching.replace(true) {
            return;
        }
        let (this, task_rt, engine) = (self.clone(), rt.clone(), engine.clone());
        rt.spawn_detached(async move {
            if let Err(error) = this.fetch(&task_rt, &engine, volume).await {
                tracing::warn!(%error, kind = ?this.kind, "cannot fetch fresh ids");
            }
            this.fetching.set(false);
        });
    }

    /// Fetches a range.
    pub async fn fetch(&self, rt: &Rt, engine: &Rc<dyn Engine>, volume: VolumeId) -> Result<()> {
        let range = self.range(rt, engine, volume).await?;
        if range.next >= self.least.get() {
            self.ranges.borrow_mut().push_back(range);
        }
        Ok(())
    }

    async fn range(&self, rt: &Rt, engine: &Rc<dyn Engine>, volume: VolumeId) -> Result<IdRange> {
        // An unknown outcome may be repeated: at worst a range is skipped.
        let options = RunOptions { idempotent: true, ..RunOptions::durable() };
        let kind = self.kind;
        run_transaction_with(rt, engine, options, async |tx| match kind {
            IdKind::Inode => take_ids(tx, volume, RANGE).await,
            IdKind::Data => take_data_ids(tx, volume, RANGE).await,
        })
        .await
    }

    /// Gives out only what is fetched from now on.
    async fn begin_anew(&self, rt: &Rt, engine: &Rc<dyn Engine>, volume: VolumeId) -> Result<()> {
        let range = self.range(rt, engine, volume).await?;
        self.least.set(range.next);
        let mut ranges = self.ranges.borrow_mut();
        ranges.retain(|r| r.next >= range.next);
        ranges.push_back(range);
        Ok(())
    }
}

impl Service {
    /// Chunks are stored under data id `seen`, though the engine would give it out: it is an old copy. Everything that may have been given out since is skipped,
    /// also of what this service holds.
    pub async fn skip_ids(&self, seen: u64) -> Result<()> {
        let unused = self.data_ids.unused();
        // An unknown outcome may be repeated: then it finds them skipped.
        let options = RunOptions { idempotent: true, ..RunOptions::durable() };
        let work = async |tx: &Transaction| skip_ids(tx, VOLUME, &unused, Some(seen)).await;
        run_transaction_with(&self.rt, &self.engine, options, work).await?;
        for ids in [&self.inode_ids, &self.data_ids] {
            ids.begin_anew(&self.rt, &self.engine, VOLUME).await?;
        }
        Ok(())
    }
}
