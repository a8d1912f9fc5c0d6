//! User-space rings between two threads of this process: what the shared memory, the indices and the doorbells cost, with no file system behind.

use super::Given;
use crate::cpu::Processes;
use crate::latency::Latencies;
use crate::row::Row;
use anyhow::{Context, Result};
use glowfs_usrbio::{
    Completion, Consumer, Doorbell, Producer, SharedMemory, Submission, ring_bytes,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;
use std::time::Instant;

/// Entries of the rings; the depth is how many of them are used at a time.
const ENTRIES: u32 = 256;
/// The kind of the submission that ends the other thread.
const END: u32 = 99;

/// See the module.
pub fn ring(given: Given) -> Result<Vec<Row>> {
    let mut rows = vec![];
    for depth in [1u32, 8, 64, 256] {
        let plan = given.plan("ring", "echo", "two threads", 64, depth);
        let mut application = Producer::new(ENTRIES).context("a ring")?;
        let (daemon, bell) = other_end(&application)?;
        let server = std::thread::spawn(move || serve(&daemon, &bell));
        let mut latencies = Latencies::default();
        let cpu = Processes::default();
        let (used, start) = (cpu.seconds(), Instant::now());
        while start.elapsed() < plan.time {
            let began = Instant::now();
            for user in 0..u64::from(depth) {
                application.prepare(Submission { kind: 1, user, ..Submission::default() });
            }
            application.submit()?;
            let mut left = depth;
            while left > 0 {
                if application.take().is_some() {
                    left -= 1;
                } else {
                    match application.waiter().wait(application.taken(), None) {
                        // A whole second without news: the other thread waits for a processor.
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        other => drop(other?),
                    }
                }
            }
            let each = began.elapsed();
            (0..depth).for_each(|_| latencies.note(each));
        }
        let (took, used) = (start.elapsed(), cpu.seconds() - used);
        application.prepare(Submission { kind: END, ..Submission::default() });
        application.submit()?;
        server.join().map_err(|_| anyhow::anyhow!("the other end of the ring panicked"))?;
        given.done(&mut rows, plan.row(took, used, &latencies));
    }
    Ok(rows)
}

fn other_end(application: &Producer) -> Result<(Consumer, Doorbell)> {
    let memory = application.memory().as_fd().try_clone_to_owned()?;
    let memory = SharedMemory::adopt(memory, ring_bytes(ENTRIES))?;
    let bell = Doorbell::adopt(application.bell().as_fd().try_clone_to_owned()?)?;
    Ok((Consumer::new(memory, ENTRIES)?, bell))
}

/// Answers everything at once; sleeps when there is nothing, as the daemon does.
fn serve(daemon: &Consumer, bell: &Doorbell) {
    while let Ok(there) = daemon.available() {
        for _ in 0..there {
            let s = daemon.take();
            if s.kind == END {
                return;
            }
            daemon.complete(Completion { user: s.user, result: 0 });
        }
        if there == 0 {
            daemon.sleeps(true);
            if daemon.available() == Ok(0) {
                let _ = poll(&mut [PollFd::new(bell, PollFlags::IN)], None);
            }
            daemon.sleeps(false);
            bell.take();
        }
    }
}
