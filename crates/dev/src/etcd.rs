//! The members of a dev cluster's etcd: real `etcd` processes, which keep the metadata with `--meta-engine etcd`.

use crate::ports::{self, Claim};
use crate::state::{Service, State};
use anyhow::{Context, Result, bail};
use std::process::Command;

/// The role of a member.
pub const ROLE: &str = "etcd";
/// Members of a cluster.
pub const MEMBERS: u32 = 3;
/// The `--max-txn-ops` of the members.
pub const TXN_OPS_MAX: u32 = 2048;

/// Times of mgmtd with etcd: a new leader of etcd is elected within about a second, and the primary should outlive that.
pub const TIMING: &str = "\n[timing]\nprimary_lease_ms = 1800\nprimary_renew_ms = 300\nnode_lease_ms = 2400\nmargin_ms = 300\n";

/// The members of a cluster.
pub fn members(state: &State) -> impl Iterator<Item = &Service> {
    state.services.iter().filter(|s| s.role == ROLE)
}

/// The `[engine]` section of services that use these members; none if there are none.
pub fn engine(state: &State) -> Option<String> {
    let endpoints: Vec<_> = members(state).map(|m| format!("\"http://{}\"", m.address)).collect();
    if endpoints.is_empty() {
        return None;
    }
    let endpoints = endpoints.join(", ");
    Some(format!(
        "\n[engine]\nkind = \"etcd\"\nendpoints = [{endpoints}]\ntxn_ops_max = {TXN_OPS_MAX}\n"
    ))
}

/// Gives members that have none their addresses, for good: etcd remembers where its members are. The claims are to be kept until the members listen.
pub fn assign(state: &mut State) -> Result<Vec<Claim>> {
    let new = |s: &&mut Service| s.role == ROLE && s.peer.is_none();
    let count = state.services.iter_mut().filter(new).count();
    let claims = ports::free(2 * count)?;
    let mut free = claims.iter().map(Claim::address);
    for m in state.services.iter_mut().filter(new) {
        let (Some(client), Some(peer)) = (free.next(), free.next()) else { break };
        m.address = client.to_string();
        m.http = client.to_string();
        m.peer = Some(peer.to_string());
    }
    Ok(claims)
}

/// The command of a member.
pub fn command(state: &State, member: &Service) -> Result<Command> {
    let peer = |s: &Service| s.peer.clone().with_context(|| format!("{} has no address", s.id));
    let all = members(state)
        .map(|m| Ok(format!("{}=http://{}", m.id, peer(m)?)))
        .collect::<Result<Vec<_>>>()?;
    let (client, peer) =
        (format!("http://{}", member.address), format!("http://{}", peer(member)?));
    let data = member.data.first().with_context(|| format!("{} has no directory", member.id))?;
    let mut c = Command::new("etcd");
    // They would override, or forbid, what is said here.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            c.env_remove(name);
        }
    }
    c.args(["--name", &member.id, "--data-dir"]).arg(data);
    c.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    c.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    c.args(["--initial-cluster", &all.join(","), "--initial-cluster-token", &state.cluster_id]);
    c.args(["--heartbeat-interval", "60", "--election-timeout", "600"]);
    // History is only for transactions that run; old versions are retried.
    c.args(["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1m"]);
    c.args(["--max-txn-ops", &TXN_OPS_MAX.to_string(), "--max-request-bytes", "4194304"]);
    c.args(["--quota-backend-bytes", "8589934592", "--snapshot-count", "10000"]);
    c.args(["--logger", "zap", "--log-level", "warn"]);
    Ok(c)
}

/// Fails if there is no etcd on this machine.
pub fn check_installed() -> Result<()> {
    match Command::new("etcd").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bail!(
                "--meta-engine etcd needs the program etcd; on Debian: apt-get install etcd-server"
            )
        }
        Err(e) => Err(e).context("running etcd --version"),
    }
}
