//! Background work: garbage, truncates that were left behind, old request records, free space; and the start of all the rest.
//!
//! Each loop works only while this service is ready and has its lease, and all of it may be done twice or by two services. Guarantees: data that went out
//! of reach is kept for `GC_GRACE`, and until that is on disk; a chain that is away holds up only what needs it. Must never: remove chunks that an inode
//! leads to or that a loss of power could bring back.

use crate::cuts_under_way::{LEFT_PAUSE, Left};
use crate::reaper;
use crate::removed::Eraser;
use crate::state::{Service, VOLUME, ms};
use crate::trees::Emptier;
use glowfs_kv::{Key, Transaction};
use glowfs_namespace::{self as ns, Env, Garbage};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Duration, Instant};
use glowfs_types::routing::{NodeStatus, Role};
use glowfs_types::wire::data::DiskInfo;
use glowfs_types::wire::meta::StatFsReply;
use glowfs_types::{ChainTableId, Error, Layout, Result, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Entries of the garbage queue worked on at once.
const GC_BATCH: u32 = 256;
/// Entries whose chunks are removed at once.
const GC_PARALLEL: usize = 16;
/// How long data stays after it went out of reach: longer than a client reads without asking again whether the file was cut.
const GC_GRACE: Duration = Duration::from_secs(1);
/// Chunks removed by one call.
const GC_CHUNKS: u32 = 1024;
/// What can be passed over in one round, since its chain does not answer; beyond that the round ends.
const PASSED_OVER_MAX: usize = 4096;
/// Pause between looks at free space.
const SPACE_PAUSE: Duration = Duration::from_secs(2);
/// Pause between sweeps of request records.
const SWEEP_PAUSE: Duration = Duration::from_secs(5);
/// Request records forgotten in one step.
const SWEEP_PAGE: u32 = 512;

/// Starts all of it. Each loop ends when the service stops.
pub fn start(s: &Rc<Service>) {
    let rt = &s.rt;
    let this = s.clone();
    rt.spawn_detached(async move {
        let mut eraser = Eraser::new(&this);
        while pause(&this, ms(this.config.tuning.gc_pause_ms)).await {
            log("emptying the trash", crate::trash::expire(&this).await);
            log("erasing removed files", eraser.round(&this).await);
        }
    });
    let this = s.clone();
    rt.spawn_detached(async move {
        let emptier = Emptier::new(&this);
        while pause(&this, ms(this.config.tuning.gc_pause_ms)).await {
            this.wait_for_old_leases().await;
            log("emptying removed trees", emptier.round(&this).await);
        }
    });
    let this = s.clone();
    rt.spawn_detached(async move {
        let mut queue = Queue::default();
        // Apart: the chunks of one great file take minutes.
        while pause(&this, ms(this.config.tuning.gc_pause_ms)).await {
            log("garbage collection", queue.collect(&this).await);
        }
    });
    reaper::start(s);
    let this = s.clone();
    rt.spawn_detached(async move {
        let mut left = Left::default();
        while pause(&this, LEFT_PAUSE).await {
            log("finishing truncates", left.round(&this).await);
        }
    });
    rt.spawn_detached(crate::orphans::watch(s.clone()));
    let this = s.clone();
    rt.spawn_detached(async move {
        while pause(&this, SPACE_PAUSE).await {
            look_at_space(&this).await;
        }
    });
    let this = s.clone();
    rt.spawn_detached(async move {
        while pause(&this, SWEEP_PAUSE).await {
            log("forgetting old requests", sweep(&this).await);
        }
    });
}

/// Sleeps; whether to go on.
pub async fn pause(s: &Service, d: Duration) -> bool {
    s.rt.sleep(d).await;
    let may_work = || s.ready.get() && s.agent.lease_valid();
    while !s.stopping.get() && !may_work() {
        s.rt.sleep(ms(100)).await;
    }
    !s.stopping.get()
}

/// Says that something failed.
pub fn log(what: &str, result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "{what} failed; it is tried again");
    }
}

