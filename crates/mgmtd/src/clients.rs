//! Client sessions: a client that is silent for the session's time is dead, and meta closes its files.
//!
//! Opening and ending a session is stored, so that a new primary knows who may be alive and who is dead; extending it is not: a new primary gives
//! every known client a full session's time.

use crate::core::Inner;
use crate::keys;
use crate::records::DeadRecord;
use crate::state::{Client, DEAD_CLIENTS_MAX, State};
use crate::store::Writes;
use glowfs_net::Identity;
use glowfs_rt::Duration;
use glowfs_types::wire::mgmtd::{ClientList, ClientSession, ClientSessionReply, ListClients};
use glowfs_types::{ClientId, Error, Result, Status, UserId};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

/// The greatest number of client sessions.
const CLIENTS_MAX: usize = 100_000;
/// The greatest number of sessions of a user who is neither a service nor an administrator: others find room as well.
const CLIENTS_PER_USER_MAX: usize = CLIENTS_MAX / 4;
/// Bytes of each text that a client says of itself. More is cut off: only people read it.
const TEXT_BYTES_MAX: usize = 256;
/// Sessions in one page of LIST_CLIENTS; of at most a KiB each, so it fits a message.
const CLIENTS_PER_PAGE: usize = 1024;
/// Sessions ended by one transaction.
pub const ENDED_PER_CHANGE: usize = 256;

/// What LIST_CLIENTS answers.
pub fn list(s: &State, question: &ListClients) -> ClientList {
    let from = question.after.map_or(Unbounded, Excluded);
    let mut rest = s.clients.range((from, Unbounded)).map(|(_, c)| &c.session);
    let dead = match question.after {
        None => s.dead_clients.iter().copied().collect(),
        Some(_) => Vec::new(),
    };
    if !question.pages && s.clients.len() > CLIENTS_PER_PAGE {
        // Who knows no pages needs the ids before all.
        return ClientList { clients: rest.map(without_texts).collect(), dead, more: false };
    }
    let clients = rest.by_ref().take(CLIENTS_PER_PAGE).cloned().collect();
    ClientList { clients, dead, more: rest.next().is_some() }
}

fn without_texts(session: &ClientSession) -> ClientSession {
    ClientSession {
        hostname: String::new(),
        description: String::new(),
        release: String::new(),
        ..*session
    }
}

/// Cuts off what is too long. Also of what older releases have stored.
pub fn cut_texts(session: &mut ClientSession) {
    for text in [&mut session.hostname, &mut session.description, &mut session.release] {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    }
}

/// Whether a connection of `user` may say that it is `client`: sessions, capabilities and retries go by that id. An id that nobody
/// has registered is nobody's.
pub fn check_owner(s: &State, client: ClientId, user: UserId) -> Result<()> {
    if s.dead_clients.contains(&client) {
        return Err(ended());
    }
    match s.clients.get(&client) {
        Some(c) if c.session.user != user => Err(not_yours()),
        _ => Ok(()),
    }
}

/// Whether there is room for one more client of that user.
fn check_room(s: &State, who: &Identity) -> Result<()> {
    let refused = |e| Err(Error::new(Status::Overloaded, e));
    if s.clients.len() >= CLIENTS_MAX {
        return refused(format!("there are {CLIENTS_MAX} clients already"));
    }
    let privileged = who.service || who.admin || who.root;
    if !privileged && s.clients_of(who.user) >= CLIENTS_PER_USER_MAX {
        let user = who.user;
        return refused(format!(
            "user {user} has {CLIENTS_PER_USER_MAX} clients already; end some"
        ));
    }
    Ok(())
}

pub fn not_yours() -> Error {
    Error::new(Status::AccessDenied, "this client id belongs to another user")
}

fn ended() -> Error {
    let e = "this client's session has ended and its open files were closed; connect again as a new client";
    Error::new(Status::SessionEnded, e)
}

/// Clients of which the end is being stored, in an epoch. Those that are still there when this is dropped live on.
struct Ending<'a>(&'a Inner, u64, Vec<ClientId>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.remember(self.1, |s| s.set_ending(&self.2, false));
        self.0.ended.notify_all();
    }
}

