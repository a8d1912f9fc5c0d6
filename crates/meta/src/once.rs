//! Requests that take effect once, also when copies of them come late.
//!
//! A client asks another service when one does not answer. The first one may only have been cut off from the engine: it tries on, and may find
//! things after the client has heard a refusal elsewhere and gone on. So before a refusal of a repeated request is told, it is remembered
//! for all copies. (What took effect is remembered with its effect.) The same where a transaction with other calls may still come late
//! ([`crate::together`]): in it the request may have gone by what another one did, and not be refused.

use crate::state::Service;
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Context, Once};
use glowfs_types::{Result, Status};
use std::cell::Cell;

/// Whether a transaction with a part of this call may still be committed, as if a copy of the call were under way.
#[derive(Default)]
pub struct Doubt(Cell<bool>);

impl Doubt {
    /// There is one.
    pub fn arises(&self) {
        self.0.set(true);
    }
    /// Whether there may be one.
    pub fn is_there(&self) -> bool {
        self.0.get()
    }
}

impl Service {
    /// Does `work` for a request and makes sure that no other copy of it contradicts the answer.
    pub(crate) async fn once<T>(
        &self,
        q: &impl Once,
        work: impl AsyncFn(&Doubt) -> Result<T>,
    ) -> Result<T> {
        let doubt = Doubt::default();
        let refusal = match work(&doubt).await {
            Err(e) if (q.caller().again || doubt.is_there()) && is_final(e.status) => e,
            other => return other,
        };
        let remember = async |tx: &Transaction| {
            ns::refuse(&Context::new(tx, q.caller(), self), q, refusal.status).await
        };
        if self.run(false, true, remember).await? {
            return Err(refusal);
        }
        // Another copy was answered meanwhile: this one answers the same.
        work(&doubt).await
    }
}

/// Whether the caller gets to see it. A client whose session ended asks again under the same id, in its next life.
pub fn is_final(status: Status) -> bool {
    !status.is_retriable() && status != Status::SessionEnded
}
