//! One connection: what both ends share. [`calls`] holds our calls, [`outgoing`] what is to be sent, [`reading`] serves what comes in,
//! [`upkeep`] watches the time, [`patience`] says who waits longer than that, [`lingering`] gives shared memory back after the end.

pub(crate) mod calls;
mod lingering;
pub(crate) mod outgoing;
mod patience;
mod reading;
mod sending;
mod upkeep;

use crate::inbound::Inbound;
use crate::limits::{QUARANTINE, SEND_QUEUE_BYTES_MAX};
use crate::regions::{RegionsIn, RegionsOut};
use crate::shares::Sender;
use crate::waiters::Waiters;
use crate::{Bulk, Handler, Peer, Request, Response};
use calls::{Buffers, Calls};
use glowfs_rt::{Duration, Instant, Rt, Stream};
use glowfs_types::wire::{decode, encode};
use glowfs_types::{Error, Result, Status, TenantId};
use outgoing::{OutFrame, OutQueue, Weight};
use patience::Delivery;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use upkeep::Alarm;

pub(crate) use reading::error_frame;

/// One connection; symmetric after the handshake. Ends when [`Conn::close`] is called, the peer goes, or something not well-formed
/// arrives, not when the last handle is dropped.
pub struct Conn {
    id: u64,
    rt: Rt,
    stream: Stream,
    peer: Peer,
    handler: Rc<dyn Handler>,
    /// Why it ended.
    ended: RefCell<Option<Error>>,
    ended_waiters: Waiters,
    calls: RefCell<Calls>,
    out: RefCell<OutQueue>,
    room_waiters: Waiters,
    /// When writing began to wait for the peer.
    write_stall: Cell<Option<Instant>>,
    regions_out: RefCell<RegionsOut>,
    regions_in: RefCell<RegionsIn>,
    /// What the peer's calls hold here.
    incoming: Cell<Weight>,
    /// On whose account the peer sends bulk, if it is a user of a server.
    sender: Option<Sender>,
    /// New calls of the peer are answered `ShuttingDown`.
    draining: Cell<bool>,
    drained_waiters: Waiters,
    alarm: Alarm,
    delivery: Delivery,
    /// What the peer could still reach when the connection ended; it goes with the reading task ([`lingering`]).
    reachable: RefCell<Vec<Buffers>>,
    quarantine: Duration,
}

thread_local! {
    static LAST_ID: Cell<u64> = const { Cell::new(0) };
}

impl Conn {
    /// Starts the tasks of a connection whose handshake is done.
    #[cfg(test)]
    pub(crate) fn start(
        rt: &Rt,
        inbound: Inbound,
        peer: Peer,
        handler: Rc<dyn Handler>,
    ) -> Rc<Self> {
        Self::start_with(rt, inbound, peer, handler, (QUARANTINE, None))
    }

    /// The same of one that a server accepted; `sender`: on whose account it sends bulk.
    pub(crate) fn accepted(
        rt: &Rt,
        inbound: Inbound,
        peer: Peer,
        handler: Rc<dyn Handler>,
        sender: Option<Sender>,
    ) -> Rc<Self> {
        Self::start_with(rt, inbound, peer, handler, (QUARANTINE, sender))
    }

    /// The same; `quarantine`: see [`crate::ConnectorOptions`].
    pub(crate) fn start_with(
        rt: &Rt,
        inbound: Inbound,
        peer: Peer,
        handler: Rc<dyn Handler>,
        (quarantine, sender): (Duration, Option<Sender>),
    ) -> Rc<Self> {
        let id = LAST_ID.get() + 1;
        LAST_ID.set(id);
        let conn = Rc::new(Self {
            id,
            rt: rt.clone(),
            stream: inbound.stream().clone(),
            peer,
            handler: handler.clone(),
            ended: RefCell::default(),
            ended_waiters: Waiters::default(),
            calls: RefCell::default(),
            out: RefCell::default(),
            room_waiters: Waiters::default(),
            write_stall: Cell::default(),
            regions_out: RefCell::default(),
            regions_in: RefCell::default(),
            incoming: Cell::default(),
            sender,
            draining: Cell::new(false),
            drained_waiters: Waiters::default(),
            alarm: Alarm::default(),
            delivery: Delivery::default(),
            reachable: RefCell::default(),
            quarantine,
        });
        if let Some(sender) = &conn.sender {
            let it = Rc::downgrade(&conn);
            sender.queues(id, move |why| {
                if let Some(conn) = it.upgrade() {
                    conn.end(why);
                }
            });
        }
        tracing::debug!(conn = id, peer = %conn.peer, shm = conn.peer.shares_memory(), "connected");
        crate::metrics::open(1);
        handler.connected(&conn);
        rt.spawn_detached(upkeep::watch(conn.clone(), inbound.pulse()));
        rt.spawn_detached(sending::write(conn.clone()));
        rt.spawn_detached(reading::read(conn.clone(), inbound));
        conn
    }

    /// Calls the peer. A status other than Ok, `TimedOut` and `Disconnected` come as errors; after these two the
    /// outcome is not known.
    pub fn call(&self, req: Request) -> impl Future<Output = Result<Response>> {
        let most = req.deadline;
        self.call_within(req, most)
    }
    /// The same, but when its time is up it goes on waiting as long as its answer is on its way behind others, for so long in all at the most ([`patience`]). The peer is told
    /// the deadline alone.
    pub fn call_patiently(
        &self,
        req: Request,
        most: Duration,
    ) -> impl Future<Output = Result<Response>> {
        self.call_within(req, most)
    }
    async fn call_within(&self, req: Request, most: Duration) -> Result<Response> {
        let started = self.rt.turn_began();
        let method = req.method;
        let result = self.call_until(req, started, most).await;
        crate::metrics::called(method, self.rt.turn_began().since(started), &result);
        result.map_err(|e| {
            e.context(format_args!("{} to {}", glowfs_types::wire::method::name(method), self.peer))
        })
    }

