//! [`Session`]: the conversation with the kernel on one mount.
//!
//! At most [`crate::Options::max_outstanding`] requests are handed out without an answer; beyond that the kernel's queue
//! waits. Over io_uring the queues' entries are a further bound. INTERRUPT is resolved here: a request that wants to know waits on [`Reply::interrupted`].
//!
//! Answers leave together with the other I/O of the loop's turn: an answer wakes a thread of the application, which would interrupt this one. A
//! notification is sent only when the answers before it have reached the kernel: what it takes back must be there.

use crate::abi::{self, notify};
use crate::device::{Device, Got};
use crate::negotiate::{Negotiated, Options, Outcome, negotiate};
use crate::notices::{Lane, Notices};
use crate::reply::Reply;
use crate::request::{BadRequest, Header, Op};
use crate::uring::{Body, Entry, Queues};
use glowfs_rt::backend::Posted;
use glowfs_rt::sync::Notify;
use glowfs_rt::{Buf, BufMut, Rt};
use libc::{EINVAL, EIO, EPROTO};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Poll, Waker};
use zerocopy::IntoBytes;

/// So many requests are taken in a row before other tasks get a turn.
const BURST: u32 = 32;

/// A request with its payload and the duty to answer.
pub struct Incoming {
    /// Who asks.
    pub header: Header,
    /// For what.
    pub op: Op,
    /// The payload of a WRITE; empty otherwise.
    pub payload: Option<Buf>,
    /// Supplementary groups that the kernel sent along.
    pub groups: Vec<u32>,
    /// The answer; none for FORGET.
    pub reply: Option<Reply>,
}

/// See the module.
pub struct Session {
    rt: Rt,
    device: Device,
    /// None: all requests come by the device.
    queues: Option<Rc<Queues>>,
    negotiated: Negotiated,
    max_outstanding: usize,
    /// Requests without an answer. Never iterated.
    outstanding: RefCell<HashMap<u64, Interest>>,
    /// The reader, while it waits for room.
    reader: RefCell<Option<Waker>>,
    burst: Cell<u32>,
    /// The device may have something to read.
    device_ready: Cell<bool>,
    /// Those of them that wait for others.
    parked: Cell<usize>,
    /// Answers that are on their way to the kernel and may give it something to keep.
    flying: RefCell<BTreeSet<u64>>,
    /// One of them has arrived.
    landed: Notify,
    notices: Rc<Notices>,
}

#[derive(Default)]
struct Interest {
    interrupted: bool,
    parked: bool,
    waker: Option<Waker>,
}

impl Posted for Session {
    fn posted(&self, unique: u64, outcome: io::Result<usize>) {
        if self.flying.borrow_mut().remove(&unique) {
            self.landed.notify_all();
        }
        if let Err(e) = outcome {
            self.refused(unique, &e);
        }
    }
}

impl Session {
    /// Answers INIT on a fresh mount. Fails if the kernel is too old or the mount goes away.
    pub async fn start(rt: &Rt, fd: OwnedFd, options: &Options) -> io::Result<Rc<Self>> {
        let device = Device::new(rt, fd)?;
        let queues = Self::queues(rt, &device, options);
        let negotiated = loop {
            match device.try_read()? {
                Got::Empty => device.readable().await?,
                Got::Gone => {
                    return Err(io::Error::other("the mount went away before it was used"));
                }
                Got::Bad(bad) => {
                    tracing::warn!(%bad, "before INIT");
                    if bad.unique != 0 {
                        device.send(-EINVAL, bad.unique, &[])?;
                    }
                }
                Got::Request(r, _) => {
                    let unique = r.header.unique;
                    let Op::Init { major, minor, max_readahead, flags } = r.op else {
                        device.send(-EPROTO, unique, &[])?;
                        continue;
                    };
                    let ready = queues.is_some();
                    match negotiate(major, minor, max_readahead, flags, options, ready) {
                        Outcome::Done(out, n) => {
                            device.set_max_write(n.max_write as usize);
                            device.send(0, unique, &[IoSlice::new(out.as_bytes())])?;
                            break n;
                        }
                        Outcome::Again(out) => {
                            device.send(0, unique, &[IoSlice::new(out.as_bytes())])?;
                        }
                        Outcome::TooOld => {
                            device.send(-EPROTO, unique, &[])?;
                            return Err(io::Error::other(format!(
                                "the kernel speaks FUSE {major}.{minor}; at least 7.{} (Linux 5.4) is needed",
                                abi::KERNEL_MINOR_VERSION_MIN
                            )));
                        }
                    }
                }
            }
        };
        tracing::debug!(?negotiated, "FUSE session");
        let queues = queues.filter(|_| negotiated.over_io_uring());
        if options.queue_depth > 0 && queues.is_none() {
            tracing::info!("no FUSE over io_uring here; requests come by /dev/fuse");
        }
        if let Some(queues) = &queues {
            queues.register();
        }
        let notices = Notices::new(rt, device.sender());
        Ok(Rc::new(Self {
            rt: rt.clone(),
            device,
            queues,
            negotiated,
            max_outstanding: options.max_outstanding.max(1),
            outstanding: RefCell::default(),
            reader: RefCell::default(),
            burst: Cell::new(0),
            device_ready: Cell::new(true),
            parked: Cell::new(0),
            flying: RefCell::default(),
            landed: Notify::new(),
            notices,
        }))
    }

