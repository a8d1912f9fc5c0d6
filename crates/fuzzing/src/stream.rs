//! A stream that says what the fuzzer says and swallows what it is told; and frames whose checksums are mended.

use glowfs_rt::backend::StreamIo;
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::frame::{FRAME_VERSION, HEADER_BYTES, MAGIC};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Bytes of each memfd that the peer passes.
const REGION_BYTES: u64 = 65_536;

/// See the module.
pub struct Script {
    bytes: Vec<u8>,
    at: Cell<usize>,
    piece: usize,
    /// Where messages end: a read gives no more than one.
    ends: Vec<usize>,
    hiccup: Cell<bool>,
    down: Cell<bool>,
    fds: RefCell<Vec<OwnedFd>>,
}

impl Script {
    /// Gives `bytes` out in pieces of at most `piece`, then ends.
    pub fn new(bytes: Vec<u8>, piece: usize) -> Rc<Self> {
        Self::with_ends(bytes, piece, Vec::new())
    }
    /// Gives messages out one by one, then ends.
    pub fn of_messages(messages: Vec<Vec<u8>>) -> Rc<Self> {
        let end = |at: &mut usize, m: &Vec<u8>| {
            *at += m.len();
            Some(*at)
        };
        let ends = messages.iter().scan(0, end).collect();
        Self::with_ends(messages.concat(), usize::MAX, ends)
    }
    fn with_ends(bytes: Vec<u8>, piece: usize, ends: Vec<usize>) -> Rc<Self> {
        Rc::new(Self {
            bytes,
            at: Cell::new(0),
            piece: piece.max(1),
            ends,
            hiccup: Cell::new(false),
            down: Cell::new(false),
            fds: RefCell::new((0..2).filter_map(|_| memfd()).collect()),
        })
    }
}

fn memfd() -> Option<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let fd = rustix::fs::memfd_create("fuzz", MemfdFlags::ALLOW_SEALING).ok()?;
    rustix::fs::ftruncate(&fd, REGION_BYTES).ok()?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).ok()?;
    Some(fd)
}

impl StreamIo for Script {
    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.down.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if !self.hiccup.replace(!self.hiccup.get()) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut n = 0;
        let end = self.ends.iter().copied().find(|end| *end > self.at.get());
        let end = end.unwrap_or(self.bytes.len());
        for buf in bufs {
            let rest = &self.bytes[self.at.get()..end];
            let here = buf.len().min(rest.len()).min(self.piece - n);
            buf[..here].copy_from_slice(&rest[..here]);
            self.at.set(self.at.get() + here);
            n += here;
        }
        Poll::Ready(Ok(n))
    }
    fn poll_write(
        &self,
        _: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        _: &[BorrowedFd<'_>],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bufs.iter().map(|b| b.len()).sum()))
    }
    fn take_fds(&self) -> Vec<OwnedFd> {
        self.fds.take()
    }
    fn shutdown(&self) {
        self.down.set(true);
    }
    fn peer(&self) -> String {
        "fuzzer".into()
    }
    fn can_pass_fds(&self) -> bool {
        true
    }
}

/// Makes frames of arbitrary bytes: magic, version, lengths and checksums are mended, all else stays. Bulk is filled in.
pub fn mend_frames(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((head, behind)) = rest.split_at_checked(HEADER_BYTES) {
        let mut head = head.to_vec();
        head[..4].copy_from_slice(&MAGIC.to_le_bytes());
        head[4..6].copy_from_slice(&FRAME_VERSION.to_le_bytes());
        let wanted = u32::from_le_bytes([head[32], head[33], 0, 0]) as usize;
        let (body, behind) = behind.split_at(wanted.min(behind.len()));
        head[32..36].copy_from_slice(&(body.len() as u32).to_le_bytes());
        // Inline bulk of at most 64 KiB, which then follows.
        head[38..40].fill(0);
        let bulk = if head[7] & 1 != 0 { u16::from_le_bytes([head[36], head[37]]) } else { 0 };
        let body_crc = if body.is_empty() { 0 } else { crc32c(body) };
        head[44..48].copy_from_slice(&body_crc.to_le_bytes());
        let crc = crc32c(&head[..60]);
        head[60..64].copy_from_slice(&crc.to_le_bytes());
        out.extend(head);
        out.extend(body);
        out.resize(out.len() + usize::from(bulk), 5);
        rest = behind;
    }
    out
}
