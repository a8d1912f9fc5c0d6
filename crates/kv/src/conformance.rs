//! The suite that every engine passes: what an engine promises, tried out. [`run`] needs an engine that nobody else uses.

use crate::{
    Engine, Key, RangePage, STAMP_BYTES, Transaction, Value, Version, key_after, run_transaction,
};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::kv::{KEY_BYTES_MAX, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX};
use glowfs_types::{Error, Result, Status};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Concurrent workers of the serializability check.
const WORKERS: u64 = 8;

macro_rules! ensure {
    ($cond:expr, $($what:tt)*) => {
        if !$cond {
            return Err(Error::new(Status::Internal, format!("conformance: {}", format!($($what)*))));
        }
    };
}

fn expect_status<T>(result: Result<T>, want: Status, what: &str) -> Result<()> {
    match result {
        Err(e) if e.status == want => Ok(()),
        Err(e) => Err(e.context(format!("conformance: {what}: expected {want}, got"))),
        Ok(_) => Err(Error::new(
            Status::Internal,
            format!("conformance: {what}: expected {want}, got Ok"),
        )),
    }
}

/// Runs everything; the first broken promise is the error. `rounds` transactions per worker in the concurrent check.
pub async fn run(rt: &Rt, engine: &Rc<dyn Engine>, seed: u64, rounds: u32) -> Result<()> {
    run_beside(rt, engine, engine, seed, rounds).await
}

/// The same, with `other` a second handle of the engine: half of the workers use that one.
pub async fn run_beside(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    other: &Rc<dyn Engine>,
    seed: u64,
    rounds: u32,
) -> Result<()> {
    own_writes(engine).await?;
    ranges(engine).await?;
    snapshots(engine).await?;
    conflicts(engine).await?;
    removals(engine).await?;
    no_conflicts(engine).await?;
    stamps(engine).await?;
    concurrent_stamps(rt, engine).await?;
    many_keys(engine).await?;
    limits(engine).await?;
    serializable(rt, [engine, other], seed, rounds).await
}

fn begin(engine: &Rc<dyn Engine>) -> Transaction {
    Transaction::new(engine.clone())
}

async fn put(engine: &Rc<dyn Engine>, key: &[u8], value: &[u8]) -> Result<Version> {
    let tx = begin(engine);
    tx.put(key, value)?;
    tx.commit(false).await
}

async fn own_writes(engine: &Rc<dyn Engine>) -> Result<()> {
    put(engine, b"own/a", b"1").await?;
    let tx = begin(engine);
    tx.put(b"own/b", b"2")?;
    ensure!(tx.get(b"own/b").await?.as_deref() == Some(b"2"), "own put is not seen");
    tx.clear(b"own/a")?;
    ensure!(tx.get(b"own/a").await?.is_none(), "own clear is not seen");
    tx.add(b"own/n", 5)?;
    tx.add(b"own/n", -2)?;
    ensure!(tx.get(b"own/n").await? == Some(3i64.to_le_bytes().to_vec()), "own add is not seen");
    tx.clear_range(b"own/b", b"own/c")?;
    ensure!(tx.get(b"own/b").await?.is_none(), "own clear_range is not seen");
    tx.put(b"own/bb", b"3")?;
    let page = tx.get_range(b"own/", b"own0", 10, false).await?;
    let keys: Vec<_> = page.entries.iter().map(|(k, _)| k.as_slice()).collect();
    ensure!(keys == [&b"own/bb"[..], b"own/n"] && !page.more, "range over own writes: {keys:?}");
    tx.commit(true).await?;
    let tx = begin(engine);
    let back = tx.get_range(b"own/", b"own0", 10, true).await?;
    let keys: Vec<_> = back.entries.iter().map(|(k, _)| k.as_slice()).collect();
    ensure!(keys == [&b"own/n"[..], b"own/bb"], "after the commit: {keys:?}");
    tx.commit(false).await.map(|_| ())
}

