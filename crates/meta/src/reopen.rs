//! REOPEN: sessions that the embedded engine has lost with the power of its host.
//!
//! A session's record is answered before it is flushed. Its client finds that it is not there, shows the capability that it got with it, and has it put back. Two others may have
//! ended it: its own close, which the request's number tells, and the cluster, which ends sessions of clients that mgmtd does not list any more. Such a client never comes back
//! under its id, so whom mgmtd lists has lost no session to the reaper. Must never: put a session back that the client never had. (That it has closed one since only its own word tells, if the request that closed it is forgotten.)

use crate::clients;
use crate::once::Doubt;
use crate::ops::settle_session;
use crate::state::{Service, VOLUME};
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Context, Proven};
use glowfs_net::Conn;
use glowfs_rt::sync::Semaphore;
use glowfs_rt::{Duration, Instant};
use glowfs_types::capability::rights;
use glowfs_types::wire::decode;
use glowfs_types::wire::meta::{OpenReply, Reopen};
use glowfs_types::{Capability, ClientId, DataId, Error, RequestId, Result, Status, UserId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use zerocopy::FromBytes;

/// So old may the list be that clients are looked for in: all of them ask at once. Who asks was listed long before, and who is not any more keeps his sessions for much
/// longer (`session_grace_ms`).
const LISTED_FOR: Duration = Duration::from_millis(500);

/// Answers REOPEN.
pub async fn answer(s: &Service, conn: &Rc<Conn>, body: &[u8]) -> Result<OpenReply> {
    let mut q: Reopen = decode(body)?;
    s.who(conn, &mut q.caller).await?;
    let client = q.caller.client;
    let Some(proven) = proven(s, &q) else {
        let e = "nothing shows that this session was there; open the file again";
        return Err(Error::new(Status::SessionEnded, e));
    };
    if !s.listed.has(s, client).await? {
        let e = "the cluster does not know this client any more, and has ended its sessions; open the file again";
        return Err(Error::new(Status::SessionEnded, e));
    }
    let once = q.request != RequestId(0);
    let work =
        async |tx: &Transaction| ns::reopen(&Context::new(tx, &q.caller, s), &q, proven).await;
    let opened = s
        .once(&q, async |doubt: &Doubt| {
            let run = async || s.run_on(q.inode, (false, once), doubt, &work).await;
            s.with_cut_by(client, q.inode, run).await
        })
        .await?;
    s.metrics.reopened.inc();
    tracing::info!(%client, inode = %q.inode, "a session that was lost with the power of the metadata engine's host is there again");
    settle_session(s, &opened).await?;
    s.open_reply(opened, client, 0)
}

/// What the capability says that this session was opened for; none: it is not of this session, or the key is not known any more. It need not hold any more. (While the contents
/// are with the metadata it names no rights: then the file's mode decides.)
fn proven(s: &Service, q: &Reopen) -> Option<Proven> {
    let shown = Capability::read_from_bytes(&q.capability).ok()?;
    let keys = s.agent.capability_keys();
    let key = keys.get(&shown.key_id.get())?;
    shown.check(key, 0, VOLUME, DataId(shown.data.get()), 0).ok()?;
    let of = (shown.inode.get(), shown.session.get(), shown.client.get());
    let has = |right| shown.rights.get() & right != 0;
    let proven = Proven { read: has(rights::READ), write: has(rights::WRITE) };
    (of == (q.inode.0, q.session.0, q.caller.client.0)).then_some(proven)
}

type List = Rc<BTreeMap<ClientId, UserId>>;

/// The clients that mgmtd listed a moment ago.
pub struct Listed {
    turn: Semaphore,
    newest: RefCell<Option<(Instant, List)>>,
}

impl Default for Listed {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), newest: RefCell::default() }
    }
}

impl Listed {
    /// Whether a client is one of them.
    async fn has(&self, s: &Service, client: ClientId) -> Result<bool> {
        // Those who ask at once share a list.
        let _turn = self.turn.acquire(1).await;
        let now = s.rt.now();
        let newest = self.newest.borrow().clone();
        let list = match newest.filter(|(at, _)| now.since(*at) < LISTED_FOR) {
            Some((_, list)) => list,
            None => {
                let list = Rc::new(clients::live(s).await?);
                *self.newest.borrow_mut() = Some((now, list.clone()));
                list
            }
        };
        Ok(list.contains_key(&client))
    }
}
