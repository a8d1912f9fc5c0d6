//! Sending updates to the successor.

use crate::node::Node;
use crate::repair::Wrong;
use crate::sending::OnItsWay;
use crate::target::{Payload, Target};
use glowfs_chunkstore::ReadOutcome;
use glowfs_craq::{Action, Event, Form, Update as Core};
use glowfs_net::{Bulk, Request};
use glowfs_rt::{Buf, Duration};
use glowfs_types::checksum::piece_checksums;
use glowfs_types::wire::data::{
    UPDATE_DAMAGED, UPDATE_FLUSH, UPDATE_FULL, UPDATE_VOUCHES, Update, UpdateHead, UpdateResult,
    update,
};
use glowfs_types::wire::method;
use glowfs_types::{ChunkId, ChunkVersion, Error, NodeId, Result, Status, TenantId};
use std::rc::Rc;
use zerocopy::FromBytes;

/// How long the successor has for one update, besides what its bytes take on their way (`sending.rs`); after that it is sent again (which it recognises).
const FORWARD_DEADLINE: Duration = Duration::from_secs(10);

/// How long, on average, before an update is sent again that the successor had no room for among its updates.
const OVERLOADED_PAUSE: Duration = Duration::from_millis(100);

/// So many times content that is to be forwarded may be found damaged: with the pauses between, about a second.
const UNREADABLE_MAX: u32 = 100;

/// The whole content of a chunk, read and verified.
pub(crate) struct Content {
    pub version: ChunkVersion,
    pub len: u32,
    pub chunk_bytes: u32,
    pub content_crc: u32,
    pub crcs: Vec<u32>,
    pub bytes: Buf,
    /// Some blocks are lost: `UPDATE_DAMAGED`.
    pub damaged: bool,
}

impl Content {
    /// The flag that goes with it.
    pub fn flag(&self) -> u8 {
        if self.damaged { UPDATE_DAMAGED } else { 0 }
    }
}

impl Target {
    pub(crate) fn forward(self: &Rc<Self>, action: Action) {
        let Action::Forward {
            id,
            target,
            node: to,
            chain_version,
            chunk,
            version,
            base,
            generation,
            form,
            update,
        } = action
        else {
            return;
        };
        let original = self.payloads.borrow().get(&(chunk, version)).cloned();
        self.launch(move |t| async move {
            let Some(node) = t.node.upgrade() else { return };
            let chain = t.view().map_or(0, |v| v.chain.0);
            let result = async {
                // Until it is answered. (What most forwards do not need is in boxes: this is a part of the task of each, and copied with it.)
                let mut _held = None;
                let mut payload = match (form, original) {
                    (Form::Original, Some(p)) => {
                        Payload { head: p.head, crcs: p.crcs.clone(), bytes: p.bytes.clone() }
                    }
                    (Form::Full { removed: true }, _) => {
                        let head =
                            UpdateHead { kind: update::REMOVE, ..t.full_head(&update, chunk) };
                        Payload { head, crcs: Vec::new(), bytes: Buf::from_vec(Vec::new()) }
                    }
                    _ => {
                        if t.view().and_then(|v| v.successor).is_some_and(|(.., syncing)| syncing) {
                            _held = Some(Box::pin(t.hold_whole(&node, chunk)).await);
                        }
                        if !t.can_go_on(chain_version) {
                            // That may have taken long; under the next version it is sent again.
                            return Err(Error::from(Status::WrongChainVersion));
                        }
                        let full = Box::pin(t.full(&node, chunk, version, &update)).await;
                        full.inspect_err(|e| t.unreadable(e, chunk, version))?
                    }
                };
                payload.head.chain = chain.into();
                payload.head.chain_version = chain_version.0.into();
                payload.head.target = target.0.into();
                payload.head.version = version.0.into();
                payload.head.base = base.0.into();
                payload.head.generation = generation.into();
                payload.head.flags &= !UPDATE_VOUCHES;
                if update.vouches {
                    payload.head.flags |= UPDATE_VOUCHES;
                }
                let way = node.sending.begin(to, payload.bytes.len());
                t.watch.sent(chain_version, (chunk, version), node.rt.now(), way.time);
                // It is the next one of the chain.
                let rank = t.view().map_or(0, |v| v.rank).saturating_add(1);
                send(&node, (to, rank), payload, way).await
            };
            let result: Result<UpdateResult> = result.await;
            match &result {
                Ok(_) => t.watch.taken(chain_version, (chunk, version)),
                Err(e) => {
                    tracing::debug!(target = %t.id, %chunk, %version, error = %e, "forward failed");
                }
            }
            let answer = result.map(|r| r.content_crc.get()).map_err(|e| e.status);
            if answer == Err(Status::Overloaded) {
                // What is sent again is sent whole, and read whole before it can be refused.
                let pause = OVERLOADED_PAUSE.as_nanos() as u64;
                let pause = pause / 2 + node.rt.random_below(pause);
                node.rt.sleep(Duration::from_nanos(pause)).await;
            }
            t.feed(Event::Answer(id, answer));
        });
    }

