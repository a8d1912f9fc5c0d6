//! Room on the disk: what is kept in reserve, who is refused when it gets short, and what the log does when there is none.
//!
//! The reserve is a file whose room is taken beforehand: that of the next checkpoint and some more ([`needed`]). The next checkpoint is written in it, and the
//! one that it takes the place of becomes the reserve: others who fill the disk cannot hinder it. While the reserve is not whole, commits that make the metadata larger are
//! refused ([`Commit::grows`](glowfs_types::wire::kv::Commit)); all others go on, in a log that is given room of the reserve. Checkpoints come
//! early where they free some that is wanted. When the disk has room again the reserve is made whole.
//!
//! Where a write of the log finds no room and the reserve has none to give (others took it all), what is not in the log is taken
//! back: its commits are refused, the log is cut to what was answered, and no commit is taken until there is room. A write without
//! room has changed nothing that was on the disk, so it may be tried again; of a flush that failed nobody knows what it left, so that stays final, whatever the error says.
//!
//! Must never: refuse a commit that a start may find in the log, or take the room of a checkpoint for the log.

use super::checkpoint::TMP;
use super::format::{BLOCK, PAGE_HEADER};
use super::log::open_fresh;
use super::{EmbeddedConfig, Inner, State, spare};
use crate::mvcc::Mvcc;
use glowfs_rt::backend::OpenOptions;
use glowfs_rt::{Dir, Duration, File, Instant};
use glowfs_types::{Error, Result, Status};

/// The name of the reserve.
pub const RESERVE: &str = "reserve";
/// Payload of a checkpoint's page, about, in bytes. One entry more may lie on top.
pub const PAGE_BYTES: usize = 256 << 10;
/// The log is given so much of the reserve at once, at least, where it has it.
const GIVEN_BYTES: u64 = 1 << 20;
/// So long the log waits for a checkpoint that is being written, and that may bring it room.
const PATIENCE: Duration = Duration::from_secs(1);
/// For the sake of what is refused alone so many bytes of checkpoints are written in a second, at most.
const ASKED_BYTES_PER_S: u64 = 16 << 20;
/// The time between two warnings that room is short.
const SAID_PAUSE: Duration = Duration::from_secs(60);
/// The pause between two looks meanwhile.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// What there is in reserve.
pub struct Reserve {
    /// None: a checkpoint is being written in it, or it could not be made.
    file: Option<File>,
    bytes: u64,
    /// Somebody is at it.
    busy: bool,
    /// Beside the reserve there is no room for a segment of the log.
    scarce: bool,
    /// It is wanted now, not only at the next look.
    pressed: bool,
    /// Bytes of it when it was looked at last: it does not count that a checkpoint is being written in it.
    seen: u64,
    short: bool,
    gone: bool,
    /// Bytes of the last checkpoint.
    checkpoint_bytes: u64,
    /// Something was refused since.
    asked: bool,
    /// Before that no checkpoint is made for what is refused.
    asked_from: Instant,
    /// Before that nothing more is said of the room.
    said_until: Instant,
}

impl Reserve {
    /// None yet, beside a checkpoint of so many bytes.
    pub fn new(checkpoint_bytes: u64) -> Self {
        let (file, busy) = (None, false);
        let (scarce, pressed, short, gone) = (false, false, false, false);
        let (bytes, seen) = (0, 0);
        let (asked, asked_from, said_until) = (false, Instant::default(), Instant::default());
        Self {
            file,
            bytes,
            busy,
            scarce,
            pressed,
            seen,
            short,
            gone,
            checkpoint_bytes,
            asked,
            asked_from,
            said_until,
        }
    }
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// What makes the metadata larger is refused.
    pub fn is_short(&self) -> bool {
        self.short || self.gone
    }
    /// Every commit is refused.
    pub fn is_gone(&self) -> bool {
        self.gone
    }
    /// The room that a segment takes beforehand: little where it would be lacking in the reserve.
    pub fn segment_bytes(&self, config: &EmbeddedConfig) -> u64 {
        let little = self.scarce || self.is_short();
        if little {
            config.segment_bytes.min(config.reserve_bytes / 4)
        } else {
            config.segment_bytes
        }
    }
    /// It has to be looked at now.
    pub fn is_pressed(&self) -> bool {
        self.pressed
    }
    /// A checkpoint was written.
    pub fn checkpoint_written(&mut self, bytes: u64, now: Instant, pause: Duration) {
        (self.checkpoint_bytes, self.asked) = (bytes, false);
        self.asked_from = now + pause.max(Duration::from_secs(bytes / ASKED_BYTES_PER_S));
    }
    /// Something was refused.
    pub fn ask(&mut self) {
        self.asked = true;
    }
    /// What the log may have of it. Of one that is too small for a checkpoint, all.
    fn to_give(&self, keep: u64) -> u64 {
        if self.bytes >= keep { self.bytes - keep } else { self.bytes }
    }
}

