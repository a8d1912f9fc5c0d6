//! Commands that show the cluster: nodes, chains, tables, targets, clients.

use crate::args::{GrownTable, NewTable};
use crate::output::{Output, ago, bytes};
use anyhow::{Context, Result};
use glowfs_client::Client;
use glowfs_types::ChainTableId;
use glowfs_types::routing::{ChainInfo, NodeInfo, RoutingInfo};
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{
    ClientList, ClientSession, CreateTable, CreateTableReply, GrowTable, ListClients,
};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct NodeRow {
    id: u64,
    role: String,
    status: String,
    kept_out_ms: u64,
    host: String,
    pid: u32,
    tags: BTreeMap<String, String>,
    last_heartbeat_ns: u64,
    config_version: u64,
    release: String,
    addresses: Vec<String>,
    http: Option<String>,
}

impl From<&NodeInfo> for NodeRow {
    fn from(n: &NodeInfo) -> Self {
        Self {
            id: n.id.0,
            role: n.role.to_string(),
            status: n.status.to_string(),
            kept_out_ms: n.kept_out_ms,
            host: n.hostname.clone(),
            pid: n.pid,
            tags: n.tags.clone(),
            last_heartbeat_ns: n.last_heartbeat_ns,
            config_version: n.config_version.0,
            release: n.release.clone(),
            addresses: n.addresses.clone(),
            http: n.http.clone(),
        }
    }
}

/// Why a node that is heard does not count, if so.
pub fn kept_out(node: &NodeInfo) -> Option<String> {
    let s = node.kept_out_ms.div_ceil(1000);
    (s > 0)
        .then(|| format!("kept out until it has been well for {s} s, for it fell again and again"))
}

fn told_status(row: &NodeRow) -> String {
    match row.kept_out_ms {
        0 => row.status.clone(),
        _ => format!("{}, kept out", row.status),
    }
}

/// `list-nodes`.
pub fn nodes(out: Output, routing: &RoutingInfo) -> Result<()> {
    let rows: Vec<_> = routing.nodes.values().map(NodeRow::from).collect();
    let columns = [
        "id",
        "role",
        "status",
        "host",
        "pid",
        "tags",
        "heartbeat",
        "config",
        "release",
        "address",
    ];
    out.rows(&rows, &columns, |n| {
        let tags: Vec<_> = n.tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
        vec![
            n.id.to_string(),
            n.role.clone(),
            told_status(n),
            n.host.clone(),
            n.pid.to_string(),
            if tags.is_empty() { "-".into() } else { tags.join(",") },
            ago(n.last_heartbeat_ns),
            n.config_version.to_string(),
            n.release.clone(),
            n.addresses.first().cloned().unwrap_or_default(),
        ]
    })
}

#[derive(Serialize)]
struct MemberRow {
    target: u64,
    node: u64,
    state: String,
}

#[derive(Serialize)]
struct ChainRow {
    id: u64,
    version: u64,
    activated: u64,
    status: &'static str,
    members: Vec<MemberRow>,
}

/// Whether a chain is as it should be, in a word.
pub fn condition(c: &ChainInfo) -> &'static str {
    match c.serving().count() {
        0 => "unavailable",
        n if n == c.members.len() => "complete",
        _ => "degraded",
    }
}

/// `list-chains`.
pub fn chains(out: Output, routing: &RoutingInfo) -> Result<()> {
    let rows: Vec<_> = routing
        .chains
        .values()
        .map(|c| ChainRow {
            id: c.id.0,
            version: c.version.0,
            activated: c.activated.0,
            status: condition(c),
            members: c
                .members
                .iter()
                .map(|m| MemberRow {
                    target: m.target.0,
                    node: m.node.0,
                    state: m.state.to_string(),
                })
                .collect(),
        })
        .collect();
    out.rows(&rows, &["id", "version", "activated", "status", "members (head first)"], |c| {
        let members: Vec<_> =
            c.members.iter().map(|m| format!("{}@{}:{}", m.target, m.node, m.state)).collect();
        vec![
            c.id.to_string(),
            c.version.to_string(),
            c.activated.to_string(),
            c.status.into(),
            members.join(" "),
        ]
    })
}

#[derive(Serialize)]
struct TableRow {
    id: u64,
    version: u64,
    chains: Vec<u64>,
    /// 0 where mgmtd does not tell.
    replicas: u32,
    description: String,
}

/// `list-chain-tables`.
pub fn tables(out: Output, routing: &RoutingInfo) -> Result<()> {
    let rows: Vec<_> = routing
        .tables
        .iter()
        .map(|t| TableRow {
            id: t.id.0,
            version: t.version,
            chains: t.chains.iter().map(|c| c.0).collect(),
            replicas: t.replicas,
            description: t.description.clone(),
        })
        .collect();
    out.rows(&rows, &["id", "version", "chains", "replicas", "description"], |t| {
        vec![
            t.id.to_string(),
            t.version.to_string(),
            t.chains.len().to_string(),
            t.replicas.to_string(),
            t.description.clone(),
        ]
    })
}

