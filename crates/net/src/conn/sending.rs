//! Making calls: from a request to a frame, and the task that writes frames.

use super::Conn;
use super::calls::Buffers;
use super::outgoing::{OutFrame, is_control};
use super::patience::{Delivered, Kind, Times, Wait, is_enough};
use crate::limits::{BEHIND_BYTES_MIN, DELIVERY_PAUSE_MAX, SEND_QUEUE_BYTES};
use crate::regions::Name;
use crate::{Bulk, Request, Response};
use glowfs_rt::mem::Region;
use glowfs_rt::{Buf, Duration, Instant};
use glowfs_types::wire::encode;
use glowfs_types::wire::frame::{
    BODY_BYTES_MAX, BULK_BYTES_MAX, FLAG_BULK_INLINE, FLAG_BULK_REGION, FLAG_RECV_INLINE,
    FLAG_RECV_REGION, FrameHeader, HEADER_BYTES, KIND_ONEWAY, KIND_REQUEST,
};
use glowfs_types::wire::hello::{RegisterRegion, UnregisterRegion};
use glowfs_types::wire::method::{REGISTER_REGION, UNREGISTER_REGION};
use glowfs_types::{Error, Result, Status};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// A place in a region, as the peer knows it.
struct Place {
    key: u32,
    offset: u64,
    len: u32,
}

/// Gives the call's place up when the caller stops waiting.
struct Waiting<'a> {
    conn: &'a Conn,
    id: u64,
    done: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.conn.calls.borrow_mut().abandon(self.id);
        }
    }
}

