//! `glowfs dev down`, `destroy`, `kill` and `start`.

use crate::etcd;
use crate::mount_point;
use crate::network;
use crate::process;
use crate::state::{DirLock, LOCK_FILE, State};
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
    stop_all(&dir)
}

/// The same, with the lock held.
fn stop_all(dir: &Path) -> Result<Vec<String>> {
    let mut state = State::load(dir)?;
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
    state.save(dir)?;
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

/// Stops everything and deletes the cluster's directory with all data, and nothing else: what another file system that is mounted below it holds is not the cluster's.
pub fn destroy(dir: &Path, yes: bool) -> Result<()> {
    destroy_with(dir, yes, mount_point::table)
}

/// The same, with what tells the mounts once all is stopped.
fn destroy_with(dir: &Path, yes: bool, mounts: impl Fn() -> Result<Vec<u8>>) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    State::load(dir)?;
    if !yes {
        bail!(
            "this would stop the cluster and delete {} with all its data; add --yes to do it",
            dir.display()
        );
    }
    let dir = dir.canonicalize()?;
    // To the end: a `dev up` that waits must not start services in what is being deleted.
    let _lock = DirLock::take(&dir)?;
    let state = State::load(&dir)?;
    stop_all(&dir)?;
    if let Some(mount) = mount_point::below(&mounts()?, &dir).first() {
        bail!(
            "a file system is mounted at {}, and deleting {} would delete what is in it: unmount it first. The cluster is stopped, and nothing was deleted",
            mount.display(),
            dir.display()
        );
    }
    if state.sockets.starts_with("/tmp") {
        let _ = std::fs::remove_dir_all(&state.sockets);
    }
    delete(&dir).with_context(|| format!("deleting {}", dir.display()))
}

/// Deletes a cluster's directory; the lock goes last, so that it keeps others out meanwhile.
fn delete(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == LOCK_FILE {
            continue;
        }
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    std::fs::remove_dir_all(dir)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// It deleted all files of whatever was mounted below.
    #[test]
    fn what_is_mounted_below_the_directory_is_not_deleted() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().canonicalize().expect("there").join("cluster");
        let mount = dir.join("mnt");
        std::fs::create_dir_all(&mount).expect("made");
        std::fs::write(mount.join("of somebody"), "x").expect("written");
        let mut state = State::new("c1".into(), mount.clone(), dir.join("run"));
        state.services.push(crate::state::Service {
            role: "mount".into(),
            id: "mount".into(),
            node: 0,
            address: String::new(),
            http: String::new(),
            data: vec![],
            peer: None,
            namespace: None,
            process: None,
        });
        state.save(&dir).expect("written");
        let line = format!("30 22 0:41 / {} rw - ext4 x rw\n", mount.display());
        let e = destroy_with(&dir, true, || Ok(line.clone().into())).expect_err("refused");
        assert!(e.to_string().contains(&format!("mounted at {}", mount.display())), "{e}");
        assert!(mount.join("of somebody").exists());
        // Which mounts there are is not known.
        destroy_with(&dir, true, || bail!("unreadable")).expect_err("refused");
        assert!(mount.join("of somebody").exists());
        destroy(&dir, true).expect("nothing is mounted");
        assert!(!dir.exists());
    }
}
