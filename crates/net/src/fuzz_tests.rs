//! Streams that no honest peer would send: nothing of them may panic, hang or take memory beyond the bounds.

use crate::inbound::Inbound;
use crate::shares::Shares;
use crate::{Conn, Handler, Identity, Incoming, Peer, Reply, limits};
use glowfs_rt::backend::StreamIo;
use glowfs_rt::{Duration, Rt, Stream, real};
use glowfs_types::UserId;
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::encode;
use glowfs_types::wire::frame::FrameHeader;
use glowfs_types::wire::hello::{RegisterRegion, UnregisterRegion, features};
use glowfs_types::wire::method;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};
use zerocopy::IntoBytes;

/// Gives out some bytes in pieces, then the end; swallows what is written.
pub(crate) struct Script {
    bytes: Vec<u8>,
    at: Cell<usize>,
    piece: usize,
    pub(crate) written: Cell<usize>,
    hiccup: Cell<bool>,
    /// No end follows the bytes.
    stays: bool,
    /// Nothing that is written is taken.
    deaf: bool,
    down: Cell<bool>,
    fds: RefCell<Vec<OwnedFd>>,
}

impl Script {
    fn new(bytes: Vec<u8>, piece: usize, fds: Vec<OwnedFd>) -> Rc<Self> {
        Rc::new(Self {
            bytes,
            at: Cell::new(0),
            piece: piece.max(1),
            written: Cell::new(0),
            hiccup: Cell::new(false),
            stays: false,
            deaf: false,
            down: Cell::new(false),
            fds: RefCell::new(fds),
        })
    }
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
        for buf in bufs {
            let rest = &self.bytes[self.at.get()..];
            let here = buf.len().min(rest.len()).min(self.piece - n);
            buf[..here].copy_from_slice(&rest[..here]);
            self.at.set(self.at.get() + here);
            n += here;
        }
        if n == 0 && self.stays { Poll::Pending } else { Poll::Ready(Ok(n)) }
    }
    fn poll_write(
        &self,
        _: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        _: &[BorrowedFd<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.deaf {
            return Poll::Pending;
        }
        let n: usize = bufs.iter().map(|b| b.len()).sum();
        self.written.set(self.written.get() + n);
        Poll::Ready(Ok(n))
    }
    fn take_fds(&self) -> Vec<OwnedFd> {
        self.fds.take()
    }
    fn shutdown(&self) {
        self.down.set(true);
    }
    fn peer(&self) -> String {
        "script".into()
    }
    fn can_pass_fds(&self) -> bool {
        true
    }
}

/// Uses everything that a call offers.
struct Curious;
impl Handler for Curious {
    fn handle(self: Rc<Self>, mut call: Incoming) {
        let sent = call.take_bulk().map(|b| b.iter().map(|&b| u64::from(b)).sum::<u64>());
        let bulk = call.reply_buffer().ok().map(|mut b| {
            b.fill(1);
            b
        });
        let body = call.body().to_vec();
        call.reply(sent.map(|_| Reply { body, bulk }));
    }
}

fn frame(mut header: FrameHeader, body: &[u8], bulk: usize) -> Vec<u8> {
    header.body_len = (body.len() as u32).into();
    header.body_crc = crc32c(body).into();
    [header.seal().as_bytes(), body, &vec![5; bulk]].concat()
}

