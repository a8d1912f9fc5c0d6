//! `list-resyncs`: what is being brought up to date, how far it is, how long it will take.

use crate::everyone::ask_all;
use crate::output::{Output, bytes};
use anyhow::{Result, bail};
use glowfs_client::Client;
use glowfs_types::routing::{NodeInfo, Role, RoutingInfo};
use glowfs_types::wire::data::ResyncInfo;
use serde::Serialize;

#[derive(Serialize)]
struct Row {
    chain: u64,
    source: u64,
    target: u64,
    node: u64,
    state: &'static str,
    total_chunks: u64,
    compared_chunks: u64,
    sent_chunks: u64,
    sent_bytes: u64,
    elapsed_ms: u64,
    left_ms: Option<u64>,
}

impl Row {
    fn new(node: u64, r: &ResyncInfo) -> Self {
        Self {
            chain: r.chain.0,
            source: r.source.0,
            target: r.target.0,
            node,
            state: if r.running { "running" } else { "queued" },
            total_chunks: r.total_chunks,
            compared_chunks: r.compared_chunks,
            sent_chunks: r.sent_chunks,
            sent_bytes: r.sent_bytes,
            elapsed_ms: r.elapsed_ms,
            left_ms: r.left_ms(),
        }
    }
}

/// Asks every storage node for the resyncs that it sends. Nodes that do not answer are named on standard error, and make it an error: the list is not all.
pub async fn list(out: Output, client: &Client, routing: &RoutingInfo) -> Result<()> {
    let mut rows = vec![];
    let mut silent = 0;
    let storages = routing.nodes.values().filter(|n| n.role == Role::Storage);
    for (node, answer) in ask_all(storages, |n: &NodeInfo| client.storage_info(n.id)).await {
        match answer {
            Ok(info) => rows.extend(info.resyncs.iter().map(|r| Row::new(node.id.0, r))),
            Err(e) => {
                silent += 1;
                eprintln!("node {} was left out: {e}", node.id);
            }
        }
    }
    let columns = ["chain", "from", "to", "state", "compared", "sent", "bytes", "since", "left"];
    out.rows(&rows, &columns, |r| {
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
        vec![
            r.chain.to_string(),
            format!("{} (node {})", r.source, r.node),
            r.target.to_string(),
            r.state.to_owned(),
            format!("{} of {}", r.compared_chunks, r.total_chunks),
            r.sent_chunks.to_string(),
            bytes(r.sent_bytes),
            seconds(r.elapsed_ms),
            r.left_ms.map_or_else(|| "?".into(), seconds),
        ]
    })?;
    match silent {
        0 => Ok(()),
        n => bail!("{n} storage nodes did not answer, and what they send is not in the list"),
    }
}