/// Whether an error says that there is no room.
pub fn is_lack(error: &Error) -> bool {
    matches!(error.status, Status::NoSpace | Status::QuotaExceeded)
}

/// What is told to those whose commits were taken back or are not taken.
pub fn gone(dir: &Dir) -> Error {
    let e = format!(
        "the disk of the metadata engine ({}) is full: make room there; it goes on by itself",
        dir.path()
    );
    Error::new(Status::NoSpace, e)
}

/// Why a commit is not taken, if so.
pub fn refusal(reserve: &Reserve, grows: bool, dir: &Dir) -> Option<Error> {
    if reserve.gone {
        return Some(gone(dir));
    }
    (reserve.short && grows).then(|| {
        let e = format!(
            "the disk of the metadata engine ({}) is nearly full and takes nothing that needs more room: remove files, or make room there",
            dir.path()
        );
        Error::new(Status::NoSpace, e)
    })
}

/// Bytes of a checkpoint of all that there is, at most.
fn checkpoint_bytes(store: &Mvcc) -> u64 {
    let entries = store.bytes() + 8 * store.len() as u64;
    let pages = entries / PAGE_BYTES as u64 + 3;
    entries + pages * (BLOCK + PAGE_HEADER) as u64
}

/// The reserve beside which the metadata may become larger: a checkpoint, and what the log grows by before one is due and while it is written.
fn needed(checkpoint: u64, config: &EmbeddedConfig) -> u64 {
    checkpoint + checkpoint / 4 + config.reserve_bytes
}

/// What the log must leave.
fn kept(checkpoint: u64, config: &EmbeddedConfig) -> u64 {
    checkpoint + checkpoint / 16 + config.reserve_bytes / 4
}

/// Whether a checkpoint is due before its time, since it frees room that is wanted.
pub fn wants_checkpoint(config: &EmbeddedConfig, s: &State, now: Instant) -> bool {
    let after = checkpoint_bytes(&s.store);
    let freed = (s.reserve.checkpoint_bytes + s.stats.log_bytes).saturating_sub(after);
    let much = after / 8 + config.reserve_bytes / 4;
    let lacking = needed(after, config).saturating_sub(s.reserve.bytes) + config.reserve_bytes / 16;
    let enough = match s.reserve.gone {
        true => 1,
        // Somebody waits for what makes the reserve whole.
        false if s.reserve.asked && now >= s.reserve.asked_from => much.min(lacking),
        false => much,
    };
    (s.reserve.scarce || s.reserve.is_short()) && freed >= enough
}

/// Whether a commit that makes the metadata larger waits now ([`keep_pace`]).
pub fn is_outgrown(inner: &Inner) -> bool {
    let s = inner.state.borrow();
    s.reserve.scarce
        && !s.reserve.is_short()
        && needed(checkpoint_bytes(&s.store), &inner.config) > s.reserve.seen
}

/// Lets a commit that makes the metadata larger wait where room is scarce, until the reserve is as large as that. Others pass it meanwhile.
pub async fn keep_pace(inner: &Inner) {
    let may_go_on = || {
        let ended = {
            let s = inner.state.borrow();
            s.failed.is_some() || s.closing
        };
        ended || !is_outgrown(inner)
    };
    if !may_go_on() {
        inner.state.borrow_mut().reserve.pressed = true;
        inner.progress.wake();
        inner.progress.until(may_go_on).await;
    }
}

/// Waits until nobody else is at the reserve.
async fn lock(inner: &Inner) {
    inner.progress.until(|| !inner.state.borrow().reserve.busy).await;
    inner.state.borrow_mut().reserve.busy = true;
}

fn unlock<T>(inner: &Inner, result: T) -> T {
    inner.state.borrow_mut().reserve.busy = false;
    inner.progress.wake();
    result
}

/// Takes over what a former life has left, and makes it whole.
pub async fn begin(inner: &Inner) -> Result<()> {
    if inner.dir.list().await?.iter().any(|name| name == RESERVE) {
        reopen(inner, RESERVE).await?;
    }
    tend(inner).await
}

/// The reserve is this file.
async fn reopen(inner: &Inner, name: &str) -> Result<()> {
    let file = inner.dir.open(name, OpenOptions::default()).await?;
    let mut len = file.len()? / BLOCK as u64 * BLOCK as u64;
    // A loss of power may have left holes.
    if file.room_bytes()? < len
        && let Err(error) = file.allocate(0, len).await.map_err(Error::from)
    {
        if !is_lack(&error) {
            return Err(error);
        }
        len = 0;
    }
    file.set_len(len).await?;
    let reserve = &mut inner.state.borrow_mut().reserve;
    (reserve.file, reserve.bytes) = (Some(file), len);
    Ok(())
}

