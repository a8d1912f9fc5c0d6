//! Spare segments: files whose blocks are all written already. To flush a batch in one, the file system has neither extents nor a length to put into its
//! journal, and a flush costs what a flush of the disk costs.
//!
//! They are segments that a checkpoint has made superfluous, with what stands in them; where flushes are waited for and there is none, one is made of zeros
//! in the background. A spare becomes a segment by its name, and its new header is on the disk before. Behind that stand zeros, and batches that this life
//! wrote or replayed and a checkpoint has superseded: their sequences are smaller than any that a start expects behind the header, so the log ends there. For that
//! no spare outlives the process: a start removes what it finds, since its past may be another one.
//!
//! Must never: be a segment by name before its header is on the disk, or keep room that the log, a checkpoint or the reserve wants: it is the first that is given up.

use super::format::{BLOCK, FileHeader, LOG_MAGIC, log_name, number_of};
use super::log::{Tail, aligned, finish, open_fresh};
use super::{Inner, State, room};
use glowfs_rt::backend::OpenOptions;
use glowfs_rt::{Duration, File};
use glowfs_types::{Error, Result};
use std::io::ErrorKind;
use std::rc::Rc;

/// Begins their names.
const PREFIX: &str = "spare-";
/// So many at a time, at most: a log of the default size between two checkpoints.
const SPARES_MAX: usize = 4;
/// So many segments must be free beside them.
const FREE_SEGMENTS: u64 = 4;
/// One is made when flushes were waited for of as much as this part of a segment: whoever flushes little has nothing from it.
const PART_FLUSHED: u64 = 16;
/// Zeros that are written and flushed at once, in bytes: what a flush of the log may have to wait behind.
const STEP_BYTES: usize = 1 << 20;
/// How long who wants room waits until what is being made is given up, at most: a step.
const GIVE_UP_MAX: Duration = Duration::from_secs(1);
const GIVE_UP_LOOK: Duration = Duration::from_millis(1);

/// What there is.
#[derive(Default)]
pub struct Spares {
    names: Vec<String>,
    /// The number of the next one.
    next: u64,
    /// Flushes that somebody has waited for since one was made last.
    waited: u64,
    /// There is room for some.
    roomy: bool,
    /// One is being made, and has its room.
    making: bool,
}

impl Spares {
    pub fn len(&self) -> usize {
        self.names.len()
    }
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
    /// A flush that somebody waited for has ended.
    pub fn waited(&mut self) {
        self.waited += 1;
    }
    fn next_name(&mut self) -> String {
        self.next += 1;
        format!("{PREFIX}{:016x}", self.next)
    }
}

/// Removes those of a former life.
pub async fn begin(inner: &Inner) -> Result<()> {
    for name in inner.dir.list().await?.iter().filter(|n| number_of(n, PREFIX).is_some()) {
        remove(inner, name).await?;
    }
    Ok(())
}

/// An operator who makes room may have been there first.
async fn remove(inner: &Inner, name: &str) -> Result<()> {
    match inner.dir.remove(name).await {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => Ok(removed?),
    }
}

/// Flushes the directory, which the log and checkpoints flush as well: an error may be told to one of them only, so it ends them all, also if it says that there is
/// no room.
async fn flush_names(inner: &Inner) -> Result<()> {
    if let Err(e) = inner.dir.sync().await {
        inner.fail(Error::from(e).context("flushing the directory of the metadata engine"));
    }
    inner.sound()
}

/// Keeps or gives up, given what is free on the disk and how much of that the reserve lacks; what is free then.
pub async fn look(inner: &Inner, free: u64, lacking: u64) -> Result<u64> {
    let segment = inner.config.segment_bytes;
    let spare = {
        let mut s = inner.state.borrow_mut();
        let making = if s.spares.making { segment } else { 0 };
        let spare = free.saturating_add(making).saturating_sub(lacking);
        s.spares.roomy = spare >= segment.saturating_mul(FREE_SEGMENTS) && !s.reserve.is_short();
        if is_wanted(inner, &s) {
            inner.spare_work.wake();
        }
        spare
    };
    if spare < segment && give_up(inner).await? {
        return Ok(room::free(inner));
    }
    Ok(free)
}

/// Gives all of them up, also one that is being made. False: there were none.
pub async fn give_up(inner: &Inner) -> Result<bool> {
    let (names, making) = {
        let mut s = inner.state.borrow_mut();
        s.spares.roomy = false;
        (std::mem::take(&mut s.spares.names), s.spares.making)
    };
    for name in &names {
        remove(inner, name).await?;
    }
    let until = inner.rt.now() + GIVE_UP_MAX;
    while inner.state.borrow().spares.making && inner.rt.now() < until {
        inner.rt.sleep(GIVE_UP_LOOK).await;
    }
    let some = !names.is_empty() || (making && !inner.state.borrow().spares.making);
    if some {
        // What they had is free only then, on some file systems.
        flush_names(inner).await?;
    }
    Ok(some)
}

