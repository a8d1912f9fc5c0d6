//! What moves pending versions on: stages, commits, answers of the successor, pauses; and taking versions back.
//!
//! Guarantees: versions of a chunk are decided in their order, each when it is staged here and the successor (if there is one) has acknowledged it; one that was
//! decided stays in the window until the successor of a later chain version has it, too. Must never: decide under a chain version that is over or not
//! active; take back what a successor may have committed and shown; or leave a version that nothing will move on (no stage, no message and no pause under way).

use crate::lane::{Ack, Entry, Lane, Stage, Waiter};
use crate::{Action, ChunkView, Done, Form, ForwardId, Onto, Replica, TimerId, Update, WINDOW};
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::{ChunkId, ChunkVersion, Status};

/// Whether a status says that the update itself was refused and nothing of it was stored, and not that the disk failed.
fn refuses(status: Status) -> bool {
    matches!(
        status,
        Status::NoSpace
            | Status::Corrupt
            | Status::InvalidArgument
            | Status::BadMessage
            | Status::FileTooBig
            | Status::TooLarge
    )
}

/// What the store is asked again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Again {
    Commit(ChunkId, ChunkVersion),
    Discard(ChunkId),
}

impl Replica {
    /// The own stage ended.
    pub(crate) fn staged(
        &mut self,
        chunk: ChunkId,
        version: ChunkVersion,
        result: Result<(), Status>,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        let mut before = lane.entries.iter().take_while(|e| e.version < version);
        let behind_again = before.any(|e| matches!(e.stage, Stage::Again { .. }));
        if let Some(e) = lane.entry(version)
            && let Some(commit) = e.stage.under_way()
        {
            match result {
                Ok(()) => {
                    e.stage = Stage::Done { committed: commit };
                    if commit {
                        self.note_received(chunk, version);
                    }
                }
                Err(Status::Overloaded) => {
                    e.stage = Stage::Again { under_way: false, pause: !behind_again };
                }
                Err(Status::VersionGap) if behind_again => {
                    e.stage = Stage::Again { under_way: false, pause: false };
                }
                Err(s) if refuses(s) || s == Status::VersionGap => e.stage = Stage::Refused(s),
                Err(s) => return self.fail(s, out),
            }
        } else if let Some(d) = lane.doomed.iter_mut().find(|d| d.0 == version) {
            d.1 = false;
        }
        self.progress(chunk, store, out);
    }

    /// The own commit ended.
    pub(crate) fn committed(
        &mut self,
        chunk: ChunkId,
        version: ChunkVersion,
        result: Result<(), Status>,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        match result {
            Err(Status::Overloaded) => return self.pause(Again::Commit(chunk, version), out),
            Err(status) => return self.fail(status, out),
            Ok(()) => {}
        }
        if let Some(e) = self.lanes.get_mut(&chunk).and_then(|l| l.entry(version)) {
            e.stage = Stage::Done { committed: true };
            // What was dropped meanwhile did not come under this chain version.
            self.note_received(chunk, version);
        }
        self.progress(chunk, store, out);
    }

    /// A syncing target holds a version for good. What ends before the chain version is active here came under a former one, and the chain may have
    /// another content of that number.
    fn note_received(&mut self, chunk: ChunkId, version: ChunkVersion) {
        if self.view.is_some_and(|v| v.receiving()) {
            let newest = self.received.entry(chunk).or_default();
            *newest = version.max(*newest);
        }
    }

    /// Versions were taken back in the store.
    pub(crate) fn discarded(
        &mut self,
        chunk: ChunkId,
        result: Result<(), Status>,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        match result {
            Err(Status::Overloaded) => return self.pause(Again::Discard(chunk), out),
            Err(status) => return self.fail(status, out),
            Ok(()) => {}
        }
        if let Some(lane) = self.lanes.get_mut(&chunk)
            && let Some(from) = lane.discarding.take()
        {
            lane.doomed.retain(|d| d.0 < from);
        }
        self.progress(chunk, store, out);
        self.dropped(out);
    }

