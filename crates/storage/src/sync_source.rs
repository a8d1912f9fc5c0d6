//! Bringing the syncing successor up to date: the loop around `glowfs_craq::resync`.
//!
//! It belongs to one chain version and ends with it; the next version starts a new one from the beginning, which
//! finds what was sent already equal.

use crate::forward::send;
use crate::node::Node;
use crate::pace::GROUP_BYTES;
use crate::sync_progress::Progress;
use crate::target::{Payload, Target};
use glowfs_craq::View;
use glowfs_craq::resync::{Transfer, compare};
use glowfs_rt::sync::{Either, join_all, select};
use glowfs_rt::{Buf, Duration};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::data::{
    SyncDone, SyncList, SyncListReply, UPDATE_FULL, UPDATE_SYNC, UpdateHead, update,
};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{ChunkId, Error, NodeId, Result, Status, TargetId};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

/// The pause before a resync that failed begins again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The pause before one transfer is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How often one transfer is tried.
const TRANSFER_TRIES: u32 = 50;
/// How long one control message may take.
const CALL_DEADLINE: Duration = Duration::from_secs(30);

struct Source {
    node: Rc<Node>,
    target: Rc<Target>,
    view: View,
    to: NodeId,
    successor: TargetId,
    progress: Rc<Progress>,
}

impl Target {
    /// Starts a resync if the view has a syncing successor and none runs for it.
    pub(crate) fn sync_if_due(self: &Rc<Self>, node: &Rc<Node>) {
        let Some(view) = self.view().filter(|v| v.serving()) else { return };
        let Some((successor, to, true)) = view.successor else { return };
        if self.syncing.replace(view.version) == view.version {
            return;
        }
        let progress = node.resyncs.begin(&node.rt, view.chain, self.id, successor);
        let source =
            Source { node: node.clone(), target: self.clone(), view, to, successor, progress };
        node.rt.spawn_detached(source.run());
    }
}

impl Source {
    /// Whether it is still wanted.
    fn current(&self) -> bool {
        self.target.can_go_on(self.view.version) && !self.node.stopping.get()
    }

    async fn run(self) {
        let wanted = || self.node.tuning.get().sync_targets;
        let _turn = self.node.sync_turns.take(wanted).await;
        let running = &self.node.metrics.sync_running;
        running.add(1);
        self.progress.running.set(true);
        let (from, to) = (self.target.id, self.successor);
        while self.current() {
            // A disk that hangs would keep the turn for ever.
            let attempt = match select(pin!(self.attempt()), pin!(self.target.store.failed())).await
            {
                Either::Left(result) => result,
                Either::Right(e) => Err(e),
            };
            match attempt {
                Ok(sent) => {
                    tracing::info!(source = %from, target = %to, chain = %self.view.chain, chunks = sent, "resync sent");
                    break;
                }
                Err(e) if self.current() => {
                    self.target.watch.sync_failed(self.view.version, self.node.rt.now());
                    tracing::debug!(source = %from, target = %to, error = %e, "resync begins again");
                    self.node.rt.sleep(RETRY_PAUSE).await;
                }
                Err(_) => break,
            }
        }
        running.add(-1);
        self.node.resyncs.end(&self.progress);
    }

    async fn attempt(&self) -> Result<u64> {
        let (mut after, mut sent) = (None, 0);
        // Why the receiver takes no contents, if so. What is to be removed there may come behind them, and makes the room: it is sent all the
        // same, and the next attempt finds it.
        let mut short: Option<Error> = None;
        self.progress.compared.set(0);
        self.progress.total.set(self.target.store.chunk_count(self.target.id));
        let limit = self.node.config.sync_page_chunks;
        loop {
            self.check()?;
            let ask =
                SyncList { chain: self.view.chain, chain_version: self.view.version, after, limit };
            let work = self.node.work();
            let theirs: SyncListReply = self.call(method::SYNC_LIST, &ask).await?;
            // Ours is read after theirs: what changed in between only makes a transfer that the receiver finds superseded.
            let (ours, our_more) =
                self.target.store.list(self.target.id, after, limit as usize).await;
            let page = compare(&theirs.chunks, theirs.more, &ours, our_more);
            self.node.metrics.sync_equal.add(page.equal);
            count(&self.progress.compared, page.equal);
            self.node.rt.sleep(self.node.rest_after(work)).await;
            let mut transfers = page.transfers.as_slice();
            while !transfers.is_empty() {
                self.check()?;
                let (at_once, bytes) = self.group(transfers, short.is_some());
                let (group, rest) = transfers.split_at(at_once);
                transfers = rest;
                // Waited for here: it is neither work nor a rest.
                self.node.pace_bandwidth(bytes).await;
                let work = self.node.work();
                let wanted = group.iter().filter(|t| short.is_none() || removes(t));
                for result in join_all(wanted.map(|t| self.transfer(*t))).await {
                    match result {
                        Err(e) if e.status == Status::NoSpace => {
                            short = short.or(Some(e));
                            continue;
                        }
                        other => other?,
                    }
                    self.target.watch.sync_moved(self.view.version);
                    sent += 1;
                    count(&self.progress.compared, 1);
                    count(&self.progress.sent, 1);
                }
                if short.is_some() {
                    // Told here, not behind the last page: only a removal is progress now, and others wait for this one's turn.
                    self.target.watch.sync_failed(self.view.version, self.node.rt.now());
                }
                self.node.rt.sleep(self.node.rest_after(work)).await;
            }
            if page.next.is_none() {
                break;
            }
            after = page.next;
        }
        if let Some(e) = short {
            return Err(e);
        }
        self.finish().await?;
        Ok(sent)
    }

