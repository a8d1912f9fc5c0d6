//! How long applications stand still when a certain process is killed: head, middle and tail of the chain that is written, the primary
//! mgmtd, a metadata service, and the one that hosts the metadata engine (restarted at once: there is only one).

use crate::cluster::{Cluster, Service, Shape};
use crate::flight::Flight;
use crate::ledger::Ledger;
use crate::machine::{Machine, SET_ASIDE};
use crate::nemesis::{WHOLE_BOUND, gone};
use crate::random::Random;
use crate::report::Distribution;
use crate::site::Site;
use crate::watchdog::{Patience, Watchdog};
use crate::work::{Files, Job, library, open};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a process stays away: past the detection of its failure.
const AWAY: Duration = Duration::from_millis(3500);
/// How long operations may take to end.
const SETTLE_BOUND: Duration = Duration::from_secs(90);
/// Blocks that are written and read: all in the first chunk of the file.
const BLOCKS: u64 = 64;
/// Clients of their own that call the metadata services.
const CALLERS: usize = 4;
/// Lanes of the mounts' workers; those of the callers follow.
const LANES: [&str; 4] = ["write", "read", "names 1", "names 2"];

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The first target of the chain
    Head,
    /// One between
    Middle,
    /// The last
    Tail,
    /// The primary mgmtd
    Mgmtd,
    /// A metadata service
    Meta,
    /// The metadata service that hosts the engine, restarted at once
    Engine,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cluster.
    pub shape: Shape,
    /// Kills of each role.
    pub count: usize,
    /// Which.
    pub roles: Vec<Role>,
    /// No stall may be longer.
    pub bound: Duration,
    /// Chooses.
    pub seed: u64,
    /// Leave the cluster's directory when it failed.
    pub keep: bool,
    /// When to give up.
    pub patience: Patience,
}

/// One kill.
#[derive(Clone, Debug, Serialize)]
pub struct Kill {
    /// Of whom.
    pub role: Role,
    /// The service.
    pub target: String,
    /// The longest operation while it was away.
    pub stall_s: f64,
    /// Whose.
    pub who: String,
    /// The longest operation when it came back.
    pub return_s: f64,
    /// The longest stall of the machine itself.
    pub machine_s: f64,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether no stall was longer than the bound, and nothing wrong.
    pub passed: bool,
    /// Why not.
    pub failures: Vec<String>,
    /// While the process was away.
    pub away: BTreeMap<Role, Distribution>,
    /// When it came back.
    pub back: BTreeMap<Role, Distribution>,
    /// Set aside because the machine stood still.
    pub set_aside: usize,
    /// Every kill.
    pub kills: Vec<Kill>,
}

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let mut t = format!(
            "{:<8} {:>5}   {:>7} {:>7} {:>7}   {:>7} {:>7}\n",
            "killed", "count", "stall", "p99", "worst", "return", "worst"
        );
        for (role, d) in &self.away {
            let b = self.back.get(role).copied().unwrap_or_default();
            let _ = writeln!(
                t,
                "{:<8} {:>5}   {:>7.2} {:>7.2} {:>7.2}   {:>7.2} {:>7.2}",
                format!("{role:?}").to_lowercase(),
                d.count,
                d.median,
                d.p99,
                d.worst,
                b.median,
                b.worst
            );
        }
        let _ = writeln!(t, "{} set aside because the machine stood still", self.set_aside);
        for f in &self.failures {
            let _ = writeln!(t, "FAILED: {f}");
        }
        t + if self.passed { "PASSED\n" } else { "FAILED\n" }
    }
}

struct Bench {
    cluster: Arc<Cluster>,
    flight: Arc<Flight>,
    machine: Machine,
    access: library::Access,
    kills: Vec<Kill>,
    set_aside: usize,
}

/// Measures.
pub fn run(plan: &Plan) -> Result<Report> {
    let machine = Machine::watch();
    let site = Site::up(&plan.shape, &[], plan.keep)?;
    let result = measured(plan, &site, machine);
    site.close(result, |r| r.passed)
}

