//! The garbage queue: chunks of data that went out of reach are removed.
//!
//! Guarantees: such data is kept for `GC_GRACE`, and until that it went is on disk; a chain that is away, or does not answer, holds up only what needs it. Must never: remove
//! chunks that an inode leads to or that a loss of power could bring back.

use crate::background::{Damaged, not_away};
use crate::state::{Service, VOLUME};
use glowfs_kv::Key;
use glowfs_namespace::{self as ns};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Duration, Instant};
use glowfs_types::{ChainId, Error, Result, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Entries of the garbage queue worked on at once.
const GC_BATCH: u32 = 256;
/// Entries whose chunks are removed at once.
const GC_PARALLEL: usize = 16;
/// How long data stays after it went out of reach: longer than a client reads without asking again whether the file was cut.
const GC_GRACE: Duration = Duration::from_secs(1);
/// Chunks removed by one call.
const GC_CHUNKS: u32 = 1024;
/// How long the answer to one such call is waited for: what it asked for may be done all the same, and what is left is asked for in the next round.
const REMOVAL_MAX: Duration = Duration::from_secs(5);
/// What can be passed over in one round, since its chain does not serve or answer; beyond that the round ends.
const PASSED_OVER_MAX: usize = 4096;

/// The garbage queue as it was some time ago.
#[derive(Default)]
pub struct Garbage {
    /// The newest entry at that time, and the time.
    marks: VecDeque<(Instant, Key)>,
    damaged: Damaged,
}

impl Garbage {
    /// Removes the chunks of data that nobody can reach, and that nobody can be in the middle of reading.
    pub async fn collect(&mut self, s: &Service) -> Result<()> {
        let newest = s.look(async |tx| ns::newest_garbage(tx, VOLUME).await).await?;
        let Some(newest) = newest else {
            self.marks.clear();
            self.damaged = Damaged::default();
            s.metrics.damaged_garbage.set(0);
            return Ok(());
        };
        let now = s.rt.now();
        if self.marks.back().is_none_or(|(_, key)| *key < newest) {
            self.marks.push_back((now, newest));
        }
        let mut ripe = None;
        while self.marks.front().is_some_and(|(at, _)| now.since(*at) >= GC_GRACE) {
            ripe = self.marks.pop_front();
        }
        let Some((at, place)) = ripe else { return Ok(()) };
        // What a loss of power could bring back must keep its chunks.
        s.engine.flush_barrier().await?;
        let (mut failed, mut damaged) = (BTreeMap::new(), BTreeSet::new());
        let mut slow = BTreeSet::new();
        loop {
            let passed_over = failed.len() + damaged.len();
            let limit = GC_BATCH + passed_over as u32;
            let page = s.look(async |tx| ns::garbage(tx, VOLUME, limit).await).await?;
            damaged.extend(page.damaged);
            let mut queue = page.found;
            queue.retain(|g| g.was_there(&place) && !failed.contains_key(g.place()));
            let stop = s.stopping.get() || !s.agent.lease_valid();
            let all_seen = queue.is_empty() && failed.len() + damaged.len() == passed_over;
            if all_seen || passed_over >= PASSED_OVER_MAX || stop {
                break;
            }
            for some in queue.chunks(GC_PARALLEL) {
                if s.stopping.get() || !s.agent.lease_valid() {
                    break;
                }
                let done = join_all(some.iter().map(|g| collect_one(s, g, &slow))).await;
                // One chain that is away, or answers nothing, does not keep the space of the others.
                for (entry, done) in some.iter().zip(done) {
                    let Err(e) = done else { continue };
                    if e.status == Status::TimedOut {
                        slow.extend(s.chunks.chains(&entry.layout));
                    }
                    failed.insert(entry.place().clone(), e);
                }
            }
        }
        s.metrics.damaged_garbage.set(damaged.len() as i64);
        if self.damaged.is_news(damaged.len()) {
            tracing::warn!(
                count = damaged.len(),
                "records of data that is to be removed cannot be read; their chunks are kept. Run `glowfs admin fsck`"
            );
        }
        let Some((_, error)) = failed.pop_first() else { return Ok(()) };
        // Tried again: its time has come already.
        self.marks.push_front((at, place));
        Err(error)
    }
}

/// Removes the chunks of one entry, unless it needs a chain that is away or is one of the `slow`.
async fn collect_one(s: &Service, entry: &ns::Garbage, slow: &BTreeSet<ChainId>) -> Result<()> {
    not_away(s, &entry.layout)?;
    if s.chunks.chains(&entry.layout).iter().any(|chain| slow.contains(chain)) {
        return Err(Error::new(Status::ChainUnavailable, "a chain of the file is slow"));
    }
    loop {
        // What was removed before may have taken long: another service may be at it by now.
        if s.stopping.get() || !s.agent.lease_valid() {
            return Err(Error::new(Status::ShuttingDown, "it may not go on with the garbage"));
        }
        let cap = s.removal(entry.data)?;
        let removal = s.chunks.remove_data(&entry.layout, VOLUME, entry.data, 0, GC_CHUNKS, &cap);
        let late = |_| Error::new(Status::TimedOut, "a chain of the file takes long to remove it");
        let reply = s.rt.timeout(REMOVAL_MAX, removal).await.map_err(late)??;
        s.metrics.gc_chunks.add(u64::from(reply.removed));
        // One rate for all entries that are collected side by side.
        s.gc_pace.take(&s.rt, u64::from(reply.removed), s.config.tuning.gc_chunks_per_s).await;
        if !reply.more {
            break;
        }
    }
    s.look(async |tx| ns::drop_garbage(tx, entry)).await?;
    tracing::debug!(data = %entry.data, "garbage is collected");
    s.metrics.gc_files.inc();
    Ok(())
}
