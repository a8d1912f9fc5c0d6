//! [`Batch`]: many reads and writes of many files at once, for programs that embed the client: the rings' rules without a daemon.
//!
//! Operations are prepared, submitted together, and their completions are taken when some, or all, are there. They are carried out in any
//! order and beside each other; ordering what overlaps is the caller's. Depth, time-out and the read that ends at a hole mean what they mean
//! in the user-space rings (`docs/formats/rings.md`); bytes in flight are bounded by [`crate::ClientConfig::inflight_bytes`].
//!
//! Guarantees: every operation that was submitted completes once, with its own result, however others end; a buffer that was given with a
//! read comes back with its completion; a read answers contents of one truncate epoch, not older than the file's last change by another client; a write is in every replica when it completes; never more operations are outstanding
//! than [`BatchConfig::entries`]. Must never: begin an operation before it was submitted, or more at a time than the depth says.

use crate::read::Found;
use crate::{Client, OpenFile};
use glowfs_rt::sync::Notify;
use glowfs_rt::{Buf, BufMut, Duration, Instant};
use glowfs_types::{DataId, Depth, Error, Result, Status, TruncateEpoch};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// The most operations that a batch may have outstanding: prepared, submitted, or completed and not taken.
pub const BATCH_ENTRIES_MAX: usize = 65_536;

/// How often a read is carried out because the file was cut meanwhile; one that meets a hole takes two, or three.
const READS_MAX: u32 = 64;

/// How a batch works.
#[derive(Clone, Copy, Debug)]
pub struct BatchConfig {
    /// The greatest number of operations outstanding, at most [`BATCH_ENTRIES_MAX`].
    pub entries: usize,
    /// How many begin at a time; where that is an exact number, fewer wait for more, at most for `timeout`.
    pub depth: Depth,
    /// After so long fewer than the exact number begin as well; zero: never.
    pub timeout: Duration,
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self { entries: 1024, depth: Depth(0), timeout: Duration::ZERO }
    }
}

/// What a read does at a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Holes {
    /// They are zeros.
    #[default]
    Zeros,
    /// A read ends before a hole that reaches to its end, and fails with `NoAttribute` (ENODATA) if it begins in such a hole, or finds data behind one.
    End,
}

/// How an operation ended.
#[derive(Debug)]
pub struct Completion {
    /// What it was prepared with.
    pub user: u64,
    /// Bytes done. Fewer than asked for: the file ends there, or a hole begins that may not be read.
    pub result: Result<usize>,
    /// Of a read: a buffer of the length that was given. Behind the bytes done its contents are arbitrary.
    pub buf: Option<BufMut>,
}

enum Work {
    Read(BufMut, Holes),
    Write(Buf),
}

struct Operation {
    file: Rc<OpenFile>,
    offset: u64,
    user: u64,
    work: Work,
}

struct Inner {
    client: Rc<Client>,
    config: BatchConfig,
    prepared: RefCell<VecDeque<Operation>>,
    /// Submitted, and not begun.
    waiting: RefCell<VecDeque<Operation>>,
    working: Cell<usize>,
    done: RefCell<VecDeque<Completion>>,
    /// Since when fewer wait than may begin.
    partial: Cell<Option<Instant>>,
    changed: Notify,
}

/// See the module. When it is dropped, what has not begun never does; what has begun goes on to its end, unseen.
pub struct Batch {
    inner: Rc<Inner>,
}

impl Batch {
    /// A batch without operations.
    pub fn new(client: &Rc<Client>, config: BatchConfig) -> Result<Self> {
        let bad = |e: String| Err(Error::new(Status::InvalidArgument, e));
        if !(1..=BATCH_ENTRIES_MAX).contains(&config.entries) {
            return bad(format!("a batch has 1 to {BATCH_ENTRIES_MAX} entries"));
        }
        if usize::try_from(config.depth.0).is_ok_and(|n| n > config.entries) {
            return bad(format!(
                "depth {} of {} entries never begins",
                config.depth.0, config.entries
            ));
        }
        let inner = Inner {
            client: client.clone(),
            config,
            prepared: RefCell::default(),
            waiting: RefCell::default(),
            working: Cell::new(0),
            done: RefCell::default(),
            partial: Cell::new(None),
            changed: Notify::default(),
        };
        Ok(Self { inner: Rc::new(inner) })
    }

