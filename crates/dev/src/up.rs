//! `glowfs dev up`: makes or restarts a cluster, lays its chains and mounts it.

use crate::etcd;
use crate::mount_point;
use crate::network;
use crate::plan::{self, MetaEngine, Paths, Shape};
use crate::ports::{self, Claim};
use crate::process;
use crate::state::{DirLock, Service, State};
use crate::wait;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the whole cluster may take to serve.
const UP_BOUND: Duration = Duration::from_secs(60);
/// How long the rest of a process may outlive its first thread (the kernel takes rings and mappings down).
const ENDING_BOUND: Duration = Duration::from_secs(10);
/// The longest directory for sockets: `sun_path` has 108 bytes, the name of the socket takes up to 27.
const SOCKET_DIR_BYTES_MAX: usize = 80;

/// What was asked for.
pub struct UpRequest {
    /// The cluster's directory.
    pub dir: PathBuf,
    /// Where to mount it; may be left out when it exists.
    pub mount: Option<PathBuf>,
    /// The shape; `None` fields keep what exists, or the default.
    pub storages: Option<u32>,
    /// See [`Shape`].
    pub disks: Option<u32>,
    /// See [`Shape`].
    pub replicas: Option<u32>,
    /// See [`Shape`].
    pub metas: Option<u32>,
    /// See [`Shape`].
    pub mgmtds: Option<u32>,
    /// See [`Shape`].
    pub chunk_bytes: Option<u32>,
    /// Acknowledge writes when they are flushed; set when the cluster is made.
    pub disk_durability: Option<bool>,
    /// See [`Shape`].
    pub engine: Option<MetaEngine>,
    /// Every service in a network namespace of its own (a new cluster only).
    pub separate: bool,
}

/// Brings the cluster up; returns when it is mounted and every chain serves.
pub fn up(request: &UpRequest) -> Result<State> {
    let started = Instant::now();
    fs::create_dir_all(&request.dir)
        .with_context(|| format!("making the cluster's directory {}", request.dir.display()))?;
    let dir = request.dir.canonicalize()?;
    let _lock = DirLock::take(&dir)?;
    let mut state =
        if State::exists(&dir) { existing(&dir, request)? } else { new(&dir, request)? };
    if !mount_runs(&state)? {
        mount_point::prepare(&state.mount)?;
    }
    prepare_sockets(&dir, &state.sockets)?;
    network::make(&state)?;
    let claims = assign_addresses(&mut state)?;
    state.save(&dir)?;
    let end = started + UP_BOUND;
    let result = bring_up(&dir, &mut state, end);
    drop(claims);
    state.save(&dir)?;
    if let Err(e) = result {
        let logs = dir.join("log");
        return Err(e.context(format!(
            "the cluster did not come up; its logs are in {}. Try again, or: glowfs dev destroy --dir {}",
            logs.display(),
            dir.display()
        )));
    }
    Ok(state)
}

/// Makes the directory of sockets. Where it is not the cluster's own, somebody else may have made it: whoever is dialled there is handed the token of services.
fn prepare_sockets(dir: &Path, sockets: &Path) -> Result<()> {
    let shown = sockets.display();
    // Nobody else's to write to, whatever the umask.
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(sockets)
        .with_context(|| format!("making the directory of sockets {shown}"))?;
    let found = fs::symlink_metadata(sockets).with_context(|| format!("looking at {shown}"))?;
    let own = sockets.starts_with(dir);
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    let shared = found.mode() & 0o022 != 0;
    if !own && (!ours || shared) {
        bail!("{shown}, where the cluster's sockets would be, is another user's: remove it");
    }
    Ok(())
}

/// Whether the mount daemon runs.
pub fn mount_runs(state: &State) -> Result<bool> {
    Ok(state.service("mount")?.process.is_some_and(|p| process::alive(p).is_some()))
}

fn bring_up(dir: &Path, state: &mut State, end: Instant) -> Result<()> {
    let ids: Vec<_> =
        state.services.iter().filter(|s| s.role != "mount").map(|s| s.id.clone()).collect();
    for id in &ids {
        start_service(dir, state, id)?;
    }
    wait::chains_serve(dir, state, end)?;
    start_service(dir, state, "mount")?;
    wait::mounted(dir, state, end)
}

