//! One seed: a cluster, its clients, faults, and what must hold at the end.

use super::corners::{ALL_FLUSHES_FAILED, Corner};
use super::faults::Breaker;
use super::harness::{Cluster, Shape};
use super::lives::Lives;
use super::weights::Faults;
use super::workload::Shared;
use super::{certain, end, shared_names, small};
use glowfs_client::Client;
use glowfs_rt::Duration;
use glowfs_types::{Error, Result, Status};
use std::rc::Rc;

/// The file whose cells have one writer each.
pub(super) const SHARED_FILE: &str = "shared";
/// How long chains may take to serve again when nothing is broken any more, and clients to finish.
const RECOVERY: Duration = Duration::from_secs(180);

/// By then the manager has heard of a crash.
const NOTICED: Duration = Duration::from_secs(5);

/// In every other run with disks that hang a storage service waits so long for one, in ms: no longer than such a run may take, and longer than a process is stopped.
const IMPATIENT_MS: u64 = 5_000;

/// Bytes in a chunk, in some of the runs: several pieces of what is moved between nodes.
const LARGE_CHUNK_BYTES: u32 = 256 << 10;
/// How a service says that its disk failed.
const DISK_FAILED: &str = "(DiskFailed)";

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The cluster.
    pub shape: Shape,
    /// What goes wrong.
    pub faults: Faults,
    /// The only one of the faults of several steps; any, if it is none.
    pub corner: Option<Corner>,
    /// How long clients work, in simulated time.
    pub time: Duration,
    /// Cells of the shared file.
    pub cells: usize,
    /// The metadata engine runs as it is shipped: changes are answered before they are flushed.
    pub background: bool,
}

