//! The task that reads: gives answers to our calls, calls of the peer to the handler.

use super::Conn;
use super::lingering::linger;
use super::outgoing::{OutFrame, Weight};
use crate::Response;
use crate::inbound::Inbound;
use crate::incoming::{Incoming, Room};
use crate::limits::{INCOMING_BYTES_MAX, INCOMING_CALLS_MAX};
use glowfs_rt::backend::FDS_PENDING_MAX;
use glowfs_rt::{Buf, Duration, Instant};
use glowfs_types::wire::frame::{
    FLAG_BULK_INLINE, FLAG_BULK_REGION, FLAG_RECV_INLINE, FLAG_RECV_REGION, FrameHeader,
    KIND_ONEWAY, KIND_REQUEST, KIND_RESPONSE,
};
use glowfs_types::wire::hello::{RegisterRegion, UnregisterRegion};
use glowfs_types::wire::method::{ECHO, HELLO, REGISTER_REGION, UNREGISTER_REGION, name};
use glowfs_types::wire::{ErrorBody, decode, encode};
use glowfs_types::{Error, Result, Status};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Frames handled before other tasks get their turn,
const FRAMES_PER_TURN: u32 = 64;
/// and bytes of bulk: who waited for a large answer looks at it and asks for the next while what comes behind it is on its way.
const BULK_BYTES_PER_TURN: usize = 256 << 10;

/// Reads until the connection ends.
pub(super) async fn read(conn: Rc<Conn>, mut inbound: Inbound) {
    let why = match until_end(&conn, &mut inbound).await {
        Ok(()) => Error::new(Status::Disconnected, "the peer closed the connection"),
        Err(e) => e,
    };
    conn.end(why);
    conn.handler.disconnected(&conn);
    linger(conn, inbound).await;
}

/// Takes frames until there are no more, or the connection was ended here: the peer may not notice for long.
async fn until_end(conn: &Rc<Conn>, inbound: &mut Inbound) -> Result<()> {
    let mut frames = pin!(frames(conn, inbound));
    poll_fn(|cx| {
        conn.ended_waiters.register(cx);
        if conn.is_closed() {
            return Poll::Ready(Ok(()));
        }
        frames.as_mut().poll(cx)
    })
    .await
}

async fn frames(conn: &Rc<Conn>, inbound: &mut Inbound) -> Result<()> {
    let mut fds = VecDeque::new();
    let (mut turn, mut bulk) = (0, 0);
    while let Some(header) = inbound.header().await? {
        if conn.is_closed() {
            return Ok(());
        }
        check_flags(&header)?;
        let body = inbound.body(&header).await?;
        match header.kind {
            KIND_RESPONSE => answer(conn, inbound, &header, body).await?,
            KIND_ONEWAY => match header.method.get() {
                REGISTER_REGION => {
                    fds.extend(inbound.take_fds());
                    if fds.len() > FDS_PENDING_MAX {
                        return Err(bad("more descriptors than shared regions".into()));
                    }
                    register(conn, &body, fds.pop_front())?;
                }
                UNREGISTER_REGION => {
                    let gone: UnregisterRegion = decode(&body)?;
                    conn.regions_in.borrow_mut().unregister(gone.key)?;
                }
                _ => request(conn, inbound, header, body).await?,
            },
            _ => request(conn, inbound, header, body).await?,
        }
        turn += 1;
        if header.flags == FLAG_BULK_INLINE {
            bulk += header.bulk_len.get() as usize;
        }
        if turn == FRAMES_PER_TURN || bulk >= BULK_BYTES_PER_TURN {
            (turn, bulk) = (0, 0);
            conn.rt.yield_now().await;
        }
    }
    Ok(())
}

fn register(conn: &Conn, body: &[u8], memfd: Option<OwnedFd>) -> Result<()> {
    if !conn.peer.shares_memory() {
        return Err(bad("a shared region, though none was agreed on".into()));
    }
    let region: RegisterRegion = decode(body)?;
    let memfd = memfd.ok_or_else(|| bad("a shared region came without its memfd".into()))?;
    conn.regions_in.borrow_mut().register(region.key, region.len, memfd)
}

/// One kind of bulk at most, and only where it makes sense.
fn check_flags(header: &FrameHeader) -> Result<()> {
    let allowed = match header.kind {
        KIND_REQUEST => {
            [0, FLAG_BULK_INLINE, FLAG_BULK_REGION, FLAG_RECV_INLINE, FLAG_RECV_REGION].as_slice()
        }
        KIND_RESPONSE => [0, FLAG_BULK_INLINE, FLAG_BULK_REGION].as_slice(),
        _ => [0].as_slice(),
    };
    if !allowed.contains(&header.flags) || (header.flags == 0 && header.bulk_len.get() != 0) {
        return Err(bad(format!(
            "flags {:#x} with {} bytes of bulk in a message of kind {}",
            header.flags, header.bulk_len, header.kind
        )));
    }
    Ok(())
}