    /// Prepares a read that fills `buf` from `offset`. The buffer comes back with the error if there is no entry left.
    pub fn prepare_read(
        &self,
        file: &Rc<OpenFile>,
        offset: u64,
        buf: BufMut,
        holes: Holes,
        user: u64,
    ) -> std::result::Result<(), (Error, BufMut)> {
        match self.check(offset, buf.len()) {
            Ok(()) => self.prepare(file, offset, Work::Read(buf, holes), user),
            Err(e) => return Err((e, buf)),
        }
        Ok(())
    }

    /// Prepares a write of all of `buf` at `offset`.
    pub fn prepare_write(
        &self,
        file: &Rc<OpenFile>,
        offset: u64,
        buf: Buf,
        user: u64,
    ) -> Result<()> {
        self.check(offset, buf.len())?;
        self.prepare(file, offset, Work::Write(buf), user);
        Ok(())
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| i64::try_from(end).is_err()) {
            let e = format!("{len} bytes at {offset} end behind the greatest file size");
            return Err(Error::new(Status::InvalidArgument, e));
        }
        if self.outstanding() >= self.inner.config.entries {
            let e =
                format!("all {} entries are in use: take completions", self.inner.config.entries);
            return Err(Error::new(Status::Overloaded, e));
        }
        Ok(())
    }

    fn prepare(&self, file: &Rc<OpenFile>, offset: u64, work: Work, user: u64) {
        let operation = Operation { file: file.clone(), offset, user, work };
        self.inner.prepared.borrow_mut().push_back(operation);
    }

    /// Submits what was prepared; how many that were.
    pub fn submit(&self) -> usize {
        let mut prepared = self.inner.prepared.borrow_mut();
        let n = prepared.len();
        self.inner.waiting.borrow_mut().extend(prepared.drain(..));
        drop(prepared);
        self.inner.pump(false);
        n
    }

    /// Operations prepared, submitted, or completed and not taken.
    pub fn outstanding(&self) -> usize {
        self.inner.prepared.borrow().len() + self.inner.submitted() + self.completed()
    }

    /// Completions that can be taken.
    pub fn completed(&self) -> usize {
        self.inner.done.borrow().len()
    }

    /// The completions that are there, at most `max`, in the order in which they came.
    pub fn take(&self, max: usize) -> Vec<Completion> {
        let mut done = self.inner.done.borrow_mut();
        let n = done.len().min(max);
        done.drain(..n).collect()
    }

    /// Waits until `min` completions are there, or those of all that is submitted if that is less, at most for `timeout`; takes all
    /// that are there then. With a depth of N > 0 and no time-out, operations that are fewer than N are waited for as long.
    pub async fn wait(&self, min: usize, timeout: Option<Duration>) -> Vec<Completion> {
        let rt = self.inner.client.rt();
        let until = timeout.map(|t| rt.now() + t);
        loop {
            let changed = self.inner.changed.wait();
            let enough = self.completed() >= min || self.inner.submitted() == 0;
            let left = until.map(|u| u.since(rt.now()));
            match left {
                _ if enough => break,
                Some(left) if left.is_zero() => break,
                Some(left) => {
                    let _ = rt.timeout(left, changed).await;
                }
                None => changed.await,
            }
        }
        self.take(usize::MAX)
    }

    /// Waits for all that is submitted, at most for `timeout`.
    pub async fn wait_all(&self, timeout: Option<Duration>) -> Vec<Completion> {
        self.wait(usize::MAX, timeout).await
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.inner.prepared.borrow_mut().clear();
        self.inner.waiting.borrow_mut().clear();
    }
}

impl Inner {
    /// Submitted, and not completed.
    fn submitted(&self) -> usize {
        self.waiting.borrow().len() + self.working.get()
    }

