//! Whether all members of every chain hold the same of every chunk: also of what no file leads to any more, or not yet.

use glowfs_client::Client;
use glowfs_rt::{Duration, Rt};
use glowfs_storage::SYNC_PAGE_MAX;
use glowfs_types::routing::ChainInfo;
use glowfs_types::wire::data::{ChunkSummary, ListChunks, SyncListReply};
use glowfs_types::wire::method;
use glowfs_types::{ChunkId, NodeId, Result, TargetId};
use std::collections::{BTreeMap, BTreeSet};

/// What is pending, and what garbage collection removes, may take so long to be the same everywhere.
const SETTLED: Duration = Duration::from_secs(60);
/// How often targets that differ are asked again.
const AGAIN: Duration = Duration::from_millis(500);

/// What one target holds.
type Held = (TargetId, BTreeMap<ChunkId, ChunkSummary>);

/// Each chunk that serving members of a chain do not hold in the same version, length and content, or with something pending. Call when nobody writes.
pub async fn differences(rt: &Rt, client: &Client) -> Result<Vec<String>> {
    let until = rt.now() + SETTLED;
    loop {
        let mut found = Vec::new();
        for chain in client.routing().chains.values() {
            found.extend(in_chain(client, chain).await?);
        }
        if found.is_empty() || rt.now() >= until {
            return Ok(found);
        }
        rt.sleep(AGAIN).await;
    }
}

async fn in_chain(client: &Client, chain: &ChainInfo) -> Result<Vec<String>> {
    let mut all: Vec<Held> = Vec::new();
    for m in chain.serving() {
        all.push((m.target, of_target(client, m.node, m.target).await?));
    }
    let chunks: BTreeSet<_> = all.iter().flat_map(|h| h.1.keys()).collect();
    Ok(chunks.into_iter().filter_map(|c| difference(*c, &all)).collect())
}

fn difference(chunk: ChunkId, all: &[Held]) -> Option<String> {
    let (first, most) = all.first()?;
    let theirs = most.get(&chunk);
    all.iter().find_map(|(target, held)| {
        let have = held.get(&chunk);
        if have != theirs {
            return Some(format!(
                "chunk {chunk} differs: target {first} has {theirs:?}, target {target} has {have:?}"
            ));
        }
        let pending = have.filter(|c| c.pending != c.committed)?;
        Some(format!("chunk {chunk} on target {target}: {pending:?} is still pending"))
    })
}

async fn of_target(
    client: &Client,
    node: NodeId,
    target: TargetId,
) -> Result<BTreeMap<ChunkId, ChunkSummary>> {
    let mut all = BTreeMap::new();
    loop {
        let after = all.last_key_value().map(|(id, _)| *id);
        let ask = ListChunks { target, after, limit: SYNC_PAGE_MAX };
        let page: SyncListReply = client.node_call(node, method::LIST_CHUNKS, &ask).await?;
        let more = page.more && !page.chunks.is_empty();
        all.extend(page.chunks.into_iter().map(|c| (c.chunk, c)));
        if !more {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{ChunkVersion, DataId, VolumeId};

    #[test]
    fn what_one_of_them_has_alone_or_otherwise_is_named() {
        let id = |index| ChunkId { volume: VolumeId(1), data: DataId(7), index };
        let target = |n, chunks: &[(u64, u64, u64)]| {
            let each = chunks.iter().map(|(index, committed, pending)| {
                let (committed, pending) = (ChunkVersion(*committed), ChunkVersion(*pending));
                let (len, content_crc, chunk_bytes) = (5, 6, 65536);
                let chunk = id(*index);
                (chunk, ChunkSummary { chunk, committed, pending, len, content_crc, chunk_bytes })
            });
            (TargetId(n), each.collect())
        };
        let told = |index, all: &[Held]| difference(id(index), all).unwrap_or_default();
        let all = [target(1, &[(1, 3, 3), (2, 3, 4)]), target(2, &[(1, 3, 3), (2, 3, 4)])];
        assert_eq!(told(1, &all), "");
        assert!(told(2, &all).contains("still pending"), "{}", told(2, &all));
        let all = [target(1, &[]), target(2, &[(1, 3, 3)]), target(3, &[(1, 3, 3)])];
        assert!(told(1, &all).contains("target 1 has None"), "{}", told(1, &all));
        let all = [target(1, &[(1, 3, 3)]), target(2, &[(1, 3, 3)]), target(3, &[(1, 2, 2)])];
        assert!(told(1, &all).contains("differs"), "{}", told(1, &all));
    }
}