    /// What is to be forwarded is built on content that is damaged here. When it stays so, and there is another serving member, this
    /// target gives way: that one has the content.
    fn unreadable(self: &Rc<Self>, error: &Error, chunk: ChunkId, version: ChunkVersion) {
        if !matches!(error.status, Status::Corrupt | Status::DiskFailed) {
            return;
        }
        // An entry goes when its version is settled (`Action::Release`), so there are no more than pending versions.
        let times = {
            let mut damaged = self.damaged.borrow_mut();
            let times = damaged.entry((chunk, version)).or_default();
            *times = times.saturating_add(1);
            *times
        };
        let other = self.view().and_then(|v| v.successor).is_some_and(|(_, _, syncing)| !syncing);
        if times >= UNREADABLE_MAX && other {
            tracing::error!(target = %self.id, %chunk, %version, %error, "damaged content cannot be forwarded");
            self.feed(Event::Unreadable(chunk));
        }
    }

    fn full_head(&self, u: &Core, chunk: ChunkId) -> UpdateHead {
        let chunk_bytes =
            self.store.chunk(self.id, chunk).map_or(4096, |s| s.chunk_bytes.max(4096));
        let mut head = UpdateHead {
            kind: update::REPLACE,
            flags: UPDATE_FULL | if u.flush { UPDATE_FLUSH } else { 0 },
            chunk: chunk.into(),
            chunk_bytes: chunk_bytes.into(),
            ..UpdateHead::default()
        };
        if let Some(o) = &u.origin {
            head.client = o.client.0.into();
            head.channel = o.channel.0.into();
            head.seq = o.seq.0.into();
        }
        head
    }

    /// The update as a replacement of the whole chunk.
    async fn full(
        self: &Rc<Self>,
        node: &Node,
        chunk: ChunkId,
        version: ChunkVersion,
        update: &Core,
    ) -> Result<Payload> {
        let content = match self.content_or_rest(node, chunk, Some(version)).await {
            // It is committed here, and later ones are as well.
            Err(e) if e.status == Status::NotFound => {
                self.content_or_rest(node, chunk, None).await?
            }
            other => other?,
        };
        if content.version < version {
            // Older content under this version would be an update that the successor says it has, and has not.
            let e = format!("chunk {chunk} is at version {} here", content.version);
            return Err(Error::new(Status::Pending, e));
        }
        let full = self.full_head(update, chunk);
        let head = UpdateHead {
            flags: full.flags | content.flag(),
            len: content.len.into(),
            chunk_bytes: content.chunk_bytes.into(),
            content_crc: content.content_crc.into(),
            ..full
        };
        Ok(Payload { head, crcs: content.crcs, bytes: content.bytes })
    }

    /// Reads the whole chunk: as of a pending version, or committed.
    pub(crate) async fn content(
        self: &Rc<Self>,
        node: &Node,
        chunk: ChunkId,
        version: Option<ChunkVersion>,
    ) -> Result<Content> {
        let gone = || Error::new(Status::NotFound, format!("chunk {chunk} is not there"));
        let state = self.store.chunk(self.id, chunk).ok_or_else(gone)?;
        let pending = version.and_then(|v| {
            let mut all = self.store.pending(self.id, chunk).into_iter();
            // Its own size: the committed state may be a tombstone, which knows nothing of it.
            all.find(|p| p.version == v).map(|p| (p.len, p.chunk_bytes))
        });
        let (len, chunk_bytes) = match pending {
            Some(found) => found,
            None if version.is_none_or(|v| v == state.committed) && state.exists() => {
                (state.len, state.chunk_bytes)
            }
            None => return Err(gone()),
        };
        let buf = node.rt.alloc(len as usize);
        let (outcome, mut buf) = match version {
            Some(v) => self.store.read_pending(self.id, chunk, v, 0, buf).await,
            None => self.store.read(self.id, chunk, 0, buf).await,
        };
        let ReadOutcome { len, version, .. } = outcome.inspect_err(|e| {
            if matches!(e.status, Status::Corrupt | Status::DiskFailed) {
                self.repair_soon(chunk, Wrong::Damaged);
            }
        })?;
        if version.0 == 0 {
            return Err(gone());
        }
        buf.truncate(len as usize);
        let bytes = buf.freeze();
        let mut crcs = Vec::new();
        piece_checksums(0, &bytes, &mut crcs);
        let content_crc = state.content_crc;
        Ok(Content { version, len, chunk_bytes, content_crc, crcs, bytes, damaged: false })
    }

