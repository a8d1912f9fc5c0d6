//! `glowfs mount`: a mount daemon, in the foreground or the background.
//!
//! In the background ([`background`]) the command starts itself anew and waits until that daemon says that it serves ([`waiter`]). Called as
//! `mount.glowfs`, as mount(8) does, it always mounts in the background ([`mount8`]).

mod background;
pub mod mount8;
mod options;
mod waiter;

use crate::config;
use crate::service::{LogArgs, STOP_BOUND, Service, until_the_end};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use glowfs_mount::{MountConfig, Running};
use glowfs_net::read_token_file;
use glowfs_rt::sync::{Either, select};
use glowfs_rt::{Duration, Instant, Rt, real, signal::Termination};
use glowfs_types::Error;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use waiter::Waiter;

/// How long a mounted root may take to answer at least, whatever `--timeout` leaves.
const ROOT_PATIENCE: Duration = Duration::from_secs(1);

/// See [`crate::Role::Mount`].
#[derive(Args, Debug, Default)]
pub struct MountArgs {
    /// Where to mount: an existing, empty directory
    #[arg(value_name = "MNT", required_unless_present = "config")]
    mountpoint: Option<PathBuf>,
    /// Address of mgmtd (HOST:PORT); may be repeated
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "config")]
    mgmtd: Vec<String>,
    /// File with the token of a user of the cluster
    #[arg(long, value_name = "FILE", required_unless_present = "config")]
    token_file: Option<PathBuf>,
    /// Configuration file (TOML), instead of the above
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// How long to wait for the cluster, in seconds [default: 30]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Set one key of the configuration, over the file's
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Return when it is mounted and serves; a daemon stays behind until it is unmounted (umount MNT). If it cannot be mounted, say why,
    /// exit with 1, and leave nothing behind
    #[arg(long)]
    background: bool,
    /// With --background: where the daemon's log is appended. Without it: to the system's log (/dev/log); where there is none, nowhere
    #[arg(long, value_name = "FILE", requires = "background")]
    log_file: Option<PathBuf>,
    /// Tell on standard output, to whoever waits there, how the mounting went; end if nobody waits any more
    #[arg(long, hide = true, conflicts_with = "background")]
    announce: bool,
    #[command(flatten)]
    log: LogArgs,
}

impl Service for Running {
    fn place(&self) -> String {
        String::new()
    }
    async fn failed(&self) -> Error {
        Running::failed(self).await
    }
    async fn stop(self) -> glowfs_types::Result<()> {
        Running::stop(self).await;
        Ok(())
    }
}

impl MountArgs {
    /// The whole configuration. Its paths are absolute, and its token file holds a token.
    fn config(&self) -> Result<MountConfig> {
        let mut config: MountConfig = config::load(self.config.as_deref(), &self.sets)?;
        if let Some(at) = &self.mountpoint {
            config.mountpoint.clone_from(at);
        }
        if !self.mgmtd.is_empty() {
            config.mgmtd.clone_from(&self.mgmtd);
        }
        if let Some(file) = &self.token_file {
            config.token_file.clone_from(file);
        }
        config.read_only |= self.read_only;
        if let Some(seconds) = self.timeout {
            config.connect_ms = seconds.saturating_mul(1000);
        }
        for path in [&mut config.mountpoint, &mut config.token_file] {
            if !path.as_os_str().is_empty() {
                *path = std::path::absolute(&*path)
                    .with_context(|| format!("the path {}", path.display()))?;
            }
        }
        config.validate()?;
        read_token_file(&config.token_file)?;
        Ok(config)
    }
}

/// Mounts and serves until the end; with `--background` a daemon does.
pub fn mount(args: &MountArgs) -> Result<()> {
    if args.background {
        return background::start(args).map(drop);
    }
    let waiter = Rc::new(if args.announce { Waiter::on_stdout()? } else { Waiter::nobody() });
    let outcome = serve(args, &waiter);
    if let Err(e) = &outcome {
        waiter.told_failure(e);
    }
    outcome
}

/// Mounts, serves until the end, unmounts. An `umount` from outside ends it as well, with success.
fn serve(args: &MountArgs, waiter: &Rc<Waiter>) -> Result<()> {
    args.log.init()?;
    let config = args.config()?;
    let termination = Termination::new().context("taking over SIGTERM and SIGINT")?;
    let (runtime, waiter) = (config.runtime(), waiter.clone());
    real::run_with(runtime, move |rt| async move {
        let at = config.mountpoint.display().to_string();
        let mount = start(&rt, config, &waiter, &termination).await?;
        tracing::info!(at, "mounted");
        until_the_end(&rt, "mount", mount, &termination).await
    })
    .context("the runtime")?
}

/// Connects, mounts, and says so to who waits.
async fn start(
    rt: &Rt,
    config: MountConfig,
    waiter: &Waiter,
    termination: &Termination,
) -> Result<Running> {
    let at = config.mountpoint.clone();
    let mounting = || format!("mounting at {}", at.display());
    let until = rt.now() + Duration::from_millis(config.connect_ms);
    let client = {
        let ended = select(termination.wait(rt), waiter.gone(rt));
        match select(glowfs_mount::connect(rt, &config), ended).await {
            Either::Left(client) => client.with_context(mounting)?,
            Either::Right(_) => bail!("{} was given up before the cluster answered", mounting()),
        }
    };
    // To its end, though nobody may wait any more: given up half-way it could leave a mount that nobody serves.
    let mount = glowfs_mount::start_connected(rt, config, client).await.with_context(mounting)?;
    if waiter.waits() {
        let gone = "whoever asked for the mount is gone";
        let told = match select(answers(rt, &at, until), waiter.gone(rt)).await {
            Either::Left(Ok(())) => waiter.told_ready().context(gone),
            Either::Left(Err(e)) => Err(e),
            Either::Right(()) => Err(anyhow!(gone)),
        };
        if let Err(e) = told {
            let _ = rt.timeout(STOP_BOUND, mount.stop()).await;
            return Err(e.context(mounting()));
        }
    }
    Ok(mount)
}

/// Returns when the root of the mount can be looked at.
async fn answers(rt: &Rt, at: &Path, until: Instant) -> Result<()> {
    let bound = until.since(rt.now()).max(ROOT_PATIENCE);
    let path = at.to_owned();
    match rt.timeout(bound, rt.unblock(move || std::fs::metadata(path).map(drop))).await {
        Ok(looked) => looked.context("the root of the file system cannot be looked at"),
        Err(_) => bail!(
            "the root of the file system did not answer within {bound:?}; see glowfs admin status"
        ),
    }
}
