//! Starting and stopping a mount.

use crate::MountConfig;
use crate::daemon::Daemon;
use crate::filesystem::FileSystem;
use crate::recall::Recalls;
use glowfs_client::{Client, ClientConfig};
use glowfs_fuse::{MountOptions, Mounted, Options, Session};
use glowfs_rt::{Address, Duration, Rt, Task};
use glowfs_telemetry::{HttpServer, StatusFn};
use glowfs_types::routing::Role;
use glowfs_types::wire::hello::ServiceStatus;
use glowfs_types::{ClusterId, Error, NodeId, Result, Status};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// A mount that serves.
pub struct Running {
    rt: Rt,
    mounted: Arc<Mounted>,
    serving: RefCell<Task<std::io::Result<()>>>,
    stop: Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()>>>>,
    try_closes: Box<dyn Fn()>,
    busy: Box<dyn Fn() -> u64>,
    stop_within: Duration,
    http: Option<HttpServer>,
    transport: &'static str,
}

/// Connects to the cluster and mounts. Returns when the mount can be used.
pub async fn start(rt: &Rt, config: MountConfig) -> Result<Running> {
    let client = connect(rt, &config).await?;
    start_connected(rt, config, client).await
}

/// The first half of [`start`], which may be given up at any time: connects to the cluster. [`start_connected`] is the other half; it has to
/// be awaited to its end, or a mount may stay that nobody serves.
pub async fn connect(rt: &Rt, config: &MountConfig) -> Result<Rc<Client>> {
    config.validate()?;
    let token = glowfs_net::read_token_file(&config.token_file)?;
    let cluster = if config.cluster_id.is_empty() {
        ClusterId::default()
    } else {
        config.cluster_id.parse().map_err(|_| {
            Error::new(Status::InvalidArgument, "`cluster_id` is not 32 hexadecimal digits")
        })?
    };
    let client = ClientConfig {
        mgmtd: config.mgmtd.clone(),
        token,
        role: Role::Mount,
        description: config.mountpoint.display().to_string(),
        cluster,
        host: glowfs_net::local_host_id(),
        hostname: hostname(),
        pid: std::process::id(),
        transports: config.transports.clone(),
        connect_timeout: Duration::from_millis(config.connect_ms),
        ..ClientConfig::default()
    };
    Client::connect(rt, client).await
}

/// How long the address of health and metrics may still belong to another daemon, and how often we look.
const HTTP_PATIENCE: Duration = Duration::from_secs(5);
const HTTP_PAUSE: Duration = Duration::from_millis(50);

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Mounts what a client is connected to. Compiled here, once: not for each program that calls it.
pub async fn start_connected(rt: &Rt, config: MountConfig, client: Rc<Client>) -> Result<Running> {
    start_on(rt, config, client).await
}

/// Mounts any file system.
pub(crate) async fn start_on<S: FileSystem>(
    rt: &Rt,
    config: MountConfig,
    fs: Rc<S>,
) -> Result<Running> {
    config.validate()?;
    let mut options = MountOptions::new(&config.mountpoint, &config.source, "glowfs");
    options.flags = config.flags();
    options.allow_non_empty = config.allow_non_empty;
    if let Some(allow) = config.allow_other {
        options.allow_other = allow;
    }
    let made = rt.unblock(move || glowfs_fuse::mount(&options)).await;
    let (mounted, fd) = made.map_err(|e| Error::new(Status::InvalidArgument, e.to_string()))?;
    let mounted = Arc::new(mounted);
    let session_options = Options {
        max_write: config.max_request_bytes,
        max_readahead: config.read_ahead_bytes.max(128 << 10),
        max_background: config.max_background,
        congestion_threshold: (config.max_background / 4 * 3).max(1),
        max_outstanding: config.max_outstanding,
        queue_depth: if config.wants_uring() { config.fuse_queue_depth } else { 0 },
        ..Options::default()
    };
    let started = Session::start(rt, fd, &session_options).await;
    let read_ahead_bytes = config.read_ahead_bytes;
    let (stop_within, http) = (Duration::from_millis(config.stop_ms), config.http.clone());
    let daemon = Daemon::new(rt, fs.clone(), config);
    let session = match started {
        Ok(session) => session,
        Err(e) => {
            let _ = unmount(rt, &mounted, true).await;
            return Err(Error::new(Status::Internal, format!("FUSE session: {e}")));
        }
    };
    *daemon.session.borrow_mut() = Rc::downgrade(&session);
    read_ahead(rt, &mounted, read_ahead_bytes).await;
    fs.listen(Recalls::new(&daemon));
    let transport = if session.negotiated().over_io_uring() { "io_uring" } else { "/dev/fuse" };
    let serving = RefCell::new(rt.spawn(daemon.clone().serve(session)));
    let http = match http {
        None => None,
        Some(address) => match serve_http(rt, &address).await {
            Ok(http) => Some(http),
            Err(e) => {
                let _ = unmount(rt, &mounted, true).await;
                return Err(e);
            }
        },
    };
    tracing::info!(path = %mounted.path().display(), transport, "mounted");
    Ok(Running {
        rt: rt.clone(),
        mounted,
        serving,
        stop: {
            let daemon = daemon.clone();
            Box::new(move || {
                let (fs, daemon) = (fs.clone(), daemon.clone());
                Box::pin(async move {
                    daemon.rings.end();
                    daemon.everything_sent().await;
                    daemon.give_all_rights().await;
                    fs.shut_down().await;
                })
            })
        },
        try_closes: {
            let daemon = daemon.clone();
            Box::new(move || daemon.unanswered.try_all())
        },
        busy: Box::new(move || daemon.busy() + daemon.inodes.open_count() as u64),
        stop_within,
        http,
        transport,
    })
}

