//! Ends of sessions that nobody waits for: gathered, and sent together (CLOSES), so that meta ends all of them with one transaction.
//!
//! For sessions of which meta knows all that others may ask for: until the message arrives only the session is still there. If
//! this client dies before, the cluster ends its sessions as it does with those of open files.

use crate::client::Client;
use glowfs_rt::Duration;
use glowfs_rt::sync::{Notify, OneSender, oneshot};
use glowfs_types::wire::closes::{CLOSES_MAX, Closes};
use glowfs_types::wire::meta::{Caller, Sync};
use glowfs_types::{Error, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// How long the first one waits for others to go with it.
const GATHER: Duration = Duration::from_millis(5);
/// So many may wait; see [`Client::closes_room`].
const WAITING_MAX: usize = 4 * CLOSES_MAX;

type Waiting = (Sync, OneSender<Result<()>>);

/// What waits to be sent.
#[derive(Default)]
pub(crate) struct CloseQueue {
    waiting: RefCell<Vec<Waiting>>,
    /// A task sends them, one message after the other.
    sending: Cell<bool>,
    /// There are enough for a message.
    enough: Notify,
}

impl Client {
    /// Whether there is room for another [`Client::close_later`]. If not, close at once: who closes has to slow down.
    pub fn closes_room(&self) -> bool {
        self.core.closes.waiting.borrow().len() < WAITING_MAX
    }
    /// CLOSE, some milliseconds later and together with others. For a session of which meta knows all that others may ask for.
    pub async fn close_later(self: &Rc<Self>, query: Sync) -> Result<()> {
        self.before_close(&query).await;
        let alone = query.clone();
        match self.close_with_others(query).await {
            // Meta may have lost it, and a length that it knew.
            Err(e) if e.status == Status::SessionEnded => self.close_session(alone).await.map(drop),
            closed => closed,
        }
    }
    async fn close_with_others(self: &Rc<Self>, query: Sync) -> Result<()> {
        let queue = &self.core.closes;
        let (tell, told) = oneshot();
        queue.waiting.borrow_mut().push((query, tell));
        if queue.waiting.borrow().len() >= CLOSES_MAX {
            queue.enough.notify_all();
        }
        if !queue.sending.replace(true) {
            self.core.rt.spawn_detached(send_all(Rc::downgrade(self)));
        }
        let gone = || Err(Error::new(Status::ShuttingDown, "this client was dropped"));
        told.await.unwrap_or_else(|_| gone())
    }
    async fn send_closes(&self, closes: Vec<Sync>) -> Result<Vec<Result<()>>> {
        let asked = closes.len();
        let query = Closes { caller: Caller::default(), closes: closes.clone() };
        let statuses = match self.closes(query).await {
            Err(e) if e.status == Status::UnknownMethod => {
                // A service of an older release.
                let mut results = Vec::with_capacity(asked);
                for close in closes {
                    results.push(self.close_session(close).await.map(drop));
                }
                return Ok(results);
            }
            reply => reply?.statuses,
        };
        if statuses.len() != asked {
            let text = format!("{} answers to {asked} closes", statuses.len());
            return Err(Error::new(Status::BadMessage, text));
        }
        let result = |code| match Status::from_code(code) {
            Status::Ok => Ok(()),
            status => Err(Error::new(status, "meta could not close the session")),
        };
        Ok(statuses.into_iter().map(result).collect())
    }
}

/// Sends what waits until nothing does.
async fn send_all(client: Weak<Client>) {
    loop {
        let Some(core) = client.upgrade().map(|c| c.core.clone()) else { return };
        let enough = core.closes.enough.wait();
        if core.closes.waiting.borrow().len() < CLOSES_MAX {
            let _ = core.rt.timeout(GATHER, enough).await;
        }
        let Some(client) = client.upgrade() else { return };
        let (closes, tell): (Vec<Sync>, Vec<_>) = {
            let mut waiting = core.closes.waiting.borrow_mut();
            let many = waiting.len().min(CLOSES_MAX);
            waiting.drain(..many).unzip()
        };
        let results = match client.send_closes(closes).await {
            Ok(results) => results,
            Err(e) => vec![Err(e); tell.len()],
        };
        for (tell, result) in tell.into_iter().zip(results) {
            // Who closed need not wait for the outcome.
            let _ = tell.send(result);
        }
        if core.closes.waiting.borrow().is_empty() {
            core.closes.sending.set(false);
            return;
        }
    }
}
