//! Reading frames off a stream: headers and bodies through a small buffer, bulk straight to where it belongs.
//!
//! Guarantees: holds at most [`limits::READ_BUFFER_BYTES`] of its own; a body is allocated only after its length was checked; whatever
//! comes, it ends with an error or the end of the stream, never with a panic.

use crate::limits;
use glowfs_rt::{Duration, Instant, Rt, Stream};
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::frame::{FrameHeader, HEADER_BYTES};
use glowfs_types::{Error, Result, Status};
use std::cell::Cell;
use std::future::poll_fn;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// What whoever watches over the connection wants to know of the reading.
pub(crate) struct Pulse {
    /// When reading began to wait in the middle of a frame; `None` between frames.
    pub(crate) stalled: Cell<Option<Instant>>,
    /// For how long it has waited in the present frame before,
    waited: Cell<Duration>,
    /// and for how long it may in all of it.
    patience: Cell<Duration>,
    /// When something came last.
    pub(crate) heard_at: Cell<Instant>,
}

impl Pulse {
    fn new(now: Instant) -> Self {
        Self {
            stalled: Cell::default(),
            waited: Cell::default(),
            patience: Cell::default(),
            heard_at: Cell::new(now),
        }
    }
    /// The peer has been waited for, in the middle of a frame, for longer than so many bytes take.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        let waits = self.stalled.get().map_or(Duration::ZERO, |since| now.since(since));
        self.stalled.get().is_some() && self.waited.get() + waits >= self.patience.get()
    }
    fn goes_on(&self, now: Instant) {
        if let Some(since) = self.stalled.take() {
            self.waited.set(self.waited.get() + now.since(since));
        }
    }
    /// A frame begins of which so much is known.
    fn begins(&self, bytes: u64) {
        let time = bytes / u64::from(limits::FRAME_BYTES_PER_SECOND_MIN);
        self.patience.set(limits::FRAME_STALL + Duration::from_secs(time));
    }
}

/// The reading end of a stream.
pub(crate) struct Inbound {
    rt: Rt,
    stream: Stream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Between two frames, waiting is fine.
    idle: bool,
    pulse: Rc<Pulse>,
}

