//! The whole content of an engine as one file, and back: how a cluster's metadata moves between engines (docs/formats/metadata-dump.md).
//!
//! - [`dump`]: everything as of one version of the engine, or an error; never a mixture.
//! - [`verify`]: reads a file from its first to its last byte. Do that before anything is changed.
//! - [`load`], [`compare`], [`finish`]: puts the content of a file into an engine, reads it back, and lets it be used.
//! - [`check_whole`]: an engine whose load did not end is refused by who would use it.
//!
//! Memory: one block ([`format::BLOCK_BYTES_MAX`]) and one page of the engine. Must never: take a file that was cut, damaged or written by a newer release for
//! a whole one, or write over what is in an engine without being told to.

pub mod format;

use crate::{Engine, Key, RunOptions, Transaction, Version, key_after, prefix_end};
use format::{BlockWriter, Header, Reader, Summary};
use glowfs_rt::Rt;
use glowfs_types::wire::kv::RANGE_ENTRIES_MAX;
use glowfs_types::{Error, Result, Status};
use std::io::{Read, Write};
use std::rc::Rc;

/// Bytes of keys and values in one transaction of a load: small enough for every engine, etcd's limits of a request included.
const LOAD_BYTES: usize = 128 << 10;
/// Keys in one transaction of a load.
const LOAD_KEYS: usize = 1000;
/// Keys read at a time.
const PAGE: u32 = if RANGE_ENTRIES_MAX < 1000 { RANGE_ENTRIES_MAX } else { 1000 };

/// So many pages are read before the engine is asked again to keep the version: far fewer than it has time for.
const KEEP_PAGES: u64 = 16;

/// In an engine while it is being loaded.
const LOADING: &[u8] = b"\0loading";

/// The end of all keys.
fn end() -> Key {
    prefix_end(&[])
}

/// Writes everything in `engine` as of its newest version; if it does not keep that, as of several at which everything is the same. `header` says of whom; its version is set here: no stamp in it is greater.
pub async fn dump(
    engine: &Rc<dyn Engine>,
    header: Header,
    out: impl Write,
    mut progress: impl FnMut(u64),
) -> Result<Summary> {
    let mut tx = Transaction::new(engine.clone());
    let version = tx.read_version().await?;
    check_whole(&tx).await?;
    // Those of etcd are behind its stamps, once it was loaded from an engine that had gone further: an engine made of this must not begin behind that,
    // neither with stamps nor with its lives.
    let version_and_stamps = version.max(engine.stamps_given().await?);
    let mut file = BlockWriter::new(out, &Header { version: version_and_stamps, ..header })?;
    let mut begin = Key::new();
    for pages in 0_u64.. {
        if pages % KEEP_PAGES == 0 {
            engine.keep(tx.read_version().await?).await.map_err(too_old)?;
        }
        let page = tx.get_range_snapshot(&begin, &end(), PAGE, false).await.map_err(too_old)?;
        for (key, value) in &page.entries {
            file.push(key, value)?;
        }
        progress(file.entries());
        match page.entries.last() {
            Some((last, _)) if page.more => begin = key_after(last),
            _ => break,
        }
        if !engine.keeps_versions() {
            tx = unchanged_since(engine, tx).await?;
        }
    }
    // What was read is settled, too.
    tx.commit(false).await?;
    file.finish()
}

/// A transaction that reads at a newer version than `tx`, at which everything is as it was.
async fn unchanged_since(engine: &Rc<dyn Engine>, tx: Transaction) -> Result<Transaction> {
    let next = Transaction::new(engine.clone());
    next.read_version().await?;
    // `tx` commits behind that version if nothing has changed. The mark that makes it a change is the one key that no check looks at, or the next would find it.
    let mark = key_after(&[]);
    tx.add_read_conflict(&mark, &end())?;
    tx.add_write_conflict(&[], &mark)?;
    let hint = "something was changed while it was dumped: stop all services, then dump again; nothing is mixed";
    tx.commit(false).await.map_err(|e| match e.status {
        Status::Conflict => e.context(hint),
        _ => e,
    })?;
    Ok(next)
}

fn too_old(e: Error) -> Error {
    if e.status != Status::TooOld {
        return e;
    }
    e.context("the engine forgot the version that is being dumped: dump again when less is changed, or stop all services that use it first; nothing is mixed")
}

/// Reads a whole file; the error says what is wrong with it and where.
pub fn verify(file: impl Read, mut progress: impl FnMut(u64)) -> Result<(Header, Summary)> {
    let mut reader = Reader::new(file)?;
    while reader.next_block()?.is_some() {
        progress(reader.entries());
    }
    Ok((reader.header().clone(), reader.summary()?))
}

/// Whether there is nothing in an engine.
pub async fn is_empty(engine: &Rc<dyn Engine>) -> Result<bool> {
    let tx = Transaction::new(engine.clone());
    Ok(tx.get_range_snapshot(&[], &end(), 1, false).await?.entries.is_empty())
}

