//! What clients make sure of where the metadata engine runs as it is shipped: its changes are answered before they are flushed, and the newest ones go when its host loses
//! its power.
//!
//! A session, a file that is going to be written, or a truncate that later checks count on is asked for again until a flush behind it says that nothing was lost in between. Everything else is
//! left to chance, and its judge lets go what may be gone.

use super::workload::{Shared, caller, open, open_or_make_in, report};
use glowfs_client::{Client, OpenFile};
use glowfs_types::wire::meta::{OpenReply, ROOT_INODE, Sync as SyncFile};
use glowfs_types::{InodeId, RequestId, Result};
use std::rc::Rc;

/// Everything that meta has answered before is on disk (the fsync of a directory of a mount).
pub async fn flush(client: &Client) -> Result<()> {
    let (caller, request) = (caller(client), RequestId(0));
    let all = SyncFile { caller, request, inode: ROOT_INODE, durable: true, ..SyncFile::default() };
    client.sync(all).await.map(drop)
}

/// Whether all that was answered since there were so many losses is on disk now. If not, it may be gone.
pub async fn is_kept(client: &Client, shared: &Shared, losses: u64) -> Result<bool> {
    if !shared.background.get() {
        return Ok(true);
    }
    flush(client).await?;
    Ok(shared.engine_losses.get() == losses)
}

/// Opens a file, or makes it; the file and the session stay.
pub async fn open_or_make_kept(
    client: &Rc<Client>,
    shared: &Shared,
    parent: InodeId,
    name: &str,
) -> Result<(Rc<OpenFile>, OpenReply)> {
    kept(client, shared, async || open_or_make_in(client, parent, name).await).await
}

/// Opens a file that is there; the session stays.
pub async fn open_kept(
    client: &Rc<Client>,
    shared: &Shared,
    inode: InodeId,
) -> Result<(Rc<OpenFile>, OpenReply)> {
    kept(client, shared, async || open(client, inode).await).await
}

async fn kept(
    client: &Rc<Client>,
    shared: &Shared,
    open: impl AsyncFn() -> Result<(Rc<OpenFile>, OpenReply)>,
) -> Result<(Rc<OpenFile>, OpenReply)> {
    loop {
        let losses = shared.engine_losses.get();
        let opened = open().await?;
        if is_kept(client, shared, losses).await? {
            return Ok(opened);
        }
        // It is there or not, and so is what it belongs to.
        let _ = client.close_session(report(client, &opened.0, false)).await;
    }
}
