//! How far the resyncs that this node sends have come.

use glowfs_rt::{Instant, Rt};
use glowfs_types::wire::data::ResyncInfo;
use glowfs_types::{ChainId, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// One resync.
pub(crate) struct Progress {
    chain: ChainId,
    source: TargetId,
    target: TargetId,
    began: Instant,
    /// It has its turn and works.
    pub running: Cell<bool>,
    /// Chunks to compare, as far as known: what the source holds.
    pub total: Cell<u64>,
    /// Chunks compared (and sent, where they differed) in this pass.
    pub compared: Cell<u64>,
    /// Chunks sent or removed.
    pub sent: Cell<u64>,
    /// Bytes sent.
    pub bytes: Cell<u64>,
}

/// All of a node, by source target; gone with their end.
#[derive(Default)]
pub(crate) struct Resyncs(RefCell<BTreeMap<TargetId, Rc<Progress>>>);

impl Resyncs {
    /// Notes that one begins; it replaces one of an older chain version.
    pub fn begin(
        &self,
        rt: &Rt,
        chain: ChainId,
        source: TargetId,
        target: TargetId,
    ) -> Rc<Progress> {
        let progress = Rc::new(Progress {
            chain,
            source,
            target,
            began: rt.now(),
            running: Cell::new(false),
            total: Cell::new(0),
            compared: Cell::new(0),
            sent: Cell::new(0),
            bytes: Cell::new(0),
        });
        self.0.borrow_mut().insert(source, progress.clone());
        progress
    }
    /// Notes its end, unless another has taken its place.
    pub fn end(&self, progress: &Rc<Progress>) {
        let mut all = self.0.borrow_mut();
        if all.get(&progress.source).is_some_and(|p| Rc::ptr_eq(p, progress)) {
            all.remove(&progress.source);
        }
    }
    /// All of them, for STORAGE_INFO.
    pub fn list(&self, rt: &Rt) -> Vec<ResyncInfo> {
        let info = |p: &Rc<Progress>| ResyncInfo {
            chain: p.chain,
            source: p.source,
            target: p.target,
            running: p.running.get(),
            total_chunks: p.total.get(),
            compared_chunks: p.compared.get(),
            sent_chunks: p.sent.get(),
            sent_bytes: p.bytes.get(),
            elapsed_ms: rt.now().since(p.began).as_millis() as u64,
        };
        self.0.borrow().values().map(info).collect()
    }
}
