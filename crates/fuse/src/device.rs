//! The `/dev/fuse` transport: one request a read, one answer a write.
//!
//! A read scatters: the first 80 bytes (the headers of a WRITE) into a small array, the rest into a page-aligned
//! buffer. So the payload of a WRITE lies aligned, is cut to its length and handed over; small payloads are
//! copied out instead, so that the large buffer can be used again.

use crate::abi::{self, WRITE_HEAD_BYTES, opcode};
use crate::request::{self, BadRequest, Request};
use glowfs_rt::backend::{Post, Posted};
use glowfs_rt::{Buf, BufMut, Rt};
use rustix::io::Errno;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Payloads up to this many bytes are copied into a buffer of their own size.
const COPY_BYTES_MAX: usize = 32 << 10;

pub(crate) struct Device {
    rt: Rt,
    fd: Sender,
    state: RefCell<State>,
}

struct State {
    /// Bytes of the payload area, at least max_write.
    payload_bytes: usize,
    spare: Option<BufMut>,
    /// A contiguous copy of a request that is not a WRITE.
    scratch: Vec<u8>,
}

/// What one attempt to read gave.
pub(crate) enum Got {
    /// A request, and the payload if it is a WRITE.
    Request(Request, Option<Buf>),
    /// A request that is not well formed; it wants an error for an answer.
    Bad(BadRequest),
    /// Nothing waits.
    Empty,
    /// The file system is unmounted (or the connection was aborted).
    Gone,
}

impl Device {
    pub fn new(rt: &Rt, fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        let state = State { payload_bytes: 128 << 10, spare: None, scratch: Vec::new() };
        Ok(Self { rt: rt.clone(), fd: Sender(Arc::new(fd)), state: RefCell::new(state) })
    }

    /// Sets the greatest payload that a WRITE can have.
    pub fn set_max_write(&self, bytes: usize) {
        let mut s = self.state.borrow_mut();
        s.payload_bytes = bytes.max(128 << 10);
        s.spare = None;
    }

    /// Waits until something can be read (or the mount is gone).
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_readable(cx)).await
    }
    /// See [`Device::readable`].
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.rt.poll_readable(self.fd.0.as_fd(), cx)
    }
    /// The descriptor.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd.0
    }

    /// Reads one request if one waits.
    pub fn try_read(&self) -> io::Result<Got> {
        let mut state = self.state.borrow_mut();
        let State { payload_bytes, spare, scratch } = &mut *state;
        let mut area = spare.take().unwrap_or_else(|| self.rt.alloc(*payload_bytes));
        let mut head = [0u8; WRITE_HEAD_BYTES];
        let got = {
            let mut iov = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut area)];
            rustix::io::readv(&*self.fd.0, &mut iov)
        };
        let n = match got {
            Ok(n) => n,
            Err(e) => {
                *spare = Some(area);
                return match e {
                    // EINTR and ENOENT: the request was withdrawn while we took it.
                    Errno::AGAIN | Errno::INTR | Errno::NOENT => Ok(Got::Empty),
                    Errno::NODEV | Errno::CONNABORTED => Ok(Got::Gone),
                    e => Err(e.into()),
                };
            }
        };
        let is_write = matches!(request::parse_header(&head),
            Ok((h, _)) if h.opcode == opcode::WRITE && n >= WRITE_HEAD_BYTES && h.len as usize == n);
        if is_write {
            let parsed = request::parse(&head);
            let payload = self.take_payload(area, n - WRITE_HEAD_BYTES, spare);
            return Ok(parsed.map_or_else(Got::Bad, |r| Got::Request(r, Some(payload))));
        }
        let in_head = n.min(WRITE_HEAD_BYTES);
        let parsed = if n <= WRITE_HEAD_BYTES {
            request::parse(&head[..in_head])
        } else {
            scratch.clear();
            scratch.extend_from_slice(&head);
            scratch.extend_from_slice(&area[..(n - WRITE_HEAD_BYTES).min(area.len())]);
            request::parse(scratch)
        };
        *spare = Some(area);
        Ok(parsed.map_or_else(Got::Bad, |r| Got::Request(r, None)))
    }

    /// Hands the payload over: the area itself, or a copy if it is small.
    fn take_payload(&self, mut area: BufMut, len: usize, spare: &mut Option<BufMut>) -> Buf {
        let len = len.min(area.len());
        if len <= COPY_BYTES_MAX {
            let mut own = self.rt.alloc(len);
            own.copy_from_slice(&area[..len]);
            *spare = Some(area);
            own.freeze()
        } else {
            area.truncate(len);
            area.freeze()
        }
    }

    /// What answers and notifications are sent through; may be used on another thread.
    pub fn sender(&self) -> Sender {
        self.fd.clone()
    }
    /// Sends an answer together with what else is to be written in this turn; `tell` hears what became of it. False: it was sent at once.
    pub fn post(
        &self,
        error: i32,
        unique: u64,
        payload: Buf,
        tell: Rc<dyn Posted>,
    ) -> io::Result<bool> {
        let len = (size_of::<abi::OutHeader>() + payload.len()) as u32;
        let header = abi::OutHeader { len, error, unique };
        let head = zerocopy::transmute!(header);
        let post = Post { fd: self.fd.0.clone(), head, payload, tell, tag: unique };
        match self.rt.post(post) {
            Ok(()) => Ok(true),
            Err(Post { payload, .. }) => {
                self.send(error, unique, &[IoSlice::new(&payload)]).map(|()| false)
            }
        }
    }
    /// See [`Sender::send`].
    pub fn send(&self, error: i32, unique: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.fd.send(error, unique, parts)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.rt.forget_readable(self.fd.0.as_fd());
    }
}

/// The way to the kernel.
#[derive(Clone)]
pub(crate) struct Sender(Arc<OwnedFd>);

impl Sender {
    /// To a device of one's own.
    #[cfg(test)]
    pub fn of(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }
    /// Sends an answer or a notification: header and parts, in one write.
    pub fn send(&self, error: i32, unique: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        use zerocopy::IntoBytes;
        let body: usize = parts.iter().map(|p| p.len()).sum();
        let header =
            abi::OutHeader { len: (size_of::<abi::OutHeader>() + body) as u32, error, unique };
        match parts {
            [] => rustix::io::write(&*self.0, header.as_bytes()).map(|_| ())?,
            [one] => {
                let iov = [IoSlice::new(header.as_bytes()), IoSlice::new(one)];
                rustix::io::writev(&*self.0, &iov).map(|_| ())?;
            }
            many => {
                let mut iov = Vec::with_capacity(many.len() + 1);
                iov.push(IoSlice::new(header.as_bytes()));
                iov.extend(many.iter().map(|p| IoSlice::new(p)));
                rustix::io::writev(&*self.0, &iov).map(|_| ())?;
            }
        }
        Ok(())
    }
}
