//! How many transactions like that of a file's creation an engine takes, and how long one lasts.
//!
//!     creates embedded DIR [CLIENTS] [SECONDS]
//!     creates etcd http://HOST:PORT,... [CLIENTS] [SECONDS]
//!     creates foundationdb CLUSTER_FILE[,LIBRARY] [CLIENTS] [SECONDS]

use glowfs_kv::{
    Embedded, EmbeddedConfig, Engine, Etcd, EtcdConfig, Fdb, FdbConfig, RunOptions, VERSIONS_KEPT,
    run_transaction_with,
};
use glowfs_rt::{Duration, Rt, real};
use glowfs_types::{ClusterId, Error, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

async fn open(rt: &Rt, kind: &str, place: &str) -> Result<(Rc<dyn Engine>, Option<Embedded>)> {
    let cluster = ClusterId(rt.random_u128());
    match kind {
        "embedded" => {
            let dir = rt.open_dir(place.as_ref()).map_err(Error::from)?;
            let engine = Embedded::open(rt, dir, EmbeddedConfig::new(cluster)).await?;
            Ok((Rc::new(engine.clone()), Some(engine)))
        }
        "etcd" => {
            let endpoints = place.split(',').map(str::to_owned).collect();
            let config = EtcdConfig {
                endpoints,
                cluster,
                name: "creates".into(),
                txn_ops_max: 2048,
                versions_kept: VERSIONS_KEPT,
            };
            Ok((Rc::new(Etcd::new(rt, &config)?), None))
        }
        "foundationdb" => {
            let (file, library) = match place.split_once(',') {
                Some((file, library)) => (file, Some(library.into())),
                None => (place, None),
            };
            let name = "creates".into();
            let config = FdbConfig { cluster_file: file.into(), library, cluster, name };
            Ok((Rc::new(Fdb::open(rt, &config)?), None))
        }
        _ => {
            let kinds = "creates embedded DIR | etcd ENDPOINTS | foundationdb CLUSTER_FILE";
            Err(Error::new(Status::InvalidArgument, kinds))
        }
    }
}

/// Reads and writes what the creation of file `n` in directory `dir` does.
async fn create(rt: &Rt, engine: &Rc<dyn Engine>, dir: u64, n: u64) -> Result<()> {
    let key = |kind: u8, a: u64, b: u64| {
        [&[kind][..], &a.reverse_bits().to_be_bytes(), &b.to_be_bytes()].concat()
    };
    let options = RunOptions { idempotent: true, ..RunOptions::durable() };
    run_transaction_with(rt, engine, options, async |tx| {
        tx.get_all(&[key(b'I', dir, 0), key(b'R', dir, n)]).await?;
        if tx.get(&key(b'D', dir, n)).await?.is_some() {
            return Ok(());
        }
        tx.put(key(b'I', dir + n, 0), vec![1; 160])?;
        tx.put(key(b'D', dir, n), vec![2; 24])?;
        tx.put(key(b'C', dir, n), vec![3; 24])?;
        tx.put(key(b'R', dir, n), vec![4; 120])?;
        tx.put(key(b'V', dir, 2), vec![5; 12])?;
        tx.add(key(b'V', dir, 0), 1)?;
        tx.add(key(b'U', dir % 16, 0), 1)
    })
    .await
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let arg = |i: usize, or: &str| args.get(i).cloned().unwrap_or_else(|| or.into());
    let (kind, place) = (arg(1, ""), arg(2, ""));
    let number = |text: String| text.parse::<u64>().unwrap_or(1);
    let (clients, seconds) = (number(arg(3, "1")), number(arg(4, "5")));
    real::run(move |rt| async move {
        let (engine, embedded) = open(&rt, &kind, &place).await?;
        let times: Rc<RefCell<Vec<u64>>> = Rc::default();
        let end = rt.now() + Duration::from_secs(seconds);
        let next = Rc::new(Cell::new(1u64));
        let tasks: Vec<_> = (0..clients)
            .map(|client| {
                let (rt2, engine, times, next) =
                    (rt.clone(), engine.clone(), times.clone(), next.clone());
                rt.spawn(async move {
                    while rt2.now() < end {
                        let n = next.replace(next.get() + 1);
                        let begin = rt2.now();
                        create(&rt2, &engine, client << 32, n).await?;
                        let nanos = rt2.now().since(begin).as_nanos();
                        times.borrow_mut().push(u64::try_from(nanos).unwrap_or(u64::MAX));
                    }
                    Ok::<(), Error>(())
                })
            })
            .collect();
        for task in tasks {
            task.await?;
        }
        let mut times = times.take();
        times.sort_unstable();
        let at = |q: usize| times.get(times.len() * q / 100).map_or(0.0, |n| *n as f64 / 1e6);
        println!(
            "{kind}, {clients} clients: {} creates/s, p50 {:.2} ms, p99 {:.2} ms",
            times.len() as u64 / seconds.max(1),
            at(50),
            at(99)
        );
        if let Some(engine) = embedded {
            let stats = engine.stats();
            println!("{} batches, {} flushes of the log", stats.batches, stats.flushes);
        }
        Ok(())
    })
}
