//! LIST_DATA: which data ids a chain holds chunks of, for the search for those that nobody owns.

use crate::node::Node;
use glowfs_net::Incoming;
use glowfs_types::wire::orphans::{ListData, ListDataReply};
use glowfs_types::{ChunkId, Result};

/// The greatest page.
const PAGE_MAX: usize = 4096;

impl Node {
    pub(crate) fn list_data(&self, incoming: &Incoming) -> Result<ListDataReply> {
        self.require_service(incoming)?;
        self.check_lease()?;
        let ask: ListData = incoming.msg()?;
        let (target, _) = self.member(ask.chain, ask.chain_version, "its head", |v| v.head)?;
        let limit = (ask.limit as usize).clamp(1, PAGE_MAX);
        let mut after = ask.after.map(|(volume, data)| ChunkId { volume, data, index: u64::MAX });
        let mut data = Vec::new();
        loop {
            let (page, _) = target.store.list(target.id, after, 1);
            let Some(next) = page.first() else { return Ok(ListDataReply { data, more: false }) };
            if data.len() == limit {
                return Ok(ListDataReply { data, more: true });
            }
            data.push((next.chunk.volume, next.chunk.data));
            after = Some(ChunkId { index: u64::MAX, ..next.chunk });
        }
    }
}
