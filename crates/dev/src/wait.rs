//! Waiting for a dev cluster to serve: every wait has a bound and ends early, with the log's last lines, when a
//! process of the cluster has died.

use crate::mount_point;
use crate::plan::Paths;
use crate::process;
use crate::state::{Service, State};
use anyhow::{Context, Result, bail};
use glowfs_client::{Client, ClientConfig};
use glowfs_rt::Rt;
use glowfs_types::ChainTableId;
use glowfs_types::routing::{PublicState, Role, RoutingInfo};
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{CreateTable, CreateTableReply};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The table that files of a dev cluster are striped over.
const TABLE: ChainTableId = ChainTableId(1);
/// Between two looks at something that reports no change by itself.
const POLL: Duration = Duration::from_millis(10);
/// One attempt to connect; a full backlog would hold it for minutes.
const CONNECT_BOUND: Duration = Duration::from_millis(500);
/// How long an existing cluster may take to be complete before one replica of each chain is enough.
const DEGRADED_AFTER: Duration = Duration::from_secs(8);
/// Lines of a log shown when its service died.
const LOG_LINES: usize = 12;

/// Lays the chains of a new cluster and waits until every member of every chain serves.
pub fn chains_serve(dir: &Path, state: &State, end: Instant) -> Result<()> {
    let (dir, state) = (dir.to_owned(), state.clone());
    glowfs_rt::real::run(move |rt| async move {
        let client = connect(&rt, &dir, &state, end).await?;
        let coming = Coming { rt: &rt, client: &client, dir: &dir, state: &state, end };
        let result = coming.lay_and_wait().await;
        client.close().await;
        result
    })
}

/// A cluster that comes up.
struct Coming<'a> {
    rt: &'a Rt,
    client: &'a Rc<Client>,
    dir: &'a Path,
    state: &'a State,
    end: Instant,
}

impl Coming<'_> {
    async fn lay_and_wait(&self) -> Result<()> {
        let storages = self.state.services.iter().filter(|s| s.role == "storage").count();
        let all_storages = |r: &RoutingInfo| {
            r.nodes.values().filter(|n| n.role == Role::Storage).count() >= storages
        };
        // A node that has never reported and has ended never will.
        self.until("all storage nodes to report", ALL, all_storages).await?;
        let create = CreateTable {
            table: TABLE,
            replicas: self.state.replicas,
            chains: self.state.chains,
            description: "dev".into(),
            dry_run: false,
        };
        loop {
            let reply = self.client.mgmtd::<_, CreateTableReply>(method::CREATE_TABLE, &create);
            match reply.await {
                Ok(_) => break,
                // A node may have reported before it registered its stores.
                Err(e) if Instant::now() < self.end => {
                    alive(self.dir, self.state, ALL)
                        .with_context(|| format!("laying chains: {e}"))?;
                    self.rt.sleep(POLL * 5).await;
                }
                Err(e) => return Err(e).context("laying chains over the storage nodes"),
            }
        }
        self.all_or_enough().await
    }

    /// Waits until every member of every chain serves. If some do not for [`DEGRADED_AFTER`] although every chain has one that does, the
    /// cluster works and that is good enough: what is missing is said on standard error.
    async fn all_or_enough(&self) -> Result<()> {
        let since = Instant::now();
        let want = self.state.chains as usize;
        let complete = |r: &RoutingInfo| {
            r.chains.len() >= want
                && r.chains.values().all(|c| c.serving().count() == c.members.len())
        };
        let enough = |r: &RoutingInfo| {
            since.elapsed() > DEGRADED_AFTER
                && r.chains.len() >= want
                && r.chains.values().all(|c| c.serving().next().is_some())
        };
        let done = |r: &RoutingInfo| complete(r) || enough(r);
        self.until("every chain to serve", VITAL, done).await?;
        let routing = self.client.routing();
        if !complete(&routing) {
            let away = routing
                .chains
                .values()
                .flat_map(|c| &c.members)
                .filter(|m| m.state != PublicState::Serving)
                .count();
            eprintln!("Warning: {away} targets do not serve; every chain has a replica that does.");
            if let Err(e) = alive(self.dir, self.state, &["storage"]) {
                eprintln!("{e:#}");
            }
        }
        Ok(())
    }

    /// Waits for `what`, while the services of the roles `needed` live.
    async fn until(
        &self,
        what: &str,
        needed: &[&str],
        done: impl Fn(&RoutingInfo) -> bool,
    ) -> Result<()> {
        loop {
            let routing = self.client.routing();
            if done(&routing) {
                return Ok(());
            }
            alive(self.dir, self.state, needed)?;
            if Instant::now() >= self.end {
                let not: Vec<_> = routing
                    .chains
                    .values()
                    .flat_map(|c| c.members.iter().map(move |m| (c.id, m)))
                    .filter(|(_, m)| m.state != PublicState::Serving)
                    .map(|(c, m)| format!("chain {c} target {} is {}", m.target, m.state))
                    .take(5)
                    .collect();
                bail!("waited too long for {what}; {}", not.join("; "));
            }
            self.rt.sleep(POLL).await;
        }
    }
}

