//! `glowfs dev status`: the interface that scripts read. Its JSON only ever grows.

use crate::mount_point;
use crate::network;
use crate::plan::Paths;
use crate::process;
use crate::state::State;
use anyhow::Result;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The state of a whole dev cluster.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The mount.
    pub mount: MountStatus,
    /// Addresses of mgmtd.
    pub mgmtd: Vec<String>,
    /// The root user's token.
    pub token_file: PathBuf,
    /// Every service.
    pub services: Vec<ServiceRow>,
    /// The cluster's id.
    pub cluster_id: String,
    /// The cluster's directory.
    pub dir: PathBuf,
}

/// The mount of a dev cluster.
#[derive(Debug, Serialize)]
pub struct MountStatus {
    /// Where.
    pub path: PathBuf,
    /// The daemon, if it runs.
    pub pid: Option<u32>,
    /// Whether it is mounted, and the daemon runs.
    pub mounted: bool,
}

/// One service.
#[derive(Debug, Serialize)]
pub struct ServiceRow {
    /// Its role.
    pub role: String,
    /// Its id.
    pub id: String,
    /// Its pid, if it runs.
    pub pid: Option<u32>,
    /// Where it listens.
    pub address: String,
    /// Where health and metrics are.
    pub http: String,
    /// Its data directories.
    pub data: Vec<PathBuf>,
    /// `running`, `stopped` (by SIGSTOP) or `down`.
    pub state: &'static str,
    /// Its node id.
    pub node: u64,
    /// Its log.
    pub log: PathBuf,
    /// Its network namespace, and the end of its cable here, if it has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// See `namespace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// Looks at the cluster in `dir`.
pub fn status(dir: &Path) -> Result<Status> {
    let state = State::load(dir)?;
    let dir = dir.canonicalize()?;
    let paths = Paths(&dir);
    let services: Vec<_> = state
        .services
        .iter()
        .map(|s| {
            let live = s.process.and_then(|p| Some((p.pid, process::alive(p)?)));
            ServiceRow {
                role: s.role.clone(),
                id: s.id.clone(),
                pid: live.map(|l| l.0),
                address: s.address.clone(),
                http: s.http.clone(),
                data: s.data.clone(),
                state: match live {
                    Some((_, 'T' | 't')) => "stopped",
                    Some(_) => "running",
                    None => "down",
                },
                node: s.node,
                log: paths.log(&s.id),
                namespace: s.namespace.clone(),
                port: network::port(&state, s),
            }
        })
        .collect();
    let mount_pid = services.iter().find(|s| s.role == "mount").and_then(|s| s.pid);
    Ok(Status {
        mount: MountStatus {
            mounted: mount_pid.is_some() && mount_point::is_mounted(&state.mount),
            path: state.mount.clone(),
            pid: mount_pid,
        },
        mgmtd: state.mgmtd(),
        token_file: paths.root_token(),
        services,
        cluster_id: state.cluster_id.clone(),
        dir: dir.clone(),
    })
}
