//! Its open files.

use super::{Node, RamFs, no};
use crate::filesystem::FileData;
use crate::ram::content::Content;
use crate::ram::switches::*;
use glowfs_client::Found;
use glowfs_rt::{Buf, BufMut, Duration};
use glowfs_types::wire::inline::InlineReply;
use glowfs_types::wire::meta::Attr;
use glowfs_types::{ClientId, Result, SessionId, Status, TruncateEpoch};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering::Relaxed;

/// An open file of it.
pub struct RamFile {
    pub(super) node: Rc<Node>,
    pub(super) content: RefCell<Rc<Content>>,
    pub(super) epoch: Cell<TruncateEpoch>,
    /// Of the metadata engine, when the epoch was heard.
    pub(super) life: Cell<u64>,
    pub(super) written: Cell<Option<u64>>,
    pub(super) session: Option<SessionId>,
    pub(super) owner: ClientId,
    /// The newest loss of writes that it told of.
    pub(super) heard: Cell<u64>,
    pub(super) fs: Weak<RamFs>,
}

/// The outcome of what is carried out, as the switch says.
fn done_and_failed() -> Result<()> {
    if FAIL_AND_DO.load(Relaxed) { Err(no(Status::TimedOut)) } else { Ok(()) }
}

impl RamFile {
    fn made_longer_unseen(&self) {
        if let Some(fs) = self.fs.upgrade() {
            fs.made_longer_unseen(&self.node);
        }
    }
    fn check_owner(&self) -> Result<()> {
        if self.lives() { Ok(()) } else { Err(no(Status::SessionEnded)) }
    }
}

