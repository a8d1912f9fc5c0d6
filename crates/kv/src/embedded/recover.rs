//! Recovery: the newest checkpoint, then every batch of the log behind it.
//!
//! What is cut: bytes at the end of the last segment that no later, flushed batch stands on. Everything else that cannot be read is
//! refused with its place, because it was flushed once and something damaged it.
//!
//! What stands in the last segment and is not known to be durable is written once more before anything is built on it: after a
//! failed flush the system takes what it could not write for clean, shows it until the power goes, and lets further flushes succeed.

use super::EmbeddedConfig;
use super::checkpoint::TMP;
use super::format::{
    BATCH_HEADER, BLOCK, BatchHeader, CHECKPOINT_MAGIC, FileHeader, LOG_MAGIC, Op, PAGE_HEADER,
    PageHeader, checkpoint_name, log_name, number_of, read_entries, read_records, u64_at,
};
use super::log::{Tail, aligned, create_segment, take_room};
use super::room::RESERVE;
use crate::engine::Version;
use crate::mvcc::Mvcc;
use glowfs_rt::backend::OpenOptions;
use glowfs_rt::{BufMut, Dir, File, Rt};
use glowfs_types::checksum::crc32c;
use glowfs_types::{Error, Result, Status};

/// Bytes read at once from a checkpoint; more than its greatest page.
const WINDOW: usize = 2 << 20;
/// The greatest segment that is read, in bytes.
const SEGMENT_BYTES_MAX: u64 = 4 << 30;

/// More versions than were ever given out and not flushed, which a loss of power takes; and 2^31 recoveries fit below [`VERSION_MAX`].
const LOST_VERSIONS_MAX: u64 = 1 << 32;

/// The greatest version with which an engine is opened: what counts on from there never overflows.
const VERSION_MAX: Version = Version::MAX / 2;

/// What was found.
pub struct Recovered {
    pub store: Mvcc,
    pub engine: u128,
    pub tail: Tail,
    pub log_bytes: u64,
    /// Bytes of the checkpoint that it began with.
    pub checkpoint_bytes: u64,
}

fn damaged(place: impl std::fmt::Display, what: impl std::fmt::Display) -> Error {
    Error::new(
        Status::Corrupt,
        format!(
            "{place}: {what}. It was complete once, so the disk or somebody damaged it; nothing was changed. Restore the \
             directory from a backup or a dump"
        ),
    )
}

/// Reads the directory, formatting an empty one.
pub async fn recover(rt: &Rt, dir: &Dir, config: &EmbeddedConfig) -> Result<Recovered> {
    let names = dir.list().await?;
    let mut segments: Vec<u64> = names.iter().filter_map(|n| number_of(n, "log-")).collect();
    segments.sort_unstable();
    let newest = names.iter().filter_map(|n| number_of(n, "checkpoint-")).max();
    if names.iter().any(|n| n == TMP) {
        // Its room is the reserve.
        dir.rename(TMP, RESERVE).await?;
    }
    let mut store = Mvcc::default();
    let (base, checkpoint_bytes) = match newest {
        Some(version) => read_checkpoint(rt, dir, version, config, &mut store).await?,
        None => match first_header(rt, dir, &segments, config).await? {
            Some(header) => (header, 0),
            None if config.format => return format_empty(rt, dir, config, &segments).await,
            None => {
                let what = "there is no metadata in it: if it belongs on a disk of its own, mount that; to begin a new file system there, start `glowfs meta` once with --format";
                return Err(Error::new(Status::NotFound, what));
            }
        },
    };
    let recovered = replay(rt, dir, config, base, &segments, store).await?;
    Ok(Recovered { checkpoint_bytes, ..recovered })
}

