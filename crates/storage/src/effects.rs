//! What the core asks for, done: stages, commits, answers, pauses.

use crate::repair::Wrong;
use crate::target::{Payload, Target, Waiting};
use glowfs_chunkstore::{StageKind, StageRequest};
use glowfs_craq::{Action, Done, Event, Onto, Ticket, TimerId, View};
use glowfs_net::Reply;
use glowfs_rt::Duration;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::data::{
    ChannelRecord, UPDATE_DAMAGED, UPDATE_FLUSH, UPDATE_SYNC, UpdateResult,
};
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion, ClientId, Error, Result, Status};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use zerocopy::IntoBytes;

/// The pause before an update is sent to a successor again.
const RESEND_PAUSE: Duration = Duration::from_millis(10);
/// The pause before a store is asked again whose queue was full: by then it has written much of it.
const STORE_PAUSE: Duration = Duration::from_millis(100);
/// The pause before a chain version that could not be persisted is tried again.
const ADOPT_PAUSE: Duration = Duration::from_millis(200);
/// The pause before an update is staged again that was refused for want of room and must not be taken back, or for want of a place in the store's queue.
const RESTAGE_PAUSE: Duration = Duration::from_millis(500);

impl Target {
    pub(crate) fn perform(self: &Rc<Self>, action: Action) {
        match action {
            Action::Adopt(version) => self.adopt(version),
            Action::Report => self.changed(),
            Action::Stage { ticket, chunk, version, commit, onto } => {
                self.stage(ticket, chunk, version, commit, onto);
            }
            Action::StageAgain { chunk, version, onto, pause } => {
                self.stage_again(chunk, version, onto, pause);
            }
            Action::Commit(chunk, version) => self.launch(move |t| async move {
                let result = t.store.commit(t.id, chunk, version).await;
                t.feed(Event::Committed(chunk, version, t.outcome("commit", result)));
            }),
            Action::Discard(chunk, version) => self.launch(move |t| async move {
                let result = t.store.discard(t.id, chunk, version).await;
                t.feed(Event::Discarded(chunk, t.outcome("discard", result)));
            }),
            Action::Forward { .. } => self.forward(action),
            Action::Release(chunk, version) => {
                self.payloads.borrow_mut().remove(&(chunk, version));
                self.damaged.borrow_mut().remove(&(chunk, version));
                self.watch.settled((chunk, version));
            }
            Action::Reply(ticket, result) => self.reply(ticket, result),
            Action::ReadNow(ticket) => self.wake_read(ticket, Ok(())),
            Action::ReadRefused(ticket, status) => self.wake_read(ticket, Err(status)),
            Action::AskPredecessor(chunk, version) => self.ask_for(chunk, version),
            Action::Refresh => {
                if let Some(node) = self.node.upgrade() {
                    node.refresh();
                }
            }
            Action::Pause(timer) => self.pause(timer, RESEND_PAUSE),
            Action::Rest(timer) => self.pause(timer, STORE_PAUSE),
            Action::Failed(status) => {
                tracing::error!(target = %self.id, %status, "target failed and goes offline");
                self.payloads.borrow_mut().clear();
                // Where its store has failed as well, that ends at once.
                if matches!(status, Status::NoSpace | Status::Corrupt | Status::DiskFailed)
                    && let Some(node) = self.node.upgrade()
                {
                    node.rt.spawn_detached(node.clone().revive(self.clone()));
                }
            }
            Action::Held(ticket, result) => {
                if let Some(waiting) = self.holds.borrow_mut().remove(&ticket) {
                    let _ = waiting.send(result);
                }
            }
            Action::Forget(clients, channels) => {
                self.forgets.set(true);
                self.launch(move |t| async move {
                    // Kept if the log does not take it: then it is forgotten after the next start.
                    if let Err(e) = t.store.forget_channels(t.id, clients, channels).await {
                        tracing::debug!(target = %t.id, error = %e, "channels stay in the store");
                    }
                    t.forgets.set(false);
                });
            }
            Action::ForgetChannels(clients) => self.launch(move |t| async move {
                if t.forget_channels(clients).await {
                    t.feed(Event::Forgotten);
                }
            }),
            Action::Diverged(chunk, version) => {
                tracing::error!(target = %self.id, %chunk, %version, "the successor's content differs at the same version");
                if let Some(node) = self.node.upgrade() {
                    node.metrics.diverged.inc();
                }
                self.repair_soon(chunk, Wrong::Differs);
            }
        }
    }

