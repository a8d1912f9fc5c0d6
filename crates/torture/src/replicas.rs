//! Whether all members of every chain hold the same. A read of the checker gets one replica of each chunk; the others count as much: every
//! acknowledged byte is on every serving replica. So each member is asked for all that it holds, and the answers are compared.

use crate::scrub::Scrubbed;
use crate::work::library::{Access, connect};
use glowfs_client::Client;
use glowfs_rt::{Duration, real};
use glowfs_types::routing::{ChainInfo, PublicState};
use glowfs_types::wire::data::{ChunkSummary, ListChunks, SyncListReply};
use glowfs_types::wire::method;
use glowfs_types::{ChainId, ChunkId, ChunkVersion, NodeId, Result, TargetId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What is pending, and what garbage collection removes, may take so long to be the same everywhere.
pub const SETTLE_BOUND: Duration = Duration::from_secs(60);
/// How often those that differ are asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// Chunks of one question.
const PAGE: u32 = 4096;
/// The most differences that are named.
const NAMED_MAX: usize = 20;

/// What was compared.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Compared {
    /// Chunks of chains with more than one member, each counted once.
    pub chunks: u64,
    /// Replicas of them.
    pub replicas: u64,
    /// Chunks of chains with one member: there is nothing to compare them with.
    pub alone: u64,
    /// The scrub before.
    pub scrubbed: Scrubbed,
    /// What is not the same everywhere: chunk, targets, versions.
    pub differences: Vec<String>,
    /// How many.
    pub difference_count: u64,
}

impl Compared {
    /// Why a run that found this fails.
    pub fn failures(&self, when: &str) -> Vec<String> {
        let mut f: Vec<_> =
            self.scrubbed.failures.iter().map(|why| format!("{why} ({when})")).collect();
        if self.difference_count > 0 {
            f.push(format!("{} chunks differ between replicas {when}", self.difference_count));
            f.extend(self.differences.iter().cloned());
        }
        if self.chunks + self.alone == 0 {
            f.push(format!("no chunk was compared between replicas {when}"));
        }
        f
    }
    /// For people.
    pub fn text(&self) -> String {
        let s = &self.scrubbed;
        let scrub = format!(
            "after a scrub of {} replicas, {} MiB, {} of them mended",
            s.replicas,
            s.bytes >> 20,
            s.found
        );
        match (self.chunks, self.alone) {
            (0, 0) => "nothing compared between replicas".into(),
            (0, n) => {
                format!("NO REPLICAS COMPARED: each of {n} chunks has one replica only ({scrub})")
            }
            (n, 0) => format!("{} replicas of {n} chunks compared {scrub}", self.replicas),
            (n, one) => format!(
                "{} replicas of {n} chunks compared {scrub}; {one} chunks with one replica were not",
                self.replicas
            ),
        }
    }
}

/// What one target holds.
struct Held {
    target: TargetId,
    node: NodeId,
    chunks: BTreeMap<ChunkId, ChunkSummary>,
}

/// Asks all members of all chains until they hold the same, or `settle` is over (see [`SETTLE_BOUND`]). Call when nobody writes.
pub fn compare(access: Access, settle: Duration) -> Result<Compared> {
    real::run(move |rt| async move {
        let client = connect(&rt, &access).await?;
        let mut all = Compared::default();
        let until = rt.now() + settle;
        let mut left: BTreeSet<ChainId> = client.routing().chains.keys().copied().collect();
        while !left.is_empty() {
            let last = rt.now() >= until;
            for id in left.clone() {
                let Some(chain) = client.routing().chains.get(&id).cloned() else { continue };
                let (counts, found) = match chain_of(&client, &chain).await {
                    Ok(held) => (counts(&held), differences(id, &held)),
                    Err(e) => ((0, 0), vec![format!("chain {id}: {e}")]),
                };
                if !found.is_empty() && !last {
                    continue;
                }
                left.remove(&id);
                match chain.members.len() {
                    0 | 1 => all.alone += counts.0,
                    _ => {
                        (all.chunks, all.replicas) =
                            (all.chunks + counts.0, all.replicas + counts.1)
                    }
                }
                all.difference_count += found.len() as u64;
                let room = NAMED_MAX.saturating_sub(all.differences.len());
                all.differences.extend(found.into_iter().take(room));
            }
            if !left.is_empty() {
                rt.sleep(AGAIN).await;
            }
        }
        client.close().await;
        Ok(all)
    })
}

async fn chain_of(client: &Client, chain: &ChainInfo) -> Result<Vec<Held>> {
    let mut held = vec![];
    for m in &chain.members {
        if m.state != PublicState::Serving {
            let e = format!("target {} does not serve, it is {}", m.target, m.state);
            return Err(glowfs_types::Error::new(glowfs_types::Status::Internal, e));
        }
        let chunks = list(client, m.node, m.target).await?;
        held.push(Held { target: m.target, node: m.node, chunks });
    }
    Ok(held)
}

