//! Commands that move data off disks and nodes, and that deal with chains that nobody serves.

use crate::output::{Output, bytes, plain, print};
use anyhow::{Context, Result, bail};
use glowfs_client::Client;
use glowfs_rt::Duration;
use glowfs_types::routing::{ChainInfo, Role, RoutingInfo};
use glowfs_types::wire::data::{ChunkSummary, ListChunks, SyncListReply};
use glowfs_types::wire::method;
use glowfs_types::wire::operate::{
    ForceChain, ForceChainReply, Leaver, MoveAway, MoveAwayReply, RemoveNode, RemoveNodeReply,
    TakeDisk, TakeDiskReply, away,
};
use glowfs_types::{ChainId, ChunkId, NodeId, Status, TargetId};
use serde::Serialize;
use std::collections::BTreeMap;

/// Between two looks at a move that is waited for.
const POLL: Duration = Duration::from_millis(500);
/// When nothing has gone for so long while somebody waits, it is said why.
const STANDS: Duration = Duration::from_secs(10);
/// Reasons that are said of a move at once.
const REASONS_MAX: usize = 5;
/// Chunks of one page of a listing.
const PAGE: u32 = 4096;
/// Chunks that are named one by one; more are counted.
const NAMED_MAX: usize = 1000;

/// Parses `NODE` or `NODE:DISK`.
pub fn place(text: &str) -> Result<(NodeId, Option<u32>), String> {
    let (node, disk) = text.split_once(':').map_or((text, None), |(n, d)| (n, Some(d)));
    let bad = || format!("«{text}»: write NODE or NODE:DISK, for example 1002 or 1002:0");
    let node = node.parse().map_err(|_| bad())?;
    let disk = disk.map(|d| d.parse::<u32>().map_err(|_| bad())).transpose()?;
    Ok((NodeId(node), disk))
}

#[derive(Serialize)]
struct LeaverRow {
    target: u64,
    chain: u64,
    to_node: u64,
    to_disk: u32,
    doing: String,
    bytes: u64,
}

#[derive(Serialize)]
struct MoveRow {
    dry_run: bool,
    explanation: String,
    left: Vec<LeaverRow>,
}

/// `drain` and `disk replace`.
pub async fn move_away(out: Output, client: &Client, ask: MoveAway, wait: bool) -> Result<()> {
    let mut reply: MoveAwayReply = client.mgmtd(method::MOVE_AWAY, &ask).await.context("moving")?;
    if wait && !ask.dry_run {
        reply = nothing_left(out, client, &ask, reply).await?;
    }
    let left = reply.left.into_iter().map(|l| LeaverRow {
        target: l.target.0,
        chain: l.chain.0,
        to_node: l.to_node.0,
        to_disk: l.to_disk,
        doing: l.doing,
        bytes: l.bytes,
    });
    let row =
        MoveRow { dry_run: ask.dry_run, explanation: reply.explanation, left: left.collect() };
    if out.json {
        return out.value(&row);
    }
    let dry = if row.dry_run { "Dry run, nothing was changed: " } else { "" };
    print(&format!("{dry}{}\n", row.explanation))?;
    if row.left.is_empty() {
        return Ok(());
    }
    out.rows(&row.left, &["target", "chain", "bytes", "to", "progress"], |l| {
        vec![
            l.target.to_string(),
            l.chain.to_string(),
            bytes(l.bytes),
            format!("{}:{}", l.to_node, l.to_disk),
            l.doing.clone(),
        ]
    })
}

/// Waits until an order that was given is done. It only looks: whoever gives another order meanwhile has the last word.
async fn nothing_left(
    out: Output,
    client: &Client,
    order: &MoveAway,
    mut reply: MoveAwayReply,
) -> Result<MoveAwayReply> {
    let look = MoveAway { dry_run: true, ..order.clone() };
    let mut said = (usize::MAX, String::new(), client.rt().now());
    while !reply.left.is_empty() {
        let (left, why) = (reply.left.len(), reasons(&reply.left));
        let now = client.rt().now();
        // The reasons change all the time while something moves, and say what is the matter where nothing does.
        let stands = left == said.0 && why != said.1 && now.since(said.2) >= STANDS;
        if !out.json && (left != said.0 || stands) {
            let why = if stands { format!(": {why}") } else { String::new() };
            print(&format!("{left} targets to go{why}\n"))?;
            said = (left, if stands { reasons(&reply.left) } else { String::new() }, now);
        }
        client.rt().sleep(POLL).await;
        reply = client.mgmtd(method::MOVE_AWAY, &look).await.context("looking how far it is")?;
        if reply.in_force == Some(false) {
            bail!(
                "this order is not in force any more: somebody has called it off or given another one for {}, or a further disk has come there; {} targets are left",
                order.disk.map_or_else(
                    || format!("node {}", order.node),
                    |d| format!("{}:{d}", order.node)
                ),
                reply.left.len()
            );
        }
    }
    Ok(reply)
}