/// Renames a segment that is needed no more to a spare, if there is use for it `beside` others. It is one when the directory was flushed ([`keep`]).
pub async fn recycle(inner: &Inner, segment: &str, beside: usize) -> Result<Option<String>> {
    let (few, whole) = {
        let s = inner.state.borrow();
        (s.spares.roomy && s.spares.len() + beside < SPARES_MAX, inner.config.segment_bytes)
    };
    if !few {
        return Ok(None);
    }
    let len = open_fresh(&inner.rt, &inner.dir, segment).await?.len()?;
    // What is shorter was cut, and is not worth it; what is much longer was made by another configuration.
    if !(whole..=whole.saturating_mul(2)).contains(&len) {
        return Ok(None);
    }
    let name = inner.state.borrow_mut().spares.next_name();
    inner.dir.rename(segment, &name).await?;
    Ok(Some(name))
}

/// They are spares from now on: their names are on the disk.
pub async fn keep(inner: &Inner, mut names: Vec<String>) -> Result<()> {
    let roomy = {
        let mut s = inner.state.borrow_mut();
        let few = SPARES_MAX.saturating_sub(s.spares.len());
        let more = names.split_off(few.min(names.len()));
        s.spares.names.append(&mut names);
        names = more;
        s.spares.roomy
    };
    for name in names {
        remove(inner, &name).await?;
    }
    // It became scarce meanwhile.
    if !roomy {
        give_up(inner).await?;
    }
    Ok(())
}

/// Makes a segment of a spare, if there is one: its header first, then its name.
pub async fn promote(inner: &Inner, header: &FileHeader) -> Result<Option<Tail>> {
    let Some(name) = inner.state.borrow_mut().spares.names.pop() else { return Ok(None) };
    // Without one, or without a descriptor, a segment is made as ever.
    let Ok(file) = inner.dir.open(&name, OpenOptions { create: false, direct: false }).await else {
        remove(inner, &name).await?;
        return Ok(None);
    };
    let head = aligned(&inner.rt, &[&header.encode(LOG_MAGIC)]);
    match file.write(vec![head], 0).await.map_err(Error::from) {
        Err(e) if room::is_lack(&e) => {
            remove(inner, &name).await?;
            return Ok(None);
        }
        written => written?,
    }
    if let Err(e) = file.sync().await {
        // Whatever it says, also that there was no room: nobody knows what it left.
        inner.fail(Error::from(e).context("flushing the header of a segment of the metadata log"));
        inner.sound()?;
    }
    let renamed = inner.dir.rename(&name, &log_name(header.sequence)).await;
    // Somebody may have removed it just now.
    if renamed.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
        return Ok(None);
    }
    match renamed.map_err(Error::from) {
        Err(e) if room::is_lack(&e) => {
            remove(inner, &name).await?;
            return Ok(None);
        }
        renamed => renamed?,
    }
    flush_names(inner).await?;
    inner.state.borrow_mut().stats.recycled += 1;
    let (sequence, chain) = (header.sequence, header.chain);
    Ok(Some(Tail { file, offset: BLOCK as u64, sequence, chain, written: true }))
}

fn is_wanted(inner: &Inner, s: &State) -> bool {
    let flushes = inner.config.segment_bytes / BLOCK as u64 / PART_FLUSHED;
    s.spares.roomy && s.spares.is_empty() && s.spares.waited >= flushes.max(1)
}

/// Makes spares of zeros where they are wanted, until the engine closes or fails.
pub async fn make_loop(inner: Rc<Inner>) {
    let ended = |s: &State| s.closing || s.failed.is_some();
    loop {
        let something = || {
            let s = inner.state.borrow();
            ended(&s) || is_wanted(&inner, &s)
        };
        inner.spare_work.until(something).await;
        if ended(&inner.state.borrow()) {
            break;
        }
        let name = {
            let mut s = inner.state.borrow_mut();
            s.spares.waited = 0;
            s.spares.next_name()
        };
        if let Err(error) = make(&inner, &name).await {
            // Nobody relies on it: where the disk is at fault the log will find out.
            tracing::warn!(%error, "a segment of the metadata log could not be made ahead; flushes take longer");
        }
    }
    finish(&inner);
}

async fn make(inner: &Inner, name: &str) -> Result<()> {
    let file = open_fresh(&inner.rt, &inner.dir, name).await?;
    let made = write_zeros(inner, &file).await;
    let made = match made {
        Ok(true) => Ok(true),
        other => remove(inner, name).await.and(other),
    };
    drop(file);
    inner.state.borrow_mut().spares.making = false;
    // Its name need not be on the disk: it gets another one, and that is flushed.
    if made? { keep(inner, vec![name.to_owned()]).await } else { Ok(()) }
}

/// False: it is not wanted any more.
async fn write_zeros(inner: &Inner, file: &File) -> Result<bool> {
    let bytes = inner.config.segment_bytes;
    file.set_len(0).await?;
    inner.state.borrow_mut().spares.making = true;
    file.allocate(0, bytes).await?;
    let zeros = aligned(&inner.rt, &[&vec![0; STEP_BYTES.min(bytes as usize)]]);
    let mut at = 0;
    while at < bytes {
        let stop = {
            let s = inner.state.borrow();
            s.closing || s.failed.is_some() || !s.spares.roomy
        };
        if stop {
            return Ok(false);
        }
        file.write(vec![zeros.clone()], at).await?;
        file.sync().await?;
        at += zeros.len() as u64;
    }
    Ok(true)
}
