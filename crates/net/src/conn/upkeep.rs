//! Watching the time of one connection: deadlines of our calls, messages that are stuck, regions that are gone.
//!
//! One timer per connection, set to the earliest deadline: a call costs no timer of its own.

use super::Conn;
use crate::inbound::Stall;
use crate::limits::{ABANDONED_MAX, FRAME_STALL, OUTSTANDING_CALLS_MAX};
use glowfs_rt::{Duration, Instant};
use glowfs_types::{Error, Status};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// How often a connection is looked after without a deadline.
const ROUND: Duration = Duration::from_secs(10);

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
pub(super) async fn watch(conn: Rc<Conn>, read_stall: Stall) {
    loop {
        let now = conn.rt.now();
        let next = check(&conn, now, &read_stall);
        conn.alarm.at.set(next.min(now + ROUND));
        wait(&conn).await;
        if conn.is_closed() {
            return;
        }
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

/// One look; when to look again.
fn check(conn: &Rc<Conn>, now: Instant, read_stall: &Stall) -> Instant {
    let abandoned_before =
        Instant(now.0.saturating_sub(u64::try_from(ABANDONED_MAX.as_nanos()).unwrap_or(u64::MAX)));
    let (wake, next, stale) = conn.calls.borrow_mut().expire(now, abandoned_before);
    wake.into_iter().for_each(|w| w.wake());
    if stale > 0 && conn.calls.borrow().len() >= OUTSTANDING_CALLS_MAX {
        conn.end(disconnected(format!(
            "the peer does not answer: {stale} calls are overdue for more than {ABANDONED_MAX:?}"
        )));
    }
    for (since, what) in [
        (read_stall.get(), "stopped in the middle of a message"),
        (conn.write_stall.get(), "does not read what we send"),
    ] {
        if since.is_some_and(|since| now.since(since) >= FRAME_STALL) {
            conn.end(disconnected(format!("the peer {what} for {FRAME_STALL:?}")));
        }
    }
    conn.forget_regions();
    next
}

fn disconnected(what: String) -> Error {
    Error::new(Status::Disconnected, what)
}