fn measured(plan: &Plan, site: &Site, machine: Machine) -> Result<Report> {
    let cluster = site.cluster.clone();
    let callers = (0..CALLERS).map(|i| format!("caller {i}"));
    let flight = Arc::new(Flight::new(LANES.map(String::from).into_iter().chain(callers)));
    let _watchdog = Watchdog::watch(flight.clone(), &plan.patience, site.view(), site.give_up());
    let dirs: [PathBuf; 2] = [cluster.mounts[0].join("stalls"), cluster.mounts[1].join("stalls")];
    flight.op(0, "mkdir", || std::fs::create_dir(&dirs[0]))?;
    let job = |lane: usize| Job {
        lane,
        random: Random::new(plan.seed, lane as u64),
        flight: flight.clone(),
        files: Arc::new(Files::default()),
        dirs: dirs.clone(),
        think: Duration::from_millis(4),
    };
    let ledger = Arc::new(Ledger::new(1, "file".into(), BLOCKS));
    let j = job(0);
    let file = flight.op(0, "create", || open(&dirs[0].join("file"), true, true, true))?;
    if !j.write(&ledger, &file, 0..BLOCKS) || !j.fsync(&ledger, &file) {
        bail!("the file cannot be made: {:?}", flight.problems().errors);
    }
    flight.op(0, "close", || drop(file));
    let (l1, l2) = (ledger.clone(), ledger);
    let (j0, j1, j2, j3) = (job(0), job(1), job(2), job(3));
    let threads = [
        std::thread::spawn(move || write_blocks(j0, &l1)),
        std::thread::spawn(move || read_blocks(j1, &l2)),
        std::thread::spawn(move || make_and_remove(j2, 0)),
        std::thread::spawn(move || make_and_remove(j3, 1)),
    ];
    let (mgmtd, token) = cluster.access()?;
    let access = library::Access { mgmtd, token, dir: "stalls".into() };
    let mut bench =
        Bench { cluster, flight: flight.clone(), machine, access, kills: vec![], set_aside: 0 };
    let mut failures = vec![];
    if let Err(e) = bench.measure(plan) {
        failures.push(format!("{e:#}"));
    }
    flight.stop.store(true, Ordering::SeqCst);
    for t in threads {
        if t.join().is_err() {
            failures.push("a worker panicked".into());
        }
    }
    Ok(bench.report(plan, failures))
}

impl Bench {
    fn measure(&mut self, plan: &Plan) -> Result<()> {
        // In turns, so that a bad hour of the machine meets all roles alike.
        let tries = plan.count * 2;
        for _ in 0..tries {
            for role in &plan.roles {
                if self.kills.iter().filter(|k| k.role == *role).count() < plan.count {
                    let done = self.kill(*role);
                    self.flight.fault_ends();
                    done?;
                }
            }
        }
        Ok(())
    }

    fn victim(&self, role: Role) -> Result<Service> {
        let all = self.cluster.services()?;
        let by_node = |node: u64| all.iter().find(|s| s.node == node).cloned();
        let by_id = |id: &str| all.iter().find(|s| s.id == id).cloned();
        match role {
            Role::Head | Role::Middle | Role::Tail => {
                let file = self.cluster.admin(&["stat", "/stalls/file"])?;
                let chain = file["chains"][0].as_u64().context("no chain of the file")?;
                let chains = self.cluster.admin(&["list-chains"])?;
                let chains = chains.as_array().context("no chains")?;
                let chain = chains.iter().find(|c| c["id"] == chain).context("its chain")?;
                let members = chain["members"].as_array().context("no members")?;
                let at = match role {
                    Role::Head => 0,
                    Role::Middle => members.len() / 2,
                    _ => members.len().saturating_sub(1),
                };
                let node = members.get(at).and_then(|m| m["node"].as_u64());
                node.and_then(by_node).context("the member's node")
            }
            Role::Mgmtd => {
                let node = self.cluster.primary_node()?;
                by_node(node).with_context(|| format!("no mgmtd with the node id {node}"))
            }
            Role::Meta => by_id("meta-2").context("there is one metadata service only"),
            Role::Engine => by_id("meta-1").context("no meta-1"),
        }
    }

