//! The search for chunks that nobody owns, asked for by a client.

use glowfs_client::Client;
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::method;
use glowfs_types::wire::orphans::{Orphans, OrphansReply, search};
use glowfs_types::{NodeId, Result};

/// A pass of a metadata service, and what is known after it.
pub async fn pass(rt: &Rt, client: &Client, meta: NodeId, what: u8) -> Result<OrphansReply> {
    let ask = |what| async move {
        client.node_call::<_, OrphansReply>(meta, method::ORPHANS, &Orphans { what }).await
    };
    let before = ask(what).await?;
    loop {
        rt.sleep(Duration::from_millis(20)).await;
        let now = ask(search::SHOW).await?;
        if !now.running && now.passes > before.passes {
            return Ok(now);
        }
    }
}

/// Two passes, as far apart as they must be; what both find is removed.
pub async fn reclaim(rt: &Rt, client: &Client, meta: NodeId) -> Result<OrphansReply> {
    let first = pass(rt, client, meta, search::RECLAIM).await?;
    // By its clock, which may go slower than ours.
    rt.sleep(Duration::from_millis(first.confirm_ms + first.confirm_ms / 100)).await;
    pass(rt, client, meta, search::RECLAIM).await
}
