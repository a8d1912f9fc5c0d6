//! The etcd engine against real members: the suite of all engines, lost answers, members that die, limits.

mod cluster;
mod proxy;
mod transfer;

use cluster::Cluster;
use glowfs_kv::{
    Engine, Etcd, EtcdConfig, RunOptions, Transaction, VERSIONS_KEPT, conformance,
    run_transaction_with,
};
use glowfs_rt::{Duration, Rt, real};
use glowfs_types::{ClusterId, Error, Status};
use proxy::Proxy;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn config(endpoints: Vec<String>, name: &str) -> EtcdConfig {
    EtcdConfig {
        endpoints,
        cluster: ClusterId(7),
        name: name.into(),
        txn_ops_max: 128,
        versions_kept: VERSIONS_KEPT,
    }
}

fn open(rt: &Rt, endpoints: Vec<String>, name: &str) -> Rc<dyn Engine> {
    Rc::new(Etcd::new(rt, &config(endpoints, name)).expect("configuration"))
}

/// Counts up in two ways (read and write; add), with retries that would show a commit done twice or not at all.
/// Goes on until `stop` says so; returns how often it did.
async fn count_up(
    rt: &Rt,
    engines: &[Rc<dyn Engine>],
    each: u64,
    stop: impl Fn(u64) -> bool,
) -> u64 {
    let (done, stop) = (Rc::new(Cell::new(0)), Rc::new(stop));
    let mut tasks = Vec::new();
    for engine in engines {
        for _ in 0..each {
            let (rt2, engine) = (rt.clone(), engine.clone());
            let (done, stop) = (done.clone(), stop.clone());
            tasks.push(async move {
                while !stop(done.get()) {
                    // Not idempotent: an unknown outcome would be an error.
                    let deadline = Duration::from_secs(60);
                    let options =
                        RunOptions { deadline, attempts: u32::MAX, ..RunOptions::default() };
                    run_transaction_with(&rt2, &engine, options, async |tx| {
                        let n = tx.get(b"counted").await?.map_or(0, |v| number(&v));
                        tx.put(b"counted", (n + 1).to_le_bytes().to_vec())?;
                        tx.add(b"added", 1)
                    })
                    .await?;
                    done.set(done.get() + 1);
                }
                Ok::<(), Error>(())
            });
        }
    }
    for result in glowfs_rt::sync::join_all(tasks).await {
        result.expect("counting");
    }
    let tx = Transaction::new(engines[0].clone());
    for key in [b"counted".to_vec(), b"added".to_vec()] {
        let is = tx.get(&key).await.expect("read").map_or(0, |v| number(&v));
        assert_eq!(is, done.get(), "{}", String::from_utf8_lossy(&key));
    }
    done.get()
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("8 bytes"))
}

#[test]
fn conformance_on_three_members() {
    let cluster = Cluster::start(3, &[]);
    let endpoints = cluster.endpoints();
    real::run(move |rt| async move {
        let (engine, other) = (open(&rt, endpoints.clone(), "a"), open(&rt, endpoints, "b"));
        conformance::run_beside(&rt, &engine, &other, 5, 60).await.expect("etcd");
        conformance::counters(&rt, &engine, 4, 10).await.expect("counters");
        engine.flush_barrier().await.expect("barrier");
    });
}

/// The suite again while every few commits lose their way or their answer; then exact counting from two engines.
#[test]
fn lost_answers_are_settled() {
    let cluster = Cluster::start(1, &[]);
    let proxy = Proxy::start(cluster.members[0].client, 12);
    let counts = proxy.counts.clone();
    let through = vec![format!("http://{}", proxy.address)];
    let direct = cluster.endpoints();
    real::run(move |rt| async move {
        let engine = open(&rt, through.clone(), "a");
        conformance::run(&rt, &engine, 11, 8).await.expect("etcd behind a bad line");
        let engines = [engine, open(&rt, direct, "b")];
        let harmed = |c: &proxy::Counts| {
            [&c.lost, &c.unanswered, &c.late].map(|n| n.load(Ordering::Relaxed)).iter().min()
                >= Some(&3)
        };
        count_up(&rt, &engines, 4, move |done| done >= 300 && harmed(&counts)).await;
    });
}