impl Conn {
    pub(super) async fn call_until(
        &self,
        req: Request,
        made: Instant,
        most: Duration,
    ) -> Result<Response> {
        self.check_open()?;
        check_size(&req)?;
        // What overtakes the queue need not wait for it either.
        let control = matches!(req.bulk, Bulk::None) && is_control(KIND_REQUEST, 0, req.method);
        let mut times = Times { made, time: req.deadline, until: made + most };
        if !control && self.out.borrow().bytes() > SEND_QUEUE_BYTES {
            times = Box::pin(self.room(times)).await?;
        }
        let id = self.enter(req, times)?;
        let mut waiting = Waiting { conn: self, id, done: false };
        let result = poll_fn(|cx| match self.calls.borrow_mut().poll(id, cx.waker()) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        })
        .await;
        // A timed-out call stays in the table, and is abandoned already.
        waiting.done = true;
        result
    }

    /// Waits until the queue has room; a patient call as long as its connection takes what stands before it. How long it waits after that.
    async fn room(&self, times: Times) -> Result<Times> {
        let (mut by, mut seen) = (times.deadline(), (self.delivered_at_least().taken, times.made));
        while !self.room_by(by).await? {
            let (taken, now) = (self.taken(), self.rt.now());
            let moves = is_enough(taken.saturating_sub(seen.0), now.since(seen.1));
            seen = (taken, now);
            by = (now + DELIVERY_PAUSE_MAX).min(times.until);
            if !moves || by <= now {
                let e = "the peer reads too slowly; nothing was sent";
                return Err(Error::new(Status::Overloaded, e));
            }
        }
        if !times.is_patient() {
            return Ok(times);
        }
        Ok(Times { made: self.rt.now(), ..times })
    }

    /// Whether the queue has room by then.
    async fn room_by(&self, deadline: Instant) -> Result<bool> {
        let mut sleep = pin!(self.rt.sleep_until(deadline));
        poll_fn(|cx| {
            if let Err(e) = self.check_open() {
                return Poll::Ready(Err(e));
            }
            if self.out.borrow().bytes() <= SEND_QUEUE_BYTES {
                return Poll::Ready(Ok(true));
            }
            self.room_waiters.register(cx);
            sleep.as_mut().poll(cx).map(|()| Ok(false))
        })
        .await
    }

    /// Enters the call into the table and queues its frame.
    fn enter(&self, req: Request, times: Times) -> Result<u64> {
        let mut header = FrameHeader {
            kind: KIND_REQUEST,
            method: req.method.into(),
            tenant: req.tenant.get().into(),
            deadline_ms: deadline_ms(req.deadline).into(),
            ..Default::default()
        };
        let mut inline = Vec::new();
        let mut buffers = Buffers::default();
        match req.bulk {
            Bulk::None => {}
            Bulk::Send(bufs) => {
                header.bulk_len = (bufs.iter().map(|b| b.len()).sum::<usize>() as u32).into();
                if header.bulk_len.get() == 0 {
                } else if let Some(place) = self.place_of(&bufs) {
                    header.flags = FLAG_BULK_REGION;
                    put_place(&mut header, &place);
                    buffers.send = bufs;
                } else {
                    header.flags = FLAG_BULK_INLINE;
                    inline = bufs;
                }
            }
            Bulk::Recv(room) => {
                header.bulk_len = (room.len() as u32).into();
                header.flags = FLAG_RECV_INLINE;
                if !room.is_empty()
                    && let Some((region, offset)) = self.shareable(room.region())
                    && let Some(key) = self.name_region(&region)
                {
                    header.flags = FLAG_RECV_REGION;
                    put_place(&mut header, &Place { key, offset, len: room.len() as u32 });
                    buffers.shared = true;
                }
                buffers.recv = Some(room);
            }
        }
        let (kind, sends) = match header.flags {
            FLAG_RECV_INLINE | FLAG_RECV_REGION => (Kind::Receives, 0),
            FLAG_BULK_INLINE | FLAG_BULK_REGION => (Kind::Sends, header.bulk_len.get()),
            _ => (Kind::Bare, 0),
        };
        let inline_len: usize = inline.iter().map(|b| b.len()).sum();
        let behind = self.behind(&header, (HEADER_BYTES + req.body.len() + inline_len) as u64);
        let mut calls = self.calls.borrow_mut();
        let known = Delivered { answered: calls.sent(), ..self.delivered_at_least() };
        let wait = Wait::new(times, kind, behind, known);
        let look_at = wait.at;
        let id = calls.insert(req.method, wait, sends, buffers)?;
        drop(calls);
        header.request_id = id.into();
        self.push(OutFrame::new(header, req.body, inline));
        self.alarm.set(look_at);
        Ok(id)
    }

    /// Where in what we send a frame of so many bytes ends that is queued now, if it has to wait there.
    fn behind(&self, header: &FrameHeader, len: u64) -> Option<u64> {
        let out = self.out.borrow();
        let waiting = out.bytes() as u64 + len;
        let overtakes = is_control(header.kind, header.flags, header.method.get());
        (waiting > BEHIND_BYTES_MIN && !overtakes).then(|| out.written() + waiting)
    }

    fn shareable(&self, region: Option<(Rc<Region>, u64)>) -> Option<(Rc<Region>, u64)> {
        region.filter(|_| self.peer.shares_memory())
    }

    /// The one place that the buffers lie in, if they can be shared.
    fn place_of(&self, bufs: &[Buf]) -> Option<Place> {
        if !self.peer.shares_memory() {
            return None;
        }
        let (first, rest) = bufs.split_first()?;
        let (region, offset) = first.region()?;
        let mut end = offset.checked_add(first.len() as u64)?;
        for next in rest {
            let (other, at) = next.region()?;
            if other.id != region.id || at != end {
                return None;
            }
            end = end.checked_add(next.len() as u64)?;
        }
        let key = self.name_region(&region)?;
        Some(Place { key, offset, len: (end - offset) as u32 })
    }

    /// The key of a region, after telling the peer if it is new.
    fn name_region(&self, region: &Rc<Region>) -> Option<u32> {
        let known = self.regions_out.borrow_mut().name(region);
        let name = match known {
            Some(name) => name,
            // Perhaps some are gone meanwhile.
            None => {
                self.forget_regions();
                self.regions_out.borrow_mut().name(region)?
            }
        };
        match name {
            Name::Known(key) => Some(key),
            Name::New(key) => {
                self.forget_regions();
                let body = encode(&RegisterRegion { key, len: region.len });
                self.send_oneway(REGISTER_REGION, body, Some(region.clone())).ok()?;
                Some(key)
            }
        }
    }

    /// Tells the peer which regions are gone.
    pub(super) fn forget_regions(&self) {
        let gone = self.regions_out.borrow_mut().sweep();
        for key in gone {
            // It fails only if the connection has ended, and with it the keys.
            let _ = self.send_oneway(UNREGISTER_REGION, encode(&UnregisterRegion { key }), None);
        }
    }

    pub(super) fn send_oneway(
        &self,
        method: u16,
        body: Vec<u8>,
        region: Option<Rc<Region>>,
    ) -> Result<()> {
        if body.len() > BODY_BYTES_MAX as usize {
            return Err(too_large(method, "body", body.len(), BODY_BYTES_MAX));
        }
        let header = FrameHeader { kind: KIND_ONEWAY, method: method.into(), ..Default::default() };
        let mut frame = OutFrame::new(header, body, Vec::new());
        if let Some(region) = region {
            frame = frame.with_region(region);
        }
        self.push(frame);
        Ok(())
    }
}

