//! What a simulated cluster is made of.

/// What a cluster is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Managers.
    pub managers: usize,
    /// Metadata services; the first one hosts the engine.
    pub metas: usize,
    /// Storage nodes.
    pub storages: usize,
    /// Disks of each.
    pub disks: usize,
    /// Replicas of a chain.
    pub replicas: u32,
    /// Chains.
    pub chains: u32,
    /// Chains a file is striped over.
    pub stripe: u32,
    /// Bytes in a chunk of the cluster's files.
    pub chunk_bytes: u32,
    /// Clients.
    pub clients: usize,
    /// Operations that a storage node has in work, at most.
    pub inflight_ops: u64,
    /// Bytes of them, at most.
    pub inflight_bytes: u64,
    /// The time between two scrubs of a target, in seconds.
    pub scrub_interval_s: u64,
    /// How long a disk may do nothing before its node takes it out, in ms.
    pub disk_stuck_ms: u64,
    /// Chunks in one page of a resync, and channel records in one message of it. So few that small targets have several.
    pub sync_page: (u32, usize),
}

impl Shape {
    /// One of each.
    pub const SINGLE: Self = Self {
        managers: 1,
        metas: 1,
        storages: 1,
        disks: 1,
        replicas: 1,
        chains: 1,
        stripe: 1,
        chunk_bytes: super::harness::CHUNK_BYTES,
        clients: 1,
        inflight_ops: 1024,
        inflight_bytes: 64 << 20,
        scrub_interval_s: 7 * 24 * 3600,
        disk_stuck_ms: 30_000,
        sync_page: (3, 2),
    };
    /// Pages and messages of a resync as they are shipped.
    pub const SYNC_PAGE_SHIPPED: (u32, usize) =
        (glowfs_storage::SYNC_PAGE_MAX, glowfs_storage::CHANNELS_PER_MESSAGE);
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            managers: 3,
            metas: 2,
            storages: 5,
            disks: 1,
            replicas: 3,
            chains: 5,
            stripe: 5,
            chunk_bytes: Self::SINGLE.chunk_bytes,
            clients: 4,
            inflight_ops: Self::SINGLE.inflight_ops,
            inflight_bytes: Self::SINGLE.inflight_bytes,
            scrub_interval_s: 7 * 24 * 3600,
            disk_stuck_ms: Self::SINGLE.disk_stuck_ms,
            sync_page: Self::SINGLE.sync_page,
        }
    }
}
