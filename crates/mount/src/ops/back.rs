//! Write-back: small buffered writes are answered when the daemon has them, and sent together (the option `write_back`).
//!
//! They are sent when there are enough of them, at most `write_back_ms` after the first, and before whatever of the same file could tell the difference: fsync,
//! close, reads, truncate, locks, holes, copies, times, direct writes, the end of the mount. The kernel's own write-back is not used: a kernel that may hold
//! writes back never again asks for length and times of a file, and so would not see what other clients do.

use crate::daemon::{Asked, Context, Daemon, Failure, Outcome, Work};
use crate::errno::errno;
use crate::filesystem::{FileData, FileSystem};
use crate::gather::Run;
use crate::handles::Handle;
use crate::inodes::Pin;
use crate::open::{OpenInode, OpenedFile};
use crate::ops::open_flags::{O_DIRECT, O_DSYNC};
use glowfs_client::CUTS_MAX;
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration, Instant};
use glowfs_types::layout::FILE_BYTES_MAX;
use glowfs_types::wire::meta::{Attr, Caller, OfInode};
use glowfs_types::{Error, InodeId, Result, Status, TruncateEpoch};
use libc::{EFBIG, EIO};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Greater writes are sent at once: gathering would not make them cheaper.
const WRITE_BYTES_MAX: usize = 128 << 10;
/// What is gathered of one file is sent when it is so much,
const FILE_BYTES: usize = 1 << 20;
/// or in so many pieces. (As much again may be on its way.)
const FILE_PIECES: usize = 256;
/// So much may wait in all files together; beyond that writes are sent at once.
const MOUNT_BYTES: usize = 64 << 20;
/// Pieces of one file that are on their way at once, where the order does not matter.
const PARALLEL: usize = 8;
/// How long the end of the mount waits for what is not sent.
const LAST_WAIT: Duration = Duration::from_secs(30);

/// What waits to be sent because of its age, oldest first.
#[derive(Default)]
pub struct WriteBack {
    due: RefCell<VecDeque<(Instant, InodeId, u64)>>,
    /// A task looks after them.
    watched: Cell<bool>,
}

/// One write to storage.
struct Span<'a> {
    run: &'a Run,
    from: u64,
    to: u64,
}

impl<S: FileSystem> Context<S> {
    /// Whether a write with these flags of open(2) may be answered before it is sent.
    pub(crate) fn may_gather(&self, handle: &Handle<S::File>, flags: u32, len: usize) -> bool {
        self.write_back.is_some()
            && flags & (O_DIRECT | O_DSYNC) == 0
            && len < WRITE_BYTES_MAX
            && handle.write
    }

    /// Takes a write over that may be answered now; where it goes. None: it has to be sent. Call inside the gate.
    pub(crate) async fn gather(
        &self,
        handle: &Handle<S::File>,
        offset: u64,
        bytes: &[u8],
        append: bool,
    ) -> Result<Option<u64>, Failure> {
        let inode = &handle.inode;
        // What was gathered for a session that ended is not to be sent with another one's.
        if !inode.may_wait() || inode.has_dead() {
            return Ok(None);
        }
        loop {
            let news = inode.sent.wait();
            let (size, full) = (inode.back().size(), self.inodes.waiting.bytes() >= MOUNT_BYTES);
            if full {
                self.send_everything();
                return Ok(None);
            }
            if inode.back().wants_length() {
                Box::pin(self.daemon.learn_length(inode.id, &handle.caller)).await?;
            } else if size.0 < FILE_BYTES && size.1 < FILE_PIECES {
                break;
            } else if !self.send_gathered(inode.id) {
                news.await;
            }
        }
        // An append that is sent at this moment has its place already.
        let place = inode.begin_write(offset, bytes.len() as u64, append);
        let _ = inode.end_write(None, 0, 0);
        if place.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Failure::Errno(EFBIG));
        }
        inode.back().heard_of(inode.epoch());
        let first = inode.back().gather(place, bytes, self.rt.unix_ns(), append);
        if let Some(number) = first {
            self.send_later(inode.id, number);
        }
        let size = inode.back().size();
        if size.0 >= FILE_BYTES || size.1 >= FILE_PIECES {
            self.send_gathered(inode.id);
        }
        self.count_written(bytes.len());
        self.metrics.gathered.inc();
        Ok(Some(place))
    }

    /// What went wrong with writes that were answered, if the application has not been told through this handle.
    pub(crate) fn heard(&self, handle: &Handle<S::File>) -> Result<(), Failure> {
        handle.inode.late.hear(&handle.heard).map_or(Ok(()), |e| Err(Failure::Errno(e)))
    }
    /// An outcome, but first of all what went wrong before.
    pub(crate) fn with_late(&self, handle: &Handle<S::File>, outcome: Outcome) -> Outcome {
        outcome.and_then(|answer| self.heard(handle).map(|()| answer))
    }
}