    /// Calls with control messages.
    pub async fn call_msg<Q, R>(&self, method: u16, q: &Q, deadline: Duration) -> Result<R>
    where
        Q: minicbor::Encode<()>,
        R: for<'b> minicbor::Decode<'b, ()>,
    {
        let body = encode(q);
        let tenant = TenantId::default();
        let response =
            self.call(Request { method, body, bulk: Bulk::None, tenant, deadline }).await?;
        decode(&response.body)
    }

    /// Sends a message that is not answered. It is lost if the connection breaks.
    pub fn notify(&self, method: u16, body: Vec<u8>) -> Result<()> {
        self.check_open()?;
        self.send_oneway(method, body, None)
    }

    /// Unique among the connections of this thread.
    pub fn id(&self) -> u64 {
        self.id
    }
    /// Whether it has ended.
    pub fn is_closed(&self) -> bool {
        self.ended.borrow().is_some()
    }
    /// Ends it: outstanding calls of ours get `Disconnected`.
    pub fn close(&self) {
        self.end(Error::new(Status::Disconnected, "the connection was closed at this end"));
    }
    /// Resolves when it has ended.
    pub async fn closed(self: &Rc<Self>) {
        poll_fn(|cx| {
            if self.is_closed() {
                return Poll::Ready(());
            }
            self.ended_waiters.register(cx);
            Poll::Pending
        })
        .await;
    }
    /// The other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
    /// Our calls that are not answered yet, for balancing and tests.
    pub fn outstanding(&self) -> usize {
        self.calls.borrow().len()
    }

    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }

    /// From now on new calls of the peer are refused.
    pub(crate) fn begin_drain(&self) {
        self.draining.set(true);
    }
    /// Resolves when all answers have left, or the connection ended.
    pub(crate) async fn drained(&self) {
        poll_fn(|cx| {
            let idle = self.incoming.get().calls == 0 && self.out.borrow().bytes() == 0;
            if idle || self.is_closed() {
                return Poll::Ready(());
            }
            self.drained_waiters.register(cx);
            Poll::Pending
        })
        .await;
    }

    fn check_open(&self) -> Result<()> {
        match &*self.ended.borrow() {
            None => Ok(()),
            Some(e) => Err(e.clone()),
        }
    }

    /// How many bytes of what was sent have arrived at the peer's machine, as far as can be told.
    pub(crate) fn taken(&self) -> u64 {
        self.out.borrow().written().saturating_sub(self.stream.unsent() as u64)
    }

    /// Queues a frame.
    pub(crate) fn push(&self, frame: OutFrame) {
        if self.is_closed() {
            return;
        }
        let (waker, bytes) = {
            let mut out = self.out.borrow_mut();
            let waker = out.push(frame);
            (waker, out.bytes())
        };
        self.count_queued();
        if bytes > SEND_QUEUE_BYTES_MAX {
            self.end(Error::new(
                Status::Disconnected,
                format!("the peer does not read: {bytes} bytes are queued for it"),
            ));
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Tells on whose account how much waits to be sent. It may end this connection, or another one of the same user.
    fn count_queued(&self) {
        if let Some(sender) = &self.sender {
            let bytes = self.out.borrow().plain();
            sender.queued(bytes);
        }
    }

    /// What a call of the peer held here is free again.
    pub(crate) fn release(&self, weight: Weight) {
        let mut held = self.incoming.get();
        held.calls = held.calls.saturating_sub(weight.calls);
        held.bytes = held.bytes.saturating_sub(weight.bytes);
        self.incoming.set(held);
        self.drained_waiters.wake();
    }

    /// Ends the connection; the first reason counts.
    pub(crate) fn end(&self, why: Error) {
        {
            let mut ended = self.ended.borrow_mut();
            if ended.is_some() {
                return;
            }
            crate::metrics::open(-1);
            *ended = Some(Error::new(Status::Disconnected, why.message.clone()));
        }
        match why.status {
            Status::Disconnected => {
                tracing::debug!(conn = self.id, peer = %self.peer, why = why.message, "disconnected");
            }
            _ => {
                crate::metrics::broken(why.status);
                tracing::warn!(conn = self.id, peer = %self.peer, why = why.message,
                    "the peer sent something not well-formed; closing the connection");
            }
        }
        let error = Error::new(Status::Disconnected, why.message);
        let (wake, reachable) = self.calls.borrow_mut().fail_all(&error);
        if reachable.is_empty() {
            self.stream.shutdown();
        } else {
            // The reading task waits for the peer's end before it gives them back.
            self.stream.shutdown_write();
            *self.reachable.borrow_mut() = reachable;
        }
        let (frames, writer) = self.out.borrow_mut().clear();
        drop(frames);
        self.count_queued();
        drop(std::mem::take(&mut *self.regions_in.borrow_mut()));
        wake.into_iter().chain(writer).for_each(|w| w.wake());
        self.room_waiters.wake();
        self.drained_waiters.wake();
        self.ended_waiters.wake();
        self.alarm.ring();
    }
}
