//! A virtual disk without what was not flushed: the log of its writes and flushes in the format of the kernel's dm-log-writes.
//!
//! The log begins with a sector: magic, version, number of entries (8 bytes each, little-endian), sector size (4). An entry is a sector
//! with first sector, sectors, flags and length of further data (8 bytes each), then the data, if it is no discard.

use crate::content::Rng;
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
/// Sectors of 512 bytes that one entry can have; more is a torn entry at the end of the log.
const SECTORS_MAX: u64 = 1 << 20;

struct Entry {
    /// Byte on the disk, and in the log.
    to: u64,
    from: u64,
    len: u64,
    flags: u64,
}

fn entries(log: &Path) -> Result<Vec<Entry>, Box<dyn Error>> {
    let len = fs::metadata(log)?.len();
    let mut file = BufReader::new(File::open(log)?);
    let mut head = [0; 512];
    file.read_exact(&mut head)?;
    let word =
        |b: &[u8], i: usize| u64::from_le_bytes(b[i * 8..i * 8 + 8].try_into().expect("8 bytes"));
    let sector = u64::from(u32::from_le_bytes(head[24..28].try_into()?)).max(512);
    if word(&head, 0) != MAGIC {
        return Err(format!("{}: no log of a disk", log.display()).into());
    }
    let mut out = Vec::new();
    let mut at = sector;
    // The count in the head is brought up to date at flushes only: read to the end of the file.
    while at + sector <= len {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut head)?;
        let (first, count, flags) = (word(&head, 0), word(&head, 1), word(&head, 2));
        let data = if flags & DISCARD == 0 { count * sector } else { 0 };
        if count > SECTORS_MAX || at + sector + data > len {
            break;
        }
        out.push(Entry { to: first * sector, from: at + sector, len: count * sector, flags });
        at += sector + data;
    }
    Ok(out)
}

/// See the module.
pub fn replay(base: &Path, log: &Path, out: &Path, seed: u64) -> Result<(), Box<dyn Error>> {
    let entries = entries(log)?;
    let last_flush = entries.iter().rposition(|e| e.flags & FLUSH != 0).map_or(0, |i| i + 1);
    // A copy that keeps holes.
    let copied =
        std::process::Command::new("cp").arg("--sparse=always").arg(base).arg(out).status()?;
    if !copied.success() {
        return Err("cp failed".into());
    }
    let (log, out) = (File::open(log)?, File::options().write(true).open(out)?);
    let mut rng = Rng::new(seed);
    // In one run of three nothing that was not flushed arrives; else each block with a chance of its own.
    let keep = rng.below(3);
    let (mut kept, mut dropped) = (0u64, 0u64);
    for (i, e) in entries.iter().enumerate() {
        if e.flags & DISCARD != 0 {
            continue;
        }
        let sure = i < last_flush || e.flags & FUA != 0;
        let mut at = 0;
        while at < e.len {
            let n = (e.len - at).min(4096);
            if sure || rng.below(2) < keep {
                let mut piece = vec![0; n as usize];
                log.read_exact_at(&mut piece, e.from + at)?;
                out.write_all_at(&piece, e.to + at)?;
            }
            if !sure {
                kept += 1;
            }
            at += n;
        }
        if !sure && e.len > 0 {
            dropped += 1;
        }
    }
    println!(
        "REPLAYED {} entries, {dropped} writes ({kept} blocks) after the last flush left to chance",
        entries.len()
    );
    Ok(())
}