/// Two engines count while each member is killed and restarted in turn, and one is stopped for a while.
#[test]
fn members_die_in_turn() {
    let mut cluster = Cluster::start(3, &[]);
    let endpoints = cluster.endpoints();
    let over = Arc::new(AtomicBool::new(false));
    let progress = Arc::new(AtomicU64::new(0));
    let (over2, progress2) = (over.clone(), progress.clone());
    let worker = std::thread::spawn(move || {
        real::run(move |rt| async move {
            let engines = [open(&rt, endpoints.clone(), "a"), open(&rt, endpoints, "b")];
            count_up(&rt, &engines, 2, move |done| {
                progress2.store(done, Ordering::Relaxed);
                over2.load(Ordering::Relaxed)
            })
            .await
        })
    });
    // Each fault strikes while work is done, and work goes on before the next.
    let more = |n: u64| {
        let want = progress.load(Ordering::Relaxed) + n;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while progress.load(Ordering::Relaxed) < want && !worker.is_finished() {
            assert!(std::time::Instant::now() < end, "no progress for a minute");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    more(20);
    for i in 0..3 {
        cluster.kill(i);
        more(20);
        cluster.restart(i);
        more(20);
    }
    cluster.signal(0, "STOP");
    more(20);
    cluster.signal(0, "CONT");
    more(20);
    over.store(true, Ordering::Relaxed);
    assert!(worker.join().expect("counted exactly") > 150);
}

/// A commit with more compares than etcd takes (many writes are spread instead).
async fn is_too_large(engine: &Rc<dyn Engine>) {
    let tx = Transaction::new(engine.clone());
    for i in 0..200u32 {
        tx.get(&i.to_be_bytes()).await.expect("read");
    }
    tx.put(b"x", b"y").expect("small");
    let e = tx.commit(false).await.expect_err("over the limit");
    assert_eq!(e.status, Status::TooLarge, "{e}");
    assert!(e.message.contains("--max-txn-ops"), "{e}");
}

/// Commits until there is no room.
async fn fills_up(engine: &Rc<dyn Engine>) {
    let mut full = None;
    for i in 0..1000u32 {
        let tx = Transaction::new(engine.clone());
        tx.put(i.to_be_bytes(), vec![7; 100_000]).expect("small");
        tx.grows();
        if let Err(e) = tx.commit(false).await {
            full = Some(e);
            break;
        }
    }
    let e = full.expect("a full engine");
    assert_eq!(e.status, Status::NoSpace, "{e}");
    assert!(e.message.contains("--quota-backend-bytes"), "{e}");
    let tx = Transaction::new(engine.clone());
    assert!(tx.get(&0u32.to_be_bytes()).await.expect("still read").is_some());
    // What makes the metadata larger is refused, also with sums, which are a transaction inside; all else is taken.
    for (grows, counts) in [(true, false), (true, true), (false, false), (false, true)] {
        let tx = Transaction::new(engine.clone());
        tx.clear(0u32.to_be_bytes()).expect("small");
        tx.put(b"lease", b"renewed").expect("small");
        if counts {
            tx.add(b"files", -1).expect("small");
        }
        if grows {
            tx.grows();
        }
        match tx.commit(false).await {
            Err(e) if grows => assert_eq!(e.status, Status::NoSpace, "{counts}: {e}"),
            committed => assert!(committed.is_ok() && !grows, "{grows} {counts}: {committed:?}"),
        }
    }
    let tx = Transaction::new(engine.clone());
    assert_eq!(tx.get(&0u32.to_be_bytes()).await.expect("still read"), None);
}

/// Members of 3.6 and newer say less when they refuse something; and they take less than this engine was told.
#[test]
fn refusals_of_the_newest_members_are_understood() {
    let cluster = Cluster::start(1, &["--quota-backend-bytes", "1000000"]);
    let proxy = Proxy::newest(cluster.members[0].client);
    let endpoints = vec![format!("http://{}", proxy.address)];
    real::run(move |rt| async move {
        let config = EtcdConfig { txn_ops_max: 2048, ..config(endpoints, "a") };
        let engine: Rc<dyn Engine> = Rc::new(Etcd::new(&rt, &config).expect("configuration"));
        let old = Transaction::new(engine.clone());
        old.read_version().await.expect("begin");
        is_too_large(&engine).await;
        let tx = Transaction::new(engine.clone());
        tx.put(b"k", b"v").expect("small");
        let now = tx.commit(false).await.expect("committed");
        let answer = cluster.post(0, "/v3/kv/compaction", &format!("{{\"revision\":\"{now}\"}}"));
        assert!(answer.contains("200 OK"), "{answer}");
        let e = old.get(b"k").await.expect_err("compacted");
        assert_eq!(e.status, Status::TooOld, "{e}");
        fills_up(&engine).await;
    });
}

/// A member that meets its quota while it applies a transaction answers that there is no space, and the transaction is done: it was told as refused.
#[test]
fn what_was_applied_beyond_the_quota_is_committed() {
    let cluster = Cluster::start(1, &[]);
    let proxy = Proxy::full(cluster.members[0].client);
    let counts = proxy.counts.clone();
    let endpoints = vec![format!("http://{}", proxy.address)];
    real::run(move |rt| async move {
        let engine = open(&rt, endpoints, "a");
        let put = async |value: &[u8]| {
            let tx = Transaction::new(engine.clone());
            tx.put(b"k", value).expect("small");
            tx.add(b"n", 1).expect("small");
            tx.commit(false).await
        };
        let before = put(b"1").await.expect("committed");
        counts.fill.store(true, Ordering::Relaxed);
        let version = put(b"2").await.expect("it was applied");
        assert!(version > before && !counts.fill.load(Ordering::Relaxed));
        let tx = Transaction::new(engine.clone());
        assert_eq!(tx.get(b"k").await.expect("read"), Some(b"2".to_vec()));
        // What the engine remembers of it is right.
        assert!(put(b"3").await.expect("committed") > version);
        let tx = Transaction::new(engine.clone());
        assert_eq!(tx.get(b"n").await.expect("read").map(|v| number(&v)), Some(3));
    });
}

#[test]
fn errors_say_what_to_do() {
    let mut cluster = Cluster::start(1, &["--quota-backend-bytes", "1000000"]);
    let endpoints = cluster.endpoints();
    let engine_of = move |rt: &Rt| open(rt, endpoints.clone(), "a");
    let make = engine_of.clone();
    real::run(move |rt| async move {
        let engine = make(&rt);
        is_too_large(&engine).await;
        fills_up(&engine).await;
    });
    cluster.kill(0);
    real::run(move |rt| async move {
        let engine = engine_of(&rt);
        let e = engine.begin().await.expect_err("nobody is there");
        assert_eq!(e.status, Status::Disconnected);
        assert!(e.message.contains("127.0.0.1") && e.message.contains("start"), "{e}");
        let tx = Transaction::new(engine);
        tx.put(b"k", b"v").expect("small");
        let e = tx.commit(false).await.expect_err("nobody is there");
        assert_eq!(e.status, Status::Disconnected, "not sent, so the outcome is known: {e}");
    });
}

#[test]
fn compacted_versions_are_retried() {
    let cluster = Cluster::start(1, &[]);
    let endpoints = cluster.endpoints();
    real::run(move |rt| async move {
        let engine = open(&rt, endpoints, "a");
        let put = async |v: u8| {
            let tx = Transaction::new(engine.clone());
            tx.put(b"k", vec![v]).expect("small");
            tx.commit(false).await.expect("committed")
        };
        put(1).await;
        let old = Transaction::new(engine.clone());
        old.read_version().await.expect("begin");
        put(2).await;
        let now = put(3).await;
        let answer = cluster.post(0, "/v3/kv/compaction", &format!("{{\"revision\":\"{now}\"}}"));
        assert!(answer.contains("200 OK"), "{answer}");
        let e = old.get(b"k").await.expect_err("compacted");
        assert_eq!(e.status, Status::TooOld, "{e}");
        let tries = Cell::new(0);
        let first = Cell::new(Some(old));
        let seen = run_transaction_with(&rt, &engine, RunOptions::default(), async |tx| {
            tries.set(tries.get() + 1);
            match first.take() {
                Some(old) => old.get(b"k").await,
                None => tx.get(b"k").await,
            }
        });
        assert_eq!(seen.await.expect("read"), Some(vec![3]));
        assert_eq!(tries.get(), 2);
    });
}

/// etcd keeps every version until it is told otherwise, and nobody has told it but the engine: several times its quota is written.
#[test]
fn old_versions_do_not_fill_it() {
    const QUOTA: usize = 16 << 20;
    const VALUE: usize = 100_000;
    let quota = QUOTA.to_string();
    let cluster = Cluster::start(1, &["--quota-backend-bytes", &quota]);
    let endpoints = cluster.endpoints();
    real::run(move |rt| async move {
        let kept = Duration::from_millis(500);
        let config = EtcdConfig { versions_kept: kept, ..config(endpoints, "a") };
        let engine: Rc<dyn Engine> = Rc::new(Etcd::new(&rt, &config).expect("configuration"));
        for i in 0..4 * QUOTA / VALUE {
            // Without sums: a transaction inside of one costs nothing in etcd's eyes.
            let work = async |tx: &Transaction| {
                let n = tx.get(b"counted").await?.map_or(0, |v| number(&v));
                tx.put(b"counted", (n + 1).to_le_bytes().to_vec())?;
                tx.put(vec![b'k', (i % 4) as u8], vec![i as u8; VALUE])
            };
            glowfs_kv::run_transaction(&rt, &engine, work).await.expect("it goes on");
            // As fast as versions go, at most: 4 MB/s.
            rt.sleep(Duration::from_millis(25)).await;
        }
        let tx = Transaction::new(engine.clone());
        let counted = tx.get(b"counted").await.expect("read").map(|v| number(&v));
        assert_eq!(counted, Some((4 * QUOTA / VALUE) as u64));
    });
}

/// Changes of one directory's shape: a key that all read, keys of their own that are not there, a sum that all add to. With etcd's own limit of 128.
#[test]
fn many_commits_go_together_within_the_limit_of_etcd() {
    let cluster = Cluster::start(1, &[]);
    let endpoints = cluster.endpoints();
    real::run(move |rt| async move {
        let engine = open(&rt, endpoints, "a");
        let first = Transaction::new(engine.clone());
        first.put(b"directory", b"record").expect("put");
        first.add(b"sum", 0).expect("add");
        first.commit(false).await.expect("prepared");
        let create = async |n: u64| {
            let tx = Transaction::new(engine.clone());
            tx.grows();
            let key = |what: &str| format!("{what}-{n}").into_bytes();
            let reads = ["name", "request-1", "request-2", "request-3"].map(key);
            let ask = [&[b"directory".to_vec()][..], &reads].concat();
            let found = tx.get_all(&ask).await?;
            assert!(found[0].is_some() && found[1..].iter().all(Option::is_none));
            for what in ["name", "cookie", "inode", "request-3"] {
                tx.put(key(what), vec![7; 100])?;
            }
            tx.add(b"sum", 1)?;
            tx.put(b"time", n.to_le_bytes())?;
            tx.commit(false).await
        };
        let versions = glowfs_rt::sync::join_all((0..60).map(create)).await;
        let versions: std::collections::BTreeSet<_> =
            versions.into_iter().map(|v| v.expect("committed")).collect();
        assert!(versions.len() <= 8, "{} transactions for 60 commits", versions.len());
        let tx = Transaction::new(engine.clone());
        assert_eq!(tx.get(b"sum").await.expect("read").map(|v| number(&v)), Some(60));
        for n in 0..60 {
            let there = tx.get(format!("inode-{n}").as_bytes()).await.expect("read");
            assert_eq!(there, Some(vec![7; 100]));
        }
    });
}
