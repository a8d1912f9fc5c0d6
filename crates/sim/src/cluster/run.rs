//! One seed: a cluster, its clients, faults, and what must hold at the end.

use super::faults::{Breaker, Faults};
use super::harness::{Cluster, Shape};
use super::registers::CELL_BYTES;
use super::workload::{self, Shared, open_or_make, own_file, shared_file};
use glowfs_client::{Client, OpenFile};
use glowfs_rt::Duration;
use glowfs_types::layout::FILE_BYTES_MAX;
use glowfs_types::routing::{ChainInfo, RoutingInfo};
use glowfs_types::{ChunkId, Error, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SHARED_FILE: &str = "shared";
/// How long chains may take to serve again when nothing is broken any more, and clients to finish.
const RECOVERY: Duration = Duration::from_secs(180);

/// By then the manager has heard of a crash.
const NOTICED: Duration = Duration::from_secs(5);

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The cluster.
    pub shape: Shape,
    /// What goes wrong.
    pub faults: Faults,
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
            time: Duration::from_secs(15),
            cells: 256,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What was wrong; empty if all holds.
    pub problems: Vec<String>,
    /// What was broken when.
    pub log: Vec<String>,
    /// Operations of clients.
    pub ops: u64,
    /// Cells checked.
    pub checked: u64,
    /// Equal runs have equal ones.
    pub trace_hash: u64,
    /// Simulated time.
    pub simulated: Duration,
}

impl Report {
    /// Panics with everything that helps, if something was wrong.
    pub fn expect_good(&self) {
        assert!(
            self.problems.is_empty(),
            "seed {} (replay: GLOWFS_SIM_SEED={} GLOWFS_SIM_SEEDS=1):\n{}\nfaults:\n{}",
            self.seed,
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
    let mut report = Report { seed, ..Report::default() };
    if let Err(e) = body(&cluster, &shared, plan, &mut report) {
        report.problems.push(e.to_string());
    }
    report.problems.extend(shared.all_problems());
    report
        .problems
        .extend(cluster.failures.borrow().iter().map(|f| format!("service failed: {f}")));
    report.ops = shared.ops.get();
    report.checked = shared.registers.borrow().checked;
    report.trace_hash = cluster.world.trace_hash();
    report.simulated = cluster.world.now();
    report
}

fn body(cluster: &Cluster, shared: &Rc<Shared>, plan: Plan, report: &mut Report) -> Result<()> {
    cluster.bootstrap().map_err(|e| e.context("bootstrap"))?;
    // One client after the other, so that the shared file is made once.
    let working = Rc::new(Cell::new(0));
    let clients: Rc<RefCell<Vec<Rc<Client>>>> = Rc::default();
    for (i, node) in cluster.clients.iter().enumerate() {
        let (rt, config) = (node.rt(), cluster.client_config());
        let (shared, working, clients) = (shared.clone(), working.clone(), clients.clone());
        working.set(working.get() + 2);
        node.rt().spawn_detached(async move {
            let client = match Client::connect(&rt, config).await {
                Ok(c) => c,
                Err(e) => {
                    working.set(working.get() - 2);
                    return shared.problem(format!("client {i}: {e}"));
                }
            };
            clients.borrow_mut().push(client.clone());
            let done = working.clone();
            let (r, c, s) = (rt.clone(), client.clone(), shared.clone());
            rt.spawn_detached(async move {
                own_file(r, c, s, format!("own{i}")).await;
                done.set(done.get() - 1);
            });
            shared_file(rt, client, shared, SHARED_FILE.into(), i).await;
            working.set(working.get() - 1);
        });
    }
    let mut breaker = Breaker::new(cluster, plan.faults);
    let watched = clients.clone();
    breaker.run(plan.time, move || watched.borrow().first().map(|c| c.routing()));
    breaker.mend_all();
    report.log = std::mem::take(&mut breaker.log);
    shared.stop.set(true);
    if !cluster.world.run_until(RECOVERY, || working.get() == 0) {
        let known = clients.borrow().first().map(|c| chains(&c.routing())).unwrap_or_default();
        return Err(Error::new(
            Status::TimedOut,
            format!(
                "{} of the clients' tasks did not end within {RECOVERY:?} after everything was mended; {known}",
                working.get()
            ),
        ));
    }
    // Whoever crashed last may be back before anybody noticed; until its new life is known, or it counts as dead, the chains
    // only seem to be healthy.
    cluster.world.run_for(NOTICED);
    cluster.wait_healthy(RECOVERY).map_err(|e| e.context("chains must serve in full again"))?;
    let (shared, stripe_end) = (shared.clone(), plan.cells as u64 * CELL_BYTES);
    let own = plan.shape.clients;
    cluster.with_client(&cluster.clients[0].clone(), RECOVERY, move |rt, client| async move {
        let (file, _) = open_or_make(&client, SHARED_FILE).await?;
        let cells = shared.registers.borrow().len() as u64;
        workload::read_cells(&rt, &file, &shared, 0, cells, "the last reader").await?;
        compare_replicas(&client, &file, stripe_end, &shared).await?;
        for i in 0..own {
            let (file, reply) = open_or_make(&client, &format!("own{i}")).await?;
            compare_replicas(&client, &file, reply.attr.len, &shared).await?;
        }
        Ok(())
    })
}

/// The chains in words.
fn chains(info: &RoutingInfo) -> String {
    let chain = |c: &ChainInfo| {
        let members = c.members.iter().map(|m| {
            let local =
                info.targets.get(&m.target).map(|t| t.local.to_string()).unwrap_or_default();
            format!("node {} {} ({local})", m.node, m.state)
        });
        let members: Vec<String> = members.collect();
        format!(
            "\n  chain {} version {} activated {}: {}",
            c.id,
            c.version,
            c.activated,
            members.join(", ")
        )
    };
    format!(
        "routing info version {}:{}",
        info.version,
        info.chains.values().map(chain).collect::<String>()
    )
}

/// Every serving replica has the same of every chunk, with nothing pending.
async fn compare_replicas(
    client: &Rc<Client>,
    file: &OpenFile,
    len: u64,
    shared: &Shared,
) -> Result<()> {
    let io = client.chunk_io();
    let info = client.routing();
    let layout = file.layout();
    let table = info
        .table(layout.table, layout.table_version)
        .ok_or_else(|| Error::new(Status::Internal, "the table of the file is gone"))?;
    for extent in layout.extents(0, len.min(FILE_BYTES_MAX)) {
        let chain = table.chains[layout.position(extent.index, table.chains.len() as u32) as usize];
        let chunk = ChunkId { volume: file.volume(), data: file.data(), index: extent.index };
        let mut first = None;
        for m in info.chains[&chain].serving() {
            // A target that was brought up to date forgets removed chunks; the others keep their tombstones.
            let have = io.query_chunk(chain, m.target, chunk).await?;
            let have = have.filter(|c| c.len > 0 || c.pending != c.committed);
            if let Some(c) = &have
                && c.pending != c.committed
            {
                shared.problem(format!(
                    "chunk {chunk} on target {}: {c:?} is still pending",
                    m.target
                ));
            }
            match &first {
                None => first = Some((m.target, have)),
                Some((other, theirs)) if *theirs != have => shared.problem(format!(
                    "chunk {chunk} differs: target {other} has {theirs:?}, target {} has {have:?}",
                    m.target
                )),
                Some(_) => {}
            }
        }
    }
    Ok(())
}
