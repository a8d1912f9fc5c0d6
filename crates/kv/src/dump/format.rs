//! The bytes of a dump (docs/formats/metadata-dump.md). Pure: what is read is checked before it is believed.

use crate::{Key, Value, Version};
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::kv::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use glowfs_types::{ClusterId, Error, Result, Status};
use std::io::{Read, Write};

/// The format that this build writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
/// The greatest payload of a block.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// A block is written when its payload has so many bytes.
const BLOCK_BYTES: usize = BLOCK_BYTES_MAX - KEY_BYTES_MAX - VALUE_BYTES_MAX - 8;
const MAGIC: &[u8; 8] = b"GLOWMDMP";
const BLOCK_MAGIC: &[u8; 4] = b"GMDB";
const TRAILER_MAGIC: &[u8; 4] = b"GMDE";
const HEADER_BYTES: usize = 64;
const BLOCK_HEADER_BYTES: usize = 32;
const TRAILER_BYTES: usize = 64;

/// Of whom a dump is, and of when.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The cluster.
    pub cluster: ClusterId,
    /// The version of the engine.
    pub version: Version,
    /// When it was begun: nanoseconds since the Unix epoch.
    pub taken_ns: u64,
}

/// What a dump holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Keys.
    pub entries: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The BLAKE3 of all but the trailer.
    pub digest: [u8; 32],
}

fn put(at: &mut [u8], offset: usize, bytes: &[u8]) {
    at[offset..offset + bytes.len()].copy_from_slice(bytes);
}
fn u32_at(b: &[u8], offset: usize) -> u32 {
    b.get(offset..offset + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}
fn u64_at(b: &[u8], offset: usize) -> u64 {
    b.get(offset..offset + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
/// Puts the checksum of all before it into the last four bytes.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let sum = crc32c(&bytes[..at]);
    put(bytes, at, &sum.to_le_bytes());
}
fn is_sealed(bytes: &[u8]) -> bool {
    let at = bytes.len() - 4;
    crc32c(&bytes[..at]) == u32_at(bytes, at)
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        put(&mut b, 0, MAGIC);
        put(&mut b, 8, &FORMAT.to_le_bytes());
        put(&mut b, 16, &self.cluster.0.to_le_bytes());
        put(&mut b, 32, &self.version.to_le_bytes());
        put(&mut b, 40, &self.taken_ns.to_le_bytes());
        seal(&mut b);
        b
    }
    fn decode(b: &[u8; HEADER_BYTES]) -> Result<Self> {
        if &b[..8] != MAGIC {
            return Err(Error::new(Status::Corrupt, "this is no dump of GlowFS metadata"));
        }
        let format = u32_at(b, 8);
        if format > FORMAT {
            let e = format!(
                "the dump has format {format}, this release reads up to {FORMAT}: use the release that wrote it, or a newer one"
            );
            return Err(Error::new(Status::NewerFormat, e));
        }
        if !is_sealed(b) {
            return Err(damaged(0, "the header does not match its checksum"));
        }
        let cluster = b[16..32].try_into().map(u128::from_le_bytes).unwrap_or_default();
        Ok(Self { cluster: ClusterId(cluster), version: u64_at(b, 32), taken_ns: u64_at(b, 40) })
    }
}

fn damaged(at: u64, what: &str) -> Error {
    Error::new(Status::Corrupt, format!("the dump is damaged at byte {at}: {what}"))
}
fn cut(at: u64) -> Error {
    let e = format!(
        "the dump ends at byte {at}, before its trailer: it was cut, or its writing was; make it anew"
    );
    Error::new(Status::Corrupt, e)
}
fn io(e: &std::io::Error) -> Error {
    Error::new(Status::DiskFailed, format!("the dump's file: {e}"))
}

/// Writes a dump, block by block.
pub struct BlockWriter<W> {
    out: W,
    hash: blake3::Hasher,
    payload: Vec<u8>,
    in_block: u32,
    blocks: u64,
    entries: u64,
    bytes: u64,
}

impl<W: Write> BlockWriter<W> {
    /// Begins a file.
    pub fn new(out: W, header: &Header) -> Result<Self> {
        let (hash, payload) = (blake3::Hasher::new(), Vec::with_capacity(BLOCK_BYTES_MAX));
        let mut w = Self { out, hash, payload, in_block: 0, blocks: 0, entries: 0, bytes: 0 };
        w.write(&header.encode())?;
        Ok(w)
    }
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|e| io(&e))
    }
    /// Entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }
    /// The next entry; keys come in order.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.payload.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.payload.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.payload.extend_from_slice(key);
        self.payload.extend_from_slice(value);
        self.in_block += 1;
        self.entries += 1;
        if self.payload.len() >= BLOCK_BYTES { self.block() } else { Ok(()) }
    }
    fn block(&mut self) -> Result<()> {
        let payload = std::mem::take(&mut self.payload);
        let mut b = [0; BLOCK_HEADER_BYTES];
        put(&mut b, 0, BLOCK_MAGIC);
        put(&mut b, 4, &(payload.len() as u32).to_le_bytes());
        put(&mut b, 8, &self.blocks.to_le_bytes());
        put(&mut b, 16, &self.in_block.to_le_bytes());
        put(&mut b, 20, &crc32c(&payload).to_le_bytes());
        seal(&mut b);
        self.write(&b)?;
        self.write(&payload)?;
        self.blocks += 1;
        self.in_block = 0;
        self.payload = payload;
        self.payload.clear();
        Ok(())
    }
    /// Writes the trailer.
    pub fn finish(mut self) -> Result<Summary> {
        if self.in_block > 0 {
            self.block()?;
        }
        let digest = *self.hash.finalize().as_bytes();
        let mut b = [0; TRAILER_BYTES];
        put(&mut b, 0, TRAILER_MAGIC);
        put(&mut b, 8, &self.entries.to_le_bytes());
        put(&mut b, 16, &self.blocks.to_le_bytes());
        put(&mut b, 24, &digest);
        seal(&mut b);
        self.write(&b)?;
        self.out.flush().map_err(|e| io(&e))?;
        Ok(Summary { entries: self.entries, bytes: self.bytes, digest })
    }
}

