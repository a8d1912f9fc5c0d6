//! What an operation costs as the file system grows, in process over the embedded engine:
//! `cargo run --release -p glowfs-namespace --example growth -- DIR [INODES_MAX] [--json]`.
//!
//! At each size: CPU of a create since the last one (checkpoints inside), of a look-up at random, of removing a file and making it again
//! (rate and CPU), memory of the process for each inode, and how long the engine takes to open. Files lie in directories of
//! [`DIR_FILES`]. Not inside: messages, the mount, leases.

mod embedded;
mod world;

use embedded::cpu_seconds;
use glowfs_kv::{Embedded, Engine, run_transaction};
use glowfs_namespace::{Context, Made, lookup, make, unlink};
use glowfs_rt::{Duration, Rt, real};
use glowfs_types::wire::meta::{InodeKind, Lookup, Make, Unlink};
use glowfs_types::{Error, InodeId, RequestId, Result, Status};
use std::rc::Rc;
use world::{World, caller};

#[global_allocator]
static HEAP: glowfs_rt::Heap = glowfs_rt::Heap;

/// Files of a directory.
const DIR_FILES: u64 = 10_000;
/// Operations that are under way at once.
const OUTSTANDING: u64 = 16;
/// Look-ups, and files made anew, at each size.
const SAMPLES: u64 = 100_000;

/// Longer than the engine keeps old versions.
const SETTLE: Duration = Duration::from_secs(6);

/// The file system while it grows.
struct Growing {
    rt: Rt,
    world: Rc<World>,
    embedded: Embedded,
    dirs: Vec<InodeId>,
    files: u64,
}

/// A size of the file system, and what was measured there.
struct Row {
    inodes: u64,
    create_us: f64,
    lookup_us: f64,
    again_us: f64,
    bytes: f64,
    restart_s: f64,
}

impl Growing {
    fn engine(&self) -> Rc<dyn Engine> {
        Rc::new(self.embedded.clone())
    }

    async fn make(&self, parent: InodeId, name: String, kind: InodeKind) -> Result<Made> {
        let q = Make {
            caller: caller(),
            request: RequestId(self.rt.random_u128()),
            parent,
            name: name.into_bytes().into(),
            kind,
            mode: 0o755,
            exclusive: true,
            ..Make::default()
        };
        let once = async |tx: &_| make(&Context::new(tx, &q.caller, &*self.world), &q).await;
        run_transaction(&self.rt, &self.engine(), once).await
    }

    /// Where file `n` is, and its name.
    fn place(&self, n: u64) -> (InodeId, String) {
        (self.dirs[(n / DIR_FILES) as usize], format!("file-{n:09}"))
    }

    async fn lookup(&self, n: u64) -> Result<()> {
        let (parent, name) = self.place(n);
        let q = Lookup { caller: caller(), parent, name: name.into_bytes().into() };
        let once = async |tx: &_| lookup(&Context::new(tx, &q.caller, &*self.world), &q).await;
        run_transaction(&self.rt, &self.engine(), once).await.map(drop)
    }

    async fn make_again(&self, n: u64) -> Result<()> {
        let (parent, name) = self.place(n);
        let q = Unlink {
            caller: caller(),
            request: RequestId(self.rt.random_u128()),
            parent,
            name: name.clone().into_bytes().into(),
            directory: false,
        };
        let once = async |tx: &_| unlink(&Context::new(tx, &q.caller, &*self.world), &q).await;
        run_transaction(&self.rt, &self.engine(), once).await?;
        self.make(parent, name, InodeKind::File).await.map(drop)
    }

