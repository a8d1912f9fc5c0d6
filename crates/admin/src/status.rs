//! `status`: whether all is well, in one look. Its exit code says it as well, so that a watchdog needs no more.

use crate::cluster::{condition, kept_out};
use crate::everyone::ask_all;
use crate::output::Output;
use anyhow::{Result, bail};
use glowfs_client::Client;
use glowfs_types::ChainId;
use glowfs_types::routing::{ChainInfo, NodeInfo, RoutingInfo};
use glowfs_types::wire::hello::ServiceStatus;
use serde::Serialize;
use std::collections::BTreeMap;

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
        Ok(s) => {
            let (out, uptime_s) = (kept_out(node), s.uptime_ns / 1_000_000_000);
            let healthy = s.healthy && out.is_none();
            let said = [Some(s.detail).filter(|d| !d.is_empty()), out];
            let detail = said.into_iter().flatten().collect::<Vec<_>>().join("; ");
            HealthRow { node: id, role, healthy, uptime_s, detail }
        }
        Err(e) => {
            let detail = format!("{e}; if it is gone for good: `glowfs admin remove-node {id}`");
            HealthRow { node: id, role, healthy: false, uptime_s: 0, detail }
        }
    }
}

fn of_chains(routing: &RoutingInfo) -> HealthRow {
    let replicas = replicas(routing);
    let lacks = |c: &&ChainInfo| {
        let serving = c.serving().count();
        serving > 0 && serving < replicas.get(&c.id).copied().unwrap_or(c.members.len())
    };
    let degraded: Vec<_> = routing.chains.values().filter(lacks).collect();
    let nobody = |c: &&ChainInfo| c.serving().next().is_none();
    let unavailable: Vec<_> = routing.chains.values().filter(nobody).collect();
    let whole = routing.chains.len() - degraded.len() - unavailable.len();
    let moving = routing.chains.values().filter(|c| condition(c) == "degraded").count();
    let mut detail = format!("{whole} complete");
    if moving > degraded.len() {
        detail += &format!(", {} of them with a replica more on its way", moving - degraded.len());
    }
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

/// How many replicas the chains of a table are to have. Where an older mgmtd does not tell it: as many members as the one that has the fewest, for a chain
/// that moves has one more.
fn replicas(routing: &RoutingInfo) -> BTreeMap<ChainId, usize> {
    let mut out = BTreeMap::new();
    for table in &routing.tables {
        let members = |id| routing.chains.get(id).map(|c: &ChainInfo| c.members.len());
        let told = usize::try_from(table.replicas).ok().filter(|n| *n > 0);
        if let Some(n) = told.or_else(|| table.chains.iter().filter_map(members).min()) {
            out.extend(table.chains.iter().map(|id| (*id, n)));
        }
    }
    out
}

fn named(chains: &[&ChainInfo]) -> String {
    let ids: Vec<_> = chains.iter().take(NAMED_MAX).map(|c| c.id.0.to_string()).collect();
    let more = if chains.len() > NAMED_MAX { ", ..." } else { "" };
    format!("{} ({}{more})", chains.len(), ids.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::routing::{ChainMember, ChainTable, PublicState};
    use glowfs_types::{ChainTableId, ChainVersion, NodeId, Redundancy, TargetId};

    /// A table of four chains on two replicas, whose members are in these states.
    fn routing(replicas: u32, states: &[PublicState]) -> RoutingInfo {
        let member = |(i, state): (usize, &PublicState)| ChainMember {
            target: TargetId(i as u64 + 1),
            node: NodeId(i as u64 + 1),
            state: *state,
        };
        let members: Vec<_> = states.iter().enumerate().map(member).collect();
        let chain = |id| ChainInfo {
            id,
            version: ChainVersion(1),
            activated: ChainVersion(1),
            activated_serving: vec![],
            members: members.clone(),
            redundancy: Redundancy::Replicated,
            preferred: vec![],
            lost: ChainVersion(0),
        };
        let chains: Vec<_> = (1..5).map(ChainId).collect();
        let mut out = RoutingInfo::default();
        out.chains.extend(chains.iter().map(|id| (*id, chain(*id))));
        let (id, description) = (ChainTableId(1), String::new());
        out.tables.push(ChainTable { id, version: 1, chains, description, replicas });
        out
    }

    #[test]
    fn a_table_all_of_which_moves_lacks_nothing() {
        use PublicState::{Offline, Serving, Syncing};
        let moving = of_chains(&routing(2, &[Serving, Serving, Syncing]));
        assert_eq!(moving.detail, "4 complete, 4 of them with a replica more on its way");
        assert!(moving.healthy);
        // One that is gone is lacking, also where every chain has lost it.
        for states in [vec![Serving], vec![Serving, Offline], vec![Serving, Syncing]] {
            let lacking = of_chains(&routing(2, &states));
            assert!(
                !lacking.healthy && lacking.detail.contains("4 (1, 2, 3, 4) lack"),
                "{states:?}"
            );
        }
        // An older mgmtd does not tell.
        assert!(of_chains(&routing(0, &[Serving, Serving])).healthy);
        assert!(!of_chains(&routing(0, &[Serving, Offline])).healthy);
    }

    #[test]
    fn who_is_kept_out_is_not_well() {
        let mut node = crate::cluster::storage_node(1001);
        let said = || ServiceStatus { healthy: true, detail: "2 disks".into(), ..<_>::default() };
        let row = of_service((&node, Ok(said())));
        assert_eq!((row.healthy, row.detail.as_str()), (true, "2 disks"));
        node.kept_out_ms = 9_500;
        let row = of_service((&node, Ok(said())));
        assert!(!row.healthy, "{}", row.detail);
        assert!(row.detail.starts_with("2 disks; kept out until it has been well for 10 s"));
    }
}