    /// Begins what may begin. `waited`: for long enough that fewer than the depth begin, too.
    fn pump(self: &Rc<Self>, waited: bool) {
        loop {
            let waiting = self.waiting.borrow().len();
            let n = self.config.depth.begins(waiting, self.working.get(), waited);
            if n == 0 {
                break;
            }
            self.partial.set(None);
            for _ in 0..n {
                let next = self.waiting.borrow_mut().pop_front();
                if let Some(operation) = next {
                    self.begin(operation);
                }
            }
        }
        let patient = self.config.depth.is_exact() && !self.config.timeout.is_zero();
        if patient && self.partial.get().is_none() && !self.waiting.borrow().is_empty() {
            self.be_patient();
        }
    }

    /// Lets a part of a turn begin after the time-out.
    fn be_patient(self: &Rc<Self>) {
        let rt = self.client.rt();
        let since = rt.now();
        self.partial.set(Some(since));
        let (me, rt) = (self.clone(), rt.clone());
        self.client.rt().spawn_detached(async move {
            rt.sleep_until(since + me.config.timeout).await;
            if me.partial.get() == Some(since) {
                me.partial.set(None);
                me.pump(true);
            }
        });
    }

    fn begin(self: &Rc<Self>, operation: Operation) {
        self.working.set(self.working.get() + 1);
        let me = self.clone();
        self.client.rt().spawn_detached(async move {
            let completion = me.perform(operation).await;
            me.done.borrow_mut().push_back(completion);
            me.working.set(me.working.get() - 1);
            me.pump(false);
            me.changed.notify_all();
        });
    }

    async fn perform(&self, operation: Operation) -> Completion {
        let Operation { file, offset, user, work } = operation;
        match work {
            Work::Write(buf) => {
                let len = buf.len();
                let result = file.write(offset, buf).await.map(|()| len);
                Completion { user, result, buf: None }
            }
            Work::Read(buf, holes) => {
                let (result, buf) = self.read(&file, offset, buf, holes).await;
                Completion { user, result, buf: Some(buf) }
            }
        }
    }

    /// Reads, and asks meta afterwards, if no lease says it: what the file was replaced by meanwhile, or before without a word to this client, is read instead, and what
    /// the chunks have behind its end is not told. Where the chunks have less than was asked for, a hole may begin, or the file end. What does not exist are zeros up to a
    /// length that the file had before it was read, and only if nobody cut it meanwhile: what is longer may have been written since, and what was replaced may have been
    /// collected.
    async fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        mut buf: BufMut,
        holes: Holes,
    ) -> (Result<usize>, BufMut) {
        let want = buf.len();
        let end = |len: u64| len.saturating_sub(offset).min(want as u64) as usize;
        let mut before: Option<((TruncateEpoch, DataId), usize)> = None;
        for _ in 0..READS_MAX {
            let under = file.under();
            let (result, back) = file.read_found(offset, buf).await;
            buf = back;
            let found = match result {
                Ok(found) => found,
                Err(e) => return (Err(e), buf),
            };
            let known = match file.known().await {
                Ok(known) => known,
                Err(e) => return (Err(e), buf),
            };
            let ends = end(file.len_here(&known));
            if known.under == under && file.under() == under {
                if ends <= found.whole {
                    return (Ok(ends), buf);
                }
                if let Some((_, ended)) = before.filter(|(of, _)| *of == under) {
                    let found = Found { end: found.end.min(ends), whole: found.whole };
                    return (holes.told(file, offset, found, ended), buf);
                }
            }
            before = Some((known.under, ends));
        }
        let e = format!("inode {} is truncated again and again", file.inode());
        (Err(Error::new(Status::TimedOut, e)), buf)
    }
}

impl Holes {
    /// The outcome of a read of a file that goes on for `end` bytes, of which so many exist.
    fn told(self, file: &OpenFile, offset: u64, found: Found, end: usize) -> Result<usize> {
        let Found { end: exist, whole } = found;
        match self {
            Self::Zeros => Ok(end.max(exist)),
            Self::End if whole < exist || (whole == 0 && end > 0) => {
                let at = offset + whole as u64;
                let e = format!("a hole begins at {at} of inode {}, or before", file.inode());
                Err(Error::new(Status::NoAttribute, e))
            }
            Self::End => Ok(whole),
        }
    }
}
