//! The scrub: reads everything at rest, slowly, and has repaired what is not what it should be.
//!
//! One pass at a time on each disk, target by target, chunk by chunk, under a rate, and behind the clients (`pace.rs`). Each chunk's blocks are verified against their checksums, and
//! its checksum is compared with the tail's at the same version. A target's pass begins when its last one ended `scrub_interval_s` ago, which stands
//! with the target on disk, or when an operator asks.

use crate::node::Node;
use crate::repair::Wrong;
use crate::target::Target;
use glowfs_chunkstore::Store;
use glowfs_net::Incoming;
use glowfs_rt::{Duration, Instant};
use glowfs_types::wire::repair::{Scrub, ScrubReply, ScrubState};
use glowfs_types::{ChunkId, Error, Result, Status, TargetId};
use std::cell::Cell;
use std::rc::Rc;

/// The pause between two looks whether a pass is due.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// The pause after a pass that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(600);
/// The rate of a pass that an operator asked for, in bytes per second, if scrubbing is off otherwise.
const ASKED_BYTES_PER_S: u64 = 64 << 20;
/// What a chunk costs at least, in bytes of the rate: so that many small ones are paced too.
const CHUNK_COST_BYTES: u64 = 16 << 10;

/// How the scrub of a target stands.
#[derive(Default)]
pub(crate) struct Progress {
    pub running: Cell<bool>,
    pub chunks: Cell<u64>,
    pub bytes: Cell<u64>,
    pub passes: Cell<u64>,
    pub last_pass_ns: Cell<u64>,
    pub found: Cell<u64>,
    pub repaired: Cell<u64>,
    pub failed: Cell<u64>,
    /// Not before, after a pass that failed.
    pub not_before: Cell<Instant>,
}

fn add(cell: &Cell<u64>, n: u64) {
    cell.set(cell.get() + n);
}

impl Node {
    /// Scrubs one disk, again and again.
    pub(crate) async fn scrub_disk(self: Rc<Self>, store: Store) {
        let mut asked = self.scrub_asked.get();
        while !self.stopping.get() && store.failure().is_none() {
            self.rt.sleep(LOOK_PERIOD).await;
            self.count_from_now(&store).await;
            let now_asked = self.scrub_asked.get();
            let by_hand = asked != now_asked;
            if !by_hand && self.tuning.get().scrub_bytes_per_s == 0 {
                continue;
            }
            asked = now_asked;
            for target in self.due(&store, by_hand) {
                self.scrub_target(&store, target, by_hand).await;
            }
        }
    }

    fn targets_on(&self, store: &Store) -> impl Iterator<Item = Rc<Target>> {
        let id = store.id();
        self.all_targets().into_iter().filter(move |t| t.store.id() == id)
    }

    /// Targets whose time is not known begin to wait now: nothing is read because a target is new or its build is, or because the clock was set back.
    async fn count_from_now(&self, store: &Store) {
        let now_ns = self.rt.unix_ns();
        let unknown = |t: &Rc<Target>| t.meta().scrubbed_ns == 0 || t.meta().scrubbed_ns > now_ns;
        for target in self.targets_on(store).filter(unknown) {
            if let Err(e) = target.save(|meta| meta.scrubbed_ns = now_ns).await {
                tracing::warn!(target = %target.id, error = %e, "when the scrub is due could not be written");
            }
        }
    }

