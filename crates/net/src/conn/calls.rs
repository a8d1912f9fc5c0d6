//! Our calls that wait for their answer.
//!
//! Guarantee: the buffers of a call stay here until its answer came or the connection ended, also when nobody waits any more: the peer may still
//! read or write them.

use super::patience::{Delivered, Kind, Wait};
use crate::Response;
use crate::limits::OUTSTANDING_CALLS_MAX;
use glowfs_rt::{Buf, BufMut, Instant};
use glowfs_types::{Error, Result, Status};
use slab::Slab;
use std::task::Waker;

/// Bits of a request id that are the place in the table; the others make ids unique over time.
const PLACE_BITS: u32 = 16;

/// The buffers of a call.
#[derive(Default)]
pub(crate) struct Buffers {
    /// What the peer may read in place; empty if the bulk was sent inline.
    pub(crate) send: Vec<Buf>,
    /// Where the bulk of the answer goes.
    pub(crate) recv: Option<BufMut>,
    /// The peer writes to `recv` in place.
    pub(crate) shared: bool,
}

impl Buffers {
    /// Whether the peer can reach them without us.
    pub(crate) fn peer_can_reach(&self) -> bool {
        self.shared || !self.send.is_empty()
    }
}

enum State {
    Waiting,
    TimedOut,
    Abandoned,
    Answered(Result<Response>),
}

struct Call {
    id: u64,
    method: u16,
    wait: Wait,
    /// Bytes of bulk that it sends.
    sends: u32,
    state: State,
    waker: Option<Waker>,
    buffers: Buffers,
}

/// The table.
#[derive(Default)]
pub(crate) struct Calls {
    slots: Slab<Call>,
    next: u64,
    /// When the newest call was made that is answered well, of those that send bulk and of those that receive it.
    answered: [Instant; 2],
    /// Bytes of bulk that calls sent which are answered well.
    sent: u64,
}

/// What an answer is for.
pub(crate) struct Answered {
    /// The room of the call; given back with [`Calls::complete`].
    pub(crate) recv: Option<BufMut>,
    /// Whether the peer has put the bulk there itself.
    pub(crate) shared: bool,
}

fn place(id: u64) -> usize {
    (id & ((1 << PLACE_BITS) - 1)) as usize
}

impl Calls {
    /// Enters a call; its id.
    pub(crate) fn insert(
        &mut self,
        method: u16,
        wait: Wait,
        sends: u32,
        buffers: Buffers,
    ) -> Result<u64> {
        if self.slots.len() >= OUTSTANDING_CALLS_MAX {
            return Err(Error::new(
                Status::Overloaded,
                format!("{OUTSTANDING_CALLS_MAX} calls are outstanding on this connection"),
            ));
        }
        let entry = self.slots.vacant_entry();
        self.next += 1;
        let id = (self.next << PLACE_BITS) | entry.key() as u64;
        let (state, waker) = (State::Waiting, None);
        entry.insert(Call { id, method, wait, sends, state, waker, buffers });
        Ok(id)
    }

    fn get(&mut self, id: u64) -> Option<&mut Call> {
        self.slots.get_mut(place(id)).filter(|call| call.id == id)
    }

    /// The outcome of a call, once; the task is woken when there is one.
    pub(crate) fn poll(&mut self, id: u64, waker: &Waker) -> Option<Result<Response>> {
        let Some(call) = self.get(id) else {
            return Some(Err(Error::new(Status::Internal, "a call that nobody entered")));
        };
        match &call.state {
            State::Waiting | State::Abandoned => {
                call.waker = Some(waker.clone());
                None
            }
            State::TimedOut => {
                call.state = State::Abandoned;
                Some(Err(Error::new(Status::TimedOut, "no answer within the deadline")))
            }
            State::Answered(_) => match self.slots.remove(place(id)).state {
                State::Answered(result) => Some(result),
                _ => None,
            },
        }
    }

