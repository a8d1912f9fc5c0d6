//! [`ChunkIo`]: operations on the chunks of a data id that need no open file. Meta uses it to remove data, to cut the
//! chunk at a new end and to learn a file's length from its chains; admin to look at chunks.

use crate::Client;
use crate::client::unbuilt;
use glowfs_types::wire::data::{ChunkSummary, RemoveDataReply};
use glowfs_types::{Capability, ChainId, ChunkId, DataId, Layout, Result, TargetId, VolumeId};
use std::rc::Rc;

/// What the chains hold of a data id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataExtent {
    /// The end of the last byte that exists: what the file's length is at least.
    pub len: u64,
    /// Chunks.
    pub chunks: u64,
    /// Bytes they hold.
    pub bytes: u64,
}

/// See the module.
#[derive(Clone)]
pub struct ChunkIo {
    client: Rc<Client>,
}

impl ChunkIo {
    pub(crate) fn new(client: Rc<Client>) -> Self {
        Self { client }
    }
    /// The client it works through.
    pub fn client(&self) -> &Rc<Client> {
        &self.client
    }
    /// Removes chunks of `data` from index `from` on, on every chain of the layout, about `limit` of them in this
    /// call; `more` says whether to call again. The capability needs the right to remove. May be repeated.
    pub async fn remove_data(
        &self,
        layout: &Layout,
        volume: VolumeId,
        data: DataId,
        from: u64,
        limit: u32,
        capability: &Capability,
    ) -> Result<RemoveDataReply> {
        let _ = (layout, volume, data, from, limit, capability);
        Err(unbuilt())
    }
    /// What the chains of the layout hold of `data`.
    pub async fn query_extent(&self, layout: &Layout, volume: VolumeId, data: DataId) -> Result<DataExtent> {
        let _ = (layout, volume, data);
        Err(unbuilt())
    }
    /// Sets the length of one chunk (a longer one is cut; a chunk that does not exist stays so). The capability needs the right
    /// to write. May be repeated.
    pub async fn truncate_chunk(
        &self,
        layout: &Layout,
        chunk: ChunkId,
        len: u32,
        capability: &Capability,
    ) -> Result<()> {
        let _ = (layout, chunk, len, capability);
        Err(unbuilt())
    }
    /// Makes everything acknowledged on the chains that can hold data of the layout durable.
    pub async fn flush(&self, layout: &Layout) -> Result<()> {
        let _ = layout;
        Err(unbuilt())
    }
    /// What one replica has of a chunk.
    pub async fn query_chunk(&self, chain: ChainId, target: TargetId, chunk: ChunkId) -> Result<Option<ChunkSummary>> {
        let _ = (chain, target, chunk);
        Err(unbuilt())
    }
}
