//! Fresh ids: ranges taken from the engine in commits that are on disk, so that no id is ever given out twice, whatever is lost.

use glowfs_kv::{Engine, RunOptions, run_transaction_with};
use glowfs_namespace::{IdRange, take_data_ids, take_ids};
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
}

impl Ids {
    /// None yet.
    pub fn new(kind: IdKind) -> Rc<Self> {
        Rc::new(Self { kind, ranges: RefCell::default(), fetching: Cell::new(false) })
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
        // An unknown outcome may be repeated: at worst a range is skipped.
        let options = RunOptions { idempotent: true, ..RunOptions::durable() };
        let kind = self.kind;
        let range = run_transaction_with(rt, engine, options, async |tx| match kind {
            IdKind::Inode => take_ids(tx, volume, RANGE).await,
            IdKind::Data => take_data_ids(tx, volume, RANGE).await,
        })
        .await?;
        self.ranges.borrow_mut().push_back(range);
        Ok(())
    }
}
