//! One seed: a cluster, its clients, faults, and what must hold at the end.

use super::corners::Corner;
use super::faults::{Breaker, Faults};
use super::harness::{Cluster, Shape};
use super::own_file::own_file;
use super::workload::{Shared, shared_file};
use super::{contended, end, names, small};
use glowfs_client::Client;
use glowfs_rt::sync::join_all;
use glowfs_rt::{BoxFuture, Duration};
use glowfs_types::{Error, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The file whose cells have one writer each.
pub(super) const SHARED_FILE: &str = "shared";
/// How long chains may take to serve again when nothing is broken any more, and clients to finish.
const RECOVERY: Duration = Duration::from_secs(180);

/// By then the manager has heard of a crash.
const NOTICED: Duration = Duration::from_secs(5);

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
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            shape: Shape::default(),
            faults: Faults::ALL,
            corner: None,
            time: Duration::from_secs(10),
            cells: 256,
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
    let cluster = Cluster::start(seed, plan.shape);
    let shared = Shared::new(plan.shape.clients, plan.cells);
    let mut report = Report { seed, seconds: plan.time.as_secs(), ..Report::default() };
    if let Err(e) = body(&cluster, &shared, plan, &mut report) {
        report.problems.push(e.to_string());
    }
    report.problems.extend(shared.all_problems());
    report.problems.extend(cluster.watch.problems());
    // A service whose disk was made to fail ends, and says so.
    let failures = cluster.failures.borrow();
    let fail = plan.faults.disks > 0 || plan.faults.corners > 0;
    let failures = failures.iter().filter(|f| !(fail && f.contains(DISK_FAILED)));
    report.problems.extend(failures.map(|f| format!("service failed: {f}")));
    report.ops = shared.ops.get();
    report.checked = shared.registers.borrow().checked;
    report.trace_hash = cluster.world.trace_hash();
    report.simulated = cluster.world.now();
    report
}

fn body(cluster: &Cluster, shared: &Rc<Shared>, plan: Plan, report: &mut Report) -> Result<()> {
    cluster.bootstrap().map_err(|e| e.context("bootstrap"))?;
    let prepare = |_, client: Rc<Client>| async move { small::prepare(&client).await };
    cluster
        .with_client(&cluster.clients[0].clone(), RECOVERY, prepare)
        .map_err(|e| e.context("the directory of small files"))?;
    let working = Rc::new(Cell::new(0));
    let clients: Rc<RefCell<Vec<Rc<Client>>>> = Rc::default();
    for (i, node) in cluster.clients.iter().enumerate() {
        let (rt, config) = (node.rt(), cluster.client_config());
        let (shared, working, clients) = (shared.clone(), working.clone(), clients.clone());
        working.set(working.get() + 1);
        node.rt().spawn_detached(async move {
            match Client::connect(&rt, config).await {
                Ok(client) => {
                    clients.borrow_mut().push(client.clone());
                    let work: Vec<BoxFuture<()>> = vec![
                        Box::pin(own_file(rt.clone(), client.clone(), shared.clone(), own_name(i))),
                        Box::pin(names::work(
                            rt.clone(),
                            client.clone(),
                            shared.clone(),
                            format!("dir{i}"),
                        )),
                        Box::pin(contended::work(rt.clone(), client.clone(), shared.clone())),
                        Box::pin(small::contended(rt.clone(), client.clone(), shared.clone())),
                        Box::pin(small::own(
                            rt.clone(),
                            client.clone(),
                            shared.clone(),
                            own_name(i),
                        )),
                        Box::pin(shared_file(rt, client, shared, SHARED_FILE.into(), i)),
                    ];
                    join_all(work).await;
                }
                Err(e) => shared.problem(format!("client {i}: {e}")),
            }
            working.set(working.get() - 1);
        });
    }
    let (watched, watch) = (clients.clone(), cluster.watch.clone());
    let newest = move || {
        let all = watched.borrow();
        for (i, c) in all.iter().enumerate() {
            watch.routing(&format!("client {i}"), &c.routing());
        }
        // The one who knows most: an old view of a client that is cut off would hide what is broken.
        let known = all.iter().map(|c| c.routing());
        known.chain(watch.storages_routing()).max_by_key(|r| r.version)
    };
    let mut breaker =
        Breaker::new(cluster, plan.faults, plan.corner, shared.clone(), Box::new(newest));
    breaker.run(plan.time);
    breaker.mend_all();
    report.log = std::mem::take(&mut breaker.log);
    shared.stop.set(true);
    if !cluster.run_until(RECOVERY, || working.get() == 0) {
        let known = clients.borrow().first().map(|c| end::chains(&c.routing())).unwrap_or_default();
        return Err(Error::new(
            Status::TimedOut,
            format!(
                "{} clients did not finish within {RECOVERY:?} after everything was mended; {known}",
                working.get()
            ),
        ));
    }
    // Sessions end with their clients.
    let leaving = clients.take();
    for (client, node) in leaving.into_iter().zip(&cluster.clients) {
        cluster.world.run(node, RECOVERY, async move { client.close().await });
    }
    report.contended = shared.contended.borrow().cells.iter().map(|h| h.contended() as u64).sum();
    // Whoever crashed last may be back before anybody noticed; until its new life is known, or it counts as dead, the chains
    // only seem to be healthy.
    cluster.run_for(NOTICED);
    end::wait_healthy(cluster, RECOVERY)?;
    let own = (0..plan.shape.clients).map(own_name).collect();
    end::check(cluster, shared, own, RECOVERY)?;
    if cluster.watch.primaries() != 1 {
        return Err(Error::new(
            Status::Internal,
            format!("{} managers are primary in the end", cluster.watch.primaries()),
        ));
    }
    Ok(())
}

fn own_name(client: usize) -> String {
    format!("own{client}")
}