    /// The successor answered, or the call failed.
    pub(crate) fn answered(
        &mut self,
        id: ForwardId,
        result: Result<u32, Status>,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        let Some((chunk, version)) = self.forwards.remove(&id) else { return };
        let timer = TimerId(self.next_id());
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        let Some(at) = lane.entries.iter().position(|e| e.version == version) else { return };
        let earlier = lane.entries.iter().take(at).any(|e| !matches!(e.ack, Ack::Acked(_)));
        let e = &mut lane.entries[at];
        if e.ack != Ack::Sent(id) {
            return;
        }
        let syncing = self.view.and_then(|v| v.successor).is_some_and(|s| s.2);
        if result.is_ok() && syncing {
            self.covered.insert(chunk);
        }
        if result == Err(Status::VersionGap)
            && syncing
            && e.original
            && self.covered.contains(&chunk)
        {
            // What it was to build on: it is of a release that takes whole contents only, or has not what that was sent for.
            self.whole_only = true;
        }
        if matches!(result, Err(Status::Overloaded | Status::VersionGap)) {
            // It said so before it took anything, or has taken it back: nothing of this copy is under way. (Where it has another update under the
            // same version, that is not this one.)
            e.copies = e.copies.saturating_sub(1);
        }
        e.ack = match result {
            Ok(crc) => Ack::Acked(crc),
            // Only when nothing else of it is under way is it certain that the successor has nothing of it; and a syncing one
            // may have taken a later content, with this update in it.
            Err(s) if refuses(s) && e.copies == 1 && !syncing => Ack::Refused(s),
            Err(Status::VersionGap) if earlier => Ack::InOrder,
            Err(s) => {
                if s == Status::Corrupt {
                    e.original = false;
                }
                if matches!(
                    s,
                    Status::WrongChainVersion
                        | Status::NotServing
                        | Status::NoTarget
                        | Status::NoLease
                ) {
                    out.push(Action::Refresh);
                }
                self.timers.insert(timer, (chunk, version));
                out.push(Action::Pause(timer));
                Ack::Paused(timer)
            }
        };
        self.progress(chunk, store, out);
    }

    /// The store had no place in its queue for what it was asked: it is asked again after a pause, if that is still wanted then.
    fn pause(&mut self, again: Again, out: &mut Vec<Action>) {
        let timer = TimerId(self.next_id());
        self.again.insert(timer, again);
        out.push(Action::Rest(timer));
    }

    fn ask_again(&mut self, again: Again, out: &mut Vec<Action>) {
        match again {
            Again::Commit(chunk, version) => {
                let entry = self.lanes.get_mut(&chunk).and_then(|l| l.entry(version));
                // What was dropped meanwhile is none any more; one that came in its place was perhaps committed twice, which is as good as once.
                if entry.is_some_and(|e| e.decided && e.stage == Stage::Done { committed: false }) {
                    out.push(Action::Commit(chunk, version));
                }
            }
            Again::Discard(chunk) => {
                if let Some(from) = self.lanes.get(&chunk).and_then(|l| l.discarding) {
                    out.push(Action::Discard(chunk, from));
                }
            }
        }
    }

    /// A pause is over: send again, or ask the store again.
    pub(crate) fn timer(&mut self, id: TimerId, store: &dyn ChunkView, out: &mut Vec<Action>) {
        if let Some(again) = self.again.remove(&id) {
            return self.ask_again(again, out);
        }
        let Some((chunk, version)) = self.timers.remove(&id) else { return };
        let Some(e) = self.lanes.get_mut(&chunk).and_then(|l| l.entry(version)) else { return };
        if e.ack == Ack::Paused(id) {
            e.ack = Ack::Unsent;
        }
        self.progress(chunk, store, out);
    }

