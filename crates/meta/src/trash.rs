//! TRASH: listing, putting back and removing for good what is in the trash; and what happens when its time has come.

use crate::recall::Change;
use crate::state::{Service, VOLUME};
use glowfs_kv::{Transaction, key_after};
use glowfs_namespace::{self as ns, Context};
use glowfs_net::Conn;
use glowfs_types::wire::decode;
use glowfs_types::wire::meta::Caller;
use glowfs_types::wire::trash::{TRASH_PAGE_MAX, Trash, TrashReply, TrashWish};
use glowfs_types::{ClientId, Error, Result, Status};

/// Files whose time has come that are removed in one step.
const EXPIRE_PAGE: u32 = 256;

fn caller() -> Caller {
    Caller { volume: VOLUME, ..Caller::default() }
}

pub async fn answer(s: &Service, conn: &Conn, body: &[u8]) -> Result<TrashReply> {
    let identity = &conn.peer().identity;
    if !identity.service && !identity.admin && !identity.root {
        return Err(Error::new(Status::AccessDenied, "only operators may look into the trash"));
    }
    let q: Trash = decode(body)?;
    let one =
        || q.id.ok_or_else(|| Error::new(Status::InvalidArgument, "which file of the trash?"));
    let who = caller();
    s.wait_for_old_leases().await;
    match q.wish {
        TrashWish::List => {
            let from = q.id.map(|id| key_after(&ns::trash_key(VOLUME, id)));
            let work = async |tx: &Transaction| {
                ns::trash(&Context::new(tx, &who, s), from.as_ref(), TRASH_PAGE_MAX).await
            };
            let (entries, next) = s.look(work).await?;
            Ok(TrashReply { entries, more: next.is_some(), path: Vec::new() })
        }
        TrashWish::Restore => {
            let id = one()?;
            let to = q.to.as_ref().map(|t| t.as_slice());
            let work = async |tx: &Transaction| {
                ns::trash_restore(&Context::new(tx, &who, s), id, to).await
            };
            let (path, changed) = s.run(true, false, work).await?;
            let changes: Vec<_> = changed.into_iter().map(Change::attributes).collect();
            s.changed(ClientId(0), &changes).await;
            Ok(TrashReply { path, ..TrashReply::default() })
        }
        TrashWish::Purge => {
            let id = one()?;
            let work =
                async |tx: &Transaction| ns::trash_purge(&Context::new(tx, &who, s), id).await;
            s.run(false, false, work).await?;
            Ok(TrashReply::default())
        }
    }
}

/// Removes for good what has been in the trash for long enough.
pub async fn expire(s: &Service) -> Result<()> {
    let who = caller();
    let mut from = None;
    loop {
        let page = async |tx: &Transaction| {
            ns::trash_expired(&Context::new(tx, &who, s), from.as_ref(), EXPIRE_PAGE).await
        };
        let (due, next) = s.look(page).await?;
        for id in &due {
            let work =
                async |tx: &Transaction| ns::trash_purge(&Context::new(tx, &who, s), *id).await;
            match s.run(false, false, work).await {
                // Another service, or an operator, was there first.
                Err(e) if e.status == Status::NotFound => {}
                // One damaged record does not keep the others.
                Err(error) if error.status == Status::Corrupt => {
                    tracing::warn!(%id, %error, "a file of the trash cannot be removed; run `glowfs admin fsck`");
                }
                done => done?,
            }
        }
        if next.is_none() || s.stopping.get() {
            return Ok(());
        }
        from = next;
        s.rt.yield_now().await;
    }
}