    /// Runs `work` with each number of `range`, several at once. Microseconds of CPU for each.
    async fn each<F: Future<Output = Result<()>> + 'static>(
        self: &Rc<Self>,
        range: std::ops::Range<u64>,
        work: impl Fn(Rc<Self>, u64) -> F + Copy + 'static,
    ) -> Result<f64> {
        let (count, cpu) = (range.end - range.start, cpu_seconds());
        let task = |w: u64| {
            let (this, range) = (self.clone(), range.clone());
            self.rt.spawn(async move {
                for n in (range.start + w..range.end).step_by(OUTSTANDING as usize) {
                    work(this.clone(), n).await?;
                }
                Ok::<(), Error>(())
            })
        };
        let tasks: Vec<_> = (0..OUTSTANDING).map(task).collect();
        for t in tasks {
            t.await?;
        }
        self.settled().await;
        Ok((cpu_seconds() - cpu) / count as f64 * 1e6)
    }

    /// What was superseded is dropped seconds later, and belongs to the work that did it.
    async fn settled(&self) {
        let mut left = u64::MAX;
        loop {
            self.rt.sleep(SETTLE).await;
            let now = self.embedded.stats().old_versions;
            if now >= left {
                return;
            }
            left = now;
        }
    }

    /// Grows to `size` files, measures there, and closes and opens the engine.
    async fn step(mut self, dir: &str, size: u64) -> Result<(Self, Row)> {
        while (self.dirs.len() as u64) * DIR_FILES < size {
            let name = format!("dir-{}", self.dirs.len());
            let made = self.make(InodeId(1), name, InodeKind::Directory).await?;
            self.dirs.push(made.attr.inode);
        }
        let this = Rc::new(self);
        let create_us = this
            .each(this.files..size, |g, n| async move {
                let (parent, name) = g.place(n);
                g.make(parent, name, InodeKind::File).await.map(drop)
            })
            .await?;
        let lookup_us = this
            .each(0..SAMPLES, move |g, _| async move { g.lookup(g.rt.random() % size).await })
            .await?;
        // Each number once: 7919 is a prime that divides no size.
        let again_us =
            this.each(0..SAMPLES.min(size), move |g, n| async move {
                g.make_again(n * 7919 % size).await
            })
            .await?;
        let bytes = resident_bytes() / size as f64;
        this.embedded.close().await?;
        let mut this =
            Rc::into_inner(this).ok_or_else(|| Error::new(Status::Internal, "still in use"))?;
        let rt = this.rt.clone();
        drop(this.embedded);
        let began = rt.now();
        this.embedded = embedded::open(&rt, dir, &this.world).await?;
        this.files = size;
        let restart_s = rt.now().since(began).as_secs_f64();
        Ok((this, Row { inodes: size, create_us, lookup_us, again_us, bytes, restart_s }))
    }
}

/// Memory of this process.
fn resident_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|s| s.parse::<f64>().ok()).unwrap_or(0.0) * 4096.0
}

impl Row {
    fn say(&self, json: bool) {
        let Self { inodes, create_us, lookup_us, again_us, bytes, restart_s } = self;
        if json {
            println!(
                "{{\"inodes\":{inodes},\"create_us\":{create_us:.2},\"lookup_us\":{lookup_us:.2},\
                 \"remove_and_create_us\":{again_us:.2},\"bytes_per_inode\":{bytes:.0},\
                 \"restart_s\":{restart_s:.2}}}"
            );
        } else {
            println!(
                "{inodes:>9} inodes: create {create_us:.1} us, look-up {lookup_us:.1} us, remove and create \
                 {again_us:.1} us, {bytes:.0} B an inode, restart {restart_s:.1} s"
            );
        }
    }
}

fn main() -> Result<()> {
    let (options, args): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let json = options.iter().any(|o| o == "--json");
    let dir = args.first().cloned().unwrap_or_else(|| "growth.tmp".into());
    let max = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    real::run(|rt| async move {
        let world = World::new(&rt);
        let embedded = embedded::open(&rt, &dir, &world).await?;
        let mut growing = Growing { rt, world, embedded, dirs: Vec::new(), files: 0 };
        let sizes = (4..).flat_map(|e| [10u64.pow(e), 3 * 10u64.pow(e)]);
        for size in sizes.take_while(|s| *s <= max) {
            let (next, row) = growing.step(&dir, size).await?;
            row.say(json);
            growing = next;
        }
        growing.embedded.close().await
    })
}