    /// The same for the successor, whatever became of the content here: what is damaged is mended first. What nobody has any more is handed
    /// on to a syncing one as it is: the chain must not lose its redundancy for a block that it lost.
    pub(crate) async fn content_or_rest(
        self: &Rc<Self>,
        node: &Node,
        chunk: ChunkId,
        version: Option<ChunkVersion>,
    ) -> Result<Content> {
        let error = match self.content(node, chunk, version).await {
            Err(e) if matches!(e.status, Status::Corrupt | Status::DiskFailed) => e,
            other => return other,
        };
        let mend = self.mend(node, chunk).await?;
        if mend.stuck.is_some() {
            return Err(error);
        }
        if mend.lost.is_empty() {
            return self.content(node, chunk, version).await;
        }
        let Some((successor, _, true)) = self.view().and_then(|v| v.successor) else {
            return Err(error);
        };
        if mend.silent.contains(&successor) {
            // It may be the one that has it: it must not be given less.
            return Err(Error::new(Status::Pending, format!("target {successor} is silent")));
        }
        let state = self.store.chunk(self.id, chunk).ok_or(error)?;
        let pending = version
            .and_then(|v| self.store.pending(self.id, chunk).into_iter().find(|p| p.version == v));
        let rest = self.store.read_as_is(self.id, chunk, version).await?;
        if rest.version.0 == 0 {
            return Err(Error::new(Status::NotFound, format!("chunk {chunk} is not there")));
        }
        if rest.damaged > 0 {
            node.metrics.lost_blocks.add(u64::from(rest.damaged));
            tracing::error!(
                target = %self.id, %chunk, version = %rest.version, blocks = rest.damaged,
                "nobody has these blocks: reads of them fail; handed on as damaged"
            );
        }
        Ok(Content {
            version: rest.version,
            len: rest.bytes.len() as u32,
            chunk_bytes: pending.map_or(state.chunk_bytes, |p| p.chunk_bytes),
            content_crc: state.content_crc,
            crcs: rest.crcs,
            bytes: rest.bytes.freeze(),
            damaged: rest.damaged > 0,
        })
    }
}

/// Sends one FORWARD, by the connection for its rank there (0: it is transferred by a resync), and waits for its answer.
pub(crate) async fn send(
    node: &Node,
    (to, rank): (NodeId, usize),
    payload: Payload,
    way: OnItsWay,
) -> Result<UpdateResult> {
    node.metrics.forwards.inc();
    let (began, time) = (node.rt.turn_began(), FORWARD_DEADLINE + way.time);
    let conn = match node.lane_now(to, rank) {
        Some(conn) => conn,
        None => {
            let late = |_| {
                let e = format!("storage node {to} takes no connection for a forward");
                Error::new(Status::TimedOut, e)
            };
            let made = Box::pin(node.rt.timeout(time, node.connect_lane(to, rank)));
            made.await.map_err(late)??
        }
    };
    let bulk = if payload.bytes.is_empty() { Bulk::None } else { Bulk::Send(vec![payload.bytes]) };
    let request = Request {
        method: method::FORWARD,
        body: Update::encode(&payload.head, &payload.crcs),
        bulk,
        tenant: TenantId::default(),
        // Of both together: a call ends by itself when its time is up.
        deadline: time.saturating_sub(node.rt.turn_began().since(began)),
    };
    let response = conn.call(request).await?;
    way.taken(node.rt.turn_began());
    let (result, _) = UpdateResult::read_from_prefix(&response.body)
        .map_err(|_| Error::new(Status::BadMessage, "the answer to a forward is too short"))?;
    Ok(result)
}