/// An answer to a call of ours.
async fn answer(
    conn: &Rc<Conn>,
    inbound: &mut Inbound,
    header: &FrameHeader,
    body: Vec<u8>,
) -> Result<()> {
    let id = header.request_id.get();
    let mut call = conn.calls.borrow_mut().begin_answer(id, header.method.get())?;
    let len = header.bulk_len.get() as usize;
    if len > 0 {
        let shared = header.flags == FLAG_BULK_REGION;
        let room = call.recv.as_deref_mut().filter(|room| len <= room.len());
        let Some(room) = room.filter(|_| shared == call.shared) else {
            return Err(bad(format!(
                "an answer with {len} bytes of bulk that we gave no room for"
            )));
        };
        if !shared {
            inbound.fill_counting(&mut room[..len], &conn.delivery.received).await?;
        }
    }
    let result = match Status::from_code(header.status.get()) {
        Status::Ok => Ok(Response { body, bulk: call.recv, bulk_len: len }),
        status => {
            let message = decode::<ErrorBody>(&body).map(|b| b.message).unwrap_or_default();
            Err(Error::new(status, message))
        }
    };
    let waker = conn.calls.borrow_mut().complete(id, result);
    if let Some(waker) = waker {
        waker.wake();
    }
    Ok(())
}

/// A call of the peer.
async fn request(
    conn: &Rc<Conn>,
    inbound: &mut Inbound,
    header: FrameHeader,
    body: Vec<u8>,
) -> Result<()> {
    let len = header.bulk_len.get();
    let inline = header.flags & (FLAG_BULK_INLINE | FLAG_RECV_INLINE) != 0;
    let bytes = body.len() + if inline { len as usize } else { 0 };
    let held = conn.incoming.get();
    let sent = if header.flags == FLAG_BULK_INLINE { len as usize } else { 0 };
    let receiving = conn.sender.as_ref().map(|s| s.receive(sent));
    let refusal = if conn.draining.get() {
        Some(Error::new(Status::ShuttingDown, "the service is stopping"))
    } else if sent > 0 && !conn.handler.takes_bulk(header.method.get()) {
        Some(bad(format!("{} takes no bulk", name(header.method.get()))))
    } else if matches!(receiving, Some(None)) {
        Some(Error::new(Status::Overloaded, "users send more bytes than there is room for"))
    } else if held.calls >= INCOMING_CALLS_MAX || held.bytes + bytes > INCOMING_BYTES_MAX {
        let (calls, bytes) = (held.calls, held.bytes);
        let what = format!("{calls} calls of this connection hold {bytes} bytes here");
        Some(Error::new(Status::Overloaded, what))
    } else {
        None
    };
    if let Some(error) = refusal {
        drop(receiving);
        inbound.skip(sent).await?;
        if header.kind == KIND_REQUEST {
            conn.push(error_frame(&header, &error));
        }
        return Ok(());
    }
    let weight = Weight { calls: 1, bytes };
    conn.incoming.set(Weight { calls: held.calls + 1, bytes: held.bytes + bytes });
    let place = (header.region_key.get(), header.region_offset.get());
    let view = || conn.regions_in.borrow().view(place.0, place.1, len);
    let mut bulk: Option<Buf> = None;
    let mut room = Room::None;
    match header.flags {
        FLAG_BULK_INLINE => {
            let mut into = conn.rt.alloc(sent);
            inbound.fill(&mut into).await?;
            drop(receiving);
            bulk = Some(into.freeze());
        }
        FLAG_BULK_REGION => bulk = Some(view()?.freeze()),
        FLAG_RECV_INLINE => room = Room::Inline(len as usize),
        FLAG_RECV_REGION => room = Room::shared(view()?),
        _ => {}
    }
    let now = conn.rt.turn_began();
    let deadline = match header.deadline_ms.get() {
        0 => Instant(u64::MAX),
        ms => now + Duration::from_millis(ms.into()),
    };
    let incoming = Incoming::new(conn.clone(), header, body, bulk, room, now, deadline, weight);
    match incoming.method() {
        HELLO => incoming.reply(Err(bad("a second hello on one connection".into()))),
        ECHO if !conn.handler.serves_echo() => incoming.echo(),
        _ => conn.handler.clone().handle(incoming),
    }
    Ok(())
}

/// The answer that refuses a call.
pub(crate) fn error_frame(request: &FrameHeader, error: &Error) -> OutFrame {
    let header = FrameHeader {
        kind: KIND_RESPONSE,
        method: request.method,
        request_id: request.request_id,
        status: error.status.code().into(),
        ..Default::default()
    };
    OutFrame::new(header, encode(&ErrorBody { message: error.message.clone() }), Vec::new())
}

fn bad(what: String) -> Error {
    Error::new(Status::BadMessage, what)
}

#[cfg(test)]
mod tests;
