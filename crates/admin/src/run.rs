//! Connects, runs one command, leaves.

use crate::args::{AdminArgs, Command, DiskCommand, TrashCommand};
use crate::output::Output;
use crate::{
    cluster, config, damaged, files, fsck, layout, operate, orphans, resyncs, scrub, status, trash,
    trees, users,
};
use anyhow::{Context, Result, bail};
use glowfs_client::{Client, ClientConfig};
use glowfs_rt::{Duration, Rt};
use glowfs_types::limits::REQUEST_TRIED_MAX_MS;
use glowfs_types::routing::{Role, RoutingInfo};
use glowfs_types::wire::operate::{MoveAway, away};
use glowfs_types::{NodeId, UserId};
use std::rc::Rc;

/// Runs one command against the cluster at `mgmtd` with `token`.
pub async fn run(rt: &Rt, args: &AdminArgs, mgmtd: Vec<String>, token: String) -> Result<()> {
    let config = ClientConfig {
        mgmtd: mgmtd.clone(),
        token,
        role: Role::Client,
        description: "glowfs admin".into(),
        session: false,
        connect_timeout: Duration::from_secs(args.timeout),
        meta_total: Duration::from_secs(args.timeout)
            .min(Duration::from_millis(REQUEST_TRIED_MAX_MS)),
        data_total: Duration::from_secs(args.timeout),
        ..ClientConfig::default()
    };
    let client = Client::connect(rt, config)
        .await
        .with_context(|| format!("reaching the cluster at {}", mgmtd.join(", ")))?;
    let result = command(&client, args).await;
    client.close().await;
    result
}

async fn command(client: &Rc<Client>, args: &AdminArgs) -> Result<()> {
    let out = Output { json: args.json };
    let routing = client.routing();
    match &args.command {
        Command::Meta { .. } => {
            bail!("`meta` works without a cluster: leave out --mgmtd, --token-file and --dev")
        }
        Command::ListNodes => cluster::nodes(out, &routing),
        Command::ListChains => cluster::chains(out, &routing),
        Command::ListChainTables => cluster::tables(out, &routing),
        Command::ListTargets => cluster::targets(out, &routing),
        Command::Scrub { now } => scrub::scrub(out, client, &routing, *now).await,
        Command::Damaged { no_paths } => damaged::list(out, client, &routing, !no_paths).await,
        Command::Orphans { dry_run, reclaim } => {
            let until = client.rt().now() + Duration::from_secs(args.timeout);
            orphans::show(out, client, &routing, (*dry_run, *reclaim), until).await
        }
        Command::Fsck { repair, yes } => {
            fsck::run(out, client, &routing, fsck::Wish { repair: *repair, yes: *yes }).await
        }
        Command::ListClients => cluster::clients(out, client).await,
        Command::ListResyncs => resyncs::list(out, client, &routing).await,
        Command::GetConfig => config::get(out, client, &routing).await,
        Command::SetConfig { role, settings, node } => {
            let change = config::Change { role: *role, node: node.map(NodeId), settings };
            config::set(out, client, &routing, change).await
        }
        Command::Status => status::status(out, client, &routing).await,
        Command::Stat { path } => files::stat(out, client, &routing, path).await,
        Command::Ls { path } => files::ls(out, client, path).await,
        Command::Cat { path } => {
            if args.json {
                bail!("cat prints the file's bytes; it has no --json");
            }
            files::cat(client, path).await
        }
        Command::ShowLayout { path } => layout::show(out, client, path).await,
        Command::SetLayout(new) => layout::set(out, client, new).await,
        Command::Trash { command } => in_trash(out, client, command).await,
        Command::Trees => trees::list(out, client).await,
        Command::Df => files::df(out, client, &routing).await,
        Command::CreateTable(new) => cluster::create_table(out, client, new).await,
        Command::GrowTable(new) => cluster::grow_table(out, client, new).await,
        Command::Drain { place: (node, disk), dry_run, wait, cancel } => {
            let what = if *cancel { away::CANCEL } else { away::DRAIN };
            let ask = MoveAway { node: *node, disk: *disk, what, dry_run: *dry_run, store: None };
            operate::move_away(out, client, ask, *wait).await
        }
        Command::RemoveNode { node, yes } => {
            operate::remove_node(out, client, NodeId(*node), *yes).await
        }
        Command::Disk { command } => on_disk(out, client, &routing, command).await,
        Command::ExplainForce { chain } => {
            operate::force(out, client, &routing, *chain, None, false).await
        }
        Command::Force { chain, target, yes } => {
            operate::force(out, client, &routing, *chain, Some(*target), *yes).await
        }
        Command::UserAdd(new) => users::add(out, client, new.into()).await,
        Command::UserChange(new) => users::change(out, client, new.into(), new.yes).await,
        Command::UserRemove { uid, yes } => users::remove(out, client, UserId(*uid), *yes).await,
        Command::UserList => users::list(out, client).await,
    }
}

async fn in_trash(out: Output, client: &Client, command: &TrashCommand) -> Result<()> {
    let which = |ids, below: &'_ Option<String>| trash::Which { ids, below: below.clone() };
    match command {
        TrashCommand::List { below } => trash::list(out, client, which(&[], below)).await,
        TrashCommand::Restore { ids, below, to, dry_run } => {
            trash::restore(out, client, which(ids, below), to.as_deref(), *dry_run).await
        }
        TrashCommand::Purge { ids, below, all, yes } => {
            trash::purge(out, client, which(ids, below), *all, *yes).await
        }
    }
}

async fn on_disk(
    out: Output,
    client: &Client,
    routing: &RoutingInfo,
    command: &DiskCommand,
) -> Result<()> {
    let DiskCommand::Replace { place: (node, disk), store, dry_run, wait, yes } = command;
    let (disk, wait) = (*disk, *wait);
    let what = if store.is_some() { away::GIVE_UP } else { away::REPLACE };
    let dry_run = *dry_run || (store.is_some() && !yes);
    let ask = MoveAway { node: *node, disk, what, dry_run, store: *store };
    match disk {
        Some(disk) if !dry_run && store.is_none() => {
            operate::replace(out, client, routing, (*node, disk), (*yes, wait)).await
        }
        _ => operate::move_away(out, client, ask, wait).await,
    }
}
