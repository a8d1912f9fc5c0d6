//! CRC-32C (Castagnoli), the one checksum of data in GlowFS.
//!
//! Data is checksummed per *block* of 4 KiB, aligned to the start of its chunk. The checksum is computed
//! once, at the client, kept with the data, and verified at each hop that touches the bytes.

use crc_fast::CrcAlgorithm;

/// The grain of checksums, of the chunk store and of direct I/O, in bytes.
pub const BLOCK_BYTES: u32 = 4096;

/// CRC-32C (iSCSI, RFC 3720 appendix B.4) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC-32C of the concatenation of two pieces, from theirs and the length of the second.
pub fn combine(first: u32, second: u32, second_len: u64) -> u32 {
    crc_fast::checksum_combine(
        CrcAlgorithm::Crc32Iscsi,
        u64::from(first),
        u64::from(second),
        second_len,
    ) as u32
}

/// Splits `[offset, offset + len)` of a chunk at block borders: yields `(block, start, len)`, where
/// `start` is the offset inside the block.
pub fn blocks(offset: u32, len: u32) -> impl Iterator<Item = (u32, u32, u32)> {
    let end = u64::from(offset) + u64::from(len);
    let mut at = u64::from(offset);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let block = at / u64::from(BLOCK_BYTES);
        let start = at % u64::from(BLOCK_BYTES);
        let n = (u64::from(BLOCK_BYTES) - start).min(end - at);
        at += n;
        Some((block as u32, start as u32, n as u32))
    })
}

/// How many blocks `[offset, offset + len)` touches.
pub fn block_count(offset: u32, len: u32) -> usize {
    if len == 0 {
        return 0;
    }
    let first = offset / BLOCK_BYTES;
    let last = ((u64::from(offset) + u64::from(len) - 1) / u64::from(BLOCK_BYTES)) as u32;
    (last - first + 1) as usize
}

/// The checksum of each piece of `payload` when it is written at `offset` of a chunk, appended to `out`.
pub fn piece_checksums(offset: u32, payload: &[u8], out: &mut Vec<u32>) {
    let mut rest = payload;
    for (_, _, n) in blocks(offset, payload.len() as u32) {
        let (piece, tail) = rest.split_at(n as usize);
        out.push(crc32c(piece));
        rest = tail;
    }
}

/// Whether `payload`, written at `offset`, has exactly the checksums `want`.
pub fn verify_pieces(offset: u32, payload: &[u8], want: impl IntoIterator<Item = u32>) -> bool {
    let mut want = want.into_iter();
    let mut rest = payload;
    for (_, _, n) in blocks(offset, payload.len() as u32) {
        let (piece, tail) = rest.split_at(n as usize);
        if want.next() != Some(crc32c(piece)) {
            return false;
        }
        rest = tail;
    }
    want.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_vector() {
        // RFC 3720 B.4: 32 bytes of zeros, and the usual check string.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_range(offset in 0u32..20_000, len in 0u32..20_000) {
            let pieces: Vec<_> = blocks(offset, len).collect();
            prop_assert_eq!(pieces.len(), block_count(offset, len));
            prop_assert_eq!(pieces.iter().map(|p| p.2).sum::<u32>(), len);
        }
        #[test]
        fn combine_is_concatenation(a: Vec<u8>, b: Vec<u8>) {
            let whole = [a.as_slice(), b.as_slice()].concat();
            prop_assert_eq!(combine(crc32c(&a), crc32c(&b), b.len() as u64), crc32c(&whole));
        }
        #[test]
        fn a_flipped_bit_is_found(offset in 0u32..9000, mut p in proptest::collection::vec(0u8.., 1..9000), at: usize, bit in 0u8..8) {
            let mut crcs = vec![];
            piece_checksums(offset, &p, &mut crcs);
            prop_assert!(verify_pieces(offset, &p, crcs.iter().copied()));
            let at = at % p.len();
            p[at] ^= 1 << bit;
            prop_assert!(!verify_pieces(offset, &p, crcs.iter().copied()));
        }
    }
}
