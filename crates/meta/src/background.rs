//! Background work: garbage, sessions of dead clients, truncates that were left behind, old request records, free space.
//!
//! Each loop works only while this service is ready and has its lease, and all of it may be done twice or by two services. Guarantees: data that went out
//! of reach is kept for `GC_GRACE`, and until that is on disk; a chain that is away holds up only what needs it. Must never: remove chunks that an inode
//! leads to or that a loss of power could bring back; end a session whose file could not be looked at, for by it alone the length is found.

use crate::cuts_under_way::{LEFT_PAUSE, Left};
use crate::recall::Change;
use crate::removed::Eraser;
use crate::state::{Service, VOLUME, ms};
use crate::trees::Emptier;
use crate::{clients, locks};
use glowfs_kv::{Key, Transaction};
use glowfs_namespace::{self as ns, Context, Env, Garbage, SessionEntry};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Duration, Instant};
use glowfs_types::capability::rights;
use glowfs_types::routing::{NodeStatus, Role};
use glowfs_types::wire::data::DiskInfo;
use glowfs_types::wire::meta::{Attr, Caller, InodeKind, OfInode, StatFsReply};
use glowfs_types::{ChainTableId, ClientId, Error, Layout, Result, Status};
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
/// Clients looked at in one step.
const CLIENT_PAGE: usize = 256;
/// Sessions of a client ended in one step.
const SESSION_PAGE: u32 = 128;
/// Dead clients whose sessions are ended side by side, and sessions of one: some may wait for chains that are away.
const REAP_PARALLEL: usize = 16;
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
    let this = s.clone();
    rt.spawn_detached(async move {
        let (mut missing, mut damaged) = (BTreeMap::new(), Damaged::default());
        while pause(&this, ms(this.config.tuning.session_scan_ms)).await {
            log("ending sessions of dead clients", reap(&this, &mut missing, &mut damaged).await);
        }
    });
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
struct Damaged(usize);

