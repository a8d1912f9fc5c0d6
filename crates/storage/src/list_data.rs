//! LIST_DATA: which data ids a chain holds chunks of, for the search for those that nobody owns.

use crate::node::Node;
use glowfs_net::Incoming;
use glowfs_types::Result;
use glowfs_types::wire::orphans::{ListData, ListDataReply};

/// The greatest page.
const PAGE_MAX: usize = 4096;

impl Node {
    pub(crate) async fn list_data(&self, incoming: &Incoming) -> Result<ListDataReply> {
        self.require_service(incoming)?;
        self.check_lease()?;
        let ask: ListData = incoming.msg()?;
        let (target, _) = self.member(ask.chain, ask.chain_version, "its head", |v| v.head)?;
        let limit = (ask.limit as usize).clamp(1, PAGE_MAX);
        let (data, more) = target.store.data_ids(target.id, ask.after, limit).await;
        self.check_answer()?;
        Ok(ListDataReply { data, more })
    }
}
