//! `glowfs dev`: the command line of one-machine clusters.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use glowfs_dev::plan::MetaEngine;
use glowfs_dev::status::Status;
use glowfs_dev::up::UpRequest;
use glowfs_dev::{down, status, up};
use glowfs_rt::signal::Termination;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// See [`crate::Role::Dev`].
#[derive(Args, Debug)]
pub struct DevArgs {
    #[command(subcommand)]
    command: DevCommand,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum EngineArg {
    /// One process, no set-up
    Embedded,
    /// Three members of etcd (the program must be installed)
    Etcd,
}

#[derive(Args, Debug)]
struct DirArg {
    /// The cluster's directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

#[derive(Subcommand, Debug)]
enum DevCommand {
    /// Make or restart a cluster and mount it; returns when every chain serves
    Up {
        #[command(flatten)]
        at: DirArg,
        /// Where to mount it (made if it is not there)
        #[arg(long, value_name = "MNT")]
        mount: Option<PathBuf>,
        /// Storage nodes [default: 3]
        #[arg(long)]
        storages: Option<u32>,
        /// Disks (directories) of each storage node [default: 2]
        #[arg(long)]
        disks: Option<u32>,
        /// Replicas of each chain [default: 3, at most the storage nodes]
        #[arg(long)]
        replicas: Option<u32>,
        /// Metadata services [default: 1]
        #[arg(long)]
        metas: Option<u32>,
        /// Cluster managers: one primary, the others stand by [default: 1]
        #[arg(long)]
        mgmtds: Option<u32>,
        /// What keeps the metadata [default: embedded]
        #[arg(long, value_name = "ENGINE")]
        meta_engine: Option<EngineArg>,
        /// Chunk size of new files, for example 512K or 4M [default: 1M]
        #[arg(long, value_parser = size, value_name = "SIZE")]
        chunk_size: Option<u32>,
        /// When a write of a new file is acknowledged: written to every replica, or flushed to its disk [default: written]
        #[arg(long, value_parser = ["written", "disk"], value_name = "WHEN")]
        durability: Option<String>,
        /// Every service in a network namespace of its own, as on separate machines (root; needs `ip`)
        #[arg(long)]
        separate: bool,
        /// Stay until interrupted, then stop the cluster
        #[arg(long)]
        foreground: bool,
        /// Print the status as JSON when it is up
        #[arg(long)]
        json: bool,
    },
    /// What runs where
    Status {
        #[command(flatten)]
        at: DirArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Send a signal to one service
    Kill {
        #[command(flatten)]
        at: DirArg,
        /// The service's id, as `status` shows it
        id: String,
        /// KILL, TERM, INT, STOP, CONT, HUP, QUIT, ABRT, USR1 or USR2
        #[arg(long, default_value = "KILL")]
        signal: String,
    },
    /// Start one service again
    Start {
        #[command(flatten)]
        at: DirArg,
        /// The service's id, as `status` shows it
        id: String,
    },
    /// Unmount and stop everything; all data stays
    Down {
        #[command(flatten)]
        at: DirArg,
    },
    /// Stop everything and delete the cluster with all its data
    Destroy {
        #[command(flatten)]
        at: DirArg,
        /// Do it; without it only say what would be deleted
        #[arg(long)]
        yes: bool,
    },
}

/// Parses `64K`, `1M`, `1048576`.
fn size(text: &str) -> Result<u32, String> {
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (number, shift) = match upper.chars().last() {
        Some('K') => (&upper[..upper.len() - 1], 10),
        Some('M') => (&upper[..upper.len() - 1], 20),
        Some('G') => (&upper[..upper.len() - 1], 30),
        _ => (upper, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(|| format!("«{text}» is not a size; write for example 64K, 1M or 4M"))
}

/// Runs the command.
pub fn dev(args: &DevArgs) -> Result<()> {
    match &args.command {
        DevCommand::Up {
            at,
            mount,
            storages,
            disks,
            replicas,
            metas,
            mgmtds,
            meta_engine,
            chunk_size,
            durability,
            separate,
            foreground,
            json,
        } => {
            let request = UpRequest {
                dir: at.dir.clone(),
                mount: mount.clone(),
                storages: *storages,
                disks: *disks,
                replicas: *replicas,
                metas: *metas,
                mgmtds: *mgmtds,
                engine: meta_engine.map(|e| match e {
                    EngineArg::Embedded => MetaEngine::Embedded,
                    EngineArg::Etcd => MetaEngine::Etcd,
                }),
                chunk_bytes: *chunk_size,
                disk_durability: durability.as_ref().map(|d| d == "disk"),
                separate: *separate,
            };
            run_up(&request, *foreground, *json)
        }
        DevCommand::Status { at, json } => {
            let status = status::status(&at.dir)?;
            show(&status, *json)
        }
        DevCommand::Kill { at, id, signal } => down::kill(&at.dir, id, signal),
        DevCommand::Start { at, id } => down::start(&at.dir, id),
        DevCommand::Down { at } => stop(&at.dir),
        DevCommand::Destroy { at, yes } => down::destroy(&at.dir, *yes),
    }
}

fn run_up(request: &UpRequest, foreground: bool, json: bool) -> Result<()> {
    let started = Instant::now();
    let state = up::up(request)?;
    let status = status::status(&request.dir)?;
    if json {
        show(&status, true)?;
    } else {
        println!(
            "Cluster {} is up in {:.1} s: {} chains of {} replicas, chunks of {} KiB.\n",
            &state.cluster_id[..8],
            started.elapsed().as_secs_f64(),
            state.chains,
            state.replicas,
            state.chunk_bytes >> 10
        );
        show(&status, false)?;
        print!("{}", next_steps(&status, &called()));
    }
    if foreground {
        println!("Press Ctrl-C to stop it.");
        let termination = Termination::new()?;
        glowfs_rt::real::run(|rt| async move { termination.wait(&rt).await })?;
        stop(&request.dir)?;
    }
    Ok(())
}

fn stop(dir: &Path) -> Result<()> {
    let killed = down::down(dir)?;
    if !killed.is_empty() {
        bail!(
            "stopped, but these did not end by themselves and were killed: {}",
            killed.join(", ")
        );
    }
    Ok(())
}

fn show(status: &Status, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(status)?);
        return Ok(());
    }
    for s in &status.services {
        let pid = s.pid.map_or_else(|| "-".into(), |p| p.to_string());
        let place = if s.role == "mount" {
            format!(
                "{}{}",
                status.mount.path.display(),
                if status.mount.mounted { "" } else { " (not mounted)" }
            )
        } else {
            s.address.clone()
        };
        println!(
            "  {:<12} {:<8} pid {:<8} {:<22} metrics http://{}/metrics",
            s.id, s.state, pid, place, s.http
        );
    }
    Ok(())
}

/// How this program is called from where the user is: by its name if that finds it, and through sudo if it was run so.
fn called() -> String {
    let is_found = |own: &Path| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut all = std::env::split_paths(&path).map(|dir| dir.join("glowfs"));
        all.find(|f| f.is_file()).and_then(|f| f.canonicalize().ok()).as_deref() == Some(own)
    };
    let name = match std::env::current_exe().and_then(|own| own.canonicalize()) {
        Ok(own) if !is_found(&own) => own.display().to_string(),
        _ => "glowfs".into(),
    };
    if std::env::var_os("SUDO_UID").is_some() { format!("sudo {name}") } else { name }
}

fn next_steps(status: &Status, glowfs: &str) -> String {
    let dir = status.dir.display();
    let mnt = status.mount.path.display();
    format!(
        "\nMounted at {mnt}. Next:\n\
         \x20 cp -a /usr/include {mnt}/ && diff -r /usr/include {mnt}/include   # use it\n\
         \x20 {glowfs} admin --dev {dir} list-chains                              # look inside\n\
         \x20 {glowfs} dev kill --dir {dir} storage-1                             # kill a node: it goes on\n\
         \x20 {glowfs} dev start --dir {dir} storage-1                            # and bring it back\n\
         \x20 {glowfs} dev down --dir {dir}                                       # stop; `up` again keeps all data\n"
    )
}

#[cfg(test)]
mod tests {
    use super::{called, size};

    /// What is printed for people to run can be run.
    #[test]
    fn who_is_not_found_by_his_name_is_called_by_his_path() {
        let own = std::env::current_exe().expect("a path").canonicalize().expect("a file");
        assert!(called().ends_with(&own.display().to_string()), "{}", called());
    }

    #[test]
    fn sizes() {
        assert_eq!(size("64K"), Ok(64 << 10));
        assert_eq!(size("4MiB"), Ok(4 << 20));
        assert_eq!(size("1048576"), Ok(1 << 20));
        for bad in ["", "K", "1X", "-1", "5G", "99999999999999999999M"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
