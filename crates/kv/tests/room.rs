//! The embedded engine on a disk without room: who is refused, who is not, that it goes on by itself, and that nothing is lost or comes about that was refused.

use crate::disk::Disk;
use glowfs_kv::{Embedded, EmbeddedConfig, Engine, Transaction};
use glowfs_rt::sync::{join, join_all};
use glowfs_rt::{Duration, Rt, real};
use glowfs_types::{ClusterId, Result, Status};
use std::collections::BTreeMap;
use std::rc::Rc;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Bytes of a value that makes the metadata larger.
const VALUE: usize = 3000;
/// Commits that only keep the cluster going: their log is larger than the disk.
const RENEWALS: u64 = 2500;
/// Keys that are removed at a time: more than can be made between two looks at the disk.
const REMOVED: u32 = 200;
/// The disk.
const BYTES: u64 = 8 << 20;

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        flush_interval: Duration::from_millis(2),
        segment_bytes: 32 << 10,
        checkpoint_log_bytes: 64 << 10,
        checkpoint_pause: Duration::from_millis(100),
        reserve_bytes: 64 << 10,
        ..EmbeddedConfig::new(ClusterId(7))
    }
}

/// Large enough that little of it is written between two looks at the disk (100 ms).
fn large() -> EmbeddedConfig {
    EmbeddedConfig {
        segment_bytes: 1 << 20,
        checkpoint_log_bytes: 1 << 20,
        reserve_bytes: 512 << 10,
        ..config()
    }
}

async fn open(rt: &Rt, disk: &Rc<Disk>, config: EmbeddedConfig) -> Embedded {
    Embedded::open(rt, disk.dir(), config).await.expect("open")
}

async fn content(engine: &Embedded) -> Content {
    let tx = Transaction::new(Rc::new(engine.clone()));
    let page = tx.get_range(&[], &[0xff], 4096, false).await.expect("read");
    tx.commit(false).await.expect("settled");
    page.entries.into_iter().collect()
}

async fn change(engine: &Embedded, work: impl FnOnce(&Transaction) -> Result<()>) -> Result<u64> {
    let tx = Transaction::new(Rc::new(engine.clone()));
    work(&tx).expect("small");
    tx.commit(false).await
}

async fn put(engine: &Embedded, key: u32) -> Result<u64> {
    change(engine, |tx| {
        tx.grows();
        tx.put(key.to_be_bytes(), vec![key as u8; VALUE])
    })
    .await
}

/// Makes it larger until it is refused; from which key on.
async fn fill(rt: &Rt, engine: &Embedded, from: u32) -> u32 {
    for key in from..from + 2000 {
        match put(engine, key).await {
            Ok(_) => rt.sleep(Duration::from_millis(1)).await,
            Err(e) => {
                assert_eq!(e.status, Status::NoSpace, "{e}");
                assert_eq!(engine.failure(), None);
                return key;
            }
        }
    }
    panic!("never refused: {:?}", engine.stats());
}

/// What renews leases goes on, for longer than the log has room.
async fn renew(rt: &Rt, engine: &Embedded) {
    for i in 0..RENEWALS {
        let renewed = change(engine, |tx| tx.put(b"lease", i.to_be_bytes())).await;
        renewed.unwrap_or_else(|e| panic!("renewal {i}: {e}; {:?}", engine.stats()));
        rt.sleep(Duration::from_micros(300)).await;
    }
}

/// Until it takes what makes it larger again.
async fn grows_again(rt: &Rt, engine: &Embedded, key: u32) {
    let taken = async {
        while let Err(e) = put(engine, key).await {
            assert_eq!(e.status, Status::NoSpace, "{e}");
            rt.sleep(Duration::from_millis(20)).await;
        }
    };
    let taken = rt.timeout(Duration::from_secs(10), taken).await;
    taken.unwrap_or_else(|_| panic!("refused for ever: {:?}", engine.stats()));
}

