//! READ: pieces of chunks, and what came of each.

use super::WireChunkId;
use crate::{Capability, Error, Result, Status};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The greatest number of operations in one READ.
pub const READ_OPS_MAX: u32 = 256;

/// Head of a READ body; `count` × [`ReadOp`] follow. All chunks belong to the data id of the capability.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct ReadHead {
    /// Bytes of this structure.
    pub size: U32,
    /// Operations that follow.
    pub count: U32,
    /// Lets the client read.
    pub capability: Capability,
}

/// One piece to read.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct ReadOp {
    /// The chunk.
    pub chunk: WireChunkId,
    /// Its chain.
    pub chain: U64,
    /// The chain version the client knows.
    pub chain_version: U64,
    /// The target that is asked.
    pub target: U64,
    /// Offset in the chunk.
    pub offset: U32,
    /// Bytes wanted.
    pub len: U32,
    /// Where in the request's bulk region the bytes go.
    pub at: U32,
    /// Zero.
    pub flags: U32,
}

/// The answer to one [`ReadOp`]; the answer's body is an array of these. Bytes of the chunk past `len` that the
/// client wanted are a hole: the service has filled them with zeros in the bulk.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct ReadResult {
    /// Outcome of this piece.
    pub status: U16,
    /// Zero.
    pub flags: U16,
    /// Bytes that exist in the chunk from `offset` on, at most the wanted ones.
    pub len: U32,
    /// The committed version that was read; 0 if the chunk does not exist.
    pub version: U64,
    /// CRC-32C over the whole wanted piece as it stands in the bulk (zeros included).
    pub crc: U32,
    /// The chain version of the target.
    pub chain_version: U64,
}

/// A parsed READ.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// The fixed part.
    pub head: &'a ReadHead,
    /// The pieces.
    pub ops: &'a [ReadOp],
}

impl<'a> Read<'a> {
    /// Parses and checks the form of a READ body from outside; `room` is the size of the bulk region.
    pub fn parse(body: &'a [u8], room: u32) -> Result<Self> {
        let bad = |what: &str| Error::new(Status::BadMessage, format!("read: {what}"));
        let (head, _) = ReadHead::ref_from_prefix(body).map_err(|_| bad("too short"))?;
        let size = head.size.get() as usize;
        if size < size_of::<ReadHead>() || size > body.len() {
            return Err(bad("wrong size of its fixed part"));
        }
        let ops =
            <[ReadOp]>::ref_from_bytes(&body[size..]).map_err(|_| bad("ragged operations"))?;
        if ops.len() != head.count.get() as usize || head.count.get() > READ_OPS_MAX {
            return Err(bad("wrong number of operations"));
        }
        for op in ops {
            let fits = |a: U32, b: U32, max: u32| {
                a.get().checked_add(b.get()).is_some_and(|end| end <= max)
            };
            if !fits(op.at, op.len, room) {
                return Err(bad("a piece reaches past the buffer"));
            }
            if !fits(op.offset, op.len, crate::layout::CHUNK_BYTES_MAX) {
                return Err(bad("a piece reaches past the end of any chunk"));
            }
        }
        Ok(Self { head, ops })
    }

    /// Builds a body.
    pub fn encode(capability: &Capability, ops: &[ReadOp]) -> Vec<u8> {
        let head = ReadHead {
            size: (size_of::<ReadHead>() as u32).into(),
            count: (ops.len() as u32).into(),
            capability: *capability,
        };
        let mut body = Vec::with_capacity(size_of::<ReadHead>() + size_of_val(ops));
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(ops.as_bytes());
        body
    }
}
