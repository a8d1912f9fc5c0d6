//! GET_ROUTING: what is new of the routing info, for very many who ask at the same time.
//!
//! Guarantees: who has everything costs no walk over it; those who have the same get the same bytes, worked out once ([`Answers`]); of costly answers each user gets one in
//! a turn of the thread's tasks ([`Turns`]), and who does not wait any more gets none. So whoever asks, and however often, the primary renews its lease meanwhile on the
//! same thread. Must never: answer from a version that is not the present one.

use crate::core::Inner;
use crate::state::State;
use glowfs_net::{Identity, Incoming, Reply};
use glowfs_rt::sync::{Permit, Semaphore, Share, Shares};
use glowfs_rt::{Duration, Instant};
use glowfs_types::wire::encode;
use glowfs_types::wire::mgmtd::GetRouting;
use glowfs_types::{Error, Result, RoutingVersion, Status, UserId};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// The longest time a routing request waits for news.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Calls of users at a time. A user alone gets half of them (see [`Shares`]): each of the clients that he may have asks once at a time. Services and who has root's
/// token are not counted.
const CALLS_MAX: usize = 1 << 17;
/// Answers that are kept,
const ANSWERS_MAX: usize = 64;
/// and their bytes; the last one is kept whatever it has.
const ANSWERS_BYTES_MAX: usize = 16 << 20;
/// How long an answer is given: what is not versioned (when a node was heard, how full a target is) is not older.
const ANSWER_AGE_MAX: Duration = Duration::from_millis(500);
/// An answer of more bytes than this takes its user's turn, even if it was worked out already: it is copied and summed up.
const CHEAP_BYTES_MAX: usize = 4 << 10;

/// Encoded answers of the present version, by what the caller has; the oldest first.
#[derive(Default)]
pub struct Answers {
    kept: VecDeque<Answer>,
    bytes: usize,
}

struct Answer {
    have: RoutingVersion,
    made: Instant,
    body: Rc<[u8]>,
}

impl Answers {
    /// The routing info has changed.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
    fn find(&self, have: RoutingVersion, now: Instant) -> Option<Rc<[u8]>> {
        let fresh = |a: &&Answer| a.have == have && now.since(a.made) < ANSWER_AGE_MAX;
        self.kept.iter().find(fresh).map(|a| a.body.clone())
    }
    fn keep(&mut self, have: RoutingVersion, now: Instant, body: Rc<[u8]>) {
        self.kept.retain(|a| a.have != have);
        self.kept.push_back(Answer { have, made: now, body });
        self.bytes = self.kept.iter().map(|a| a.body.len()).sum();
        while self.kept.len() > ANSWERS_MAX
            || (self.bytes > ANSWERS_BYTES_MAX && self.kept.len() > 1)
        {
            let Some(oldest) = self.kept.pop_front() else { return };
            self.bytes -= oldest.body.len();
        }
    }
}

impl State {
    /// What changed after `have`, encoded, and whether that was work.
    fn answer(&mut self, have: RoutingVersion, now: Instant) -> (Rc<[u8]>, bool) {
        if let Some(body) = self.answers.find(have, now) {
            let costly = body.len() > CHEAP_BYTES_MAX;
            return (body, costly);
        }
        let body: Rc<[u8]> = encode(&self.delta(have)).into();
        self.answers.keep(have, now, body.clone());
        (body, true)
    }
}

/// On whose account a call is: services have one of their own, whatever user they are.
type Account = (bool, UserId);

/// Whose turn it is.
pub struct Turns {
    calls: Shares<UserId>,
    /// Of those who have calls that want an answer now.
    accounts: RefCell<BTreeMap<Account, Rc<Semaphore>>>,
}

/// The turn of a user; the next call of his has it when this is dropped.
struct Turn<'a> {
    of: &'a Turns,
    account: Account,
    permit: Option<(Rc<Semaphore>, Permit)>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { calls: Shares::new(CALLS_MAX), accounts: RefCell::default() }
    }
}

impl Turns {
    /// A place for a call of somebody, or `Overloaded`.
    pub fn place(&self, who: &Identity) -> Result<Option<Share<UserId>>> {
        if who.service || who.root {
            return Ok(None);
        }
        let user = who.user;
        let e = || Error::new(Status::Overloaded, format!("user {user} asks too often for news"));
        self.calls.take(user).map(Some).ok_or_else(e)
    }
    async fn turn(&self, who: &Identity) -> Turn<'_> {
        let account = (who.service, who.user);
        let mine = self.accounts.borrow_mut().entry(account).or_insert_with(one).clone();
        let mut turn = Turn { of: self, account, permit: None };
        let permit = mine.acquire(1).await;
        turn.permit = Some((mine, permit));
        turn
    }
}

fn one() -> Rc<Semaphore> {
    Rc::new(Semaphore::new(1))
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.permit.take();
        let mut accounts = self.of.accounts.borrow_mut();
        // Whoever waits has it as well.
        if accounts.get(&self.account).is_some_and(|a| Rc::strong_count(a) == 1) {
            accounts.remove(&self.account);
        }
    }
}

impl Inner {
    /// Answers GET_ROUTING.
    pub async fn get_routing(&self, incoming: &Incoming) -> Result<Reply> {
        let question: GetRouting = incoming.msg()?;
        let end = self.rt.now() + Duration::from_millis(question.wait_ms).min(WAIT_MAX);
        loop {
            let news = self.changed.wait();
            if self.with(|s| s.version > question.have)? {
                break;
            }
            let left = end.since(self.rt.now());
            if left.is_zero() || self.stopping.get() {
                return self.with(|s| Reply::msg(&s.delta(s.version)));
            }
            let _ = self.rt.timeout(left, news).await;
        }
        let _turn = self.turns.turn(&incoming.conn().peer().identity).await;
        let now = self.rt.now();
        if now >= incoming.deadline() {
            let e = "the answer comes too late: too many ask for routing info";
            return Err(Error::new(Status::TimedOut, e));
        }
        let (body, costly) = self.with(|s| s.answer(question.have, now))?;
        let reply = Reply::body(body.to_vec());
        if costly {
            // All others come before the next one of this user.
            self.rt.yield_now().await;
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests;