    /// Nobody waits for this call any more.
    pub(crate) fn abandon(&mut self, id: u64) {
        let Some(call) = self.get(id) else { return };
        call.waker = None;
        if matches!(call.state, State::Answered(_)) {
            self.slots.remove(place(id));
        } else {
            call.state = State::Abandoned;
        }
    }

    /// An answer begins: takes the room of its call.
    pub(crate) fn begin_answer(&mut self, id: u64, method: u16) -> Result<Answered> {
        let call =
            self.get(id).filter(|call| !matches!(call.state, State::Answered(_))).ok_or_else(
                || bad(format!("an answer to request {id:#x}, which is not outstanding")),
            )?;
        if call.method != method {
            return Err(bad(format!("an answer of method {method} to a call of {}", call.method)));
        }
        Ok(Answered { recv: call.buffers.recv.take(), shared: call.buffers.shared })
    }

    /// The answer is complete.
    pub(crate) fn complete(&mut self, id: u64, result: Result<Response>) -> Option<Waker> {
        let call = self.slots.get_mut(place(id)).filter(|call| call.id == id)?;
        if result.is_ok() {
            let [sending, receiving] = &mut self.answered;
            let made = call.wait.times.made;
            match call.wait.kind {
                Kind::Bare => {}
                Kind::Sends => *sending = made.max(*sending),
                Kind::Receives => *receiving = made.max(*receiving),
            }
            self.sent += u64::from(call.sends);
        }
        let waker = call.waker.take();
        if matches!(call.state, State::Abandoned) {
            self.slots.remove(place(id));
            return None;
        }
        call.buffers = Buffers::default();
        call.state = State::Answered(result);
        waker
    }

    /// What calls that are made now begin to wait by.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Marks the calls whose deadline has passed and that do not go on waiting by what their connection delivers; whom to wake, when to look next, and how many calls wait
    /// unanswered though nobody waits for them since `abandoned_before`.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        abandoned_before: Instant,
        delivered: impl Fn() -> Delivered,
    ) -> (Vec<Waker>, Instant, usize) {
        let (mut wake, mut next, mut stale) = (Vec::new(), Instant(u64::MAX), 0);
        let mut known = None;
        let [sending, receiving] = self.answered;
        for (_, call) in &mut self.slots {
            match call.state {
                State::Waiting if call.wait.at <= now => {
                    let overtaker = match call.wait.kind {
                        Kind::Bare => Instant(0),
                        Kind::Sends => sending,
                        Kind::Receives => receiving,
                    };
                    let answered = self.sent;
                    let d = || *known.get_or_insert_with(|| Delivered { answered, ..delivered() });
                    match call.wait.look(now, overtaker, d) {
                        Some(later) => next = next.min(later),
                        None => {
                            call.state = State::TimedOut;
                            wake.extend(call.waker.take());
                        }
                    }
                }
                State::Waiting => next = next.min(call.wait.at),
                State::Abandoned if call.wait.at <= abandoned_before => stale += 1,
                State::Abandoned | State::TimedOut | State::Answered(_) => {}
            }
        }
        (wake, next, stale)
    }

    /// The connection ended: every waiting call gets `error`. Whom to wake, and the buffers that the peer could still reach.
    pub(crate) fn fail_all(&mut self, error: &Error) -> (Vec<Waker>, Vec<Buffers>) {
        let (mut wake, mut reachable) = (Vec::new(), Vec::new());
        let mut gone = Vec::new();
        for (key, call) in &mut self.slots {
            let buffers = std::mem::take(&mut call.buffers);
            if buffers.peer_can_reach() {
                reachable.push(buffers);
            }
            match call.state {
                State::Waiting | State::TimedOut => {
                    call.state = State::Answered(Err(error.clone()));
                    wake.extend(call.waker.take());
                }
                State::Abandoned => gone.push(key),
                State::Answered(_) => {}
            }
        }
        for key in gone {
            self.slots.remove(key);
        }
        (wake, reachable)
    }

    /// Outstanding calls.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

fn bad(what: String) -> Error {
    Error::new(Status::BadMessage, what)
}