#[derive(Serialize)]
struct TargetRow {
    id: u64,
    chain: u64,
    node: u64,
    store: String,
    disk_index: u32,
    public_state: String,
    local_state: String,
    incarnation: u64,
    adopted: u64,
    used_bytes: u64,
}

/// `list-targets`.
pub fn targets(out: Output, routing: &RoutingInfo) -> Result<()> {
    let members = routing.chains.values().flat_map(|c| &c.members);
    let states: BTreeMap<_, _> = members.map(|m| (m.target, m.state)).collect();
    let public = |id| states.get(&id).map_or_else(|| "orphan".into(), ToString::to_string);
    let rows: Vec<_> = routing
        .targets
        .values()
        .map(|t| TargetRow {
            id: t.id.0,
            chain: t.chain.0,
            node: t.node.0,
            store: t.store.to_string(),
            disk_index: t.disk_index,
            public_state: public(t.id),
            local_state: t.local.to_string(),
            incarnation: t.incarnation.0,
            adopted: t.adopted.0,
            used_bytes: t.used_bytes,
        })
        .collect();
    let columns =
        ["id", "chain", "disk", "public", "local", "incarnation", "adopted", "used", "store"];
    out.rows(&rows, &columns, |t| {
        vec![
            t.id.to_string(),
            t.chain.to_string(),
            // As `drain` and `disk replace` take it.
            format!("{}:{}", t.node, t.disk_index),
            t.public_state.clone(),
            t.local_state.clone(),
            t.incarnation.to_string(),
            t.adopted.to_string(),
            bytes(t.used_bytes),
            t.store.clone(),
        ]
    })
}

#[derive(Serialize)]
struct ClientRow {
    id: String,
    role: String,
    host: String,
    pid: u32,
    user: u64,
    description: String,
    release: String,
    started_ns: u64,
    last_seen_ns: u64,
}

/// All clients that have a session.
pub async fn sessions(client: &Client) -> Result<Vec<ClientSession>> {
    let mut sessions = Vec::new();
    let mut ask = Some(ListClients { pages: true, ..ListClients::default() });
    while let Some(question) = ask {
        let page: ClientList =
            client.mgmtd(method::LIST_CLIENTS, &question).await.context("listing clients")?;
        ask = page.next(question).context("listing clients")?;
        sessions.extend(page.clients);
    }
    Ok(sessions)
}

/// `list-clients`.
pub async fn clients(out: Output, client: &Client) -> Result<()> {
    let rows: Vec<_> = sessions(client)
        .await?
        .into_iter()
        .map(|c| ClientRow {
            id: c.client.to_string(),
            role: c.role.map_or_else(|| "client".into(), |r| r.to_string()),
            host: c.hostname,
            pid: c.pid,
            user: c.user.0,
            description: c.description,
            release: c.release,
            started_ns: c.started_ns,
            last_seen_ns: c.last_seen_ns,
        })
        .collect();
    let columns =
        ["id", "role", "host", "pid", "user", "started", "seen", "release", "description"];
    out.rows(&rows, &columns, |c| {
        vec![
            c.id[..8.min(c.id.len())].to_owned(),
            c.role.clone(),
            c.host.clone(),
            c.pid.to_string(),
            c.user.to_string(),
            ago(c.started_ns),
            ago(c.last_seen_ns),
            c.release.clone(),
            c.description.clone(),
        ]
    })
}

#[derive(Serialize)]
struct TableMade {
    version: u64,
    dry_run: bool,
    explanation: String,
}

/// `create-table`.
pub async fn create_table(out: Output, client: &Client, new: &NewTable) -> Result<()> {
    let request = CreateTable {
        table: ChainTableId(new.table),
        replicas: new.replicas,
        chains: new.chains,
        description: String::new(),
        dry_run: new.dry_run,
    };
    let reply = client.mgmtd(method::CREATE_TABLE, &request).await.context("laying chains")?;
    table_made(out, reply, request.dry_run)
}

/// `grow-table`.
pub async fn grow_table(out: Output, client: &Client, new: &GrownTable) -> Result<()> {
    let table = ChainTableId(new.table);
    let request = GrowTable { table, chains: new.chains, dry_run: new.dry_run };
    let reply = client.mgmtd(method::GROW_TABLE, &request).await.context("laying more chains")?;
    table_made(out, reply, request.dry_run)
}

fn table_made(out: Output, reply: CreateTableReply, dry_run: bool) -> Result<()> {
    let made = TableMade { version: reply.version, dry_run, explanation: reply.explanation };
    out.either(&made, |m| format!("{}\n", m.explanation.trim_end()))
}

/// A node, for tests.
#[cfg(test)]
pub fn storage_node(id: u64) -> NodeInfo {
    use glowfs_types::routing::{NodeStatus, Role};
    NodeInfo {
        id: glowfs_types::NodeId(id),
        role: Role::Storage,
        addresses: vec![],
        host: glowfs_types::HostId(0),
        hostname: String::new(),
        pid: 0,
        tags: BTreeMap::new(),
        status: NodeStatus::Active,
        last_heartbeat_ns: 0,
        config_version: glowfs_types::ConfigVersion(0),
        release: String::new(),
        http: None,
        kept_out_ms: 0,
    }
}
