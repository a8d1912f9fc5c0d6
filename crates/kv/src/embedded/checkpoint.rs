//! Checkpoints: the whole map at one version in a file of its own, written in small steps beside the traffic.
//!
//! Order: fresh log segment (everything before it is flushed) -> the map at that version into `checkpoint.tmp`, which was the reserve -> flush -> rename ->
//! flush the directory -> the older checkpoint becomes the reserve -> older segments become spares or are removed, oldest first. A crash anywhere leaves a complete
//! checkpoint and every segment behind it.
//!
//! Where there is no room for one ([`super::room`] keeps it, where it can), or for the segment, the log goes on as it is, and it is tried again.

use super::format::{
    BLOCK, CHECKPOINT_MAGIC, FileHeader, PageHeader, checkpoint_name, number_of, push_entry,
};
use super::log::{aligned, finish};
use super::room::{self, PAGE_BYTES};
use super::{EmbeddedConfig, Inner, State, WINDOW_STEP, spare};
use glowfs_types::{Error, Result, Status};
use std::rc::Rc;

/// The name of a checkpoint that is not complete.
pub const TMP: &str = "checkpoint.tmp";
/// A checkpoint waits until the log has one byte for so many that there are.
const CHECKPOINT_SHARE: u64 = 2;
/// Keys looked at in one step of the walk.
const STEP_KEYS: usize = 512;

/// Moves the window of versions and writes checkpoints when they are due.
pub async fn background_loop(inner: Rc<Inner>) {
    loop {
        let wanted = || {
            let s = inner.state.borrow();
            s.closing || s.failed.is_some() || s.reserve.is_pressed()
        };
        let _ = inner.rt.timeout(WINDOW_STEP, inner.progress.until(wanted)).await;
        let due = {
            let s = inner.state.borrow();
            if s.closing || s.failed.is_some() {
                break;
            }
            let due = s.stats.log_bytes >= due_at(&inner.config, &s);
            (due || room::wants_checkpoint(&inner.config, &s, inner.rt.now()))
                && s.pin.is_none()
                && inner.rt.now() >= s.checkpoint_from
        };
        inner.move_window();
        if let Err(e) = room::tend(&inner).await {
            inner.fail(e.context("keeping room in reserve for the metadata"));
        }
        if due {
            let task = inner.clone();
            inner.rt.spawn_detached(async move {
                match write_if_fits(&task).await {
                    Ok(None) => {}
                    Ok(Some(e)) => later(&task, &e),
                    Err(e) if matches!(e.status, Status::ShuttingDown | Status::Busy) => {}
                    Err(e) => task.fail(e.context("writing a metadata checkpoint")),
                }
            });
        }
    }
    finish(&inner);
}

/// The log that makes a checkpoint due, in bytes. A checkpoint writes all that there is, so it has to wait for a log in proportion, or
/// each commit would cost the more the more there is.
fn due_at(config: &EmbeddedConfig, state: &State) -> u64 {
    config.checkpoint_log_bytes.max(state.store.bytes() / CHECKPOINT_SHARE)
}

/// There was no room: it is due again in a while.
fn later(inner: &Inner, error: &Error) {
    let mut s = inner.state.borrow_mut();
    s.checkpoint_from = inner.rt.now() + inner.config.checkpoint_pause;
    s.stats.checkpoints_without_room += 1;
    tracing::error!(
        %error,
        log_bytes = s.stats.log_bytes,
        "there is no room for a metadata checkpoint, so the log grows on: make room, for when the log finds none no commit is taken"
    );
}

/// Writes a checkpoint of now, unless it is known beforehand that it does not fit. `Some`: there was no room, and everything is as before.
async fn write_if_fits(inner: &Inner) -> Result<Option<Error>> {
    // If it cannot be asked the attempt will tell.
    let free = inner.dir.space().map_or(u64::MAX, |s| s.free_bytes);
    let (bytes, reserve) = {
        let s = inner.state.borrow();
        (s.store.bytes(), s.reserve.bytes())
    };
    if free.saturating_add(reserve) < bytes {
        let e =
            format!("{bytes} bytes are to be written, {free} are free and {reserve} in reserve");
        return Ok(Some(Error::new(Status::NoSpace, e)));
    }
    attempt(inner).await
}

/// Writes a checkpoint of now.
pub async fn write(inner: &Inner) -> Result<()> {
    attempt(inner).await?.map_or(Ok(()), Err)
}