    /// How many of these are made at once, and the bytes of it; of removals only, if the receiver has no room.
    fn group(&self, transfers: &[Transfer], removals: bool) -> (usize, u64) {
        let tuning = self.node.tuning.get();
        let (few, most) = (self.node.at_once(tuning.sync_chunks), tuning.sync_chunks);
        // No more at once than may be sent in a second, but for one chunk.
        let burst = Some(tuning.sync_bytes_per_s).filter(|rate| *rate > 0).unwrap_or(u64::MAX);
        let most = most.min(transfers.len());
        let mut bytes = 0u64;
        for (i, t) in transfers[..most].iter().enumerate() {
            let more: u64 = match t {
                Transfer::Replace(chunk) if !removals => {
                    self.target.store.chunk(self.target.id, *chunk).map_or(0, |s| s.len.into())
                }
                _ => 0,
            };
            let bound = if i >= few { GROUP_BYTES.min(burst) } else { burst };
            if i > 0 && bytes + more > bound {
                return (i, bytes);
            }
            bytes += more;
        }
        (most, bytes)
    }

    async fn finish(&self) -> Result<()> {
        while !self.target.replica.borrow().may_finish_sync() {
            self.check()?;
            self.node.rt.sleep(BUSY_PAUSE).await;
        }
        let mut records = self.target.replica.borrow().channel_records();
        if planted(Mutant::DedupeNotPersisted) {
            records.clear();
        }
        let mut parts = records.chunks(self.node.config.sync_channels).peekable();
        let mut done = SyncDone {
            chain: self.view.chain,
            chain_version: self.view.version,
            channels: Vec::new(),
            last: false,
        };
        while let Some(part) = parts.next() {
            done.channels = part.to_vec();
            done.last = parts.peek().is_none();
            self.check()?;
            let _: Empty = self.call(method::SYNC_DONE, &done).await?;
        }
        if !done.last {
            done.last = true;
            let _: Empty = self.call(method::SYNC_DONE, &done).await?;
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.node.check_lease()?;
        if self.current() {
            return Ok(());
        }
        Err(Error::new(Status::WrongChainVersion, "the chain changed"))
    }

    async fn call<Q, R>(&self, method: u16, message: &Q) -> Result<R>
    where
        Q: minicbor::Encode<()>,
        R: for<'b> minicbor::Decode<'b, ()>,
    {
        let work = async {
            let conn = self.node.connect(self.to).await?;
            conn.call_msg(method, message, CALL_DEADLINE).await
        };
        let late = |_| Error::new(Status::TimedOut, "the syncing target did not answer");
        self.node.rt.timeout(CALL_DEADLINE, work).await.map_err(late)?
    }

    async fn transfer(&self, transfer: Transfer) -> Result<()> {
        let mut last = Error::from(Status::Overloaded);
        for _ in 0..TRANSFER_TRIES {
            self.check()?;
            match self.try_transfer(transfer).await {
                Ok(()) => {
                    self.node.metrics.sync_chunks.inc();
                    return Ok(());
                }
                Err(e) if matches!(e.status, Status::Overloaded | Status::Pending) => {
                    last = e;
                    self.node.rt.sleep(BUSY_PAUSE).await;
                }
                Err(e) => return Err(e),
            }
        }
        Err(last)
    }

    async fn try_transfer(&self, transfer: Transfer) -> Result<()> {
        let chunk = match transfer {
            Transfer::Replace(chunk) | Transfer::Remove(chunk) => chunk,
        };
        let (covered, active) = {
            let replica = self.target.replica.borrow();
            (replica.is_covered(chunk), replica.is_active(chunk))
        };
        if covered {
            return Ok(());
        }
        if active {
            return Err(Error::new(
                Status::Pending,
                format!("chunk {chunk} travels through the chain"),
            ));
        }
        let state = self.target.store.chunk(self.target.id, chunk);
        let payload = match state.filter(|s| s.exists()) {
            Some(_) => self.replace(chunk).await?,
            // Gone here, by now or before: a tombstone knows the version.
            None => {
                let version = state.map_or(0, |s| s.committed.0);
                let head =
                    UpdateHead { version: version.into(), ..self.head(chunk, update::REMOVE) };
                Payload { head, crcs: Vec::new(), bytes: Buf::from_vec(Vec::new()) }
            }
        };
        let bytes = payload.bytes.len() as u64;
        let way = self.node.sending.begin(self.to, payload.bytes.len());
        send(&self.node, (self.to, 0), payload, way).await?;
        self.node.metrics.sync_bytes.add(bytes);
        count(&self.progress.bytes, bytes);
        Ok(())
    }

    fn head(&self, chunk: ChunkId, kind: u8) -> UpdateHead {
        UpdateHead {
            kind,
            flags: UPDATE_FULL | UPDATE_SYNC,
            chunk: chunk.into(),
            chain: self.view.chain.0.into(),
            chain_version: self.view.version.0.into(),
            target: self.successor.0.into(),
            chunk_bytes: 4096.into(),
            ..UpdateHead::default()
        }
    }

    async fn replace(&self, chunk: ChunkId) -> Result<Payload> {
        let content = self.target.content_or_rest(&self.node, chunk, None).await?;
        let head = self.head(chunk, update::REPLACE);
        let head = UpdateHead {
            flags: head.flags | content.flag(),
            len: content.len.into(),
            chunk_bytes: content.chunk_bytes.into(),
            version: content.version.0.into(),
            ..head
        };
        Ok(Payload { head, crcs: content.crcs, bytes: content.bytes })
    }
}

fn removes(transfer: &Transfer) -> bool {
    matches!(transfer, Transfer::Remove(_))
}

fn count(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}