impl Inbound {
    pub(crate) fn new(rt: &Rt, stream: Stream) -> Self {
        Self {
            rt: rt.clone(),
            stream,
            buffer: vec![0; limits::READ_BUFFER_BYTES],
            start: 0,
            end: 0,
            idle: true,
            pulse: Rc::new(Pulse::new(rt.now())),
        }
    }
    /// See [`Pulse`].
    pub(crate) fn pulse(&self) -> Rc<Pulse> {
        self.pulse.clone()
    }
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }
    /// File descriptors that came with what was read.
    pub(crate) fn take_fds(&self) -> Vec<OwnedFd> {
        self.stream.take_fds()
    }

    /// Reads into `dst`, and what follows into the buffer (which is empty); returns the bytes put into `dst`, or `None` at the end
    /// of the stream.
    async fn read(&mut self, dst: &mut [u8]) -> Result<Option<usize>> {
        let Self { rt, stream, buffer, idle, pulse, .. } = self;
        let n = poll_fn(|cx| {
            let read = if dst.is_empty() {
                stream.poll_read(cx, &mut [IoSliceMut::new(buffer)])
            } else {
                stream.poll_read(cx, &mut [IoSliceMut::new(dst), IoSliceMut::new(buffer)])
            };
            if read.is_pending() && !*idle && pulse.stalled.get().is_none() {
                pulse.stalled.set(Some(rt.now()));
            }
            read
        })
        .await
        .map_err(|e| Error::new(Status::Disconnected, e.to_string()))?;
        if pulse.stalled.get().is_some() {
            pulse.goes_on(rt.now());
        }
        pulse.heard_at.set(rt.turn_began());
        let direct = n.min(dst.len());
        self.start = 0;
        // The backend cannot have read more than there was room for; a wrong count must not become an index out of range.
        self.end = (n - direct).min(self.buffer.len());
        Ok((n > 0).then_some(direct))
    }

    /// Like `read`, where the stream must not end.
    async fn read_on(&mut self, dst: &mut [u8]) -> Result<usize> {
        self.read(dst).await?.ok_or_else(|| {
            Error::new(Status::Disconnected, "the peer closed in the middle of a message")
        })
    }

    /// Fills `dst`.
    pub(crate) async fn fill(&mut self, dst: &mut [u8]) -> Result<()> {
        self.fill_counting(dst, &Cell::new(0)).await
    }
    /// Fills `dst`, and counts its bytes as they come.
    pub(crate) async fn fill_counting(&mut self, dst: &mut [u8], came: &Cell<u64>) -> Result<()> {
        let mut done = self.drain(dst);
        came.set(came.get() + done as u64);
        while let Some(rest) = dst.get_mut(done..)
            && !rest.is_empty()
        {
            let direct = self.read_on(rest).await?;
            came.set(came.get() + direct as u64);
            done += direct;
        }
        Ok(())
    }

    /// Moves what the buffer has to `dst`.
    fn drain(&mut self, dst: &mut [u8]) -> usize {
        let n = dst.len().min(self.end - self.start);
        dst[..n].copy_from_slice(&self.buffer[self.start..self.start + n]);
        self.start += n;
        n
    }

    /// Throws `n` bytes away.
    pub(crate) async fn skip(&mut self, mut n: usize) -> Result<()> {
        loop {
            let here = n.min(self.end - self.start);
            self.start += here;
            n -= here;
            if n == 0 {
                return Ok(());
            }
            self.read_on(&mut []).await?;
        }
    }

    /// Throws away what came, with its descriptors. False: the stream has ended.
    pub(crate) async fn skip_some(&mut self) -> bool {
        let came = self.read(&mut []).await;
        drop(self.take_fds());
        matches!(came, Ok(Some(_)))
    }

    /// The next header; `None` if the stream ended between two frames.
    pub(crate) async fn header(&mut self) -> Result<Option<FrameHeader>> {
        self.idle = self.start == self.end;
        if self.idle && self.read(&mut []).await?.is_none() {
            return Ok(None);
        }
        self.idle = false;
        self.pulse.waited.set(Duration::ZERO);
        self.pulse.begins(0);
        let mut bytes = [0; HEADER_BYTES];
        self.fill(&mut bytes).await?;
        let header = FrameHeader::parse(&bytes)?;
        self.pulse.begins(u64::from(header.body_len.get()) + u64::from(header.bulk_len.get()));
        Ok(Some(header))
    }

    /// The body of `header`, checked.
    pub(crate) async fn body(&mut self, header: &FrameHeader) -> Result<Vec<u8>> {
        // The length was checked by the parser.
        let len = header.body_len.get() as usize;
        let body = match self.buffer[self.start..self.end].get(..len) {
            Some(here) => {
                let body = here.to_vec();
                self.start += len;
                body
            }
            None => {
                let mut body = vec![0; len];
                self.fill(&mut body).await?;
                body
            }
        };
        if crc32c(&body) != header.body_crc.get() {
            return Err(Error::new(Status::BadMessage, "frame body: checksum mismatch"));
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Any byte was enough to be waited for as long again.
    #[test]
    fn a_message_that_comes_byte_by_byte_is_overdue_at_last() {
        let pulse = Pulse::new(Instant(0));
        let bytes = 100 * limits::FRAME_BYTES_PER_SECOND_MIN;
        pulse.begins(bytes.into());
        let (mut now, mut waited) = (Instant(1), Duration::ZERO);
        while !pulse.is_overdue(now) {
            pulse.goes_on(now);
            // What it takes to read what has come is nobody's delay.
            now = now + 10 * SECOND;
            assert!(!pulse.is_overdue(now));
            pulse.stalled.set(Some(now));
            now = now + 20 * SECOND;
            waited += 20 * SECOND;
            assert!(waited < 200 * SECOND, "for ever");
        }
        assert_eq!(waited, limits::FRAME_STALL + 100 * SECOND);
    }
}