async fn attempt(inner: &Inner) -> Result<Option<Error>> {
    {
        let mut s = inner.state.borrow_mut();
        if s.pin.is_some() {
            return Err(Error::new(Status::Busy, "a checkpoint is being written already"));
        }
        if let Some(e) = &s.failed {
            return Err(e.clone());
        }
        // Nothing older than what is written now may go until the version is fixed.
        s.pin = Some(s.written);
        s.rotated = None;
        s.rotate = true;
    }
    inner.work.wake();
    let result = write_pinned(inner).await;
    inner.state.borrow_mut().pin = None;
    if result.is_ok() {
        room::tend(inner).await?;
    }
    result
}

async fn write_pinned(inner: &Inner) -> Result<Option<Error>> {
    let ready = || {
        let s = inner.state.borrow();
        s.rotated.is_some() || s.failed.is_some() || s.closing
    };
    inner.progress.until(ready).await;
    let (header, log_bytes) = {
        let mut s = inner.state.borrow_mut();
        let header = match s.rotated.take() {
            Some(Ok(header)) => header,
            Some(Err(no_room)) => return Ok(Some(no_room)),
            None => return Err(Error::new(Status::ShuttingDown, "the engine stopped")),
        };
        s.pin = Some(header.version);
        (header, std::mem::take(&mut s.stats.log_bytes))
    };
    let bytes = match write_file(inner, &header).await {
        Ok(bytes) => bytes,
        Err(e) if room::is_lack(&e) => {
            // Nobody has read it and nobody will: its room is the reserve again.
            if let Err(error) = room::becomes_reserve(inner, TMP).await {
                tracing::warn!(%error, "a checkpoint that is not complete stays until the next one");
            }
            inner.state.borrow_mut().stats.log_bytes += log_bytes;
            return Ok(Some(e));
        }
        Err(e) => return Err(e),
    };
    let name = checkpoint_name(header.version);
    inner.dir.rename(TMP, &name).await?;
    inner.dir.sync().await?;
    remove_older(inner, &header).await?;
    {
        let mut s = inner.state.borrow_mut();
        s.reserve.checkpoint_written(bytes, inner.rt.now(), inner.config.checkpoint_pause);
        s.stats.checkpoints += 1;
    }
    tracing::info!(version = header.version, "metadata checkpoint written");
    Ok(None)
}

/// Its bytes.
async fn write_file(inner: &Inner, header: &FileHeader) -> Result<u64> {
    let rt = &inner.rt;
    let file = room::file_for_checkpoint(inner).await?;
    file.write(vec![aligned(rt, &[&header.encode(CHECKPOINT_MAGIC)])], 0).await?;
    let mut offset = BLOCK as u64;
    let (mut after, mut index, mut total) = (None, 0u64, 0u64);
    let (mut page, mut entries) = (Vec::with_capacity(PAGE_BYTES + BLOCK), 0u32);
    loop {
        after =
            inner.state.borrow().store.walk(header.version, after.as_ref(), STEP_KEYS, |k, v| {
                push_entry(&mut page, k, v);
                entries += 1;
                page.len() < PAGE_BYTES
            });
        if page.len() >= PAGE_BYTES || (after.is_none() && entries > 0) {
            total += u64::from(entries);
            let bytes = PageHeader::encode(index, entries, &page);
            file.write(vec![aligned(rt, &[&bytes])], offset).await?;
            offset += bytes.len() as u64;
            index += 1;
            page.clear();
            entries = 0;
        }
        if after.is_none() {
            break;
        }
        rt.yield_now().await;
        if inner.state.borrow().closing {
            return Err(Error::new(Status::ShuttingDown, "the engine is closing"));
        }
    }
    let last = PageHeader::encode(index, 0, &total.to_le_bytes());
    file.write(vec![aligned(rt, &[&last])], offset).await?;
    offset += last.len() as u64;
    // Behind it stands what was in the reserve.
    file.set_len(offset).await?;
    file.sync().await?;
    Ok(offset)
}

/// Older checkpoints first: without one, its segments would look like holes.
async fn remove_older(inner: &Inner, header: &FileHeader) -> Result<()> {
    let mut names = inner.dir.list().await?;
    names.sort();
    let older = |name: &&String| number_of(name, "checkpoint-").is_some_and(|v| v < header.version);
    let mut older: Vec<&String> = names.iter().filter(older).collect();
    let newest = older.pop();
    for name in older {
        inner.dir.remove(name).await?;
    }
    match newest {
        Some(name) => room::becomes_reserve(inner, name).await?,
        None => inner.dir.sync().await?,
    }
    let mut spares = Vec::new();
    for name in &names {
        if number_of(name, "log-").is_some_and(|s| s < header.sequence) {
            match spare::recycle(inner, name, spares.len()).await? {
                Some(spare) => spares.push(spare),
                None => inner.dir.remove(name).await?,
            }
        }
    }
    inner.dir.sync().await?;
    spare::keep(inner, spares).await
}
