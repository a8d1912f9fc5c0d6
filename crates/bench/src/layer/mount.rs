//! A mount, by system calls of threads (direct I/O), and its rings.

use super::{Given, LOADS};
use crate::cluster::Cluster;
use crate::drive::{Plan, scatter};
use crate::latency::Latencies;
use crate::row::Row;
use anyhow::{Context, Result, bail, ensure};
use glowfs_usrbio::{Connection, Kind, RingOptions};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// See the module. The limit is the disk with the same load, divided by three copies.
pub fn mount(cluster: &Cluster, given: Given) -> Result<Vec<Row>> {
    let path = cluster.mount.join("bench-mount");
    fill(&path, given.size)?;
    let mut rows = vec![];
    for (what, bytes, depth) in LOADS {
        let mut plan = given.plan("mount", what, "syscalls", bytes, depth);
        plan.who = cluster.access.who.clone();
        let row = by_threads(&path, &plan, given.size)?;
        given.done(&mut rows, given.limited(row, 3.0));
    }
    for (what, bytes, depth) in LOADS {
        let mut plan = given.plan("mount", what, "rings", bytes, depth);
        plan.who = cluster.access.who.clone();
        let row = by_ring(&path, &plan, given.size)?;
        given.done(&mut rows, given.limited(row, 3.0));
    }
    std::fs::remove_file(&path)?;
    Ok(rows)
}

fn fill(path: &Path, size: u64) -> Result<()> {
    let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    let data: Vec<u8> = (0..1 << 20).map(|i: usize| (i * 7 + i / 4096) as u8).collect();
    for at in (0..size).step_by(data.len()) {
        file.write_all_at(&data, at)?;
    }
    Ok(file.sync_all()?)
}

fn open(path: &Path) -> Result<File> {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    Ok(File::options().read(true).write(true).custom_flags(direct).open(path)?)
}

/// Memory that direct I/O takes: whole pages.
struct Pages(Vec<u8>, usize, usize);
impl Pages {
    fn new(len: usize) -> Self {
        let memory: Vec<u8> = (0..len + 4096).map(|i| i as u8).collect();
        let skip = memory.as_ptr().align_offset(4096);
        Self(memory, skip, len)
    }
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + self.2]
    }
}

fn by_threads(path: &Path, plan: &Plan, size: u64) -> Result<Row> {
    let (next, places) = (AtomicU64::new(0), size / plan.bytes);
    let (cpu, start) = (plan.who.seconds(), Instant::now());
    let one = || -> Result<Latencies> {
        let (file, mut memory) = (open(path)?, Pages::new(plan.bytes as usize));
        let mut latencies = Latencies::default();
        while start.elapsed() < plan.time {
            let at = scatter(next.fetch_add(1, Relaxed), places) * plan.bytes;
            let began = Instant::now();
            match plan.what {
                "read" => file.read_exact_at(memory.bytes(), at)?,
                _ => file.write_all_at(memory.bytes(), at)?,
            }
            latencies.note(began.elapsed());
        }
        Ok(latencies)
    };
    let all = std::thread::scope(|s| -> Result<Latencies> {
        let threads: Vec<_> = (0..plan.depth).map(|_| s.spawn(one)).collect();
        let mut all = Latencies::default();
        for t in threads {
            match t.join() {
                Ok(l) => all.add(&l?),
                Err(_) => bail!("a thread of the benchmark panicked"),
            }
        }
        Ok(all)
    })?;
    Ok(plan.row(start.elapsed(), plan.who.seconds() - cpu, &all))
}

fn by_ring(path: &Path, plan: &Plan, size: u64) -> Result<Row> {
    let connection = Connection::open(path).context("the rings of the mount")?;
    let file = connection.register(File::options().read(true).write(true).open(path)?)?;
    let kind = if plan.what == "read" { Kind::Read } else { Kind::Write };
    let mut ring = connection.ring(RingOptions::new(kind, plan.depth.next_power_of_two()))?;
    let bytes = plan.bytes as usize;
    let buffer = connection.buffer(bytes * plan.depth as usize)?;
    let (places, mut next, mut latencies) = (size / plan.bytes, 0u64, Latencies::default());
    let (cpu, start) = (plan.who.seconds(), Instant::now());
    let mut began = vec![start; plan.depth as usize];
    let mut free: Vec<usize> = (0..plan.depth as usize).collect();
    loop {
        let time_left = start.elapsed() < plan.time;
        while time_left && let Some(slot) = free.pop() {
            began[slot] = Instant::now();
            ring.prepare(
                &file,
                scatter(next, places) * plan.bytes,
                &buffer,
                slot * bytes,
                bytes,
                slot as u64,
            )?;
            next += 1;
        }
        if ring.outstanding() == 0 {
            break;
        }
        ring.submit()?;
        ring.wait(None)?;
        while let Some(done) = ring.take() {
            ensure!(
                done.result == bytes as i64,
                "an operation of the ring answered {}",
                done.result
            );
            let slot = done.user as usize;
            latencies.note(began[slot].elapsed());
            free.push(slot);
        }
    }
    Ok(plan.row(start.elapsed(), plan.who.seconds() - cpu, &latencies))
}