/// Starts one service if it does not run; waits for nothing but its process.
pub fn start_service(dir: &Path, state: &mut State, id: &str) -> Result<()> {
    let service = state.service(id)?.clone();
    if let Some(p) = service.process {
        match process::alive(p) {
            // Its first thread has ended, and the others are about to: it serves nothing any more.
            Some('Z' | 'X') => drop(process::wait_gone(p, ENDING_BOUND)),
            Some(_) => return Ok(()),
            None => {}
        }
    }
    if service.role == "mount" {
        mount_point::prepare(&state.mount)?;
    }
    let paths = Paths(dir);
    let command = if service.role == etcd::ROLE {
        network::enter(&service, etcd::command(state, &service)?)
    } else {
        let config = paths.config(id);
        // What an operator (or a test) wants beside it; must be tables of its own.
        let more = fs::read_to_string(config.with_extension("more.toml")).unwrap_or_default();
        fs::write(&config, plan::config(dir, state, &service)? + "\n" + &more)
            .with_context(|| format!("writing {}", config.display()))?;
        let config = config.to_string_lossy().into_owned();
        let mut args = vec![service.role.clone(), "--config".into(), config];
        // All of a dev cluster lies in one directory: nothing else has to be mounted.
        let empty = |d: &PathBuf| fs::read_dir(d).is_ok_and(|mut entries| entries.next().is_none());
        if service.role == "meta" && service.data.first().is_some_and(empty) {
            args.push("--format".into());
        }
        network::enter(&service, process::glowfs(&args)?)
    };
    let process = process::spawn(command, &paths.log(id))?;
    state.service_mut(id)?.process = Some(process);
    state.save(dir)
}

fn existing(dir: &Path, request: &UpRequest) -> Result<State> {
    let mut state = State::load(dir)?;
    let disks = |s: &Service| s.data.len() as u32;
    let storages: Vec<_> = state.services.iter().filter(|s| s.role == "storage").collect();
    let same = |name: &str, asked: Option<u32>, have: u32| match asked {
        Some(asked) if asked != have => bail!(
            "the cluster in {} has {name} {have}, not {asked}; leave the option out, or use another --dir",
            dir.display()
        ),
        _ => Ok(()),
    };
    same("--storages", request.storages, storages.len() as u32)?;
    same("--disks", request.disks, storages.first().map_or(0, |s| disks(s)))?;
    same("--replicas", request.replicas, state.replicas)?;
    let count = |role: &str| state.services.iter().filter(|s| s.role == role).count() as u32;
    same("--metas", request.metas, count("meta"))?;
    same("--mgmtds", request.mgmtds, count("mgmtd"))?;
    same("--chunk-size", request.chunk_bytes, state.chunk_bytes)?;
    if request.separate && state.services.iter().all(|s| s.namespace.is_none()) {
        bail!("the cluster in {} was made without --separate; leave the option out", dir.display());
    }
    if request.disk_durability.is_some_and(|d| d != state.disk_durability) {
        bail!(
            "the cluster in {} was made with another --durability; leave the option out",
            dir.display()
        );
    }
    let engine = match etcd::members(&state).next() {
        Some(_) => MetaEngine::Etcd,
        None => MetaEngine::Embedded,
    };
    if request.engine.is_some_and(|asked| asked != engine) {
        bail!(
            "the cluster in {} keeps its metadata in another engine; leave --meta-engine out, or use another --dir",
            dir.display()
        );
    }
    if let Some(mount) = &request.mount {
        let mount = absolute(mount)?;
        if mount != state.mount && mount_runs(&state)? {
            bail!(
                "the cluster is mounted at {}; stop it first: glowfs dev down --dir {}",
                state.mount.display(),
                dir.display()
            );
        }
        state.mount = mount;
    }
    Ok(state)
}

