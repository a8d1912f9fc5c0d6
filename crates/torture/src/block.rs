//! Blocks that describe themselves: which file and block they are, which version, who wrote them, and a checksum of it all.
//!
//! Layout (little endian): magic u64, file u64, block u64, version u64, writer u32, CRC-32C u32 of everything else, then bytes
//! drawn from (file, block, version), so that no two contents have long parts in common.

use crate::random::mix;
use glowfs_types::checksum::crc32c;

/// Bytes of a block: the grain of GlowFS' checksums.
pub const BLOCK: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"GLOWTRTR");
const HEADER: usize = 40;

/// What a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The file.
    pub file: u64,
    /// Its place in the file, in blocks.
    pub block: u64,
    /// Versions of one block only grow; 0 is a hole.
    pub version: u64,
    /// The worker that wrote it.
    pub writer: u32,
}

/// Writes a block into `into`, which has [`BLOCK`] bytes.
pub fn fill(stamp: Stamp, into: &mut [u8]) {
    let (head, body) = into.split_at_mut(HEADER);
    let seed = mix(stamp.file ^ stamp.block.rotate_left(20) ^ stamp.version.rotate_left(40));
    for (i, word) in body.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&seed.wrapping_mul(2 * i as u64 + 1).to_le_bytes());
    }
    for (at, word) in [MAGIC, stamp.file, stamp.block, stamp.version].iter().enumerate() {
        head[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    head[32..36].copy_from_slice(&stamp.writer.to_le_bytes());
    let crc = crc32c(body) ^ crc32c(&head[..36]).rotate_left(1);
    head[36..40].copy_from_slice(&crc.to_le_bytes());
}

/// The stamp of a block that must be block `block` of file `file`; version 0 for a hole (all zeros).
pub fn parse(file: u64, block: u64, bytes: &[u8]) -> Result<Stamp, String> {
    if bytes.len() != BLOCK {
        return Err(format!("{} bytes are no block", bytes.len()));
    }
    if bytes.iter().all(|b| *b == 0) {
        return Ok(Stamp { file, block, version: 0, writer: 0 });
    }
    let word = |at: usize| {
        let mut w = [0; 8];
        w.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(w)
    };
    let half = |at: usize| (word(at / 8 * 8) >> (at % 8 * 8)) as u32;
    let stamp = Stamp { file: word(8), block: word(16), version: word(24), writer: half(32) };
    if word(0) != MAGIC {
        return Err(format!("no block of ours: it begins with {:02x?}", &bytes[..16]));
    }
    let crc = crc32c(&bytes[HEADER..]) ^ crc32c(&bytes[..36]).rotate_left(1);
    if crc != half(36) {
        return Err(format!("torn or damaged: its header says {stamp:?}"));
    }
    if (stamp.file, stamp.block) != (file, block) {
        return Err(format!("the content of another place: {stamp:?}"));
    }
    Ok(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_damage_is_found() {
        let stamp = Stamp { file: 7, block: 9, version: 3, writer: 2 };
        let mut b = vec![0; BLOCK];
        assert_eq!(parse(7, 9, &b).map(|s| s.version), Ok(0));
        fill(stamp, &mut b);
        assert_eq!(parse(7, 9, &b), Ok(stamp));
        assert!(parse(7, 8, &b).is_err(), "another block");
        assert!(parse(8, 9, &b).is_err(), "another file");
        for at in [0, 9, 26, 33, 38, 40, 100, 4095] {
            let mut bad = b.clone();
            bad[at] ^= 1;
            assert!(parse(7, 9, &bad).is_err(), "flipped at {at}");
        }
        let mut torn = b.clone();
        fill(Stamp { version: 4, ..stamp }, &mut b);
        torn[..2048].copy_from_slice(&b[..2048]);
        assert!(parse(7, 9, &torn).is_err(), "half new, half old");
    }
}