async fn ranges(engine: &Rc<dyn Engine>) -> Result<()> {
    let tx = begin(engine);
    for i in 0..50u8 {
        tx.put([b"range/", &[i][..]].concat(), vec![i])?;
    }
    tx.commit(false).await?;
    for reverse in [false, true] {
        let tx = begin(engine);
        for i in (0..50u8).step_by(3) {
            tx.clear([b"range/", &[i][..]].concat())?;
        }
        tx.put([b"range/", &[7, 0][..]].concat(), b"own".to_vec())?;
        let mut want: Vec<Key> =
            (0..50u8).filter(|i| i % 3 != 0).map(|i| [b"range/", &[i][..]].concat()).collect();
        want.push([b"range/", &[7, 0][..]].concat());
        want.sort();
        if reverse {
            want.reverse();
        }
        let page = tx.get_range(b"range/", b"range0", 20, reverse).await?;
        let got: Vec<Key> = page.entries.into_iter().map(|(k, _)| k).collect();
        ensure!(got == want[..20] && page.more, "a page of 20, reverse {reverse}: {got:?}");
    }
    Ok(())
}

async fn snapshots(engine: &Rc<dyn Engine>) -> Result<()> {
    put(engine, b"snap/a", b"old").await?;
    put(engine, b"snap/gone", b"there").await?;
    let reader = begin(engine);
    reader.read_version().await?;
    put(engine, b"snap/a", b"new").await?;
    put(engine, b"snap/b", b"late").await?;
    let tx = begin(engine);
    tx.clear(b"snap/gone")?;
    tx.commit(false).await?;
    ensure!(reader.get(b"snap/a").await?.as_deref() == Some(b"old"), "a snapshot moved");
    ensure!(reader.get(b"snap/gone").await?.is_some(), "a removal changed a snapshot");
    let page = reader.get_range(b"snap/", b"snap0", 10, false).await?;
    ensure!(page.entries.len() == 2, "an insertion changed a snapshot: {:?}", page.entries);
    reader.commit(false).await?;
    let now = begin(engine);
    ensure!(now.get(b"snap/gone").await?.is_none(), "a removed key is still there");
    Ok(())
}

async fn conflicts(engine: &Rc<dyn Engine>) -> Result<()> {
    put(engine, b"con/a", b"0").await?;
    put(engine, b"con/z", b"0").await?;
    // Each: what the transaction reads, and what another one does meanwhile.
    for case in 0..6 {
        let tx = begin(engine);
        match case {
            0 | 1 | 5 => drop(tx.get(b"con/a").await?),
            2 => drop(tx.get(b"con/missing").await?),
            3 => drop(tx.get_range(b"con/", b"con0", 10, false).await?),
            _ => drop(tx.get_range(b"con/", b"con0", 10, true).await?),
        }
        let other = begin(engine);
        match case {
            0 => other.put(b"con/a", b"1")?,
            1 => other.add(b"con/a", 1)?,
            2 => other.put(b"con/missing", b"1")?,
            3 => other.put(b"con/phantom", b"1")?,
            4 => other.clear(b"con/z")?,
            _ => other.add_write_conflict(b"con/", b"con0")?,
        }
        other.commit(false).await?;
        tx.put(b"con/out", b"x")?;
        expect_status(tx.commit(false).await, Status::Conflict, &format!("conflict case {case}"))?;
    }
    // Write skew: both read both, each writes one.
    let (one, two) = (begin(engine), begin(engine));
    for tx in [&one, &two] {
        tx.get(b"skew/a").await?;
        tx.get(b"skew/b").await?;
    }
    one.put(b"skew/a", b"1")?;
    two.put(b"skew/b", b"1")?;
    one.commit(false).await?;
    expect_status(two.commit(false).await, Status::Conflict, "write skew")
}

