//! Creates per second and CPU per create, in process over the embedded engine:
//! `cargo run --release -p glowfs-namespace --example creates -- DIR [FILES] [OUTSTANDING]`.

use glowfs_kv::{Embedded, EmbeddedConfig, Engine, run_transaction};
use glowfs_namespace::{Context, Env, RootSpec, bootstrap, make};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::meta::{Caller, InodeKind, Make, Time};
use glowfs_types::{
    ChainTableId, ClusterId, DataId, Durability, Error, InodeId, Layout, Redundancy, RequestId,
    Result, VolumeId,
};
use std::cell::Cell;
use std::rc::Rc;

struct World {
    rt: Rt,
    id: Cell<u64>,
}

impl Env for World {
    fn now(&self) -> Time {
        let ns = self.rt.unix_ns();
        Time { secs: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
    }
    fn new_id(&self) -> Result<u64> {
        self.id.set(self.id.get() + 1);
        Ok(self.id.get())
    }
    fn new_data(&self) -> Result<DataId> {
        self.new_id().map(DataId)
    }
    fn place(&self, inherited: &Layout, _: DataId) -> Result<Layout> {
        Ok(*inherited)
    }
}

fn layout() -> Layout {
    Layout {
        table: ChainTableId(1),
        table_version: 1,
        chunk_bytes: 1 << 20,
        stripe: 4,
        start: 0,
        redundancy: Redundancy::Replicated,
        durability: Durability::Written,
        inline_bytes: 0,
    }
}

fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit(')').next().unwrap_or_default();
    let field = |i: usize| {
        after.split_whitespace().nth(i).and_then(|s| s.parse::<f64>().ok()).unwrap_or(0.0)
    };
    (field(11) + field(12)) / 100.0
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let dir = args.get(1).cloned().unwrap_or_else(|| "creates.tmp".into());
    let number = |i: usize, or: u64| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(or);
    let (files, outstanding) = (number(2, 200_000), number(3, 16));
    real::run(|rt| async move {
        let opened = rt.open_dir(std::path::Path::new(&dir))?;
        let embedded = Embedded::open(&rt, opened, EmbeddedConfig::new(ClusterId(1))).await?;
        let engine: Rc<dyn Engine> = Rc::new(embedded.clone());
        let world =
            Rc::new(World { rt: rt.clone(), id: Cell::new(u64::from(std::process::id()) << 32) });
        let caller = Caller { volume: VolumeId(1), ..Caller::default() };
        let spec = RootSpec { mode: 0o755, uid: 0, gid: 0, layout: layout() };
        run_transaction(&rt, &engine, async |tx| {
            bootstrap(&Context::new(tx, &caller, &*world), &spec).await
        })
        .await?;
        let (begin, cpu) = (rt.now(), cpu_seconds());
        let mut tasks = Vec::new();
        for w in 0..outstanding {
            let (rt2, engine, world, caller) =
                (rt.clone(), engine.clone(), world.clone(), caller.clone());
            tasks.push(rt.spawn(async move {
                for i in 0..files / outstanding {
                    let q = Make {
                        caller: caller.clone(),
                        request: RequestId(rt2.random_u128()),
                        parent: InodeId(1),
                        name: format!("f-{}-{w}-{i}", std::process::id()).into_bytes().into(),
                        kind: InodeKind::File,
                        mode: 0o644,
                        rdev: 0,
                        symlink: Vec::new(),
                        open: None,
                        exclusive: true,
                        ..Make::default()
                    };
                    let once = async |tx: &_| make(&Context::new(tx, &q.caller, &*world), &q).await;
                    run_transaction(&rt2, &engine, once).await?;
                }
                Ok::<(), Error>(())
            }));
        }
        for t in tasks {
            t.await?;
        }
        let seconds = rt.now().since(begin).as_secs_f64();
        let n = (files / outstanding * outstanding) as f64;
        println!(
            "{n} creates, {outstanding} outstanding: {:.0}/s, {:.1} us CPU each; {:?}",
            n / seconds,
            (cpu_seconds() - cpu) / n * 1e6,
            embedded.stats()
        );
        embedded.close().await
    })
}
