//! TCP between two network namespaces, as between two machines: a storage service whose disk is memory in the one, the client library in
//! the other; a bare server of messages in the storage's place; and beside them, by turns, one stream of iperf3 between the same two.
//!
//! What a cable can do changes with whatever else the machine does, so only figures of one turn are held against each other.

use super::Given;
use super::client::{FileLoad, with_file};
use super::transport::{call, mirror};
use crate::cluster::Cluster;
use crate::cpu::Processes;
use crate::drive::{Plan, drive};
use crate::row::Row;
use anyhow::{Context, Result, anyhow, bail};
use glowfs_net::{Bulk, Conn, Connector, ConnectorOptions, NoCalls};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::hello::Hello;
use serde_json::Value;
use std::cell::Cell;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often each load has its turn; the middle one counts.
const TURNS: usize = 3;
/// (what, bytes, depth); `read` brings bytes from the other namespace, `write` takes them there.
const LOADS: [(&str, u64, u32); 6] = [
    ("read", 1 << 20, 8),
    ("write", 1 << 20, 8),
    ("read", 4 << 10, 1),
    ("read", 4 << 10, 32),
    ("write", 4 << 10, 32),
    ("echo", 64, 1),
];
/// Bulk beside a ping: bytes of each, and how many at a time.
const BULK_BYTES: u64 = 1 << 20;
const BULK_DEPTH: usize = 16;
/// How long a program of ours may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);
const IPERF_PORT: &str = "5201";

/// The other namespace.
#[derive(Clone)]
struct Other {
    name: String,
    address: String,
    storage: u32,
}

/// See the module. The limit is the stream of iperf3 in the same turn.
pub fn network(cluster: &Cluster, given: Given) -> Result<Vec<Row>> {
    let there = other(cluster)?;
    let iperf = Iperf::start(&there)?;
    let access = cluster.access.clone();
    let work = move |rt: Rt| async move {
        let bare = bare(&rt, &there).await?;
        let storage = Processes(vec![there.storage]);
        let measure =
            async |file: FileLoad| turns(&rt, &given, &bare, &file, &storage, &iperf).await;
        with_file(&rt, &access, given.size, measure).await
    };
    real::run(work)
}

/// Whether there is an iperf3.
pub fn can_be_measured() -> bool {
    Command::new("iperf3").arg("--version").output().is_ok()
}

/// The namespace of the storage.
fn other(cluster: &Cluster) -> Result<Other> {
    let status = cluster.status()?;
    let storage = status.services.into_iter().find(|s| s.role == "storage");
    let storage = storage.context("a cluster without storage")?;
    let (address, _) = storage.address.split_once(':').context("an address without port")?;
    Ok(Other {
        name: storage.namespace.context("a cluster without namespaces")?,
        address: address.to_owned(),
        storage: storage.pid.context("the storage ended")?,
    })
}

async fn turns(
    rt: &Rt,
    given: &Given,
    bare: &Rc<Conn>,
    file: &FileLoad,
    storage: &Processes,
    iperf: &Iperf,
) -> Result<Vec<Row>> {
    let mut rows = vec![];
    for (what, bytes, depth) in LOADS {
        let (mut streams, mut nets, mut storages) = (vec![], vec![], vec![]);
        for _ in 0..TURNS {
            // One stream has no size of operations: it is held against large ones.
            let mut limit = None;
            if bytes >= 1 << 20 {
                let stream = iperf.stream(&given.plan("network", what, "iperf3", bytes, 1))?;
                limit = Some(stream.ops_per_second);
                streams.push(stream);
            }
            let plan = given.plan("network", what, "net", bytes, depth);
            let mut net = drive(rt, &plan, bare_load(rt, bare, what, bytes)).await?;
            net.limit_ops_per_second = limit;
            nets.push(net);
            if what != "echo" {
                let mut plan = given.plan("network", what, "storage", bytes, depth);
                plan.who = storage.clone();
                let mut row = drive(rt, &plan, file.operation(rt, what, bytes)).await?;
                row.limit_ops_per_second = limit;
                storages.push(row);
            }
        }
        for row in [streams, nets, storages].into_iter().filter_map(middle) {
            given.done(&mut rows, row);
        }
    }
    rows.push(beside_bulk(rt, given, bare).await?);
    given.progress.row(&rows[rows.len() - 1]);
    Ok(rows)
}