/// What was read and is removed meanwhile is a conflict, however it was read and removed.
async fn removals(engine: &Rc<dyn Engine>) -> Result<()> {
    let all: [&[u8]; 5] = [b"rem/a", b"rem/b", b"rem/c", b"rem/d", b"rem/e"];
    for case in 0..8 {
        let fill = begin(engine);
        for key in all {
            fill.put(key, b"0")?;
        }
        fill.commit(false).await?;
        let tx = begin(engine);
        match case {
            0 | 1 => drop(tx.get(b"rem/c").await?),
            2 => drop(tx.get_all(&[b"rem/x".to_vec(), b"rem/c".to_vec()]).await?),
            // A page: up to and with the last entry that was seen.
            3 | 4 => drop(tx.get_range(b"rem/", b"rem0", 3, false).await?),
            5 => drop(tx.get_range(b"rem/", b"rem0", 3, true).await?),
            6 => tx.add_read_conflict(b"rem/b", b"rem/d")?,
            _ => drop(tx.get_range(b"rem/", b"rem0", 10, false).await?),
        }
        // `add_read_conflict` needs a version to compare with.
        tx.read_version().await?;
        let other = begin(engine);
        match case {
            1 => other.clear_range(b"rem/", b"rem0")?,
            3 => other.clear_range(b"rem/bb", b"rem/cc")?,
            _ => other.clear(b"rem/c")?,
        }
        other.commit(false).await?;
        if case == 7 {
            // Removed and back again: still not what was read.
            put(engine, b"rem/c", b"0").await?;
        }
        tx.put(b"rem/out", b"x")?;
        expect_status(tx.commit(false).await, Status::Conflict, &format!("removal case {case}"))?;
    }
    // What lies behind a page may go.
    let tx = begin(engine);
    tx.get_range(b"rem/", b"rem0", 2, false).await?;
    let other = begin(engine);
    other.clear(b"rem/d")?;
    other.commit(false).await?;
    tx.put(b"rem/out", b"x")?;
    tx.commit(false).await.map(|_| ())
}

async fn no_conflicts(engine: &Rc<dyn Engine>) -> Result<()> {
    put(engine, b"free/a", b"0").await?;
    let tx = begin(engine);
    tx.get_snapshot(b"free/a").await?;
    tx.get_range(b"free/", b"free/a", 10, false).await?;
    tx.add(b"free/n", 1)?;
    let other = begin(engine);
    other.put(b"free/a", b"1")?;
    other.add(b"free/n", 1)?;
    other.commit(false).await?;
    tx.commit(false).await?;
    let tx = begin(engine);
    ensure!(tx.get(b"free/n").await? == Some(2i64.to_le_bytes().to_vec()), "adds were lost");
    // A page that stopped early does not conflict behind its last entry.
    let tx = begin(engine);
    tx.get_range(b"free/", b"free0", 1, false).await?;
    put(engine, b"free/zz", b"1").await?;
    tx.put(b"free/out", b"1")?;
    tx.commit(false).await?;
    Ok(())
}

async fn stamps(engine: &Rc<dyn Engine>) -> Result<()> {
    let mut last = 0;
    for i in 0..5u8 {
        let tx = begin(engine);
        for j in 0..3u8 {
            tx.put_versionstamped(b"stamp/", vec![], vec![i, j])?;
        }
        let version = tx.commit(false).await?;
        ensure!(version > last, "versions do not grow");
        last = version;
    }
    let tx = begin(engine);
    let page = tx.get_range(b"stamp/", b"stamp0", 100, false).await?;
    let got: Vec<_> = page.entries.iter().map(|(_, v)| v.clone()).collect();
    let want: Vec<_> = (0..5u8).flat_map(|i| (0..3u8).map(move |j| vec![i, j])).collect();
    ensure!(got == want, "stamped keys are not in commit order");
    let bytes: Vec<_> = page.entries.iter().map(|(k, _)| k.len() - b"stamp/".len()).collect();
    let same = bytes.iter().all(|n| STAMP_BYTES.contains(n) && *n == bytes[0]);
    ensure!(same, "stamps have {bytes:?} bytes");
    Ok(())
}

