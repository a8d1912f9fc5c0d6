//! Random transactions at once, replayed one after the other: each must have seen exactly what it sees then.

use super::{WORKERS, begin};
use crate::{Engine, Key, RangePage, Transaction, Value, Version, key_after};
use glowfs_rt::{Duration, Rt};
use glowfs_types::{Error, Result, Status};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

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
pub(super) async fn serializable(
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
