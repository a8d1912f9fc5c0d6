//! Background work: the start of all of it, old request records, free space.
//!
//! Each loop works only while this service is ready and has its lease, and all of it may be done twice or by two services.

use crate::cuts_under_way::{LEFT_PAUSE, Left};
use crate::garbage::Garbage;
use crate::reaper;
use crate::removed::Eraser;
use crate::state::{Service, VOLUME, ms};
use crate::trees::Emptier;
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Env};
use glowfs_rt::Duration;
use glowfs_types::routing::{NodeStatus, Role};
use glowfs_types::wire::data::DiskInfo;
use glowfs_types::wire::meta::StatFsReply;
use glowfs_types::{ChainTableId, Error, Layout, Result, Status};
use std::rc::Rc;

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
        let mut queue = Garbage::default();
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
