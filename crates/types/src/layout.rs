//! Layouts: on which chain a byte of a file lives.
//!
//! The computation is fixed bit by bit (docs/formats/layout.md) and guarded by golden vectors, because two
//! builds that disagree would not find each other's data.

use crate::{ChainTableId, DataId, Error, Result, Status};

/// The smallest chunk size in bytes.
pub const CHUNK_BYTES_MIN: u32 = 64 << 10;
/// The greatest chunk size in bytes.
pub const CHUNK_BYTES_MAX: u32 = 64 << 20;
/// The greatest number of bytes of a file that may be kept with the metadata.
pub const INLINE_BYTES_MAX: u32 = 16 << 10;
/// How many are, in new file systems: one block, so that there can be no hole inside; and less than most programs write at once of what is longer, so that
/// a file that will be longer goes into chunks while it is empty.
pub const INLINE_BYTES_DEFAULT: u32 = 4 << 10;
/// The greatest length of a file in bytes (what `loff_t` can say).
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// How the group of a chunk protects it. A client asks the group and never assumes replicas.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, minicbor::Encode, minicbor::Decode)]
#[cbor(index_only)]
pub enum Redundancy {
    /// Every target of the chain holds the whole chunk.
    #[default]
    #[n(0)]
    Replicated,
}

/// What an acknowledged write has reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, minicbor::Encode, minicbor::Decode)]
#[cbor(index_only)]
pub enum Durability {
    /// Written to the file or device of every serving target.
    #[default]
    #[n(0)]
    Written,
    /// Flushed on every serving target as well.
    #[n(1)]
    Disk,
}

/// Where a file's chunks live. Fixed when the file is created.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, minicbor::Encode, minicbor::Decode)]
pub struct Layout {
    /// The chain table the file is striped over.
    #[n(0)]
    pub table: ChainTableId,
    /// The version of the table; a table version never changes.
    #[n(1)]
    pub table_version: u64,
    /// Bytes in a chunk: a power of two, [`CHUNK_BYTES_MIN`] to [`CHUNK_BYTES_MAX`].
    #[n(2)]
    pub chunk_bytes: u32,
    /// How many chains of the table the file uses, at least 1.
    #[n(3)]
    pub stripe: u32,
    /// The position on the table of the file's first chunk.
    #[n(4)]
    pub start: u32,
    /// How chunks are protected.
    #[n(5)]
    pub redundancy: Redundancy,
    /// What an acknowledged write has reached.
    #[n(6)]
    pub durability: Durability,
    /// A file that was never longer keeps its contents with the metadata ([`crate::wire::inline`]); 0: none does. (Left out if 0, as by older
    /// releases.)
    #[cbor(n(7), default, skip_if = "is_zero")]
    pub inline_bytes: u32,
}

fn is_zero(bytes: &u32) -> bool {
    *bytes == 0
}

/// A piece of a file inside one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Chunk index.
    pub index: u64,
    /// Offset in the chunk.
    pub offset: u32,
    /// Bytes, never 0.
    pub len: u32,
    /// Where the piece begins in the caller's buffer.
    pub at: u64,
}

impl Layout {
    /// Checks every field; a layout from outside goes through here first.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| Err(Error::new(Status::InvalidArgument, what));
        if !self.chunk_bytes.is_power_of_two()
            || !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&self.chunk_bytes)
        {
            return bad(format!(
                "chunk size {} is not a power of two from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}",
                self.chunk_bytes
            ));
        }
        if self.stripe == 0 {
            return bad("stripe 0: a file needs at least one chain".into());
        }
        if self.inline_bytes > INLINE_BYTES_MAX {
            return bad(format!(
                "inline_bytes {}: at most {INLINE_BYTES_MAX} bytes of a file are kept with the metadata",
                self.inline_bytes
            ));
        }
        Ok(())
    }

    /// Position on a table of `table_len` chains of the chain that holds chunk `index`.
    ///
    /// `(start + index mod min(stripe, table_len)) mod table_len`.
    pub fn position(&self, index: u64, table_len: u32) -> u32 {
        debug_assert!(table_len > 0);
        let stripe = u64::from(self.stripe.min(table_len).max(1));
        ((u64::from(self.start) + index % stripe) % u64::from(table_len)) as u32
    }

    /// Splits `[offset, offset + len)` of the file at chunk borders, in order.
    pub fn extents(&self, offset: u64, len: u64) -> impl Iterator<Item = Extent> + use<> {
        let chunk = u64::from(self.chunk_bytes);
        let mut at = 0;
        std::iter::from_fn(move || {
            if at >= len {
                return None;
            }
            let pos = offset + at;
            let within = pos % chunk;
            let n = (chunk - within).min(len - at);
            let extent = Extent { index: pos / chunk, offset: within as u32, len: n as u32, at };
            at += n;
            Some(extent)
        })
    }
}

/// Where on a table of `table_len` chains a new file begins: `splitmix64(data id) mod table_len`.
pub fn start_of(data: DataId, table_len: u32) -> u32 {
    (splitmix64(data.0) % u64::from(table_len.max(1))) as u32
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014) over `x + 0x9e3779b97f4a7c15`.
pub const fn splitmix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(chunk_bytes: u32, stripe: u32, start: u32) -> Layout {
        Layout {
            table: ChainTableId(1),
            table_version: 1,
            chunk_bytes,
            stripe,
            start,
            redundancy: Redundancy::Replicated,
            durability: Durability::Written,
            inline_bytes: 0,
        }
    }

    #[test]
    fn golden_vectors() {
        // Reference values of SplitMix64 seeded with 0 and 1, then our use of them.
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(1), 0x910a_2dec_8902_5cc1);
        let starts: Vec<_> = (1..=8).map(|d| start_of(DataId(d), 12)).collect();
        assert_eq!(starts, [5, 10, 9, 10, 2, 8, 3, 10]);
        let l = layout(1 << 20, 4, 10);
        let at: Vec<_> = (0..9).map(|i| l.position(i, 12)).collect();
        assert_eq!(at, [10, 11, 0, 1, 10, 11, 0, 1, 10]);
        assert_eq!(
            layout(1 << 20, 100, 11).position(u64::MAX, 12),
            (11 + u64::MAX % 12) as u32 % 12
        );
    }

    proptest! {
        #[test]
        fn extents_tile_the_range(shift in 16u32..27, offset in 0u64..1 << 40, len in 0u64..1 << 28) {
            let l = layout(1 << shift, 3, 0);
            let mut next = offset;
            for e in l.extents(offset, len) {
                prop_assert_eq!(e.index * u64::from(l.chunk_bytes) + u64::from(e.offset), next);
                prop_assert_eq!(e.at, next - offset);
                prop_assert!(e.len > 0 && e.offset + e.len <= l.chunk_bytes);
                next += u64::from(e.len);
            }
            prop_assert_eq!(next, offset + len);
        }
    }
}