impl Damaged {
    fn is_news(&mut self, count: usize) -> bool {
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

/// Ends the sessions of clients that mgmtd has not listed for the grace time.
async fn reap(
    s: &Service,
    missing: &mut BTreeMap<ClientId, Instant>,
    damaged: &mut Damaged,
) -> Result<()> {
    let live = clients::live(s).await?;
    let mut gone = BTreeSet::new();
    let mut after = None;
    loop {
        let page = s
            .look(async |tx| ns::clients_with_sessions(tx, VOLUME, after, CLIENT_PAGE).await)
            .await?;
        after = page.last().copied();
        gone.extend(page.iter().filter(|c| !live.contains_key(c)));
        if page.len() < CLIENT_PAGE {
            break;
        }
    }
    let lockers = lockers(s).await?;
    gone.extend(lockers.iter().filter(|c| !live.contains_key(c)));
    missing.retain(|c, _| gone.contains(c));
    let now = s.rt.now();
    let mut outcome = Ok(());
    let mut due = Vec::new();
    for client in gone {
        let since = *missing.entry(client).or_insert(now);
        if now.since(since) >= ms(s.config.tuning.session_grace_ms) {
            due.push(client);
        }
        if now.since(since) >= locks::grace(s) && lockers.contains(&client) {
            outcome = locks::end_of(s, client).await.and(outcome);
        }
    }
    // After the locks, and side by side: a session may wait for a chain that is away.
    let mut unreadable = 0;
    for some in due.chunks(REAP_PARALLEL) {
        for done in join_all(some.iter().map(|client| reap_client(s, *client))).await {
            match done {
                Ok(passed_over) => unreadable += passed_over,
                Err(e) => outcome = Err(e),
            }
        }
    }
    s.metrics.damaged_sessions.set(unreadable as i64);
    if damaged.is_news(unreadable) {
        tracing::warn!(
            count = unreadable,
            "records of sessions of dead clients cannot be read; they are kept, and so is what they hold. Run `glowfs admin fsck`"
        );
    }
    outcome
}

/// Clients that have locks.
async fn lockers(s: &Service) -> Result<BTreeSet<ClientId>> {
    let mut all = BTreeSet::new();
    let mut after = None;
    loop {
        let work =
            async |tx: &Transaction| ns::clients_with_locks(tx, VOLUME, after, CLIENT_PAGE).await;
        let page = s.look(work).await?;
        after = page.last().copied();
        all.extend(page.iter().copied());
        if page.len() < CLIENT_PAGE {
            return Ok(all);
        }
    }
}

/// Ends the sessions of a dead client; those that cannot be ended now do not keep the others. Returns how many cannot be read.
async fn reap_client(s: &Service, client: ClientId) -> Result<usize> {
    let (mut failed, mut damaged) = (BTreeMap::new(), BTreeSet::new());
    loop {
        let passed_over = failed.len() + damaged.len();
        let limit = SESSION_PAGE + passed_over as u32;
        let page = s.look(async |tx| ns::sessions_of(tx, VOLUME, client, limit).await).await?;
        damaged.extend(page.damaged);
        let mut page = page.found;
        page.retain(|entry| !failed.contains_key(&entry.session));
        let all_seen = page.is_empty() && failed.len() + damaged.len() == passed_over;
        if all_seen || passed_over >= PASSED_OVER_MAX {
            return failed.pop_first().map_or(Ok(damaged.len()), |(_, error)| Err(error));
        }
        for some in page.chunks(REAP_PARALLEL) {
            let done = join_all(some.iter().map(|entry| end_session(s, client, entry))).await;
            let wrong = some.iter().zip(done).filter_map(|(e, d)| Some((e.session, d.err()?)));
            failed.extend(wrong);
        }
    }
}

/// What a file that a dead client had open is like, if it is still there. Not to learn that is another thing: the session stays, for by it alone the
/// length is found that the file's chunks have.
fn if_there(attr: Result<Attr>) -> Result<Option<Attr>> {
    match attr {
        Ok(attr) => Ok(Some(attr)),
        Err(e) if matches!(e.status, Status::Stale | Status::NotFound) => Ok(None),
        Err(e) => Err(e),
    }
}

async fn end_session(s: &Service, client: ClientId, entry: &SessionEntry) -> Result<()> {
    let caller = Caller { client, volume: VOLUME, ..Caller::default() };
    let (mut settled, mut allocated) = (None, None);
    if entry.write {
        let of = OfInode { caller: caller.clone(), inode: entry.inode };
        let attr = s.look(async |tx| ns::getattr(&Context::new(tx, &caller, s), &of).await).await;
        if let Some(attr) = if_there(attr)?
            && let (InodeKind::File, Some(layout)) = (attr.kind, attr.layout)
            && !attr.inline
        {
            not_away(s, &layout)?;
            let extent = s.chunks.query_extent(&layout, VOLUME, attr.data).await?;
            settled = Some((extent.len, attr.epoch));
            let cap = s.capability(&attr, Default::default(), rights::READ)?;
            allocated = s.chunks.allocated(&layout, &cap).await.ok();
        }
    }
    s.run(false, true, async |tx| {
        let cx = Context::new(tx, &caller, s);
        ns::end_session(&cx, client, entry.inode, entry.session, settled, allocated).await
    })
    .await?;
    s.changed(client, &[Change::contents(entry.inode, None)]).await;
    s.metrics.reaped.inc();
    tracing::info!(%client, inode = %entry.inode, ?settled, "ended the session of a dead client");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine that did not answer was taken for a file that is gone, and its session ended without its length.
    #[test]
    fn only_a_file_that_is_gone_is_gone() {
        let asked = |status: Status| if_there(Err(status.into()));
        assert_eq!(asked(Status::Stale), Ok(None));
        assert_eq!(asked(Status::NotFound), Ok(None));
        for away in [Status::Disconnected, Status::TimedOut, Status::Conflict, Status::Overloaded] {
            assert_eq!(asked(away).expect_err("not known").status, away);
        }
        assert_eq!(if_there(Ok(Attr::default())), Ok(Some(Attr::default())));
    }
}