/// Bytes that are free on the disk. Where it cannot be asked an attempt will tell.
pub fn free(inner: &Inner) -> u64 {
    inner.dir.space().map_or(u64::MAX, |s| s.free_bytes) / BLOCK as u64 * BLOCK as u64
}

/// Makes the reserve whole if it is not and there is room, gives back what is too much of it, and decides who is refused.
pub async fn tend(inner: &Inner) -> Result<()> {
    lock(inner).await;
    let tended = tend_locked(inner).await;
    unlock(inner, tended)
}

async fn tend_locked(inner: &Inner) -> Result<()> {
    let config = &inner.config;
    let margin = config.reserve_bytes / 4;
    let lacking = {
        let s = inner.state.borrow();
        let most = needed(checkpoint_bytes(&s.store), config) + 2 * margin;
        // What a checkpoint is being written in comes back with it.
        if s.pin.is_some() { 0 } else { most.saturating_sub(s.reserve.bytes) }
    };
    let free = spare::look(inner, free(inner), lacking).await?;
    let (checkpoint, bytes, absent) = {
        let mut s = inner.state.borrow_mut();
        s.reserve.scarce = free < config.segment_bytes;
        s.reserve.pressed = false;
        if s.pin.is_some() && s.reserve.file.is_none() && !s.reserve.gone {
            // A checkpoint is being written in it.
            return Ok(());
        }
        (checkpoint_bytes(&s.store), s.reserve.bytes, s.reserve.file.is_none())
    };
    let needed = needed(checkpoint, config);
    if bytes < needed + margin {
        grow(inner, absent, free, needed + 2 * margin).await?;
    } else if bytes > 2 * (needed + 2 * margin) {
        resize(inner, needed + 2 * margin).await?;
    }
    judge(inner, checkpoint);
    Ok(())
}

/// Takes room up to `most`, as far as there is some.
async fn grow(inner: &Inner, absent: bool, free: u64, most: u64) -> Result<()> {
    let bytes = inner.state.borrow().reserve.bytes;
    let most = most.next_multiple_of(BLOCK as u64).min(bytes.saturating_add(free));
    // What a checkpoint is being written in comes back with it.
    if most <= bytes || (absent && inner.state.borrow().pin.is_some()) {
        return Ok(());
    }
    if absent {
        match open_fresh(&inner.rt, &inner.dir, RESERVE).await.map_err(Error::from) {
            Err(e) if is_lack(&e) => return Ok(()),
            Err(e) => return Err(e),
            Ok(file) => {
                file.set_len(0).await?;
                inner.state.borrow_mut().reserve.file = Some(file);
            }
        }
    }
    let Some(file) = inner.state.borrow().reserve.file.clone() else { return Ok(()) };
    match file.allocate(bytes, most - bytes).await.map_err(Error::from) {
        Ok(()) => inner.state.borrow_mut().reserve.bytes = most,
        // Others were faster. What was got all the same nobody knows.
        Err(e) if is_lack(&e) => file.set_len(bytes).await?,
        Err(e) => return Err(e),
    }
    Ok(())
}

async fn resize(inner: &Inner, bytes: u64) -> Result<()> {
    let bytes = bytes / BLOCK as u64 * BLOCK as u64;
    let Some(file) = inner.state.borrow().reserve.file.clone() else { return Ok(()) };
    file.set_len(bytes).await?;
    // What it has no more is free only then, on some file systems.
    file.sync().await?;
    inner.state.borrow_mut().reserve.bytes = bytes;
    Ok(())
}

/// Decides who is refused, and tells of it when that changes.
fn judge(inner: &Inner, checkpoint: u64) {
    let (config, now) = (&inner.config, inner.rt.now());
    let (needed, margin) = (needed(checkpoint, config), config.reserve_bytes / 4);
    let reserve = &mut inner.state.borrow_mut().reserve;
    if reserve.gone && reserve.to_give(kept(checkpoint, config)) >= margin {
        reserve.gone = false;
        tracing::info!("the disk of the metadata engine has room again: commits are taken");
    }
    let bytes = reserve.bytes;
    reserve.seen = bytes;
    if !reserve.short && bytes < needed {
        reserve.short = true;
        // At the brink it changes with each removal.
        if now >= reserve.said_until {
            reserve.said_until = now + SAID_PAUSE;
            tracing::warn!(
                dir = inner.dir.path(),
                reserve_bytes = bytes,
                needed_bytes = needed,
                "the disk of the metadata engine is nearly full: what needs more room there is refused, removals are not; make room"
            );
        }
    } else if reserve.short && bytes >= needed {
        reserve.short = false;
        if now >= reserve.said_until {
            tracing::info!("the disk of the metadata engine has room again");
        }
    }
}

