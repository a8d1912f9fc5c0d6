//! What the runtime costs: spawn and switch of tasks, and CPU of small direct reads over both ways of waiting.
//!
//! `cargo run --release -p glowfs-rt --example cost [DIRECTORY]`

use glowfs_rt::Rt;
use glowfs_rt::backend::OpenOptions;
use glowfs_rt::real::{Config, Io, run_with};
use glowfs_rt::sync::join_all;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 64 << 20;

/// User and system time of this process.
fn cpu() -> Duration {
    // SAFETY: `usage` is a plain structure that getrusage fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

async fn tasks(rt: &Rt) {
    const N: u32 = 1_000_000;
    let begin = cpu();
    for _ in 0..N / 100 {
        join_all((0..100).map(|_| rt.spawn(async {}))).await;
    }
    let spawn = (cpu() - begin) / N;
    let begin = cpu();
    for _ in 0..N / 100 {
        for _ in 0..100 {
            rt.spawn_detached(async {});
        }
        rt.yield_now().await;
    }
    let detached = (cpu() - begin) / N;
    let begin = cpu();
    let two = (0..2).map(|_| {
        let rt2 = rt.clone();
        rt.spawn(async move {
            for _ in 0..N / 2 {
                rt2.yield_now().await;
            }
        })
    });
    join_all(two).await;
    let switch = (cpu() - begin) / N;
    let begin = cpu();
    for _ in 0..N {
        drop(rt.alloc(4096));
    }
    let alloc = (cpu() - begin) / N;
    println!(
        "spawn + join {spawn:?}, spawn detached {detached:?}, switch {switch:?}, buffer {alloc:?}"
    );
}

async fn reads(rt: &Rt, dir: PathBuf) {
    let dir = rt.open_dir(&dir).expect("directory");
    let file = dir.open("cost", OpenOptions { create: true, direct: true }).await.expect("file");
    for i in 0..FILE_BYTES >> 20 {
        let mut buf = rt.alloc(1 << 20);
        buf.fill(i as u8);
        file.write(vec![buf.freeze()], i << 20).await.expect("write");
    }
    for (depth, bytes, total) in
        [(1u64, 4096u64, 20_000u64), (16, 4096, 60_000), (4, 1 << 20, 2000)]
    {
        let (begin, wall) = (cpu(), Instant::now());
        let lanes = (0..depth).map(|lane| {
            let (rt2, file) = (rt.clone(), file.clone());
            rt.spawn(async move {
                let mut buf = rt2.alloc(bytes as usize);
                for i in 0..total / depth {
                    let at = (lane + i * depth).wrapping_mul(7919) % (FILE_BYTES / bytes) * bytes;
                    let (n, back) = file.read(buf, at).await;
                    assert_eq!(n.expect("read"), bytes as usize);
                    buf = back;
                }
            })
        });
        join_all(lanes).await;
        let (used, wall) = (cpu() - begin, wall.elapsed());
        println!(
            "read {bytes} B, {depth} at a time: {:.2} us CPU each, {:.0}/s",
            used.as_secs_f64() * 1e6 / total as f64,
            total as f64 / wall.as_secs_f64()
        );
    }
    dir.remove("cost").await.expect("remove");
}

fn main() {
    let dir: PathBuf = std::env::args().nth(1).unwrap_or_else(|| ".".into()).into();
    for io in [Io::Uring, Io::Epoll] {
        println!("{io:?}");
        let dir = dir.clone();
        let done = run_with(Config { io, ..Config::default() }, move |rt| async move {
            tasks(&rt).await;
            reads(&rt, dir).await;
        });
        if let Err(e) = done {
            println!("not here: {e}");
        }
    }
}
