//! What must hold when everything is mended and the clients are done: every serving replica has every acknowledged byte, all
//! replicas are equal, what clients left that ended in the middle is what they were told, and when the files are removed nothing is left.

use super::contended;
use super::fsck;
use super::harness::{Cluster, Service, all_serve};
use super::held;
use super::leaks;
use super::lives::Lives;
use super::locks;
use super::names::{lookup, unlink};
use super::orphans;
use super::records;
use super::run::SHARED_FILE;
use super::shared_names;
use super::small;
use super::workload::{self, Shared, open_or_make, report};
use glowfs_client::{Client, ClientConfig};
use glowfs_rt::{Duration, Rt};
use glowfs_types::routing::{ChainInfo, RoutingInfo};
use glowfs_types::wire::meta::ROOT_INODE;
use glowfs_types::wire::orphans::search;
use glowfs_types::{Error, HostId, NodeId, Result, Status};
use std::rc::Rc;

/// How long garbage collection may take.
const COLLECTED: Duration = Duration::from_secs(120);

/// All of it.
pub fn check(cluster: &Cluster, shared: &Rc<Shared>, lives: &Lives, limit: Duration) -> Result<()> {
    let own = lives.own_files();
    let engine = Cluster::address(&cluster.metas[0]);
    let (s, left) = (shared.clone(), lives.left());
    let host = engine.clone();
    cluster.with_client(&cluster.clients[0].clone(), limit, move |rt, client| async move {
        leaks::wait_sessions(&rt, &records::engine(&rt, host)?).await?;
        fsck::clean(&rt, &client).await?;
        held::differences(&rt, &client).await?.into_iter().for_each(|d| s.problem(d));
        for estate in left {
            estate.judge(&rt, &client, &s).await?;
        }
        shared_names::list_all(&client, &s).await
    })?;
    for storage in &cluster.storages {
        read_from(cluster, storage, shared, limit)
            .map_err(|e| e.context(format_args!("reading from {}", storage.node.name())))?;
    }
    let storages: Vec<_> = cluster.storages.iter().map(Service::id).collect();
    let (meta, power_lost) =
        (cluster.metas[0].id(), shared.power_losses.get() + shared.engine_losses.get() > 0);
    let limit = limit + COLLECTED * 3;
    cluster.with_client(&cluster.clients[0].clone(), limit, move |rt, client| async move {
        for name in own.iter().map(String::as_str).chain([SHARED_FILE, contended::NAME]) {
            unlink(&client, ROOT_INODE, name, false).await.map_err(|e| e.context(name))?;
        }
        for name in locks::NAMES {
            // Nobody has made it, if no client came so far.
            if lookup(&client, ROOT_INODE, name).await?.is_some() {
                unlink(&client, ROOT_INODE, name, false).await.map_err(|e| e.context(name))?;
            }
        }
        shared_names::remove(&client).await?;
        small::remove(&client).await.map_err(|e| e.context(small::DIR))?;
        let mut left = chunks_left(&rt, &client, &storages).await?;
        let mut searched = None;
        if !left.is_empty() {
            // Names them, whoever is to blame.
            searched = Some(orphans::pass(&rt, &client, meta, search::LOOK).await?);
        }
        if !left.is_empty() && power_lost {
            // The record of a file may have gone with the power, and its chunks not.
            let found = orphans::reclaim(&rt, &client, meta).await?;
            if found.reclaimed > 0 {
                left = chunks_left(&rt, &client, &storages).await?;
            }
            searched = Some(found);
        }
        if left.is_empty() {
            return leaks::wait_nothing(&rt, &records::engine(&rt, engine)?, client.id()).await;
        }
        let all = left.join(", ");
        let what = format!(
            "chunks left {COLLECTED:?} after all files were removed: {all}; search for orphans: {searched:?}"
        );
        Err(Error::new(Status::Internal, what))
    })
}

/// Waits until no target has chunks any more; those that do in the end.
async fn chunks_left(rt: &Rt, client: &Client, storages: &[NodeId]) -> Result<Vec<String>> {
    let until = rt.now() + COLLECTED;
    loop {
        let mut left = Vec::new();
        for node in storages {
            let info = client.storage_info(*node).await?;
            let targets = info.targets.iter().filter(|t| t.1 > 0);
            left.extend(targets.map(|t| format!("{} on target {} of {node}", t.1, t.0)));
        }
        if left.is_empty() || rt.now() >= until {
            return Ok(left);
        }
        rt.sleep(Duration::from_millis(500)).await;
    }
}

/// Everything in the shared files as the replicas of one node have it.
fn read_from(
    cluster: &Cluster,
    storage: &Service,
    shared: &Rc<Shared>,
    limit: Duration,
) -> Result<()> {
    let shared = shared.clone();
    let node = storage.id();
    let config = cluster.client_config();
    cluster.with_config(&cluster.clients[0].clone(), limit, config, move |rt, client| async move {
        // The client reads from replicas of its own host, if there are.
        let host = client.routing().nodes.get(&node).map_or(HostId(0), |n| n.host);
        let config = ClientConfig { host, hedge: false, ..client.config().clone() };
        let near = Client::connect(&rt, config).await?;
        let who = format!("the last reader near node {node}");
        let result = read_all(&rt, &near, &shared, &who).await;
        near.close().await;
        result
    })
}

async fn read_all(rt: &Rt, client: &Rc<Client>, shared: &Shared, who: &str) -> Result<()> {
    let (file, _) = open_or_make(client, SHARED_FILE).await?;
    let cells = shared.registers.borrow().len() as u64;
    workload::read_cells(rt, &file, shared, 0, cells, who).await?;
    client.close_session(report(client, &file, false)).await?;
    let (file, _) = open_or_make(client, contended::NAME).await?;
    for i in 0..contended::CELLS.len() {
        contended::read(rt, &file, shared, i).await?;
    }
    client.close_session(report(client, &file, false)).await?;
    small::read_all(rt, client, shared).await
}

/// The chains in words.
pub fn chains(info: &RoutingInfo) -> String {
    let chain = |c: &ChainInfo| {
        let members = c.members.iter().map(|m| {
            let local =
                info.targets.get(&m.target).map(|t| t.local.to_string()).unwrap_or_default();
            format!("node {} {} ({local})", m.node, m.state)
        });
        let members: Vec<String> = members.collect();
        format!(
            "\n  chain {} version {} activated {}: {}",
            c.id,
            c.version,
            c.activated,
            members.join(", ")
        )
    };
    format!(
        "routing info version {}:{}",
        info.version,
        info.chains.values().map(chain).collect::<String>()
    )
}

/// Waits until every member of every chain serves, and they stay so; says how they are if not.
pub fn wait_healthy(cluster: &Cluster, limit: Duration) -> Result<()> {
    let shape = cluster.shape();
    let config = cluster.client_config();
    cluster.with_config(
        &cluster.clients[0].clone(),
        limit * 2,
        config,
        move |rt, client| async move {
            let until = rt.now() + limit;
            while !all_serve(&client.routing(), shape) {
                if rt.now() >= until {
                    let how = chains(&client.routing());
                    return Err(Error::new(
                        Status::TimedOut,
                        format!("not all serve {limit:?} after everything was mended; {how}"),
                    ));
                }
                rt.sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        },
    )
}
