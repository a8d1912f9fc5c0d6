//! Joining the checksums of whole blocks to that of all of them, without touching the bytes again.

use crate::chunk::zero_crc;
use crate::format::BLOCK;
use glowfs_types::checksum::combine;
use std::sync::OnceLock;

/// What 4096 bytes appended do to a checksum: a linear map, tabulated byte by byte.
fn tables() -> &'static [[u32; 256]; 4] {
    static TABLES: OnceLock<Box<[[u32; 256]; 4]>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut bits = [0u32; 32];
        for (i, b) in bits.iter_mut().enumerate() {
            *b = combine(1 << i, 0, BLOCK as u64);
        }
        let mut t = Box::new([[0u32; 256]; 4]);
        for (k, table) in t.iter_mut().enumerate() {
            for (v, out) in table.iter_mut().enumerate() {
                for (bit, b) in bits.iter().skip(k * 8).take(8).enumerate() {
                    if v & (1 << bit) != 0 {
                        *out ^= *b;
                    }
                }
            }
        }
        t
    })
}

fn shift(crc: u32) -> u32 {
    let t = tables();
    let b = crc.to_le_bytes();
    t[0][b[0] as usize] ^ t[1][b[1] as usize] ^ t[2][b[2] as usize] ^ t[3][b[3] as usize]
}

/// Up to so many blocks are shifted one by one, at two nanoseconds each; beyond, the general way of a few microseconds is cheaper.
const SHIFTS_MAX: u32 = 1024;

/// The checksum of some whole blocks.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Joined {
    crc: u32,
    blocks: u32,
}

impl Joined {
    pub fn push_block(&mut self, crc: u32) {
        self.crc = shift(self.crc) ^ crc;
        self.blocks += 1;
    }
    pub fn append(self, next: Joined) -> Joined {
        if self.blocks == 0 {
            return next;
        }
        let crc = if next.blocks <= SHIFTS_MAX {
            (0..next.blocks).fold(self.crc, |crc, _| shift(crc)) ^ next.crc
        } else {
            combine(self.crc, next.crc, u64::from(next.blocks) * BLOCK as u64)
        };
        Joined { crc, blocks: self.blocks + next.blocks }
    }
    /// The checksum with `bytes` zeros behind; a multiple of the block.
    pub fn then_zeros(mut self, bytes: usize) -> u32 {
        for _ in 0..bytes / BLOCK {
            self.push_block(zero_crc());
        }
        self.crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::checksum::crc32c;

    #[test]
    fn joined_is_the_checksum_of_all() {
        let bytes: Vec<u8> = (0..5 * BLOCK).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut j = Joined::default();
        bytes[..3 * BLOCK].chunks(BLOCK).for_each(|b| j.push_block(crc32c(b)));
        let mut k = Joined::default();
        bytes[3 * BLOCK..].chunks(BLOCK).for_each(|b| k.push_block(crc32c(b)));
        let mut all = bytes.clone();
        all.extend([0; 2 * BLOCK]);
        assert_eq!(Joined::default().append(j).append(k).then_zeros(2 * BLOCK), crc32c(&all));
    }

    #[test]
    fn many_blocks_are_joined_like_few() {
        let of = |blocks: u32| {
            let mut j = Joined::default();
            (0..blocks).for_each(|b| j.push_block(b.wrapping_mul(0x9E37_79B9)));
            j
        };
        for blocks in [1, SHIFTS_MAX, SHIFTS_MAX + 1] {
            let (mut one_by_one, next) = (of(3), of(blocks));
            (0..blocks).for_each(|b| one_by_one.push_block(b.wrapping_mul(0x9E37_79B9)));
            assert_eq!(of(3).append(next).crc, one_by_one.crc, "{blocks} blocks");
        }
    }
}
