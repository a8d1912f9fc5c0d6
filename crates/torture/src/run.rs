//! One run: cluster, workers, nemesis, and the final check, before and after everything was stopped and started.

use crate::cluster::{Cluster, Shape};
use crate::flight::Flight;
use crate::ledger::Ledger;
use crate::machine::Machine;
use crate::nemesis::{self, Kind, Nemesis};
use crate::random::Random;
use crate::replicas::{self, Compared};
use crate::report::{Evidence, Report};
use crate::scrub::{self, Expected, Logs};
use crate::site::Site;
use crate::space;
use crate::watchdog::{Patience, Watchdog};
use crate::work::{Files, Job, direct, doomed, library, log, names, open};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Blocks of one read of the final check.
const CHECK_BLOCKS: u64 = 256;
/// How long the files of the workers may take to be made.
const PREPARE_BOUND: Duration = Duration::from_secs(120);

/// A killed mount's session may live so long.
const SESSION_BOUND: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cluster.
    pub shape: Shape,
    /// How long faults strike.
    pub time: Duration,
    /// Chooses operations and faults.
    pub seed: u64,
    /// Which faults.
    pub faults: Vec<Kind>,
    /// The longest pause of a worker between two operations.
    pub think: Duration,
    /// Leave the cluster's directory when it failed.
    pub keep: bool,
    /// When to give up.
    pub patience: Patience,
}

/// The workers of a run.
pub struct Workers {
    /// What they do.
    pub flight: Arc<Flight>,
    /// Files with known content.
    pub files: Arc<Files>,
    threads: Vec<(String, JoinHandle<()>)>,
    names: Vec<(Job, Arc<Mutex<names::Known>>)>,
    template: Job,
}

/// Names of the workers, by lane; the last lane is the checker's.
const LANES: [&str; 11] = [
    "direct-0",
    "direct-1",
    "direct-2",
    "log-3",
    "log-4",
    "names-5",
    "names-6",
    "library-7",
    "reader-8",
    "doomed-9",
    "checker",
];
const CHECKER: usize = LANES.len() - 1;

impl Workers {
    /// Makes the files and starts the workers in a new directory `dir` of the mounts.
    pub fn start(
        cluster: &Cluster,
        flight: Arc<Flight>,
        dir: &str,
        seed: u64,
        think: Duration,
    ) -> Result<Self> {
        let files = Arc::new(Files::default());
        let dirs: [PathBuf; 2] = [cluster.mounts[0].join(dir), cluster.mounts[1].join(dir)];
        flight
            .op(CHECKER, "mkdir", || std::fs::create_dir(&dirs[0]))
            .with_context(|| format!("mkdir {}", dirs[0].display()))?;
        let job = |lane: usize| Job {
            lane,
            random: Random::new(seed, lane as u64),
            flight: flight.clone(),
            files: files.clone(),
            dirs: dirs.clone(),
            think,
        };
        let mut w = Self {
            flight: flight.clone(),
            files: files.clone(),
            threads: vec![],
            names: vec![],
            template: job(CHECKER),
        };
        let (mgmtd, token) = cluster.access()?;
        let access = library::Access { mgmtd, token, dir: dir.to_owned() };
        let (tell, ready) = channel();
        w.spawn(7, move |j| library::work(j, access, tell), job(7));
        for lane in 0..3 {
            let mut j = job(lane);
            let l = direct::prepare(&mut j).context("making the first file")?;
            w.spawn(lane, move |j| direct::work(j, l), j);
        }
        if ready.recv_timeout(PREPARE_BOUND) != Ok(true) {
            flight.stop.store(true, Ordering::SeqCst);
            bail!("the library worker cannot begin: {:?}", flight.problems().errors);
        }
        w.spawn(3, |j| log::work(j, 0), job(3));
        w.spawn(4, |j| log::work(j, 1), job(4));
        for lane in 5..7 {
            let known: Arc<Mutex<names::Known>> = Arc::default();
            let put = known.clone();
            w.names.push((job(CHECKER), known));
            if let Some((j, _)) = w.names.last_mut() {
                j.lane = lane;
            }
            w.spawn(
                lane,
                move |j| *put.lock().unwrap_or_else(|e| e.into_inner()) = names::work(j),
                job(lane),
            );
        }
        w.spawn(8, direct::read_others, job(8));
        Ok(w)
    }

    /// Starts the one that works in the mount that is killed.
    pub fn start_doomed(&mut self, cluster: &Cluster, dir: &str) {
        let job = Job { lane: doomed::LANE, ..self.template.clone() };
        let own = cluster.doomed.join(dir);
        self.spawn(doomed::LANE, move |j| doomed::work(j, &own), job);
    }

    fn spawn(&mut self, lane: usize, work: impl FnOnce(Job) + Send + 'static, job: Job) {
        let name = LANES.get(lane).copied().unwrap_or("?").to_owned();
        self.threads.push((name, std::thread::spawn(move || work(job))));
    }

    /// Ends them; says which panicked.
    pub fn stop(&mut self) -> Vec<String> {
        self.flight.stop.store(true, Ordering::SeqCst);
        let mut failures = vec![];
        for (name, t) in self.threads.drain(..) {
            if t.join().is_err() {
                failures.push(format!("worker {name} panicked"));
            }
        }
        failures
    }

