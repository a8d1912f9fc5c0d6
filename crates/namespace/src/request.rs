//! Requests take effect once: what a request did is remembered under its id, in its own transaction.
//!
//! Records stand in buckets of time, so that old ones go with one range removal. A retry is looked for in the buckets where the
//! first attempt can have put it, also by another service whose clock differs by up to half a minute. The clock is the cluster's ([`Env::memory_secs`]).
//!
//! [`Env::memory_secs`]: crate::Env::memory_secs
//!
//! A refusal is remembered if an earlier copy of the request may be on its way ([`Caller::again`]): a service that was cut off for a while would else do
//! what the caller, who has heard the refusal and gone on, does not expect any more.
//!
//! What is remembered answers that very request of that very user only: a record keeps the [`Once::mark`] of what was asked. Without it
//! an id of an own request, sent again with another file, would pass by every check of rights.

use crate::context::Context;
use crate::keys;
use crate::record::{Inode, RequestRecord, pack, unpack};
use glowfs_types::wire::encode;
use glowfs_types::wire::inline::InlineWrite;
use glowfs_types::wire::lock::Lock;
use glowfs_types::wire::meta::{
    Attr, Caller, InodeKind, Link, Make, OfXattr, Open, Rename, Reopen, SetAttr, SetXattr, Unlink,
};
use glowfs_types::wire::tree::RemoveTree;
use glowfs_types::{Error, InodeId, RequestId, Result, Status};

/// How much the clocks of two meta services may differ, in seconds.
const SKEW_SECS: u64 = 30;

/// The bucket of a time.
fn bucket(secs: i64, keep_secs: u64) -> u32 {
    (u64::try_from(secs).unwrap_or(0) / keep_secs.max(1)) as u32
}

fn first_bucket(now_secs: i64, keep_secs: u64, skew_secs: u64) -> u32 {
    let oldest = u64::try_from(now_secs).unwrap_or(0).saturating_sub(keep_secs + skew_secs);
    bucket(oldest as i64, keep_secs)
}

/// The first bucket that any service may still ask for, as one says whose clock shows `now`: another one may be behind by as much as clocks differ, and
/// looks so much further back.
pub(crate) fn first_kept(now_secs: i64, keep_secs: u64) -> u32 {
    first_bucket(now_secs, keep_secs, 2 * SKEW_SECS)
}

/// A change that takes effect once.
pub trait Once {
    /// Its id; 0 if it may take effect more than once.
    fn id(&self) -> RequestId;
    /// Who asks.
    fn caller(&self) -> &Caller;
    /// What it asks for, and for which user: a retry has the same, whatever became of its client's session and groups meanwhile.
    fn mark(&self) -> [u8; 16];
}

macro_rules! once {
    ($($message:ident),*) => {$(
        impl Once for $message {
            fn id(&self) -> RequestId {
                self.request
            }
            fn caller(&self) -> &Caller {
                &self.caller
            }
            fn mark(&self) -> [u8; 16] {
                let (uid, volume) = (self.caller.uid, self.caller.volume);
                let caller = Caller { uid, volume, ..Caller::default() };
                let asked = encode(&Self { caller, ..self.clone() });
                let hash = blake3::Hasher::new().update(stringify!($message).as_bytes()).update(&asked).finalize();
                let mut mark = [0; 16];
                mark.copy_from_slice(&hash.as_bytes()[..16]);
                mark
            }
        }
    )*};
}
once!(
    InlineWrite,
    Link,
    Lock,
    Make,
    OfXattr,
    Open,
    RemoveTree,
    Rename,
    Reopen,
    SetAttr,
    SetXattr,
    Unlink
);

impl Context<'_> {
    fn bucket_at(&self, secs: i64) -> u32 {
        bucket(secs, self.env.request_keep_secs())
    }

    /// What the request did, if it was done already; an error if it was refused. Request 0 is nobody's.
    pub(crate) async fn done_before(&self, asked: &impl Once) -> Result<Option<RequestRecord>> {
        let request = asked.id();
        let Some(record) = self.remembered(request).await? else { return Ok(None) };
        // A record of a release that kept no mark answers as it did there.
        if record.mark.is_some_and(|m| *m != asked.mark()) {
            return Err(Error::new(
                Status::NotPermitted,
                format!("request {request} was another one; each operation needs an id of its own"),
            ));
        }
        match record.refused {
            Some(code) => Err(Error::new(
                Status::from_code(code),
                format!("request {request} was refused before, and so is every other copy of it"),
            )),
            None => Ok(Some(record)),
        }
    }

    async fn remembered(&self, request: RequestId) -> Result<Option<RequestRecord>> {
        if request == RequestId(0) {
            return Ok(None);
        }
        // The first copy may be as old as a retry can be, by a clock that is behind this one or ahead of it.
        let oldest = first_bucket(self.memory_secs, self.env.request_keep_secs(), SKEW_SECS);
        let newest = self.bucket_at(self.memory_secs.saturating_add(SKEW_SECS as i64));
        let ask: Vec<_> =
            (oldest..=newest).rev().map(|b| keys::request(self.volume(), b, request)).collect();
        let found = self.tx.get_all(&ask).await?.into_iter().flatten().next();
        found.map(|v| unpack("request", &v)).transpose()
    }

    /// Remembers it.
    pub(crate) fn remember(&self, asked: &impl Once, inode: InodeId) -> Result<()> {
        self.keep(asked, (inode, InodeKind::File), None)
    }

    /// The same of what answers with attributes of an inode that need not be a file ([`Context::done_to_gone`]).
    pub(crate) fn remember_of(&self, asked: &impl Once, id: InodeId, inode: &Inode) -> Result<()> {
        self.keep(asked, (id, inode.kind), None)
    }

    /// What a copy of a request is answered that was done, when others have removed the inode since: it was done, to something that is there no more. Were it
    /// told that there is no such inode, a kernel would ask for all of it once more, by name and under another id, and it would be done twice.
    pub(crate) fn done_to_gone(&self, id: InodeId, done: &RequestRecord) -> Attr {
        let inode = Inode { kind: done.kind, ..Inode::default() };
        self.attr_of_gone(id, &inode)
    }

    fn keep(
        &self,
        asked: &impl Once,
        (inode, kind): (InodeId, InodeKind),
        refused: Option<u16>,
    ) -> Result<()> {
        let request = asked.id();
        if request == RequestId(0) {
            return Ok(());
        }
        let key = keys::request(self.volume(), self.bucket_at(self.memory_secs), request);
        let mark = Some(asked.mark().into());
        self.tx.put(key, pack(&RequestRecord { inode, mark, refused, kind }))
    }
}

/// Remembers that a request is refused with `status`, so that no copy of it has an effect any more. False: one was answered before.
pub async fn refuse(cx: &Context<'_>, asked: &impl Once, status: Status) -> Result<bool> {
    if cx.remembered(asked.id()).await?.is_some() {
        return Ok(false);
    }
    cx.keep(asked, (InodeId(0), InodeKind::File), Some(status.code()))?;
    Ok(true)
}
