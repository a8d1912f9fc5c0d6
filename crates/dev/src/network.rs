//! `glowfs dev up --separate`: every service in a network namespace of its own, with an address of its own, as on separate
//! machines. They reach each other, and this process them, over a bridge in the namespace that the command runs in.
//!
//! What it makes it names after the cluster, and `down` removes it; nothing else of the machine's network is touched.

use crate::etcd;
use crate::state::{Service, State};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// The port on which each service listens, and that of its metrics (of a member of etcd: for the other members).
const PORTS: (u16, u16) = (7000, 7001);
/// The last byte of the bridge's own address; services have 1, 2, ...
const BRIDGE: u8 = 254;
/// Characters of the cluster's id in names: an interface's name has at most 15 bytes.
const TAG: usize = 6;

fn tag(state: &State) -> &str {
    state.cluster_id.get(..TAG).unwrap_or(&state.cluster_id)
}
fn bridge(state: &State) -> String {
    format!("glow{}", tag(state))
}
/// The third byte of the addresses: clusters side by side seldom have the same.
fn net(state: &State) -> u8 {
    state.cluster_id.get(..2).and_then(|h| u8::from_str_radix(h, 16).ok()).unwrap_or(0)
}
/// The end in our namespace of a service's cable.
pub fn port(state: &State, service: &Service) -> Option<String> {
    let at = state.services.iter().position(|s| s.id == service.id)?;
    service.namespace.as_ref().map(|_| format!("g{}p{}", tag(state), at + 1))
}

fn ip(args: &str) -> Result<()> {
    let out = Command::new("ip")
        .args(args.split(' '))
        .output()
        .context("running `ip` (Debian: apt-get install iproute2), which --separate needs")?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("ip {args}: {} (--separate needs root)", said.trim());
    }
    Ok(())
}

/// Gives every service but the mounts its namespace and address. For a new cluster.
pub fn assign(state: &mut State) -> Result<()> {
    let (tag, net) = (tag(state).to_owned(), net(state));
    for (i, s) in state.services.iter_mut().enumerate().filter(|(_, s)| s.role != "mount") {
        let host = u8::try_from(i + 1).ok().filter(|h| *h < BRIDGE);
        let host = host.context("too many services for --separate: at most 253")?;
        s.namespace = Some(format!("glow{tag}-{}", s.id));
        s.address = format!("10.77.{net}.{host}:{}", PORTS.0);
        s.http = format!("10.77.{net}.{host}:{}", PORTS.1);
        if s.role == etcd::ROLE {
            s.peer = Some(std::mem::replace(&mut s.http, s.address.clone()));
        }
    }
    Ok(())
}

/// Makes what is not there yet. Does nothing for a cluster without `--separate`.
pub fn make(state: &State) -> Result<()> {
    let apart = || state.services.iter().filter_map(|s| Some((s, s.namespace.as_deref()?)));
    if apart().next().is_none() {
        return Ok(());
    }
    let (bridge, net) = (bridge(state), net(state));
    // Not by /sys, which may show another namespace's.
    if ip(&format!("link show {bridge}")).is_err() {
        ip("link set lo up")?;
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("addr add 10.77.{net}.{BRIDGE}/24 dev {bridge}"))?;
        ip(&format!("link set {bridge} up"))?;
    }
    for (service, name) in apart() {
        if Path::new(&format!("/run/netns/{name}")).exists() {
            continue;
        }
        let port = port(state, service).context("a service of another cluster")?;
        let (address, _) = service.address.split_once(':').context("a service without address")?;
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {port} type veth peer name eth0 netns {name}"))?;
        ip(&format!("-n {name} addr add {address}/24 dev eth0"))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("link set {port} master {bridge} up"))?;
    }
    Ok(())
}

/// Removes all of it.
pub fn remove(state: &State) {
    let mut any = false;
    for service in &state.services {
        let Some(name) = service.namespace.as_deref() else { continue };
        any = true;
        // A namespace goes some time after its name; its cable must be gone now.
        if let Some(port) = port(state, service) {
            let _ = ip(&format!("link del {port}"));
        }
        let _ = ip(&format!("netns del {name}"));
    }
    if any {
        let _ = ip(&format!("link del {}", bridge(state)));
    }
}

/// The command inside the service's namespace, if it has one.
pub fn enter(service: &Service, command: Command) -> Command {
    let Some(name) = &service.namespace else { return command };
    // nsenter changes the network only; `ip netns exec` would hide mounts as well.
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--net=/run/netns/{name}")).arg(command.get_program());
    inside.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}