impl Inner {
    pub async fn client_session(
        &self,
        who: Identity,
        mut session: ClientSession,
    ) -> Result<ClientSessionReply> {
        if session.client == ClientId(0) {
            return Err(Error::new(Status::InvalidArgument, "client id 0 is no client"));
        }
        let (now, now_ns) = (self.rt.now(), self.rt.unix_ns());
        cut_texts(&mut session);
        session.user = who.user;
        session.last_seen_ns = now_ns;
        let id = session.client;
        let extends = std::mem::take(&mut session.extends);
        enum Known {
            Extended,
            New(u64),
            Ending,
            Refused(Error),
        }
        let look = |s: &mut State| {
            if s.dead_clients.contains(&id) {
                return Known::Refused(ended());
            }
            let room = check_room(s, &who);
            match s.clients.get_mut(&id) {
                Some(c) if c.session.user != who.user => Known::Refused(not_yours()),
                Some(c) if c.ending => Known::Ending,
                Some(c) => {
                    c.heard = now;
                    c.session.last_seen_ns = now_ns;
                    Known::Extended
                }
                // It has ended so long ago that it is forgotten.
                None if extends => Known::Refused(ended()),
                None => room.map_or_else(Known::Refused, |()| Known::New(s.epoch)),
            }
        };
        let mut known = self.with(look)?;
        if matches!(known, Known::Ending) {
            // Not for the lock: what settles chains needs that, and users can come in any number.
            self.ended.wait().await;
            known = self.with(look)?;
        }
        match known {
            Known::Refused(e) => return Err(e),
            Known::Ending => {
                let e = "the end of this session is being stored; retry";
                return Err(Error::new(Status::Overloaded, e));
            }
            Known::Extended => {}
            Known::New(epoch) => {
                let mut writes = Writes::new();
                writes.insert(keys::client(id), Some(keys::encode(&session)));
                self.write(epoch, None, &writes).await?;
                self.stored(epoch, |s| {
                    let heard = self.rt.now();
                    s.meet(Client { session, heard, ending: false });
                    self.metrics.clients.set(i64::try_from(s.clients.len()).unwrap_or(i64::MAX));
                })?;
            }
        }
        let t = &self.config.timing;
        Ok(ClientSessionReply {
            session_ms: t.client_session_ms,
            routing_stale_ms: t.node_lease_ms,
        })
    }

    /// Ends the sessions of clients that were silent for too long.
    pub async fn expire_clients(&self) {
        let (now, limit) =
            (self.rt.now(), Duration::from_millis(self.config.timing.client_session_ms));
        let silent = self.with(|s| {
            let silent = s.clients.values().filter(|c| now.since(c.heard) >= limit);
            silent.map(|c| c.session.client).take(ENDED_PER_CHANGE).collect::<Vec<_>>()
        });
        let silent = silent.unwrap_or_default();
        if silent.is_empty() {
            return;
        }
        tracing::info!(clients = silent.len(), "client sessions ran out");
        if let Err(e) = self.end_clients(silent, Some(limit)).await {
            tracing::warn!(error = %e, "sessions of silent clients could not be ended");
        }
    }

    /// Ends sessions, if `silent` is given only of those who are silent for so long still. That they have ended is stored, too: what a client may not do any more it may not do under the next primary.
    pub async fn end_clients(&self, ids: Vec<ClientId>, silent: Option<Duration>) -> Result<()> {
        let _held = self.lock.acquire(1).await;
        let (now, ended_ns) = (self.rt.now(), self.rt.unix_ns());
        let (epoch, ids, forgotten) = self.with(|s| {
            // Another call may have ended them while this one waited for its turn, or they were heard again and told that they live.
            let due = |c: &Client| silent.is_none_or(|limit| now.since(c.heard) >= limit);
            let ids = ids.into_iter().filter(|id| s.clients.get(id).is_some_and(due));
            // Each of them once.
            let ids: Vec<_> = ids.collect::<BTreeSet<_>>().into_iter().collect();
            s.set_ending(&ids, true);
            let forgotten = (s.dead_clients.len() + ids.len()).saturating_sub(DEAD_CLIENTS_MAX);
            let forgotten: Vec<_> = s.dead_clients.iter().take(forgotten).copied().collect();
            (s.epoch, ids, forgotten)
        })?;
        if ids.is_empty() {
            return Ok(());
        }
        let _ending = Ending(self, epoch, ids.clone());
        let mut writes: Writes = ids.iter().map(|id| (keys::client(*id), None)).collect();
        writes.extend(forgotten.iter().map(|id| (keys::dead(*id), None)));
        let record = |client| keys::encode(&DeadRecord { client, ended_ns });
        writes.extend(ids.iter().map(|id| (keys::dead(*id), Some(record(*id)))));
        self.write(epoch, None, &writes).await?;
        self.stored(epoch, |s| {
            s.dead_clients.drain(..forgotten.len().min(s.dead_clients.len()));
            for id in ids {
                s.bury(id);
            }
            self.metrics.clients.set(i64::try_from(s.clients.len()).unwrap_or(i64::MAX));
        })
    }
}