/// Stamps of transactions that commit at once differ, and stand in the order of the commits.
async fn concurrent_stamps(rt: &Rt, engine: &Rc<dyn Engine>) -> Result<()> {
    let mut tasks = Vec::new();
    for i in 0..WORKERS as u8 {
        let (rt2, engine) = (rt.clone(), engine.clone());
        tasks.push(rt.spawn(async move {
            let mut versions = Vec::new();
            for j in 0..8u8 {
                let tx = begin(&engine);
                tx.put_versionstamped(b"stamps/", b"/x".to_vec(), vec![i, j])?;
                versions.push((vec![i, j], tx.commit(false).await?));
                rt2.yield_now().await;
            }
            Ok::<_, Error>(versions)
        }));
    }
    let mut versions = BTreeMap::new();
    for task in tasks {
        versions.extend(task.await?);
    }
    let page = begin(engine).get_range(b"stamps/", b"stamps0", 1000, false).await?;
    let order: Vec<_> = page.entries.iter().filter_map(|(_, v)| versions.get(v)).collect();
    ensure!(order.len() == versions.len(), "{} of {} stamps", order.len(), versions.len());
    ensure!(order.is_sorted(), "stamps are not in commit order: {order:?}");
    Ok(())
}

/// For engines whose stamps are their versions: the stamp of a commit is its version.
pub async fn stamps_are_versions(engine: &Rc<dyn Engine>) -> Result<()> {
    let tx = begin(engine);
    tx.put_versionstamped(b"stampv/", vec![], vec![])?;
    let version = tx.commit(false).await?;
    let page = begin(engine).get_range(b"stampv/", b"stampv0", 1000, true).await?;
    let newest = page.entries.first().and_then(|(k, _)| k.get(7..15).map(<[u8]>::to_vec));
    ensure!(newest == Some(version.to_be_bytes().to_vec()), "the stamp is not the commit version");
    Ok(())
}

/// A transaction of many small changes, some inside a range that it clears.
async fn many_keys(engine: &Rc<dyn Engine>) -> Result<()> {
    const KEYS: u32 = 1000;
    let key = |i: u32| [&b"many/"[..], &i.to_be_bytes()].concat();
    for round in 0..2u32 {
        let tx = begin(engine);
        tx.clear_range(b"many/", b"many0")?;
        for i in 0..KEYS {
            tx.put(key(2 * i + round), round.to_be_bytes().to_vec())?;
        }
        tx.commit(false).await?;
        let mut found = Vec::new();
        let tx = begin(engine);
        loop {
            let from = found.last().map_or_else(|| b"many/".to_vec(), |k: &Key| key_after(k));
            let page = tx.get_range_snapshot(&from, b"many0", 700, false).await?;
            found.extend(page.entries.into_iter().map(|(k, _)| k));
            if !page.more {
                break;
            }
        }
        let want: Vec<_> = (0..KEYS).map(|i| key(2 * i + round)).collect();
        ensure!(found == want, "round {round}: {} keys of {KEYS} are there", found.len());
    }
    Ok(())
}

async fn limits(engine: &Rc<dyn Engine>) -> Result<()> {
    let tx = begin(engine);
    tx.put(vec![1; KEY_BYTES_MAX], vec![2; VALUE_BYTES_MAX])?;
    tx.commit(false).await?;
    for (key, value) in [(KEY_BYTES_MAX + 2, 1), (1, VALUE_BYTES_MAX + 1)] {
        let tx = begin(engine);
        tx.put(vec![1; key], vec![2; value])?;
        expect_status(tx.commit(false).await, Status::TooLarge, "a key or value over its limit")?;
    }
    let tx = begin(engine);
    let mut result = Ok(());
    for i in 0..=(TRANSACTION_BYTES_MAX / VALUE_BYTES_MAX) as u8 {
        result = result.and(tx.put(vec![i], vec![0; VALUE_BYTES_MAX]));
    }
    expect_status(result, Status::TooLarge, "a transaction over its limit")
}

/// A range and the page of it that was seen.
struct Scan {
    begin: Key,
    end: Key,
    limit: usize,
    reverse: bool,
    saw: RangePage,
}

