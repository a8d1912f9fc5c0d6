//! [`Embedded`]: the durable engine of one process: everything multi-version in memory, a group-committed log, and
//! checkpoints of the whole written beside the traffic.
//!
//! Guarantees: commits are applied and checked one after the other on the one thread. A commit is answered when its
//! bytes are in the log file (it survives SIGKILL) and flushed at most [`EmbeddedConfig::flush_interval`] plus one flush later;
//! with `durable` it is answered after the flush of its group. A log or checkpoint that cannot be read in full is
//! refused with the place; only a tail that was never flushed is cut. After an error of the disk the engine takes no
//! further commit. For want of room it refuses what it has none for, and goes on when there is some (`embedded/room.rs`).
//! Must never: answer for something that is not in the log, or refuse what may be found there later.

mod checkpoint;
mod config;
mod format;
mod log;
mod notify;
mod reading;
mod recover;
mod room;
mod spare;

use crate::mvcc::Mvcc;
use crate::{Engine, Key, RangePage, Value, Version};
pub use config::{EmbeddedConfig, EmbeddedStats};
use format::Records;
use glowfs_rt::{BoxFuture, Dir, Duration, File, Instant, Rt};
use glowfs_types::wire::kv::{Commit, Mutation};
use glowfs_types::{Error, Result, Status};
use notify::Notify;
use reading::Reading;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Records that wait for the log, in bytes; beyond it commits are refused with `Overloaded`.
const PENDING_BYTES_MAX: usize = 16 << 20;
/// How often the window of versions moves.
const WINDOW_STEP: Duration = Duration::from_millis(100);
/// Versions that are kept at a time ([`Engine::keep`]).
const KEPT_MAX: usize = 4;
/// Of superseded values, so many times as many as usual, at most, are there while a version is kept.
const KEPT_WINDOWS: usize = 16;
/// Tasks that end when the engine closes.
const BACKGROUND_TASKS: u32 = 4;
/// Old versions dropped per idle step.
const IDLE_TRIM: usize = 16 << 10;

struct State {
    store: Mvcc,
    records: Records,
    /// First version in `records`, if any.
    first_pending: Option<Version>,
    /// In the log file.
    written: Version,
    written_sequence: u64,
    /// On disk.
    flushed: Version,
    flushed_sequence: u64,
    /// Versions that somebody waits for to be flushed, ascending.
    wanted: VecDeque<Version>,
    /// A flush of the log is under way.
    flushing: bool,
    failed: Option<Error>,
    closing: bool,
    closed_tasks: u32,
    file: File,
    /// A checkpoint asks for a fresh segment.
    rotate: bool,
    /// Answers it: the first header of the fresh segment, or why there is no room for one.
    rotated: Option<Result<format::FileHeader>>,
    /// No checkpoint is due before.
    checkpoint_from: Instant,
    /// A checkpoint reads this version.
    pin: Option<Version>,
    /// Versions that somebody reads for longer than the window, and until when they are kept.
    kept: BTreeMap<Version, Instant>,
    /// (when, which version was newest), every [`WINDOW_STEP`].
    samples: VecDeque<(Instant, Version)>,
    /// The newest version that the window has passed. What somebody keeps, or a checkpoint, may hold the store's own bound back meanwhile.
    passed: Version,
    /// What is kept of the disk for when it is full.
    reserve: room::Reserve,
    /// Segments that are made ahead.
    spares: spare::Spares,
    /// Versions of commits that were taken back: behind the first, up to the second.
    taken_back: VecDeque<(Version, Version)>,
    stats: EmbeddedStats,
}

impl State {
    /// Whether a version is one of a commit that was taken back.
    fn is_taken_back(&self, version: Version) -> bool {
        self.taken_back.iter().any(|(after, upto)| *after < version && version <= *upto)
    }

    /// It closes, and everything that was committed is on disk.
    fn may_end(&self) -> bool {
        self.closing && self.flushed >= self.store.version()
    }

    /// Notes which version is newest, if the last one that was noted is old.
    fn sample(&mut self, now: Instant) {
        let version = self.store.version();
        if self.samples.back().is_none_or(|(at, _)| now.since(*at) >= WINDOW_STEP) {
            self.samples.push_back((now, version));
        }
    }
}

