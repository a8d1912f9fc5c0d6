//! Measures one store: `cargo run --release -p glowfs-chunkstore --example bench -- DIR [SECONDS]`.

use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::{Buf, Rt};
use glowfs_types::checksum::piece_checksums;
use glowfs_types::{ChunkId, ChunkVersion, ClusterId, DataId, NodeId, TargetId, VolumeId};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

const T: TargetId = TargetId(1);
const CHUNKS: u64 = 1024;
const CHUNK: u32 = 1 << 20;

/// User and system time of the process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn id(index: u64) -> ChunkId {
    ChunkId { volume: VolumeId(1), data: DataId(1), index }
}

struct Measure {
    name: &'static str,
    depth: u64,
    bytes: usize,
}

/// Runs `op` in `depth` tasks until the time is over; prints the rates.
async fn measure<F: Future<Output = ()> + 'static>(
    rt: &Rt,
    m: Measure,
    time: Duration,
    op: impl Fn(u64) -> F + 'static,
) {
    let op = Rc::new(op);
    let next = Rc::new(Cell::new(0u64));
    let (start, cpu0) = (Instant::now(), cpu());
    let tasks: Vec<_> = (0..m.depth)
        .map(|_| {
            let (op, next) = (op.clone(), next.clone());
            rt.spawn(async move {
                while start.elapsed() < time {
                    let n = next.get();
                    next.set(n + 1);
                    op(n).await;
                }
            })
        })
        .collect();
    for t in tasks {
        t.await;
    }
    let (wall, cpu) = (start.elapsed().as_secs_f64(), (cpu() - cpu0).as_secs_f64());
    let ops = next.get() as f64;
    println!(
        "{:<28} qd {:<3} {:>9.0} op/s {:>8.3} GB/s {:>8.1} us CPU/op {:>6.2} s CPU/GiB",
        m.name,
        m.depth,
        ops / wall,
        ops * m.bytes as f64 / wall / 1e9,
        cpu / ops * 1e6,
        cpu / (ops * m.bytes as f64) * f64::from(1 << 30),
    );
}

fn request(
    rt: &Rt,
    store: &Store,
    c: u64,
    offset: u32,
    len: usize,
    data: Option<Buf>,
) -> StageRequest {
    let payload = data.unwrap_or_else(|| {
        let mut b = rt.alloc(len);
        b.fill(c as u8);
        b.freeze()
    });
    let mut crcs = Vec::new();
    piece_checksums(offset, &payload, &mut crcs);
    let newest = store.chunk(T, id(c)).map_or(ChunkVersion(0), |s| s.pending);
    StageRequest {
        anew: false,
        any_version: false,
        damaged: false,
        chunk: id(c),
        version: newest.next(),
        kind: StageKind::Write,
        offset,
        len: 0,
        payload,
        crcs,
        chunk_bytes: CHUNK,
        channel: None,
        commit: true,
        flush: false,
    }
}

