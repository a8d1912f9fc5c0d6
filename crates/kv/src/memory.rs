//! [`Memory`]: a volatile engine, for tests and for services that keep nothing.

use crate::mvcc::Mvcc;
use crate::{Engine, Key, RangePage, Value, Version};
use glowfs_rt::BoxFuture;
use glowfs_types::Result;
use glowfs_types::wire::kv::Commit;
use std::cell::RefCell;
use std::rc::Rc;

/// Versions that can still be read.
const WINDOW_VERSIONS: Version = 100_000;

/// A volatile engine. Cloning it gives another handle on the same data.
#[derive(Clone, Default)]
pub struct Memory {
    store: Rc<RefCell<Mvcc>>,
    unlimited: bool,
}

impl Memory {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }
    /// The same, as what everybody takes.
    pub fn engine() -> Rc<dyn Engine> {
        Rc::new(Self::new())
    }
    /// An empty one that takes keys, values and transactions of any size: what stands in for another engine, which has limits of its own.
    pub fn unlimited() -> Self {
        Self { unlimited: true, ..Self::default() }
    }
}

fn ready<T: 'static>(value: T) -> BoxFuture<T> {
    Box::pin(std::future::ready(value))
}

impl Engine for Memory {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        ready(Ok(self.store.borrow().version()))
    }
    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        let store = self.store.borrow();
        let read = |k: &Key| Ok(store.get(version, k)?.map(<[u8]>::to_vec));
        ready(keys.iter().map(read).collect())
    }
    fn is_newest(&self, version: Version) -> bool {
        self.store.borrow().version() == version
    }
    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        ready(self.store.borrow().get_range(version, &begin, &end, limit, reverse))
    }
    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        let mut store = self.store.borrow_mut();
        let checked = match self.unlimited {
            true => store.check_conflicts(&commit),
            false => store.check(&commit),
        };
        if let Err(e) = checked {
            return ready(Err(e));
        }
        if commit.mutations.is_empty() && commit.write_conflicts.is_empty() {
            return ready(Ok(store.version()));
        }
        let version = store.apply(&commit, &mut ());
        store.set_oldest(version.saturating_sub(WINDOW_VERSIONS));
        ready(Ok(version))
    }
    fn raise_stamps(&self, least: Version) -> BoxFuture<Result<()>> {
        self.store.borrow_mut().set_version(least);
        ready(Ok(()))
    }
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        ready(Ok(()))
    }
}