/// All that chains are laid with.
const ALL: &[&str] = &["meta", "mgmtd", "storage"];
/// Roles without which nothing works; a storage node may be away.
const VITAL: &[&str] = &["meta", "mgmtd", "mount"];

/// Fails if a process of these roles that should run does not and nothing stands in for it. (One of several mgmtd or meta
/// services may be away, but not the one that holds the metadata engine.)
fn alive(dir: &Path, state: &State, roles: &[&str]) -> Result<()> {
    let running = |s: &Service| s.process.is_some_and(|p| process::alive(p).is_some());
    for s in state.services.iter().filter(|s| roles.contains(&s.role.as_str())) {
        let replaceable =
            s.data.is_empty() && state.services.iter().any(|o| o.role == s.role && running(o));
        if s.process.is_some() && !running(s) && !replaceable {
            bail!(
                "{} ended; its log says:\n{}",
                s.id,
                process::tail(&Paths(dir).log(&s.id), LOG_LINES)
            );
        }
    }
    Ok(())
}

/// A client of the cluster, with its root token.
pub async fn connect(rt: &Rt, dir: &Path, state: &State, end: Instant) -> Result<Rc<Client>> {
    let token =
        std::fs::read_to_string(Paths(dir).root_token()).context("reading the root token")?;
    let config = ClientConfig {
        mgmtd: state.mgmtd().iter().map(|a| format!("tcp://{a}")).collect(),
        token: token.trim().into(),
        role: Role::Client,
        description: "glowfs dev".into(),
        session: false,
        connect_timeout: end.saturating_duration_since(Instant::now()),
        ..ClientConfig::default()
    };
    let client = Client::start(rt, config)?;
    let mut ready = std::pin::pin!(client.ready());
    loop {
        match rt.timeout(Duration::from_millis(100), ready.as_mut()).await {
            Ok(done) => {
                done.context("reaching mgmtd")?;
                break;
            }
            Err(_) => alive(dir, state, VITAL)?,
        }
    }
    Ok(client.clone())
}

/// Waits until the cluster is mounted, by a daemon that lives. (What one that is gone has left behind was cleared away before it was started.)
pub fn mounted(dir: &Path, state: &State, end: Instant) -> Result<()> {
    loop {
        alive_one(dir, state, "mount")?;
        if mount_point::is_mounted(&state.mount) {
            return alive_one(dir, state, "mount");
        }
        alive(dir, state, VITAL)?;
        if Instant::now() >= end {
            bail!(
                "waited too long for the mount at {}; its log says:\n{}",
                state.mount.display(),
                process::tail(&Paths(dir).log("mount"), LOG_LINES)
            );
        }
        std::thread::sleep(POLL);
    }
}

/// Waits until one service answers.
pub fn answers(dir: &Path, state: &State, id: &str, end: Instant) -> Result<()> {
    let service = state.service(id)?;
    let address = service.address.parse().with_context(|| format!("{id} has no address"))?;
    loop {
        // The process that answers must be the service's, not another's that took the port.
        alive_one(dir, state, id)?;
        if std::net::TcpStream::connect_timeout(&address, CONNECT_BOUND).is_ok() {
            return alive_one(dir, state, id);
        }
        if Instant::now() >= end {
            bail!("{id} runs but does not answer at {}", service.address);
        }
        std::thread::sleep(POLL);
    }
}

fn alive_one(dir: &Path, state: &State, id: &str) -> Result<()> {
    if state.service(id)?.process.is_none_or(|p| process::alive(p).is_none()) {
        bail!("{id} ended; its log says:\n{}", process::tail(&Paths(dir).log(id), LOG_LINES));
    }
    Ok(())
}
