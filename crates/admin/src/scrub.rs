//! `scrub`: how the verification of what is at rest stands, and starting one.

use crate::everyone::ask_all;
use crate::output::{Output, ago, bytes};
use anyhow::{Result, bail};
use glowfs_client::Client;
use glowfs_types::routing::{NodeInfo, Role, RoutingInfo};
use glowfs_types::wire::method;
use glowfs_types::wire::repair::{Scrub, ScrubReply};
use serde::Serialize;

#[derive(Serialize)]
struct ScrubRow {
    target: u64,
    node: u64,
    running: bool,
    chunks: u64,
    bytes: u64,
    passes: u64,
    last_pass_ns: u64,
    found: u64,
    repaired: u64,
    failed: u64,
    bytes_per_s: u64,
}

/// `scrub`.
pub async fn scrub(out: Output, client: &Client, routing: &RoutingInfo, now: bool) -> Result<()> {
    let mut rows = Vec::new();
    let mut silent = Vec::new();
    let storages = routing.nodes.values().filter(|n| n.role == Role::Storage);
    let ask = Scrub { now };
    let question = |n: &NodeInfo| client.node_call::<_, ScrubReply>(n.id, method::SCRUB, &ask);
    for (node, answer) in ask_all(storages, question).await {
        let reply = match answer {
            Ok(reply) => reply,
            Err(e) => {
                silent.push(format!("node {}: {e}", node.id));
                continue;
            }
        };
        rows.extend(reply.targets.into_iter().map(|t| ScrubRow {
            target: t.target.0,
            node: node.id.0,
            running: t.running,
            chunks: t.chunks,
            bytes: t.bytes,
            passes: t.passes,
            last_pass_ns: t.last_pass_ns,
            found: t.found,
            repaired: t.repaired,
            failed: t.failed,
            bytes_per_s: reply.bytes_per_s,
        }));
    }
    rows.sort_by_key(|r| r.target);
    let columns = [
        "target",
        "node",
        "pass",
        "chunks",
        "bytes",
        "passes",
        "last pass",
        "found",
        "repaired",
        "failed",
    ];
    out.rows(&rows, &columns, |r| {
        vec![
            r.target.to_string(),
            r.node.to_string(),
            if r.running { "running" } else { "-" }.into(),
            r.chunks.to_string(),
            bytes(r.bytes),
            r.passes.to_string(),
            ago(r.last_pass_ns),
            r.found.to_string(),
            r.repaired.to_string(),
            r.failed.to_string(),
        ]
    })?;
    if !silent.is_empty() {
        bail!("not every storage node answered: {}", silent.join("; "));
    }
    Ok(())
}
