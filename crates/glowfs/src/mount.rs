//! `glowfs mount`: a mount daemon in the foreground.

use crate::config;
use crate::service::{LogArgs, Service, until_the_end};
use anyhow::{Context, Result};
use clap::Args;
use glowfs_mount::MountConfig;
use glowfs_rt::{real, signal::Termination};
use glowfs_types::Error;
use std::path::PathBuf;

/// See [`crate::Role::Mount`].
#[derive(Args, Debug)]
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
    /// How long to wait for the cluster, in seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
    /// Set one key of the configuration, over the file's
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    #[command(flatten)]
    log: LogArgs,
}

impl Service for glowfs_mount::Running {
    fn place(&self) -> String {
        String::new()
    }
    async fn failed(&self) -> Error {
        glowfs_mount::Running::failed(self).await
    }
    async fn stop(self) -> glowfs_types::Result<()> {
        glowfs_mount::Running::stop(self).await;
        Ok(())
    }
}

impl MountArgs {
    fn config(&self) -> Result<MountConfig> {
        let mut config: MountConfig = config::load(self.config.as_deref(), &self.sets)?;
        if let Some(at) = &self.mountpoint {
            config.mountpoint = std::path::absolute(at).context("the mount point")?;
        }
        if !self.mgmtd.is_empty() {
            config.mgmtd = self.mgmtd.clone();
        }
        if let Some(file) = &self.token_file {
            config.token_file = file.clone();
        }
        config.read_only |= self.read_only;
        config.connect_ms = self.timeout.saturating_mul(1000);
        config::token(&config.token_file)?;
        Ok(config)
    }
}

/// Mounts, serves until the end, unmounts. An `umount` from outside ends it as well, with success.
pub fn mount(args: &MountArgs) -> Result<()> {
    args.log.init()?;
    let config = args.config()?;
    let termination = Termination::new().context("taking over SIGTERM and SIGINT")?;
    let runtime = config.runtime();
    real::run_with(runtime, move |rt| async move {
        let at = config.mountpoint.display().to_string();
        let mount =
            glowfs_mount::start(&rt, config).await.with_context(|| format!("mounting at {at}"))?;
        tracing::info!(at, "mounted");
        until_the_end(&rt, "mount", mount, &termination).await
    })
    .context("the runtime")?
}