/// Why targets are not gone yet: each reason with how many have it, and one of these.
fn reasons(left: &[Leaver]) -> String {
    let mut by: BTreeMap<&str, (usize, TargetId)> = BTreeMap::new();
    for l in left {
        by.entry(&l.doing).or_insert((0, l.target)).0 += 1;
    }
    let all = by.len();
    let some = by.iter().take(REASONS_MAX);
    let mut said: Vec<_> =
        some.map(|(why, (n, first))| format!("{n} (target {first}): {}", plain(why))).collect();
    if all > REASONS_MAX {
        said.push(format!("and {} reasons more", all - REASONS_MAX));
    }
    said.join("; ")
}

/// `remove-node`.
pub async fn remove_node(out: Output, client: &Client, node: NodeId, yes: bool) -> Result<()> {
    let ask = RemoveNode { node, dry_run: !yes };
    let reply: RemoveNodeReply =
        client.mgmtd(method::REMOVE_NODE, &ask).await.context("removing a node")?;
    let row = RemovedRow { node: node.0, removed: yes, explanation: reply.explanation };
    out.either(&row, |row| {
        let hint = if row.removed { "" } else { "; nothing was changed: add --yes" };
        format!("{}{hint}\n", row.explanation)
    })
}

#[derive(Serialize)]
struct RemovedRow {
    node: u64,
    removed: bool,
    explanation: String,
}

/// What is about to be replaced; nothing was done.
#[derive(Serialize)]
struct ReplacedRow {
    node: u64,
    disk: u32,
    host: String,
    path: String,
    store: String,
    capacity_bytes: u64,
    problem: Option<String>,
    /// What would become of each store that has or had this number, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    stores: Option<String>,
    replaced: bool,
}

/// `disk replace`: without `yes` it only says which directory of which machine would be taken up, and formatted if it is empty.
pub async fn replace(
    out: Output,
    client: &Client,
    routing: &RoutingInfo,
    (node, disk): (NodeId, u32),
    (yes, wait): (bool, bool),
) -> Result<()> {
    let known = routing.nodes.get(&node).filter(|n| n.role == Role::Storage);
    let Some(info) = known else {
        bail!("{node} is no storage node; see `glowfs admin list-nodes`");
    };
    if yes {
        take_disk(client, node, disk).await?;
        let (disk, what) = (Some(disk), away::REPLACE);
        let ask = MoveAway { node, disk, what, dry_run: false, store: None };
        return move_away(out, client, ask, wait).await;
    }
    let disks = client.storage_info(node).await.context("looking at its disks")?.disks;
    let Some(there) = disks.get(disk as usize) else {
        bail!("node {node} has {} disks; see `glowfs admin df`", disks.len());
    };
    let row = ReplacedRow {
        node: node.0,
        disk,
        host: info.hostname.clone(),
        path: there.path.clone(),
        store: there.store.to_string(),
        capacity_bytes: there.capacity_bytes,
        problem: there.problem.clone(),
        stores: known_stores(client, node, disk).await?,
        replaced: false,
    };
    out.either(&row, would_replace)
}

/// What mgmtd says of the stores that have, or had, the number of a disk; nothing before a new one is there.
async fn known_stores(client: &Client, node: NodeId, disk: u32) -> Result<Option<String>> {
    let (disk, what) = (Some(disk), away::REPLACE);
    let look = MoveAway { node, disk, what, dry_run: true, store: None };
    match client.mgmtd::<_, MoveAwayReply>(method::MOVE_AWAY, &look).await {
        Ok(reply) => Ok(Some(reply.explanation)),
        Err(e) if e.message.contains("has no new disk") => Ok(None),
        Err(e) if e.status == Status::NoSpace => Ok(Some(e.message)),
        Err(e) => Err(e).context("looking what had its number"),
    }
}

fn would_replace(row: &ReplacedRow) -> String {
    let (place, path, host) =
        (format!("{}:{}", row.node, row.disk), plain(&row.path), plain(&row.host));
    let text = match &row.problem {
        // Opened already, when its service was started.
        None => format!(
            "{place} is {path} on {host}, store {} of {}, and works: if it is new, it is vouched for",
            row.store,
            bytes(row.capacity_bytes)
        ),
        Some(problem) => format!(
            "{place} is {path} on {host}, and has failed ({}): what is there now is taken up, and formatted if it is empty. Is the new disk mounted there? (`findmnt --target {path}`)",
            plain(problem)
        ),
    };
    let stores = row.stores.as_ref().map_or(String::new(), |s| format!(": {}", plain(s)));
    format!("{text}{stores}; nothing was changed: add --yes\n")
}

