//! Runs an operation over and over, so many at a time, until the time is over.

use crate::cpu::Processes;
use crate::latency::Latencies;
use crate::row::Row;
use glowfs_rt::Rt;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What is measured, and for how long.
#[derive(Clone)]
pub struct Plan {
    /// Its names.
    pub layer: &'static str,
    /// See [`Row`].
    pub what: &'static str,
    /// See [`Row`].
    pub way: String,
    /// Bytes of an operation.
    pub bytes: u64,
    /// Operations at a time.
    pub depth: u32,
    /// How long.
    pub time: Duration,
    /// Whose CPU time counts.
    pub who: Processes,
}

impl Plan {
    /// The row of what was seen.
    pub fn row(&self, took: Duration, cpu: f64, latencies: &Latencies) -> Row {
        let ops = latencies.count() as f64;
        let rate = ops / took.as_secs_f64().max(1e-9);
        Row {
            layer: self.layer.into(),
            what: self.what.into(),
            way: self.way.clone(),
            bytes: self.bytes,
            depth: self.depth,
            jobs: 1,
            ops_per_second: rate,
            bytes_per_second: rate * self.bytes as f64,
            latency_us: latencies.summary(),
            cpu_us_per_op: (ops > 0.0).then_some(cpu * 1e6 / ops),
            ..Row::default()
        }
    }
}

/// Runs `op` (it gets the number of the operation) on the runtime. The first error ends it.
pub async fn drive<F>(rt: &Rt, plan: &Plan, op: impl Fn(u64) -> F + 'static) -> anyhow::Result<Row>
where
    F: Future<Output = anyhow::Result<()>> + 'static,
{
    let op = Rc::new(op);
    let next = Rc::new(Cell::new(0u64));
    let latencies = Rc::new(RefCell::new(Latencies::default()));
    let cpu = plan.who.seconds();
    let start = Instant::now();
    let end = start + plan.time;
    let lanes: Vec<_> = (0..plan.depth)
        .map(|_| {
            let (op, next, latencies) = (op.clone(), next.clone(), latencies.clone());
            rt.spawn(async move {
                let mut now = Instant::now();
                while now < end {
                    let n = next.get();
                    next.set(n + 1);
                    op(n).await?;
                    let done = Instant::now();
                    latencies.borrow_mut().note(done - now);
                    now = done;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for lane in lanes {
        lane.await?;
    }
    let row = plan.row(start.elapsed(), plan.who.seconds() - cpu, &latencies.borrow());
    Ok(row)
}

/// The same on this thread without a runtime, one at a time.
pub fn spin(plan: &Plan, mut op: impl FnMut(u64)) -> Row {
    let mut latencies = Latencies::default();
    let cpu = plan.who.seconds();
    let start = Instant::now();
    let (mut now, mut n) = (start, 0);
    while now - start < plan.time {
        op(n);
        n += 1;
        let done = Instant::now();
        latencies.note(done - now);
        now = done;
    }
    plan.row(start.elapsed(), plan.who.seconds() - cpu, &latencies)
}

/// A place for the n-th operation, scattered over `places`, each once before any twice if `places` is a power of two.
pub fn scatter(n: u64, places: u64) -> u64 {
    // Odd, so it is a permutation of a power of two; about the golden ratio, so neighbours are far apart.
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places.max(1)
}
