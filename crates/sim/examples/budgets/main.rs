//! One kind of operation, over and over, for `scripts/budgets` to count the instructions of: the shipped client and services (three replicas) in one
//! process, over simulated disks and net, so that it is the same each time. `budgets KIND COUNT`; the difference between two counts is
//! what the operations cost in all processes together, without the kernel.

mod create;
mod ring;
mod store;

use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::data::{Update, UpdateHead, update};
use glowfs_types::{Error, Result, Status};
use std::hint::black_box;
use std::rc::Rc;

/// Bytes of one operation.
const OP_BYTES: usize = 4096;
/// Places that are written and read.
const PLACES: u64 = 256;
/// Operations on their way.
const DEPTH: u64 = 16;
/// What everything may take, in simulated time.
const LIMIT: Duration = Duration::from_secs(3600);

const SHAPE: Shape = Shape { storages: 3, replicas: 3, chains: 3, stripe: 3, ..Shape::SINGLE };

fn main() -> std::process::ExitCode {
    let mut args = std::env::args().skip(1);
    let kind = args.next().unwrap_or_default();
    let count = args.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    match run(&kind, count) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{kind}: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(kind: &str, count: u64) -> Result<()> {
    match kind {
        "checksum" => (0..count).for_each(|_| {
            black_box(crc32c(black_box(&[7; OP_BYTES])));
        }),
        "update" => (0..count).for_each(|_| message()),
        "ring" => ring::rounds(count)?,
        "store-read" => store::on_a_disk(false, count)?,
        "store-write" => store::on_a_disk(true, count)?,
        "create" => create::in_process(count)?,
        "write" | "read" | "fsync" => on_a_cluster(kind, count)?,
        _ => {
            let kinds =
                "checksum, update, ring, store-read, store-write, create, read, write, fsync";
            return Err(Error::new(Status::InvalidArgument, format!("choose from {kinds}")));
        }
    }
    Ok(())
}

/// The message of a write, encoded and parsed.
fn message() {
    let head = UpdateHead {
        kind: update::WRITE,
        len: (OP_BYTES as u32).into(),
        chunk_bytes: (1 << 20).into(),
        ..UpdateHead::default()
    };
    let body = Update::encode(black_box(&head), &[1]);
    black_box(Update::parse(black_box(&body)).is_ok());
}

fn on_a_cluster(kind: &str, count: u64) -> Result<()> {
    let cluster = Cluster::start(1, SHAPE);
    cluster.bootstrap()?;
    let kind = kind.to_owned();
    let node = &cluster.clients[0];
    let (rt, config) = (node.rt(), cluster.client_config());
    let outcome = Rc::new(std::cell::RefCell::new(None));
    let (out, inner) = (outcome.clone(), rt.clone());
    rt.spawn_detached(async move {
        *out.borrow_mut() = Some(operations(&inner, config, &kind, count).await);
    });
    cluster.world.run_until(LIMIT, || outcome.borrow().is_some());
    outcome.take().unwrap_or_else(|| Err(timed_out()))
}

fn timed_out() -> Error {
    Error::new(Status::TimedOut, "it did not end")
}

async fn operations(
    rt: &Rt,
    config: glowfs_client::ClientConfig,
    kind: &str,
    count: u64,
) -> Result<()> {
    let client = glowfs_client::Client::connect(rt, config).await?;
    let (file, _) = open_or_make(&client, "budget").await?;
    file.write(0, Buf::from_vec(vec![1; OP_BYTES * PLACES as usize])).await?;
    let lanes: Vec<_> = (0..DEPTH)
        .map(|lane| {
            let (rt, file, kind) = (rt.clone(), file.clone(), kind.to_owned());
            rt.clone().spawn(async move {
                for i in (lane..count).step_by(DEPTH as usize) {
                    let place = i * 37 % PLACES * OP_BYTES as u64;
                    if kind == "read" {
                        file.read(place, rt.alloc(OP_BYTES)).await.0?;
                        continue;
                    }
                    let mut bytes = rt.alloc(OP_BYTES);
                    bytes.fill(i as u8);
                    file.write(place, bytes.freeze()).await?;
                    if kind == "fsync" {
                        file.flush().await?;
                    }
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    for lane in lanes {
        lane.await?;
    }
    Ok(())
}
