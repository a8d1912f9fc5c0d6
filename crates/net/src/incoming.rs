//! One call of the peer, on the serving side.

use crate::conn::error_frame;
use crate::conn::outgoing::{OutFrame, Weight};
use crate::{Conn, Reply};
use glowfs_rt::{Buf, BufMut, Instant};
use glowfs_types::wire::frame::{
    BODY_BYTES_MAX, FLAG_BULK_INLINE, FLAG_BULK_REGION, FrameHeader, KIND_REQUEST, KIND_RESPONSE,
};
use glowfs_types::wire::method::{ECHO, name};
use glowfs_types::{Error, Result, Status};
use std::ops::Range;
use std::rc::Rc;

/// The methods of storage, the only ones that take bulk.
const STORAGE_METHODS: Range<u16> = 200..300;

/// Serves the calls of a peer.
pub trait Handler {
    /// Takes a call. Must not block; what needs to wait is spawned.
    fn handle(self: Rc<Self>, incoming: Incoming);
    /// A connection passed its handshake.
    fn connected(&self, _conn: &Rc<Conn>) {}
    /// A connection ended; called once for each `connected`.
    fn disconnected(&self, _conn: &Rc<Conn>) {}
    /// Whether ECHO comes to [`Handler::handle`]; else it is answered here with its body (and never with bulk).
    fn serves_echo(&self) -> bool {
        false
    }
    /// Whether a method takes bulk that the caller sends. With one that does not, what comes inline is thrown away as it comes, and the call is refused.
    fn takes_bulk(&self, called: u16) -> bool {
        STORAGE_METHODS.contains(&called) || (called == ECHO && self.serves_echo())
    }
}

/// Serves nothing: for clients that are never called.
pub struct NoCalls;
impl Handler for NoCalls {
    fn handle(self: Rc<Self>, incoming: Incoming) {
        let method = incoming.method();
        incoming.reply(Err(Error::new(
            Status::UnknownMethod,
            format!("method {} ({method}) is not served by this end", name(method)),
        )));
    }
}

/// Where the bulk of the answer goes.
pub(crate) enum Room {
    /// Nowhere.
    None,
    /// Inline with the answer, so many bytes at most.
    Inline(usize),
    /// Into the caller's memory. The buffer is gone once the handler took it; its place is kept to know it again.
    Shared { buffer: Option<BufMut>, at: *const u8, len: usize },
}

impl Room {
    pub(crate) fn shared(buffer: BufMut) -> Self {
        Self::Shared { at: buffer.as_ptr(), len: buffer.len(), buffer: Some(buffer) }
    }
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Inline(len) | Self::Shared { len, .. } => *len,
        }
    }
}

/// One call of the peer. Dropping it without a reply answers `Internal`.
pub struct Incoming {
    conn: Rc<Conn>,
    header: FrameHeader,
    body: Vec<u8>,
    bulk: Option<Buf>,
    room: Room,
    room_taken: bool,
    arrived: Instant,
    deadline: Instant,
    weight: Weight,
    replied: bool,
}