struct Inner {
    rt: Rt,
    dir: Dir,
    config: EmbeddedConfig,
    engine: u128,
    /// The first version of this life: none of a former one is as great.
    life: Version,
    state: RefCell<State>,
    /// Something was written, flushed or failed.
    progress: Notify,
    /// There is something to write, or the engine closes.
    work: Notify,
    /// There is something to flush, or somebody waits for it.
    flush_work: Notify,
    /// A segment is to be made ahead, or the engine closes.
    spare_work: Notify,
    reading: Reading,
}

/// The engine; cloning it gives another handle.
#[derive(Clone)]
pub struct Embedded(Rc<Inner>);

impl Embedded {
    /// Opens the engine in `dir`, formatting an empty one if it may. Takes the directory's lock.
    pub async fn open(rt: &Rt, dir: Dir, config: EmbeddedConfig) -> Result<Self> {
        let place = dir.path();
        Self::open_inner(rt, dir, config)
            .await
            .map_err(|e| e.context(format!("metadata engine in {place}")))
    }

    async fn open_inner(rt: &Rt, dir: Dir, config: EmbeddedConfig) -> Result<Self> {
        rt.lock_dir(&dir).await.map_err(|e| {
            Error::new(
                Status::Busy,
                format!(
                    "cannot lock the directory ({e}): another process uses it; stop that one first"
                ),
            )
        })?;
        let found = recover::recover(rt, &dir, &config).await?;
        let version = found.store.version();
        let inner = Rc::new(Inner {
            rt: rt.clone(),
            dir,
            config,
            engine: found.engine,
            life: version + 1,
            state: RefCell::new(State {
                store: found.store,
                records: Records::default(),
                first_pending: None,
                written: version,
                written_sequence: found.tail.sequence - 1,
                flushed: version,
                flushed_sequence: found.tail.sequence - 1,
                wanted: VecDeque::new(),
                flushing: false,
                failed: None,
                closing: false,
                closed_tasks: 0,
                file: found.tail.file.clone(),
                rotate: false,
                rotated: None,
                checkpoint_from: Instant::default(),
                pin: None,
                kept: BTreeMap::new(),
                samples: VecDeque::new(),
                passed: 0,
                reserve: room::Reserve::new(found.checkpoint_bytes),
                spares: spare::Spares::default(),
                taken_back: VecDeque::new(),
                stats: EmbeddedStats { log_bytes: found.log_bytes, ..Default::default() },
            }),
            progress: Notify::default(),
            work: Notify::default(),
            flush_work: Notify::default(),
            spare_work: Notify::default(),
            reading: Reading::default(),
        });
        spare::begin(&inner).await?;
        room::begin(&inner).await?;
        rt.spawn_detached(log::write_loop(inner.clone(), found.tail));
        rt.spawn_detached(log::flush_loop(inner.clone()));
        rt.spawn_detached(checkpoint::background_loop(inner.clone()));
        rt.spawn_detached(spare::make_loop(inner.clone()));
        let engine = Self(inner);
        if let Err(e) = engine.begin_life().await {
            engine.0.state.borrow_mut().closing = true;
            engine.0.wake_all();
            return Err(e);
        }
        Ok(engine)
    }

    /// Commits nothing, on disk: if all the rest of this life is lost, the next one still begins behind it.
    async fn begin_life(&self) -> Result<()> {
        let nothing = Mutation::ClearRange { begin: Vec::new(), end: Vec::new() };
        let commit = Commit { mutations: vec![nothing], durable: true, ..Commit::default() };
        self.commit(commit).await.map(|_| ())
    }

    /// Takes no commit any more, writes and flushes everything, ends the background work and releases the directory.
    pub async fn close(&self) -> Result<()> {
        let inner = &self.0;
        inner.state.borrow_mut().closing = true;
        inner.wake_all();
        inner.progress.until(|| inner.state.borrow().closed_tasks == BACKGROUND_TASKS).await;
        inner.sound()
    }

