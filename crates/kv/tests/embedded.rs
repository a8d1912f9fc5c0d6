//! The embedded engine: conformance, crashes at every operation of its disk, damage, faults.

use crate::disk::{Disk, rand};
use glowfs_kv::{Embedded, EmbeddedConfig, Engine, Memory, Transaction, conformance};
use glowfs_rt::{Duration, Rt, real};
use glowfs_types::{ClusterId, Result, Status};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        flush_interval: Duration::from_millis(2),
        segment_bytes: 32 << 10,
        checkpoint_log_bytes: u64::MAX,
        reserve_bytes: 16 << 10,
        ..EmbeddedConfig::new(ClusterId(7))
    }
}

async fn open(rt: &Rt, disk: &Rc<Disk>) -> Result<Embedded> {
    Embedded::open(rt, disk.dir(), config()).await
}

/// Commit number `i` of the workload, in the model.
fn model(state: &mut BTreeMap<Vec<u8>, Vec<u8>>, i: u64) {
    state.insert(b"n".to_vec(), (i as i64 + 1).to_le_bytes().to_vec());
    state.insert(format!("k{}", i % 13).into_bytes(), vec![i as u8; (i as usize * 37) % 900]);
    if i % 5 == 4 {
        let gone: Vec<_> =
            state.range(b"k3".to_vec()..b"k6".to_vec()).map(|(k, _)| k.clone()).collect();
        for k in gone {
            state.remove(&k);
        }
    }
}

fn change(tx: &Transaction, i: u64) -> Result<()> {
    tx.add(b"n", 1)?;
    tx.put(format!("k{}", i % 13), vec![i as u8; (i as usize * 37) % 900])?;
    if i % 5 == 4 {
        tx.clear_range(b"k3", b"k6")?;
    }
    Ok(())
}

async fn everything(engine: &Embedded) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let v = engine.begin().await.expect("begin");
    let page = engine.get_range(v, vec![], vec![0xff], 4096, false).await.expect("range");
    page.entries.into_iter().collect()
}

const COMMITS: u64 = 40;

/// Runs the workload until an error; returns how many commits were answered, and how many of them durably.
async fn workload(engine: &Embedded, from: u64) -> (u64, u64) {
    let shared: Rc<dyn Engine> = Rc::new(engine.clone());
    let (mut acked, mut durable) = (from, from);
    for i in from..from + COMMITS {
        let tx = Transaction::new(shared.clone());
        change(&tx, i).expect("small");
        let flush = i % 4 == 1;
        if tx.commit(flush).await.is_err() {
            break;
        }
        acked = i + 1;
        if flush {
            durable = acked;
        }
        if i % 16 == 7 && engine.checkpoint().await.is_err() {
            break;
        }
    }
    (acked, durable)
}

async fn check(rt: &Rt, disk: &Rc<Disk>, at_least: u64, at_most: u64, what: &str) -> u64 {
    let engine = open(rt, disk).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let state = everything(&engine).await;
    let n = state
        .get(&b"n"[..])
        .map_or(0, |v| i64::from_le_bytes(v[..].try_into().expect("8 bytes"))) as u64;
    assert!(n >= at_least, "{what}: {at_least} commits were answered, {n} are there");
    assert!(n <= at_most, "{what}: {n} commits are there, {at_most} were tried");
    let mut want = BTreeMap::new();
    (0..n).for_each(|i| model(&mut want, i));
    assert_eq!(state, want, "{what}");
    // It goes on from here, and what it takes now stays, too.
    let (acked, _) = workload(&engine, n).await;
    assert_eq!(acked, n + COMMITS, "{what}: after recovery");
    engine.close().await.expect("close");
    let again = open(rt, disk).await.unwrap_or_else(|e| panic!("{what}, again: {e}"));
    (n..acked).for_each(|i| model(&mut want, i));
    assert_eq!(everything(&again).await, want, "{what}, again");
    again.close().await.expect("close");
    n
}

#[test]
fn crash_at_every_operation() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = open(&rt, &disk).await.expect("open");
        assert_eq!(workload(&engine, 0).await.0, COMMITS);
        engine.close().await.expect("close");
        let operations = disk.done.get();
        assert!(operations > 60, "{operations}");
        let (mut seed, mut cut) = (1, 0);
        for stop in 0..operations {
            let disk = Disk::new();
            disk.left.set(stop);
            let (acked, durable) = match open(&rt, &disk).await {
                Ok(engine) => workload(&engine, 0).await,
                Err(_) => (0, 0),
            };
            let n =
                check(&rt, &disk.killed(), acked, acked + 1, &format!("killed at {stop}")).await;
            cut += u64::from(n == acked);
            for round in 0..2 {
                let disk = disk.unplugged(&mut seed);
                check(&rt, &disk, durable, acked + 1, &format!("power cut at {stop}, {round}"))
                    .await;
            }
        }
        assert!(cut > 10, "the tail was never cut: the crash came never inside a write");
    });
}