    /// Begins something at once (so that calls reach the store and the connection in the order of the actions) and lets the
    /// executor finish it.
    pub(crate) fn launch<F: Future<Output = ()> + 'static>(
        self: &Rc<Self>,
        work: impl FnOnce(Rc<Self>) -> F,
    ) {
        let Some(node) = self.node.upgrade() else { return };
        let mut work: Pin<Box<dyn Future<Output = ()>>> = Box::pin(work(self.clone()));
        // The executor polls it again with a real waker before it can miss anything.
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            node.rt.spawn_detached(work);
        }
    }

    fn pause(self: &Rc<Self>, timer: TimerId, time: Duration) {
        self.launch(move |t| async move {
            if let Some(node) = t.node.upgrade() {
                node.rt.sleep(time).await;
            }
            t.feed(Event::Timer(timer));
        });
    }

    /// The status of a store operation for the core; the message goes to the log.
    pub(crate) fn outcome(&self, what: &str, result: Result<()>) -> Result<(), Status> {
        result.map_err(|e| {
            if e.status == Status::Overloaded {
                // It is asked again. Thousands wait so at a time.
                tracing::debug!(target = %self.id, error = %e, "{what} has to wait");
            } else {
                tracing::warn!(target = %self.id, error = %e, "{what} failed");
            }
            e.status
        })
    }

    fn adopt(self: &Rc<Self>, version: ChainVersion) {
        let becomes = self.replica.borrow().adopting().copied();
        let is = |f: fn(&View) -> bool| becomes.as_ref().is_some_and(f);
        let (syncs, serves) = (is(View::syncing), is(View::serving));
        self.launch(move |t| async move {
            // Until it is there nothing is done under it; unless the disk failed (which is reported), it can be tried again.
            while let Err(e) = t.persist(version, syncs, serves).await {
                tracing::error!(target = %t.id, error = %e, "chain version could not be persisted");
                let Some(node) = t.node.upgrade().filter(|_| t.store.failure().is_none()) else {
                    return;
                };
                node.rt.sleep(ADOPT_PAUSE).await;
                if t.replica.borrow().adopting().is_none_or(|v| v.version != version) {
                    return;
                }
            }
            t.feed(Event::Adopted(version));
        });
    }

    async fn persist(&self, version: ChainVersion, syncs: bool, serves: bool) -> Result<()> {
        if syncs {
            // Tombstones from before may be of versions that the chain does not know (a resync does not list them), so that
            // it would give them again and we would take those updates for old ones.
            self.store.purge_tombstones(self.id).await?;
        }
        self.save(|meta| meta.adopt(version, serves)).await
    }

    /// Until they are forgotten nothing comes to this target; unless the disk failed (which is reported), it can be tried again.
    async fn forget_channels(&self, clients: BTreeSet<ClientId>) -> bool {
        while let Err(e) = self.store.forget_clients(self.id, clients.iter().copied()).await {
            tracing::warn!(target = %self.id, error = %e, "channels could not be forgotten");
            // It was dismissed, or all ends.
            let over = matches!(e.status, Status::NoTarget | Status::ShuttingDown);
            let goes_on = !over && self.store.failure().is_none();
            let Some(node) = self.node.upgrade().filter(|_| goes_on) else { return false };
            node.rt.sleep(ADOPT_PAUSE).await;
        }
        true
    }

    /// Resolves when a chain version is not the adopted one any more.
    pub(crate) async fn left(&self, version: ChainVersion) {
        loop {
            let news = self.turned.wait();
            if self.view().is_none_or(|v| v.version != version) {
                return;
            }
            news.await;
        }
    }

    /// The view or the local state changed.
    fn changed(self: &Rc<Self>) {
        let Some(node) = self.node.upgrade() else { return };
        if let Some(view) = self.view() {
            tracing::info!(
                target = %self.id, chain = %view.chain, version = %view.version, state = %view.state,
                head = view.head, local = %self.local(), "chain version adopted"
            );
        }
        self.turned.notify_all();
        node.report();
        self.sync_if_due(&node);
    }

    fn stage(
        self: &Rc<Self>,
        ticket: Ticket,
        chunk: ChunkId,
        version: ChunkVersion,
        commit: bool,
        onto: Onto,
    ) {
        let payload = self.asked.borrow().get(&ticket).map(|a| a.payload.clone());
        let Some(payload) = payload else {
            // The core stages only what waits for an answer.
            return self.feed(Event::Staged(chunk, version, Err(Status::Internal)));
        };
        self.payloads.borrow_mut().insert((chunk, version), payload.clone());
        let promise = self.store.promise(payload.bytes.len() as u64);
        self.launch(move |t| async move {
            let _until_staged = promise;
            let result = t.stage_payload(&payload, chunk, version, commit, onto).await;
            t.feed(Event::Staged(chunk, version, t.outcome("stage", result)));
        });
    }

    fn stage_again(
        self: &Rc<Self>,
        chunk: ChunkId,
        version: ChunkVersion,
        onto: Onto,
        pause: bool,
    ) {
        self.launch(move |t| async move {
            if pause && let Some(node) = t.node.upgrade() {
                node.rt.sleep(RESTAGE_PAUSE).await;
            }
            let payload = t.payloads.borrow().get(&(chunk, version)).cloned();
            let result = match payload {
                Some(p) => {
                    let _until_staged = t.store.promise(p.bytes.len() as u64);
                    let result = t.stage_payload(&p, chunk, version, false, onto).await;
                    t.outcome("stage", result)
                }
                // Taken back meanwhile.
                None => Err(Status::Internal),
            };
            t.feed(Event::Staged(chunk, version, result));
        });
    }

    async fn stage_payload(
        self: &Rc<Self>,
        payload: &Payload,
        chunk: ChunkId,
        version: ChunkVersion,
        commit: bool,
        onto: Onto,
    ) -> Result<()> {
        let head = &payload.head;
        let kind = StageKind::from_wire(head.kind)
            .ok_or_else(|| Error::new(Status::BadMessage, "unknown kind of update"))?;
        let named = head.client.get() != 0 && head.flags & UPDATE_SYNC == 0;
        let channel = (named && !planted(Mutant::DedupeNotPersisted)).then(|| ChannelRecord {
            client: ClientId(head.client.get()),
            channel: head.channel.get().into(),
            seq: head.seq.get().into(),
            chunk,
            version,
        });
        let mut request = StageRequest {
            chunk,
            version,
            kind,
            offset: if kind == StageKind::Write { head.offset.get() } else { 0 },
            len: head.len.get(),
            payload: payload.bytes.clone(),
            crcs: payload.crcs.clone(),
            chunk_bytes: head.chunk_bytes.get(),
            channel,
            commit,
            flush: head.flags & UPDATE_FLUSH != 0 && commit,
            anew: onto == Onto::Nothing,
            any_version: false,
            damaged: head.flags & UPDATE_DAMAGED != 0,
        };
        if onto == Onto::Anything && kind == StageKind::Remove {
            // The predecessor's version counts, even if ours is newer: a tombstone of ours that were newer than what the
            // chain knows would make us take the chunk's next updates for old ones.
            request.any_version = true;
            request.commit = true;
        }
        let staged = self.store.stage(self.id, request).await;
        if staged.as_ref().is_err_and(|e| e.status == Status::Corrupt) {
            // It may be what it builds on.
            self.repair_soon(chunk, Wrong::Damaged);
        }
        staged
    }

    fn wake_read(&self, ticket: Ticket, result: Result<(), Status>) {
        if let Some(waiting) = self.reads.borrow_mut().remove(&ticket) {
            // A reader that has gone away needs no answer.
            let _ = waiting.send(result);
        }
    }

    fn reply(self: &Rc<Self>, ticket: Ticket, result: Result<Done, Status>) {
        let Some(asked) = self.asked.borrow_mut().remove(&ticket) else { return };
        match result {
            Ok(done) if done.flush => self.launch(move |t| async move {
                let flushed = t.store.flush(t.id).await;
                let result = match flushed {
                    Ok(()) => Ok(done),
                    Err(e) => Err(e.status),
                };
                t.answer(asked.waiting, result);
            }),
            // Perhaps for a block of which only a part was to be written, and that nobody has: no repetition helps.
            Err(Status::Corrupt) if asked.waiting.entered_here() => {
                self.launch(move |t| async move {
                    let lost = t.builds_on_lost(&asked.payload.head).await;
                    t.answer(asked.waiting, Err(if lost { Status::Lost } else { Status::Corrupt }));
                })
            }
            result => self.answer(asked.waiting, result),
        }
    }

    fn answer(&self, waiting: Waiting, result: Result<Done, Status>) {
        match waiting {
            Waiting::Local(waiting) => {
                let _ = waiting.send(result);
            }
            Waiting::Peer { incoming, client, began, class, .. } => {
                let Some(node) = self.node.upgrade() else { return };
                // Checked again: what was done while the lease ran out must not be told.
                let result = match node.check_answer() {
                    Ok(()) => result.map_err(|s| self.refusal(s)),
                    Err(e) => Err(e),
                };
                if let Some(class) = class.filter(|_| result.is_ok()) {
                    node.behind.borrow_mut().served(class, began, node.rt.turn_began());
                }
                if client {
                    let m = &node.metrics;
                    if result.is_ok() {
                        m.writes.inc()
                    } else {
                        m.write_errors.inc()
                    }
                    m.write_seconds.record(node.rt.now().since(began).as_nanos() as u64);
                }
                incoming.reply(result.map(|done| Reply::body(self.result_of(&done))));
            }
        }
    }

    fn result_of(&self, done: &Done) -> Vec<u8> {
        let state = self.store.chunk(self.id, done.chunk).filter(|s| s.committed == done.version);
        UpdateResult {
            version: done.version.0.into(),
            chain_version: self.view().map_or(0, |v| v.version.0).into(),
            len: state.map_or(0, |s| s.len).into(),
            content_crc: state.filter(|s| s.exists()).map_or(0, |s| s.content_crc).into(),
        }
        .as_bytes()
        .to_vec()
    }

    /// A refusal of the core with its story.
    pub(crate) fn refusal(&self, status: Status) -> Error {
        let view = self.view();
        let state = view.map_or("in no chain yet".to_owned(), |v| {
            format!("{} in chain {} version {}", v.state, v.chain, v.version)
        });
        let hint = match status {
            Status::WrongChainVersion | Status::NotServing => "refresh the routing info and retry",
            Status::NoSpace => "remove files or add disks",
            Status::OldSequence => "a newer write of the same channel is known",
            Status::Pending => "an earlier update of this chunk is not resolved yet; retry",
            _ => "retry",
        };
        Error::new(status, format!("target {} ({state}): {hint}", self.id))
    }
}