impl<S: FileSystem> Daemon<S> {
    /// Returns when everything that was written to the file before has been sent (or was lost, which its handles will hear of).
    pub(crate) async fn all_sent(&self, inode: &OpenInode<S::File>) {
        let last = inode.back().last();
        if last != 0 {
            Box::pin(self.sent_up_to(inode, last)).await;
        }
    }
    async fn sent_up_to(&self, inode: &OpenInode<S::File>, last: u64) {
        loop {
            let news = inode.sent.wait();
            if inode.back().last() == 0 || inode.back().has_ended(last) {
                return;
            }
            self.send_gathered(inode.id);
            news.await;
        }
    }
    /// The same for an inode that may be open here.
    pub(crate) async fn inode_sent(&self, inode: InodeId) {
        if let Some(open) = self.inodes.opened(inode) {
            self.all_sent(&open).await;
        }
    }
    /// All that was written to any file is sent. For the end of the mount.
    pub(crate) async fn everything_sent(&self) {
        let all = self.inodes.open_inodes();
        let sent = join_all(all.iter().map(|inode| self.all_sent(inode)));
        if self.rt.timeout(LAST_WAIT, sent).await.is_err() {
            tracing::error!(
                "writes that were answered could not be sent before the end of the mount"
            );
        }
    }
    fn send_everything(&self) {
        for inode in self.inodes.open_inodes() {
            self.send_gathered(inode.id);
        }
    }

    /// Begins to send what was gathered, unless something is on its way. Whether it did.
    fn send_gathered(&self, inode: InodeId) -> bool {
        let Some(daemon) = self.write_back.as_ref().and_then(|_| self.this.upgrade()) else {
            return false;
        };
        let pin = self.inodes.pin(inode);
        let Some((runs, at_ns)) = pin.back().take() else { return false };
        let work = daemon.work();
        self.rt.spawn_detached(fly(daemon, work, pin, runs, at_ns));
        true
    }

    /// A set of that number begins: it is sent when it is old enough, if it is not before.
    fn send_later(&self, inode: InodeId, number: u64) {
        let (Some(back), Some(daemon)) = (&self.write_back, self.this.upgrade()) else { return };
        let age = Duration::from_millis(self.config.write_back_ms);
        back.due.borrow_mut().push_back((self.rt.now() + age, inode, number));
        if back.watched.replace(true) {
            return;
        }
        let weak = self.this.clone();
        drop(daemon);
        let rt = self.rt.clone();
        self.rt.spawn_detached(async move {
            while let Some(next) = weak.upgrade().and_then(|d| d.send_due()) {
                rt.sleep_until(next).await;
            }
        });
    }
    /// Sends what is old enough; when the next will be. None: nothing waits.
    fn send_due(&self) -> Option<Instant> {
        let back = self.write_back.as_ref()?;
        loop {
            let next = back.due.borrow().front().copied();
            let Some((when, inode, number)) = next else {
                back.watched.set(false);
                return None;
            };
            if when > self.rt.now() {
                return Some(when);
            }
            back.due.borrow_mut().pop_front();
            let open = self.inodes.opened(inode);
            if open.is_some_and(|o| o.back().is_due(number)) {
                self.send_gathered(inode);
            }
        }
    }

    /// Asks meta how long a file is that another client has cut, as who writes to it.
    pub(super) async fn learn_length(&self, inode: InodeId, writer: &Caller) -> Result<()> {
        let asked = self.asking();
        let q = OfInode { caller: writer.clone(), inode };
        let attr = self.fs.getattr(q).await?.attr;
        self.note_length(&attr, asked);
        self.inodes.seen(&attr);
        Ok(())
    }
    /// What was written before another client cut the file is forgotten behind the length that meta says since.
    pub(crate) fn note_length(&self, attr: &Attr, asked: Asked) {
        if self.inodes.may_lease(attr.inode, asked.recalls())
            && let Some(open) = self.inodes.opened(attr.inode)
        {
            open.back().cut_at(attr.len, attr.epoch);
        }
    }

    async fn send_runs(&self, inode: &OpenInode<S::File>, runs: &[Run], at_ns: u64) -> Result<()> {
        // It may be older than the end of a session, and others may have gone on with the file since.
        let file = inode.find_writable().filter(|_| !inode.has_dead());
        let file = file.ok_or_else(|| Error::from(Status::SessionEnded))?;
        let layout = inode.attr().layout;
        let chunk = layout.map_or(u64::MAX, |l| u64::from(l.chunk_bytes).max(1));
        let mut spans = Vec::new();
        for run in runs {
            let mut from = run.offset;
            while from < run.end() {
                let to = run.end().min((from / chunk).saturating_add(1).saturating_mul(chunk));
                spans.push(Span { run, from, to });
                from = to;
            }
        }
        // What makes the file longer goes in order: of a client that dies here nothing but the end is missing.
        let inside = spans.partition_point(|s| s.to <= inode.stored_len());
        let (inside, behind) = spans.split_at(inside);
        let next = Cell::new(0);
        let some = (0..PARALLEL.min(inside.len())).map(|_| async {
            while let Some(span) = inside.get(next.replace(next.get() + 1)) {
                self.send_span(inode, &file, span, at_ns).await?;
            }
            Ok(())
        });
        join_all(some).await.into_iter().collect::<Result<()>>()?;
        for span in behind {
            self.send_span(inode, &file, span, at_ns).await?;
        }
        Ok(())
    }

