//! The sending end: a queue of frames, and everything in it in one vectored write per wake-up.

use crate::limits::WRITE_SLICES_MAX;
use glowfs_rt::mem::Region;
use glowfs_rt::{Buf, Stream};
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::frame::{FrameHeader, HEADER_BYTES};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use zerocopy::IntoBytes;

/// What a call of the peer holds here until its answer has left.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) calls: usize,
    pub(crate) bytes: usize,
}

/// One frame to send.
pub(crate) struct OutFrame {
    header: FrameHeader,
    body: Vec<u8>,
    bulk: Vec<Buf>,
    /// A region whose memfd travels with the first byte.
    region: Option<Rc<Region>>,
    weight: Weight,
    len: usize,
}

impl OutFrame {
    /// A frame; length and checksum of the body are filled in here.
    pub(crate) fn new(mut header: FrameHeader, body: Vec<u8>, bulk: Vec<Buf>) -> Self {
        header.body_len = (body.len() as u32).into();
        header.body_crc = crc32c(&body).into();
        let header = header.seal();
        let len = HEADER_BYTES + body.len() + bulk.iter().map(|b| b.len()).sum::<usize>();
        Self { header, body, bulk, region: None, weight: Weight::default(), len }
    }
    pub(crate) fn with_region(mut self, region: Rc<Region>) -> Self {
        self.region = Some(region);
        self
    }
    pub(crate) fn with_weight(mut self, weight: Weight) -> Self {
        self.weight = weight;
        self
    }
    /// The slices from byte `skip` on.
    fn slices<'a>(&'a self, mut skip: usize, mut put: impl FnMut(&'a [u8]) -> bool) {
        let parts = [self.header.as_bytes(), self.body.as_slice()];
        for part in parts.into_iter().chain(self.bulk.iter().map(|b| &**b)) {
            let here = skip.min(part.len());
            skip -= here;
            if here < part.len() && !put(&part[here..]) {
                return;
            }
        }
    }
}

/// The frames that wait.
#[derive(Default)]
pub(crate) struct OutQueue {
    frames: VecDeque<OutFrame>,
    /// Bytes of the first frame that are gone already.
    sent: usize,
    bytes: usize,
    waker: Option<Waker>,
}

impl OutQueue {
    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
    /// Appends a frame; the returned waker is to be woken once the borrow of the queue has ended.
    pub(crate) fn push(&mut self, frame: OutFrame) -> Option<Waker> {
        self.bytes += frame.len;
        self.frames.push_back(frame);
        self.waker.take()
    }
    /// Drops everything.
    pub(crate) fn clear(&mut self) -> (VecDeque<OutFrame>, Option<Waker>) {
        self.bytes = 0;
        self.sent = 0;
        (std::mem::take(&mut self.frames), self.waker.take())
    }

    /// Writes once. Ready with the bytes written and the weight that became free; pending if the queue is empty or the stream is full.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Stream,
    ) -> Poll<io::Result<(usize, Weight)>> {
        if self.frames.is_empty() {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES_MAX];
            let mut fd: Option<BorrowedFd<'_>> = None;
            let mut used = 0;
            for (i, frame) in self.frames.iter().enumerate() {
                let skip = if i == 0 { self.sent } else { 0 };
                if let Some(region) = &frame.region
                    && skip == 0
                {
                    // A descriptor travels with the first byte of a write, so its frame must be the first.
                    if i > 0 {
                        break;
                    }
                    fd = Some(region.fd.as_fd());
                }
                frame.slices(skip, |part| match slices.get_mut(used) {
                    Some(slot) => {
                        *slot = IoSlice::new(part);
                        used += 1;
                        true
                    }
                    None => false,
                });
                if used == slices.len() {
                    break;
                }
            }
            match stream.poll_write(cx, slices.get(..used).unwrap_or(&[]), fd.as_slice()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => return Poll::Pending,
            }
        };
        Poll::Ready(Ok((n, self.advance(n))))
    }

    fn advance(&mut self, mut n: usize) -> Weight {
        let mut free = Weight::default();
        while let Some(first) = self.frames.front() {
            let left = first.len - self.sent;
            if n < left {
                self.sent += n;
                self.bytes = self.bytes.saturating_sub(n);
                break;
            }
            n -= left;
            self.bytes = self.bytes.saturating_sub(left);
            self.sent = 0;
            free.calls += first.weight.calls;
            free.bytes += first.weight.bytes;
            self.frames.pop_front();
        }
        free
    }
}