    /// Writes a checkpoint now.
    pub async fn checkpoint(&self) -> Result<()> {
        checkpoint::write(&self.0).await
    }

    /// What it has done and holds.
    pub fn stats(&self) -> EmbeddedStats {
        let s = self.0.state.borrow();
        EmbeddedStats {
            version: s.store.version(),
            flushed: s.flushed,
            keys: s.store.len() as u64,
            bytes: s.store.bytes(),
            old_versions: s.store.backlog() as u64,
            old_bytes: s.store.older_bytes(),
            reserve_bytes: s.reserve.bytes(),
            short: s.reserve.is_short(),
            full: s.reserve.is_gone(),
            spares: s.spares.len() as u64,
            ..s.stats
        }
    }

    /// Why it takes no commits any more, if so.
    pub fn failure(&self) -> Option<Error> {
        self.0.state.borrow().failed.clone()
    }
}

impl Inner {
    fn wake_all(&self) {
        self.progress.wake();
        self.work.wake();
        self.flush_work.wake();
        self.spare_work.wake();
    }

    /// Takes no commit any more.
    fn fail(&self, error: Error) {
        {
            let mut s = self.state.borrow_mut();
            if s.failed.is_none() {
                let error = error.context(
                    "the metadata engine has stopped taking commits; mend the disk or make room, then restart the service",
                );
                tracing::error!(%error, "metadata engine stopped");
                s.failed = Some(error);
            }
        }
        self.wake_all();
    }

    /// Why it takes no commits any more, if so.
    fn sound(&self) -> Result<()> {
        self.state.borrow().failed.clone().map_or(Ok(()), Err)
    }

    fn refuse(&self) -> Result<()> {
        self.sound()?;
        if self.state.borrow().closing {
            return Err(Error::new(Status::ShuttingDown, "the metadata engine is closing"));
        }
        Ok(())
    }

    /// Waits until `version` is in the log file.
    async fn settled(&self, version: Version) -> Result<()> {
        let done = || {
            let s = self.state.borrow();
            s.written >= version || s.failed.is_some() || s.is_taken_back(version)
        };
        if !done() {
            self.progress.until(done).await;
        }
        self.outcome(|s| s.written, version)
    }

    /// Waits until `version` is on disk.
    async fn durable(&self, version: Version) -> Result<()> {
        {
            let mut s = self.state.borrow_mut();
            if s.flushed < version {
                s.wanted.push_back(version);
            }
        }
        self.flush_work.wake();
        let done = || {
            let s = self.state.borrow();
            s.flushed >= version || s.failed.is_some() || s.is_taken_back(version)
        };
        self.progress.until(done).await;
        self.outcome(|s| s.flushed, version)
    }

    fn outcome(&self, reached: impl Fn(&State) -> Version, version: Version) -> Result<()> {
        let s = self.state.borrow();
        if s.is_taken_back(version) {
            return Err(room::gone(&self.dir));
        }
        if reached(&s) >= version {
            return Ok(());
        }
        let why = s.failed.as_ref().map_or_else(|| "stopped".to_owned(), |e| e.message.clone());
        Err(Error::new(
            Status::CommitUnknown,
            format!("the outcome of a commit is not known: {why}"),
        ))
    }

    /// Checks and applies a commit. Returns its version, or the newest one if it changes nothing.
    fn apply(&self, commit: &Commit) -> Result<Version> {
        self.refuse()?;
        let now = self.rt.now();
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        s.store.check(commit)?;
        if let Some(refusal) = room::refusal(&s.reserve, commit.grows, &self.dir) {
            s.stats.refused += 1;
            s.reserve.ask();
            return Err(refusal);
        }
        if s.records.bytes.len() > PENDING_BYTES_MAX {
            return Err(Error::new(Status::Overloaded, "the metadata log is behind; retry"));
        }
        s.records.begin();
        let version = s.store.apply(commit, &mut s.records);
        s.records.end(version);
        s.first_pending.get_or_insert(version);
        s.sample(now);
        Ok(version)
    }

