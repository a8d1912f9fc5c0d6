//! Requests take effect once: what a request did is remembered under its id, in its own transaction.
//!
//! Records stand in buckets of time, so that old ones go with one range removal. A retry is looked for in the buckets where the
//! first attempt can have put it, also by another service whose clock differs by up to half a minute.

use crate::context::Context;
use crate::keys;
use crate::record::{RequestRecord, pack, unpack};
use glowfs_types::{InodeId, RequestId, Result};

/// How much the clocks of two meta services may differ, in seconds.
const SKEW_SECS: u64 = 30;

/// The bucket of a time.
pub fn bucket(secs: i64, keep_secs: u64) -> u32 {
    (u64::try_from(secs).unwrap_or(0) / keep_secs.max(1)) as u32
}

impl Context<'_> {
    fn bucket_at(&self, secs: i64) -> u32 {
        bucket(secs, self.env.request_keep_secs())
    }

    /// What the request did, if it was done already. Request 0 is nobody's.
    pub(crate) async fn done_before(&self, request: RequestId) -> Result<Option<RequestRecord>> {
        if request == RequestId(0) {
            return Ok(None);
        }
        let now = self.bucket_at(self.now.secs);
        let mut ask = vec![now, now.saturating_sub(1)];
        let soon = self.bucket_at(self.now.secs.saturating_add(SKEW_SECS as i64));
        if soon != now {
            ask.push(soon);
        }
        let ask: Vec<_> =
            ask.into_iter().map(|b| keys::request(self.volume(), b, request)).collect();
        let found = self.tx.get_all(&ask).await?.into_iter().flatten().next();
        found.map(|v| unpack("request", &v)).transpose()
    }

    /// Remembers it.
    pub(crate) fn remember(&self, request: RequestId, inode: InodeId) -> Result<()> {
        if request == RequestId(0) {
            return Ok(());
        }
        let key = keys::request(self.volume(), self.bucket_at(self.now.secs), request);
        self.tx.put(key, pack(&RequestRecord { inode }))
    }
}