impl Scan {
    /// The page as it is in `state`.
    fn of(&self, state: &BTreeMap<Key, Value>) -> RangePage {
        let range = state.range(self.begin.clone()..self.end.clone());
        let mut all: Vec<_> = range.map(|(k, v)| (k.clone(), v.clone())).collect();
        if self.reverse {
            all.reverse();
        }
        let more = all.len() > self.limit;
        all.truncate(self.limit);
        RangePage { entries: all, more }
    }
}

/// A change of a transaction.
enum Change {
    Put(Key, Value),
    Clear(Key),
    ClearRange(Key, Key),
    Add(Key, i64),
}

impl Change {
    fn ask(&self, tx: &Transaction) -> Result<()> {
        match self {
            Self::Put(key, value) => tx.put(key.clone(), value.clone()),
            Self::Clear(key) => tx.clear(key.clone()),
            Self::ClearRange(begin, end) => tx.clear_range(begin, end),
            Self::Add(key, delta) => tx.add(key.clone(), *delta),
        }
    }
    fn apply(self, state: &mut BTreeMap<Key, Value>) {
        match self {
            Self::Put(key, value) => drop(state.insert(key, value)),
            Self::Clear(key) => drop(state.remove(&key)),
            Self::ClearRange(begin, end) => state.retain(|k, _| *k < begin || *k >= end),
            Self::Add(key, delta) => {
                let old = state.get(&key).and_then(|v| v.as_slice().try_into().ok());
                let sum = old.map_or(0, i64::from_le_bytes).wrapping_add(delta);
                state.insert(key, sum.to_le_bytes().to_vec());
            }
        }
    }
}

/// What a committed transaction saw and did.
struct Trace {
    read_version: Version,
    version: Option<Version>,
    gets: Vec<(Key, Option<Value>)>,
    scans: Vec<Scan>,
    changes: Vec<Change>,
    /// What stands under its stamp.
    id: Value,
}

/// Random transactions at once. Replayed in the order of their commit versions, each must see exactly what it saw.
async fn serializable(
    rt: &Rt,
    engines: [&Rc<dyn Engine>; 2],
    seed: u64,
    rounds: u32,
) -> Result<()> {
    let engine = engines[0];
    let traces: Rc<RefCell<Vec<Trace>>> = Rc::default();
    let mut workers = Vec::new();
    for w in 0..WORKERS {
        let engine = engines[(w % 2) as usize];
        let (rt2, engine, traces) = (rt.clone(), engine.clone(), traces.clone());
        workers.push(rt.spawn(async move {
            let mut random = Random(seed.wrapping_add(w.wrapping_mul(0x9e37_79b9)));
            for _ in 0..rounds {
                one_random(&rt2, &engine, &mut random, &traces).await?;
            }
            Ok::<(), Error>(())
        }));
    }
    for w in workers {
        w.await?;
    }
    let mut traces = std::mem::take(&mut *traces.borrow_mut());
    // Stamps tell commits of one version apart. A reader stands just behind the version that it read.
    let order = stamped_order(engine).await?;
    traces.sort_by_key(|t| match t.version {
        Some(v) => (v, order.get(&t.id).copied().unwrap_or(usize::MAX)),
        None => (t.read_version, usize::MAX),
    });
    let mut state: BTreeMap<Key, Value> = BTreeMap::new();
    for t in traces {
        for (key, saw) in &t.gets {
            ensure!(
                state.get(key) == saw.as_ref(),
                "at {:?}: {key:?} was seen as {saw:?}, is {:?}",
                t.version,
                state.get(key)
            );
        }
        for scan in &t.scans {
            let (is, saw) = (scan.of(&state), &scan.saw);
            // A page that ends where the range does may say that there is more, none the other way round.
            let same = is.entries == saw.entries && (saw.more || !is.more);
            ensure!(same, "at {:?}: a range was seen as {saw:?}, is {is:?}", t.version);
        }
        for change in t.changes {
            change.apply(&mut state);
        }
    }
    let tx = begin(engine);
    let page = tx.get_range(b"ser/", b"ser0", 1000, false).await?;
    ensure!(page.entries == state.into_iter().collect::<Vec<_>>(), "the end state differs");
    Ok(())
}