    pub(crate) fn progress_all(&mut self, store: &dyn ChunkView, out: &mut Vec<Action>) {
        let chunks: Vec<ChunkId> = self.lanes.keys().copied().collect();
        for chunk in chunks {
            self.progress(chunk, store, out);
        }
    }

    /// Does everything that can be done on one chunk now.
    pub(crate) fn progress(
        &mut self,
        chunk: ChunkId,
        store: &dyn ChunkView,
        out: &mut Vec<Action>,
    ) {
        self.refusals(chunk, out);
        self.decide(chunk, store, out);
        self.send(chunk, store, out);
        let begins_again = self.begins_again();
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        if lane.discarding.is_none()
            && lane.doomed.iter().all(|d| !d.1)
            && let Some(from) = lane.doomed.iter().map(|d| d.0).min()
        {
            lane.discarding = Some(from);
            out.push(Action::Discard(chunk, from));
        }
        if let Some((ticket, granted @ false)) = &mut lane.held
            && lane.entries.is_empty()
            && lane.doomed.is_empty()
        {
            *granted = true;
            out.push(Action::Held(*ticket, Ok(())));
        }
        if self.next.is_none() && lane.readable() && !begins_again {
            out.extend(lane.readers.drain(..).map(Action::ReadNow));
        }
        if lane.is_idle() {
            self.lanes.remove(&chunk);
        } else if !lane.queue.is_empty() {
            self.drain_queue(chunk, store, out);
            self.drop_idle(chunk);
        }
    }

    /// Commits, in order, what is staged here and committed behind us.
    fn decide(&mut self, chunk: ChunkId, store: &dyn ChunkView, out: &mut Vec<Action>) {
        let Some(view) = self.view else { return };
        // Nothing more is decided under a view that is over; under the next one it is driven again.
        let over = self.next.is_some();
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        for e in &mut lane.entries {
            if e.decided {
                continue;
            }
            let Stage::Done { committed } = e.stage else { break };
            let behind = view.successor.is_none()
                || matches!(e.ack, Ack::Acked(_))
                || planted(Mutant::CommitBeforeAck);
            if planted(Mutant::AckBeforeTail) && view.head {
                let done = Done { chunk, version: e.version, flush: e.update.flush };
                out.extend(e.waiters.drain(..).map(|w| Action::Reply(w.ticket, Ok(done))));
            }
            if over || !behind || !view.may_commit() {
                break;
            }
            e.decided = true;
            if !committed {
                out.push(Action::Commit(chunk, e.version));
            }
            if let Some(origin) = &e.update.origin {
                self.channels.commit(origin, chunk, e.version);
            }
            let done = Done { chunk, version: e.version, flush: e.update.flush };
            out.extend(e.waiters.drain(..).map(|w| Action::Reply(w.ticket, Ok(done))));
        }
        // After a chain change a decided version may have a new successor: it is kept until that has it too.
        while let Some(e) = lane.entries.pop_front_if(|e| {
            e.decided
                && e.stage == (Stage::Done { committed: true })
                && (view.successor.is_none() || matches!(e.ack, Ack::Acked(_)))
        }) {
            let brief = store.chunk(chunk);
            if let Ack::Acked(theirs) = e.ack
                && theirs != 0
                && brief.content_crc != 0
                && brief.committed == e.version
                && brief.content_crc != theirs
            {
                out.push(Action::Diverged(chunk, e.version));
                // A syncing one gets the next update whole again, and the resync does not pass over it.
                self.covered.remove(&chunk);
                if let Some(u) = self.unvouched.get_mut(&chunk) {
                    u.holds_sync = true;
                }
            }
            out.push(Action::Release(chunk, e.version));
        }
    }

