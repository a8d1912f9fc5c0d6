//! Connections: bytes arrive late but in order, reads and writes may be short, and a connection can break.

use super::core::Core;
use super::net;
use glowfs_rt::backend::{Stream, StreamIo};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// Bytes that one direction holds: on their way and unread.
const WINDOW_BYTES: usize = 1 << 20;
/// Time for a byte on the wire, in nanoseconds.
const NS_PER_BYTE: u64 = 1;
/// The longest segment on a link that carries so many bytes a second: what is longer would come all at once at the end.
const SEGMENT_BYTES: usize = 16 << 10;
/// A segment that cannot pass is tried again after this.
const RETRY_NS: u64 = 100_000_000;
/// A connection whose segment could not pass for so long breaks, at the sender's end.
const STALL_NS: u64 = 15_000_000_000;
/// How often a read or write is short.
const SHORT_PER_MILLION: u32 = 100_000;

/// A connection. End 0 connected, end 1 accepted.
pub(crate) struct Wire {
    core: Weak<Core>,
    nodes: [usize; 2],
    /// `pipes[i]` carries what end `i` writes.
    pipes: [RefCell<Pipe>; 2],
}

#[derive(Default)]
struct Pipe {
    /// Arrived, not read.
    arrived: Arrived,
    /// On their way, in order.
    sent: VecDeque<Segment>,
    sent_bytes: usize,
    /// No segment arrives before an earlier one.
    last_arrival: u64,
    /// The writer's end is gone, and that arrived.
    ended: bool,
    /// Why writes fail.
    write_error: Option<io::ErrorKind>,
    /// Why reads fail, once what has arrived is read.
    read_error: Option<io::ErrorKind>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

enum Segment {
    Bytes(Vec<u8>),
    End,
}

/// Bytes that arrived, in the pieces in which they were sent.
#[derive(Default)]
struct Arrived {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that were read.
    read: usize,
    /// Bytes that were not.
    len: usize,
}

impl Arrived {
    fn push(&mut self, piece: Vec<u8>) {
        self.len += piece.len();
        self.pieces.push_back(piece);
    }
    /// Fills `out` with the oldest bytes; there must be as many.
    fn take(&mut self, mut out: &mut [u8]) {
        self.len -= out.len();
        while let (false, Some(first)) = (out.is_empty(), self.pieces.front()) {
            let n = out.len().min(first.len() - self.read);
            out[..n].copy_from_slice(&first[self.read..self.read + n]);
            out = &mut out[n..];
            self.read += n;
            if self.read == first.len() {
                self.pieces.pop_front();
                self.read = 0;
            }
        }
    }
}

impl Pipe {
    /// What is on its way never arrives.
    fn lose(&mut self) {
        self.sent.clear();
        self.sent_bytes = 0;
    }
    fn wake(&mut self) -> [Option<Waker>; 2] {
        [self.reader.take(), self.writer.take()]
    }
}

fn wake(wakers: [Option<Waker>; 2]) {
    wakers.into_iter().flatten().for_each(Waker::wake);
}

pub(crate) fn wire(core: &Rc<Core>, from: usize, to: usize) -> Rc<Wire> {
    Rc::new(Wire { core: Rc::downgrade(core), nodes: [from, to], pipes: Default::default() })
}

/// The handle of one end.
pub(crate) fn end(wire: Rc<Wire>, side: usize, peer: String) -> Stream {
    Rc::new(SimStream { wire, side, peer })
}

impl Wire {
    pub(crate) fn ends(&self) -> (usize, usize) {
        (self.nodes[0], self.nodes[1])
    }
    /// Both ends fail at once.
    pub(crate) fn break_now(&self) {
        for side in 0..2 {
            self.fail(side, io::ErrorKind::ConnectionReset);
            self.pipes[side].borrow_mut().lose();
        }
    }
    /// One end fails: it can neither write nor, once it has what arrived, read.
    fn fail(&self, side: usize, kind: io::ErrorKind) {
        let wakers = {
            let mut p = self.pipes[side].borrow_mut();
            p.write_error.get_or_insert(kind);
            p.writer.take()
        };
        let mut p = self.pipes[1 - side].borrow_mut();
        p.read_error.get_or_insert(kind);
        let reader = p.reader.take();
        drop(p);
        wake([wakers, reader]);
    }
    /// Puts a segment on its way.
    fn send(self: &Rc<Self>, core: &Rc<Core>, side: usize, segment: Segment) {
        let delay = net::delay(core, self.nodes[side], self.nodes[1 - side]);
        let moment = {
            let mut p = self.pipes[side].borrow_mut();
            let bytes = match &segment {
                Segment::Bytes(b) => b.len(),
                Segment::End => 0,
            };
            p.sent_bytes += bytes;
            p.sent.push_back(segment);
            let moment = match net::carry(core, self.nodes[side], self.nodes[1 - side], bytes) {
                Some(carried) => (carried + delay).max(p.last_arrival),
                None => (core.now() + delay).max(p.last_arrival) + bytes as u64 * NS_PER_BYTE,
            };
            p.last_arrival = moment;
            moment
        };
        let wire = self.clone();
        core.at(moment - core.now(), move |core| wire.arrive(core, side, 0));
    }
    /// The oldest segment on its way arrives, if the link lets it.
    fn arrive(self: &Rc<Self>, core: &Rc<Core>, side: usize, stalled_ns: u64) {
        if self.pipes[side].borrow().sent.is_empty() {
            return;
        }
        let link = net::link(core, self.nodes[side], self.nodes[1 - side]);
        if link.cut {
            if stalled_ns >= STALL_NS {
                // The sender gives up; the other end learns nothing.
                self.pipes[side].borrow_mut().lose();
                return self.fail(side, io::ErrorKind::TimedOut);
            }
            let wire = self.clone();
            let next = stalled_ns + RETRY_NS;
            return core.at(RETRY_NS, move |core| wire.arrive(core, side, next));
        }
        if core.random(|r| r.chance(link.breaks_per_million)) {
            return self.break_now();
        }
        let wakers = {
            let mut p = self.pipes[side].borrow_mut();
            match p.sent.pop_front() {
                Some(Segment::Bytes(bytes)) => {
                    core.trace(
                        5,
                        ((self.nodes[0] as u64) << 32) | self.nodes[1] as u64,
                        hash(&bytes),
                    );
                    p.sent_bytes -= bytes.len();
                    p.arrived.push(bytes);
                }
                Some(Segment::End) => p.ended = true,
                None => {}
            }
            p.wake()
        };
        wake(wakers);
        // An end that is gone reads nothing: the peer's writes fail from now on.
        if self.pipes[side].borrow().ended {
            let writer = {
                let mut p = self.pipes[1 - side].borrow_mut();
                p.write_error.get_or_insert(io::ErrorKind::BrokenPipe);
                p.writer.take()
            };
            wake([writer, None]);
        }
    }
}

/// Of the bytes, four words at a time, none of which waits for the one before it.
fn hash(bytes: &[u8]) -> u64 {
    let mix = |h: u64, word: u64| (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let (fours, words) = words.as_chunks::<4>();
    let mut lanes = [0, 1, 2, bytes.len() as u64];
    for four in fours {
        for (lane, word) in lanes.iter_mut().zip(four) {
            *lane = mix(*lane, u64::from_le_bytes(*word));
        }
    }
    let h = lanes.into_iter().fold(0, mix);
    let h = words.iter().fold(h, |h, w| mix(h, u64::from_le_bytes(*w)));
    rest.iter().fold(h, |h, b| mix(h, u64::from(*b)))
}

struct SimStream {
    wire: Rc<Wire>,
    side: usize,
    peer: String,
}

impl SimStream {
    /// Full, or a part of it now and then.
    fn amount(core: &Core, most: usize) -> usize {
        core.random(|r| {
            if most > 1 && r.chance(SHORT_PER_MILLION) {
                r.between(1, most as u64 - 1) as usize
            } else {
                most
            }
        })
    }
}

impl StreamIo for SimStream {
    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(core) = self.wire.core.upgrade() else { return Poll::Pending };
        let wanted: usize = bufs.iter().map(|b| b.len()).sum();
        let mut p = self.wire.pipes[1 - self.side].borrow_mut();
        if p.arrived.len == 0 {
            if let Some(kind) = p.read_error {
                return Poll::Ready(Err(kind.into()));
            }
            if p.ended || wanted == 0 {
                return Poll::Ready(Ok(0));
            }
            p.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut left = Self::amount(&core, wanted.min(p.arrived.len));
        let done = left;
        for buf in bufs {
            let n = left.min(buf.len());
            p.arrived.take(&mut buf[..n]);
            left -= n;
        }
        let writer = p.writer.take();
        drop(p);
        wake([writer, None]);
        Poll::Ready(Ok(done))
    }
    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> Poll<io::Result<usize>> {
        if !fds.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
        }
        let Some(core) = self.wire.core.upgrade() else { return Poll::Pending };
        let wanted: usize = bufs.iter().map(|b| b.len()).sum();
        let mut p = self.wire.pipes[self.side].borrow_mut();
        if let Some(kind) = p.write_error {
            return Poll::Ready(Err(kind.into()));
        }
        if wanted == 0 {
            return Poll::Ready(Ok(0));
        }
        let (from, to) = (self.wire.nodes[self.side], self.wire.nodes[1 - self.side]);
        let most =
            if net::link(&core, from, to).bytes_per_s > 0 { SEGMENT_BYTES } else { WINDOW_BYTES };
        let room = WINDOW_BYTES.saturating_sub(p.sent_bytes + p.arrived.len).min(most);
        if room == 0 {
            p.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(p);
        let done = Self::amount(&core, wanted.min(room));
        let mut bytes = Vec::with_capacity(done);
        for buf in bufs {
            let n = (done - bytes.len()).min(buf.len());
            bytes.extend_from_slice(&buf[..n]);
        }
        self.wire.send(&core, self.side, Segment::Bytes(bytes));
        Poll::Ready(Ok(done))
    }
    fn unsent(&self) -> usize {
        self.wire.pipes[self.side].borrow().sent_bytes
    }
    fn take_fds(&self) -> Vec<OwnedFd> {
        Vec::new()
    }
    fn shutdown(&self) {
        let writable = self.wire.pipes[self.side].borrow().write_error.is_none();
        if writable && let Some(core) = self.wire.core.upgrade() {
            self.wire.send(&core, self.side, Segment::End);
        }
        // Nothing is read or written here any more; what was sent still arrives.
        self.wire.pipes[1 - self.side].borrow_mut().arrived = Arrived::default();
        self.wire.fail(self.side, io::ErrorKind::ConnectionAborted);
    }
    fn peer(&self) -> String {
        self.peer.clone()
    }
    fn can_pass_fds(&self) -> bool {
        false
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.shutdown();
    }
}