/// The ids of all writers with the places of their stamps.
async fn stamped_order(engine: &Rc<dyn Engine>) -> Result<BTreeMap<Value, usize>> {
    let (mut order, mut from) = (BTreeMap::new(), b"order/".to_vec());
    let tx = begin(engine);
    loop {
        let page = tx.get_range_snapshot(&from, b"order0", 1000, false).await?;
        for (key, id) in page.entries {
            from = key_after(&key);
            let place = order.len();
            ensure!(order.insert(id, place).is_none(), "a transaction was committed twice");
        }
        if !page.more {
            return Ok(order);
        }
    }
}

async fn one_random(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    random: &mut Random,
    traces: &RefCell<Vec<Trace>>,
) -> Result<()> {
    let tx = begin(engine);
    let mut t = Trace {
        read_version: tx.read_version().await?,
        version: None,
        gets: vec![],
        scans: vec![],
        changes: vec![],
        id: random.next().to_le_bytes().to_vec(),
    };
    for _ in 0..1 + random.below(3) {
        let key = random.key();
        if random.below(3) == 0 {
            let (begin, end) = random.range(key);
            // Often cut off.
            let (limit, reverse) = (1 + random.below(8), random.below(2) == 0);
            let saw = tx.get_range(&begin, &end, limit as u32, reverse).await?;
            t.scans.push(Scan { begin, end, limit: limit as usize, reverse, saw });
        } else {
            let saw = tx.get(&key).await?;
            t.gets.push((key, saw));
        }
        if random.below(4) == 0 {
            rt.sleep(Duration::from_micros(random.below(200))).await;
        } else {
            rt.yield_now().await;
        }
    }
    for _ in 0..random.below(3) {
        let key = random.key();
        let change = match random.below(8) {
            0 | 1 => Change::Clear(key),
            2 => {
                let (begin, end) = random.range(key);
                Change::ClearRange(begin, end)
            }
            3 | 4 => Change::Add(key, random.next() as i64),
            _ => Change::Put(key, random.next().to_le_bytes().to_vec()),
        };
        change.ask(&tx)?;
        t.changes.push(change);
    }
    let writes = !tx.is_read_only();
    if writes {
        tx.put_versionstamped(b"order/", vec![], t.id.clone())?;
    }
    match tx.commit(random.below(16) == 0).await {
        Ok(version) => {
            t.version = writes.then_some(version);
            traces.borrow_mut().push(t);
            Ok(())
        }
        Err(e) if matches!(e.status, Status::Conflict | Status::TooOld) => Ok(()),
        Err(e) => Err(e),
    }
}

/// SplitMix64.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        glowfs_types::layout::splitmix64(self.0)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// From or up to a key.
    fn range(&mut self, key: Key) -> (Key, Key) {
        let end = self.key();
        if key < end { (key, end) } else { (end, key) }
    }
    fn key(&mut self) -> Key {
        [&b"ser/"[..], &[b'a' + self.below(12) as u8]].concat()
    }
}

/// Counts up concurrently with read-modify-write transactions in the retry loop; none may be lost.
pub async fn counters(rt: &Rt, engine: &Rc<dyn Engine>, workers: u32, each: u32) -> Result<()> {
    let mut tasks = Vec::new();
    for _ in 0..workers {
        let (rt2, engine) = (rt.clone(), engine.clone());
        tasks.push(rt.spawn(async move {
            for _ in 0..each {
                run_transaction(&rt2, &engine, async |tx| {
                    let n = tx.get(b"counter").await?.map_or(0, |v| v.len());
                    tx.put(b"counter", vec![0; n + 1])
                })
                .await?;
            }
            Ok::<(), Error>(())
        }));
    }
    for t in tasks {
        t.await?;
    }
    let tx = begin(engine);
    let n = tx.get(b"counter").await?.map_or(0, |v| v.len());
    ensure!(n == (workers * each) as usize, "{n} increments are left of {}", workers * each);
    tx.get_range(b"counter", &key_after(b"counter"), 1, false).await.map(|_| ())
}