/// A ping at a time on a connection that is full of bulk both ways.
async fn beside_bulk(rt: &Rt, given: &Given, bare: &Rc<Conn>) -> Result<Row> {
    let over = Rc::new(Cell::new(false));
    let bulk = ["read", "write"].map(|what| Rc::new(bare_load(rt, bare, what, BULK_BYTES)));
    let lanes: Vec<_> = (0..BULK_DEPTH)
        .map(|lane| {
            let (over, bulk) = (over.clone(), bulk[lane % 2].clone());
            rt.spawn(async move {
                while !over.get() {
                    bulk(0).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    let plan = given.plan("network", "echo", "beside bulk", 64, 1);
    let mut row = drive(rt, &plan, bare_load(rt, bare, "echo", 64)).await?;
    // Most of it is that of the bulk.
    row.cpu_us_per_op = None;
    over.set(true);
    for lane in lanes {
        lane.await?;
    }
    Ok(row)
}

/// The one that as many are faster than as are slower; of what it reached of the limit, where there is one.
fn middle(mut turns: Vec<Row>) -> Option<Row> {
    let by = |r: &Row| r.of_limit().unwrap_or(r.ops_per_second);
    turns.sort_by(|a, b| by(a).total_cmp(&by(b)));
    let at = turns.len() / 2;
    (!turns.is_empty()).then(|| turns.swap_remove(at))
}

/// A connection to a server of messages over there, on a thread of this process: so its CPU time is in ours.
async fn bare(rt: &Rt, there: &Other) -> Result<Rc<Conn>> {
    let namespace = std::fs::File::open(Path::new("/run/netns").join(&there.name))?;
    let listen = format!("{}:0", there.address).parse().map_err(|e| anyhow!("{e}"))?;
    let addresses = mirror(vec![listen], Some(namespace.into()))?;
    let options = ConnectorOptions::from_names(&["tcp".to_owned()]).map_err(|e| anyhow!("{e}"))?;
    let connector = Connector::with_options(rt, Hello::default(), Rc::new(NoCalls), options);
    let conn = connector.connect(&addresses).await.context("connecting across the namespaces");
    // Dropping it would end its connections.
    std::mem::forget(connector);
    conn
}

fn bare_load(
    rt: &Rt,
    conn: &Rc<Conn>,
    what: &'static str,
    bytes: u64,
) -> impl Fn(u64) -> std::pin::Pin<Box<dyn Future<Output = Result<()>>>> + 'static {
    let payload = rt.alloc(bytes as usize).freeze();
    let (rt, conn) = (rt.clone(), conn.clone());
    move |_| {
        let bulk = match what {
            "echo" => Bulk::None,
            "write" => Bulk::Send(vec![payload.clone()]),
            _ => Bulk::Recv(rt.alloc(bytes as usize)),
        };
        Box::pin(call(conn.clone(), bulk))
    }
}

/// `iperf3 --server` over there; ended with the value.
struct Iperf {
    server: Child,
    address: String,
}

impl Iperf {
    fn start(there: &Other) -> Result<Self> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", there.name));
        command.args(["iperf3", "--server", "--port", IPERF_PORT]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = command.spawn().context("running nsenter (Debian: util-linux)")?;
        let mut iperf = Self { server, address: there.address.clone() };
        let end = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(format!("{}:{IPERF_PORT}", there.address)).is_err() {
            if iperf.server.try_wait()?.is_some() || Instant::now() > end {
                bail!("iperf3 does not listen (Debian: apt-get install iperf3)");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(iperf)
    }

    /// One stream, for as long as the plan says; the CPU time of both ends, for each operation's worth of bytes.
    fn stream(&self, plan: &Plan) -> Result<Row> {
        let mut command = Command::new("iperf3");
        let time = format!("{:.2}", plan.time.as_secs_f64().max(1.0).ceil());
        command.args(["--client", &self.address, "--port", IPERF_PORT, "--json", "--time", &time]);
        if plan.what == "read" {
            command.arg("--reverse");
        }
        let out = command.stdin(Stdio::null()).output().context("running iperf3")?;
        let end: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        let end = &end["end"];
        let bits = end["sum_received"]["bits_per_second"].as_f64();
        let Some(bits) = bits else {
            bail!("iperf3 said: {}", String::from_utf8_lossy(&out.stdout).trim())
        };
        let share =
            |end_of: &str| end["cpu_utilization_percent"][end_of].as_f64().unwrap_or(0.0) / 100.0;
        let rate = bits / 8.0 / plan.bytes as f64;
        let mut row = plan.row(plan.time, 0.0, &Default::default());
        row.ops_per_second = rate;
        row.bytes_per_second = bits / 8.0;
        row.cpu_us_per_op = Some((share("host_total") + share("remote_total")) * 1e6 / rate);
        Ok(row)
    }
}

impl Drop for Iperf {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
