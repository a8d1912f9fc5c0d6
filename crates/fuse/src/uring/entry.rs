//! One entry of a queue: a place for one request, and then for its answer.

use super::memory::Window;
use crate::abi::{self, UringEntInOut, WRITE_HEAD_BYTES, opcode};
use crate::request::{self, BadRequest, Request};
use glowfs_rt::{Buf, BufMut, Pool, Rt};
use std::cell::{Cell, UnsafeCell};
use std::io;
use zerocopy::IntoBytes;

/// Bytes of each of the two headers.
const HEADER_BYTES: usize = 128;
/// The fixed header of a request.
const IN_HEADER_BYTES: usize = size_of::<abi::InHeader>();

/// What the kernel and we tell each other besides the payload.
#[repr(C)]
#[derive(Clone, Copy)]
struct Headers {
    /// The header of the request, and then of the answer.
    in_out: [u8; HEADER_BYTES],
    /// The first argument of the request.
    op_in: [u8; HEADER_BYTES],
    about: UringEntInOut,
}
const _: () = assert!(size_of::<Headers>() == 288);

/// Who has an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The kernel.
    Away,
    /// The kernel, which was given it while requests may have been waiting, and lets them wait ([`super::Queues::park`]).
    AwayAndNew,
    /// We, with a request.
    Here,
    /// We, with a request that waits for other requests.
    Parked,
    /// Nobody any more.
    Dead,
}

pub(crate) struct Entry {
    /// Its place among all.
    pub(super) number: usize,
    pub(super) queue: u16,
    pub(super) state: Cell<State>,
    /// What names the request in the answer's command.
    pub(super) commit_id: Cell<u64>,
    headers: Box<UnsafeCell<Headers>>,
    pub(super) window: Window,
    places: [libc::iovec; 2],
}

impl Entry {
    pub(super) fn new(number: usize, queue: u16, state: State, window: Window) -> Self {
        let none = Headers {
            in_out: [0; HEADER_BYTES],
            op_in: [0; HEADER_BYTES],
            about: UringEntInOut::default(),
        };
        let headers = Box::new(UnsafeCell::new(none));
        let (payload, bytes) = window.place();
        let places = [
            libc::iovec { iov_base: headers.get().cast(), iov_len: size_of::<Headers>() },
            libc::iovec { iov_base: payload.cast(), iov_len: bytes },
        ];
        let (state, commit_id) = (Cell::new(state), Cell::new(0));
        Self { number, queue, state, commit_id, headers, window, places }
    }
    /// Headers and payload, for the kernel.
    pub(super) fn places(&self) -> (*const libc::iovec, u32) {
        (self.places.as_ptr(), self.places.len() as u32)
    }

    /// A buffer for the payload of the answer, in which it need not be copied any more; none if it is taken.
    pub(crate) fn lend(&self, len: usize) -> Option<BufMut> {
        self.window.lend(len)
    }
    /// Reads the request that the kernel has put in; the payload of a WRITE stays where it is, and is lent.
    pub(super) fn request(
        &self,
        rt: &Rt,
        scratch: &mut Vec<u8>,
    ) -> Result<(Request, Option<Buf>), BadRequest> {
        // SAFETY: the entry is in our hands, so the kernel does not write; any bytes are valid.
        let headers = unsafe { *self.headers.get() };
        self.commit_id.set(headers.about.commit_id);
        let (h, _) = request::parse_header(&headers.in_out)?;
        let bad = |what| BadRequest { unique: h.unique, opcode: h.opcode, what };
        let payload = headers.about.payload_sz as usize;
        let op = (h.len as usize).checked_sub(IN_HEADER_BYTES + payload);
        let op = op.filter(|n| *n <= HEADER_BYTES && payload <= self.window.place().1);
        let op = op.ok_or_else(|| bad("its parts are not as long as the whole"))?;
        scratch.clear();
        scratch.extend_from_slice(&headers.in_out[..IN_HEADER_BYTES]);
        scratch.extend_from_slice(&headers.op_in[..op]);
        if h.opcode != opcode::WRITE {
            self.window.copy_out(payload, scratch);
            return request::parse(scratch).map(|r| (r, None));
        }
        if scratch.len() != WRITE_HEAD_BYTES {
            return Err(bad("arguments of another length than a WRITE's"));
        }
        let parsed = request::parse(scratch)?;
        let buf = match self.window.lend(payload) {
            Some(lent) => lent,
            None => {
                scratch.clear();
                self.window.copy_out(payload, scratch);
                let mut own = rt.alloc(payload);
                own.copy_from_slice(scratch);
                own
            }
        };
        Ok((parsed, Some(buf.freeze())))
    }

    /// Puts an answer in. `body`: what is to stand in the payload, or already does. True: somebody still had the payload.
    pub(super) fn answer(
        &self,
        pool: &Pool,
        unique: u64,
        error: i32,
        body: Body<'_>,
    ) -> io::Result<bool> {
        let len = body.len();
        let (moved, error, len) = if len > self.window.place().1 {
            tracing::error!(unique, len, "an answer is longer than any request's");
            (self.window.reclaim(pool)?, -libc::EIO, 0)
        } else {
            (self.put(pool, body)?, error, len)
        };
        let out = abi::OutHeader { len: (size_of::<abi::OutHeader>() + len) as u32, error, unique };
        // SAFETY: the entry is in our hands, so the kernel does not read yet, and nothing else refers to the headers.
        let headers = unsafe { &mut *self.headers.get() };
        headers.in_out[..size_of::<abi::OutHeader>()].copy_from_slice(out.as_bytes());
        headers.about.payload_sz = len as u32;
        Ok(moved)
    }

    fn put(&self, pool: &Pool, body: Body<'_>) -> io::Result<bool> {
        match body {
            Body::Parts(parts) => {
                let moved = self.window.reclaim(pool)?;
                self.window.put(parts.iter().map(|p| &**p));
                Ok(moved)
            }
            Body::Data(buf) if self.window.holds(&buf) => {
                // The only handle, or another piece takes its place with the same contents.
                let buf = match buf.try_mut() {
                    Ok(own) => {
                        drop(own);
                        return self.window.reclaim(pool);
                    }
                    Err(shared) => shared,
                };
                let moved = self.window.reclaim(pool)?;
                self.window.put(std::iter::once(&*buf));
                Ok(moved)
            }
            Body::Data(buf) => {
                let moved = self.window.reclaim(pool)?;
                self.window.put(std::iter::once(&*buf));
                Ok(moved)
            }
        }
    }
}

/// What an answer says.
pub(crate) enum Body<'a> {
    /// These, one behind the other.
    Parts(&'a [io::IoSlice<'a>]),
    /// This, which lies in the entry already if the entry lent it.
    Data(Buf),
}

impl Body<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Parts(parts) => parts.iter().map(|p| p.len()).sum(),
            Self::Data(buf) => buf.len(),
        }
    }
}

#[cfg(test)]
mod tests;