/// A start, after the process was ended as it stood and after a loss of power, finds what is there now.
async fn is_kept(
    rt: &Rt,
    engine: &Embedded,
    disk: &Disk,
    config: fn() -> EmbeddedConfig,
    seed: &mut u64,
) {
    engine.flush_barrier().await.expect("flushed");
    let there = content(engine).await;
    for after in [disk.killed(), disk.without_unflushed(), disk.unplugged(seed)] {
        // A start notes at least that there was one.
        after.bytes.set(disk.bytes.get().max(after.used() + (64 << 10)));
        let engine = open(rt, &after, config()).await;
        assert_eq!(content(&engine).await, there);
        engine.close().await.expect("closed");
    }
}

#[test]
fn growth_is_refused_while_all_else_goes_on_and_removals_make_room() {
    real::run(|rt| async move {
        let (disk, mut seed) = (Disk::new(), 5);
        disk.bytes.set(BYTES);
        let engine = open(&rt, &disk, large()).await;
        let mut end = fill(&rt, &engine, 0).await;
        // Half of the disk is the reserve, nearly.
        assert!(u64::from(end) * VALUE as u64 > BYTES / 5, "{end}: {:?}", engine.stats());
        for round in 0..3 {
            assert!(engine.stats().short && !engine.stats().full, "{:?}", engine.stats());
            is_kept(&rt, &engine, &disk, large, &mut seed).await;
            renew(&rt, &engine).await;
            assert_eq!(content(&engine).await.len() as u32, end - round * REMOVED + 1, "{round}");
            is_kept(&rt, &engine, &disk, large, &mut seed).await;
            for key in round * REMOVED..(round + 1) * REMOVED {
                change(&engine, |tx| tx.clear(key.to_be_bytes())).await.expect("a removal");
            }
            grows_again(&rt, &engine, end).await;
            end = fill(&rt, &engine, end + 1).await;
        }
        engine.close().await.expect("closed");
        // What is in reserve stays there.
        let engine = open(&rt, &disk, large()).await;
        renew(&rt, &engine).await;
        disk.bytes.set(2 * BYTES);
        grows_again(&rt, &engine, end).await;
        engine.close().await.expect("closed");
    });
}

#[test]
fn others_who_fill_the_disk_hinder_growth_only() {
    real::run(|rt| async move {
        let (disk, mut seed) = (Disk::new(), 9);
        let engine = open(&rt, &disk, large()).await;
        for key in 0..100 {
            put(&engine, key).await.expect("there is room");
            rt.sleep(Duration::from_millis(1)).await;
        }
        rt.sleep(Duration::from_millis(300)).await;
        disk.bytes.set(disk.used());
        renew(&rt, &engine).await;
        let end = fill(&rt, &engine, 100).await;
        renew(&rt, &engine).await;
        is_kept(&rt, &engine, &disk, large, &mut seed).await;
        assert!(engine.stats().refused > 0 && engine.failure().is_none());
        disk.bytes.set(1 << 40);
        grows_again(&rt, &engine, end).await;
        engine.close().await.expect("closed");
    });
}