    /// The queues that the options ask for. Without them it goes on.
    fn queues(rt: &Rt, device: &Device, options: &Options) -> Option<Rc<Queues>> {
        if options.queue_depth == 0 {
            return None;
        }
        Queues::new(rt, device.fd().clone(), options.max_write_bytes(), options.queue_depth)
            .inspect_err(|error| tracing::warn!(%error, "FUSE over io_uring cannot be used"))
            .ok()
    }

    /// What was agreed on with the kernel.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }
    /// The number of requests handed out and not answered, without those that wait for others.
    pub fn outstanding(&self) -> usize {
        self.outstanding.borrow().len() - self.parked.get()
    }

    pub(crate) fn park(&self, unique: u64, entry: Option<&Rc<Entry>>) -> bool {
        if let (Some(queues), Some(entry)) = (&self.queues, entry)
            && !queues.park(entry)
        {
            return false;
        }
        let mut all = self.outstanding.borrow_mut();
        if let Some(i) = all.get_mut(&unique).filter(|i| !i.parked) {
            i.parked = true;
            self.parked.set(self.parked.get() + 1);
        }
        drop(all);
        self.wake_reader();
        true
    }
    fn wake_reader(&self) {
        if let Some(w) = self.reader.borrow_mut().take() {
            w.wake();
        }
    }

    /// The next request; none when the file system is unmounted. One task calls this.
    pub async fn next(self: &Rc<Self>) -> io::Result<Option<Incoming>> {
        loop {
            if self.outstanding() >= self.max_outstanding {
                self.room().await;
            }
            // These first, and all of them: an INTERRUPT comes by the device, and its request may be among them.
            if let Some((entry, taken)) = self.queues.as_ref().and_then(|q| q.take()) {
                if let Some(incoming) = self.take(taken, Some(entry)) {
                    return Ok(Some(incoming));
                }
                continue;
            }
            if self.burst.get() >= BURST {
                self.burst.set(0);
                self.rt.yield_now().await;
                continue;
            }
            if !self.device_ready.get() {
                self.burst.set(0);
                self.arrival().await?;
                continue;
            }
            let taken = match self.device.try_read()? {
                Got::Empty => {
                    self.device_ready.set(false);
                    continue;
                }
                Got::Gone => return Ok(None),
                Got::Bad(bad) => Err(bad),
                Got::Request(r, payload) => Ok((r, payload)),
            };
            self.burst.set(self.burst.get() + 1);
            if let Some(incoming) = self.take(taken, None) {
                return Ok(Some(incoming));
            }
        }
    }

    /// Waits until a queue or the device has something.
    async fn arrival(&self) -> io::Result<()> {
        poll_fn(|cx| {
            if let Some(queues) = &self.queues
                && queues.poll_ready(cx).is_ready()
            {
                return Poll::Ready(Ok(()));
            }
            self.device.poll_readable(cx).map_ok(|()| self.device_ready.set(true))
        })
        .await
    }

    fn take(
        self: &Rc<Self>,
        taken: Result<(crate::Request, Option<Buf>), BadRequest>,
        entry: Option<Rc<Entry>>,
    ) -> Option<Incoming> {
        match taken {
            Ok((request, payload)) => self.admit(request, payload, entry),
            Err(bad) => {
                tracing::warn!(%bad, "refused");
                if bad.unique != 0 || entry.is_some() {
                    self.answer(bad.unique, entry.as_ref(), -EINVAL, &[]);
                }
                None
            }
        }
    }

    /// Deals with what concerns the session itself; hands everything else out.
    fn admit(
        self: &Rc<Self>,
        r: crate::Request,
        payload: Option<Buf>,
        entry: Option<Rc<Entry>>,
    ) -> Option<Incoming> {
        let crate::Request { header, op, groups } = r;
        if matches!(op, Op::Forget(_) | Op::Interrupt { .. } | Op::NotifyReply) && entry.is_some() {
            // Nobody waits for an answer, but the entry must go back. Today's kernels send these by the device.
            self.answer(header.unique, entry.as_ref(), 0, &[]);
        }
        let reply = match &op {
            Op::Forget(_) => None,
            Op::Interrupt { unique } => {
                self.interrupt(*unique);
                return None;
            }
            Op::NotifyReply => return None,
            _ => {
                self.outstanding.borrow_mut().insert(header.unique, Interest::default());
                let (session, unique) = (self.clone(), header.unique);
                Some(Reply { session, unique, entry, answered: Cell::new(false) })
            }
        };
        Some(Incoming { header, op, payload, groups, reply })
    }

