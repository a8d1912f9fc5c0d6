//! The cluster under torture: a dev cluster with a second mount, by the documented interface.

use crate::hand::Hand;
use crate::process::Process;
use crate::view::View;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long the second mount may take.
const MOUNT_BOUND: Duration = Duration::from_secs(60);
/// How long the daemon of a mount that nobody has any more may take to end.
const ENDS_BY_ITSELF: Duration = Duration::from_secs(5);
/// How often conditions are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How the cluster is made.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The `glowfs` binary.
    pub glowfs: PathBuf,
    /// An empty or new directory for everything.
    pub dir: PathBuf,
    /// Storage nodes.
    pub storages: u32,
    /// More options for `dev up`.
    pub options: Vec<String>,
}

/// One service, from `dev status`.
#[derive(Clone, Debug, Default)]
pub struct Service {
    /// As `dev kill` takes it.
    pub id: String,
    /// Its role.
    pub role: String,
    /// Its process, if it runs.
    pub process: Option<Process>,
    /// `running`, `stopped` or `down`.
    pub state: String,
    /// Its node id.
    pub node: u64,
    /// Its data directories.
    pub data: Vec<PathBuf>,
    /// Its log.
    pub log: PathBuf,
    /// Its network, if it has one of its own.
    pub network: Option<Network>,
}

impl Service {
    /// Whether a SIGSTOP holds it.
    pub fn stopped(&self) -> bool {
        self.process.and_then(|p| p.state()) == Some('T')
    }
}

/// The network of a service that runs as if on a machine of its own.
#[derive(Clone, Debug)]
pub struct Network {
    /// Its namespace.
    pub namespace: String,
    /// The end of its cable here.
    pub port: String,
    /// Its IP address.
    pub ip: String,
}

/// A running cluster, mounted twice. Shared by threads; commands run one at a time.
pub struct Cluster {
    shape: Shape,
    /// Where the dev cluster is.
    pub dir: PathBuf,
    /// The mounts: that of the dev cluster, and a further one.
    pub mounts: [PathBuf; 2],
    /// A third one, which is killed now and then.
    pub doomed: PathBuf,
    /// What mgmtd knows of it.
    pub view: Arc<View>,
    hand: Mutex<Hand>,
    /// The processes of the second and third mount.
    second: Mutex<Option<Process>>,
    third: Mutex<Option<Process>>,
}

impl Cluster {
    /// One in the directory of `shape`, not started. Call before any file of a mount is open.
    pub fn new(shape: &Shape) -> Result<Self> {
        let top = &shape.dir;
        std::fs::create_dir_all(top).with_context(|| format!("making {}", top.display()))?;
        let top = top.canonicalize()?;
        Ok(Self {
            shape: shape.clone(),
            view: Arc::new(View::new(&shape.glowfs, &top, &top.join("cluster"))?),
            dir: top.join("cluster"),
            mounts: [top.join("mnt1"), top.join("mnt2")],
            doomed: top.join("mnt3"),
            hand: Mutex::new(Hand::new(&top, "hand")?),
            second: Mutex::new(None),
            third: Mutex::new(None),
        })
    }
    /// Makes and starts it.
    pub fn start(&self) -> Result<()> {
        let storages = self.shape.storages.to_string();
        let mount = self.mounts[0].to_string_lossy().into_owned();
        let mut args = vec!["--mount", &mount, "--storages", &storages];
        args.extend(self.shape.options.iter().map(String::as_str));
        self.dev("up", &args)?;
        self.mount_second()
    }
    /// Brings all up again after [`Cluster::down`].
    pub fn up_again(&self) -> Result<()> {
        self.dev("up", &[])?;
        self.mount_second()
    }
    /// Stops everything gracefully; the data stays. Call when no file is open.
    pub fn down(&self) -> Result<()> {
        self.unmount(&self.third, &self.doomed)?;
        self.unmount(&self.second, &self.mounts[1])?;
        self.dev("down", &[]).map(|_| ())
    }
    /// Stops everything and deletes the data.
    pub fn destroy(&self) -> Result<()> {
        let _ = self.unmount(&self.third, &self.doomed);
        let _ = self.unmount(&self.second, &self.mounts[1]);
        self.dev("destroy", &["--yes"]).map(|_| ())
    }

