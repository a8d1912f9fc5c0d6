//! Chunks that nobody owns: of a file whose record was lost with the power before it was flushed, or written to a file that was gone already.
//!
//! A pass asks the heads of all chains which data ids they hold chunks of, then reads the data ids of all inodes (those without a name
//! included), then those of the garbage queue; what is left has no owner. It stays until a later pass, at least [`confirm`] after the first,
//! finds the same; then, when everything that pass has read is on disk, its chunks are removed.
//!
//! Why a live chunk is never among them: nobody gets a capability for a data id before the commit that gives it to an inode, and data ids are
//! never used twice. So the inode of a chunk that was listed existed before the listing ended, and its record, or the garbage entry that took its
//! place in the same transaction, is there when it is read *afterwards*. Whatever is given out meanwhile is not on the list. A data id that was not given
//! out yet proves that the engine is older than the chunks (an old copy was put back): such are reported and never removed, for the newer metadata may come
//! back, and the ids are skipped ([`glowfs_namespace::skip_ids`]): no file may be given one that has chunks.
//!
//! Must never: remove what one pass alone found, what a commit that is not on disk says, or what a chain holds that did not answer.

use crate::background::log;
use crate::cuts_under_way;
use crate::idset::IdSet;
use crate::state::{Service, VOLUME, ms};
use glowfs_kv::{Key, Transaction};
use glowfs_namespace as ns;
use glowfs_rt::sync::Notify;
use glowfs_rt::{Duration, Instant};
use glowfs_types::routing::{NodeStatus, Role};
use glowfs_types::wire::orphans::{OrphanData, OrphansReply, search};
use glowfs_types::{ChainId, DataId, Error, Result, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Data ids that one answer of a chain lists, and inodes that one transaction reads.
const PAGE: u32 = 1000;
/// Data ids listed, and inodes read, per second at most.
const PER_SECOND: u64 = 50_000;
/// Pages of 8 KiB that the list of a pass may take; further data ids are left to a later one.
const LIST_PAGES_MAX: usize = 1 << 14;
/// Ownerless data ids remembered from pass to pass; more are found when these are gone.
const OWNERLESS_MAX: usize = 1 << 16;
/// Of so many it is shown what they hold.
const SHOWN_MAX: usize = 100;
/// The first pass comes at most this long after the start.
const FIRST_PASS: Duration = Duration::from_secs(600);
/// The least time between the two passes that must agree.
const CONFIRM_MIN: Duration = Duration::from_secs(10);
/// Unfinished truncates that one pass notes; of more a later pass notes others.
const CUTS_NOTED_MAX: usize = 4096;
/// Chunks removed by one call.
const REMOVE_BATCH: u32 = 1024;

/// The search and what it has found.
#[derive(Default)]
pub struct Orphans {
    state: RefCell<State>,
    /// What an operator has asked for: one of [`search`].
    asked: Cell<u8>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    ownerless: Ownerless,
    running: bool,
    passes: u64,
    last_pass_ns: u64,
    checked: u64,
    reclaimed: u64,
    reclaimed_chunks: u64,
    problem: String,
}

/// When each ownerless data id was first found so. Pure.
#[derive(Default)]
struct Ownerless(BTreeMap<DataId, Found>);

struct Found {
    /// When that pass had ended.
    at: Instant,
    shown: OrphanData,
}

impl Ownerless {
    /// Takes over what a pass from `began` to `ended` has found; returns what was found before, and long enough ago.
    fn settle(
        &mut self,
        found: &IdSet,
        (began, ended): (Instant, Instant),
        ended_ns: u64,
        confirm: Duration,
    ) -> Vec<DataId> {
        self.0.retain(|data, _| found.contains(data.0));
        let old = self.0.iter().filter(|(_, f)| began.since(f.at) >= confirm && began > f.at);
        let confirmed = old.map(|(data, _)| *data).collect();
        for data in found.iter().map(DataId) {
            if self.0.len() >= OWNERLESS_MAX {
                break;
            }
            self.0.entry(data).or_insert_with(|| Found {
                at: ended,
                shown: OrphanData { data, since_ns: ended_ns, ..OrphanData::default() },
            });
        }
        confirmed
    }
}

impl Orphans {
    /// Begins a pass soon.
    pub fn ask(&self, what: u8) -> Result<()> {
        match what {
            search::SHOW => {}
            search::LOOK | search::RECLAIM => {
                self.asked.set(self.asked.get().max(what));
                self.state.borrow_mut().running = true;
                self.wake.notify_all();
            }
            _ => return Err(Error::new(Status::InvalidArgument, "it is to show, look or reclaim")),
        }
        Ok(())
    }
}

impl Service {
    /// What an operator is shown.
    pub fn show_orphans(&self) -> OrphansReply {
        let s = self.orphans.state.borrow();
        OrphansReply {
            node: self.config.node(),
            running: s.running,
            passes: s.passes,
            last_pass_ns: s.last_pass_ns,
            checked: s.checked,
            ownerless: s.ownerless.0.values().take(SHOWN_MAX).map(|f| f.shown.clone()).collect(),
            ownerless_total: s.ownerless.0.len() as u64,
            reclaimed: s.reclaimed,
            reclaimed_chunks: s.reclaimed_chunks,
            problem: s.problem.clone(),
            confirm_ms: u64::try_from(confirm(self).as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The time between the two passes that must agree: nobody who may still write has a capability of before the first.
fn confirm(s: &Service) -> Duration {
    (ms(s.config.tuning.capability_ms) * 2).max(CONFIRM_MIN)
}

/// Of several metadata services only one looks by itself.
fn is_first(s: &Service) -> bool {
    let me = s.config.node();
    let routing = s.agent.routing();
    let mut metas = routing.nodes.values().filter(|n| n.role == Role::Meta);
    !metas.any(|n| n.status == NodeStatus::Active && n.id < me)
}

/// Looks, again and again, until the service stops.
pub async fn watch(s: Rc<Service>) {
    let interval = Duration::from_secs(s.config.tuning.orphan_scan_s);
    let mut next = s.rt.now() + interval.min(FIRST_PASS);
    while !s.stopping.get() {
        let woken = s.orphans.wake.wait();
        let by_itself = !interval.is_zero();
        let left = if by_itself { next.since(s.rt.now()) } else { FIRST_PASS };
        if s.orphans.asked.get() == search::SHOW && !left.is_zero() {
            let _ = s.rt.timeout(left, woken).await;
            continue;
        }
        if !s.ready.get() || !s.agent.lease_valid() {
            s.rt.sleep(ms(100)).await;
            continue;
        }
        let asked = s.orphans.asked.replace(search::SHOW);
        let due = by_itself && next <= s.rt.now() && is_first(&s);
        let mut pause = interval;
        if asked != search::SHOW || due {
            let reclaim = asked == search::RECLAIM || (due && s.config.tuning.orphan_reclaim);
            pass(&s, reclaim).await;
            if s.config.tuning.orphan_reclaim && s.show_orphans().ownerless_total > 0 {
                pause = confirm(&s).min(interval);
            }
        }
        next = s.rt.now() + pause;
    }
}

async fn pass(s: &Rc<Service>, reclaim: bool) {
    s.orphans.state.borrow_mut().running = true;
    let mut problems = Vec::new();
    let result = look(s, reclaim, &mut problems).await;
    if let Err(e) = &result {
        problems.push(e.to_string());
    }
    log("the search for chunks without an owner", result);
    let mut state = s.orphans.state.borrow_mut();
    state.running = s.orphans.asked.get() != search::SHOW;
    state.passes += 1;
    state.last_pass_ns = s.rt.unix_ns();
    state.problem = problems.join("; ");
}

async fn look(s: &Rc<Service>, reclaim: bool, problems: &mut Vec<String>) -> Result<()> {
    let began = s.rt.now();
    let (mut found, mut strange) = list(s, problems).await?;
    let checked = found.len();
    // In this order: what leaves an inode meanwhile is in the queue when that is read.
    let cuts = RefCell::new(Vec::new());
    take_owned(s, &mut found, async |from| {
        let read =
            async |tx: &Transaction| ns::data_of_inodes(tx, VOLUME, from.as_ref(), PAGE).await;
        let page = s.look(read).await?;
        let mut cuts = cuts.borrow_mut();
        let room = CUTS_NOTED_MAX.saturating_sub(cuts.len());
        cuts.extend(page.cuts.into_iter().take(room));
        Ok((page.data, page.next))
    })
    .await?;
    take_owned(s, &mut found, async |from| {
        s.look(async |tx| ns::data_of_garbage(tx, VOLUME, from.as_ref(), PAGE).await).await
    })
    .await?;
    cuts_under_way::note(s, &cuts.take()).await?;
    strange += leave_skipped(s, &mut found).await?;
    if strange > 0 {
        problems.push(format!(
            "{strange} data ids with chunks are unknown to the metadata engine: is it an old copy? They are left alone"
        ));
    }
    let confirmed = {
        let mut state = s.orphans.state.borrow_mut();
        state.checked = checked;
        let when = (began, s.rt.now());
        state.ownerless.settle(&found, when, s.rt.unix_ns(), confirm(s))
    };
    measure(s).await;
    let left = s.orphans.state.borrow().ownerless.0.len();
    s.metrics.ownerless.set(i64::try_from(left).unwrap_or(i64::MAX));
    if !reclaim || confirmed.is_empty() {
        return Ok(());
    }
    // A removal that a loss of power could undo must keep its chunks.
    s.engine.flush_barrier().await?;
    for data in confirmed {
        if s.stopping.get() || !s.agent.lease_valid() {
            return Ok(());
        }
        remove(s, data).await?;
    }
    Ok(())
}

/// The data ids of all chains that answer, and how many there are besides that this engine cannot know. A chain that does not answer is for a later pass.
async fn list(s: &Rc<Service>, problems: &mut Vec<String>) -> Result<(IdSet, u64)> {
    let mut found = IdSet::default();
    let (mut strange, mut left) = (0u64, 0u64);
    let chains: Vec<ChainId> = s.chunks.client().routing().chains.keys().copied().collect();
    for chain in chains {
        let mut after = None;
        loop {
            let page = match s.chunks.list_data(chain, after, PAGE).await {
                Ok(page) => page,
                Err(e) => {
                    problems.push(format!("chain {chain} was left out: {}", e.message));
                    break;
                }
            };
            after = page.data.last().copied();
            for (volume, data) in &page.data {
                if *volume != VOLUME {
                    strange += 1;
                } else if !found.insert(data.0, LIST_PAGES_MAX) {
                    left += 1;
                }
            }
            if !page.more {
                break;
            }
            s.rt.sleep(pace(page.data.len())).await;
        }
    }
    strange += leave_future(s, &mut found, problems).await?;
    if left > 0 {
        problems.push(format!("{left} data ids are left to a later pass"));
    }
    Ok((found, strange))
}

/// Takes what newer metadata may have given out, and what has no owner here, off the list. Returns how many there were.
async fn leave_skipped(s: &Rc<Service>, found: &mut IdSet) -> Result<u64> {
    let skipped = s.look(async |tx| ns::skipped_data_ids(tx, VOLUME).await).await?;
    let left: Vec<u64> = found.iter().filter(|id| skipped.iter().any(|r| r.holds(*id))).collect();
    for id in &left {
        found.remove(*id);
    }
    Ok(left.len() as u64)
}

/// Takes what this engine never gave out off the list, and sees to it that it never does. Returns how many there were.
async fn leave_future(
    s: &Rc<Service>,
    found: &mut IdSet,
    problems: &mut Vec<String>,
) -> Result<u64> {
    // Read after the listing: what was given out meanwhile counts.
    let (next, skipped) = s
        .look(async |tx| {
            Ok((ns::next_data_id(tx, VOLUME).await?, ns::skipped_data_ids(tx, VOLUME).await?))
        })
        .await?;
    let unused = s.data_ids.unused();
    let within = |ranges: &[ns::IdRange], id| ranges.iter().any(|r| r.holds(id));
    let could_come = |id: u64| id >= next || within(&unused, id);
    let future: Vec<u64> =
        found.iter().filter(|id| could_come(*id) && !within(&skipped, *id)).collect();
    for id in &future {
        found.remove(*id);
    }
    let fresh = future.last().copied();
    if let Some(id) = fresh {
        s.skip_ids(id).await?;
        problems.push(format!(
            "data id {id} would have been given out, though it has chunks: others are from now on. Restart the other metadata services, for they hold some"
        ));
    }
    Ok(future.len() as u64)
}

fn pace(items: usize) -> Duration {
    Duration::from_nanos(items as u64 * (1_000_000_000 / PER_SECOND))
}

/// Takes the data ids of one range of the engine's keys out of `found`.
async fn take_owned(
    s: &Rc<Service>,
    found: &mut IdSet,
    page: impl AsyncFn(Option<Key>) -> Result<(Vec<DataId>, Option<Key>)>,
) -> Result<()> {
    let mut from = None;
    loop {
        let (owned, next) = page(from).await?;
        for data in &owned {
            found.remove(data.0);
        }
        if next.is_none() {
            return Ok(());
        }
        if s.stopping.get() || !s.agent.lease_valid() {
            return Err(Error::new(Status::ShuttingDown, "the service stops, or has no lease"));
        }
        from = next;
        s.rt.sleep(pace(PAGE as usize)).await;
    }
}

/// Counts what the first of them hold, for the operator. Some were collected as garbage since they were listed: they are nothing to show.
async fn measure(s: &Rc<Service>) {
    let shown: Vec<DataId> =
        s.orphans.state.borrow().ownerless.0.keys().take(SHOWN_MAX).copied().collect();
    for data in shown {
        let Ok((chunks, bytes)) = s.chunks.count_everywhere(VOLUME, data).await else { continue };
        let ownerless = &mut s.orphans.state.borrow_mut().ownerless.0;
        if chunks == 0 {
            ownerless.remove(&data);
        } else if let Some(f) = ownerless.get_mut(&data) {
            (f.shown.chunks, f.shown.bytes) = (chunks, bytes);
        }
    }
}

async fn remove(s: &Rc<Service>, data: DataId) -> Result<()> {
    let mut chunks = 0;
    loop {
        let capability = s.removal(data)?;
        let reply = s.chunks.remove_everywhere(VOLUME, data, REMOVE_BATCH, &capability).await?;
        chunks += u64::from(reply.removed);
        s.gc_pace.take(&s.rt, u64::from(reply.removed), s.config.tuning.gc_chunks_per_s).await;
        if !reply.more {
            break;
        }
    }
    tracing::info!(%data, chunks, "reclaimed chunks that nobody owned");
    s.metrics.orphans.add(chunks);
    let mut state = s.orphans.state.borrow_mut();
    state.ownerless.0.remove(&data);
    state.reclaimed += 1;
    state.reclaimed_chunks += chunks;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIRM: Duration = Duration::from_secs(60);

    fn ids(of: &[u64]) -> IdSet {
        let mut set = IdSet::default();
        for id in of {
            assert!(set.insert(*id, 10));
        }
        set
    }
    fn at(s: u64) -> Instant {
        Instant(0) + Duration::from_secs(s)
    }

    #[test]
    fn only_what_two_passes_far_apart_agree_on_is_confirmed() {
        let mut o = Ownerless::default();
        let mut pass = |found: &[u64], began, ended| {
            let confirmed = o.settle(&ids(found), (at(began), at(ended)), 0, CONFIRM);
            confirmed.into_iter().map(|d| d.0).collect::<Vec<_>>()
        };
        assert!(pass(&[1, 2], 0, 10).is_empty(), "one pass alone");
        assert!(pass(&[1, 2], 11, 12).is_empty(), "too soon");
        assert!(pass(&[1, 2, 3], 69, 80).is_empty(), "counted from the end of the first");
        assert_eq!(pass(&[2, 3], 70, 80), [2], "1 had an owner after all");
        assert_eq!(pass(&[1, 2, 3], 139, 140), [2], "3 was found at 80, 1 anew");
        assert_eq!(pass(&[1, 2, 3], 140, 141), [2, 3]);
        assert!(pass(&[], 200, 201).is_empty());
        assert!(pass(&[1, 2, 3], 900, 901).is_empty(), "all forgotten");
    }
}