    fn kill(&mut self, role: Role) -> Result<()> {
        self.cluster.wait_complete(WHOLE_BOUND)?;
        let target = self.victim(role)?;
        let callers = (role == Role::Meta).then(|| Callers::start(self)).transpose()?;
        let process = self.cluster.process(&target)?;
        self.flight.fault_begins(format!("kill of {role:?} {}", target.id));
        let began = Instant::now();
        while self.flight.in_flight() == 0 {
            if began.elapsed() > SETTLE_BOUND {
                bail!("no operation in flight");
            }
            std::thread::yield_now();
        }
        let (since, at) = (Instant::now(), self.flight.now());
        process.signal(Signal::KILL)?;
        gone(&self.cluster, std::slice::from_ref(&target))?;
        if role != Role::Engine {
            std::thread::sleep(AWAY);
            self.settle(at + AWAY.as_nanos() as u64 / 4 * 3)?;
        }
        let mut mid = self.flight.now();
        self.cluster.dev("start", &[&target.id])?;
        if role == Role::Engine {
            // It was never away on purpose: all that it cost counts.
            self.settle(self.flight.now())?;
            mid = self.flight.now();
        }
        self.cluster.wait_complete(WHOLE_BOUND)?;
        let end = self.flight.now();
        self.settle(end)?;
        drop(callers);
        let (stall, who) = self.flight.longest(at, mid);
        let kill = Kill {
            role,
            target: target.id,
            stall_s: stall.as_secs_f64(),
            who,
            return_s: self.flight.longest_begun(mid, end).as_secs_f64(),
            machine_s: self.machine.longest_since(since).as_secs_f64(),
        };
        self.flight.say(&format!(
            "{role:?} {}: {:.2} s ({}), {:.2} s when it came back; machine {:.2} s",
            kill.target, kill.stall_s, kill.who, kill.return_s, kill.machine_s
        ));
        if kill.machine_s > SET_ASIDE.as_secs_f64() {
            self.set_aside += 1;
        } else {
            self.kills.push(kill);
        }
        Ok(())
    }

    fn settle(&self, at: u64) -> Result<()> {
        let began = Instant::now();
        while !self.flight.settled(at) {
            if began.elapsed() > SETTLE_BOUND {
                bail!("an operation does not end: {:?}", self.flight.longest(0, at));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn report(self, plan: &Plan, mut failures: Vec<String>) -> Report {
        let p = self.flight.problems();
        failures.extend(p.wrong.into_iter().chain(p.errors).take(20));
        let of = |get: fn(&Kill) -> f64| {
            let one =
                |r: Role| Distribution::of(self.kills.iter().filter(|k| k.role == r).map(get));
            plan.roles.iter().map(|r| (*r, one(*r))).collect::<BTreeMap<_, _>>()
        };
        let (away, back) = (of(|k| k.stall_s), of(|k| k.return_s));
        for (role, d) in away.iter().chain(&back) {
            if d.worst > plan.bound.as_secs_f64() {
                failures.push(format!("a stall of {:.2} s at the kill of {role:?}", d.worst));
            }
            if d.count < plan.count {
                failures.push(format!("only {} kills of {role:?} count", d.count));
            }
        }
        Report {
            passed: failures.is_empty(),
            failures,
            away,
            back,
            set_aside: self.set_aside,
            kills: self.kills,
        }
    }
}

fn write_blocks(mut job: Job, l: &Ledger) {
    let path = job.dirs[0].join(&l.name);
    let Some(file) = job.op("open", || open(&path, true, false, true)) else { return };
    while job.think() {
        let at = job.random.below(BLOCKS);
        job.write(l, &file, at..at + 1);
    }
    job.flight.op(job.lane, "close", || drop(file));
}

fn read_blocks(mut job: Job, l: &Ledger) {
    let path = job.dirs[1].join(&l.name);
    let Some(file) = job.op("open", || open(&path, false, false, true)) else { return };
    while job.think() {
        let at = job.random.below(BLOCKS);
        job.read(l, &file, at..at + 1, "mount 2");
    }
    job.flight.op(job.lane, "close", || drop(file));
}

fn make_and_remove(mut job: Job, mount: usize) {
    let path = job.dirs[mount].join(format!("name-{mount}"));
    while job.think() {
        job.op("create", || std::fs::File::create_new(&path).map(drop));
        job.op("unlink", || std::fs::remove_file(&path));
    }
}

/// Clients that look a directory up, each at a metadata service that chance chose for it.
struct Callers {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Callers {
    fn start(bench: &Bench) -> Result<Self> {
        let stop: Arc<AtomicBool> = Arc::default();
        let (tell, ready) = std::sync::mpsc::channel();
        let mut threads = vec![];
        for i in 0..CALLERS {
            let caller = library::Caller {
                access: bench.access.clone(),
                flight: bench.flight.clone(),
                lane: LANES.len() + i,
                stop: stop.clone(),
            };
            let tell = tell.clone();
            threads.push(std::thread::spawn(move || library::look_up(caller, tell)));
        }
        for _ in 0..CALLERS {
            ready.recv_timeout(SETTLE_BOUND).context("a client cannot connect")?;
        }
        Ok(Self { stop, threads })
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for t in self.threads.drain(..) {
            let _ = t.join();
        }
    }
}