/// One frame whose checksums are right, though what it says may be nonsense.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let numbers = (0u8..5, 0u8..16, 0u16..8, 0u16..4, 0u64..4);
    let places = (0u32..200_000, 0u32..4, prop_oneof![0u64..70_000, any::<u64>()]);
    let body = proptest::collection::vec(any::<u8>(), 0..100);
    (numbers, places, body, 0u8..4).prop_map(|(n, p, body, special)| {
        let (kind, flags, method, status, id) = n;
        let (bulk_len, key, offset) = p;
        let mut header = FrameHeader {
            kind: kind.clamp(1, 3),
            flags: if special == 3 { flags } else { 1 << (flags % 5) >> 1 },
            method: method.into(),
            status: status.into(),
            request_id: (FIRST_CALL | id).into(),
            bulk_len: bulk_len.into(),
            region_key: key.into(),
            region_offset: offset.into(),
            ..Default::default()
        };
        if header.flags == 0 && special != 3 {
            header.bulk_len = 0.into();
        }
        let inline = if header.flags == 1 { bulk_len as usize } else { 0 };
        let plain =
            FrameHeader { kind: 3, method: method::REGISTER_REGION.into(), ..Default::default() };
        match special {
            0 => frame(plain, &encode(&RegisterRegion { key, len: 65_536 }), 0),
            1 if key == 3 => {
                let plain = FrameHeader { method: method::UNREGISTER_REGION.into(), ..plain };
                frame(plain, &encode(&UnregisterRegion { key: 1 }), 0)
            }
            _ => frame(header, &body, inline),
        }
    })
}

/// The id of the first call of a connection.
const FIRST_CALL: u64 = 1 << 16;

/// An answer to the one call that is outstanding, around the borders of its room.
fn any_answer() -> impl Strategy<Value = Vec<u8>> {
    (0u8..3, 99_998u32..100_003, 0u16..2).prop_map(|(flags, len, status)| {
        let len = if flags == 0 { 0 } else { len };
        let header = FrameHeader {
            kind: 2,
            flags,
            method: method::ECHO.into(),
            status: status.into(),
            request_id: FIRST_CALL.into(),
            bulk_len: len.into(),
            ..Default::default()
        };
        frame(header, &[], if flags == 1 { len as usize } else { 0 })
    })
}

fn any_message() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => any_frame(), 1 => any_answer()]
}

fn memfd() -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags};
    let fd = rustix::fs::memfd_create("fuzz", MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&fd, 65_536).expect("room");
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seal");
    fd
}

fn peer() -> Peer {
    Peer { features: features::SHM, identity: Identity::SERVICE, ..Peer::default() }
}

async fn until_end(rt: &Rt, stream: Rc<Script>, with_call: bool) {
    let stream: Stream = stream;
    let conn = Conn::start(rt, Inbound::new(rt, stream), peer(), Rc::new(Curious));
    if with_call {
        // It has the id FIRST_CALL, so some of the answers are for it.
        let room = inline_room();
        let request = crate::Request {
            method: 2,
            body: vec![],
            bulk: crate::Bulk::Recv(room),
            tenant: Default::default(),
            deadline: Duration::from_secs(30),
        };
        let caller = conn.clone();
        rt.spawn_detached(async move {
            let _ = caller.call(request).await;
        });
    }
    rt.timeout(Duration::from_secs(20), conn.closed()).await.expect("the connection ends");
}

