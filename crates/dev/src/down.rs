//! `glowfs dev down`, `destroy`, `kill` and `start`.

use crate::etcd;
use crate::mount_point;
use crate::network;
use crate::process;
use crate::state::{DirLock, State};
use crate::up::{mount_runs, start_service};
use crate::wait;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a service may take to stop gracefully before it is killed.
const STOP_BOUND: Duration = Duration::from_secs(20);
/// How long a service may take to come back after `start`.
const START_BOUND: Duration = Duration::from_secs(30);

/// Unmounts and stops everything, the mount first and the metadata engine last. Returns the ids of services that
/// had to be killed.
pub fn down(dir: &Path) -> Result<Vec<String>> {
    let dir = dir.canonicalize().with_context(|| format!("{} is not there", dir.display()))?;
    let _lock = DirLock::take(&dir)?;
    let mut state = State::load(&dir)?;
    let ran = mount_runs(&state)?;
    let mut killed = vec![];
    // Started as etcd, meta, mgmtd, storages, mount; stopped the other way round.
    for role in ["mount", "storage", "mgmtd", "meta", etcd::ROLE] {
        stop_role(&mut state, role, &mut killed)?;
    }
    // A daemon that had to be killed has left its mount behind. Another file system there is not ours.
    if ran && mount_point::is_mounted(&state.mount) {
        mount_point::unmount(&state.mount)?;
    }
    mount_point::release_dead(&state.mount)?;
    network::remove(&state);
    state.save(&dir)?;
    Ok(killed)
}

fn stop_role(state: &mut State, role: &str, killed: &mut Vec<String>) -> Result<()> {
    let members: Vec<_> = state
        .services
        .iter()
        .filter(|s| s.role == role)
        .filter_map(|s| Some((s.id.clone(), s.process?)))
        .collect();
    for (_, p) in &members {
        // A stopped process (SIGSTOP) would not see the request to end.
        process::signal(*p, "CONT")?;
        process::signal(*p, "TERM")?;
    }
    let end = Instant::now() + STOP_BOUND;
    for (id, p) in members {
        if !process::wait_gone(p, end.saturating_duration_since(Instant::now())) {
            process::signal(p, "KILL")?;
            process::wait_gone(p, STOP_BOUND);
            killed.push(id.clone());
        }
        state.service_mut(&id)?.process = None;
    }
    Ok(())
}

/// Stops everything and deletes the cluster's directory with all data.
pub fn destroy(dir: &Path, yes: bool) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    let state = State::load(dir)?;
    if !yes {
        bail!(
            "this would stop the cluster and delete {} with all its data; add --yes to do it",
            dir.display()
        );
    }
    down(dir)?;
    let dir = dir.canonicalize()?;
    if state.sockets.starts_with("/tmp") {
        let _ = std::fs::remove_dir_all(&state.sockets);
    }
    std::fs::remove_dir_all(&dir).with_context(|| format!("deleting {}", dir.display()))
}

/// Sends a signal to one service; waits until it is gone if the signal ends it for sure.
pub fn kill(dir: &Path, id: &str, signal: &str) -> Result<()> {
    let dir = dir.canonicalize().with_context(|| format!("{} is not there", dir.display()))?;
    let _lock = DirLock::take(&dir)?;
    let state = State::load(&dir)?;
    let service = state.service(id)?;
    let Some(p) = service.process.filter(|p| process::alive(*p).is_some()) else {
        bail!("{id} does not run; start it with: glowfs dev start --dir {} {id}", dir.display());
    };
    process::signal(p, signal)?;
    let word = signal.to_ascii_uppercase();
    if matches!(word.as_str(), "KILL" | "SIGKILL" | "9") && !process::wait_gone(p, STOP_BOUND) {
        bail!(
            "{id} (pid {}) does not end, even killed; the kernel holds it in an uninterruptible wait",
            p.pid
        );
    }
    if service.role == "mount" && process::alive(p).is_none() {
        // The daemon is gone; what is left of the mount only answers ENOTCONN.
        let _ = mount_point::release_dead(&state.mount);
    }
    Ok(())
}

/// Starts one service and waits until it answers (the mount: until it is mounted).
pub fn start(dir: &Path, id: &str) -> Result<()> {
    let dir = dir.canonicalize().with_context(|| format!("{} is not there", dir.display()))?;
    let _lock = DirLock::take(&dir)?;
    let mut state = State::load(&dir)?;
    let role = state.service(id)?.role.clone();
    if let Some(p) = state.service(id)?.process
        && process::alive(p) == Some('T')
    {
        process::signal(p, "CONT")?;
    }
    let found = state.service(id)?.process;
    start_service(&dir, &mut state, id)?;
    let end = Instant::now() + START_BOUND;
    let serves = |state: &State| match role.as_str() {
        "mount" => wait::mounted(&dir, state, end),
        _ => wait::answers(&dir, state, id, end),
    };
    let first = serves(&state);
    let same = state.service(id)?.process == found;
    if first.is_err() && same && found.is_some_and(|p| process::alive(p).is_none()) {
        // It ran, but was on its way out already (a TERM just before): it begins anew.
        start_service(&dir, &mut state, id)?;
        return serves(&state);
    }
    first
}
