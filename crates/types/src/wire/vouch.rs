//! What a member of a chain has stored, told to the one behind it, which shows nothing else.

use minicbor::{Decode, Encode};

/// The most chunks that one VOUCH may ask about.
pub const VOUCH_MAX: usize = 4096;
/// The most of one that is to be kept.
pub const KEPT_MAX: usize = 512;

/// A version of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub struct Unvouched {
    /// The chunk.
    #[n(0)]
    pub chunk: crate::ChunkId,
    /// The version.
    #[n(1)]
    pub version: crate::ChunkVersion,
}

/// VOUCH (target to predecessor): of which of these does the receiver, and so does every serving member before it, have all versions up to that one in its store?
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Vouch {
    /// The chain.
    #[n(0)]
    pub chain: crate::ChainId,
    /// The chain version of the sender.
    #[n(1)]
    pub chain_version: crate::ChainVersion,
    /// The chunks, at most [`VOUCH_MAX`], or [`KEPT_MAX`].
    #[n(2)]
    pub about: Vec<Unvouched>,
    /// Neither the sender nor a serving member behind it shows what came with `UPDATE_VOUCHES` before its predecessor vouches for it.
    #[n(3)]
    pub waits: bool,
    /// Somebody waits for each of these: it is answered when the first of them is so, when a newer question comes, or after a while. What the receiver itself has to ask for, it
    /// asks for at once.
    #[n(4)]
    pub keep: bool,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct VouchReply {
    /// Whether so, for each in the order of the question.
    #[n(0)]
    pub vouched: Vec<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChainId, ChainVersion, ChunkId, ChunkVersion, DataId, VolumeId};

    #[test]
    fn golden_bytes() {
        let chunk = ChunkId { volume: VolumeId(1), data: DataId(2), index: 3 };
        let about = vec![Unvouched { chunk, version: ChunkVersion(4) }];
        let (chain, chain_version) = (ChainId(5), ChainVersion(6));
        let ask = Vouch { chain, chain_version, about, waits: true, keep: false };
        let bytes = b"\x85\x05\x06\x81\x82\x83\x01\x02\x03\x04\xf5\xf4";
        assert_eq!(crate::wire::encode(&ask), bytes);
        assert_eq!(crate::wire::decode::<Vouch>(bytes), Ok(ask));
        let reply = VouchReply { vouched: vec![true, false] };
        let bytes = b"\x81\x82\xf5\xf4";
        assert_eq!(crate::wire::encode(&reply), bytes);
        assert_eq!(crate::wire::decode::<VouchReply>(bytes), Ok(reply));
    }
}