impl Plan {
    /// Disks that take seconds for everything are not to be taken for such as hang: the services of one run are patient with both, and those of the next one have no slow ones.
    ///
    /// In every third run the metadata engine flushes as it is shipped.
    fn of_seed(self, seed: u64) -> Self {
        self.flushing(seed).large(seed).scrubbing(seed).hanging(seed)
    }
    fn flushing(self, seed: u64) -> Self {
        Self { background: self.background || seed.is_multiple_of(3), ..self }
    }
    /// In every fourth run chunks are so large that writes, and what a resync or a repair moves, go to the files of chunks in pieces, and not through the log.
    fn large(self, seed: u64) -> Self {
        if seed % 4 != 1 {
            return self;
        }
        Self { shape: Shape { chunk_bytes: LARGE_CHUNK_BYTES, ..self.shape }, ..self }
    }
    /// In every fifth run disks are read through all the time.
    fn scrubbing(self, seed: u64) -> Self {
        if seed % 5 != 2 {
            return self;
        }
        Self { shape: Shape { scrub_interval_s: 1, ..self.shape }, ..self }
    }
    fn hanging(self, seed: u64) -> Self {
        if self.faults.hangs == 0 || !seed.is_multiple_of(2) {
            return self;
        }
        let shape = Shape { disk_stuck_ms: IMPATIENT_MS, ..self.shape };
        Self { shape, faults: Faults { slow_disks: 0, ..self.faults }, ..self }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            shape: Shape::default(),
            faults: Faults::ALL,
            corner: None,
            time: Duration::from_secs(10),
            cells: 256,
            background: false,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How long clients worked, in simulated seconds.
    pub seconds: u64,
    /// What was wrong; empty if all holds.
    pub problems: Vec<String>,
    /// What was broken when.
    pub log: Vec<String>,
    /// Operations of clients.
    pub ops: u64,
    /// Cells checked.
    pub checked: u64,
    /// Writes of contended cells that overlapped another one.
    pub contended: u64,
    /// Changes of shared names that overlapped another one.
    pub contended_names: u64,
    /// Equal runs have equal ones.
    pub trace_hash: u64,
    /// Simulated time.
    pub simulated: Duration,
}

impl Report {
    /// Panics with everything that helps, if something was wrong. `replay` is the command that runs this very seed again.
    pub fn expect_good(&self, replay: &str) {
        assert!(
            self.problems.is_empty(),
            "seed {} failed (replay: {replay}):\n{}\nfaults:\n{}",
            self.seed,
            self.problems.join("\n"),
            self.log.join("\n")
        );
    }
}

/// Runs one seed.
pub fn run_seed(seed: u64, plan: Plan) -> Report {
    let plan = plan.of_seed(seed);
    let cluster = if plan.background {
        Cluster::start_as_told(seed, plan.shape, Default::default())
    } else {
        Cluster::start(seed, plan.shape)
    };
    let shared = Shared::new(plan.shape.clients, plan.cells);
    shared.background.set(plan.background);
    shared.chunk_bytes.set(plan.shape.chunk_bytes);
    let mut report = Report { seed, seconds: plan.time.as_secs(), ..Report::default() };
    if let Err(e) = body(&cluster, &shared, plan, &mut report) {
        report.problems.push(e.to_string());
    }
    report.problems.extend(shared.all_problems());
    report.problems.extend(cluster.watch.problems());
    // A service whose disk was made to fail ends, and says so.
    let failures = cluster.failures.borrow();
    let fail = plan.faults.disks > 0 || plan.faults.corners > 0 || plan.faults.hangs > 0;
    let had_faults = |f: &str| {
        let disk = format!("the disk of {} ", f.split(':').next().unwrap_or_default());
        report.log.iter().any(|l| l.contains(&disk) || l.contains(ALL_FLUSHES_FAILED))
    };
    let expected = |f: &str| fail && f.contains(DISK_FAILED) && had_faults(f);
    let failures = failures.iter().filter(|f| !expected(f));
    let wrong: Vec<_> = failures.map(|f| format!("service failed: {f}")).collect();
    report.problems.extend(wrong);
    report.ops = shared.ops.get();
    report.checked = shared.registers.borrow().checked;
    report.trace_hash = cluster.world.trace_hash();
    report.simulated = cluster.world.now();
    report
}

fn body(cluster: &Cluster, shared: &Rc<Shared>, plan: Plan, report: &mut Report) -> Result<()> {
    cluster.bootstrap().map_err(|e| e.context("bootstrap"))?;
    let s = shared.clone();
    let prepare = |_, client: Rc<Client>| async move {
        small::prepare(&client).await?;
        shared_names::prepare(&client, &s).await?;
        certain::flush(&client).await
    };
    cluster
        .with_client(&cluster.clients[0].clone(), RECOVERY, prepare)
        .map_err(|e| e.context("the directories that all share"))?;
    let lives = Lives::new(cluster, shared);
    (0..lives.count()).for_each(|i| lives.begin(i));
    let known = lives.clone();
    let newest = Box::new(move || known.newest());
    let mut breaker =
        Breaker::new(cluster, plan.faults, plan.corner, shared.clone(), lives.clone(), newest);
    breaker.run(plan.time);
    breaker.mend_all();
    report.log = std::mem::take(&mut breaker.log);
    shared.stop.set(true);
    if !cluster.run_until(RECOVERY, || lives.working() == 0 && breaker.is_operated()) {
        let known = lives.newest().map(|info| end::chains(&info)).unwrap_or_default();
        return Err(Error::new(
            Status::TimedOut,
            format!(
                "{} clients did not finish within {RECOVERY:?} after everything was mended (all is ordered: {}); {known}",
                lives.working(),
                breaker.is_operated()
            ),
        ));
    }
    // Sessions end with their clients.
    for (node, client) in lives.take_clients() {
        cluster.world.run(&node, RECOVERY, async move { client.close().await });
    }
    report.contended_names = shared.names.borrow().contended() as u64;
    report.contended = shared.contended.borrow().cells.iter().map(|h| h.contended() as u64).sum();
    // Whoever crashed last may be back before anybody noticed; until its new life is known, or it counts as dead, the chains
    // only seem to be healthy.
    cluster.run_for(NOTICED);
    end::wait_healthy(cluster, RECOVERY)?;
    end::check(cluster, shared, &lives, RECOVERY)?;
    if cluster.watch.primaries() != 1 {
        return Err(Error::new(
            Status::Internal,
            format!("{} managers are primary in the end", cluster.watch.primaries()),
        ));
    }
    Ok(())
}