/// Gives the log `bytes` or more of the reserve, which are free then. With `last`, what is kept for the log of a checkpoint, too. False: there are none.
pub async fn give(inner: &Inner, bytes: u64, last: bool) -> Result<bool> {
    lock(inner).await;
    let given = give_locked(inner, bytes, last).await;
    unlock(inner, given)
}

async fn give_locked(inner: &Inner, bytes: u64, last: bool) -> Result<bool> {
    if spare::give_up(inner).await? {
        inner.state.borrow_mut().reserve.pressed = true;
        return Ok(true);
    }
    let (left, checkpoint) = {
        let s = inner.state.borrow();
        let checkpoint = checkpoint_bytes(&s.store);
        let kept = kept(checkpoint, &inner.config);
        let kept = if last { kept - inner.config.reserve_bytes / 4 } else { kept };
        let there = s.reserve.to_give(kept);
        if s.reserve.file.is_none() || there < bytes {
            return Ok(false);
        }
        (s.reserve.bytes - there.min(bytes.max(GIVEN_BYTES)), checkpoint)
    };
    resize(inner, left).await?;
    judge(inner, checkpoint);
    inner.state.borrow_mut().reserve.pressed = true;
    Ok(true)
}

/// Where the log gets room from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Help {
    /// There is some now.
    Room,
    /// A checkpoint will free some, and waits for a fresh segment.
    Rotate,
    /// There is none to be had.
    None,
}

/// A write of the log, or a new segment, found no room.
pub async fn make(inner: &Inner, bytes: u64, last: bool) -> Result<Help> {
    let until = inner.rt.now() + PATIENCE;
    loop {
        if give(inner, bytes.next_multiple_of(BLOCK as u64), last).await? {
            return Ok(Help::Room);
        }
        {
            let mut s = inner.state.borrow_mut();
            if s.rotate && !last {
                return Ok(Help::Rotate);
            }
            let now = inner.rt.now();
            let due = wants_checkpoint(&inner.config, &s, now) && now >= s.checkpoint_from;
            if s.closing || inner.rt.now() >= until || !(due || s.pin.is_some()) {
                return Ok(Help::None);
            }
            s.reserve.pressed = true;
        }
        inner.progress.wake();
        inner.rt.sleep(LOOK_PAUSE).await;
    }
}

/// Frees all of the reserve but what the checkpoint needs that is about to be written; how much that is.
pub async fn give_rest(inner: &Inner) -> Result<u64> {
    lock(inner).await;
    let given = give_rest_locked(inner).await;
    unlock(inner, given)
}

async fn give_rest_locked(inner: &Inner) -> Result<u64> {
    let (bytes, rest) = {
        let s = inner.state.borrow();
        let kept = kept(checkpoint_bytes(&s.store), &inner.config);
        if s.reserve.file.is_none() || s.reserve.bytes < kept {
            return Ok(0);
        }
        (s.reserve.bytes, s.reserve.to_give(kept) / BLOCK as u64 * BLOCK as u64)
    };
    if rest > 0 {
        resize(inner, bytes - rest).await?;
    }
    Ok(rest)
}

/// The file in which a checkpoint is written: the reserve, or one without any room yet.
pub async fn file_for_checkpoint(inner: &Inner) -> Result<File> {
    lock(inner).await;
    let file = take_file(inner).await;
    unlock(inner, file)
}

async fn take_file(inner: &Inner) -> Result<File> {
    let there = inner.state.borrow().reserve.file.is_some();
    if there {
        inner.dir.rename(RESERVE, TMP).await?;
        let reserve = &mut inner.state.borrow_mut().reserve;
        (reserve.file, reserve.bytes) = (None, 0);
    }
    let file = open_fresh(&inner.rt, &inner.dir, TMP).await?;
    if !there {
        file.set_len(0).await?;
    }
    Ok(file)
}

/// A file that is needed no more (of a checkpoint that did not come about, or of an older one) is the reserve. Its name is for certain before anything is done to it.
pub async fn becomes_reserve(inner: &Inner, name: &str) -> Result<()> {
    lock(inner).await;
    let renamed = rename(inner, name).await;
    unlock(inner, renamed)
}

async fn rename(inner: &Inner, name: &str) -> Result<()> {
    inner.dir.rename(name, RESERVE).await?;
    inner.dir.sync().await?;
    reopen(inner, RESERVE).await
}

/// Nothing of what waits for the log is in it: no commit is taken from now on.
pub fn begin_refusing(inner: &Inner, why: &Error) {
    inner.state.borrow_mut().reserve.gone = true;
    tracing::error!(
        error = %why,
        dir = inner.dir.path(),
        "the disk of the metadata engine is full, and nothing is left in reserve: no commit is taken until there is room; make room there, it goes on by itself"
    );
}