    /// The targets of a disk whose turn it is, those first that wait longest. Only their numbers: one that somebody holds does not come back
    /// when it was offline.
    fn due(&self, store: &Store, by_hand: bool) -> Vec<TargetId> {
        let now_ns = self.rt.unix_ns();
        let interval_ns = self.config.scrub_interval_s.saturating_mul(1_000_000_000);
        let is_due = |t: &Rc<Target>| {
            let waited_ns = now_ns.saturating_sub(t.meta().scrubbed_ns);
            waited_ns >= interval_ns && self.rt.now() >= t.scrub.not_before.get()
        };
        let due = self.targets_on(store).filter(|t| by_hand || is_due(t));
        let mut due: Vec<_> = due.map(|t| (t.meta().scrubbed_ns, t.id)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// A pass over a target. Ends early if it goes, or if scrubbing is turned off and nobody asked for this pass.
    async fn scrub_target(self: &Rc<Self>, store: &Store, id: TargetId, by_hand: bool) {
        let found = || self.target(id).ok().filter(|t| t.store.id() == store.id());
        if let Some(target) = found() {
            target.scrub.chunks.set(0);
            target.scrub.bytes.set(0);
        }
        let mut after: Option<ChunkId> = None;
        let whole = loop {
            let off = !by_hand && self.tuning.get().scrub_bytes_per_s == 0;
            // Held for one chunk, and not while this waits for its rate.
            let Some(target) = found().filter(|_| !off && !self.stopping.get()) else {
                break false;
            };
            target.scrub.running.set(true);
            let work = self.work();
            match self.scrub_chunk(&target, after).await {
                Ok(Some((chunk, bytes))) => {
                    after = Some(chunk);
                    drop(target);
                    let rest = self.rest_after(work);
                    self.rt.sleep(rest.max(self.pause_of(bytes))).await;
                }
                Ok(None) => break true,
                Err(e) => {
                    tracing::warn!(target = %id, error = %e, "scrub ended early");
                    target.scrub.not_before.set(self.rt.now() + RETRY_PAUSE);
                    break false;
                }
            }
        };
        let Some(target) = found() else { return };
        target.scrub.running.set(false);
        if whole {
            add(&target.scrub.passes, 1);
            let now_ns = self.rt.unix_ns();
            target.scrub.last_pass_ns.set(now_ns);
            if let Err(e) = target.save(|meta| meta.scrubbed_ns = now_ns).await {
                tracing::warn!(target = %id, error = %e, "the end of a scrub could not be written");
                target.scrub.not_before.set(self.rt.now() + RETRY_PAUSE);
            }
        }
    }

    /// The chunk behind `after`, and how many bytes of it were read. None: there is none.
    async fn scrub_chunk(
        self: &Rc<Self>,
        target: &Rc<Target>,
        after: Option<ChunkId>,
    ) -> Result<Option<(ChunkId, u64)>> {
        let p = &target.scrub;
        let Some(found) = target.store.scrub_next(target.id, after).await? else {
            return Ok(None);
        };
        add(&p.chunks, 1);
        add(&p.bytes, found.bytes);
        self.metrics.scrub_bytes.add(found.bytes);
        let differs = found.bad_blocks.is_empty() && self.differs(target, found.chunk).await;
        if differs || !found.bad_blocks.is_empty() {
            add(&p.found, 1);
            self.metrics.scrub_found.inc();
            let wrong = if differs { Wrong::Differs } else { Wrong::Damaged };
            tracing::error!(target = %target.id, chunk = %found.chunk, version = %found.version,
                blocks = found.bad_blocks.len(), ?wrong, "scrub found a chunk that is not what it should be");
            // It says by itself what came of it; the next pass finds what is left.
            let _ = target.repair(self, found.chunk, wrong).await;
        }
        Ok(Some((found.chunk, found.bytes)))
    }

    /// Whether the tail has other content at the same version.
    async fn differs(&self, target: &Rc<Target>, chunk: ChunkId) -> bool {
        let state = || target.store.chunk(target.id, chunk).filter(|s| s.exists());
        let Some(before) = state() else { return false };
        let Ok(Some(theirs)) = target.tail_says(self, chunk).await else { return false };
        // A chunk that was written meanwhile is compared at its next pass.
        state() == Some(before)
            && theirs.version == before.committed
            && (theirs.content_crc, theirs.len) != (before.content_crc, before.len)
    }

    /// The pause after so many bytes, for the rate.
    fn pause_of(&self, bytes: u64) -> Duration {
        let rate = match self.tuning.get().scrub_bytes_per_s {
            0 => ASKED_BYTES_PER_S,
            rate => rate,
        };
        let cost = u128::from(bytes.max(CHUNK_COST_BYTES)) * 1_000_000_000;
        Duration::from_nanos((cost / u128::from(rate)) as u64)
    }

    /// SCRUB.
    pub(crate) fn scrub(&self, incoming: &Incoming) -> Result<ScrubReply> {
        let ask: Scrub = incoming.msg()?;
        let identity = incoming.conn().peer().identity;
        if ask.now {
            if !identity.admin && !identity.root {
                return Err(Error::new(
                    Status::AccessDenied,
                    "only administrators may start a scrub; use a token of one",
                ));
            }
            self.scrub_asked.set(self.scrub_asked.get() + 1);
        }
        let targets = self.all_targets();
        let state = |t: &Rc<Target>| {
            let p = &t.scrub;
            ScrubState {
                target: t.id,
                running: p.running.get(),
                chunks: p.chunks.get(),
                bytes: p.bytes.get(),
                passes: p.passes.get(),
                last_pass_ns: p.last_pass_ns.get(),
                found: p.found.get(),
                repaired: p.repaired.get(),
                failed: p.failed.get(),
            }
        };
        Ok(ScrubReply {
            targets: targets.iter().map(state).collect(),
            bytes_per_s: self.tuning.get().scrub_bytes_per_s,
        })
    }
}