/// A directory is empty when it has no checkpoint and no segment that was ever completed.
async fn format_empty(
    rt: &Rt,
    dir: &Dir,
    config: &EmbeddedConfig,
    segments: &[u64],
) -> Result<Recovered> {
    if config.first_version > VERSION_MAX {
        let what =
            format!("version {} to begin with: no engine ever reached it", config.first_version);
        return Err(Error::new(Status::InvalidArgument, what));
    }
    for s in segments {
        dir.remove(&log_name(*s)).await?;
    }
    let header = FileHeader {
        cluster: config.cluster,
        engine: rt.random_u128(),
        sequence: 1,
        version: config.first_version,
        chain: 0,
    };
    let (tail, _) = create_segment(rt, dir, &header, config.segment_bytes).await?;
    let mut store = Mvcc::default();
    store.set_version(header.version);
    tracing::info!(dir = dir.path(), "formatted a metadata engine");
    Ok(Recovered { store, engine: header.engine, tail, log_bytes: 0, checkpoint_bytes: 0 })
}

/// Without a checkpoint: the header of the first segment; `None` if the directory was never completely formatted.
async fn first_header(
    rt: &Rt,
    dir: &Dir,
    segments: &[u64],
    config: &EmbeddedConfig,
) -> Result<Option<FileHeader>> {
    let Some(&first) = segments.first() else { return Ok(None) };
    let name = log_name(first);
    let file = dir.open(&name, OpenOptions::default()).await?;
    let (buf, got) = read(rt, &file, 0, BLOCK).await?;
    match FileHeader::decode(&buf[..got], LOG_MAGIC, &name)? {
        Some(header) if first == 1 => {
            check_owner(&header, config, &name)?;
            Ok(Some(header))
        }
        Some(_) => Err(damaged(&name, "it is not the first segment, and there is no checkpoint")),
        None if segments.len() == 1 && first == 1 && !has_batches(rt, &file).await? => Ok(None),
        None => Err(damaged(&name, "its header cannot be read")),
    }
}

/// Whether anything that looks like a batch stands in a segment whose header is not readable.
async fn has_batches(rt: &Rt, file: &File) -> Result<bool> {
    let len = file.len()?;
    let mut at = BLOCK as u64;
    while at < len.min(SEGMENT_BYTES_MAX) {
        let (buf, got) = read(rt, file, at, WINDOW).await?;
        if buf[..got].iter().any(|b| *b != 0) {
            return Ok(true);
        }
        at += WINDOW as u64;
    }
    Ok(false)
}

fn check_owner(header: &FileHeader, config: &EmbeddedConfig, name: &str) -> Result<()> {
    if header.cluster != config.cluster {
        return Err(Error::new(
            Status::WrongCluster,
            format!(
                "{name} belongs to cluster {}, this service to {}: give the service its own directory, or the right cluster id",
                header.cluster, config.cluster
            ),
        ));
    }
    Ok(())
}

async fn read(rt: &Rt, file: &File, offset: u64, len: usize) -> Result<(BufMut, usize)> {
    let (result, buf) = file.read(rt.alloc(len), offset).await;
    let got = result?.min(len);
    Ok((buf, got))
}

async fn read_checkpoint(
    rt: &Rt,
    dir: &Dir,
    version: u64,
    config: &EmbeddedConfig,
    store: &mut Mvcc,
) -> Result<(FileHeader, u64)> {
    let name = checkpoint_name(version);
    let file = dir.open(&name, OpenOptions::default()).await?;
    let bytes = file.len()?;
    let (buf, got) = read(rt, &file, 0, BLOCK).await?;
    let header = FileHeader::decode(&buf[..got], CHECKPOINT_MAGIC, &name)?
        .ok_or_else(|| damaged(&name, "its header cannot be read"))?;
    check_owner(&header, config, &name)?;
    let (mut offset, mut index, mut total) = (BLOCK as u64, 0u64, 0u64);
    loop {
        let (buf, got) = read(rt, &file, offset, WINDOW).await?;
        let mut at = 0;
        while at + PAGE_HEADER <= got {
            let place = || format!("{name}, byte {}", offset + at as u64);
            let page = PageHeader::decode(&buf[at..got]).filter(|p| p.index == index);
            let page = page.ok_or_else(|| damaged(place(), "a page cannot be read"))?;
            let Some(payload) =
                buf[..got].get(at + PAGE_HEADER..at + PAGE_HEADER + page.payload as usize)
            else {
                break;
            };
            if crc32c(payload) != page.payload_crc {
                return Err(damaged(place(), "a page has a wrong checksum"));
            }
            if page.entries == 0 {
                if payload.len() != 8 || u64_at(payload, 0) != total {
                    return Err(damaged(place(), "the number of entries is wrong"));
                }
                store.set_version(header.version);
                return Ok((header, bytes));
            }
            let count = read_entries(payload, |k, v| store.replay_put(header.version, k, v));
            if count != Some(page.entries) {
                return Err(damaged(place(), "a page has a wrong form"));
            }
            total += u64::from(page.entries);
            index += 1;
            at += page.disk_bytes();
        }
        if at == 0 {
            return Err(damaged(format!("{name}, byte {offset}"), "it ends too early"));
        }
        offset += at as u64;
    }
}