fn read_all(bytes: Vec<u8>, piece: usize) {
    real::run(move |rt| async move {
        let stream: Stream = Script::new(bytes, piece, Vec::new());
        let mut inbound = Inbound::new(&rt, stream);
        while let Ok(Some(header)) = inbound.header().await {
            if inbound.body(&header).await.is_err() {
                break;
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_bytes_end_the_reading(bytes: Vec<u8>, piece in 1usize..100) {
        read_all(bytes, piece);
    }

    #[test]
    fn odd_frames_end_at_the_end(
        frames in proptest::collection::vec(any_message(), 0..12),
        piece in prop_oneof![1usize..200, Just(1 << 20)],
        with_call: bool,
    ) {
        let bytes = frames.concat();
        real::run(move |rt| async move {
            let script = Script::new(bytes, piece, (0..4).map(|_| memfd()).collect());
            until_end(&rt, script, with_call).await;
        });
    }

    #[test]
    fn damaged_streams_end(
        frames in proptest::collection::vec(any_message(), 1..6),
        flips in proptest::collection::vec((any::<usize>(), 0u8..8), 0..4),
        cut in any::<usize>(),
        piece in 1usize..5000,
    ) {
        let mut bytes = frames.concat();
        for (place, bit) in flips {
            let place = place % bytes.len();
            bytes[place] ^= 1 << bit;
        }
        bytes.truncate(cut % (bytes.len() + 1));
        real::run(move |rt| async move {
            until_end(&rt, Script::new(bytes, piece, vec![memfd()]), true).await;
        });
    }
}

/// A peer that only asks and announces: what is held stays under the bound, and the rest is refused.
#[test]
fn what_a_peer_can_make_us_hold_is_bounded() {
    struct Hoard(RefCell<Vec<Incoming>>);
    impl Handler for Hoard {
        fn handle(self: Rc<Self>, call: Incoming) {
            self.0.borrow_mut().push(call);
        }
    }
    let room = FrameHeader {
        kind: 1,
        flags: glowfs_types::wire::frame::FLAG_RECV_INLINE,
        method: 200.into(),
        bulk_len: (64 << 20).into(),
        ..Default::default()
    };
    let small = FrameHeader { kind: 1, method: 200.into(), ..Default::default() };
    let calls = limits::INCOMING_CALLS_MAX + 10;
    let bytes = [frame(room, &[], 0).repeat(6), frame(small, &[], 0).repeat(calls)].concat();
    real::run(move |rt| async move {
        let hoard = Rc::new(Hoard(RefCell::default()));
        let script = Script::new(bytes, 100_000, Vec::new());
        let stream: Stream = script.clone();
        let conn = Conn::start(&rt, Inbound::new(&rt, stream), peer(), hoard.clone());
        conn.closed().await;
        assert_eq!(hoard.0.borrow().len(), limits::INCOMING_CALLS_MAX);
        assert!(hoard.0.borrow().iter().map(Incoming::reply_room).sum::<usize>() <= 256 << 20);
        drop(hoard.0.take());
    });
}

/// A user's connections all stop in the middle of a message: together they hold no more than a user may, others are served, and so is he when they end.
#[test]
fn what_one_user_sends_on_all_connections_is_bounded() {
    use glowfs_types::wire::frame::FLAG_BULK_INLINE;
    struct Counts(Cell<usize>);
    impl Handler for Counts {
        fn handle(self: Rc<Self>, call: Incoming) {
            self.0.set(self.0.get() + 1);
            call.reply(Ok(Reply { body: vec![], bulk: None }));
        }
    }
    let write = |bytes: u32| FrameHeader {
        kind: 1,
        flags: FLAG_BULK_INLINE,
        method: method::WRITE.into(),
        bulk_len: bytes.into(),
        ..Default::default()
    };
    real::run(move |rt| async move {
        let (shares, counts) = (Shares::new(1000), Rc::new(Counts(Cell::new(0))));
        let connect = |user: u64, bytes: Vec<u8>| {
            let mut script = Script::new(bytes, 1 << 20, Vec::new());
            Rc::get_mut(&mut script).expect("the only handle").stays = true;
            let identity = Identity { user: UserId(user), ..Identity::default() };
            let place = shares.place(&identity).expect("a place");
            let (stream, sender): (Stream, _) = (script, place.sender());
            let inbound = Inbound::new(&rt, stream);
            (Conn::accepted(&rt, inbound, peer(), counts.clone(), sender), place)
        };
        let most = limits::USER_BULK_RECEIVED_MAX;
        let begun = frame(write(64 << 20), &[], 1000);
        let stuck: Vec<_> = (0..20).map(|_| connect(1, begun.clone())).collect();
        rt.sleep(Duration::from_millis(50)).await;
        assert_eq!(shares.receiving(), most);
        let whole = frame(write(1000), &[], 1000);
        let mut more = vec![connect(1, whole.clone())];
        rt.sleep(Duration::from_millis(50)).await;
        assert_eq!(counts.0.get(), 0, "he has no more room");
        more.push(connect(2, whole.clone()));
        rt.sleep(Duration::from_millis(50)).await;
        assert_eq!(counts.0.get(), 1, "another one has");
        stuck.iter().for_each(|(conn, _)| conn.close());
        rt.sleep(Duration::from_millis(50)).await;
        assert_eq!(shares.receiving(), 0);
        more.push(connect(1, whole));
        rt.sleep(Duration::from_millis(50)).await;
        assert_eq!(counts.0.get(), 2);
        more.iter().for_each(|(conn, _)| conn.close());
    });
}

/// Small questions with large answers, which nobody reads: of one user's connections those that hold most are closed, and nobody else's.
#[test]
fn answers_that_one_user_does_not_read_are_bounded() {
    const ANSWER: usize = 10_000;
    const MOST: usize = 1_000_000;
    struct Talks;
    impl Handler for Talks {
        fn handle(self: Rc<Self>, call: Incoming) {
            call.reply(Ok(Reply::body(vec![0; ANSWER])));
        }
    }
    let ask = |n: usize| {
        let header =
            FrameHeader { kind: 1, method: method::GET_ROUTING.into(), ..Default::default() };
        frame(header, &[], 0).repeat(n)
    };
    real::run(move |rt| async move {
        let shares = Shares::with(1000, MOST);
        let connect = |user: u64, questions: usize, reads: bool| {
            let mut script = Script::new(ask(questions), 1 << 20, Vec::new());
            let it = Rc::get_mut(&mut script).expect("the only handle");
            (it.stays, it.deaf) = (true, !reads);
            let identity = Identity { user: UserId(user), ..Identity::default() };
            let place = shares.place(&identity).expect("a place");
            let (stream, sender): (Stream, _) = (script, place.sender());
            let inbound = Inbound::new(&rt, stream);
            (Conn::accepted(&rt, inbound, peer(), Rc::new(Talks), sender), place)
        };
        let small: Vec<_> = (0..40).map(|_| connect(1, 2, false)).collect();
        let other = connect(2, 50, false);
        rt.sleep(Duration::from_millis(50)).await;
        let held = shares.queued(UserId(1));
        assert!((80 * ANSWER..MOST).contains(&held), "{held}");
        // One that reads holds nothing.
        let reads = connect(1, 10, true);
        let large: Vec<_> = (0..3).map(|_| connect(1, 50, false)).collect();
        rt.sleep(Duration::from_millis(50)).await;
        let held = shares.queued(UserId(1));
        assert!((80 * ANSWER..=MOST).contains(&held), "{held}");
        assert!(large.iter().all(|(conn, _)| conn.is_closed()));
        assert!(small.iter().all(|(conn, _)| !conn.is_closed()));
        assert!(!reads.0.is_closed() && !other.0.is_closed());
        for (conn, _) in small.iter().chain([&reads, &other]) {
            conn.close();
        }
        assert_eq!((shares.queued(UserId(1)), shares.queued(UserId(2))), (0, 0));
    });
}

/// Each of these ends the connection at once, with its reason, though the stream stays open.
#[test]
fn each_lie_ends_the_connection() {
    let lie = |kind, flags, method: u16, id: u64, len: u32| FrameHeader {
        kind,
        flags,
        method: method.into(),
        request_id: id.into(),
        bulk_len: len.into(),
        ..Default::default()
    };
    let region = |key, len| encode(&RegisterRegion { key, len });
    let announce = lie(3, 0, method::REGISTER_REGION, 0, 0);
    let good = frame(announce, &region(1, 65_536), 0);
    let at = |flags, key: u32, offset: u64, len: u32| {
        let header = FrameHeader {
            region_key: key.into(),
            region_offset: offset.into(),
            ..lie(1, flags, 200, 1, len)
        };
        [good.clone(), frame(header, &[], 0)].concat()
    };
    let mut torn = frame(lie(1, 0, 200, 1, 0), b"body", 0);
    torn[65] ^= 1;
    let lies = [
        (vec![b'x'; 64], "not a GlowFS frame"),
        (torn, "frame body: checksum"),
        (frame(lie(1, 3, 200, 1, 8), &[], 8), "flags 0x3"),
        (frame(lie(1, 0, 200, 1, 8), &[], 0), "flags 0x0 with 8 bytes"),
        (frame(lie(3, 1, 200, 0, 8), &[], 8), "flags 0x1"),
        (frame(lie(2, 8, 2, FIRST_CALL, 8), &[], 8), "flags 0x8"),
        (frame(lie(2, 0, 2, 77, 0), &[], 0), "which is not outstanding"),
        (frame(lie(2, 0, 3, FIRST_CALL, 0), &[], 0), "an answer of method 3"),
        (frame(lie(2, 1, 2, FIRST_CALL, 100_001), &[], 100_001), "gave no room"),
        (frame(lie(2, 2, 2, FIRST_CALL, 8), &[], 0), "gave no room"),
        (frame(lie(2, 0, 2, FIRST_CALL, 0), &[], 0).repeat(2), "which is not outstanding"),
        (frame(announce, &region(0, 65_536), 0), "region key 0"),
        (frame(announce, &region(1, 65_537), 0), "65536 bytes, not 65537"),
        (frame(announce, &region(1, 0), 0), "region of 0 bytes"),
        (frame(announce, b"nonsense", 0), "RegisterRegion"),
        ([good.as_slice(), &good].concat(), "region key 1"),
        (frame(announce, &region(2, 65_536), 0).repeat(2), "region key 2"),
        (at(2, 9, 0, 8), "region 9 was not registered"),
        (at(2, 1, 65_530, 8), "region 1: "),
        (at(4, 1, u64::MAX, 8), "region 1: "),
        (at(4, 1, 0, 64 << 20), "region 1: "),
    ];
    for (bytes, want) in lies {
        real::run(move |rt| async move {
            let mut script = Script::new(bytes, 1 << 20, vec![memfd(), memfd()]);
            Rc::get_mut(&mut script).expect("the only handle").stays = true;
            let stream: Stream = script;
            let conn = Conn::start(&rt, Inbound::new(&rt, stream), peer(), Rc::new(Curious));
            let (body, tenant) = (vec![], Default::default());
            let (bulk, deadline) = (crate::Bulk::Recv(inline_room()), Duration::from_secs(30));
            let call = crate::Request { method: method::ECHO, body, bulk, tenant, deadline };
            let _ = rt.timeout(Duration::from_secs(20), conn.call(call)).await;
            let ended = rt.timeout(Duration::from_secs(20), conn.closed()).await;
            assert!(ended.is_ok(), "«{want}» did not end the connection");
            let e = conn.notify(200, vec![]).expect_err("ended");
            assert!(e.message.contains(want), "«{want}» in «{}»", e.message);
        });
    }
}

/// Room that cannot be shared, so that it is asked for inline.
fn inline_room() -> glowfs_rt::BufMut {
    glowfs_rt::Pool::heap().alloc(100_000)
}

/// A host that vanished without a word.
#[test]
#[ignore = "takes 12 s of real time"]
fn a_silent_peer_is_found_dead() {
    real::run(|rt| async move {
        let mut script = Script::new(Vec::new(), 1, Vec::new());
        Rc::get_mut(&mut script).expect("the only handle").stays = true;
        let stream: Stream = script;
        let conn = Conn::start(&rt, Inbound::new(&rt, stream), peer(), Rc::new(Curious));
        let (body, tenant, bulk) = (vec![], Default::default(), crate::Bulk::None);
        let deadline = Duration::from_secs(60);
        let call = crate::Request { method: 200, body, bulk, tenant, deadline };
        let started = rt.now();
        let e = conn.call(call).await.expect_err("nobody answers");
        assert_eq!(e.status, glowfs_types::Status::Disconnected);
        assert!(e.message.contains("silent"), "{e}");
        assert!(rt.now().since(started) < Duration::from_secs(20));
    });
}