fn put_place(header: &mut FrameHeader, place: &Place) {
    header.region_key = place.key.into();
    header.region_offset = place.offset.into();
    header.bulk_len = place.len.into();
}

/// The deadline of a header: whole milliseconds, rounded up; 0 is «none».
fn deadline_ms(deadline: glowfs_rt::Duration) -> u32 {
    match u32::try_from(deadline.as_micros().div_ceil(1000)) {
        Ok(ms) => ms.max(1),
        Err(_) => 0,
    }
}

fn check_size(req: &Request) -> Result<()> {
    let bulk = match &req.bulk {
        Bulk::None => 0,
        Bulk::Send(bufs) => bufs.iter().fold(0usize, |sum, b| sum.saturating_add(b.len())),
        Bulk::Recv(room) => room.len(),
    };
    if req.body.len() > BODY_BYTES_MAX as usize {
        return Err(too_large(req.method, "body", req.body.len(), BODY_BYTES_MAX));
    }
    if bulk > BULK_BYTES_MAX as usize {
        return Err(too_large(req.method, "bulk", bulk, BULK_BYTES_MAX));
    }
    Ok(())
}

fn too_large(method: u16, what: &str, len: usize, max: u32) -> Error {
    Error::new(
        Status::TooLarge,
        format!("{what} of method {method} has {len} bytes; at most {max} fit one message"),
    )
}

/// The task that writes.
pub(super) async fn write(conn: Rc<Conn>) {
    loop {
        let sent = poll_fn(|cx| {
            if conn.is_closed() {
                return Poll::Ready(None);
            }
            let sent = conn.out.borrow_mut().poll_send(cx, &conn.stream);
            if sent.is_pending() && conn.out.borrow().bytes() > 0 {
                if conn.write_stall.get().is_none() {
                    conn.write_stall.set(Some(conn.rt.now()));
                }
                // A peer that takes nothing does not wake it at the end either.
                conn.ended_waiters.register(cx);
            } else {
                conn.write_stall.set(None);
            }
            sent.map(Some)
        })
        .await;
        match sent {
            None => return,
            Some(Ok((_, free))) => {
                conn.count_queued();
                if free != Default::default() {
                    conn.release(free);
                }
                if conn.out.borrow().bytes() <= SEND_QUEUE_BYTES {
                    conn.room_waiters.wake();
                }
                conn.drained_waiters.wake();
            }
            Some(Err(e)) => {
                conn.end(Error::new(Status::Disconnected, e.to_string()));
                return;
            }
        }
    }
}