    /// Checks all files and names through both mounts. Call when the workers have ended.
    pub fn verify(&self, when: &str) {
        for (dir, n) in self.template.dirs.iter().zip(1..) {
            let through = format!("mount {n}, {when}");
            self.flight.say(&format!("checking through {through}"));
            for l in self.files.all() {
                self.verify_file(&l, dir, &through);
            }
            for (job, known) in &self.names {
                let known = known.lock().unwrap_or_else(|e| e.into_inner());
                names::verify(job, &known, dir);
            }
        }
    }
    fn verify_file(&self, l: &Arc<Ledger>, dir: &Path, through: &str) {
        let job = &self.template;
        let path = dir.join(&l.name);
        let what = format!("open {} through {through}", l.name);
        let Some(file) = job.op(&what, || open(&path, false, false, true)) else { return };
        let mut at = 0;
        while at < l.len() {
            let end = (at + CHECK_BLOCKS).min(l.len());
            job.read(l, &file, at..end, through);
            at = end;
        }
    }
    /// The directory of all of it, through the first mount.
    pub fn dir(&self) -> &Path {
        &self.template.dirs[0]
    }
    /// Blocks acknowledged, and of these covered by an fsync.
    pub fn blocks(&self) -> (u64, u64) {
        let all = self.files.all();
        all.iter().map(|l| l.totals()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// Runs the plan.
pub fn run(plan: &Plan) -> Result<Report> {
    let began = Instant::now();
    let machine = Arc::new(Machine::watch());
    let site = Site::up(&plan.shape, &plan.faults, plan.keep)?;
    let result = under_load(plan, &site, &machine, began);
    site.close(result, |r| r.passed)
}

fn under_load(plan: &Plan, site: &Site, machine: &Arc<Machine>, began: Instant) -> Result<Report> {
    let cluster = &site.cluster;
    let flight = Arc::new(Flight::new(LANES.map(String::from)));
    let _watchdog = Watchdog::watch(flight.clone(), &plan.patience, site.view(), site.give_up());
    let mut workers = Workers::start(cluster, flight.clone(), "torture", plan.seed, plan.think)?;
    let doomed = plan.faults.contains(&Kind::Mount);
    if doomed {
        cluster.mount_doomed()?;
        workers.start_doomed(cluster, "torture");
    }
    let mut nemesis = Nemesis::new(
        cluster.clone(),
        flight.clone(),
        machine.clone(),
        plan.seed,
        plan.faults.clone(),
    );
    let mut failures = vec![];
    let whole = nemesis.rage(Instant::now() + plan.time);
    if let Err(e) = &whole {
        failures.push(format!("{e:#}"));
    }
    failures.extend(workers.stop());
    let mut compared = Compared::default();
    if whole.is_ok() {
        if doomed && let Err(e) = cluster.wait_mounts(3, SESSION_BOUND) {
            failures.push(format!("sessions of killed mounts stay: {e:#}"));
        }
        workers.verify("at the end");
        let expected = nemesis.expected();
        compared = all_replicas(cluster, &flight, CHECKER, "at the end", &expected, &mut failures);
        flight.say("checking the metadata");
        if let Err(e) = cluster.admin(&["--timeout", "60", "fsck"]) {
            failures.push(format!("the metadata: {e:#}"));
        }
        // Whatever was damaged on purpose is mended by now.
        flight.say("stopping and starting everything");
        let sound = Expected::Sound(Logs::now(&cluster.services()?));
        let down = cluster.down().inspect(|()| flight.say("everything is down"));
        match down.and_then(|()| cluster.up_again()) {
            Ok(()) => {
                let when = "after everything was stopped and started";
                workers.verify(when);
                all_replicas(cluster, &flight, CHECKER, when, &sound, &mut failures);
                // What failed may be looked at with what is there.
                if failures.is_empty()
                    && let Err(e) = space::comes_back(cluster, &flight, CHECKER, workers.dir())
                {
                    failures.push(format!("{e:#}"));
                }
            }
            Err(e) => failures.push(format!("stopping and starting everything: {e:#}")),
        }
    }
    Ok(Report::new(Evidence {
        seed: plan.seed,
        seconds: began.elapsed().as_secs_f64(),
        by_worker: flight.done_by_worker(),
        asked: plan.faults.clone(),
        strikes: nemesis.done,
        problems: flight.problems(),
        failures,
        blocks: workers.blocks(),
        compared,
        machine_s: machine.longest().as_secs_f64(),
    }))
}

/// Has all bytes at rest scrubbed, and compares all replicas of all chunks, as an operation of `lane`.
pub fn all_replicas(
    cluster: &Cluster,
    flight: &Flight,
    lane: usize,
    when: &str,
    expected: &Expected,
    failures: &mut Vec<String>,
) -> Compared {
    flight.say(&format!("scrubbing and comparing all replicas {when}"));
    // Who was started again may still be on its way back into its chains.
    let found = cluster.wait_complete(nemesis::WHOLE_BOUND).and_then(|_| {
        // Not an operation: it has bounds of its own, and may go on for longer than any.
        let scrubbed = scrub::everything(cluster, flight, expected)?;
        let (mgmtd, token) = cluster.access()?;
        let compared = flight.op(lane, "comparing replicas", || {
            let access = library::Access { mgmtd, token, dir: String::new() };
            replicas::compare(access, replicas::SETTLE_BOUND)
        })?;
        let compared = Compared { scrubbed, ..compared };
        flight.say(&compared.text());
        Ok(compared)
    });
    match found {
        Ok(compared) => {
            failures.extend(compared.failures(when));
            compared
        }
        Err(e) => {
            failures.push(format!("comparing all replicas {when}: {e:#}"));
            Compared::default()
        }
    }
}
