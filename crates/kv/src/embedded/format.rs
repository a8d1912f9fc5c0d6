//! The bytes of the embedded engine's files (docs/formats/metadata-engine.md). Pure.

use crate::Version;
use crate::mvcc::Record;
use glowfs_types::checksum::crc32c;
use glowfs_types::{ClusterId, Error, Result, Status};

/// The grain of every file, in bytes.
pub const BLOCK: usize = 4096;
/// The newest format this build reads, and the one it writes.
pub const FORMAT: u32 = 1;
/// Begins a log segment.
pub const LOG_MAGIC: [u8; 8] = *b"GLOWKVLG";
/// Begins a checkpoint.
pub const CHECKPOINT_MAGIC: [u8; 8] = *b"GLOWKVCP";
/// Bytes of a batch's header.
pub const BATCH_HEADER: usize = 64;
const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"GKVB");
/// Bytes of a checkpoint page's header.
pub const PAGE_HEADER: usize = 32;
const PAGE_MAGIC: u32 = u32::from_le_bytes(*b"GKVP");

/// The first block of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileHeader {
    pub cluster: ClusterId,
    /// One formatted directory.
    pub engine: u128,
    /// Segment: sequence of its first batch. Checkpoint: of the first batch that is not in it.
    pub sequence: u64,
    /// The version that everything before `sequence` has reached.
    pub version: Version,
    /// The header checksum of the batch before `sequence`.
    pub chain: u32,
}

