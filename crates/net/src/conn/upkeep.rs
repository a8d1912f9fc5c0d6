//! Watching the time of one connection: deadlines of our calls, messages that are stuck, peers that are
//! silent, regions that are gone.
//!
//! One timer per connection, set to the earliest deadline: a call costs no timer of its own.

use super::Conn;
use crate::inbound::Pulse;
use crate::limits::{
    ABANDONED_MAX, FRAME_BYTES_PER_SECOND_MIN, FRAME_STALL, OUTSTANDING_CALLS_MAX, PING_DEADLINE,
    PING_TIME_MAX, SILENCE_MAX, UPKEEP_PERIOD,
};
use crate::{Bulk, Request};
use glowfs_rt::Instant;
use glowfs_types::wire::frame::HEADER_BYTES;
use glowfs_types::wire::method::ECHO;
use glowfs_types::{Error, Status, TenantId};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// When the watcher looks next.
pub(super) struct Alarm {
    at: Cell<Instant>,
    waker: RefCell<Option<Waker>>,
}

impl Default for Alarm {
    fn default() -> Self {
        Self { at: Cell::new(Instant(u64::MAX)), waker: RefCell::default() }
    }
}

impl Alarm {
    /// There is something to do at `at`.
    pub(super) fn set(&self, at: Instant) {
        if at < self.at.get() {
            self.at.set(at);
            self.ring();
        }
    }
    /// Look now.
    pub(super) fn ring(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// The task that watches.
pub(super) async fn watch(conn: Rc<Conn>, pulse: Rc<Pulse>) {
    let mut round_at = conn.rt.now() + UPKEEP_PERIOD;
    let pinging = Rc::new(Cell::new(false));
    loop {
        let now = conn.rt.now();
        let next = expire(&conn, now);
        if now >= round_at {
            round_at = now + UPKEEP_PERIOD;
            let waiting = conn.calls.borrow().len() > 0;
            conn.taken_at(now);
            let silent = now.since(pulse.heard_at.get());
            if (silent >= SILENCE_MAX || (waiting && silent >= UPKEEP_PERIOD))
                && !pinging.replace(true)
            {
                conn.rt.spawn_detached(ping(conn.clone(), pulse.clone(), pinging.clone()));
            }
            check_stalls(&conn, now, &pulse);
            check_pace(&conn, now, &pulse);
            conn.forget_regions();
        }
        conn.alarm.at.set(next.min(round_at));
        wait(&conn).await;
        if conn.is_closed() {
            return;
        }
    }
}

/// Asks the peer whether it is there. Its reader answers, whatever its services are busy with; but the question stands behind a message that is begun, and so does the
/// answer. So the peer is there as long as either of them moves. What the kernel here holds has not moved: it takes some MiB for a peer that is gone.
async fn ping(conn: Rc<Conn>, pulse: Rc<Pulse>, pinging: Rc<Cell<bool>>) {
    let (body, bulk, tenant) = (Vec::new(), Bulk::None, TenantId::default());
    let request = Request { method: ECHO, body, bulk, tenant, deadline: PING_TIME_MAX };
    // Until so many bytes have arrived there, the question has not.
    let asked = conn.out.borrow().control_ends() + HEADER_BYTES as u64;
    let (mut taken, mut moved_at) = (conn.taken(), conn.rt.now());
    let mut answer = pin!(conn.call(request));
    let silent = loop {
        if let Ok(answer) = conn.rt.timeout(UPKEEP_PERIOD, answer.as_mut()).await {
            break answer.is_err_and(|e| e.status == Status::TimedOut);
        }
        let (now, before) = (conn.rt.now(), taken);
        taken = taken.max(conn.taken());
        if before < asked && taken > before {
            moved_at = now;
        }
        if now.since(moved_at.max(pulse.heard_at.get())) >= PING_DEADLINE {
            break true;
        }
    };
    pinging.set(false);
    if silent {
        conn.end(disconnected(format!("the peer is silent for more than {PING_DEADLINE:?}")));
    }
}

/// Waits until the alarm's time, which calls may move forward meanwhile.
async fn wait(conn: &Conn) {
    loop {
        let at = conn.alarm.at.get();
        let mut sleep = pin!(conn.rt.sleep_until(at));
        let over = poll_fn(|cx| {
            if conn.is_closed() {
                return Poll::Ready(true);
            }
            if conn.alarm.at.get() != at {
                return Poll::Ready(false);
            }
            *conn.alarm.waker.borrow_mut() = Some(cx.waker().clone());
            sleep.as_mut().poll(cx).map(|()| true)
        })
        .await;
        if over {
            return;
        }
    }
}

/// Ends the waiting of calls whose time is over; when the next one's is.
fn expire(conn: &Rc<Conn>, now: Instant) -> Instant {
    let abandoned_before =
        Instant(now.0.saturating_sub(u64::try_from(ABANDONED_MAX.as_nanos()).unwrap_or(u64::MAX)));
    let (wake, next, stale) =
        conn.calls.borrow_mut().expire(now, abandoned_before, || conn.delivered());
    wake.into_iter().for_each(|w| w.wake());
    if stale > 0 && conn.calls.borrow().len() >= OUTSTANDING_CALLS_MAX {
        conn.end(disconnected(format!(
            "the peer does not answer: {stale} calls are overdue for more than {ABANDONED_MAX:?}"
        )));
    }
    next
}

fn check_stalls(conn: &Rc<Conn>, now: Instant, pulse: &Pulse) {
    for (since, what) in [
        (pulse.stalled.get(), "stopped in the middle of a message"),
        (conn.write_stall.get(), "does not read what we send"),
    ] {
        if since.is_some_and(|since| now.since(since) >= FRAME_STALL) {
            conn.end(disconnected(format!("the peer {what} for {FRAME_STALL:?}")));
        }
    }
}

/// A peer that sends a byte now and then holds the memory of the whole message.
fn check_pace(conn: &Rc<Conn>, now: Instant, pulse: &Pulse) {
    if pulse.is_overdue(now) {
        let rate = FRAME_BYTES_PER_SECOND_MIN;
        let what = format!("the peer sends less than {rate} bytes a second of a message");
        conn.end(disconnected(what));
    }
}

fn disconnected(what: String) -> Error {
    Error::new(Status::Disconnected, what)
}
