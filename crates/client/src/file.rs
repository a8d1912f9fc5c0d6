//! [`OpenFile`]: one open file, what is done with it, and what is known of it.
//!
//! Guarantees: what is known of the file only goes forward (life of the metadata engine, then truncate epoch); a capability of an older epoch, or one that
//! was recalled, is not used again, and who recalls it hears when the attempts under it have ended; each open file tells of a loss of unflushed writes,
//! once. Must never: count a write as one of the present epoch if it was made under another, or go on with a session that the cluster has ended.

mod capability;
mod files;
mod known;
mod lost;

pub(crate) use capability::Permission;
pub(crate) use files::Files;
pub(crate) use lost::{Go, look_after};

use crate::copy::{self, Span};
use crate::doubt::Doubts;
use crate::read::Found;
use crate::routes::Place;
use crate::unflushed::Unflushed;
use crate::{Client, flush, inline, read, sparse, write, zero};
use glowfs_rt::sync::Notify;
use glowfs_rt::{Buf, BufMut, Duration, Instant};
use glowfs_types::wire::inline::InlineReply;
use glowfs_types::wire::meta::{Attr, Caller, Edition, OpenReply};
use glowfs_types::{
    Capability, ClientId, DataId, Error, InodeId, Layout, Result, SessionId, Status, TruncateEpoch,
    VolumeId,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// On whose behalf and for what a file is open; capabilities are renewed with it.
#[derive(Clone, Debug)]
pub struct FileAccess {
    /// Who opened it.
    pub caller: Caller,
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// It is read to run it: see [`glowfs_types::wire::meta::OpenFlags::exec`].
    pub exec: bool,
}

/// What changes during the life of an open file.
struct State {
    layout: Layout,
    data: DataId,
    epoch: TruncateEpoch,
    /// Of what meta last said of it.
    said: Edition,
    capability: Capability,
    /// The capability may be used (it was not recalled or refused).
    valid: bool,
    /// Capabilities of older epochs were recalled, also those that are on their way here.
    recalled: TruncateEpoch,
    /// How often something was heard that may have overtaken an answer: a recall, or a newer epoch.
    overtakers: u64,
    expires: Instant,
    /// From here on a new one is fetched beside the I/O.
    renew_at: Instant,
    len_written: Option<u64>,
    /// The contents are with the metadata. Once they are in chunks they stay there, if that is not lost with the engine's power.
    inline: bool,
    /// Attempts on their way, by the epoch of their capability.
    flying: BTreeMap<TruncateEpoch, u32>,
    renewing: bool,
}

/// An open file. I/O is by offset and concurrent; ordering overlapping writes is the caller's.
pub struct OpenFile {
    this: Weak<OpenFile>,
    client: Rc<Client>,
    inode: InodeId,
    session: Option<SessionId>,
    /// The life of the client that opened it.
    owner: ClientId,
    access: FileAccess,
    volume: VolumeId,
    state: RefCell<State>,
    /// A renewal ended, or an attempt landed.
    moved: Notify,
    background: Cell<bool>,
    /// What is known of its session.
    standing: lost::Standing,
    questions: known::Questions,
    doubts: Doubts,
    /// Of the inode, shared by its open files.
    unflushed: Rc<Unflushed>,
    /// The newest loss of writes that was told through this one.
    heard: Cell<u64>,
}

fn layout_of(attr: &Attr) -> Result<Layout> {
    let layout = attr.layout.ok_or_else(|| {
        Error::new(
            Status::InvalidArgument,
            format!("inode {} has no layout: not a regular file", attr.inode),
        )
    })?;
    layout.validate()?;
    Ok(layout)
}

impl OpenFile {
    pub(crate) fn new(
        client: &Rc<Client>,
        reply: &OpenReply,
        access: FileAccess,
    ) -> Result<Rc<Self>> {
        let capability = capability::parse_capability(reply)?;
        let layout = layout_of(&reply.attr)?;
        let now = client.core.rt.now();
        let life = Duration::from_millis(reply.capability_ms);
        let unflushed = client.core.files.unflushed(reply.attr.inode).unwrap_or_default();
        let heard = Cell::new(unflushed.loss());
        let file = Rc::new_cyclic(|this| Self {
            this: this.clone(),
            client: client.clone(),
            inode: reply.attr.inode,
            session: reply.session,
            owner: client.core.id(),
            volume: VolumeId(capability.volume.get()),
            access,
            state: RefCell::new(State {
                layout,
                data: reply.attr.data,
                epoch: reply.attr.epoch,
                said: reply.attr.edition(),
                capability,
                // A recall may have overtaken it on its way.
                valid: reply.capability_ms > 0,
                recalled: reply.attr.epoch,
                overtakers: 0,
                // The answer was on its way for a while: half of the life is left for sure.
                expires: now + life / 2,
                renew_at: now + life / 3,
                len_written: None,
                inline: reply.attr.inline,
                flying: BTreeMap::new(),
                renewing: false,
            }),
            moved: Notify::default(),
            background: Cell::new(false),
            standing: lost::Standing::new(reply.attr.life, now),
            questions: known::Questions::default(),
            doubts: Doubts::default(),
            unflushed,
            heard,
        });
        client.core.files.add(file.inode, &file.this);
        Ok(file)
    }
    /// The client it was opened with.
    pub fn client(&self) -> &Rc<Client> {
        &self.client
    }
    /// The inode.
    pub fn inode(&self) -> InodeId {
        self.inode
    }
    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }
    /// The session, if it is open for writing.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }
    /// What it was opened for.
    pub fn access(&self) -> &FileAccess {
        &self.access
    }
    /// Writes to contents with the metadata whose outcome nobody knows.
    pub(crate) fn doubts(&self) -> &Doubts {
        &self.doubts
    }
    /// The data id its chunks are stored under now.
    pub fn data(&self) -> DataId {
        self.state.borrow().data
    }
    /// Its layout.
    pub fn layout(&self) -> Layout {
        self.state.borrow().layout
    }
    /// The truncate epoch that writes are made under (for SYNC and CLOSE).
    pub fn epoch(&self) -> TruncateEpoch {
        self.state.borrow().epoch
    }
    /// The greatest end of an acknowledged write under the present epoch, 0 if none was, and none if none was sent (for SYNC and CLOSE).
    pub fn len_written(&self) -> Option<u64> {
        self.state.borrow().len_written
    }
    /// Takes newer attributes over (after a truncate, or a recall): data id and epoch. A capability of an older epoch
    /// is renewed before it is used again. Attributes of an older epoch change nothing, unless the metadata engine has lost the newer one with its
    /// power.
    pub fn update_attr(&self, attr: &Attr) {
        let mut s = self.state.borrow_mut();
        let said = attr.edition();
        let anew = said.is_of_later_life_than(&s.said);
        let late = s.said.is_of_later_life_than(&said);
        if attr.inode != self.inode || late || (attr.epoch < s.epoch && !anew) {
            return;
        }
        s.said = said;
        if attr.epoch != s.epoch || attr.data != s.data {
            s.valid = false;
            s.len_written = None;
            self.questions.end_lease();
        }
        if attr.epoch < s.epoch {
            s.recalled = attr.epoch;
        }
        if (s.inline && !attr.inline) || (anew && s.inline != attr.inline) {
            // The capability is for no chunks at all, or for chunks of which nobody knows any more.
            s.inline = attr.inline;
            s.valid = false;
        }
        s.overtakers += u64::from(attr.epoch > s.epoch);
        s.epoch = attr.epoch;
        s.data = attr.data;
        if let Ok(layout) = layout_of(attr) {
            s.layout = layout;
        }
    }
    /// Fills `buf` from `offset`: holes and bytes past the end are zeros. Answers how far into `buf` bytes exist in the
    /// chunks (the file's length is the caller's matter). On an error the contents of `buf` are arbitrary.
    ///
    /// The buffer that comes back has the length of `buf` but need not be the same memory: one that an unanswered attempt may still
    /// write into is given up and replaced.
    pub async fn read(&self, offset: u64, buf: BufMut) -> (Result<usize>, BufMut) {
        let (result, buf) = self.read_found(offset, buf).await;
        (result.map(|found| found.end), buf)
    }
    /// The same; says more of what was found.
    pub async fn read_found(&self, offset: u64, buf: BufMut) -> (Result<Found>, BufMut) {
        if !self.access.read {
            return (Err(self.not_open_for("reading")), buf);
        }
        match self.this.upgrade() {
            Some(file) if file.is_inline() => Box::pin(inline::read(&file, offset, buf)).await,
            Some(file) => read::read(&self.client.core, &file, offset, buf).await,
            None => (Err(Status::Internal.into()), buf),
        }
    }
    /// Writes all of `buf`; when it returns, every serving replica has it (or, for an error, any part of it).
    pub async fn write(&self, offset: u64, buf: Buf) -> Result<()> {
        self.write_told(offset, buf, None).await.map(|_| ())
    }
    /// The same. If the contents are with the metadata, the write is in length and times of the file already: the answer is what they are. `under`: the place was
    /// computed for this truncate epoch; when the file has another one, the write ends with `Stale`, and what was made of it before was there before the truncate.
    pub async fn write_told(
        &self,
        offset: u64,
        buf: Buf,
        under: Option<TruncateEpoch>,
    ) -> Result<Option<Attr>> {
        if !self.access.write {
            return Err(self.not_open_for("writing"));
        }
        let file = self.this.upgrade().ok_or(Status::Internal)?;
        if file.is_inline()
            && let Some(attr) = Box::pin(inline::write(&file, offset, &buf, under)).await?
        {
            return Ok(Some(attr));
        }
        write::write(&self.client.core, &file, offset, buf, under).await.map(|()| None)
    }
    /// Whether the contents are with the metadata, as far as is known here. Once they are not, they never are again.
    pub fn is_inline(&self) -> bool {
        self.state.borrow().inline
    }
    /// Has contents that are with the metadata put into chunks.
    pub async fn spill(&self) -> Result<()> {
        inline::spill(self).await
    }
    /// All of the contents, if they are with the metadata.
    pub async fn content(&self) -> Result<Option<InlineReply>> {
        if !self.access.read {
            return Err(self.not_open_for("reading"));
        }
        inline::content(self).await
    }
    /// Makes bytes zeros, and gives the space of whole chunks back. The range must not reach behind the end of the file.
    pub async fn zero(&self, offset: u64, len: u64) -> Result<()> {
        if !self.access.write {
            return Err(self.not_open_for("writing"));
        }
        let file = self.this.upgrade().ok_or(Status::Internal)?;
        inline::spill(&file).await?;
        zero::zero_file(&self.client.core, &file, offset, len)
            .await
            .map_err(|e| e.context(format_args!("zeros in inode {}", self.inode)))
    }
    /// The first byte from `offset` on, before `len`, that is data, or (not `data`) lies in a hole; the end of the file counts as one. None: no data
    /// follows.
    pub async fn seek(&self, offset: u64, len: u64, data: bool) -> Result<Option<u64>> {
        let file = self.this.upgrade().ok_or(Status::Internal)?;
        if file.is_inline() {
            // They have no holes, and neither have chunks that they became meanwhile, as far as somebody can tell who asked before.
            return Ok(Some(if data { offset } else { len }).filter(|_| offset < len));
        }
        match sparse::seek(&file, offset, len, data).await {
            // A storage node of an older release: as if there were no holes.
            Err(e) if e.status == Status::UnknownMethod => {
                Ok(Some(if data { offset } else { len }).filter(|_| offset < len))
            }
            other => other.map_err(|e| e.context(format_args!("holes of inode {}", self.inode))),
        }
    }
    /// Bytes of the blocks that exist.
    pub async fn allocated(&self) -> Result<u64> {
        let file = self.this.upgrade().ok_or(Status::Internal)?;
        let layout = file.layout();
        if file.is_inline() {
            return Ok(u64::from(layout.inline_bytes));
        }
        sparse::allocated(&self.client.core, &Rights::File(file), &layout).await
    }
    /// Copies `len` bytes of `source` at `from` to `to` of this file, without taking them through the client. They must exist before the end of the
    /// source, which the caller knows, and this file is `to_len` long. Answers whether holes were left. `UnknownMethod`: storage nodes of an older
    /// release cannot.
    pub async fn copy_from(
        &self,
        source: &Rc<OpenFile>,
        (from, to, len): (u64, u64, u64),
        to_len: u64,
    ) -> Result<bool> {
        if !self.access.write {
            return Err(self.not_open_for("writing"));
        }
        if !source.access.read {
            return Err(source.not_open_for("reading"));
        }
        let file = self.this.upgrade().ok_or(Status::Internal)?;
        inline::spill(source).await?;
        inline::spill(&file).await?;
        copy::copy(&self.client.core, source, &file, Span { from, to, len, to_len }).await
    }
    /// Everything written to the file's data ([`OpenFile::data`]) and acknowledged before, by whomever, is on disk when it returns. `WritesLost`: so is what is left of
    /// it, but something that this client had written is gone with the power of all its replicas; each open file tells of that once.
    ///
    /// Where another client may have cut the file to nothing, it has other data, on other chains, which only meta tells: who wants those flushed too looks at
    /// the attributes that SYNC answers, and flushes again if the data is another one.
    pub async fn flush(&self) -> Result<()> {
        if self.is_inline() {
            inline::flush(self).await?;
            if self.is_inline() {
                return self.hear();
            }
            // Somebody else had them put into chunks, and may have written to those.
        }
        let begun = self.unflushed.begin();
        let (layout, place) = {
            let s = self.state.borrow();
            (s.layout, (s.data, s.epoch))
        };
        let lost = flush::flush(&self.client.core, &layout, flush::Of::File(self.volume, place.0))
            .await
            .map_err(|e| e.context(format_args!("inode {}", self.inode)))?;
        if self.unflushed.flushed(begun, place, &lost) {
            self.found_loss();
        }
        self.hear()
    }
    /// Looks whether something that this client wrote and did not make durable is gone, as far as is known now. The number of the newest loss of writes to this
    /// inode, 0 for none; another one has a greater number.
    pub fn losses(&self) -> u64 {
        if !self.unflushed.is_empty() {
            let info = self.client.core.routing.borrow().clone();
            if self.unflushed.look(|chain| info.chains.get(&chain).map(|c| c.lost)) {
                self.found_loss();
            }
        }
        self.unflushed.loss()
    }
    fn found_loss(&self) {
        let losses = &self.client.core.losses;
        losses.set(losses.get() + 1);
        self.unflushed.found(losses.get());
        tracing::error!(inode = %self.inode, "writes of this client were lost before they were made durable: all their replicas lost their power at once");
    }
    /// Tells of a loss, once.
    fn hear(&self) -> Result<()> {
        let newest = self.unflushed.loss();
        if self.heard.replace(newest) == newest {
            return Ok(());
        }
        Err(Error::new(
            Status::WritesLost,
            format!(
                "writes to inode {} that were acknowledged and not made durable yet are gone: all their replicas lost their power at once; write them again",
                self.inode
            ),
        ))
    }
    /// An update was acknowledged that the next loss of power may take along.
    pub(crate) fn note_unflushed(&self, place: (DataId, TruncateEpoch), at: &Place) {
        self.unflushed.note(place, at.chain, at.version);
    }
    fn not_open_for(&self, what: &str) -> Error {
        Error::new(Status::InvalidArgument, format!("inode {} is not open for {what}", self.inode))
    }

    /// Whether it can still be used: what was open for writing when the cluster ended this client's session cannot.
    pub fn lives(&self) -> bool {
        self.check_owner().is_ok()
    }
    /// Whether its session can still live: the cluster ends those of clients that were silent for too long.
    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.session.is_none() || self.owner == self.client.core.id() {
            return Ok(());
        }
        Err(Error::new(
            Status::SessionEnded,
            format!(
                "inode {}: this client was paused or cut off for too long, so the cluster closed what it had open; open the file again",
                self.inode
            ),
        ))
    }

    /// An acknowledged write under `epoch` ended at `end`.
    pub(crate) fn wrote(&self, epoch: TruncateEpoch, end: u64) {
        let mut s = self.state.borrow_mut();
        if s.epoch == epoch {
            s.len_written = Some(s.len_written.unwrap_or(0).max(end));
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.client.core.files.remove(self.inode, &self.this);
    }
}

/// The rights an update goes with.
#[derive(Clone)]
pub(crate) enum Rights {
    /// Those of an open file, renewed when need be.
    File(Rc<OpenFile>),
    /// One that the caller signed (meta).
    Signed(Capability),
}
