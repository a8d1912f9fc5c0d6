//! The sending end: a queue of frames, and everything in it in one vectored write per wake-up.
//!
//! Two lanes share the one stream: control overtakes what waits of the data path, so it waits for one frame at most, and for what the
//! kernel has of the stream already. In each lane frames keep their order.

use crate::limits::WRITE_SLICES_MAX;
use glowfs_rt::mem::Region;
use glowfs_rt::{Buf, Stream};
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::frame::{FrameHeader, HEADER_BYTES, KIND_ONEWAY};
use glowfs_types::wire::method::VOUCH;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use zerocopy::IntoBytes;

/// What a call of the peer holds here until its answer has left.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) calls: usize,
    pub(crate) bytes: usize,
}

/// Whether a message may overtake: control, without bulk, and nothing of which the order counts for the data path (regions must be known before
/// they are named; a storage service gets the updates of a chunk best in their order).
pub(crate) fn is_control(kind: u8, flags: u8, method: u16) -> bool {
    // What a reader waits for must not stand behind what resyncs send; it names no region, and is true whenever it comes.
    let of_data = (DATA_FIRST..DATA_END).contains(&method) && method != VOUCH;
    kind != KIND_ONEWAY && flags == 0 && !of_data
}

/// Methods of storage services: [`glowfs_types::wire::method`].
const DATA_FIRST: u16 = 200;
const DATA_END: u16 = 300;

/// So many frames are few; most have no more slices than that each (header, body, bulk), and what does not fit goes with the next write.
const FEW_FRAMES: usize = 4;
const SLICES_PER_FRAME: usize = 3;

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
    fn plain(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }
    fn overtakes(&self) -> bool {
        is_control(self.header.kind, self.header.flags, self.header.method.get())
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
    /// Control at the front, behind a frame of which a part is gone.
    control: usize,
    bytes: usize,
    /// Of these, what is no bulk: frames of which a part is gone count as a whole.
    plain: usize,
    /// Bytes that the stream has taken, since the beginning.
    written: u64,
    waker: Option<Waker>,
}

impl OutQueue {
    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
    /// Bytes of headers and bodies that wait: what no weight of a call counts.
    pub(crate) fn plain(&self) -> usize {
        self.plain
    }
    /// Bytes that the stream has taken.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }
    /// Where in the stream a frame of control begins that is queued now.
    pub(crate) fn control_ends(&self) -> u64 {
        let before = usize::from(self.sent > 0) + self.control;
        let bytes: usize = self.frames.iter().take(before).map(|f| f.len).sum();
        self.written + (bytes - self.sent) as u64
    }
    /// Puts a frame at the end of its lane; the returned waker is to be woken once the borrow of the queue has ended.
    pub(crate) fn push(&mut self, frame: OutFrame) -> Option<Waker> {
        self.bytes += frame.len;
        self.plain += frame.plain();
        let begun = usize::from(self.sent > 0);
        if frame.overtakes() {
            self.frames.insert((begun + self.control).min(self.frames.len()), frame);
            self.control += 1;
        } else {
            self.frames.push_back(frame);
        }
        self.waker.take()
    }
    /// Drops everything.
    pub(crate) fn clear(&mut self) -> (VecDeque<OutFrame>, Option<Waker>) {
        self.bytes = 0;
        self.plain = 0;
        self.sent = 0;
        self.control = 0;
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
        // Mostly it is few frames: a list of all that one write may take would be cleared for each of them.
        let n = if self.frames.len() <= FEW_FRAMES {
            self.write_some::<{ FEW_FRAMES * SLICES_PER_FRAME }>(cx, stream)
        } else {
            self.write_some::<WRITE_SLICES_MAX>(cx, stream)
        };
        let n = ready!(n)?;
        Poll::Ready(Ok((n, self.advance(n))))
    }

    /// Writes what fits into so many slices; at least one byte.
    fn write_some<const SLICES: usize>(
        &self,
        cx: &mut Context<'_>,
        stream: &Stream,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES];
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
            Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => written,
        }
    }

    fn advance(&mut self, mut n: usize) -> Weight {
        self.written += n as u64;
        let mut free = Weight::default();
        while let Some(first) = self.frames.front() {
            let left = first.len - self.sent;
            if n < left {
                if self.sent == 0 && n > 0 {
                    // It is begun, and counts no more as one of those that wait.
                    self.control = self.control.saturating_sub(1);
                }
                self.sent += n;
                self.bytes = self.bytes.saturating_sub(n);
                break;
            }
            n -= left;
            self.bytes = self.bytes.saturating_sub(left);
            if self.sent == 0 {
                self.control = self.control.saturating_sub(1);
            }
            self.sent = 0;
            free.calls += first.weight.calls;
            free.bytes += first.weight.bytes;
            self.plain = self.plain.saturating_sub(first.plain());
            self.frames.pop_front();
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::wire::frame::{FLAG_BULK_INLINE, KIND_REQUEST, KIND_RESPONSE};
    use glowfs_types::wire::method::{ECHO, READ, UNREGISTER_REGION, WRITE};

    fn frame(id: u64, kind: u8, flags: u8, method: u16, bulk: usize) -> OutFrame {
        let header = FrameHeader {
            kind,
            flags,
            method: method.into(),
            request_id: id.into(),
            ..Default::default()
        };
        OutFrame::new(header, vec![], vec![Buf::from_vec(vec![0; bulk])])
    }

    #[test]
    fn control_overtakes_what_has_not_begun_and_nothing_else() {
        let mut q = OutQueue::default();
        let data = |id| frame(id, KIND_REQUEST, FLAG_BULK_INLINE, WRITE, 1000);
        q.push(data(1));
        q.push(data(2));
        assert_eq!(q.advance(10), Weight::default());
        q.push(frame(3, KIND_REQUEST, 0, ECHO, 0));
        q.push(frame(4, KIND_ONEWAY, 0, UNREGISTER_REGION, 0));
        q.push(frame(5, KIND_RESPONSE, 0, ECHO, 0));
        q.push(frame(6, KIND_RESPONSE, 0, READ, 0));
        let ids = |q: &OutQueue| -> Vec<u64> {
            q.frames.iter().map(|f| f.header.request_id.get()).collect()
        };
        assert_eq!(ids(&q), [1, 3, 5, 2, 4, 6]);
        // The first one ends, and a part of the next one goes: nothing comes before that either.
        q.advance(HEADER_BYTES + 1000 - 10 + 1);
        q.push(frame(7, KIND_REQUEST, 0, ECHO, 0));
        assert_eq!(ids(&q), [3, 5, 7, 2, 4, 6]);
        assert_eq!(q.plain(), 6 * HEADER_BYTES, "bulk is none of it");
        q.advance(HEADER_BYTES * 3 - 1 + 5);
        q.push(frame(8, KIND_REQUEST, 0, ECHO, 0));
        assert_eq!(ids(&q), [2, 8, 4, 6]);
        q.advance(q.bytes());
        assert_eq!((q.frames.len(), q.bytes(), q.control, q.sent), (0, 0, 0, 0));
        assert_eq!(q.plain(), 0);
    }
}