    /// Sends what the successor has not answered yet: at once if the update is at hand as it came, else when it is staged.
    fn send(&mut self, chunk: ChunkId, store: &dyn ChunkView, out: &mut Vec<Action>) {
        let Some(view) = self.view else { return };
        let Some((target, node, syncing)) = view.successor else { return };
        if self.next.is_some() {
            // The successor may know a newer chain version too; all of it is sent again under that.
            return;
        }
        // Mostly all of it is sent: what follows is not looked up then.
        let to_send = |e: &Entry| e.ack.is_to_send();
        if !self.lanes.get(&chunk).is_some_and(|l| l.entries.iter().any(to_send)) {
            return;
        }
        let taken_back = self.taken_back.get(&chunk).copied().unwrap_or(0);
        let generation = u16::try_from(taken_back).unwrap_or(u16::MAX);
        // What a syncing successor has got through the chain it can build the next update on.
        let builds = !syncing || (self.covered.contains(&chunk) && !self.whole_only);
        let mut ids = self.next_id();
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        let brief = store.chunk(chunk);
        // A head can vouch for all; and what may not be shown here, may not behind us.
        let vouches = view.head || self.unvouched.contains_key(&chunk);
        let mut base = if brief.exists { brief.committed } else { ChunkVersion(0) };
        let mut exists = brief.exists;
        let mut all_acked = true;
        for e in &mut lane.entries {
            // What a former chain version has decided may be in the content that was sent for one before it.
            let builds = builds && (!syncing || exists && !e.decided);
            exists = !e.update.removes;
            let this_base = base;
            base = e.version;
            let in_order = all_acked;
            all_acked &= matches!(e.ack, Ack::Acked(_));
            // A whole content holds all earlier updates too, so whoever gets it must have their channel records before.
            let due = in_order || !syncing && e.ack == Ack::Unsent;
            let due = due && e.ack.is_to_send();
            let staged = matches!(e.stage, Stage::Done { .. });
            let form = if builds && e.original {
                Form::Original
            } else {
                Form::Full { removed: e.update.removes }
            };
            // A syncing one is sent nothing that could have to be taken back.
            if !due || ((syncing || form != Form::Original) && !staged) {
                continue;
            }
            let id = ForwardId(ids);
            self.forwards.insert(id, (chunk, e.version));
            ids += 1;
            e.ack = Ack::Sent(id);
            e.copies = e.copies.saturating_add(1);
            out.push(Action::Forward {
                id,
                target,
                node,
                chain_version: view.version,
                chunk,
                version: e.version,
                // A committed entry that is still here is its own base's successor: its predecessor is gone from the store.
                base: if this_base >= e.version {
                    ChunkVersion(e.version.0 - 1)
                } else {
                    this_base
                },
                generation,
                form,
                update: Update { vouches: e.update.vouches || vouches, ..e.update },
            });
        }
        self.reserve_ids(ids);
    }

