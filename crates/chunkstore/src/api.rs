//! What callers give to a [`crate::Store`] and get from it.

use glowfs_rt::Buf;
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{ChunkId, ChunkVersion, ClusterId, NodeId};

/// The greatest payload in bytes that goes through the log; larger ones are written to fresh slots.
pub const SMALL_WRITE_BYTES: u32 = 64 << 10;
/// The greatest number of pending versions of one chunk.
pub const PENDING_MAX: usize = 16;
/// The greatest size in bytes of the record that [`crate::Store::put_target_meta`] keeps.
pub const TARGET_META_BYTES_MAX: usize = 64 << 10;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The cluster; a directory of another one is refused.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Format the directory if it is empty; otherwise an empty one is refused.
    pub format: bool,
    /// Bytes of one log segment file: a power of two, 256 KiB to 1 GiB.
    pub log_segment_bytes: u64,
    /// The greatest size of the log in bytes; a checkpoint begins at half of it. Bounds the time of recovery.
    pub log_bytes_max: u64,
    /// A flush begins by itself when so many bytes were written since the last one. Bounds what recovery verifies.
    pub unflushed_bytes_max: u64,
    /// Bytes of the file system that are left for the log and checkpoints: no slot is allocated below this.
    pub reserve_bytes: u64,
    /// An upper bound on the bytes in slots; 0: the file system's size.
    pub capacity_bytes: u64,
}

impl StoreConfig {
    /// The defaults.
    pub fn new(cluster: ClusterId, node: NodeId) -> Self {
        Self {
            cluster,
            node,
            format: true,
            log_segment_bytes: 8 << 20,
            log_bytes_max: 128 << 20,
            unflushed_bytes_max: 256 << 20,
            reserve_bytes: 256 << 20,
            capacity_bytes: 0,
        }
    }
}

/// What an update does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageKind {
    /// Writes the payload at an offset; the chunk grows if need be.
    Write,
    /// Sets the chunk's length to `len`.
    Truncate,
    /// Removes the chunk; its version stays as a tombstone.
    Remove,
    /// The payload is the whole content; the version may jump. With `commit`, also to the committed version or an older
    /// one (repair, resync).
    Replace,
}

impl StageKind {
    /// From [`glowfs_types::wire::data::update`].
    pub fn from_wire(kind: u8) -> Option<Self> {
        use glowfs_types::wire::data::update;
        match kind {
            update::WRITE => Some(Self::Write),
            update::TRUNCATE => Some(Self::Truncate),
            update::REMOVE => Some(Self::Remove),
            update::REPLACE => Some(Self::Replace),
            _ => None,
        }
    }
    /// As in [`glowfs_types::wire::data::update`].
    pub fn to_wire(self) -> u8 {
        use glowfs_types::wire::data::update;
        match self {
            Self::Write => update::WRITE,
            Self::Truncate => update::TRUNCATE,
            Self::Remove => update::REMOVE,
            Self::Replace => update::REPLACE,
        }
    }
}

/// An update of one chunk. Its version is the newest one (pending or committed) plus one; 1 if the chunk was never here. Exceptions: `anew`,
/// `any_version`, and a `Replace`.
#[derive(Clone, Debug)]
pub struct StageRequest {
    /// The chunk.
    pub chunk: ChunkId,
    /// The version that this update makes.
    pub version: ChunkVersion,
    /// What it does.
    pub kind: StageKind,
    /// Offset of the payload in the chunk (`Write`; 0 otherwise).
    pub offset: u32,
    /// The new length (`Truncate`); ignored otherwise.
    pub len: u32,
    /// The bytes (`Write`, `Replace`); empty otherwise.
    pub payload: Buf,
    /// The checksums of the payload's pieces ([`glowfs_types::checksum::piece_checksums`]); verified before it is stored.
    pub crcs: Vec<u32>,
    /// The chunk size of the layout.
    pub chunk_bytes: u32,
    /// The client's channel and sequence number; kept in the same log record.
    pub channel: Option<ChannelRecord>,
    /// Commit at once (and with it every earlier pending version).
    pub commit: bool,
    /// Resolve only when it is durable.
    pub flush: bool,
    /// The chunk begins anew: of a chunk that is removed or was never here, with nothing pending, it is taken at any later version.
    pub anew: bool,
    /// A `Remove` with `commit` is taken at any version, also an older one than is there; 0 forgets the chunk (resync).
    pub any_version: bool,
    /// A `Replace` of content that is damaged where it comes from, and that nobody has: where a checksum does not match and the piece is
    /// all zeros, it is that of the whole lost block. Reads of such a block are refused here as there.
    pub damaged: bool,
}

/// What the store has of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChunkState {
    /// Committed version; 0 if only pending ones exist.
    pub committed: ChunkVersion,
    /// Newest pending version; equal to `committed` if none.
    pub pending: ChunkVersion,
    /// Committed length in bytes.
    pub len: u32,
    /// CRC-32C of the list of block checksums of the committed content (LE u32 each).
    pub content_crc: u32,
    /// The chunk size it was created with.
    pub chunk_bytes: u32,
    /// The committed version is a removal: a tombstone that only keeps the version.
    pub removed: bool,
}

impl ChunkState {
    /// Whether there is committed content.
    pub fn exists(&self) -> bool {
        self.committed.0 > 0 && !self.removed
    }
}

/// One pending version of a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingState {
    /// The version.
    pub version: ChunkVersion,
    /// What it does.
    pub kind: StageKind,
    /// The chunk's length after it.
    pub len: u32,
    /// The chunk's size after it (a tombstone below it may have any).
    pub chunk_bytes: u32,
    /// Whose write it is.
    pub channel: Option<ChannelRecord>,
}

/// What a read found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadOutcome {
    /// Bytes that exist in the chunk from the offset on, at most those wanted. The rest of the buffer is zeros.
    pub len: u32,
    /// The version that was read; 0 if the chunk does not exist.
    pub version: ChunkVersion,
    /// CRC-32C of the whole buffer (zeros included), of verified bytes.
    pub crc: u32,
}

/// Room on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreSpace {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Free in bytes.
    pub free_bytes: u64,
    /// Bytes in slots that hold chunks.
    pub used_bytes: u64,
    /// Bytes of log that a recovery would replay.
    pub log_bytes: u64,
}

/// One chunk verified at rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubResult {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its committed version.
    pub version: ChunkVersion,
    /// Bytes read.
    pub bytes: u64,
    /// Blocks that are not what was stored, or cannot be read.
    pub bad_blocks: Vec<u32>,
}