impl FileData for RamFile {
    fn lives(&self) -> bool {
        self.session.is_none() || self.owner == ClientId(LIFE.load(Relaxed).into())
    }
    fn session(&self) -> Option<SessionId> {
        self.session
    }
    fn epoch(&self) -> TruncateEpoch {
        self.epoch.get()
    }
    async fn writable_epoch(&self) -> Result<TruncateEpoch> {
        self.check_owner()?;
        self.made_longer_unseen();
        self.fs.upgrade().ok_or(Status::Internal)?.cut_over(&self.node).await;
        self.update_attr(&self.node.attr.borrow());
        Ok(self.epoch.get())
    }
    fn len_written(&self) -> Option<u64> {
        self.written.get()
    }
    fn update_attr(&self, attr: &Attr) {
        let anew = self.life.replace(attr.life) < attr.life;
        if attr.epoch > self.epoch.get() || (anew && attr.epoch != self.epoch.get()) {
            self.epoch.set(attr.epoch);
            self.written.set(None);
            *self.content.borrow_mut() = self.node.content.borrow().clone();
        }
    }
    async fn read(&self, offset: u64, mut buf: BufMut) -> (Result<Found>, BufMut) {
        if let Err(e) = self.check_owner() {
            return (Err(e), buf);
        }
        let waits = || READS_WAIT_AT.load(Relaxed).checked_sub(1) == Some(offset);
        while let Some(fs) = self.fs.upgrade().filter(|_| waits()) {
            fs.rt.sleep(Duration::from_millis(1)).await;
        }
        let found = self.content.borrow().read(offset, &mut buf);
        (Ok(found), buf)
    }
    async fn spill(&self) -> Result<()> {
        Ok(())
    }
    async fn content(&self) -> Result<Option<InlineReply>> {
        Ok(None)
    }
    async fn write(
        &self,
        offset: u64,
        buf: Buf,
        under: Option<TruncateEpoch>,
    ) -> Result<Option<Attr>> {
        WRITES.fetch_add(1, Relaxed);
        if RIGHT_WANTED.swap(false, Relaxed) {
            self.fs.upgrade().ok_or(Status::Internal)?.want_right(&self.node)?;
        }
        while let Some(fs) = self.fs.upgrade().filter(|_| WRITES_WAIT.load(Relaxed)) {
            fs.rt.sleep(Duration::from_millis(1)).await;
        }
        self.check_owner()?;
        self.made_longer_unseen();
        if let Some(len) = LONGER_BEFORE_WRITE.swap(0, Relaxed).checked_sub(1) {
            self.fs.upgrade().ok_or(Status::Internal)?.made_longer_by_other(&self.node, len)?;
        }
        let writes = ROOM_FOR_WRITES.load(Relaxed);
        if writes > 1 {
            ROOM_FOR_WRITES.store(writes - 1, Relaxed);
        }
        let here = NO_ROOM_AT.load(Relaxed).checked_sub(1) == Some(offset);
        if NO_ROOM.load(Relaxed) || here || writes == 1 {
            return Err(no(Status::NoSpace));
        }
        if let Some(cut) = CUT_BEFORE_WRITE.swap(0, Relaxed).checked_sub(1) {
            self.fs.upgrade().ok_or(Status::Internal)?.cut_by_other(&self.node, cut)?;
            // With the capability that the next attempt needs.
            self.update_attr(&self.node.attr.borrow());
        }
        if under.is_some_and(|epoch| epoch != self.epoch.get()) {
            return Err(no(Status::Stale));
        }
        self.content.borrow().write(offset, &buf);
        self.node.unflushed.set(true);
        done_and_failed()?;
        let end = offset + buf.len() as u64;
        self.written.set(Some(self.written.get().unwrap_or(0).max(end)));
        Ok(None)
    }
    async fn zero(&self, offset: u64, len: u64) -> Result<()> {
        const PIECE: u64 = 64 << 10;
        for at in (0..len).step_by(PIECE as usize) {
            let n = (len - at).min(PIECE) as usize;
            self.content.borrow().write(offset + at, &vec![0; n]);
        }
        done_and_failed()
    }
    async fn flush(&self) -> Result<()> {
        FLUSHES.fetch_add(1, Relaxed);
        let losses = self.losses();
        self.node.unflushed.set(false);
        if self.heard.replace(losses) == losses { Ok(()) } else { Err(no(Status::WritesLost)) }
    }
    fn losses(&self) -> u64 {
        if self.node.unflushed.get() && CHUNKS_LOST.swap(false, Relaxed) {
            self.node.unflushed.set(false);
            self.node.losses.set(self.node.losses.get() + 1);
        }
        self.node.losses.get()
    }
    async fn seek(&self, offset: u64, len: u64, data: bool) -> Result<Option<u64>> {
        let found = self.content.borrow().seek(offset, len, data);
        if let Some(cut) = CUT_DURING_SEEK.swap(0, Relaxed).checked_sub(1) {
            let fs = self.fs.upgrade().ok_or(Status::Internal)?;
            fs.cut_by_other(&self.node, cut)?;
            fs.rt.sleep(Duration::from_millis(600)).await;
        }
        Ok(found)
    }
    async fn allocated(&self) -> Result<u64> {
        if COUNT_FAILS.swap(false, Relaxed) {
            return Err(no(Status::Busy));
        }
        while let Some(fs) = self.fs.upgrade().filter(|_| COUNTS_WAIT.load(Relaxed)) {
            fs.rt.sleep(Duration::from_millis(1)).await;
        }
        Ok(self.content.borrow().allocated())
    }
    async fn copy_from(
        &self,
        source: &Rc<Self>,
        (from, to, len): (u64, u64, u64),
        _: u64,
    ) -> Result<bool> {
        self.made_longer_unseen();
        let mut bytes = vec![0; len as usize];
        source.content.borrow().read(from, &mut bytes);
        self.content.borrow().write(to, &bytes);
        done_and_failed()?;
        if SOURCE_CUT.swap(false, Relaxed) {
            let fs = self.fs.upgrade().ok_or(Status::Internal)?;
            fs.cut_by_other(&source.node, 0)?;
            return Err(no(Status::Stale));
        }
        self.written.set(Some(self.written.get().unwrap_or(0).max(to + len)));
        Ok(false)
    }
}
