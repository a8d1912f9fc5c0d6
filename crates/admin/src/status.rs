//! `status`: whether all is well, in one look. Its exit code says it as well, so that a watchdog needs no more.

use crate::cluster::condition;
use crate::everyone::ask_all;
use crate::output::Output;
use anyhow::{Result, bail};
use glowfs_client::Client;
use glowfs_types::routing::{ChainInfo, NodeInfo, RoutingInfo};
use glowfs_types::wire::hello::ServiceStatus;
use serde::Serialize;

/// Chains that are named one by one.
const NAMED_MAX: usize = 8;

#[derive(Serialize)]
struct HealthRow {
    /// 0 for what is of no single node.
    node: u64,
    role: String,
    healthy: bool,
    uptime_s: u64,
    detail: String,
}

/// Asks each service itself, and looks at the chains. An error if anything is not as it should be.
pub async fn status(out: Output, client: &Client, routing: &RoutingInfo) -> Result<()> {
    let answers = ask_all(routing.nodes.values(), |n: &NodeInfo| client.status(n.id)).await;
    let mut rows: Vec<_> = answers.into_iter().map(of_service).collect();
    rows.push(of_chains(routing));
    out.rows(&rows, &["node", "role", "healthy", "uptime", "detail"], |r| {
        let (node, uptime) = (r.node.to_string(), format!("{} s", r.uptime_s));
        let none = || "-".to_owned();
        vec![
            if r.node == 0 { none() } else { node },
            r.role.clone(),
            if r.healthy { "yes" } else { "NO" }.into(),
            if r.node == 0 { none() } else { uptime },
            r.detail.clone(),
        ]
    })?;
    match rows.iter().filter(|r| !r.healthy).count() {
        0 => Ok(()),
        n => bail!("{n} of {} are not well", rows.len()),
    }
}

fn of_service((node, answer): (&NodeInfo, glowfs_types::Result<ServiceStatus>)) -> HealthRow {
    let (id, role) = (node.id.0, node.role.to_string());
    match answer {
        Ok(s) => HealthRow {
            node: id,
            role,
            healthy: s.healthy,
            uptime_s: s.uptime_ns / 1_000_000_000,
            detail: s.detail,
        },
        Err(e) => {
            let detail = format!("{e}; if it is gone for good: `glowfs admin remove-node {id}`");
            HealthRow { node: id, role, healthy: false, uptime_s: 0, detail }
        }
    }
}

fn of_chains(routing: &RoutingInfo) -> HealthRow {
    let of = |wanted: &str| -> Vec<&ChainInfo> {
        routing.chains.values().filter(|c| condition(c) == wanted).collect()
    };
    let (degraded, unavailable) = (of("degraded"), of("unavailable"));
    let mut detail = format!("{} complete", of("complete").len());
    if routing.tables.is_empty() {
        detail = "no table, so only small files can be kept: `glowfs admin create-table`".into();
    }
    if !degraded.is_empty() {
        let which = named(&degraded);
        detail += &format!(", {which} lack a replica (`glowfs admin list-resyncs`)");
    }
    if !unavailable.is_empty() {
        let which = named(&unavailable);
        detail += &format!(", {which} nobody serves (`glowfs admin explain-force`)");
    }
    let healthy = !routing.tables.is_empty() && degraded.is_empty() && unavailable.is_empty();
    HealthRow { node: 0, role: "chains".into(), healthy, uptime_s: 0, detail }
}

fn named(chains: &[&ChainInfo]) -> String {
    let ids: Vec<_> = chains.iter().take(NAMED_MAX).map(|c| c.id.0.to_string()).collect();
    let more = if chains.len() > NAMED_MAX { ", ..." } else { "" };
    format!("{} ({}{more})", chains.len(), ids.join(", "))
}