impl FileHeader {
    pub fn encode(&self, magic: [u8; 8]) -> [u8; BLOCK] {
        let mut b = [0; BLOCK];
        b[..8].copy_from_slice(&magic);
        b[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        b[16..32].copy_from_slice(&self.cluster.0.to_le_bytes());
        b[32..48].copy_from_slice(&self.engine.to_le_bytes());
        b[48..56].copy_from_slice(&self.sequence.to_le_bytes());
        b[56..64].copy_from_slice(&self.version.to_le_bytes());
        b[64..68].copy_from_slice(&self.chain.to_le_bytes());
        let crc = crc32c(&b[..BLOCK - 4]);
        b[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// `Ok(None)`: not a valid header (never completely written, or damaged).
    pub fn decode(b: &[u8], magic: [u8; 8], name: &str) -> Result<Option<Self>> {
        if b.len() < BLOCK || b[..8] != magic {
            return Ok(None);
        }
        let format = u32_at(b, 8);
        if format > FORMAT {
            return Err(Error::new(
                Status::NewerFormat,
                format!(
                    "{name} has format {format}, this build reads up to {FORMAT}: it was written by a newer release; \
                     start that release again, or restore a dump made with this one"
                ),
            ));
        }
        if crc32c(&b[..BLOCK - 4]) != u32_at(b, BLOCK - 4) {
            return Ok(None);
        }
        Ok(Some(Self {
            cluster: ClusterId(u128_at(b, 16)),
            engine: u128_at(b, 32),
            sequence: u64_at(b, 48),
            version: u64_at(b, 56),
            chain: u32_at(b, 64),
        }))
    }
}

/// The head of a batch: one write of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchHeader {
    pub payload: u32,
    pub sequence: u64,
    pub first: Version,
    pub last: Version,
    /// Every batch up to this one was flushed when this one was written.
    pub flushed: u64,
    /// The header checksum of the batch before.
    pub chain: u32,
    pub payload_crc: u32,
    /// The engine, folded, so that another engine's batches are never taken for ours.
    pub engine: u32,
    /// The checksum of this header; computed by `encode`.
    pub crc: u32,
}

impl BatchHeader {
    pub fn encode(&self) -> [u8; BATCH_HEADER] {
        let mut b = [0; BATCH_HEADER];
        b[..4].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
        b[4..8].copy_from_slice(&self.payload.to_le_bytes());
        b[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        b[16..24].copy_from_slice(&self.first.to_le_bytes());
        b[24..32].copy_from_slice(&self.last.to_le_bytes());
        b[32..40].copy_from_slice(&self.flushed.to_le_bytes());
        b[40..44].copy_from_slice(&self.chain.to_le_bytes());
        b[44..48].copy_from_slice(&self.payload_crc.to_le_bytes());
        b[48..52].copy_from_slice(&self.engine.to_le_bytes());
        let crc = crc32c(&b[..BATCH_HEADER - 4]);
        b[BATCH_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// The header and payload of a valid batch at the start of `b`.
    pub fn decode(b: &[u8], engine: u128) -> Option<(Self, &[u8])> {
        if b.len() < BATCH_HEADER || u32_at(b, 0) != BATCH_MAGIC {
            return None;
        }
        let crc = u32_at(b, BATCH_HEADER - 4);
        let header = Self {
            payload: u32_at(b, 4),
            sequence: u64_at(b, 8),
            first: u64_at(b, 16),
            last: u64_at(b, 24),
            flushed: u64_at(b, 32),
            chain: u32_at(b, 40),
            payload_crc: u32_at(b, 44),
            engine: u32_at(b, 48),
            crc,
        };
        if crc32c(&b[..BATCH_HEADER - 4]) != crc || header.engine != fold(engine) {
            return None;
        }
        let payload = b.get(BATCH_HEADER..BATCH_HEADER + header.payload as usize)?;
        (crc32c(payload) == header.payload_crc).then_some((header, payload))
    }

    /// Bytes of the batch in the file.
    pub fn disk_bytes(&self) -> usize {
        (BATCH_HEADER + self.payload as usize).next_multiple_of(BLOCK)
    }
}

/// 32 bits of an engine id.
pub fn fold(engine: u128) -> u32 {
    crc32c(&engine.to_le_bytes())
}

/// Collects the records of the next batch.
#[derive(Default)]
pub struct Records {
    pub bytes: Vec<u8>,
    /// Where the count of the open record stands.
    count_at: usize,
}

impl Records {
    /// Begins the record of one commit; [`Records::end`] gives it its version.
    pub fn begin(&mut self) {
        self.bytes.extend_from_slice(&[0; 12]);
        self.count_at = self.bytes.len() - 4;
    }
    pub fn end(&mut self, version: Version) {
        let at = self.count_at - 8;
        self.bytes[at..at + 8].copy_from_slice(&version.to_le_bytes());
    }
    fn op(&mut self, kind: u8, a: &[u8], b: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&(a.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&(b.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(a);
        self.bytes.extend_from_slice(b);
        let count = u32_at(&self.bytes, self.count_at) + 1;
        self.bytes[self.count_at..self.count_at + 4].copy_from_slice(&count.to_le_bytes());
    }
}

const OP_PUT: u8 = 1;
const OP_CLEAR: u8 = 2;

impl Record for Records {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.op(OP_PUT, key, value);
    }
    fn clear_range(&mut self, begin: &[u8], end: &[u8]) {
        self.op(OP_CLEAR, begin, end);
    }
}

/// One change of a record.
pub enum Op<'a> {
    Put(&'a [u8], &'a [u8]),
    Clear(&'a [u8], &'a [u8]),
}

/// Reads the records of a batch, in order.
pub fn read_records<'a>(payload: &'a [u8], mut each: impl FnMut(Version, Op<'a>)) -> Result<()> {
    let bad = || Error::new(Status::Corrupt, "a record of the log has a wrong form");
    let mut r = Reader(payload);
    while !r.0.is_empty() {
        let version = r.u64().ok_or_else(bad)?;
        let count = r.u32().ok_or_else(bad)?;
        for _ in 0..count {
            let kind = r.take(1).ok_or_else(bad)?[0];
            let (a, b) = (r.u32().ok_or_else(bad)?, r.u32().ok_or_else(bad)?);
            let a = r.take(a as usize).ok_or_else(bad)?;
            let b = r.take(b as usize).ok_or_else(bad)?;
            match kind {
                OP_PUT => each(version, Op::Put(a, b)),
                OP_CLEAR => each(version, Op::Clear(a, b)),
                _ => return Err(bad()),
            }
        }
    }
    Ok(())
}

/// The head of a page of a checkpoint. The last page has no entries; its payload is the count of all entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageHeader {
    pub payload: u32,
    pub entries: u32,
    pub index: u64,
    pub payload_crc: u32,
}

impl PageHeader {
    /// A whole page, padded.
    pub fn encode(index: u64, entries: u32, payload: &[u8]) -> Vec<u8> {
        let mut b = Vec::with_capacity((PAGE_HEADER + payload.len()).next_multiple_of(BLOCK));
        b.extend_from_slice(&PAGE_MAGIC.to_le_bytes());
        b.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        b.extend_from_slice(&entries.to_le_bytes());
        b.extend_from_slice(&index.to_le_bytes());
        b.extend_from_slice(&crc32c(payload).to_le_bytes());
        b.extend_from_slice(&[0; 4]);
        let crc = crc32c(&b);
        b.extend_from_slice(&crc.to_le_bytes());
        b.extend_from_slice(payload);
        b.resize(b.len().next_multiple_of(BLOCK), 0);
        b
    }
    /// The header alone, if `b` begins with one.
    pub fn decode(b: &[u8]) -> Option<Self> {
        if b.len() < PAGE_HEADER
            || u32_at(b, 0) != PAGE_MAGIC
            || crc32c(&b[..PAGE_HEADER - 4]) != u32_at(b, PAGE_HEADER - 4)
        {
            return None;
        }
        Some(Self {
            payload: u32_at(b, 4),
            entries: u32_at(b, 8),
            index: u64_at(b, 12),
            payload_crc: u32_at(b, 20),
        })
    }
    pub fn disk_bytes(&self) -> usize {
        (PAGE_HEADER + self.payload as usize).next_multiple_of(BLOCK)
    }
}

/// Appends an entry of a checkpoint page.
pub fn push_entry(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Reads the entries of a page; `None` if the form is wrong.
pub fn read_entries(payload: &[u8], mut each: impl FnMut(&[u8], &[u8])) -> Option<u32> {
    let mut r = Reader(payload);
    let mut count = 0;
    while !r.0.is_empty() {
        let (k, v) = (r.u32()?, r.u32()?);
        let k = r.take(k as usize)?;
        let v = r.take(v as usize)?;
        each(k, v);
        count += 1;
    }
    Some(count)
}

struct Reader<'a>(&'a [u8]);
impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(front)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|b| u32_at(b, 0))
    }
    fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|b| u64_at(b, 0))
    }
}