/// Removes the segments that a checkpoint has made superfluous; the others. They are what a crash left while they were being removed, or before that: then the
/// name of the checkpoint need not be on the disk yet.
async fn remove_older<'a>(dir: &Dir, base: &FileHeader, segments: &'a [u64]) -> Result<&'a [u64]> {
    let (older, rest) = segments.split_at(segments.partition_point(|s| *s < base.sequence));
    if !older.is_empty() {
        dir.sync().await?;
    }
    for s in older {
        dir.remove(&log_name(*s)).await?;
    }
    Ok(rest)
}

/// Applies every batch of the log behind a checkpoint to what that held.
async fn replay(
    rt: &Rt,
    dir: &Dir,
    config: &EmbeddedConfig,
    base: FileHeader,
    segments: &[u64],
    mut store: Mvcc,
) -> Result<Recovered> {
    let segments = remove_older(dir, &base, segments).await?;
    let mut next = (base.sequence, base.chain);
    let mut log_bytes = 0;
    let mut tail = None;
    for (i, &first) in segments.iter().enumerate() {
        let last = i + 1 == segments.len();
        let name = log_name(first);
        if first != next.0 {
            return Err(damaged(&name, format!("the log has a gap: batch {} is missing", next.0)));
        }
        let file = dir.open(&name, OpenOptions::default()).await?;
        let (buf, got) = read_segment(rt, &file, &name).await?;
        let Some(header) = FileHeader::decode(&buf[..got], LOG_MAGIC, &name)? else {
            // Its header is flushed before the first batch: without any, it was never finished.
            let batches = buf[..got].get(BLOCK..).unwrap_or_default();
            if last && i > 0 && batches.iter().all(|b| *b == 0) {
                dir.remove(&name).await?;
                break;
            }
            return Err(damaged(&name, "its header cannot be read"));
        };
        check_owner(&header, config, &name)?;
        if header.engine != base.engine || header.sequence != first || header.chain != next.1 {
            return Err(damaged(&name, "it does not follow what was before it"));
        }
        let mut scan =
            Scan { bytes: &buf[..got], at: BLOCK, next, engine: base.engine, name: &name };
        let places = scan.replay(&mut store)?;
        scan.check_end(last)?;
        if last {
            // Of the last batch the padding may be lacking.
            write_again(rt, &file, &buf[..scan.at.min(got)], &places).await?;
        }
        next = scan.next;
        log_bytes += scan.at as u64;
        tail = Some((file, scan.at as u64));
    }
    let Some((file, end)) = tail else {
        return Err(damaged(
            log_name(base.sequence),
            "the segment behind the checkpoint is missing",
        ));
    };
    let version = store.version().max(base.version);
    if version > VERSION_MAX {
        let what = format!("it has version {version}, which no engine ever reached");
        return Err(damaged(log_name(base.sequence), what));
    }
    dir.sync().await?;
    end_log(&file, end, config).await?;
    // Versions that were given out and lost must not come again with other contents: a transaction of then would go on with what never was.
    let version = version + LOST_VERSIONS_MAX;
    store.set_version(version);
    tracing::info!(version, keys = store.len(), batches = next.0, "metadata engine recovered");
    Ok(Recovered {
        store,
        engine: base.engine,
        tail: Tail { file, offset: end, sequence: next.0, chain: next.1, written: false },
        log_bytes,
        checkpoint_bytes: 0,
    })
}