    fn hand(&self) -> MutexGuard<'_, Hand> {
        lock(&self.hand)
    }
    /// Runs any command by the hand.
    pub fn run(&self, argv: &[String]) -> Result<String> {
        self.hand().run(argv)
    }
    /// `glowfs dev COMMAND --dir DIR ARGS`.
    pub fn dev(&self, command: &str, args: &[&str]) -> Result<String> {
        let mut argv = vec![self.glowfs(), "dev".into(), command.into(), "--dir".into()];
        argv.push(self.dir.to_string_lossy().into_owned());
        argv.extend(args.iter().map(|a| (*a).to_owned()));
        self.run(&argv)
    }
    /// `glowfs admin --json --dev DIR ARGS`.
    pub fn admin(&self, args: &[&str]) -> Result<Value> {
        let mut argv = vec![self.glowfs(), "admin".into(), "--json".into(), "--dev".into()];
        argv.push(self.dir.to_string_lossy().into_owned());
        argv.extend(args.iter().map(|a| (*a).to_owned()));
        let text = self.run(&argv)?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }
    fn glowfs(&self) -> String {
        self.shape.glowfs.to_string_lossy().into_owned()
    }
    /// `dev status --json`.
    pub fn status(&self) -> Result<Value> {
        let text = self.dev("status", &["--json"])?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }
    /// The process of a service, if it is one of this cluster's binary still.
    pub fn process(&self, s: &Service) -> Result<Process> {
        let process = s.process.with_context(|| format!("{} does not run", s.id))?;
        let program = process.program()?;
        // A binary that was built anew meanwhile is said to be deleted.
        let expected = if s.role == "etcd" { "etcd" } else { "glowfs" };
        if !program.starts_with(expected) {
            bail!("{process} is no {}, but {program}", s.id);
        }
        Ok(process)
    }
    /// All services but the mount.
    pub fn services(&self) -> Result<Vec<Service>> {
        let status = self.status()?;
        let rows = status["services"].as_array().context("no services in the status")?;
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let row = |s: &Value| Service {
            id: text(&s["id"]),
            role: text(&s["role"]),
            process: s["pid"].as_u64().and_then(|p| Process::now(u32::try_from(p).ok()?).ok()),
            state: text(&s["state"]),
            node: s["node"].as_u64().unwrap_or_default(),
            data: s["data"].as_array().into_iter().flatten().map(|d| text(d).into()).collect(),
            log: text(&s["log"]).into(),
            network: s["namespace"].as_str().map(|namespace| Network {
                namespace: namespace.to_owned(),
                port: text(&s["port"]),
                ip: text(&s["address"]).split(':').next().unwrap_or_default().to_owned(),
            }),
        };
        Ok(rows.iter().map(row).filter(|s| s.role != "mount").collect())
    }
    /// The node id of the primary mgmtd.
    pub fn primary_node(&self) -> Result<u64> {
        let nodes = self.admin(&["list-nodes"])?;
        let primary = nodes.as_array().into_iter().flatten().find(|n| n["status"] == "primary");
        let node = primary.and_then(|n| n["id"].as_u64());
        node.with_context(|| format!("no primary mgmtd in {nodes}"))
    }
    /// Where mgmtd is, and the token, for a client of our own.
    pub fn access(&self) -> Result<(Vec<String>, String)> {
        let status = self.status()?;
        let mgmtd = status["mgmtd"].as_array().context("no mgmtd in the status")?;
        let mgmtd = mgmtd.iter().filter_map(|a| a.as_str()).map(|a| format!("tcp://{a}")).collect();
        let file = status["token_file"].as_str().context("no token file in the status")?;
        Ok((mgmtd, std::fs::read_to_string(file)?.trim().to_owned()))
    }

    /// Whether all members of all chains serve; if not, which chains lack what.
    pub fn complete(&self) -> Result<(), String> {
        let chains = self.admin(&["list-chains"]).map_err(|e| e.to_string())?;
        let chains = chains.as_array().ok_or("no list of chains")?;
        let lacking: Vec<_> =
            chains.iter().filter(|c| c["status"] != "complete").map(Value::to_string).collect();
        if chains.is_empty() || !lacking.is_empty() {
            return Err(format!("{} of {}: {}", lacking.len(), chains.len(), lacking.join(" ")));
        }
        Ok(())
    }
    /// Waits until all members of all chains serve.
    pub fn wait_complete(&self, bound: Duration) -> Result<Duration> {
        let began = Instant::now();
        loop {
            match self.complete() {
                Ok(()) => return Ok(began.elapsed()),
                Err(e) if began.elapsed() > bound => {
                    bail!("not all chains are complete after {bound:?}: {e}")
                }
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    fn mount_second(&self) -> Result<()> {
        let process = self.mount(&self.mounts[1], "mount2")?;
        *lock(&self.second) = Some(process);
        Ok(())
    }
    /// Mounts the one that will be killed.
    pub fn mount_doomed(&self) -> Result<()> {
        let process = self.mount(&self.doomed, "mount3")?;
        *lock(&self.third) = Some(process);
        Ok(())
    }
    /// Its process.
    pub fn doomed_process(&self) -> Result<Process> {
        lock(&self.third).context("there is no third mount")
    }
    /// Takes away what is left of it, after its process was killed.
    pub fn clear_doomed(&self) -> Result<()> {
        let _ = lock(&self.third).take();
        let at = self.doomed.to_string_lossy().into_owned();
        self.run(&["umount".to_owned(), "-l".to_owned(), at]).map(|_| ())
    }
    /// Waits until the cluster knows this many mounts: those that were killed must go.
    pub fn wait_mounts(&self, count: usize, bound: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            let clients = self.admin(&["list-clients"])?;
            let rows = clients.as_array().context("no list of clients")?;
            let now = rows.iter().filter(|c| c["role"] == "mount").count();
            if now == count {
                return Ok(());
            }
            if began.elapsed() > bound {
                bail!("{now} mounts have sessions after {bound:?}, there are {count}: {clients}");
            }
            std::thread::sleep(LOOK);
        }
    }

    fn mount(&self, at: &Path, log: &str) -> Result<Process> {
        let status = self.status()?;
        std::fs::create_dir_all(at)?;
        let mut argv = vec![self.glowfs(), "mount".into()];
        for a in status["mgmtd"].as_array().into_iter().flatten().filter_map(|a| a.as_str()) {
            argv.extend(["--mgmtd".to_owned(), a.to_owned()]);
        }
        argv.push("--token-file".into());
        argv.push(status["token_file"].as_str().unwrap_or_default().to_owned());
        argv.push(at.to_string_lossy().into_owned());
        // The guard finds the daemon by it.
        let note = at.with_file_name(format!("{log}.pid"));
        let log = self.dir.join(format!("log/{log}.log"));
        let process = Process::now(self.hand().start(&argv, &log)?)
            .with_context(|| format!("a further mount; its log is {}", log.display()))?;
        std::fs::write(note, format!("{} {}\n", process.pid, process.began))?;
        let end = Instant::now() + MOUNT_BOUND;
        while !mounted(at) {
            if Instant::now() > end {
                bail!("a further mount does not come up; its log is {}", log.display());
            }
            std::thread::sleep(LOOK);
        }
        Ok(process)
    }
    fn unmount(&self, process: &Mutex<Option<Process>>, at: &Path) -> Result<()> {
        let Some(process) = lock(process).take() else { return Ok(()) };
        if mounted(at) {
            let at = at.to_string_lossy().into_owned();
            if let Err(e) = self.run(&["umount".to_owned(), at.clone()]) {
                let _ = self.run(&["umount".to_owned(), "-l".to_owned(), at]);
                return Err(e);
            }
        }
        // The daemon ends when it is unmounted. (What is left of it then is the hand's to take away.)
        let (began, mut told) = (Instant::now(), false);
        while process.state().is_some_and(|s| s != 'Z') {
            // Whoever took a copy of all mounts (a container, `unshare -m`) keeps it alive: then it has to be told.
            if !told && began.elapsed() > ENDS_BY_ITSELF && held(at) {
                told = process.signal(Signal::TERM).is_ok();
            }
            if began.elapsed() > MOUNT_BOUND {
                let _ = process.signal(Signal::KILL);
                let at = at.display();
                bail!(
                    "the daemon of {at} has not ended {MOUNT_BOUND:?} after it was unmounted: {process}"
                );
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether something is mounted at `at`.
pub fn mounted(at: &Path) -> bool {
    mounted_for("self", at)
}

/// Whether something is mounted there as some process sees it.
fn held(at: &Path) -> bool {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut numbers = all.map(|p| p.file_name().to_string_lossy().into_owned());
    numbers.any(|n| n.starts_with(|c: char| c.is_ascii_digit()) && mounted_for(&n, at))
}

fn mounted_for(process: &str, at: &Path) -> bool {
    let table = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    let at = at.to_string_lossy();
    table.lines().any(|l| l.split(' ').nth(4) == Some(&at))
}
