//! Being brought up to date: SYNC_LIST and SYNC_DONE of the predecessor.

use crate::config::SYNC_PAGE_MAX;
use crate::node::Node;
use crate::target::{Asked, Payload, Waiting};
use glowfs_craq::Event;
use glowfs_net::Incoming;
use glowfs_rt::Buf;
use glowfs_rt::sync::oneshot;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::Empty;
use glowfs_types::wire::data::{SyncDone, SyncList, SyncListReply, UpdateHead};
use glowfs_types::{Result, Status};
use std::rc::Rc;

impl Node {
    pub(crate) async fn sync_list(&self, incoming: &Incoming) -> Result<SyncListReply> {
        self.require_service(incoming)?;
        self.check_lease()?;
        let ask: SyncList = incoming.msg()?;
        let (target, _) = self.member(
            ask.chain,
            ask.chain_version,
            "syncing under an active chain version",
            |v| v.receiving(),
        )?;
        let limit = ask.limit.clamp(1, SYNC_PAGE_MAX) as usize;
        let (chunks, more) = target.store.list(target.id, ask.after, limit).await;
        Ok(SyncListReply { chunks, more })
    }

    /// Keeps the channel records; with the last message also flushes and reports the target up to date.
    pub(crate) async fn sync_done(self: &Rc<Self>, incoming: &Incoming) -> Result<Empty> {
        self.require_service(incoming)?;
        self.check_lease()?;
        let ask: SyncDone = incoming.msg()?;
        let (target, _) = self.member(
            ask.chain,
            ask.chain_version,
            "syncing under an active chain version",
            |v| v.receiving(),
        )?;
        // Known before they are stored: what begins meanwhile and forgets all channels has to forget these, too.
        if !planted(Mutant::ChannelsNotTold) {
            target.feed(Event::Channels(ask.chain_version, ask.channels.clone()));
        }
        target.store.put_channels(target.id, ask.channels).await?;
        if !ask.last {
            return Ok(Empty {});
        }
        if !planted(Mutant::SyncWithoutFlush) {
            target.store.flush(target.id).await?;
        }
        let (done, answered) = oneshot();
        let payload = Payload {
            head: UpdateHead::default(),
            crcs: Vec::new(),
            bytes: Buf::from_vec(Vec::new()),
        };
        let asked = Asked { waiting: Waiting::Local(done), payload: Rc::new(payload) };
        target.ask(asked, |ticket| Event::SyncDone(ticket, ask.chain_version));
        let result = answered.await.unwrap_or(Err(Status::ShuttingDown));
        result.map(|_| Empty {}).map_err(|s| target.refusal(s))
    }
}