/// A transaction that began before a loss of power, with commits that went with it, begins again; it never goes on with what others
/// committed since under the same versions.
#[test]
fn versions_that_were_lost_do_not_come_again() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let slow = EmbeddedConfig { flush_interval: Duration::from_secs(3600), ..config() };
        let engine = Embedded::open(&rt, disk.dir(), slow).await.expect("open");
        let durable = workload(&engine, 0).await.0;
        let shared: Rc<dyn Engine> = Rc::new(engine.clone());
        for i in durable..durable + 5 {
            let tx = Transaction::new(shared.clone());
            change(&tx, i).expect("small");
            tx.commit(false).await.expect("commit");
        }
        let begun = engine.begin().await.expect("begin");
        let mut seed = 1;
        let after = disk.unplugged(&mut seed);
        let engine = open(&rt, &after).await.expect("recovered");
        for round in 0..2 {
            let read = engine.get(begun, vec![b"n".to_vec()]).await;
            assert_eq!(read.expect_err("of another past").status, Status::TooOld, "{round}");
            workload(&engine, durable).await;
        }
        engine.close().await.expect("close");
    });
}

/// The power goes at `stops`, and again at every operation of the recovery that follows.
/// Whatever a loss of power takes, also all that a life has committed: the next life has a greater number, and what is read in a transaction is
/// known to be of its life.
#[test]
fn every_life_has_a_greater_number() {
    real::run(|rt| async move {
        let slow = EmbeddedConfig { flush_interval: Duration::from_secs(3600), ..config() };
        let (mut disk, mut seed) = (Disk::new(), 3);
        let (mut last, mut versions) = (0, 0);
        for life in 0..6 {
            let engine = Embedded::open(&rt, disk.dir(), slow.clone()).await.expect("open");
            let shared: Rc<dyn Engine> = Rc::new(engine.clone());
            let tx = Transaction::new(shared.clone());
            assert_eq!(tx.life(), 0, "nothing is read yet");
            tx.get(b"k").await.expect("read");
            assert!(tx.life() > last, "life {life}: {} after {last}", tx.life());
            assert!(tx.life() > versions, "life {life}: {} after version {versions}", tx.life());
            last = tx.life();
            for i in 0..3u8 {
                let tx = Transaction::new(shared.clone());
                tx.put(b"k", [i]).expect("small");
                versions = tx.commit(false).await.expect("commit");
            }
            disk = disk.unplugged(&mut seed);
        }
    });
}

async fn recovery_interrupted(rt: &Rt, stops: impl Iterator<Item = u64>, seed: &mut u64) -> u64 {
    let mut cuts = 0;
    for stop in stops {
        let disk = Disk::new();
        disk.left.set(stop);
        let (acked, durable) = match open(rt, &disk).await {
            Ok(engine) => workload(&engine, 0).await,
            Err(_) => (0, 0),
        };
        let found = disk.unplugged(seed);
        for again in 0.. {
            let disk = found.killed();
            disk.left.set(again);
            let recovered = open(rt, &disk).await;
            let what = format!("power cut at {stop}, and at {again} of the recovery");
            check(rt, &disk.unplugged(seed), durable, acked + 1, &what).await;
            cuts += 1;
            if recovered.is_ok() {
                break;
            }
        }
    }
    cuts
}

#[test]
fn a_recovery_that_is_interrupted_loses_nothing() {
    real::run(|rt| async move {
        let cuts = recovery_interrupted(&rt, (3..110).step_by(11), &mut 5).await;
        assert!(cuts > 30, "{cuts}");
    });
}

/// Flush `fail` fails, the process is started again, and then the power goes. Whether there was such a flush.
async fn flush_fails(rt: &Rt, fail: u64, seed: &mut u64) -> bool {
    let disk = Disk::new();
    disk.fail_sync.set(fail);
    // For want of room, too.
    disk.sync_errno.set(if fail.is_multiple_of(2) { 28 } else { 5 });
    let (acked, durable) = match open(rt, &disk).await {
        Ok(engine) => workload(&engine, 0).await,
        Err(_) => (0, 0),
    };
    let failed = disk.fail_sync.get() == 0;
    let disk = disk.killed();
    let what = format!("flush {fail} failed");
    let engine = open(rt, &disk).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let n = everything(&engine).await.get(&b"n"[..]).map_or(0, |v| v[0].into());
    assert!(n >= acked, "{what}: {acked} commits were answered, {n} are there");
    // Answered durably once more: nothing of it is written again by that.
    engine.flush_barrier().await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = n.max(durable);
    check(rt, &disk.unplugged(seed), found, acked + 1, &format!("{what}, power cut")).await;
    failed
}