/// Has a storage node take up what is in the place of a disk that failed; nothing is done to one that works.
async fn take_disk(client: &Client, node: NodeId, disk: u32) -> Result<()> {
    match client.node_call::<_, TakeDiskReply>(node, method::TAKE_DISK, &TakeDisk { disk }).await {
        Ok(_) => Ok(()),
        // Of an older release, or not running: it took the disk up when it was started, or will.
        Err(e) if matches!(e.status, Status::UnknownMethod | Status::Disconnected) => Ok(()),
        Err(e) => Err(e).context("taking the new disk up"),
    }
}

/// What one member holds, or why that is not known.
#[derive(Serialize)]
struct HolderRow {
    target: u64,
    node: u64,
    state: String,
    /// Chunks it holds; absent if it could not be asked.
    chunks: Option<usize>,
    problem: Option<String>,
    /// Chunks of which another one that was asked has newer content.
    behind: usize,
    /// The first of them.
    would_lose: Vec<LossRow>,
}

#[derive(Serialize)]
struct LossRow {
    volume: u64,
    data: u64,
    index: u64,
    version: u64,
    newest: u64,
    on_target: u64,
}

#[derive(Serialize)]
struct ForceRow {
    chain: u64,
    waits: bool,
    /// What was made to serve; absent if nothing was changed.
    forced: Option<u64>,
    /// What should be, with `--yes`.
    #[serde(skip)]
    asked: Option<u64>,
    explanation: String,
    members: Vec<HolderRow>,
}

/// `explain-force` and `force`: `target` and `yes` are of the latter.
pub async fn force(
    out: Output,
    client: &Client,
    routing: &RoutingInfo,
    chain: u64,
    target: Option<u64>,
    yes: bool,
) -> Result<()> {
    let Some(info) = routing.chains.get(&ChainId(chain)) else {
        bail!("there is no chain {chain}; see `glowfs admin list-chains`");
    };
    // Asked before anything is changed.
    let members = holdings(client, info).await;
    let ask = ForceChain {
        chain: ChainId(chain),
        target: target.map(TargetId),
        dry_run: !yes || target.is_none(),
    };
    let reply: ForceChainReply =
        client.mgmtd(method::FORCE_CHAIN, &ask).await.context("forcing a chain")?;
    out.either(&outcome(chain, target.filter(|_| yes), reply, members), people)
}

/// What became of a chain of which `asked` was to serve.
fn outcome(
    chain: u64,
    asked: Option<u64>,
    reply: ForceChainReply,
    members: Vec<HolderRow>,
) -> ForceRow {
    let ForceChainReply { waits, explanation } = reply;
    // Where somebody serves already nothing is done.
    let forced = asked.filter(|_| waits);
    ForceRow { chain, waits, forced, asked, explanation, members }
}

fn people(row: &ForceRow) -> String {
    let mut text = row.explanation.clone();
    for m in &row.members {
        text += &match (&m.chunks, &m.problem) {
            (Some(n), _) if m.behind == 0 => {
                format!("target {} holds {n} chunks, none older than elsewhere\n", m.target)
            }
            (Some(n), _) => format!(
                "target {} holds {n} chunks; of {} another target has newer content, which would be lost:\n",
                m.target, m.behind
            ),
            (None, problem) => format!(
                "target {} could not be asked: {}\n",
                m.target,
                problem.as_deref().unwrap_or("its node is away")
            ),
        };
        for l in &m.would_lose {
            text += &format!(
                "  chunk {} of data {} (volume {}): version {} here, {} on target {}\n",
                l.index, l.data, l.volume, l.version, l.newest, l.on_target
            );
        }
    }
    match (row.asked, row.waits) {
        (Some(t), true) => text + &format!("target {t} serves now\n"),
        (Some(t), false) => text + &format!("nothing was changed: target {t} serves already\n"),
        (None, true) => {
            text + "Nothing was changed. To force it: glowfs admin force CHAIN --target TARGET --yes\n"
        }
        _ => text,
    }
}