async fn read_segment(rt: &Rt, file: &File, name: &str) -> Result<(BufMut, usize)> {
    let len = file.len()?;
    if len > SEGMENT_BYTES_MAX {
        return Err(damaged(name, format!("{len} bytes is more than a segment can have")));
    }
    read(rt, file, 0, len as usize).await
}

/// What stands behind the end must never be taken for the future of another past.
async fn end_log(file: &File, end: u64, config: &EmbeddedConfig) -> Result<()> {
    file.set_len(end).await?;
    take_room(file, end, config.segment_bytes).await?;
    file.sync().await?;
    Ok(())
}

/// Where the batches of a segment stand, and which of them are known to be durable.
#[derive(Default)]
struct Places {
    /// Sequence and offset of those that were not known when they came, ascending.
    batches: Vec<(u64, usize)>,
    flushed: u64,
}

impl Places {
    fn add(&mut self, batch: &BatchHeader, at: usize) {
        if batch.flushed > self.flushed {
            self.flushed = batch.flushed;
            self.batches.retain(|(sequence, _)| *sequence > batch.flushed);
        }
        self.batches.push((batch.sequence, at));
    }
}

/// Writes what is not known to be durable to where it stands; the flush that follows makes it so.
async fn write_again(rt: &Rt, file: &File, segment: &[u8], places: &Places) -> Result<()> {
    if places.flushed == 0 || places.batches.first().is_some_and(|(_, at)| *at == BLOCK) {
        file.write(vec![aligned(rt, &[&segment[..BLOCK]])], 0).await?;
    }
    let Some((_, mut at)) = places.batches.first().copied() else { return Ok(()) };
    while at < segment.len() {
        let end = segment.len().min(at + WINDOW);
        file.write(vec![aligned(rt, &[&segment[at..end]])], at as u64).await?;
        at = end;
    }
    Ok(())
}

fn apply(store: &mut Mvcc, payload: &[u8]) -> Result<()> {
    read_records(payload, |version, op| match op {
        Op::Put(k, v) => store.replay_put(version, k, v),
        Op::Clear(b, e) => store.replay_clear(version, b, e),
    })
}

/// A walk over the batches of one segment.
struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Sequence and chain of the batch that must come.
    next: (u64, u32),
    engine: u128,
    name: &'a str,
}

impl<'a> Scan<'a> {
    fn place(&self) -> String {
        format!("{}, byte {} (batch {})", self.name, self.at, self.next.0)
    }
    /// The batch that must come, if it stands here.
    fn batch(&self) -> Option<(BatchHeader, &'a [u8])> {
        let (header, payload) = BatchHeader::decode(self.bytes.get(self.at..)?, self.engine)?;
        ((header.sequence, header.chain) == self.next).then_some((header, payload))
    }
    fn advance(&mut self, batch: &BatchHeader) {
        self.at += batch.disk_bytes();
        self.next = (batch.sequence + 1, batch.crc);
    }
    /// Applies all batches that stand here one behind the other. Where they stand.
    fn replay(&mut self, store: &mut Mvcc) -> Result<Places> {
        let mut places = Places::default();
        while let Some((batch, payload)) = self.batch() {
            apply(store, payload).map_err(|e| damaged(self.place(), e))?;
            store.set_version(batch.last);
            places.add(&batch, self.at);
            self.advance(&batch);
        }
        Ok(places)
    }
    /// No batch stands here. A later one that was written after the missing one was flushed proves damage; so does a later segment. Of what the
    /// segment was before ([`super::spare`]) there may be batches, which are older and prove nothing.
    fn check_end(&self, last: bool) -> Result<()> {
        let mut at = self.at + BLOCK;
        while at + BATCH_HEADER <= self.bytes.len() {
            if let Some((later, _)) = BatchHeader::decode(&self.bytes[at..], self.engine)
                && (later.flushed >= self.next.0 || (!last && later.sequence >= self.next.0))
            {
                return Err(damaged(
                    self.place(),
                    format!("a batch cannot be read, although batch {} follows", later.sequence),
                ));
            }
            at += BLOCK;
        }
        Ok(())
    }
}
