//! Fixed structures on disk: superblock, segment header, batch header. See `docs/formats/chunk-store.md`.

use crate::codec::{Reader, Writer};
use glowfs_types::checksum::crc32c;
use glowfs_types::{ClusterId, Error, NodeId, Result, Status, StoreId};

/// Everything on disk is a multiple of this.
pub(crate) const BLOCK: usize = glowfs_types::checksum::BLOCK_BYTES as usize;
/// The newest format this build reads and writes.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// The same of a log segment. 2 since there are records of kind 10: a build that does not know them must not take them for damage.
const SEGMENT_FORMAT_VERSION: u32 = 2;

pub(crate) const SUPER_MAGIC: &[u8; 8] = b"GLOWSTOR";
pub(crate) const SEGMENT_MAGIC: &[u8; 8] = b"GLOWLOGS";
pub(crate) const BATCH_MAGIC: &[u8; 4] = b"GBAT";
/// Bytes before the first record of a batch.
pub(crate) const BATCH_HEAD_BYTES: usize = 80;

/// Pads to one block and puts the checksum of all before into the last four bytes.
fn seal(mut w: Writer) -> Vec<u8> {
    w.0.resize(BLOCK - 4, 0);
    let crc = crc32c(&w.0);
    w.u32(crc);
    w.0
}

fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let bytes = bytes.get(..BLOCK)?;
    let (body, crc) = bytes.split_at(BLOCK - 4);
    (crc32c(body).to_le_bytes() == crc).then_some(body)
}

/// The identity of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub store: StoreId,
    pub cluster: ClusterId,
    pub node: NodeId,
    pub incarnation: u64,
    pub clean: bool,
    pub log_segment_bytes: u64,
    /// The last batch, if `clean`.
    pub clean_lsn: u64,
    /// The boot of the machine that it was last opened under; 0: not known (older builds write none).
    pub boot: u128,
    /// The first incarnation since which it was opened under no other, and nothing that had been acknowledged was cut off.
    pub boot_since: u64,
    /// What this life drew by lot, so that no other has both this and its number; 0: it is one of a build that does not draw.
    pub nonce: u32,
}

impl Superblock {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(SUPER_MAGIC);
        w.u32(FORMAT_VERSION);
        w.u32(u32::from(self.clean));
        w.u128(self.store.0);
        w.u128(self.cluster.0);
        w.u64(self.node.0);
        w.u64(self.incarnation);
        w.u64(self.log_segment_bytes);
        w.u64(self.clean_lsn);
        w.u128(self.boot);
        w.u64(self.boot_since);
        w.u32(self.nonce);
        seal(w)
    }

    pub fn decode(bytes: &[u8], path: &str) -> Result<Self> {
        let bad = |what: &str| {
            Error::new(
                Status::Corrupt,
                format!(
                    "{path}/superblock: {what}; if the disk is broken replace it, otherwise restore the file from a backup"
                ),
            )
        };
        if bytes.len() < BLOCK || &bytes[..8] != SUPER_MAGIC {
            return Err(bad("not a superblock of a GlowFS store"));
        }
        let version = Reader(&bytes[8..]).u32()?;
        if version > FORMAT_VERSION {
            return Err(Error::new(
                Status::NewerFormat,
                format!(
                    "{path}: the store has format {version}, this build knows up to {FORMAT_VERSION}; start a newer glowfs"
                ),
            ));
        }
        let body = unseal(bytes).ok_or_else(|| bad("checksum mismatch"))?;
        let mut r = Reader(&body[12..]);
        let flags = r.u32()?;
        Ok(Self {
            clean: flags & 1 != 0,
            store: StoreId(r.u128()?),
            cluster: ClusterId(r.u128()?),
            node: NodeId(r.u64()?),
            incarnation: r.u64()?,
            log_segment_bytes: r.u64()?,
            clean_lsn: r.u64()?,
            boot: r.u128()?,
            boot_since: r.u64()?,
            nonce: r.u32()?,
        })
    }
}

