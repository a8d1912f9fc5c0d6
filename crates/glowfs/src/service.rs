//! `glowfs mgmtd | meta | storage`: configuration, logs, signals; the services themselves are in their crates.

use crate::config;
use anyhow::{Context, Result};
use clap::Args;
use glowfs_rt::{Duration, Rt, real, signal::Termination};
use glowfs_telemetry::LogConfig;
use glowfs_types::{Error, Status};
use serde::de::DeserializeOwned;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::task::Poll;

/// How long a graceful stop may take.
pub const STOP_BOUND: Duration = Duration::from_secs(15);

/// Where to read on, at the end of the help of services and in the error of one that is told nothing.
pub const READ_ON: &str = "Keys: docs/configuration.md. A first cluster: docs/deploying.md, or `glowfs dev up` on one machine.";

/// The command line of a service.
#[derive(Args, Debug)]
pub struct ServiceArgs {
    /// Configuration file (TOML), with the keys of docs/configuration.md
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key of the configuration, over the file's: `--set http=127.0.0.1:9000`, `--set timing.heartbeat_ms=500`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    #[command(flatten)]
    log: LogArgs,
}

/// How to log.
#[derive(Args, Debug)]
pub struct LogArgs {
    /// error, warn, info, debug, or a list such as info,glowfs_net=debug
    #[arg(long, env = "GLOWFS_LOG", default_value = "info", value_name = "LEVEL")]
    pub log_level: String,
    /// One JSON object a line
    #[arg(long)]
    pub log_json: bool,
}

impl Default for LogArgs {
    /// As without arguments.
    fn default() -> Self {
        let log_level = std::env::var("GLOWFS_LOG").unwrap_or_else(|_| "info".into());
        Self { log_level, log_json: false }
    }
}

impl LogArgs {
    /// Sets logging up.
    pub fn init(&self) -> Result<()> {
        let log = LogConfig {
            level: self.log_level.clone(),
            json: self.log_json,
            ..LogConfig::default()
        };
        Ok(glowfs_telemetry::init(&log)?)
    }
}

/// A service that runs, of whatever role.
pub trait Service: 'static {
    /// Where it listens, for the log.
    fn place(&self) -> String;
    /// Resolves when it cannot go on.
    fn failed(&self) -> impl Future<Output = Error>;
    /// Stops gracefully.
    fn stop(self) -> impl Future<Output = glowfs_types::Result<()>>;
}

macro_rules! service {
    ($($module:ident $stopped:expr;)*) => {$(
        impl Service for $module::Running {
            fn place(&self) -> String {
                let addresses: Vec<_> = self.addresses().iter().map(ToString::to_string).collect();
                addresses.join(", ")
            }
            async fn failed(&self) -> Error {
                $module::Running::failed(self).await
            }
            async fn stop(self) -> glowfs_types::Result<()> {
                let done = $module::Running::stop(self).await;
                $stopped(done)
            }
        }
    )*};
}
service! {
    glowfs_mgmtd |()| Ok(());
    glowfs_meta |done| done;
    glowfs_storage |done| done;
}

/// `glowfs mgmtd`.
pub fn mgmtd(args: &ServiceArgs) -> Result<()> {
    run(args, "mgmtd", async |rt, config| glowfs_mgmtd::start(&rt, config).await)
}

/// The command line of a metadata service.
#[derive(Args, Debug)]
pub struct MetaArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// Begin a new file system: formats the directory of the embedded engine if it is empty. Only for the first start; without it an empty directory is refused, for its
    /// disk may not be mounted
    #[arg(long)]
    format: bool,
}

/// `glowfs meta`.
pub fn meta(args: &MetaArgs) -> Result<()> {
    let format = args.format;
    run(&args.service, "meta", async move |rt, config| {
        glowfs_meta::start(&rt, glowfs_meta::MetaConfig { format, ..config }).await
    })
}

/// `glowfs storage`.
pub fn storage(args: &ServiceArgs) -> Result<()> {
    run(args, "storage", async |rt, config| glowfs_storage::start(&rt, config).await)
}

fn run<C, S, F>(args: &ServiceArgs, role: &'static str, start: F) -> Result<()>
where
    C: DeserializeOwned + 'static,
    S: Service,
    F: AsyncFnOnce(Rt, C) -> glowfs_types::Result<S> + 'static,
{
    args.log.init()?;
    if args.config.is_none() && args.sets.is_empty() {
        anyhow::bail!(
            "which configuration? --config FILE, or --set KEY=VALUE for each key. {READ_ON}"
        );
    }
    let config: C = config::load(args.config.as_deref(), &args.sets)?;
    // Each client keeps a connection.
    glowfs_rt::process::raise_descriptor_limit();
    let termination = Termination::new().context("taking over SIGTERM and SIGINT")?;
    let name = args.config.as_ref().map_or_else(String::new, |p| format!(" ({})", p.display()));
    real::run(move |rt| async move {
        let service =
            start(rt.clone(), config).await.with_context(|| format!("starting {role}{name}"))?;
        tracing::info!(role, addresses = service.place(), "serving");
        until_the_end(&rt, role, service, &termination).await
    })
}

/// Runs a started service until a signal or a fatal error; then stops it within [`STOP_BOUND`].
pub async fn until_the_end<S: Service>(
    rt: &Rt,
    role: &'static str,
    service: S,
    termination: &Termination,
) -> Result<()> {
    let failure = {
        let mut signal = std::pin::pin!(termination.wait(rt));
        let mut failed = std::pin::pin!(service.failed());
        poll_fn(|cx| {
            if let Poll::Ready(signal) = signal.as_mut().poll(cx) {
                return Poll::Ready(
                    signal.map(|s| tracing::info!(role, ?s, "stopping")).err().map(Error::from),
                );
            }
            failed.as_mut().poll(cx).map(Some)
        })
        .await
    };
    // An unmount from outside is a way to stop, not a failure.
    let failure = failure.filter(|e| e.status != Status::ShuttingDown);
    if let Some(e) = &failure {
        tracing::error!(role, error = %e, "cannot go on");
    }
    let stopped = rt.timeout(STOP_BOUND, service.stop()).await;
    match (failure, stopped) {
        (Some(e), _) => Err(e).with_context(|| format!("{role} cannot go on")),
        (None, Ok(Ok(()))) => {
            tracing::info!(role, "stopped");
            Ok(())
        }
        (None, Ok(Err(e))) => Err(e).with_context(|| format!("stopping {role}")),
        (None, Err(_)) => anyhow::bail!("{role} did not stop within {STOP_BOUND:?}; it ends now"),
    }
}
