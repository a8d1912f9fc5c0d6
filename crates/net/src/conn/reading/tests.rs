//! Who gets a turn while the peer's answers are all there already.

use crate::inbound::Inbound;
use crate::limits::READ_BUFFER_BYTES;
use crate::{Bulk, Conn, NoCalls, Peer, Request};
use glowfs_rt::backend::StreamIo;
use glowfs_rt::{Duration, Stream, real};
use glowfs_types::wire::frame::{FLAG_BULK_INLINE, FrameHeader, HEADER_BYTES, KIND_RESPONSE};
use glowfs_types::wire::method::READ;
use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};
use zerocopy::IntoBytes;

/// Bytes that are all there, once somebody has asked; never ends.
struct AllThere {
    bytes: Vec<u8>,
    taken: Cell<usize>,
    asked: Cell<bool>,
}

impl StreamIo for AllThere {
    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.asked.get() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = self.taken.get();
        for buf in bufs {
            let rest = &self.bytes[self.taken.get()..];
            let n = buf.len().min(rest.len());
            buf[..n].copy_from_slice(&rest[..n]);
            self.taken.set(self.taken.get() + n);
        }
        let n = self.taken.get() - before;
        if n == 0 { Poll::Pending } else { Poll::Ready(Ok(n)) }
    }
    fn poll_write(
        &self,
        _: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        _: &[BorrowedFd<'_>],
    ) -> Poll<io::Result<usize>> {
        self.asked.set(true);
        Poll::Ready(Ok(bufs.iter().map(|b| b.len()).sum()))
    }
    fn take_fds(&self) -> Vec<OwnedFd> {
        Vec::new()
    }
    fn shutdown(&self) {}
    fn peer(&self) -> String {
        "all there".into()
    }
    fn can_pass_fds(&self) -> bool {
        false
    }
}

/// Who waited for a large answer goes on before the next one is taken from the socket: so its next request leaves while the peer sends.
#[test]
fn a_large_answer_is_seen_before_the_next_one_is_read() {
    const CALLS: usize = 4;
    const BULK: usize = 1 << 20;
    let mut bytes = Vec::new();
    for call in 0..CALLS as u64 {
        let header = FrameHeader {
            kind: KIND_RESPONSE,
            flags: FLAG_BULK_INLINE,
            method: READ.into(),
            request_id: (((call + 1) << 16) | call).into(),
            bulk_len: (BULK as u32).into(),
            ..Default::default()
        };
        bytes.extend_from_slice(header.seal().as_bytes());
        bytes.extend(std::iter::repeat_n(call as u8, BULK));
    }
    real::run(move |rt| async move {
        let (taken, asked) = (Cell::new(0), Cell::new(false));
        let stream = Rc::new(AllThere { bytes, taken, asked });
        let inbound = Inbound::new(&rt, stream.clone() as Stream);
        let conn = Conn::start(&rt, inbound, Peer::default(), Rc::new(NoCalls));
        let calls: Vec<_> = (1..=CALLS)
            .map(|n| {
                let (conn, stream, bulk) =
                    (conn.clone(), stream.clone(), Bulk::Recv(rt.alloc(BULK)));
                rt.spawn(async move {
                    let (body, tenant) = (vec![], Default::default());
                    let deadline = Duration::from_secs(30);
                    let request = Request { method: READ, body, bulk, tenant, deadline };
                    let answer = conn.call(request).await.expect("an answer");
                    assert_eq!(answer.bulk_len, BULK);
                    let most = n * (HEADER_BYTES + BULK) + READ_BUFFER_BYTES;
                    assert!(
                        stream.taken.get() <= most,
                        "{} bytes at answer {n}",
                        stream.taken.get()
                    );
                })
            })
            .collect();
        for call in calls {
            call.await;
        }
        conn.close();
    });
}