    async fn room(&self) {
        poll_fn(|cx| {
            if self.outstanding() < self.max_outstanding {
                return Poll::Ready(());
            }
            *self.reader.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Marks a request as interrupted. One that is not outstanding was answered already: the kernel drops the
    /// INTERRUPT then.
    fn interrupt(&self, unique: u64) {
        let waker = self.outstanding.borrow_mut().get_mut(&unique).and_then(|i| {
            i.interrupted = true;
            i.waker.take()
        });
        if let Some(w) = waker {
            w.wake();
        }
    }

    pub(crate) async fn interrupted(&self, unique: u64) {
        poll_fn(|cx| match self.outstanding.borrow_mut().get_mut(&unique) {
            Some(i) if !i.interrupted => {
                i.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
    }

    pub(crate) fn buffer(&self, entry: Option<&Rc<Entry>>, len: usize) -> BufMut {
        entry.and_then(|e| e.lend(len)).unwrap_or_else(|| self.rt.alloc(len))
    }

    pub(crate) fn answer(
        self: &Rc<Self>,
        unique: u64,
        entry: Option<&Rc<Entry>>,
        error: i32,
        parts: &[IoSlice<'_>],
    ) {
        self.settle(unique);
        if let (Some(queues), Some(entry)) = (&self.queues, entry) {
            return queues.answer(entry, unique, error, Body::Parts(parts));
        }
        let mut body = Vec::with_capacity(parts.iter().map(|p| p.len()).sum());
        parts.iter().for_each(|p| body.extend_from_slice(p));
        // An error or a bare «done» gives the kernel nothing to keep.
        let keeps = error == 0 && !body.is_empty();
        if keeps {
            self.flying.borrow_mut().insert(unique);
        }
        let posted = self.device.post(error, unique, Buf::from_vec(body), self.clone());
        if keeps && !matches!(posted, Ok(true)) {
            self.flying.borrow_mut().remove(&unique);
        }
        if let Err(e) = posted {
            self.refused(unique, &e);
        }
    }

    /// Answers a READ. Its answer need not come before any other one or before a notification: it gives the kernel no attributes,
    /// and the pages that it fills are locked until then. So it leaves with the others of this turn.
    pub(crate) fn answer_data(
        self: &Rc<Self>,
        unique: u64,
        entry: Option<&Rc<Entry>>,
        payload: Buf,
    ) {
        self.settle(unique);
        if let (Some(queues), Some(entry)) = (&self.queues, entry) {
            return queues.answer(entry, unique, 0, Body::Data(payload));
        }
        if let Err(e) = self.device.post(0, unique, payload, self.clone()) {
            self.refused(unique, &e);
        }
    }

    /// The request has its answer.
    fn settle(&self, unique: u64) {
        let answered = self.outstanding.borrow_mut().remove(&unique);
        if answered.is_some_and(|i| i.parked) {
            self.parked.set(self.parked.get() - 1);
        }
        self.wake_reader();
    }

    fn refused(&self, unique: u64, e: &io::Error) {
        // ENOENT: the caller is gone; ENODEV: so is the mount. Nobody waits for this answer any more.
        let gone = matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV));
        if !gone {
            tracing::error!(unique, %e, "the kernel refused an answer");
            let _ = self.device.send(-EIO, unique, &[]);
        }
    }

    /// Tells the kernel to forget the attributes of an inode and its pages of `[off, off + len)`; `len` 0: to the end;
    /// `off` negative: attributes only. False: the kernel does not know the inode.
    pub async fn notify_inval_inode(&self, ino: u64, off: i64, len: i64) -> io::Result<bool> {
        let out = abi::NotifyInvalInodeOut { ino, off, len };
        let lane = if off < 0 { Lane::Attributes(ino) } else { Lane::Pages(ino) };
        self.notify(lane, notify::INVAL_INODE, out.as_bytes().to_vec()).await
    }
    /// Tells the kernel to forget a name.
    pub async fn notify_inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<bool> {
        let out = abi::NotifyInvalEntryOut { parent, namelen: name.len() as u32, flags: 0 };
        let lane = Lane::Names(parent);
        self.notify(lane, notify::INVAL_ENTRY, [out.as_bytes(), name, &[0]].concat()).await
    }
    /// Waits for the answers that are on their way now.
    async fn answers_landed(&self) {
        let mut before: Vec<u64> = self.flying.borrow().iter().copied().collect();
        loop {
            let news = self.landed.wait();
            before.retain(|unique| self.flying.borrow().contains(unique));
            if before.is_empty() {
                break;
            }
            news.await;
        }
        if self.queues.is_some() {
            self.rt.handed_over().await;
        }
    }
    /// A notification may wait for pages that only our answers release, so it is sent from a thread of its own ([`Notices`]) while this
    /// one goes on serving. False: what it is about is not cached, so there is nothing to forget.
    async fn notify(&self, lane: Lane, code: i32, body: Vec<u8>) -> io::Result<bool> {
        self.answers_landed().await;
        match self.notices.send(lane, code, body).await {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            other => other.map(|()| true),
        }
    }
}
