//! Sessions that the metadata engine has lost with the power of its host: they are opened anew under their numbers (REOPEN), and meta is told once more how long the file is by what was
//! written.
//!
//! Whoever hears `SessionEnded` comes here. And whenever a metadata service was away, sessions that were opened shortly before are looked after, so that meta asks for what was written
//! through them if this client dies. Guarantees: meta is shown the capability that came with the session, and in which life of its engine it last said that it was there; it is asked in
//! the name of the life of this client that has opened the file. Must never: open anew beside its close what is being closed.

use super::{Files, OpenFile};
use crate::Client;
use crate::core::Core;
use glowfs_rt::sync::join_all;
use glowfs_rt::{Duration, Instant};
use glowfs_types::wire::meta::{Caller, OpenReply, Reopen, Sync};
use glowfs_types::{Error, InodeId, RequestId, Result, SessionId, Status};
use std::cell::Cell;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// A session that was opened so long before its metadata service was last seen is on its disk. (That it is not there any more may be seen only some 40 s later.)
const ON_DISK_AFTER: Duration = Duration::from_secs(60);
/// Sessions looked after at once.
const LOOK_PARALLEL: usize = 8;

/// What an open file knows of its session.
pub(super) struct Standing {
    /// The life of the metadata engine in which meta last said that it was there; 0: of an engine that loses nothing.
    life: Cell<u64>,
    /// When it was opened, or put back.
    opened: Cell<Instant>,
    /// It is being closed: only who closes it may open it anew.
    closing: Cell<bool>,
}

impl Standing {
    /// Of a file that was just opened.
    pub fn new(life: u64, now: Instant) -> Self {
        Self { life: Cell::new(life), opened: Cell::new(now), closing: Cell::new(false) }
    }
    /// Meta has said in this life of its engine that the session is there.
    pub fn is_there(&self, life: u64) {
        self.life.set(life);
    }
}

impl OpenFile {
    /// Meta has said that the session is not there: opens the file anew under it, if it can have been lost.
    pub(super) async fn open_anew(&self, said: Error) -> Result<OpenReply> {
        let life = self.standing.life.get();
        let Some(session) = self.session.filter(|_| life != 0 && !self.standing.closing.get())
        else {
            return Err(said);
        };
        let capability = self.state.borrow().capability;
        let q = Reopen {
            caller: self.caller_of_owner(),
            request: RequestId(0),
            inode: self.inode,
            session,
            read: self.access.read,
            write: self.access.write,
            exec: self.access.exec,
            life,
            fence: self.doubts.fence(),
            capability: capability.as_bytes().to_vec(),
        };
        let reply = match self.client.reopen(q).await {
            // A metadata service of an older release.
            Err(e) if e.status == Status::UnknownMethod => return Err(said),
            reply => reply?,
        };
        tracing::info!(inode = %self.inode, "the metadata engine had lost with its power that this file is open; it is again");
        // What was put back is not on the disk yet, as little as what was just opened.
        self.standing.opened.set(self.client.rt().now());
        let heard = self.state.borrow().said;
        // What was written under another truncate is none of this content, also where that one's number has been given out again since.
        let same = (reply.attr.epoch, reply.attr.data) == self.under();
        if same
            && reply.attr.edition().is_of_later_life_than(&heard)
            && let Err(error) = self.tell_again(session).await
        {
            tracing::info!(%error, inode = %self.inode, "what the metadata engine has lost of its length is lost");
        }
        Ok(reply)
    }

    /// Tells meta how long the file is by what was written through this client's open files, for it may have lost what it was told. Only before anybody here has heard how long it is in this
    /// life of the engine: who goes by that may have written over what counts as lost from then on.
    async fn tell_again(&self, session: SessionId) -> Result<()> {
        let under = self.under();
        let files = self.client.core.files.of(self.inode);
        let here = files.iter().filter(|f| f.under() == under);
        let Some(len) = here.filter_map(|f| f.len_written()).max() else { return Ok(()) };
        let told = Sync {
            caller: self.caller_of_owner(),
            inode: self.inode,
            session: Some(session),
            len_at_least: Some(len),
            epoch: under.0,
            ..Sync::default()
        };
        self.client.sync_once(told).await.map(drop)
    }

