//! Creates per second and CPU per create, in process over the embedded engine:
//! `cargo run --release -p glowfs-namespace --example creates -- DIR [FILES] [OUTSTANDING]`.

mod embedded;
mod world;

use embedded::cpu_seconds;
use glowfs_kv::{Engine, run_transaction};
use glowfs_namespace::{Context, make};
use glowfs_rt::real;
use glowfs_types::wire::meta::{InodeKind, Make};
use glowfs_types::{Error, InodeId, RequestId, Result};
use std::rc::Rc;
use world::{World, caller};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let dir = args.get(1).cloned().unwrap_or_else(|| "creates.tmp".into());
    let number = |i: usize, or: u64| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(or);
    let (files, outstanding) = (number(2, 200_000), number(3, 16));
    real::run(|rt| async move {
        let world = World::new(&rt);
        let embedded = embedded::open(&rt, &dir, &world).await?;
        let engine: Rc<dyn Engine> = Rc::new(embedded.clone());
        let (begin, cpu) = (rt.now(), cpu_seconds());
        let mut tasks = Vec::new();
        for w in 0..outstanding {
            let (rt2, engine, world) = (rt.clone(), engine.clone(), world.clone());
            tasks.push(rt.spawn(async move {
                for i in 0..files / outstanding {
                    let q = Make {
                        caller: caller(),
                        request: RequestId(rt2.random_u128()),
                        parent: InodeId(1),
                        name: format!("f-{}-{w}-{i}", std::process::id()).into_bytes().into(),
                        kind: InodeKind::File,
                        mode: 0o644,
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