impl Incoming {
    #[allow(clippy::too_many_arguments)] // one place makes it, and each is a different type
    pub(crate) fn new(
        conn: Rc<Conn>,
        header: FrameHeader,
        body: Vec<u8>,
        bulk: Option<Buf>,
        room: Room,
        arrived: Instant,
        deadline: Instant,
        weight: Weight,
    ) -> Self {
        let (room_taken, replied) = (false, false);
        Self { conn, header, body, bulk, room, room_taken, arrived, deadline, weight, replied }
    }
    /// Which method.
    pub fn method(&self) -> u16 {
        self.header.method.get()
    }
    /// The encoded body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }
    /// The connection it came on.
    pub fn conn(&self) -> &Rc<Conn> {
        &self.conn
    }
    /// When the caller stops waiting; `Instant(u64::MAX)` if it waits for ever.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
    /// Whether the peer waits for an answer.
    pub fn wants_reply(&self) -> bool {
        self.header.kind == KIND_REQUEST
    }
    /// Decodes a control message.
    pub fn msg<'b, Q: minicbor::Decode<'b, ()>>(&'b self) -> Result<Q> {
        glowfs_types::wire::decode(self.body())
    }
    /// Bytes of bulk that the caller sent.
    pub fn bulk_len(&self) -> usize {
        self.bulk.as_deref().map_or(0, <[u8]>::len)
    }
    /// Bytes of room that the caller offered for the bulk of the answer.
    pub fn reply_room(&self) -> usize {
        self.room.len()
    }
    /// Whether what the caller sent lies in its own memory: it can change the bytes at any time.
    pub fn bulk_is_shared(&self) -> bool {
        self.header.flags == FLAG_BULK_REGION
    }
    /// What the caller sent: inline bytes, or its own memory without a copy. An empty buffer if it sent none; the second take too.
    pub fn take_bulk(&mut self) -> Result<Buf> {
        Ok(self.bulk.take().unwrap_or_else(|| Buf::from_vec(Vec::new())))
    }
    /// Room for the bulk of the answer: the caller's own memory if it is shared, else a buffer of the pool, of
    /// [`Incoming::reply_room`] bytes, contents arbitrary. An error if the caller offered none, or the second time.
    pub fn reply_buffer(&mut self) -> Result<BufMut> {
        let taken = std::mem::replace(&mut self.room_taken, true);
        let buffer = match &mut self.room {
            _ if taken => None,
            Room::None => None,
            Room::Inline(len) => Some(self.conn.rt().alloc(*len)),
            Room::Shared { buffer, .. } => buffer.take(),
        };
        buffer.ok_or_else(|| {
            Error::new(
                Status::BadMessage,
                format!("{}: the caller gave no room for bulk", name(self.method())),
            )
        })
    }
    /// Answers. A one-way message is not answered, whatever is said here.
    pub fn reply(mut self, result: Result<Reply>) {
        self.answer(result);
    }
    /// Answers with a control message.
    pub fn reply_msg<R: minicbor::Encode<()>>(self, result: Result<R>) {
        self.reply(result.map(|m| Reply::msg(&m)));
    }
    /// Answers with the body of the call.
    pub(crate) fn echo(mut self) {
        let body = std::mem::take(&mut self.body);
        self.reply(Ok(Reply::body(body)));
    }

    fn answer(&mut self, result: Result<Reply>) {
        self.replied = true;
        let ok = result.is_ok();
        if !self.wants_reply() {
            self.conn.release(self.weight);
        } else {
            let frame = match result.and_then(|reply| self.frame(reply)) {
                Ok(frame) => frame,
                Err(e) => error_frame(&self.header, &e),
            };
            self.conn.push(frame.with_weight(self.weight));
        }
        crate::metrics::served(self.method(), self.conn.rt().turn_began().since(self.arrived), ok);
    }

    fn frame(&mut self, reply: Reply) -> Result<OutFrame> {
        if reply.body.len() > BODY_BYTES_MAX as usize {
            return Err(self.defect(format!("a body of {} bytes", reply.body.len())));
        }
        let mut header = FrameHeader {
            kind: KIND_RESPONSE,
            method: self.header.method,
            request_id: self.header.request_id,
            ..Default::default()
        };
        let mut inline = Vec::new();
        if let Some(filled) = reply.bulk.filter(|b| !b.is_empty()) {
            let len = filled.len();
            if len > self.room.len() {
                return Err(self.defect(format!("{len} bytes of bulk for {}", self.room.len())));
            }
            if matches!(self.room, Room::Inline(_)) {
                let now = self.conn.rt().turn_began();
                if self.conn.gave_up(self.arrived, self.deadline, now) {
                    let e = "this took longer than the caller waits; what it asked for is not sent";
                    return Err(Error::new(Status::TimedOut, e));
                }
                self.conn.serves(self.arrived, now);
            }
            header.bulk_len = (len as u32).into();
            match &mut self.room {
                // The length was compared: there is none.
                Room::None => {}
                Room::Inline(_) => {
                    header.flags = FLAG_BULK_INLINE;
                    inline.push(filled.freeze());
                }
                Room::Shared { at, .. } if *at == filled.as_ptr() => {
                    header.flags = FLAG_BULK_REGION;
                }
                Room::Shared { buffer: Some(buffer), .. } => {
                    buffer[..len].copy_from_slice(&filled);
                    header.flags = FLAG_BULK_REGION;
                }
                Room::Shared { buffer: None, .. } => {
                    return Err(self.defect("bulk outside the buffer that it took".into()));
                }
            }
        }
        Ok(OutFrame::new(header, reply.body, inline))
    }

    fn defect(&self, what: String) -> Error {
        let method = name(self.method());
        tracing::error!(method, what, "a handler's answer cannot be sent");
        Error::new(Status::Internal, format!("{method}: the handler answered {what}"))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.replied {
            let what = format!("{}: the service dropped the call", name(self.method()));
            self.answer(Err(Error::new(Status::Internal, what)));
        }
    }
}