/// Others take even what the reserve gives: what finds no room in the log did not happen, and nobody hears otherwise; it goes on when there is room.
#[test]
fn what_finds_no_room_at_all_did_not_happen() {
    real::run(|rt| async move {
        for round in 0..6u32 {
            let (disk, mut seed) = (Disk::new(), u64::from(round));
            let engine = open(&rt, &disk, config()).await;
            let mut want = Content::new();
            for key in 0..10 {
                put(&engine, key).await.expect("there is room");
                want.insert(key.to_be_bytes().to_vec(), vec![key as u8; VALUE]);
            }
            change(&engine, |tx| tx.add(b"n", 0)).await.expect("there is room");
            disk.bytes.set(1);
            // Many at once, of which the last ones find no room: they change what was there, and what one of the others has made.
            let mut tasks = Vec::new();
            for i in 0..40u32 {
                let engine = engine.clone();
                let pause = Duration::from_micros(u64::from(i / (round + 1)) * 300);
                let late = rt.clone();
                tasks.push(rt.spawn(async move {
                    late.sleep(pause).await;
                    let value = vec![i as u8; VALUE / 2];
                    change(&engine, |tx| {
                        tx.add(b"n", 1)?;
                        tx.put(format!("new{i}"), value.clone())?;
                        tx.put(format!("new{}", i / 2), value.clone())?;
                        tx.clear((i % 10).to_be_bytes())
                    })
                    .await
                }));
            }
            let (mut done, mut refused) = (BTreeMap::new(), 0);
            for (i, task) in tasks.into_iter().enumerate() {
                match task.await {
                    Ok(version) => drop(done.insert(version, i as u32)),
                    Err(e) => {
                        assert_eq!(e.status, Status::NoSpace, "{round}: {e}");
                        refused += 1;
                    }
                }
            }
            for i in done.values() {
                for key in [i / 2, *i] {
                    want.insert(format!("new{key}").into_bytes(), vec![*i as u8; VALUE / 2]);
                }
                want.remove(&(i % 10).to_be_bytes()[..]);
            }
            want.insert(b"n".to_vec(), (done.len() as u64).to_le_bytes().to_vec());
            assert!(refused > 0, "{round}: there was room for all");
            assert!(engine.stats().full && engine.failure().is_none(), "{:?}", engine.stats());
            assert_eq!(content(&engine).await, want, "{round}: of {refused} that were refused");
            let e = change(&engine, |tx| tx.clear(b"n")).await.expect_err("no room");
            assert!(e.status == Status::NoSpace && e.message.contains("make room"), "{e}");
            is_kept(&rt, &engine, &disk, config, &mut seed).await;
            assert_eq!(content(&engine).await, want, "{round}");
            disk.bytes.set(1 << 40);
            grows_again(&rt, &engine, 1000).await;
            want.insert(1000u32.to_be_bytes().to_vec(), vec![1000u32 as u8; VALUE]);
            assert_eq!(content(&engine).await, want, "{round}: with room");
            is_kept(&rt, &engine, &disk, config, &mut seed).await;
            engine.close().await.expect("closed");
        }
    });
}

/// A batch of the log may be there but for its padding when the disk is full: who was refused is not found there by the next start, also after a loss of power.
#[test]
fn what_was_refused_does_not_come_back() {
    real::run(|rt| async move {
        let (base, mut seed) = (Disk::new(), 11);
        let engine = open(&rt, &base, config()).await;
        engine.close().await.expect("closed");
        let mut refused = 0;
        // Somewhere there the reserve has just given its last.
        for missing in 0..320 {
            let disk = base.killed();
            let engine = open(&rt, &disk, config()).await;
            disk.bytes.set(disk.used().saturating_sub(missing * 512));
            let mut want = Content::new();
            for i in 0..60u32 {
                match change(&engine, |tx| tx.put(i.to_be_bytes(), b"x")).await {
                    Ok(_) => drop(want.insert(i.to_be_bytes().to_vec(), b"x".to_vec())),
                    Err(e) => {
                        assert_eq!(e.status, Status::NoSpace, "{missing}: {e}");
                        refused += 1;
                        break;
                    }
                }
            }
            engine.flush_barrier().await.expect("flushed");
            for after in [disk.killed(), disk.unplugged(&mut seed)] {
                let engine = open(&rt, &after, config()).await;
                assert_eq!(content(&engine).await, want, "{missing} blocks");
                engine.close().await.expect("closed");
            }
            engine.close().await.expect("closed");
        }
        assert!(refused > 20, "{refused}");
    });
}

/// Works at the brink: fills, renews, removes, fills. After each commit that was taken, what is there.
async fn at_the_brink(engine: &Embedded) -> (Vec<Content>, usize) {
    let mut states = vec![Content::new()];
    let (mut durable, mut next, mut first) = (0, 0u32, 0u32);
    for step in 0..90u32 {
        let shared: Rc<dyn Engine> = Rc::new(engine.clone());
        let tx = Transaction::new(shared);
        let mut state = states.last().cloned().expect("one");
        let n = states.len() as u64;
        state.insert(b"n".to_vec(), n.to_le_bytes().to_vec());
        tx.put(b"n", n.to_le_bytes()).expect("small");
        let grows = step % 3 != 0;
        if grows {
            tx.grows();
            tx.put(next.to_be_bytes(), vec![next as u8; VALUE]).expect("small");
            state.insert(next.to_be_bytes().to_vec(), vec![next as u8; VALUE]);
            next += 1;
        } else if first < next && engine.stats().short {
            tx.clear_range(&first.to_be_bytes(), &(first + 3).to_be_bytes()).expect("small");
            (first..first + 3).for_each(|key| drop(state.remove(&key.to_be_bytes()[..])));
            first += 3;
        }
        let flush = step % 5 == 1;
        match tx.commit(flush).await {
            Ok(_) => {
                states.push(state);
                if flush {
                    durable = states.len() - 1;
                }
            }
            Err(e) if e.status == Status::NoSpace => {
                // It is looked at the disk after each.
                if engine.checkpoint().await.is_err() && engine.failure().is_some() {
                    break;
                }
            }
            Err(_) => {
                // It may have happened.
                states.push(state);
                break;
            }
        }
        if step % 20 == 19 && engine.checkpoint().await.is_err() && engine.failure().is_some() {
            break;
        }
    }
    (states, durable)
}

