//! `orphans`: chunks that nobody owns, and a pass over them.

use crate::output::{Output, ago, bytes};
use anyhow::{Context, Result, bail};
use glowfs_client::Client;
use glowfs_rt::{Duration, Instant};
use glowfs_types::NodeId;
use glowfs_types::routing::{NodeStatus, Role, RoutingInfo};
use glowfs_types::wire::method;
use glowfs_types::wire::orphans::{Orphans, OrphansReply, search};
use serde::Serialize;

/// How often it is asked whether a pass has ended.
const POLL: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct Shown {
    node: u64,
    running: bool,
    passes: u64,
    last_pass_ns: u64,
    checked: u64,
    ownerless_total: u64,
    ownerless: Vec<Row>,
    reclaimed: u64,
    reclaimed_chunks: u64,
    confirm_ms: u64,
    problem: String,
}

#[derive(Serialize)]
struct Row {
    data: u64,
    chunks: u64,
    bytes: u64,
    since_ns: u64,
}

/// `orphans`: what is known, after a pass if one is asked for.
pub async fn show(
    out: Output,
    client: &Client,
    routing: &RoutingInfo,
    (dry_run, reclaim): (bool, bool),
    until: Instant,
) -> Result<()> {
    let what = match (dry_run, reclaim) {
        (true, _) => search::LOOK,
        (_, true) => search::RECLAIM,
        _ => search::SHOW,
    };
    let metas = routing.nodes.values().filter(|n| n.role == Role::Meta);
    let mut active = metas.filter(|n| n.status == NodeStatus::Active).map(|n| n.id);
    // The first one is who looks by itself.
    let node = active.next().context("no metadata service is active")?;
    let before = ask(client, node, what).await?;
    let mut reply = before.clone();
    while what != search::SHOW && (reply.running || reply.passes == before.passes) {
        if client.rt().now() >= until {
            bail!("the pass goes on; look again without an option, or give it more --timeout");
        }
        client.rt().sleep(POLL).await;
        reply = ask(client, node, search::SHOW).await?;
    }
    out.either(&shown(reply), people)
}

fn people(s: &Shown) -> String {
    let mut lines = vec![
        format!("looked: {} passes, the last one {}", s.passes, ago(s.last_pass_ns)),
        format!("data ids with chunks: {}", s.checked),
        format!("without an owner: {}", s.ownerless_total),
        format!("reclaimed: {} with {} chunks", s.reclaimed, s.reclaimed_chunks),
    ];
    lines.extend(s.ownerless.iter().map(|r| {
        let (size, since) = (bytes(r.bytes), ago(r.since_ns));
        format!("data {}: {} chunks, {size}, found {since}", r.data, r.chunks)
    }));
    if s.ownerless_total > 0 {
        let after = s.confirm_ms / 1000;
        lines.push(format!("a pass at least {after} s after it was found may reclaim it"));
    }
    if !s.problem.is_empty() {
        lines.push(format!("the last pass: {}", s.problem));
    }
    lines.join("\n") + "\n"
}

async fn ask(client: &Client, node: NodeId, what: u8) -> Result<OrphansReply> {
    Ok(client.node_call(node, method::ORPHANS, &Orphans { what }).await?)
}

fn shown(reply: OrphansReply) -> Shown {
    let row = |d: glowfs_types::wire::orphans::OrphanData| Row {
        data: d.data.0,
        chunks: d.chunks,
        bytes: d.bytes,
        since_ns: d.since_ns,
    };
    Shown {
        node: reply.node.0,
        running: reply.running,
        passes: reply.passes,
        last_pass_ns: reply.last_pass_ns,
        checked: reply.checked,
        ownerless_total: reply.ownerless_total,
        ownerless: reply.ownerless.into_iter().map(row).collect(),
        reclaimed: reply.reclaimed,
        reclaimed_chunks: reply.reclaimed_chunks,
        confirm_ms: reply.confirm_ms,
        problem: reply.problem,
    }
}