async fn bench(rt: Rt, dir: String, seconds: u64) {
    let time = Duration::from_secs(seconds);
    let start = Instant::now();
    let config = StoreConfig::new(ClusterId(1), NodeId(1));
    let store =
        Store::open(&rt, rt.open_dir(dir.as_ref()).expect("dir"), config).await.expect("open");
    println!("open: {:?}", start.elapsed());
    store.create_target(T).await.expect("target");
    let mut data = rt.alloc(CHUNK as usize);
    data.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 4096) as u8);
    let data = data.freeze();
    // One writer for each chunk at a time.
    let busy: Rc<RefCell<HashSet<u64>>> = Rc::default();

    let (r, s, d) = (rt.clone(), store.clone(), data.clone());
    let m = Measure { name: "1 MiB write", depth: 4, bytes: CHUNK as usize };
    measure(&rt, m, time, move |n| {
        let (r, s, d) = (r.clone(), s.clone(), d.clone());
        async move {
            let q = request(&r, &s, n % CHUNKS, 0, CHUNK as usize, Some(d));
            s.stage(T, q).await.expect("write");
        }
    })
    .await;
    for c in 0..CHUNKS {
        if store.chunk(T, id(c)).is_none() {
            let q = request(&rt, &store, c, 0, CHUNK as usize, Some(data.clone()));
            store.stage(T, q).await.expect("fill");
        }
    }
    let each = store.metadata_bytes() / store.chunk_count(T).max(1);
    println!("metadata: {each} bytes a chunk of 1 MiB");
    let (r, s) = (rt.clone(), store.clone());
    let m = Measure { name: "1 MiB read", depth: 4, bytes: CHUNK as usize };
    measure(&rt, m, time, move |n| {
        let (r, s) = (r.clone(), s.clone());
        async move {
            let c = n * 379 % CHUNKS;
            s.read(T, id(c), 0, r.alloc(CHUNK as usize)).await.0.expect("read");
        }
    })
    .await;
    for (name, bytes, commit) in
        [("4 KiB random write", 4096, true), ("4 KiB write + commit", 4096, false)]
    {
        let (r, s, b) = (rt.clone(), store.clone(), busy.clone());
        let m = Measure { name, depth: 16, bytes };
        measure(&rt, m, time * 2, move |_| {
            let (r, s, b) = (r.clone(), s.clone(), b.clone());
            async move {
                let c = loop {
                    let c = r.random_below(CHUNKS);
                    if b.borrow_mut().insert(c) {
                        break c;
                    }
                };
                let offset = (r.random_below(u64::from(CHUNK) / 4096) * 4096) as u32;
                let mut q = request(&r, &s, c, offset, bytes, None);
                q.commit = commit;
                let v = q.version;
                s.stage(T, q).await.expect("write");
                if !commit {
                    s.commit(T, id(c), v).await.expect("commit");
                }
                b.borrow_mut().remove(&c);
            }
        })
        .await;
    }
    let (r, s) = (rt.clone(), store.clone());
    let m = Measure { name: "4 KiB random read", depth: 16, bytes: 4096 };
    measure(&rt, m, time, move |_| {
        let (r, s) = (r.clone(), s.clone());
        async move {
            let c = r.random_below(CHUNKS);
            let offset = (r.random_below(u64::from(CHUNK) / 4096) * 4096) as u32;
            s.read(T, id(c), offset, r.alloc(4096)).await.0.expect("read");
        }
    })
    .await;
    let (r, s, b) = (rt.clone(), store.clone(), busy);
    let m = Measure { name: "4 KiB random write, flushed", depth: 16, bytes: 4096 };
    measure(&rt, m, time, move |_| {
        let (r, s, b) = (r.clone(), s.clone(), b.clone());
        async move {
            let c = loop {
                let c = r.random_below(CHUNKS);
                if b.borrow_mut().insert(c) {
                    break c;
                }
            };
            let mut q = request(&r, &s, c, 0, 4096, None);
            q.flush = true;
            s.stage(T, q).await.expect("write");
            b.borrow_mut().remove(&c);
        }
    })
    .await;
    let each = store.metadata_bytes() / store.chunk_count(T).max(1);
    println!("metadata: {each} bytes a chunk of 1 MiB");
    // The file system's lock goes with the last task of the store; a checkpoint may still run.
    store.checkpoint().await.expect("checkpoint");
    drop(store);
    rt.sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    let config = StoreConfig::new(ClusterId(1), NodeId(1));
    let store =
        Store::open(&rt, rt.open_dir(dir.as_ref()).expect("dir"), config).await.expect("reopen");
    println!(
        "reopen without a clean close: {:?}, log {} MiB",
        start.elapsed(),
        store.space().log_bytes >> 20
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next() else {
        eprintln!("usage: bench DIR [SECONDS]");
        std::process::exit(2);
    };
    let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(3);
    glowfs_rt::real::run(move |rt| bench(rt, dir, seconds));
}