fn new(dir: &Path, request: &UpRequest) -> Result<State> {
    let stray = fs::read_dir(dir)?.filter_map(|e| e.ok()).find(|e| e.file_name() != "lock");
    if let Some(stray) = stray {
        bail!(
            "{} is not empty (it has {}) and holds no cluster; choose an empty or new directory",
            dir.display(),
            stray.file_name().to_string_lossy()
        );
    }
    let Some(mount) = &request.mount else {
        bail!("a new cluster needs a mount point: --mount DIRECTORY");
    };
    let storages = request.storages.unwrap_or(3);
    let shape = Shape {
        storages,
        disks: request.disks.unwrap_or(2),
        replicas: request.replicas.unwrap_or(storages.min(3)),
        chunk_bytes: request.chunk_bytes.unwrap_or(1 << 20),
        metas: request.metas.unwrap_or(1),
        mgmtds: request.mgmtds.unwrap_or(1),
        engine: request.engine.unwrap_or_default(),
    };
    shape.check()?;
    if shape.engine == MetaEngine::Etcd {
        etcd::check_installed()?;
    }
    let mount = absolute(mount)?;
    if mount.starts_with(dir.join("data")) {
        bail!("--mount {} lies inside the cluster's own data", mount.display());
    }
    let id = random_hex(16)?;
    let mut sockets = dir.join("run");
    if sockets.as_os_str().len() > SOCKET_DIR_BYTES_MAX {
        sockets = PathBuf::from(format!("/tmp/glowfs-{}", &id[..12]));
    }
    let mut state = State::new(id, mount, sockets);
    state.replicas = shape.replicas;
    state.chains = shape.chains();
    state.chunk_bytes = shape.chunk_bytes;
    state.disk_durability = request.disk_durability.unwrap_or(false);
    state.services = plan::services(dir, &shape);
    if request.separate {
        network::assign(&mut state)?;
    }
    for sub in ["etc", "log", "tokens", "data"] {
        fs::create_dir_all(dir.join(sub))?;
    }
    // etcd makes its directories itself, with the mode that it wants.
    let ours = || state.services.iter().filter(|s| s.role != etcd::ROLE).flat_map(|s| &s.data);
    for data in ours() {
        fs::create_dir_all(data)?;
    }
    secret(&Paths(dir).root_token())?;
    secret(&Paths(dir).service_token())?;
    // A cluster whose data survived the loss of power needs its tokens and directories, too.
    let inside = ours().flat_map(|d| d.ancestors()).filter(|d| d.starts_with(dir));
    let inside = inside.map(Path::to_path_buf);
    let all: BTreeSet<PathBuf> =
        inside.chain([dir.join("tokens")]).chain(dir.parent().map(Path::to_path_buf)).collect();
    for each in all {
        fs::File::open(&each)?.sync_all()?;
    }
    Ok(state)
}

/// A new token of 256 random bits in a file that only its owner reads.
fn secret(path: &Path) -> Result<()> {
    let mut file = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("writing {}", path.display()))?;
    writeln!(file, "{}", random_hex(32)?)?;
    Ok(file.sync_all()?)
}

fn random_hex(bytes: usize) -> Result<String> {
    let mut raw = vec![0; bytes];
    rustix::rand::getrandom(&mut raw, rustix::rand::GetRandomFlags::empty())
        .context("asking the kernel for random bytes")?;
    Ok(raw.iter().map(|b| format!("{b:02x}")).collect())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{} is no path", path.display()))
}

/// Services that do not run get fresh addresses; those that run keep theirs. The claims are to be kept until all listen.
fn assign_addresses(state: &mut State) -> Result<Vec<Claim>> {
    let mut claims = etcd::assign(state)?;
    let running = |s: &Service| s.process.is_some_and(|p| process::alive(p).is_some());
    let fresh = ports::free(state.services.len() * 2)?;
    let mut ports = fresh.iter().map(Claim::address);
    for service in &mut state.services {
        let (Some(address), Some(http)) = (ports.next(), ports.next()) else { break };
        if running(service) {
            continue;
        }
        service.process = None;
        if service.role == etcd::ROLE {
            continue;
        }
        if service.namespace.is_some() {
            continue;
        }
        service.http = http.to_string();
        if service.role != "mount" {
            service.address = address.to_string();
        }
    }
    claims.extend(fresh);
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_of_sockets_that_others_may_have_made_is_not_used() {
        let all = tempfile::tempdir().expect("a directory");
        let (dir, own) = (all.path().join("cluster"), all.path().join("own"));
        prepare_sockets(&dir, &own).expect("made");
        prepare_sockets(&dir, &own).expect("it is ours");
        let link = all.path().join("link");
        std::os::unix::fs::symlink(&own, &link).expect("linked");
        prepare_sockets(&dir, &link).expect_err("it leads somewhere else");
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).expect("changed");
        prepare_sockets(&dir, &own).expect_err("others can put sockets there");
        prepare_sockets(all.path(), &own).expect("the cluster's own");
    }
}
