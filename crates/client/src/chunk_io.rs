//! [`ChunkIo`]: operations on the chunks of a data id that need no open file. Meta uses it to remove data, to cut the
//! chunk at a new end and to learn a file's length from its chains; admin to look at chunks.

use crate::Client;
use crate::file::Rights;
use crate::flush::{Of, flush};
use crate::heads::{head_msg, layout_chains, on_chains};
use crate::routes;
use crate::sparse::allocated_signed;
use crate::write::{Change, apply};
use glowfs_rt::Buf;
use glowfs_types::checksum::piece_checksums;
use glowfs_types::wire::data::{
    ChunkSummary, QueryChunk, QueryChunkReply, QueryExtent, QueryExtentReply, RemoveData,
    RemoveDataReply, update,
};
use glowfs_types::wire::orphans::{ListData, ListDataReply};
use glowfs_types::wire::{encode, method};
use glowfs_types::{
    Capability, ChainId, ChunkId, DataId, Durability, Error, Layout, NodeId, Result, Status,
    TargetId, VolumeId,
};
use std::rc::Rc;
use zerocopy::IntoBytes;

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
        let chains = layout_chains(&self.client.core, layout).await?;
        self.remove_on(&chains, ChunkId { volume, data, index: from }, limit, capability).await
    }
    /// The same from all chains there are, whatever layout the data has or had.
    pub async fn remove_everywhere(
        &self,
        volume: VolumeId,
        data: DataId,
        limit: u32,
        capability: &Capability,
    ) -> Result<RemoveDataReply> {
        let from = ChunkId { volume, data, index: 0 };
        self.remove_on(&self.all_chains(), from, limit, capability).await
    }
    fn all_chains(&self) -> Vec<ChainId> {
        self.client.routing().chains.keys().copied().collect()
    }
    async fn remove_on(
        &self,
        chains: &[ChainId],
        from: ChunkId,
        limit: u32,
        capability: &Capability,
    ) -> Result<RemoveDataReply> {
        let core = &self.client.core;
        let each = (limit / chains.len().max(1) as u32).max(1);
        let replies: Vec<RemoveDataReply> = on_chains(chains, |chain| {
            head_msg(
                core,
                chain,
                method::REMOVE_DATA,
                "removal of data",
                move |_, chain_version| {
                    encode(&RemoveData {
                        from,
                        chain,
                        chain_version,
                        limit: each,
                        capability: capability.as_bytes().to_vec(),
                    })
                },
            )
        })
        .await
        .map_err(|e| e.context(format_args!("data {} of volume {}", from.data, from.volume)))?;
        Ok(RemoveDataReply {
            removed: replies.iter().fold(0, |sum, r| sum.saturating_add(r.removed)),
            more: replies.iter().any(|r| r.more),
        })
    }
    /// One page of the data ids that a chain holds chunks of.
    pub async fn list_data(
        &self,
        chain: ChainId,
        after: Option<(VolumeId, DataId)>,
        limit: u32,
    ) -> Result<ListDataReply> {
        let core = &self.client.core;
        head_msg(core, chain, method::LIST_DATA, "list of data", |_, chain_version| {
            encode(&ListData { chain, chain_version, after, limit })
        })
        .await
    }
    /// Chunks and bytes that all chains there are hold of `data`.
    pub async fn count_everywhere(&self, volume: VolumeId, data: DataId) -> Result<(u64, u64)> {
        let replies = self.extents_on(&self.all_chains(), volume, data).await?;
        Ok(replies.iter().fold((0, 0), |(chunks, bytes), r| (chunks + r.chunks, bytes + r.bytes)))
    }
    /// Whether a chain of the layout has nobody who serves, as far as is known now: what is asked of all of them would wait.
    pub fn is_away(&self, layout: &Layout) -> bool {
        let info = self.client.routing();
        self.chains(layout).iter().any(|chain| routes::head(&info, *chain).is_err())
    }
    /// The chains of the layout, as far as is known now.
    pub fn chains(&self, layout: &Layout) -> Vec<ChainId> {
        routes::chains_of(&self.client.routing(), layout).unwrap_or_default()
    }
    /// The node that takes updates of its first chunk, as far as is known now. An error: nobody does.
    pub fn first_head(&self, layout: &Layout) -> Result<NodeId> {
        let info = self.client.routing();
        routes::chain_of(&info, layout, 0)
            .and_then(|chain| routes::head(&info, chain))
            .map(|place| place.node)
    }
    /// What the chains of the layout hold of `data`.
    pub async fn query_extent(
        &self,
        layout: &Layout,
        volume: VolumeId,
        data: DataId,
    ) -> Result<DataExtent> {
        let chains = layout_chains(&self.client.core, layout).await?;
        let mut extent = DataExtent::default();
        for r in self.extents_on(&chains, volume, data).await? {
            extent.chunks += r.chunks;
            extent.bytes += r.bytes;
            if let Some((index, len)) = r.last {
                let end = index
                    .saturating_mul(u64::from(layout.chunk_bytes))
                    .saturating_add(u64::from(len));
                extent.len = extent.len.max(end);
            }
        }
        Ok(extent)
    }
    async fn extents_on(
        &self,
        chains: &[ChainId],
        volume: VolumeId,
        data: DataId,
    ) -> Result<Vec<QueryExtentReply>> {
        let core = &self.client.core;
        let chunk = ChunkId { volume, data, index: 0 };
        on_chains(chains, |chain| {
            head_msg(
                core,
                chain,
                method::QUERY_EXTENT,
                "query of an extent",
                move |_, chain_version| encode(&QueryExtent { data: chunk, chain, chain_version }),
            )
        })
        .await
        .map_err(|e| e.context(format_args!("data {data} of volume {volume}")))
    }
    /// Bytes of the blocks that exist of the data of a capability.
    pub async fn allocated(&self, layout: &Layout, capability: &Capability) -> Result<u64> {
        allocated_signed(&self.client.core, capability, layout).await
    }
    /// Sets the length of one chunk (a longer one is cut). The capability needs the right to write. May be repeated.
    pub async fn truncate_chunk(
        &self,
        layout: &Layout,
        chunk: ChunkId,
        len: u32,
        capability: &Capability,
    ) -> Result<()> {
        if capability.data.get() != chunk.data.0 {
            return Err(Error::new(
                Status::BadCapability,
                format!("the capability is not for chunk {chunk}"),
            ));
        }
        let change = Change {
            kind: update::TRUNCATE,
            layout: *layout,
            volume: chunk.volume,
            index: chunk.index,
            offset: 0,
            len,
            payload: None,
            crcs: Vec::new(),
            source: None,
            under: None,
        };
        apply(&self.client.core, &Rights::Signed(*capability), &change).await.map(|_| ())
    }
    /// Writes the beginning of a chunk; it is on disk when this returns. The capability needs the right to write.
    pub async fn write_durably(
        &self,
        layout: &Layout,
        chunk: ChunkId,
        payload: Buf,
        capability: &Capability,
    ) -> Result<()> {
        let mut crcs = Vec::new();
        piece_checksums(0, &payload, &mut crcs);
        let change = Change {
            kind: update::WRITE,
            layout: Layout { durability: Durability::Disk, ..*layout },
            volume: chunk.volume,
            index: chunk.index,
            offset: 0,
            len: payload.len() as u32,
            payload: Some(payload),
            crcs,
            source: None,
            under: None,
        };
        apply(&self.client.core, &Rights::Signed(*capability), &change).await.map(|_| ())
    }
    /// Makes everything acknowledged on the chains that can hold data of the layout durable.
    pub async fn flush(&self, layout: &Layout) -> Result<()> {
        flush(&self.client.core, layout, Of::All).await.map(drop)
    }
    /// What one replica has of a chunk.
    pub async fn query_chunk(
        &self,
        chain: ChainId,
        target: TargetId,
        chunk: ChunkId,
    ) -> Result<Option<ChunkSummary>> {
        let info = self.client.routing();
        let node = info
            .targets
            .get(&target)
            .map(|t| t.node)
            .or_else(|| {
                let members =
                    info.chains.get(&chain).map(|c| c.members.as_slice()).unwrap_or_default();
                members.iter().find(|m| m.target == target).map(|m| m.node)
            })
            .ok_or_else(|| {
                Error::new(
                    Status::NoTarget,
                    format!("target {target} is not in routing info version {}", info.version),
                )
            })?;
        let query = QueryChunk { chunk, chain, target };
        let reply: QueryChunkReply =
            self.client.node_call(node, method::QUERY_CHUNK, &query).await?;
        Ok(reply.chunk)
    }
}