/// An error (`Corrupt`) if what is in the engine is the part of a dump whose load did not end.
pub async fn check_whole(tx: &Transaction) -> Result<()> {
    match tx.get(LOADING).await? {
        None => Ok(()),
        Some(_) => Err(Error::new(
            Status::Corrupt,
            "the engine holds a part of a dump, whose load did not end: load it again with --replace",
        )),
    }
}

/// Puts the content of a verified file into an engine that nobody else uses. One that is not empty is refused, or with `replace` emptied first.
/// Until [`finish`] the engine counts as a part, which [`check_whole`] knows: load again with `replace`.
pub async fn load(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    file: impl Read,
    replace: bool,
    mut progress: impl FnMut(u64),
) -> Result<Summary> {
    let mut reader = Reader::new(file)?;
    let filled = !is_empty(engine).await?;
    if filled && !replace {
        let e = "there is metadata in the engine already; load into an empty one, or say that it shall be replaced";
        return Err(Error::new(Status::NotEmpty, e));
    }
    // Keys with stamps stay as they are, so those to come must not meet them. Whoever cannot do that loses nothing.
    engine.raise_stamps(reader.header().version).await?;
    if filled {
        change(rt, engine, async |tx| {
            tx.clear_range(&[], &end())?;
            tx.put(LOADING.to_vec(), Vec::new())
        })
        .await?;
    }
    change(rt, engine, async |tx| tx.put(LOADING.to_vec(), Vec::new())).await?;
    while let Some(block) = reader.next_block()? {
        let mut entries = block.as_slice();
        while !entries.is_empty() {
            let (some, rest) = entries.split_at(batch(entries));
            change(rt, engine, async |tx| {
                tx.grows();
                some.iter().try_for_each(|(k, v)| tx.put(k.clone(), v.clone()))
            })
            .await?;
            entries = rest;
        }
        progress(reader.entries());
    }
    reader.summary()
}

/// Lets what was loaded be used: from the transaction on in which `work` makes the changes without which it must not be.
pub async fn finish(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    work: impl AsyncFn(&Transaction) -> Result<()>,
) -> Result<()> {
    change(rt, engine, async |tx| {
        tx.clear(LOADING.to_vec())?;
        work(tx).await
    })
    .await?;
    engine.flush_barrier().await
}

/// How many of these go into one transaction; at least one.
fn batch(entries: &[(Key, Vec<u8>)]) -> usize {
    let mut bytes = 0;
    let fits = entries.iter().take(LOAD_KEYS).take_while(|(k, v)| {
        bytes += k.len() + v.len();
        bytes <= LOAD_BYTES
    });
    fits.count().max(1)
}

async fn change(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    work: impl AsyncFn(&Transaction) -> Result<()>,
) -> Result<()> {
    let options = RunOptions { idempotent: true, ..RunOptions::default() };
    crate::run_transaction_with(rt, engine, options, work).await
}

/// Reads an engine back: it must hold exactly what the file says, before [`finish`] or after one that changed nothing.
pub async fn compare(
    engine: &Rc<dyn Engine>,
    file: impl Read,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let mut reader = Reader::new(file)?;
    let differs = |key: &[u8]| {
        let key: String = key.escape_ascii().to_string();
        Error::new(
            Status::Corrupt,
            format!("the engine differs from the file at key {key}: load again"),
        )
    };
    let mut begin = Key::new();
    while let Some(block) = reader.next_block()? {
        let Some((last, _)) = block.last() else { continue };
        let stop = key_after(last);
        let mut wanted = block.iter();
        while begin < stop {
            // A new version for each page: nobody else uses the engine, and none is asked to keep an old one.
            let tx = Transaction::new(engine.clone());
            let page = tx.get_range_snapshot(&begin, &stop, PAGE, false).await?;
            for entry in page.entries.iter().filter(|(k, _)| k != LOADING) {
                if wanted.next() != Some(entry) {
                    return Err(differs(&entry.0));
                }
            }
            begin = match page.entries.last() {
                Some((last, _)) if page.more => key_after(last),
                _ => stop.clone(),
            };
        }
        if let Some((missing, _)) = wanted.next() {
            return Err(differs(missing));
        }
        progress(reader.entries());
    }
    let tx = Transaction::new(engine.clone());
    // The mark of a load may be one of two.
    let rest = tx.get_range_snapshot(&begin, &end(), 2, false).await?.entries;
    match rest.iter().find(|(k, _)| k != LOADING) {
        Some((extra, _)) => Err(differs(extra)),
        None => Ok(()),
    }
}

/// What an engine says that cannot give out stamps behind those of another one.
pub(crate) fn stamps_behind(is: Version, least: Version) -> Error {
    Error::new(
        Status::NotSupported,
        format!(
            "the engine is at version {is}, and the dump at {least}: it would give out again what stands in keys. \
             Load into a directory that is empty, or does not exist"
        ),
    )
}
