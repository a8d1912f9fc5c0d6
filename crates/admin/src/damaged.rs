//! `damaged`: blocks that no replica has any more, and whose they are.

use crate::files::{PAGE_ENTRIES, caller};
use crate::output::{Output, ago, bytes};
use crate::progress::ProgressLine;
use anyhow::{Result, bail};
use glowfs_client::Client;
use glowfs_types::checksum::BLOCK_BYTES;
use glowfs_types::routing::{Role, RoutingInfo};
use glowfs_types::wire::meta::{AtimeRule, InodeKind, ROOT_INODE, ReadDir};
use glowfs_types::wire::method;
use glowfs_types::wire::repair::{Damaged, DamagedChunk, DamagedReply};
use glowfs_types::{ChainId, ChunkId, DataId, InodeId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Directories that wait while the names of damaged files are looked for; those beyond are not looked at.
const WAITING_MAX: usize = 1 << 20;

#[derive(Serialize)]
struct Row {
    chain: u64,
    /// The index of the chunk in its file.
    chunk: u64,
    data_id: u64,
    /// Whose replicas were found without these bytes.
    targets: Vec<u64>,
    /// Where in the file: offset and length in bytes.
    ranges: Vec<(u64, u64)>,
    since_ns: u64,
    /// Targets that did not answer, and may have the bytes.
    ask_again: Vec<u64>,
    /// The file, if a name of it was found.
    inode: Option<u64>,
    path: Option<String>,
}

/// What is known of a chunk by all nodes together.
#[derive(Default)]
struct Found {
    chunk_bytes: u32,
    since_ns: u64,
    targets: BTreeSet<u64>,
    blocks: BTreeSet<u32>,
    silent: BTreeSet<u64>,
}

type All = BTreeMap<(ChainId, ChunkId), Found>;

fn take(all: &mut All, c: DamagedChunk) {
    let found = all.entry((c.chain, c.chunk)).or_default();
    found.chunk_bytes = c.chunk_bytes;
    found.since_ns = match found.since_ns {
        0 => c.since_ns,
        before => before.min(c.since_ns),
    };
    found.targets.insert(c.target.0);
    found.blocks.extend(c.blocks);
    found.silent.extend(c.silent.iter().map(|t| t.0));
}

/// Blocks of a chunk as ranges of its file.
fn ranges(index: u64, chunk_bytes: u32, blocks: &BTreeSet<u32>) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    let size = u64::from(BLOCK_BYTES);
    for block in blocks {
        let at = index.saturating_mul(u64::from(chunk_bytes)) + u64::from(*block) * size;
        match out.last_mut() {
            Some((begin, len)) if *begin + *len == at => *len += size,
            _ => out.push((at, size)),
        }
    }
    out
}

/// `damaged`: asks every storage node, then looks for the names of the files.
pub async fn list(
    out: Output,
    client: &Client,
    routing: &RoutingInfo,
    with_paths: bool,
) -> Result<()> {
    let (mut all, mut problems) = (All::new(), Vec::new());
    for node in routing.nodes.values().filter(|n| n.role == Role::Storage) {
        let mut ask = Damaged::default();
        loop {
            match client.node_call::<_, DamagedReply>(node.id, method::DAMAGED, &ask).await {
                Ok(reply) => {
                    reply.chunks.into_iter().for_each(|c| take(&mut all, c));
                    ask.after = reply.next;
                    if ask.after.is_none() {
                        if reply.left_out {
                            problems.push(format!("node {} has more than it remembers", node.id));
                        }
                        break;
                    }
                }
                Err(e) => {
                    problems.push(format!("node {}: {e}", node.id));
                    break;
                }
            }
        }
    }
    let wanted = all.keys().map(|(_, c)| c.data).collect();
    let names = match with_paths {
        true => names_of(client, wanted, &mut problems).await,
        false => BTreeMap::new(),
    };
    show(out, &all, &names)?;
    if !problems.is_empty() {
        bail!("this may not be all: {}", problems.join("; "));
    }
    Ok(())
}

fn show(out: Output, all: &All, names: &BTreeMap<DataId, (InodeId, String)>) -> Result<()> {
    let row = |((chain, chunk), found): (&(ChainId, ChunkId), &Found)| {
        let name = names.get(&chunk.data);
        Row {
            chain: chain.0,
            chunk: chunk.index,
            data_id: chunk.data.0,
            targets: found.targets.iter().copied().collect(),
            ranges: ranges(chunk.index, found.chunk_bytes, &found.blocks),
            since_ns: found.since_ns,
            ask_again: found.silent.iter().copied().collect(),
            inode: name.map(|(inode, _)| inode.0),
            path: name.map(|(_, path)| path.clone()),
        }
    };
    let rows: Vec<Row> = all.iter().map(row).collect();
    let columns =
        ["chain", "targets", "data", "chunk", "at", "lost", "found", "bring back", "path"];
    let list = |all: &[u64]| match all {
        [] => "-".to_owned(),
        some => some.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
    };
    out.rows(&rows, &columns, |r| {
        vec![
            r.chain.to_string(),
            list(&r.targets),
            r.data_id.to_string(),
            r.chunk.to_string(),
            r.ranges.first().map_or_else(|| "-".into(), |(at, _)| at.to_string()),
            bytes(r.ranges.iter().map(|(_, len)| len).sum()),
            ago(r.since_ns),
            list(&r.ask_again),
            r.path.clone().unwrap_or_else(|| "?".into()),
        ]
    })
}

/// The inode and one path of each of these files, as far as the walk from the root finds one. Nothing leads from a chunk to its
/// file but the file's own record.
async fn names_of(
    client: &Client,
    mut wanted: BTreeSet<DataId>,
    problems: &mut Vec<String>,
) -> BTreeMap<DataId, (InodeId, String)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![(ROOT_INODE, String::new())];
    let mut line = ProgressLine::new(client.rt());
    let mut looked = 0;
    while let Some((inode, path)) = waiting.pop().filter(|_| !wanted.is_empty()) {
        looked += 1;
        line.show("directories looked at", looked, 0);
        let mut after = 0;
        loop {
            let ask = ReadDir {
                caller: caller(client),
                inode,
                after,
                limit: PAGE_ENTRIES,
                attributes: true,
                atime: AtimeRule::Never,
            };
            let page = match client.readdir(ask).await {
                Ok(page) => page,
                Err(e) => {
                    problems.push(format!("{path}/: {e}"));
                    break;
                }
            };
            let Some(last) = page.entries.last() else { break };
            after = last.cookie;
            for e in page.entries {
                let name = || format!("{path}/{}", String::from_utf8_lossy(&e.name));
                let data = e.attr.as_ref().map(|a| a.data);
                match e.kind {
                    InodeKind::Directory if waiting.len() < WAITING_MAX => {
                        waiting.push((e.inode, name()));
                    }
                    InodeKind::Directory => problems.push(format!("{} is left out", name())),
                    InodeKind::File if data.is_some_and(|d| wanted.remove(&d)) => {
                        found.insert(data.unwrap_or_default(), (e.inode, name()));
                    }
                    _ => {}
                }
            }
            if page.end {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_ranges_of_the_file() {
        let blocks = BTreeSet::from([0, 1, 2, 7]);
        assert_eq!(ranges(0, 65536, &blocks), [(0, 12288), (28672, 4096)]);
        assert_eq!(ranges(3, 65536, &BTreeSet::from([1])), [(3 * 65536 + 4096, 4096)]);
        assert!(ranges(3, 65536, &BTreeSet::new()).is_empty());
    }
}