    /// What nobody behind us took is taken back here too; what they took and we cannot hold ends this target.
    fn refusals(&mut self, chunk: ChunkId, out: &mut Vec<Action>) {
        // A syncing successor is sent only what is staged here.
        let alone = self.view.is_some_and(|v| v.successor.is_none_or(|(_, _, syncing)| syncing));
        let active = self.view.is_some_and(|v| v.may_commit());
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        let mut first = None;
        let mut staged = true;
        for at in 0..lane.entries.len() {
            let e = &mut lane.entries[at];
            if let Stage::Refused(s) = e.stage {
                first.get_or_insert(s);
            }
            let in_turn = staged;
            staged &= matches!(e.stage, Stage::Done { .. });
            if in_turn && let Stage::Again { under_way: false, pause } = e.stage {
                e.stage = Stage::Again { under_way: true, pause: false };
                let (version, onto) = (e.version, e.onto);
                out.push(Action::StageAgain { chunk, version, onto, pause });
            }
            match (e.stage, e.ack) {
                // A former successor may have it, and be called on to take over.
                (Stage::Refused(_), _) if alone && e.former && !active => {}
                // Somebody may have read it from a successor that is gone: it must not be taken back, and room may come.
                (Stage::Refused(Status::NoSpace | Status::VersionGap), _)
                    if alone && e.shown && in_turn =>
                {
                    e.stage = Stage::Running { commit: false };
                    let (version, onto) = (e.version, e.onto);
                    out.push(Action::StageAgain { chunk, version, onto, pause: true });
                }
                (Stage::Refused(Status::NoSpace | Status::VersionGap), _) if alone && e.shown => {}
                // It came behind such a one.
                (Stage::Refused(Status::VersionGap), _) if alone => {
                    return self.take_back(chunk, at, Status::Overloaded, out);
                }
                (Stage::Refused(s), _) if alone => return self.take_back(chunk, at, s, out),
                // For the reason of the first one, of which those behind it are only the consequence.
                (Stage::Refused(s), Ack::Acked(_)) => return self.fail(first.unwrap_or(s), out),
                // It cannot be sent again as it came, and was not staged; what became of it behind us is not known.
                (Stage::Refused(s), Ack::Unsent | Ack::InOrder) if !e.original => {
                    return self.fail(first.unwrap_or(s), out);
                }
                (Stage::Refused(_) | Stage::Done { .. }, Ack::Refused(s @ Status::NoSpace))
                | (Stage::Refused(_), Ack::Refused(s)) => return self.take_back(chunk, at, s, out),
                (Stage::Done { .. }, Ack::Refused(_)) => {
                    // The bytes went wrong on their way, or in the sender's memory: ours are verified.
                    e.original = false;
                    e.ack = Ack::Unsent;
                }
                _ => {}
            }
        }
    }

    /// Takes back the entry at `from` of the window and all after it.
    pub(crate) fn take_back(
        &mut self,
        chunk: ChunkId,
        from: usize,
        status: Status,
        out: &mut Vec<Action>,
    ) {
        let Some(lane) = self.lanes.get_mut(&chunk) else { return };
        let Some(first) = lane.entries.get(from).map(|e| e.version) else { return };
        for (i, e) in lane.entries.split_off(from).into_iter().enumerate() {
            for Waiter { ticket, client } in e.waiters {
                let status = match (i, client) {
                    (0, _) => status,
                    (_, true) => Status::Overloaded,
                    (_, false) => Status::VersionGap,
                };
                out.push(Action::Reply(ticket, Err(status)));
            }
            if let Some(origin) = &e.update.origin {
                self.channels.abort(origin, chunk);
            }
            lane.doomed.push((e.version, e.stage.under_way().is_some()));
            out.push(Action::Release(chunk, e.version));
        }
        *self.taken_back.entry(chunk).or_default() += 1;
        self.unvouched_no_more(chunk, first);
    }

    /// Lets queued updates of clients in as the window gets room.
    fn drain_queue(&mut self, chunk: ChunkId, store: &dyn ChunkView, out: &mut Vec<Action>) {
        let mut moved = false;
        while let Some(lane) = self.lanes.get_mut(&chunk) {
            if lane.is_clearing() || lane.entries.len() >= WINDOW {
                break;
            }
            let Some(q) = lane.queue.pop_front() else { break };
            let mut tickets = q.tickets.into_iter();
            let Some(first) = tickets.next() else { continue };
            let version = self.newest(chunk, store).next();
            self.admit(
                Waiter { ticket: first, client: true },
                chunk,
                version,
                q.update,
                Onto::Previous,
                out,
            );
            if let Some(e) = self.lanes.get_mut(&chunk).and_then(|l| l.entry(version)) {
                e.waiters.extend(tickets.map(|ticket| Waiter { ticket, client: true }));
            }
            moved = true;
        }
        if moved {
            self.send(chunk, store, out);
        }
    }
}

impl Lane {
    /// Chunks with nothing pending can be read.
    pub fn readable(&self) -> bool {
        self.entries.is_empty() && !self.is_clearing()
    }
}

#[cfg(test)]
mod tests;