    /// Moves the window of readable versions on.
    fn move_window(&self) {
        let now = self.rt.now();
        let mut s = self.state.borrow_mut();
        // The last changes before a rest, too.
        if s.store.version() > s.samples.back().map_or(s.passed, |(_, version)| *version) {
            s.sample(now);
        }
        while let Some((at, version)) = s.samples.front().copied() {
            if now.since(at) < self.config.window {
                break;
            }
            s.passed = version;
            s.samples.pop_front();
        }
        let mut oldest = s.passed;
        s.kept.retain(|_, until| now < *until);
        let entries_max = self.config.window_entries.saturating_mul(KEPT_WINDOWS);
        let much =
            s.store.older_bytes() > self.config.kept_bytes || s.store.backlog() > entries_max;
        if much && !s.kept.is_empty() {
            tracing::warn!(
                "what was changed while a version was kept takes too much memory: whoever reads it has to begin anew"
            );
            s.kept.clear();
        }
        // Not while something is kept: it counts what is too much, again and again, and nothing would come of it.
        if s.kept.is_empty()
            && let Some(bound) =
                s.store.bound_for(self.config.window_entries, self.config.window_bytes)
        {
            oldest = oldest.max(bound);
        }
        oldest = oldest.min(s.kept.first_key_value().map_or(Version::MAX, |(kept, _)| *kept));
        // What is not in the log yet may have to be unread.
        oldest = oldest.min(s.written).min(s.pin.unwrap_or(Version::MAX));
        s.store.set_oldest(oldest);
        s.store.trim(IDLE_TRIM);
    }
}

impl Engine for Embedded {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        self.in_turn(Inner::begin)
    }

    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        self.in_turn(move |inner| inner.get(version, &keys))
    }

    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        self.in_turn(move |inner| inner.get_range(version, (&begin, &end), limit, reverse))
    }

    fn keep(&self, version: Version) -> BoxFuture<Result<()>> {
        let until = self.0.rt.now() + self.0.config.kept_for;
        let mut s = self.0.state.borrow_mut();
        let s = &mut *s;
        let result = s.store.get(version, &[]).map(|_| ()).and_then(|()| {
            if s.kept.len() >= KEPT_MAX && !s.kept.contains_key(&version) {
                let e = format!("{KEPT_MAX} versions are kept already: wait until those who read them have ended");
                return Err(Error::new(Status::Overloaded, e));
            }
            s.kept.insert(version, until);
            Ok(())
        });
        Box::pin(std::future::ready(result))
    }

    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let read_only = commit.mutations.is_empty() && commit.write_conflicts.is_empty();
            if read_only {
                let (version, settled) = if commit.durable {
                    inner.refuse()?;
                    let version = inner.state.borrow().store.version();
                    // What was read may have been taken back, and the version stands for others by now.
                    let read = inner.settled(commit.read_version).await;
                    (version, if read.is_ok() { inner.durable(version).await } else { read })
                } else {
                    (commit.read_version, inner.settled(commit.read_version).await)
                };
                return match settled {
                    // What was read may not be there any more.
                    Err(e) if e.status == Status::NoSpace => {
                        Err(Error::new(Status::TooOld, e.message))
                    }
                    settled => settled.map(|()| version),
                };
            }
            if commit.grows {
                room::keep_pace(&inner).await;
            }
            let version = inner.apply(&commit)?;
            inner.work.wake();
            if commit.durable {
                inner.durable(version).await?;
            } else {
                inner.settled(version).await?;
            }
            Ok(version)
        })
    }

    fn is_newest(&self, version: Version) -> bool {
        // A commit that waits for the reserve lets others pass it: what it has read is looked at again.
        self.0.state.borrow().store.version() == version && !room::is_outgrown(&self.0)
    }

    fn life(&self, _version: Version) -> u64 {
        self.0.life
    }

    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        let inner = self.0.clone();
        Box::pin(async move {
            inner.refuse()?;
            let version = inner.state.borrow().store.version();
            match inner.durable(version).await {
                // What was taken back was not committed; all the rest is on disk.
                Err(e) if e.status == Status::NoSpace => Ok(()),
                other => other,
            }
        })
    }
}