    fn caller_of_owner(&self) -> Caller {
        Caller { client: self.owner, ..self.access.caller.clone() }
    }

    /// Meta has said so to who has asked for something else. It is asked first whether the session is there by now: others may have come here before. In which life of the engine it is there.
    pub(crate) async fn come_back(&self, said: Error) -> Result<u64> {
        if self.session.is_none() || self.standing.life.get() == 0 {
            return Err(said);
        }
        let closing = self.standing.closing.replace(false);
        let renewed = self.renew().await;
        self.standing.closing.set(closing);
        renewed.map(|()| self.standing.life.get())
    }

    /// Its session is going to be closed; waits until it is not being opened anew beside that.
    async fn closes(&self) {
        self.standing.closing.set(true);
        while self.state.borrow().renewing {
            self.moved.wait().await;
        }
    }
}

impl Files {
    /// Files whose sessions may be lost with a service that was last there then.
    fn opened_since(&self, then: Instant) -> Vec<Rc<OpenFile>> {
        let mut files = self.all();
        files.retain(|f| {
            let s = &f.standing;
            f.session.is_some() && s.life.get() != 0 && s.opened.get() + ON_DISK_AFTER >= then
        });
        files
    }
}

/// How a call is made that goes by a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Go {
    /// For the first time.
    First,
    /// Once more, after the session was put back. `same`: the file's contents are of the truncate that they were of.
    Again { same: bool },
}

impl Go {
    /// Puts into a call that is known by its request that copies of it may be under way.
    pub fn mark(self, caller: &mut Caller) {
        caller.again |= self != Self::First;
    }
    /// Takes out of a report the length of what was written, where that was under another truncate: it may have got its number anew since.
    pub fn report(self, mut query: Sync) -> Sync {
        if self == (Self::Again { same: false }) {
            query.len_at_least = None;
        }
        query
    }
}

impl Client {
    /// A call that goes by a session; if that is not there and may have been lost, it is made once more when it is there again, once in each life of the engine that has lost it. Without a
    /// session: any of the file that this client has will do.
    pub(crate) async fn in_session<R>(
        &self,
        (inode, session): (InodeId, Option<SessionId>),
        call: impl AsyncFn(Go) -> Result<R>,
    ) -> Result<R> {
        let mut said = match call(Go::First).await {
            Err(e) if e.status == Status::SessionEnded => e,
            outcome => return outcome,
        };
        let mut same = true;
        // The life of the engine in which it came back last: who is told again in that one that it is not there has not lost it.
        let mut came_back = None;
        loop {
            let mut files = self.core.files.of(inode);
            files.retain(|f| f.session.is_some() && (session.is_none() || f.session == session));
            let mut back = Err(said.clone());
            for file in files {
                let under = file.under();
                back = back.or(file.come_back(said.clone()).await);
                same &= file.under() == under;
            }
            let life = back?;
            if came_back.replace(life) == Some(life) {
                return Err(said);
            }
            // The power may go once more before it is heard.
            said = match call(Go::Again { same }).await {
                Err(e) if e.status == Status::SessionEnded => e,
                outcome => return outcome,
            };
        }
    }

    /// A session is going to be closed.
    pub(crate) async fn before_close(&self, q: &Sync) {
        if let Some(session) = q.session
            && let Some(file) = self.core.files.with_session(q.inode, session)
        {
            file.closes().await;
        }
    }
}

/// A metadata service was away, and was last there then: looks after what it may have lost.
pub(crate) fn look_after(core: &Rc<Core>, then: Instant) {
    let files = core.files.opened_since(then);
    if files.is_empty() {
        return;
    }
    core.rt.spawn_detached(async move {
        for some in files.chunks(LOOK_PARALLEL) {
            let all = some.iter().map(|f| async move {
                if let Err(error) = f.renew().await {
                    tracing::debug!(%error, inode = %f.inode, "an open file after its metadata service was away");
                }
            });
            join_all(all).await;
        }
    });
}