async fn list(
    client: &Client,
    node: NodeId,
    target: TargetId,
) -> Result<BTreeMap<ChunkId, ChunkSummary>> {
    let mut all = BTreeMap::new();
    loop {
        let after = all.last_key_value().map(|(id, _)| *id);
        let ask = ListChunks { target, after, limit: PAGE };
        let page: SyncListReply = client.node_call(node, method::LIST_CHUNKS, &ask).await?;
        let more = page.more && !page.chunks.is_empty();
        all.extend(page.chunks.into_iter().map(|c| (c.chunk, c)));
        if !more {
            return Ok(all);
        }
    }
}

/// Chunks, and replicas of them.
fn counts(held: &[Held]) -> (u64, u64) {
    let chunks: BTreeSet<_> = held.iter().flat_map(|h| h.chunks.keys()).collect();
    (chunks.len() as u64, held.iter().map(|h| h.chunks.len() as u64).sum())
}

/// Each chunk that not every member holds in the same version, length and content, with nothing pending.
fn differences(chain: ChainId, held: &[Held]) -> Vec<String> {
    let chunks: BTreeSet<_> = held.iter().flat_map(|h| h.chunks.keys()).collect();
    let mut found = vec![];
    for chunk in chunks {
        let first = held.first().and_then(|h| h.chunks.get(chunk));
        let same = held.iter().all(|h| {
            let have = h.chunks.get(chunk);
            have == first && have.is_some_and(|c| c.pending == c.committed)
        });
        if same {
            continue;
        }
        let rows: Vec<_> = held.iter().map(|h| row(h, h.chunks.get(chunk))).collect();
        found.push(format!("chain {chain}, chunk {chunk}: {}", rows.join("; ")));
    }
    found
}

fn row(held: &Held, have: Option<&ChunkSummary>) -> String {
    let who = format!("target {} (node {})", held.target, held.node);
    let Some(c) = have else { return format!("{who} has nothing of it") };
    let pending = |v: ChunkVersion| match v == c.committed {
        true => String::new(),
        false => format!(" and {v} pending"),
    };
    format!(
        "{who} has version {}{}, {} bytes, checksum {:08x}",
        c.committed,
        pending(c.pending),
        c.len,
        c.content_crc
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{DataId, VolumeId};

    fn chunk(index: u32, version: u64) -> ChunkSummary {
        let chunk = ChunkId { volume: VolumeId(1), data: DataId(7), index: index.into() };
        let version = ChunkVersion(version);
        let (len, content_crc) = (4096, 0xabcd);
        let chunk_bytes = 1 << 20;
        ChunkSummary { chunk, committed: version, pending: version, len, content_crc, chunk_bytes }
    }
    /// Three members of a chain; the last one is `changed`.
    fn chain(changed: impl Fn(&mut Vec<ChunkSummary>)) -> Vec<String> {
        let held = (1..=3).map(|n| {
            let mut chunks = vec![chunk(0, 3), chunk(1, 5)];
            if n == 3 {
                changed(&mut chunks);
            }
            let chunks = chunks.into_iter().map(|c| (c.chunk, c)).collect();
            Held { target: TargetId(n), node: NodeId(1000 + n), chunks }
        });
        let held: Vec<_> = held.collect();
        differences(ChainId(4), &held)
    }

    #[test]
    fn every_replica_counts_and_differences_are_named() {
        assert_eq!(chain(|_| {}), Vec::<String>::new());
        let old = chain(|c| c[1] = chunk(1, 4));
        assert_eq!(old.len(), 1);
        for part in
            ["chain 4", "target 1 (node 1001) has version 5", "target 3 (node 1003) has version 4"]
        {
            assert!(old[0].contains(part), "{part}: {old:?}");
        }
        assert!(chain(|c| c.truncate(1))[0].contains("target 3 (node 1003) has nothing of it"));
        assert_eq!(chain(|c| c.push(chunk(2, 1))).len(), 1, "one that the others lack");
        assert!(chain(|c| c[0].content_crc = 1)[0].contains("00000001"), "other bytes");
        assert!(chain(|c| c[0].len = 0)[0].contains("0 bytes"), "shorter");
        let pending = chain(|c| c[0].pending = ChunkVersion(4));
        assert!(pending[0].contains("version 3 and 4 pending"), "{pending:?}");
    }

    #[test]
    fn what_compares_nothing_proves_nothing() {
        assert_eq!(Compared::default().failures("at the end").len(), 1);
        let good = Compared { chunks: 3, replicas: 9, ..Compared::default() };
        assert!(good.failures("at the end").is_empty());
        assert!(good.text().starts_with("9 replicas of 3 chunks compared"), "{}", good.text());
        let alone = Compared { alone: 3, ..Compared::default() };
        assert!(alone.text().contains("NO REPLICAS COMPARED"), "{}", alone.text());
        let mut damaged = good.clone();
        damaged.scrubbed.failures.push("the scrub found 1".into());
        assert_eq!(damaged.failures("at the end"), ["the scrub found 1 (at the end)"]);
        let bad = Compared { difference_count: 1, differences: vec!["chunk x".into()], ..good };
        assert_eq!(bad.failures("at the end").len(), 2);
    }
}
