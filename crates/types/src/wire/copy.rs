//! COPY_CHUNK: a piece of one chunk becomes a write to another one, without going through the client.

use super::data::{Update, UpdateHead, update};
use crate::{ChainVersion, ChunkId, Error, NodeId, Result, Status, TargetId};
use minicbor::{Decode, Encode};
use zerocopy::{FromBytes, IntoBytes};

/// COPY_CHUNK, to the head of the chain of the chunk that is written.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CopyChunk {
    /// The write, as in WRITE but without payload and checksums: an [`UpdateHead`], as bytes.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub write: Vec<u8>,
    /// The chunk that is read.
    #[n(1)]
    pub from: ChunkId,
    /// Where in it.
    #[n(2)]
    pub from_offset: u32,
    /// A serving target of its chain,
    #[n(3)]
    pub target: TargetId,
    /// the version of that chain,
    #[n(4)]
    pub chain_version: ChainVersion,
    /// and the node of the target.
    #[n(5)]
    pub node: NodeId,
    /// A [`crate::Capability`] with the right to read, as bytes.
    #[cbor(n(6), with = "minicbor::bytes")]
    pub capability: Vec<u8>,
}

impl CopyChunk {
    /// What the head of a write is sent as.
    pub fn pack(head: &UpdateHead) -> Vec<u8> {
        let mut head = *head;
        head.size = (size_of::<UpdateHead>() as u32).into();
        head.as_bytes().to_vec()
    }
    /// The write, with its form checked as if it had come with its bytes.
    pub fn head(&self) -> Result<UpdateHead> {
        let bad = |what: &str| Error::new(Status::BadMessage, format!("copy: {what}"));
        let head = UpdateHead::read_from_bytes(&self.write).map_err(|_| bad("a wrong size"))?;
        if head.kind != update::WRITE || head.len.get() == 0 {
            return Err(bad("not a write of some bytes"));
        }
        // Checks everything but the checksums, which are made where the bytes are read.
        let pieces = crate::checksum::block_count(head.offset.get(), head.len.get());
        let bound = crate::layout::CHUNK_BYTES_MAX as usize / 4096 + 1;
        if pieces > bound {
            return Err(bad("reaches past the end of its chunk"));
        }
        Update::parse(&Update::encode(&head, &vec![0; pieces]))?;
        Ok(head)
    }
}