/// Reads a dump, block by block.
pub struct Reader<R> {
    input: R,
    header: Header,
    hash: blake3::Hasher,
    at: u64,
    blocks: u64,
    entries: u64,
    last: Option<Key>,
    summary: Option<Summary>,
}

impl<R: Read> Reader<R> {
    /// Begins to read; the header is checked.
    pub fn new(mut input: R) -> Result<Self> {
        let mut b = [0; HEADER_BYTES];
        let got = fill(&mut input, &mut b)?;
        if got < HEADER_BYTES {
            return Err(cut(got as u64));
        }
        let header = Header::decode(&b)?;
        let mut hash = blake3::Hasher::new();
        hash.update(&b);
        let (at, last, summary) = (HEADER_BYTES as u64, None, None);
        Ok(Self { input, header, hash, at, blocks: 0, entries: 0, last, summary })
    }
    /// Of whom it is.
    pub fn header(&self) -> &Header {
        &self.header
    }
    /// Entries read so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }
    /// What it holds; known at its end.
    pub fn summary(&self) -> Result<Summary> {
        self.summary.clone().ok_or_else(|| cut(self.at))
    }

    /// The entries of the next block; `None` behind the last one, when the trailer was there and agreed.
    pub fn next_block(&mut self) -> Result<Option<Vec<(Key, Value)>>> {
        if self.summary.is_some() {
            return Ok(None);
        }
        let mut b = [0; BLOCK_HEADER_BYTES];
        if fill(&mut self.input, &mut b)? < BLOCK_HEADER_BYTES {
            return Err(cut(self.at));
        }
        if &b[..4] == TRAILER_MAGIC {
            self.trailer(&b)?;
            return Ok(None);
        }
        let begin = self.at;
        let bad = |what| Err(damaged(begin, what));
        if &b[..4] != BLOCK_MAGIC || !is_sealed(&b) {
            return bad("no block begins there");
        }
        let len = u32_at(&b, 4) as usize;
        if len > BLOCK_BYTES_MAX || u64_at(&b, 8) != self.blocks {
            return bad("the block is not the one that should follow");
        }
        let mut payload = vec![0; len];
        if fill(&mut self.input, &mut payload)? < len {
            return Err(cut(begin));
        }
        if crc32c(&payload) != u32_at(&b, 20) {
            return bad("the block does not match its checksum");
        }
        self.hash.update(&b);
        self.hash.update(&payload);
        self.at += (BLOCK_HEADER_BYTES + len) as u64;
        self.blocks += 1;
        let entries = split(&payload, self.last.as_deref())
            .filter(|e| e.len() == u32_at(&b, 16) as usize)
            .ok_or_else(|| damaged(begin, "the block's entries make no sense"))?;
        self.entries += entries.len() as u64;
        self.last = entries.last().map(|(k, _)| k.clone()).or(self.last.take());
        Ok(Some(entries))
    }