/// The callers have checked the length.
pub fn u32_at(b: &[u8], at: usize) -> u32 {
    let mut w = [0; 4];
    w.copy_from_slice(&b[at..at + 4]);
    u32::from_le_bytes(w)
}
pub fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut w = [0; 8];
    w.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(w)
}
fn u128_at(b: &[u8], at: usize) -> u128 {
    let mut w = [0; 16];
    w.copy_from_slice(&b[at..at + 16]);
    u128::from_le_bytes(w)
}

/// `log-` and the sequence of its first batch.
pub fn log_name(sequence: u64) -> String {
    format!("log-{sequence:016x}")
}
/// `checkpoint-` and its version.
pub fn checkpoint_name(version: Version) -> String {
    format!("checkpoint-{version:016x}")
}
/// The number in such a name.
pub fn number_of(name: &str, prefix: &str) -> Option<u64> {
    let hex = name.strip_prefix(prefix)?;
    (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_headers() {
        let h = FileHeader { cluster: ClusterId(1), engine: 2, sequence: 3, version: 4, chain: 5 };
        let b = h.encode(LOG_MAGIC);
        assert_eq!(&b[..12], b"GLOWKVLG\x01\0\0\0");
        assert_eq!((b[16], b[32], b[48], b[56], b[64]), (1, 2, 3, 4, 5));
        assert_eq!(FileHeader::decode(&b, LOG_MAGIC, "x").expect("ok"), Some(h));
        let mut newer = b;
        newer[8] = 2;
        let e = FileHeader::decode(&newer, LOG_MAGIC, "x").expect_err("newer");
        assert_eq!(e.status, Status::NewerFormat);
        for at in [0, 20, 48, 100, BLOCK - 1] {
            let mut bad = b;
            bad[at] ^= 1;
            assert_eq!(FileHeader::decode(&bad, LOG_MAGIC, "x").expect("no error"), None, "{at}");
        }
    }

    #[test]
    fn batches_round_trip_and_every_bit_counts() {
        let mut records = Records::default();
        records.begin();
        records.put(b"k", b"v");
        records.clear_range(b"a", b"b");
        records.end(7);
        let h = BatchHeader {
            payload: records.bytes.len() as u32,
            sequence: 9,
            first: 7,
            last: 7,
            payload_crc: crc32c(&records.bytes),
            engine: fold(5),
            ..Default::default()
        };
        let mut b = h.encode().to_vec();
        assert_eq!(&b[..4], b"GKVB");
        b.extend_from_slice(&records.bytes);
        let (got, payload) = BatchHeader::decode(&b, 5).expect("valid");
        assert_eq!(got.sequence, 9);
        let mut ops = 0;
        read_records(payload, |v, _| {
            assert_eq!(v, 7);
            ops += 1;
        })
        .expect("records");
        assert_eq!(ops, 2);
        assert!(BatchHeader::decode(&b, 6).is_none(), "another engine's");
        for at in 0..b.len() {
            let mut bad = b.clone();
            bad[at] ^= 4;
            assert!(BatchHeader::decode(&bad, 5).is_none(), "{at}");
        }
    }

    proptest::proptest! {
        #[test]
        fn readers_never_panic(b: Vec<u8>) {
            let _ = read_records(&b, |_, _| ());
            let _ = read_entries(&b, |_, _| ());
            let _ = BatchHeader::decode(&b, 0);
            let _ = PageHeader::decode(&b);
        }
    }
}