#[test]
fn any_flush_fails_then_a_restart_then_a_power_cut() {
    real::run(|rt| async move {
        let mut failed = 0;
        for mut seed in 0..6 {
            for fail in 1.. {
                if !flush_fails(&rt, fail, &mut seed).await {
                    break;
                }
                failed += 1;
            }
        }
        assert!(failed > 60, "{failed} flushes failed");
    });
}

/// Every operation, and every operation of the recovery after it, over many seeds: `SEED=1 SEEDS=20 cargo test -p glowfs-kv --test kv --
/// --ignored everywhere`.
#[test]
#[ignore = "takes minutes"]
fn everywhere() {
    let var = |name: &str, or: u64| {
        std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok()).unwrap_or(or)
    };
    let (first, seeds) = (var("SEED", 1), var("SEEDS", 20));
    real::run(move |rt| async move {
        let mut cuts = 0;
        for seed in first..first + seeds {
            cuts += recovery_interrupted(&rt, 0..110, &mut (seed * 1_000_003)).await;
            println!("seed {seed}: {cuts} power cuts");
        }
    });
}

#[test]
fn conformance_of_embedded_and_memory() {
    real::run(|rt| async move {
        let mut seed = 99;
        for _ in 0..3 {
            let memory: Rc<dyn Engine> = Rc::new(Memory::new());
            conformance::run(&rt, &memory, rand(&mut seed), 150).await.expect("memory");
            conformance::stamps_are_versions(&memory).await.expect("memory");
            let disk = Disk::new();
            let engine = open(&rt, &disk).await.expect("open");
            let shared: Rc<dyn Engine> = Rc::new(engine.clone());
            conformance::run(&rt, &shared, rand(&mut seed), 150).await.expect("embedded");
            conformance::stamps_are_versions(&shared).await.expect("embedded");
            conformance::counters(&rt, &shared, 8, 20).await.expect("counters");
            engine.close().await.expect("close");
        }
    });
}

#[test]
fn real_files() {
    real::run(|rt| async move {
        let dir = tempfile::tempdir().expect("dir");
        for round in 0..3 {
            let opened = rt.open_dir(dir.path()).expect("dir");
            let engine = Embedded::open(&rt, opened, config()).await.expect("open");
            let (acked, _) = workload(&engine, round * COMMITS).await;
            assert_eq!(acked, (round + 1) * COMMITS);
            let second = rt.open_dir(dir.path()).expect("dir");
            let e = Embedded::open(&rt, second, config()).await.err().expect("locked");
            assert_eq!(e.status, Status::Busy, "{e}");
            engine.close().await.expect("close");
        }
        let other = EmbeddedConfig { cluster: ClusterId(8), ..config() };
        let e = Embedded::open(&rt, rt.open_dir(dir.path()).expect("dir"), other).await.err();
        assert_eq!(e.expect("foreign").status, Status::WrongCluster);
    });
}

#[test]
fn damage_is_refused() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = open(&rt, &disk).await.expect("open");
        workload(&engine, 0).await;
        engine.close().await.expect("close");
        for name in
            disk.names().into_iter().filter(|name| name != "reserve" && !name.starts_with("spare-"))
        {
            let len = {
                let mut len = 0;
                disk.killed().edit(&name, |b| len = b.len());
                len
            };
            let mut refused = 0;
            for at in (0..len).step_by(509) {
                let bad = disk.killed();
                let mut was = 0;
                bad.edit(&name, |b| {
                    was = b[at];
                    b[at] ^= 0x40;
                });
                match open(&rt, &bad).await {
                    Err(e) => {
                        assert!(
                            matches!(e.status, Status::Corrupt | Status::NewerFormat),
                            "{name} {at}: {e}"
                        );
                        refused += 1;
                    }
                    Ok(engine) => {
                        // Padding, or the very last batch, whose flush nobody has recorded.
                        let state = everything(&engine).await;
                        let n = state.get(&b"n"[..]).map_or(0, |v| v[0]);
                        assert!(
                            u64::from(n) + 2 >= COMMITS,
                            "{name} {at} (was {was}): {n} commits left"
                        );
                    }
                }
            }
            assert!(refused > 0, "{name}: no damage was found");
        }
    });
}

#[test]
fn a_broken_disk_stops_it_with_a_clear_error() {
    real::run(|rt| async move {
        for (errno, status) in [(30, Status::ReadOnly), (5, Status::DiskFailed)] {
            let disk = Disk::new();
            let engine = open(&rt, &disk).await.expect("open");
            let (acked, _) = workload(&engine, 0).await;
            disk.errno.set(errno);
            disk.left.set(0);
            let tx = Transaction::new(Rc::new(engine.clone()));
            change(&tx, acked).expect("small");
            let e = tx.commit(false).await.expect_err("the disk is gone");
            assert_eq!(e.status, Status::CommitUnknown, "{e}");
            let tx = Transaction::new(Rc::new(engine.clone()));
            change(&tx, acked).expect("small");
            let e = tx.commit(false).await.expect_err("stopped");
            assert_eq!(e.status, status, "{e}");
            assert!(e.message.contains("restart"), "{e}");
            // Reads show what is in the log, not what was only tried.
            let state = everything(&engine).await;
            assert_eq!(state[&b"n"[..]], (acked as i64).to_le_bytes());
        }
    });
}

