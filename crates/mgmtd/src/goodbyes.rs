//! Goodbyes of clients, gathered: those that come while others are being stored are stored together, in one transaction.
//!
//! Guarantees: a goodbye is answered when the session's end is stored; however many there are, at most one transaction of theirs stands between a change of chains and
//! its turn; those that wait are bounded, and one user leaves room for others. Must never: hold up what takes a dead node out of its chains.

use crate::clients::{ENDED_PER_CHANGE, not_yours};
use crate::core::Inner;
use glowfs_net::Identity;
use glowfs_rt::sync::{OneSender, Share, Shares, oneshot};
use glowfs_types::wire::Empty;
use glowfs_types::wire::mgmtd::ClientGoodbye;
use glowfs_types::{ClientId, Error, Result, Status, UserId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Goodbyes that wait. A user alone gets half of them (see [`Shares`]); one more is refused: who is not heard for a session's time has ended as well.
const WAITING_MAX: usize = 8192;

/// See the module.
pub struct Goodbyes {
    waiting: RefCell<VecDeque<Goodbye>>,
    places: Shares<UserId>,
    /// A task is ending sessions.
    busy: Cell<bool>,
}

struct Goodbye {
    client: ClientId,
    done: OneSender<Result<()>>,
    _place: Share<UserId>,
}

impl Default for Goodbyes {
    fn default() -> Self {
        Self {
            waiting: RefCell::default(),
            places: Shares::new(WAITING_MAX),
            busy: Cell::new(false),
        }
    }
}

impl Inner {
    pub async fn client_goodbye(
        self: &Rc<Self>,
        who: Identity,
        goodbye: ClientGoodbye,
    ) -> Result<Empty> {
        let client = goodbye.client;
        match self.with(|s| s.clients.get(&client).map(|c| c.session.user))? {
            None => return Ok(Empty {}),
            Some(user) if user != who.user && !who.root => return Err(not_yours()),
            Some(_) => {}
        }
        let all = &self.goodbyes;
        let Some(place) = all.places.take(who.user) else {
            let e = "too many clients of yours end at the same time; this one ends when it has been silent for a session's time";
            return Err(Error::new(Status::Overloaded, e));
        };
        let (done, outcome) = oneshot();
        all.waiting.borrow_mut().push_back(Goodbye { client, done, _place: place });
        if !all.busy.replace(true) {
            self.rt.spawn_detached(self.clone().end_those_that_wait());
        }
        let lost = |_| Err(Error::new(Status::Internal, "nobody ended this session"));
        outcome.await.unwrap_or_else(lost).map(|()| Empty {})
    }

    async fn end_those_that_wait(self: Rc<Self>) {
        loop {
            let part: Vec<_> = {
                let mut waiting = self.goodbyes.waiting.borrow_mut();
                let some = waiting.len().min(ENDED_PER_CHANGE);
                waiting.drain(..some).collect()
            };
            if part.is_empty() {
                self.goodbyes.busy.set(false);
                return;
            }
            let outcome = self.end_clients(part.iter().map(|g| g.client).collect(), None).await;
            for goodbye in part {
                // Whoever asked may have left.
                let _ = goodbye.done.send(outcome.clone());
            }
        }
    }
}