/// After the handshake, which lowers it.
async fn read_ahead(rt: &Rt, mounted: &Mounted, bytes: u32) {
    let Some(connection) = mounted.connection().filter(|_| bytes > 0) else { return };
    let set = rt.unblock(move || glowfs_fuse::set_read_ahead(connection, bytes / 1024)).await;
    if let Err(error) = set {
        tracing::debug!(%error, "the kernel reads ahead as it begins with");
    }
}

/// Where the daemon before us listens still, it is waited for: an unmount returns before the daemon has ended.
async fn serve_http(rt: &Rt, address: &str) -> Result<HttpServer> {
    let address: Address =
        address.parse().map_err(|e| Error::new(Status::InvalidArgument, format!("`http`: {e}")))?;
    let (clock, began) = (rt.clone(), rt.now());
    let status: StatusFn = Rc::new(move || ServiceStatus {
        role: Some(Role::Mount),
        node: NodeId(0),
        pid: std::process::id(),
        release: glowfs_telemetry::RELEASE.into(),
        healthy: true,
        detail: "mounted".into(),
        uptime_ns: clock.now().since(began).as_nanos() as u64,
    });
    let until = rt.now() + HTTP_PATIENCE;
    loop {
        match HttpServer::start(rt, &address, status.clone()) {
            Err(e) if e.status == Status::Busy && rt.now() < until => rt.sleep(HTTP_PAUSE).await,
            started => return started,
        }
    }
}

async fn unmount(rt: &Rt, mounted: &Arc<Mounted>, force: bool) -> std::io::Result<()> {
    let mounted = mounted.clone();
    rt.unblock(move || mounted.unmount(force)).await
}

impl Running {
    /// Where it is mounted (absolute).
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }
    /// Where health and metrics are served.
    pub fn http(&self) -> Option<&Address> {
        self.http.as_ref().map(HttpServer::address)
    }
    /// How requests of the kernel come: `/dev/fuse` or `io_uring`.
    pub fn transport(&self) -> &'static str {
        self.transport
    }
    /// The number of its connection under /sys/fs/fuse/connections (to abort it in tests).
    pub fn connection(&self) -> Option<u32> {
        self.mounted.connection()
    }
    /// Resolves when the mount ends without [`Running::stop`]: someone unmounted it, or the device failed.
    pub async fn failed(&self) -> Error {
        let ended = poll_fn(|cx| Pin::new(&mut *self.serving.borrow_mut()).poll(cx)).await;
        match ended {
            Ok(()) => Error::new(Status::ShuttingDown, "the file system was unmounted"),
            Err(e) => Error::new(Status::Internal, format!("/dev/fuse: {e}")),
        }
    }
    /// Unmounts, waits for requests in work and sessions to close, and leaves the cluster. A mount that is in use is
    /// detached after `stop_ms`: it vanishes from the tree at once, and what is still open is closed with the daemon.
    pub async fn stop(self) {
        // Closes that meta has not answered have little time left.
        (self.try_closes)();
        let deadline = self.rt.now() + self.stop_within;
        let mut pause = Duration::from_millis(5);
        loop {
            match unmount(&self.rt, &self.mounted, false).await {
                Ok(()) => break,
                Err(e) if self.rt.now() >= deadline => {
                    tracing::warn!(error = %e, "still in use; detaching");
                    if let Err(e) = unmount(&self.rt, &self.mounted, true).await {
                        tracing::error!(error = %e, path = %self.path().display(), "cannot unmount");
                    }
                    break;
                }
                Err(_) => {
                    self.rt.sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(200));
                }
            }
        }
        // RELEASEs of the last files may still be on their way.
        while (self.busy)() > 0 && self.rt.now() < deadline {
            self.rt.sleep(Duration::from_millis(2)).await;
        }
        (self.stop)().await;
        tracing::info!(path = %self.path().display(), "unmounted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_listens_still_is_waited_for() {
        glowfs_rt::real::run(|rt| async move {
            // An address of nobody's machine (RFC 5737).
            let began = rt.now();
            let refused = serve_http(&rt, "192.0.2.1:80").await.map(drop).expect_err("not ours");
            assert_eq!(refused.status, Status::InvalidArgument);
            assert!(rt.now().since(began) < HTTP_PATIENCE, "answered at once");

            let before = serve_http(&rt, "127.0.0.1:0").await.expect("any port");
            let address = before.address().to_string();
            let clock = rt.clone();
            let leaves = rt.spawn(async move {
                clock.sleep(HTTP_PAUSE * 2).await;
                drop(before);
            });
            serve_http(&rt, &address).await.expect("the one before left");
            leaves.await;
        });
    }
}