    async fn send_span(
        &self,
        inode: &OpenInode<S::File>,
        file: &OpenedFile<S::File>,
        span: &Span<'_>,
        at_ns: u64,
    ) -> Result<()> {
        let mut cuts = 0;
        let writer = &file.access.caller;
        loop {
            while inode.back().wants_length() {
                self.learn_length(inode.id, writer).await?;
            }
            let to = span.to.min(inode.back().limit());
            if span.from >= to {
                return Ok(());
            }
            let mut buf = self.rt.alloc((to - span.from) as usize);
            span.run.copy_to(span.from, &mut buf);
            self.metrics.sent_late.inc();
            let gap = span.from > inode.stored_len();
            let spot = Spot { place: span.from, gap, under: Some(inode.epoch()) };
            inode.begin_write(span.from, to - span.from, false);
            match self.store(inode, file, spot, buf.freeze(), Some(at_ns)).await {
                // Another client has cut the file before it was there: what lies behind the new end goes no more.
                Err(e) if e.status == Status::Stale && cuts < CUTS_MAX => {
                    cuts += 1;
                    self.learn_length(inode.id, writer).await?;
                    file.file.update_attr(&inode.attr());
                }
                told if told.as_ref().is_ok_and(|t| t.cut_elsewhere) => {
                    return self.learn_length(inode.id, writer).await;
                }
                told => return told.map(|_| ()),
            }
        }
    }

    /// Writes to storage and notes what came of it; the file was written then, or now. After [`OpenInode::begin_write`].
    pub(crate) async fn store(
        &self,
        inode: &OpenInode<S::File>,
        file: &OpenedFile<S::File>,
        Spot { place, gap, under }: Spot,
        payload: Buf,
        at_ns: Option<u64>,
    ) -> Result<Stored> {
        let len = payload.len() as u64;
        let written = file.file.write(place, payload, under).await;
        let at_ns = at_ns.unwrap_or_else(|| self.rt.unix_ns());
        if let Ok(Some(attr)) = written {
            // Meta has it all, and everybody else may see it.
            let _ = inode.end_write(None, 0, at_ns);
            inode.cut_pages.grew(place + len);
            self.inodes.seen(&attr);
            inode.meta_was_told(&attr);
            if self.inodes.changed_here(&attr, 1) {
                self.forget_pages_later(attr.inode);
            }
            return Ok(Stored { with_meta: Some(attr), cut_elsewhere: false });
        }
        if gap {
            inode.note_holes();
        }
        // A write that landed under an epoch that is over counts for nothing: the file was cut after it.
        let counts = file.file.len_written().is_some_and(|l| l >= place + len);
        let done = (written.is_ok() && counts).then(|| (place + len, file.file.epoch()));
        let cut_elsewhere = inode.end_write(done, len, at_ns);
        written.inspect_err(|e| inode.failed_to_write(e, at_ns))?;
        Ok(Stored { with_meta: None, cut_elsewhere })
    }
}

/// Where a write goes.
pub(crate) struct Spot {
    pub place: u64,
    /// Behind the end of the file, so that a hole comes before it.
    pub gap: bool,
    /// The truncate epoch that the place was computed for, if it depends on the length of the file: when that is over, the write ends with `Stale`.
    pub under: Option<TruncateEpoch>,
}

/// What came of a write.
pub(crate) struct Stored {
    /// Its contents are with the metadata: what meta says of it now.
    pub with_meta: Option<Attr>,
    /// Another client has cut the file meanwhile: meta has to be asked for its length.
    pub cut_elsewhere: bool,
}

/// Sends one set.
async fn fly<S: FileSystem>(
    daemon: std::rc::Rc<Daemon<S>>,
    _work: Work<S>,
    inode: Pin<S::File>,
    runs: Vec<Run>,
    at_ns: u64,
) {
    let outcome = daemon.send_runs(&inode, &runs, at_ns).await;
    if let Err(error) = &outcome {
        let number = match errno(error) {
            0 => EIO,
            number => number,
        };
        tracing::error!(inode = %inode.id, %error, "writes that were answered before they were sent are lost; the application hears of it at fsync or close");
        inode.late.note(number);
    }
    let next = inode.back().ended(&outcome);
    inode.sent.notify_all();
    if next {
        daemon.send_gathered(inode.id);
    }
}