/// The first block of a log segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub store: StoreId,
    /// Grows by one with every segment; a recycled file gets a new one.
    pub seq: u64,
    pub incarnation: u64,
    pub first_lsn: u64,
    /// Everything up to this batch was durable when the segment began.
    pub durable_lsn: u64,
    /// Checksum of the batch before the first.
    pub prev_crc: u32,
}

impl SegmentHead {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.bytes(SEGMENT_MAGIC);
        w.u32(SEGMENT_FORMAT_VERSION);
        w.u32(self.prev_crc);
        w.u128(self.store.0);
        w.u64(self.seq);
        w.u64(self.incarnation);
        w.u64(self.first_lsn);
        w.u64(self.durable_lsn);
        seal(w)
    }
    /// `None`: no segment header of this store (a new file, another store's, torn). A whole one of a newer format is an error: cutting
    /// the log there would throw away what a newer build wrote.
    pub fn decode(bytes: &[u8], store: StoreId) -> Result<Option<Self>> {
        let Some(body) = unseal(bytes).filter(|b| &b[..8] == SEGMENT_MAGIC) else {
            return Ok(None);
        };
        let mut r = Reader(&body[8..]);
        let version = r.u32()?;
        let prev_crc = r.u32()?;
        let found = StoreId(r.u128()?);
        if found != store {
            return Ok(None);
        }
        if version > SEGMENT_FORMAT_VERSION {
            return Err(Error::new(
                Status::NewerFormat,
                format!(
                    "a log segment has format {version}, this build knows up to {SEGMENT_FORMAT_VERSION}; start a newer glowfs"
                ),
            ));
        }
        Ok(Some(Self {
            store,
            seq: r.u64()?,
            incarnation: r.u64()?,
            first_lsn: r.u64()?,
            durable_lsn: r.u64()?,
            prev_crc,
        }))
    }
}

/// The head of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchHead {
    pub crc: u32,
    pub store: StoreId,
    pub segment: u64,
    pub lsn: u64,
    pub incarnation: u64,
    /// Everything up to this batch was durable when this one was written.
    pub durable_lsn: u64,
    /// Checksum of the batch before.
    pub prev_crc: u32,
    pub records_bytes: u32,
    pub record_count: u32,
    pub header_blocks: u32,
    pub payload_blocks: u32,
}

impl BatchHead {
    /// Builds the header blocks in `out`, which is zeroed and has whole blocks; returns the checksum.
    pub fn encode_into(&self, records: &[u8], out: &mut [u8]) -> u32 {
        let mut w = Writer(Vec::with_capacity(BATCH_HEAD_BYTES));
        w.bytes(BATCH_MAGIC);
        w.u32(0);
        w.u128(self.store.0);
        w.u64(self.segment);
        w.u64(self.lsn);
        w.u64(self.incarnation);
        w.u64(self.durable_lsn);
        w.u32(self.prev_crc);
        w.u32(self.records_bytes);
        w.u32(self.record_count);
        w.u32(self.header_blocks);
        w.u32(self.payload_blocks);
        w.u32(0);
        out[..BATCH_HEAD_BYTES].copy_from_slice(&w.0);
        let end = BATCH_HEAD_BYTES + records.len();
        out[BATCH_HEAD_BYTES..end].copy_from_slice(records);
        out[end..].fill(0);
        let crc = crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        crc
    }

    /// Reads the fixed part of what may be a batch; the checksum is not verified yet.
    pub fn peek(block: &[u8]) -> Option<Self> {
        if block.get(..4)? != BATCH_MAGIC {
            return None;
        }
        let mut r = Reader(&block[4..]);
        let head = Self {
            crc: r.u32().ok()?,
            store: StoreId(r.u128().ok()?),
            segment: r.u64().ok()?,
            lsn: r.u64().ok()?,
            incarnation: r.u64().ok()?,
            durable_lsn: r.u64().ok()?,
            prev_crc: r.u32().ok()?,
            records_bytes: r.u32().ok()?,
            record_count: r.u32().ok()?,
            header_blocks: r.u32().ok()?,
            payload_blocks: r.u32().ok()?,
        };
        let room =
            (head.header_blocks as usize).checked_mul(BLOCK)?.checked_sub(BATCH_HEAD_BYTES)?;
        (head.records_bytes as usize <= room).then_some(head)
    }