    fn trailer(&mut self, begin: &[u8; BLOCK_HEADER_BYTES]) -> Result<()> {
        let mut b = [0; TRAILER_BYTES];
        b[..BLOCK_HEADER_BYTES].copy_from_slice(begin);
        let got = fill(&mut self.input, &mut b[BLOCK_HEADER_BYTES..])?;
        if got < TRAILER_BYTES - BLOCK_HEADER_BYTES {
            return Err(cut(self.at));
        }
        let digest = *self.hash.finalize().as_bytes();
        let counts = u64_at(&b, 8) == self.entries && u64_at(&b, 16) == self.blocks;
        if !is_sealed(&b) || !counts || b[24..56] != digest {
            return Err(damaged(self.at, "the trailer does not agree with what stands before it"));
        }
        let bytes = self.at + TRAILER_BYTES as u64;
        if fill(&mut self.input, &mut [0])? > 0 {
            return Err(damaged(bytes, "something follows the trailer"));
        }
        self.summary = Some(Summary { entries: self.entries, bytes, digest });
        Ok(())
    }
}

/// Reads until the buffer is full or the input ends; how much there was.
fn fill(input: &mut impl Read, buf: &mut [u8]) -> Result<usize> {
    let mut got = 0;
    while got < buf.len() {
        match input.read(&mut buf[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(io(&e)),
        }
    }
    Ok(got)
}

/// The entries of a payload, in order and behind `last`.
fn split(mut payload: &[u8], last: Option<&[u8]>) -> Option<Vec<(Key, Value)>> {
    let mut out: Vec<(Key, Value)> = Vec::new();
    while !payload.is_empty() {
        let (key_len, value_len) = (u32_at(payload, 0) as usize, u32_at(payload, 4) as usize);
        if key_len > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX {
            return None;
        }
        let key = payload.get(8..8 + key_len)?;
        let value = payload.get(8 + key_len..8 + key_len + value_len)?;
        let before = out.last().map(|(k, _)| k.as_slice()).or(last);
        if before.is_some_and(|b| b >= key) {
            return None;
        }
        out.push((key.to_vec(), value.to_vec()));
        payload = &payload[8 + key_len + value_len..];
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { cluster: ClusterId(0x0102), version: 9, taken_ns: 10 }
    }
    fn written(entries: &[(Key, Value)]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = BlockWriter::new(&mut out, &header()).expect("header");
        entries.iter().for_each(|(k, v)| w.push(k, v).expect("pushed"));
        assert_eq!(w.finish().expect("trailer").entries, entries.len() as u64);
        out
    }
    fn read(bytes: &[u8]) -> Result<(Header, Vec<(Key, Value)>)> {
        let mut r = Reader::new(bytes)?;
        let mut all = Vec::new();
        while let Some(block) = r.next_block()? {
            all.extend(block);
        }
        assert_eq!(r.summary()?.bytes, bytes.len() as u64);
        Ok((r.header().clone(), all))
    }

    #[test]
    fn golden() {
        let bytes = written(&[(b"k".to_vec(), b"val".to_vec())]);
        assert_eq!(bytes.len(), 64 + 32 + 12 + 64);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN.replace([' ', '\n'], ""));
    }
    /// Header, block, its payload, trailer.
    const GOLDEN: &str = "
        474c4f574d444d5001000000000000000201000000000000000000000000000009000000000000000a00000000000000000000000000000000000000784b29bc
        474d44420c0000000000000000000000010000002456391100000000202ce74c
        01000000030000006b76616c
        474d444500000000010000000000000001000000000000002dc6bed949f5f81b100f4b4ede33fdc7449b4948642f062856ea3e1d4ab5ea9600000000fb75f07d";

    #[test]
    fn every_cut_and_every_flip_is_refused() {
        let bytes = written(&[
            (b"a".to_vec(), vec![1; 9]),
            (b"b".to_vec(), vec![]),
            (b"b\0".to_vec(), vec![2; 40]),
        ]);
        assert_eq!(read(&bytes).expect("whole").1.len(), 3);
        for n in 0..bytes.len() {
            assert!(read(&bytes[..n]).is_err(), "cut at {n}");
            let mut flipped = bytes.clone();
            flipped[n] ^= 0x10;
            assert!(read(&flipped).is_err(), "flipped at {n}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(read(&longer).is_err());
        let mut newer = bytes;
        newer[8] = 2;
        assert_eq!(read(&newer).expect_err("newer").status, Status::NewerFormat);
    }

    #[test]
    fn large_ones_have_blocks_of_bounded_size() {
        let value = |i: u64| vec![i as u8; if i.is_multiple_of(9) { VALUE_BYTES_MAX } else { 300 }];
        let entries: Vec<_> = (0..3000u64).map(|i| (i.to_be_bytes().to_vec(), value(i))).collect();
        let bytes = written(&entries);
        assert_eq!(read(&bytes).expect("whole"), (header(), entries));
        let mut out = Vec::new();
        let mut w = BlockWriter::new(&mut out, &header()).expect("header");
        for k in [b"b", b"a"] {
            w.push(k, b"").expect("pushed");
        }
        w.finish().expect("trailer");
        assert!(read(&out).is_err(), "out of order");
    }
}