/// What every member holds, compared.
async fn holdings(client: &Client, chain: &ChainInfo) -> Vec<HolderRow> {
    let mut found: Vec<(TargetId, NodeId, String, Result<Vec<ChunkSummary>>)> = vec![];
    for m in &chain.members {
        let chunks = chunks(client, m.node, m.target).await;
        found.push((m.target, m.node, m.state.to_string(), chunks));
    }
    let mut newest: BTreeMap<ChunkId, (u64, TargetId)> = BTreeMap::new();
    for (target, .., chunks) in &found {
        for c in chunks.iter().flatten() {
            // A pending version may have been acknowledged.
            let version = c.committed.0.max(c.pending.0);
            let best = newest.entry(c.chunk).or_insert((version, *target));
            if version > best.0 {
                *best = (version, *target);
            }
        }
    }
    let row = |(target, node, state, chunks): (TargetId, NodeId, String, Result<Vec<_>>)| {
        let mut row = HolderRow {
            target: target.0,
            node: node.0,
            state,
            chunks: None,
            problem: None,
            behind: 0,
            would_lose: vec![],
        };
        match chunks {
            Err(e) => row.problem = Some(format!("{e:#}")),
            Ok(chunks) => {
                row.chunks = Some(chunks.len());
                let mine: BTreeMap<ChunkId, u64> = chunks
                    .iter()
                    .map(|c: &ChunkSummary| (c.chunk, c.committed.0.max(c.pending.0)))
                    .collect();
                for (chunk, (version, on)) in &newest {
                    let have = mine.get(chunk).copied().unwrap_or(0);
                    if have >= *version {
                        continue;
                    }
                    row.behind += 1;
                    if row.would_lose.len() < NAMED_MAX {
                        row.would_lose.push(LossRow {
                            volume: chunk.volume.0,
                            data: chunk.data.0,
                            index: chunk.index,
                            version: have,
                            newest: *version,
                            on_target: on.0,
                        });
                    }
                }
            }
        }
        row
    };
    found.into_iter().map(row).collect()
}

async fn chunks(client: &Client, node: NodeId, target: TargetId) -> Result<Vec<ChunkSummary>> {
    let mut all: Vec<ChunkSummary> = vec![];
    loop {
        let after = all.last().map(|c| c.chunk);
        let ask = ListChunks { target, after, limit: PAGE };
        let page: SyncListReply = client.node_call(node, method::LIST_CHUNKS, &ask).await?;
        let more = page.more && !page.chunks.is_empty();
        all.extend(page.chunks);
        if !more {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serves_already_was_not_forced() {
        let said = |asked, waits| {
            let reply = ForceChainReply { waits, explanation: String::new() };
            let row = outcome(7, asked, reply, vec![]);
            (serde_json::to_value(&row).expect("JSON")["forced"].as_u64(), people(&row))
        };
        assert_eq!(said(Some(3), true), (Some(3), "target 3 serves now\n".into()));
        let (forced, text) = said(Some(3), false);
        assert_eq!(forced, None);
        assert!(text.contains("serves already"), "{text}");
        let (forced, text) = said(None, true);
        assert_eq!(forced, None);
        assert!(text.contains("To force it"), "{text}");
    }

    #[test]
    fn what_is_replaced_is_named_with_its_directory() {
        let mut row = ReplacedRow {
            node: 1001,
            disk: 1,
            host: "h".into(),
            path: "/data/nvme1".into(),
            store: "ab".into(),
            capacity_bytes: 1 << 40,
            problem: None,
            stores: None,
            replaced: false,
        };
        let said = would_replace(&row);
        assert!(said.contains("1001:1 is /data/nvme1 on h, store ab of 1.0 TiB"), "{said}");
        row.stores = Some("6 targets have to go; 1001:1 was store cd".into());
        let said = would_replace(&row);
        assert!(said.contains(": 6 targets have to go; 1001:1 was store cd; nothing"), "{said}");
        row.problem = Some("gone".into());
        let said = would_replace(&row);
        assert!(said.contains("/data/nvme1 on h") && said.contains("formatted"), "{said}");
        assert!(said.contains("add --yes"), "{said}");
    }

    #[test]
    fn reasons_are_counted() {
        let leaver = |target, doing: &str| Leaver {
            target: TargetId(target),
            chain: ChainId(1),
            to_node: NodeId(1),
            to_disk: 0,
            doing: doing.into(),
            bytes: 0,
        };
        let left = [leaver(3, "waits"), leaver(4, "its copy is syncing"), leaver(5, "waits")];
        assert_eq!(reasons(&left), "1 (target 4): its copy is syncing; 2 (target 3): waits");
        let many: Vec<_> = (0..9).map(|i| leaver(i, &i.to_string())).collect();
        assert!(reasons(&many).ends_with("and 4 reasons more"), "{}", reasons(&many));
    }

    #[test]
    fn places_are_nodes_or_disks_of_nodes() {
        assert_eq!(place("1002"), Ok((NodeId(1002), None)));
        assert_eq!(place("1002:3"), Ok((NodeId(1002), Some(3))));
        for bad in ["", "x", "1:", ":1", "1:2:3", "-1"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }
}