    /// Whether all header blocks match the checksum.
    pub fn verify(&self, header: &[u8]) -> bool {
        header.len() == self.header_blocks as usize * BLOCK && crc32c(&header[8..]) == self.crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn golden_superblock() {
        let sb = Superblock {
            store: StoreId(0x1122),
            cluster: ClusterId(0x3344),
            node: NodeId(5),
            incarnation: 6,
            clean: true,
            log_segment_bytes: 1 << 23,
            clean_lsn: 7,
            boot: 0x5566,
            boot_since: 3,
            nonce: 8,
        };
        let bytes = sb.encode();
        assert_eq!(bytes.len(), BLOCK);
        assert_eq!(
            hex(&bytes[..108]),
            "474c4f5753544f52010000000100000022110000000000000000000000000000\
             4433000000000000000000000000000005000000000000000600000000000000\
             0000800000000000070000000000000066550000000000000000000000000000\
             030000000000000008000000"
        );
        assert_eq!(Superblock::decode(&bytes, "/d").expect("valid"), sb);
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert_eq!(
            Superblock::decode(&newer, "/d").expect_err("newer").status,
            Status::NewerFormat
        );
        let mut flipped = bytes;
        flipped[60] ^= 1;
        assert_eq!(Superblock::decode(&flipped, "/d").expect_err("bad").status, Status::Corrupt);
    }

    #[test]
    fn golden_segment_and_batch() {
        let s = SegmentHead {
            store: StoreId(1),
            seq: 2,
            incarnation: 3,
            first_lsn: 4,
            durable_lsn: 5,
            prev_crc: 6,
        };
        let bytes = s.encode();
        assert_eq!(
            hex(&bytes[..64]),
            "474c4f574c4f475302000000060000000100000000000000000000000000000002000000000000000300000000000000\
             04000000000000000500000000000000"
        );
        assert_eq!(SegmentHead::decode(&bytes, StoreId(1)).expect("valid"), Some(s));
        assert_eq!(SegmentHead::decode(&bytes, StoreId(2)).expect("another's"), None);
        let of_format = |format| {
            let mut other = bytes[..BLOCK - 4].to_vec();
            other[8] = format;
            other.extend(crc32c(&other).to_le_bytes());
            SegmentHead::decode(&other, StoreId(1))
        };
        assert_eq!(of_format(1).expect("older").map(|s| s.seq), Some(2));
        let e = of_format(3).expect_err("newer");
        assert_eq!(e.status, Status::NewerFormat);
        let b = BatchHead {
            crc: 0,
            store: StoreId(1),
            segment: 2,
            lsn: 3,
            incarnation: 4,
            durable_lsn: 5,
            prev_crc: 6,
            records_bytes: 16,
            record_count: 1,
            header_blocks: 1,
            payload_blocks: 9,
        };
        let mut block = vec![0; BLOCK];
        let crc = b.encode_into(&[7; 16], &mut block);
        assert_eq!(hex(&block[..4]), "47424154");
        assert_eq!(
            hex(&block[8..96]),
            "0100000000000000000000000000000002000000000000000300000000000000\
             04000000000000000500000000000000060000001000000001000000010000000900000000000000\
             07070707070707070707070707070707"
        );
        let read = BatchHead::peek(&block).expect("a batch");
        assert_eq!(read, BatchHead { crc, ..b });
        assert!(read.verify(&block));
        block[90] ^= 1;
        assert!(!read.verify(&block));
    }
}
