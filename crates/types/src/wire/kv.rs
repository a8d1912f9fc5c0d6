//! The transactional engine over RPC (one process hosts the embedded engine and serves it to the others).

use minicbor::{Decode, Encode};

/// The greatest key in bytes.
pub const KEY_BYTES_MAX: usize = 4 << 10;
/// The greatest value in bytes: FoundationDB's, so that every engine can hold what another one holds.
pub const VALUE_BYTES_MAX: usize = 100_000;
/// The greatest transaction in bytes (keys and values of its mutations and conflicts).
pub const TRANSACTION_BYTES_MAX: usize = 1 << 20;
/// The greatest page of a range read, in entries.
pub const RANGE_ENTRIES_MAX: u32 = 4096;

/// KV_BEGIN's answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BeginReply {
    /// The newest committed version.
    #[n(0)]
    pub version: u64,
    /// The first version of the engine's life; 0: it does not say (older releases).
    #[cbor(n(1), default, skip_if = "super::meta::is_zero")]
    pub life: u64,
}

/// KV_GET: reads keys as of a version.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Get {
    /// The version.
    #[n(0)]
    pub version: u64,
    /// The keys.
    #[n(1)]
    pub keys: Vec<minicbor::bytes::ByteVec>,
}

/// Its answer, in the order of the keys.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetReply {
    /// The values.
    #[n(0)]
    pub values: Vec<Option<minicbor::bytes::ByteVec>>,
}

/// KV_GET_RANGE: reads `[begin, end)` as of a version.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetRange {
    /// The version.
    #[n(0)]
    pub version: u64,
    /// First key.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub begin: Vec<u8>,
    /// The key after the last.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub end: Vec<u8>,
    /// At most so many entries.
    #[n(3)]
    pub limit: u32,
    /// From the end backwards.
    #[n(4)]
    pub reverse: bool,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetRangeReply {
    /// Keys and values, in the order asked for.
    #[n(0)]
    pub entries: Vec<(minicbor::bytes::ByteVec, minicbor::bytes::ByteVec)>,
    /// Whether the range has more.
    #[n(1)]
    pub more: bool,
}

/// KV_KEEP: the version stays readable for half a minute more. Answered with nothing.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Keep {
    /// The version.
    #[n(0)]
    pub version: u64,
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Mutation {
    /// Sets a key.
    #[n(0)]
    Put {
        /// Key.
        #[cbor(n(0), with = "minicbor::bytes")]
        key: Vec<u8>,
        /// Value.
        #[cbor(n(1), with = "minicbor::bytes")]
        value: Vec<u8>,
    },
    /// Removes `[begin, end)`.
    #[n(1)]
    ClearRange {
        /// First key.
        #[cbor(n(0), with = "minicbor::bytes")]
        begin: Vec<u8>,
        /// The key after the last.
        #[cbor(n(1), with = "minicbor::bytes")]
        end: Vec<u8>,
    },
    /// Adds a signed 64-bit number to the little-endian value of a key (0 if it has none), without a conflict.
    #[n(2)]
    Add {
        /// Key.
        #[cbor(n(0), with = "minicbor::bytes")]
        key: Vec<u8>,
        /// What to add.
        #[n(1)]
        delta: i64,
    },
    /// Sets `prefix + versionstamp + suffix`. The stamp is a number that grows with every commit that has one (8 bytes, big-endian) and
    /// the order in the transaction (2 bytes, big-endian); with FoundationDB 2 bytes more between them.
    #[n(3)]
    PutVersionstamped {
        /// Before the stamp.
        #[cbor(n(0), with = "minicbor::bytes")]
        prefix: Vec<u8>,
        /// After the stamp.
        #[cbor(n(1), with = "minicbor::bytes")]
        suffix: Vec<u8>,
        /// Value.
        #[cbor(n(2), with = "minicbor::bytes")]
        value: Vec<u8>,
    },
}

/// KV_COMMIT.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Commit {
    /// The version everything was read at.
    #[n(0)]
    pub read_version: u64,
    /// Ranges `[begin, end)` that were read: none of them may have changed since `read_version`.
    #[n(1)]
    pub read_conflicts: Vec<(minicbor::bytes::ByteVec, minicbor::bytes::ByteVec)>,
    /// Ranges to count as written although they are not changed.
    #[n(2)]
    pub write_conflicts: Vec<(minicbor::bytes::ByteVec, minicbor::bytes::ByteVec)>,
    /// The changes, in order.
    #[n(3)]
    pub mutations: Vec<Mutation>,
    /// Must be on disk before the answer.
    #[n(4)]
    pub durable: bool,
    /// The keys of `read_conflicts` that were there at `read_version`, all of them; absent if that is not known. An engine that keeps no
    /// history of removals compares that they are still there. Not sent to an engine that does.
    #[n(5)]
    pub present: Option<Vec<minicbor::bytes::ByteVec>>,
    /// It makes the metadata larger: where room is short it is refused (`NoSpace`) before anything else is. (Left out if not, as by older releases.)
    #[cbor(n(6), default, skip_if = "super::meta::is_false")]
    pub grows: bool,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CommitReply {
    /// The version it committed at.
    #[n(0)]
    pub version: u64,
}
