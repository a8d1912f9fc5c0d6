//! Bounds that one part of the system keeps and another one relies upon.

/// The longest that a client tries one update, in ms, from its first try to the beginning of its last one (clients hold themselves to it).
pub const UPDATE_TRIED_MAX_MS: u64 = 15 * 60_000;
/// The longest that a client tries one request to the metadata services, in ms, from its first try to the end of its last one, unless a program
/// that embeds one says otherwise (and the metadata services then keep requests for as long).
pub const REQUEST_TRIED_MAX_MS: u64 = 60_000;
/// How long request ids are remembered at least, in ms: until whatever a client has sent has arrived (metadata services refuse a
/// configuration with less).
pub const REQUEST_KEEP_MIN_MS: u64 = REQUEST_TRIED_MAX_MS + 10_000;
/// The longest life of a capability, in ms (metadata services refuse a configuration with more).
pub const CAPABILITY_LIFE_MAX_MS: u64 = 10 * 60_000;
/// How far the clocks of two services may be apart, in ms: capabilities end by them where an older release is part of the cluster. Elsewhere they end
/// by the cluster's time.
pub const CLOCK_SKEW_MAX_MS: u64 = 5 * 60_000;
/// How long after its client first tried it an update may be taken by a storage node, in ms.
///
/// A client has the capability of an attempt in hand when it looks whether there is time for that attempt. So an attempt begins within
/// [`UPDATE_TRIED_MAX_MS`], and whatever then holds it up (a client that is stopped, a connection, a storage node), it is
/// taken before its capability ends, by the clock of the storage node, or not at all.
pub const UPDATE_LIFE_MAX_MS: u64 =
    UPDATE_TRIED_MAX_MS + CAPABILITY_LIFE_MAX_MS + CLOCK_SKEW_MAX_MS;

/// The time between heartbeats of a node, in ms. mgmtd refuses leases that are too short for it.
pub const NODE_HEARTBEAT_MS: u64 = 300;