async fn sweep(s: &Service) -> Result<()> {
    let now = s.memory_secs().unwrap_or_else(|| s.now().secs);
    let keep = s.request_keep_secs();
    let mut after = None;
    loop {
        let step = async |tx: &Transaction| {
            ns::sweep_requests(tx, VOLUME, (now, keep), after.as_ref(), SWEEP_PAGE).await
        };
        after = s.look(step).await?;
        if after.is_none() {
            return Ok(());
        }
        s.rt.yield_now().await;
    }
}

/// The garbage queue as it was some time ago.
#[derive(Default)]
struct Queue {
    /// The newest entry at that time, and the time.
    marks: VecDeque<(Instant, Key)>,
    damaged: Damaged,
}

impl Queue {
    /// Removes the chunks of data that nobody can reach, and that nobody can be in the middle of reading.
    async fn collect(&mut self, s: &Service) -> Result<()> {
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
                let done = join_all(some.iter().map(|g| collect_one(s, g))).await;
                // One chain that is away does not keep the space of the others.
                let wrong =
                    some.iter().zip(done).filter_map(|(g, d)| Some((g.place().clone(), d.err()?)));
                failed.extend(wrong);
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

/// How many records the last look could not read. They are passed over each time, and told of when their number is another one.
#[derive(Default)]
pub struct Damaged(usize);

impl Damaged {
    /// Whether there are other ones than at the last look.
    pub fn is_news(&mut self, count: usize) -> bool {
        std::mem::replace(&mut self.0, count) != count && count > 0
    }
}

/// What needs a chain that is away is tried again later, and holds up nobody until then.
pub fn not_away(s: &Service, layout: &Layout) -> Result<()> {
    if s.chunks.is_away(layout) {
        return Err(Error::new(Status::ChainUnavailable, "a chain of the file is away"));
    }
    Ok(())
}

async fn collect_one(s: &Service, entry: &Garbage) -> Result<()> {
    not_away(s, &entry.layout)?;
    loop {
        // What was removed before may have taken long: another service may be at it by now.
        if s.stopping.get() || !s.agent.lease_valid() {
            return Err(Error::new(Status::ShuttingDown, "it may not go on with the garbage"));
        }
        let cap = s.removal(entry.data)?;
        let reply =
            s.chunks.remove_data(&entry.layout, VOLUME, entry.data, 0, GC_CHUNKS, &cap).await?;
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

/// Adds up the space of the storage nodes, at the redundancy of the chains. A node that does not answer counts with
/// what it said last: a restart or a moment without an answer must not look like a file system without room.
pub async fn look_at_space(s: &Service) {
    // The client's routing info is pushed, the agent's comes with the next heartbeat.
    let routing = s.chunks.client().routing();
    let mut known = s.space_of.borrow().clone();
    known.retain(|node, _| routing.nodes.contains_key(node));
    for node in routing.nodes.values() {
        if node.role != Role::Storage || node.status != NodeStatus::Active {
            continue;
        }
        match s.chunks.client().storage_info(node.id).await {
            Ok(info) => {
                let add =
                    |f: fn(&DiskInfo) -> u64| info.disks.iter().map(f).fold(0, u64::saturating_add);
                known.insert(node.id, (add(|d| d.capacity_bytes), add(|d| d.free_bytes)));
            }
            Err(error) => {
                tracing::debug!(%error, node = %node.id, "no free space from a storage node")
            }
        }
    }
    let table = routing.newest_table(ChainTableId(s.config.root.table));
    let chains = table.map(|t| t.chains.iter().filter_map(|c| routing.chains.get(c)));
    let replicas = chains.and_then(|mut c| c.next()).map_or(1, |c| c.members.len().max(1)) as u64;
    let sum = |f: fn(&(u64, u64)) -> u64| known.values().map(f).fold(0, u64::saturating_add);
    let space = StatFsReply {
        total_bytes: sum(|k| k.0) / replicas,
        free_bytes: sum(|k| k.1) / replicas,
        ..StatFsReply::default()
    };
    *s.space.borrow_mut() = space;
    *s.space_of.borrow_mut() = known;
}