#[test]
fn background_commits_are_flushed_within_the_bound() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = open(&rt, &disk).await.expect("open");
        let tx = Transaction::new(Rc::new(engine.clone()));
        change(&tx, 0).expect("small");
        let version = tx.commit(false).await.expect("commit");
        rt.sleep(Duration::from_millis(100)).await;
        assert!(engine.stats().flushed >= version);
        let e = Transaction::new(Rc::new(engine.clone()));
        e.get(b"n").await.expect("read");
        engine.close().await.expect("close");
    });
}

/// A checkpoint writes all that there is: it is not due before the log has grown by half as much.
#[test]
fn a_checkpoint_waits_for_a_log_in_proportion() {
    const VALUE: usize = 16 << 10;
    real::run(|rt| async move {
        let config = EmbeddedConfig { checkpoint_log_bytes: VALUE as u64, ..config() };
        let disk = Disk::new();
        let engine = Embedded::open(&rt, disk.dir(), config).await.expect("open");
        let shared: Rc<dyn Engine> = Rc::new(engine.clone());
        let put = async |keys: std::ops::Range<u32>| {
            for key in keys {
                let tx = Transaction::new(shared.clone());
                tx.put(key.to_be_bytes(), vec![1; VALUE]).expect("small");
                tx.commit(false).await.expect("commit");
            }
        };
        // Until nothing more is due.
        let checkpoints = async || {
            rt.sleep(Duration::from_millis(500)).await;
            engine.stats().checkpoints
        };
        put(0..64).await;
        checkpoints().await;
        engine.checkpoint().await.expect("a checkpoint");
        let before = checkpoints().await;
        put(0..24).await;
        assert_eq!(checkpoints().await, before, "a log of three eighths of all");
        put(0..24).await;
        assert_eq!(checkpoints().await, before + 1, "of three quarters");
        engine.close().await.expect("close");
    });
}

#[test]
fn an_empty_directory_is_formatted_only_when_told() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let config = EmbeddedConfig { format: false, ..config() };
        let refused = Embedded::open(&rt, disk.dir(), config.clone()).await.err();
        let e = refused.expect("it may not be mounted");
        assert_eq!(e.status, Status::NotFound, "{e}");
        assert!(e.message.contains("--format") && disk.names().is_empty(), "{e}");
        let made = EmbeddedConfig { format: true, ..config.clone() };
        let engine = Embedded::open(&rt, disk.dir(), made).await.expect("formatted");
        engine.close().await.expect("closed");
        let engine = Embedded::open(&rt, disk.dir(), config).await.expect("it is there");
        engine.close().await.expect("closed");
    });
}

/// All that one task reads is there at once: it kept the thread until it was through, however much it read, and leases ended meanwhile.
#[test]
fn who_reads_much_lets_others_run() {
    const READS: usize = 8192;
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = open(&rt, &disk).await.expect("open");
        let shared: Rc<dyn Engine> = Rc::new(engine.clone());
        let tx = Transaction::new(shared.clone());
        (0..100u32).try_for_each(|n| tx.put(n.to_be_bytes(), vec![1; 8192])).expect("small");
        tx.commit(false).await.expect("commit");
        // One transaction; many of one read; pages; large values.
        for case in 0..4 {
            let (done, shared) = (Rc::new(Cell::new(false)), shared.clone());
            let end = done.clone();
            rt.spawn_detached(async move {
                let one = Transaction::new(shared.clone());
                for n in 0..READS {
                    let key = (n as u32 % 100).to_be_bytes();
                    let other = Transaction::new(shared.clone());
                    match case {
                        0 => drop(one.get_snapshot(&[n as u8, 7]).await.expect("read")),
                        1 => drop(other.get(&[n as u8, 7]).await.expect("read")),
                        2 if n % 100 == 0 => {
                            let page = other.get_range_snapshot(&[], &[9], 100, false).await;
                            assert_eq!(page.expect("read").entries.len(), 100);
                        }
                        3 if n % 8 == 0 => drop(other.get(&key).await.expect("read")),
                        _ => {}
                    }
                }
                end.set(true);
            });
            let mut turns = 0;
            while !done.get() {
                rt.yield_now().await;
                turns += 1;
            }
            assert!((20..200).contains(&turns), "case {case}: others had {turns} turns");
        }
        engine.close().await.expect("close");
    });
}
