//! The node's own view of its lease.

use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::{Error, Result, Status};
use std::cell::Cell;
use std::rc::Rc;

/// Until when this process may serve. Cheap to clone and to ask; check it when a request is taken and again, after the
/// I/O, before it is answered.
#[derive(Clone)]
pub struct Lease {
    rt: Rt,
    until: Rc<Cell<Instant>>,
}

impl Lease {
    /// No lease yet.
    pub fn new(rt: &Rt) -> Self {
        Self { rt: rt.clone(), until: Rc::new(Cell::new(Instant(0))) }
    }
    /// Whether this process may serve now.
    pub fn valid(&self) -> bool {
        self.rt.now() < self.until.get()
    }
    /// The same as an error to answer with.
    pub fn check(&self) -> Result<()> {
        if self.valid() || planted(Mutant::LeaseUnchecked) {
            return Ok(());
        }
        Err(Error::new(
            Status::NoLease,
            "this node's lease ran out, so it serves nothing; refresh the routing info and retry",
        ))
    }
    /// When it ends.
    pub fn until(&self) -> Instant {
        self.until.get()
    }
    /// An answered heartbeat, sent at `sent`, granted `lease`. Never shortens it.
    pub(crate) fn extend(&self, sent: Instant, lease: Duration) {
        self.until.set(self.until.get().max(sent + lease));
    }
    /// Given up at once (graceful stop).
    pub(crate) fn drop_now(&self) {
        self.until.set(Instant(0));
    }
}