#[test]
fn a_power_cut_anywhere_on_a_full_disk_loses_nothing() {
    const BYTES: u64 = 400 << 10;
    let config = || EmbeddedConfig { checkpoint_log_bytes: u64::MAX, ..config() };
    real::run(move |rt| async move {
        let disk = Disk::new();
        disk.bytes.set(BYTES);
        let engine = Embedded::open(&rt, disk.dir(), config()).await.expect("open");
        let (states, _) = at_the_brink(&engine).await;
        let stats = engine.stats();
        assert!(stats.refused > 3 && stats.checkpoints > 3, "{stats:?}");
        assert!(states.len() > 60, "{} were taken: {stats:?}", states.len());
        engine.close().await.expect("closed");
        let operations = disk.done.get();
        let mut seed = 3;
        for stop in (0..operations).step_by(2) {
            let disk = Disk::new();
            disk.bytes.set(BYTES);
            disk.left.set(stop);
            let (states, durable) = match Embedded::open(&rt, disk.dir(), config()).await {
                Ok(engine) => at_the_brink(&engine).await,
                Err(_) => (vec![Content::new()], 0),
            };
            for (after, least) in [
                (disk.killed(), states.len().saturating_sub(2)),
                (disk.unplugged(&mut seed), durable),
            ] {
                after.bytes.set(BYTES.max(after.used()));
                let what = format!("stopped at {stop} of {operations}");
                let engine = Embedded::open(&rt, after.dir(), config())
                    .await
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                let there = content(&engine).await;
                let n = there.get(&b"n"[..]).map_or(0, |n| n[0].into());
                assert!(n >= least && n < states.len(), "{what}: {n} of {least}..{}", states.len());
                assert_eq!(there, states[n], "{what}");
                change(&engine, |tx| tx.put(b"lease", b"x")).await.expect(&what);
                engine.close().await.expect(&what);
            }
        }
    });
}

/// Who waited for the reserve was taken for one whom nobody could have overtaken: two changes that each had found nothing were both made.
#[test]
fn what_waited_for_room_is_checked_against_what_passed_it() {
    real::run(|rt| async move {
        let disk = Disk::new();
        let engine = open(&rt, &disk, large()).await;
        put(&engine, 0).await.expect("room");
        disk.bytes.set(disk.used() + (900 << 10));
        rt.sleep(Duration::from_millis(300)).await;
        let (shared, begins) = (Rc::new(engine.clone()) as Rc<dyn Engine>, 1000);
        let alone = |key: &'static [u8], value: u8| {
            let tx = Transaction::new(shared.clone());
            async move {
                let found = tx.get(key).await?;
                assert_eq!(found, None);
                tx.grows();
                tx.put(key, vec![value; 10])?;
                tx.commit(false).await
            }
        };
        let over = change(&engine, |tx| tx.put(b"y", b"another's".to_vec()));
        let many = join_all((begins..begins + 150).map(|key| put(&engine, key)));
        let pairs = join(join(alone(b"x", 1), alone(b"x", 2)), join(alone(b"y", 3), over));
        let (_, ((one, other), (overtaken, over))) = join(many, pairs).await;
        assert_eq!(u32::from(one.is_ok()) + u32::from(other.is_ok()), 1, "{one:?} {other:?}");
        over.expect("it does not grow");
        assert!(overtaken.is_err(), "it undid what passed it");
        engine.close().await.expect("closed");
    });
}
