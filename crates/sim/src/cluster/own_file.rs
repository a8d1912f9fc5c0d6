//! What a client does to a file of its own: every operation on data, alone and side by side, checked against an exact model of the bytes
//! ([`OwnFile`]).

use super::certain::{is_kept, open_kept, open_or_make_kept};
use super::estate::{Estate, Kept, Place};
use super::harness::CHUNK_BYTES;
use super::model::FileModel;
use super::workload::{
    Shared, caller, is_told_of_loss, op_bytes, open, patiently, random_bytes, report,
    write_patiently,
};
use glowfs_client::{Client, OpenFile};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_types::Result;
use glowfs_types::wire::meta::{OfInode, ROOT_INODE, SetAttr};
use std::cell::RefMut;
use std::rc::Rc;

/// Bytes of an own file, at most (a few chunks); where chunks are large; and of one operation then, now and then: more than goes through the log.
const OWN_BYTES: u64 = 300 << 10;
const LARGE_OWN_BYTES: u64 = 1 << 20;
const LARGE_OP_BYTES: u64 = 200 << 10;
/// Writes made side by side, at most.
const BURST_WRITES: u64 = 6;

/// One client's work on its own file, until told to stop.
pub async fn own_file(rt: Rt, client: Rc<Client>, shared: Rc<Shared>, estate: Rc<Estate>) {
    let kept = estate.file(Place::Root, estate.name.clone(), &shared);
    let done = match open_or_make_kept(&client, &shared, ROOT_INODE, &estate.name).await {
        Ok((file, _)) => OwnFile::new(rt, client, shared.clone(), kept, file).work().await,
        Err(e) => Err(e),
    };
    if let Err(e) = done {
        shared.problem(format!("{}: {e}", estate.name));
    }
}

/// A file that one task alone works on, new and empty.
pub(super) struct OwnFile {
    rt: Rt,
    client: Rc<Client>,
    shared: Rc<Shared>,
    file: Rc<OpenFile>,
    kept: Rc<Kept>,
    /// Something may have been lost since the last flush.
    may_be_told: bool,
    /// Losses of the metadata engine's power before it began.
    engine_losses: u64,
    /// Bytes of the file, and of one operation, at most.
    pub bytes: u64,
    pub op_bytes: Option<u64>,
}

impl OwnFile {
    /// `kept` is what others find in the end, should this task end in the middle.
    pub fn new(
        rt: Rt,
        client: Rc<Client>,
        shared: Rc<Shared>,
        kept: Rc<Kept>,
        file: Rc<OpenFile>,
    ) -> Self {
        kept.made();
        let is_large = shared.chunk_bytes.get() > CHUNK_BYTES;
        let bytes = if is_large { LARGE_OWN_BYTES } else { OWN_BYTES };
        let (op_bytes, may_be_told) = (None, false);
        let engine_losses = shared.engine_losses.get();
        Self { rt, client, shared, file, kept, may_be_told, engine_losses, bytes, op_bytes }
    }

    async fn work(&mut self) -> Result<()> {
        while !self.shared.stop.get() {
            self.notice_losses();
            match self.rt.random_below(24) {
                0..9 => self.write().await?,
                9..16 => self.read().await?,
                16 => self.cut().await?,
                17 | 18 => self.write_side_by_side().await?,
                19 => self.zero().await?,
                20 => self.copy().await?,
                21 | 22 => self.fsync().await?,
                _ => self.open_again().await?,
            }
            self.pause(20_000).await;
        }
        self.notice_losses();
        let wrong = self.check_read(0, self.bytes + 1000).await?;
        wrong.into_iter().for_each(|w| self.problem(&format!("at the end: {w}")));
        let reply = self.client.close_session(report(&self.client, &self.file, true)).await?;
        self.check_len("the last close", reply.attr.len);
        Ok(())
    }

    /// After an operation, `us` microseconds at most.
    pub async fn pause(&self, us: u64) {
        self.shared.ops.set(self.shared.ops.get() + 1);
        self.rt.sleep(Duration::from_micros(self.rt.random_below(us))).await;
    }
    /// The contents may be with the metadata, and what was answered of them may have gone with the engine's power.
    pub fn is_in_doubt(&self) -> bool {
        self.may_be_inline() && self.shared.engine_losses.get() != self.engine_losses
    }
    /// Then its length and contents change with metadata that nobody flushes, and only a flush makes sure of them.
    fn may_be_inline(&self) -> bool {
        self.op_bytes.is_some() && self.shared.background.get()
    }
    fn problem(&self, what: &str) {
        if self.is_in_doubt() {
            return;
        }
        self.shared.problem(format!("{}: {what}", self.kept.name));
    }
    /// For who replays a seed with its log.
    fn says(&self, what: &str, offset: u64, len: u64) {
        tracing::debug!(file = self.kept.name, inode = self.file.inode().0, offset, len, "{what}");
    }
    pub fn notice_losses(&mut self) {
        self.may_be_told |= self.kept.notice_losses(&self.shared);
    }
    fn power_was_lost(&self) -> bool {
        self.kept.losses.get() != self.shared.power_losses.get()
    }
    fn model(&self) -> RefMut<'_, FileModel> {
        self.kept.model.borrow_mut()
    }
    /// A place in the file and a number of bytes from there.
    fn place(&self) -> (u64, u64) {
        let offset = self.rt.random_below(self.bytes);
        let large = || self.bytes > OWN_BYTES && self.rt.random_below(8) == 0;
        let any = || if large() { LARGE_OP_BYTES } else { op_bytes(&self.rt) };
        let most = self.op_bytes.unwrap_or_else(any);
        (offset, 1 + self.rt.random_below(most.min(self.bytes - offset)))
    }

    pub async fn write(&mut self) -> Result<()> {
        let (offset, len) = self.place();
        let data = random_bytes(&self.rt, len as usize);
        self.says("writes", offset, len);
        self.model().asks(offset, len);
        write_patiently(&self.rt, &self.file, offset, Buf::from_vec(data.clone())).await?;
        self.says("wrote", offset, len);
        self.model().write(offset, &data);
        self.model().answered();
        Ok(())
    }

    pub async fn read(&mut self) -> Result<()> {
        let (offset, len) = self.place();
        let wrong = self.check_read(offset, len).await?;
        // What was read while the power went, and what was not flushed then, is not judged.
        if !self.power_was_lost() {
            wrong.into_iter().for_each(|w| self.problem(&w));
        }
        Ok(())
    }

    pub async fn cut(&mut self) -> Result<()> {
        let to = self.rt.random_below(self.bytes);
        self.cut_to(to).await
    }
    async fn cut_to(&mut self, to: u64) -> Result<()> {
        self.says("cuts", to, 0);
        self.model().asks_to_cut(to);
        let query = SetAttr {
            caller: caller(&self.client),
            inode: self.file.inode(),
            len: Some(to),
            session: self.file.session(),
            ..SetAttr::default()
        };
        // Contents that are longer than what is kept with the metadata need a chunk, for which there may be no room yet.
        let client = self.client.clone();
        let cut = async || client.setattr(query.clone()).await;
        loop {
            let losses = self.shared.engine_losses.get();
            self.file.update_attr(&patiently(&self.rt, cut).await?.attr);
            if self.may_be_inline() || is_kept(&self.client, &self.shared, losses).await? {
                break;
            }
            self.check_undone(to).await?;
        }
        self.model().truncate(to);
        if !self.may_be_inline() {
            self.model().len_told();
        }
        self.model().answered();
        // It counts as of the chain versions at which it was asked for, also on a chain that has not begun again yet since power was lost at some time before.
        self.may_be_told |= self.kept.losses.get() > 0;
        Ok(())
    }

    /// The engine lost its power after a truncate was answered: it stands, or has cut nothing.
    async fn check_undone(&mut self, to: u64) -> Result<()> {
        let of = OfInode { caller: caller(&self.client), inode: self.file.inode() };
        let attr = self.client.getattr(of).await?.attr;
        self.file.update_attr(&attr);
        let told = self.model().told_len();
        if attr.len == to {
            return Ok(());
        }
        if attr.len != told {
            self.problem(&format!(
                "a truncate to {to} is gone with the power, and the length is {}, not {told}",
                attr.len
            ));
        }
        self.notice_losses();
        let wrong = self.check_read(0, self.bytes).await?;
        if !self.power_was_lost() {
            wrong.into_iter().for_each(|w| self.problem(&format!("a truncate is gone: {w}")));
        }
        Ok(())
    }

    /// Several writes into one or two chunks at once; half the times the chunks are cut off just before, and begin anew with them.
    async fn write_side_by_side(&mut self) -> Result<()> {
        let chunk = u64::from(self.shared.chunk_bytes.get());
        let begin = self.rt.random_below(self.bytes / chunk) * chunk;
        let len = self.model().len();
        if self.rt.random_below(2) == 0 && begin < len {
            self.cut_to(begin).await?;
        }
        let writes = 2 + self.rt.random_below(BURST_WRITES - 1);
        // Each in a part of its own.
        let part = chunk * (1 + self.rt.random_below(2)) / writes;
        let writes: Vec<(u64, Vec<u8>)> = (0..writes)
            .map(|i| {
                let skip = self.rt.random_below(part / 2);
                let len = 1 + self.rt.random_below(part - skip);
                (begin + i * part + skip, random_bytes(&self.rt, len as usize))
            })
            .collect();
        let each = writes.iter().map(|(offset, data)| {
            self.model().asks(*offset, data.len() as u64);
            write_patiently(&self.rt, &self.file, *offset, Buf::from_vec(data.clone()))
        });
        for done in join_all(each).await {
            done?;
        }
        let mut model = self.model();
        writes.iter().for_each(|(offset, data)| model.write(*offset, data));
        model.answered();
        Ok(())
    }

    pub async fn zero(&mut self) -> Result<()> {
        let (offset, len) = self.place();
        let end = (offset + len).min(self.model().len());
        if offset >= end {
            return Ok(());
        }
        self.says("zeros", offset, end - offset);
        self.model().asks(offset, end - offset);
        patiently(&self.rt, async || self.file.zero(offset, end - offset).await).await?;
        self.model().write(offset, &vec![0; (end - offset) as usize]);
        self.model().answered();
        Ok(())
    }

    /// Copies a range of the file to another place of it, on the storage nodes. Both lie before its end, and apart.
    async fn copy(&mut self) -> Result<()> {
        let (from, len) = self.place();
        let to = self.rt.random_below(self.bytes);
        let end = from.max(to) + len;
        if end > self.model().len() || from.abs_diff(to) < len {
            return Ok(());
        }
        let (span, to_len) = ((from, to, len), self.model().len());
        self.model().asks(to, len);
        let copy = async || self.file.copy_from(&self.file, span, to_len).await;
        self.says("copies from", from, len);
        self.says("copies to", to, len);
        patiently(&self.rt, copy).await?;
        self.model().copy(from, to, len);
        self.model().answered();
        Ok(())
    }

    pub async fn fsync(&mut self) -> Result<()> {
        self.says("flushes", 0, 0);
        let told = is_told_of_loss(self.file.flush().await)?;
        self.notice_losses();
        if told && !self.may_be_told {
            self.problem("fsync tells of a loss, and all power was never lost");
        }
        if !self.may_be_inline() {
            self.flushed(told);
        }
        self.may_be_told = false;
        self.says(if told { "was told of a loss" } else { "flushed" }, 0, 0);
        let losses = self.shared.engine_losses.get();
        let reply = self.client.sync(report(&self.client, &self.file, true)).await?;
        self.kept.session_flushed(&self.shared, losses);
        self.check_len("fsync", reply.attr.len);
        self.model().len_told();
        if self.may_be_inline() && !self.is_in_doubt() {
            self.flushed(told);
        }
        Ok(())
    }
    fn flushed(&self, told: bool) {
        if told { self.model().told() } else { self.model().flushed() }
    }

    pub async fn open_again(&mut self) -> Result<()> {
        self.says("opens again", 0, 0);
        let durable = self.shared.background.get() && !self.may_be_inline();
        self.client.close_session(report(&self.client, &self.file, durable)).await?;
        let (again, reply) = if self.may_be_inline() {
            open_kept(&self.client, &self.shared, self.file.inode()).await?
        } else {
            // The session may go with the engine's power. The client is to put it back, and nothing else shows of it.
            self.kept.opens(&self.shared);
            let opened = open(&self.client, self.file.inode()).await?;
            self.shared.opens.set(self.shared.opens.get() + 1);
            opened
        };
        // The file was open all the time, so what was not flushed is still known.
        self.file = again;
        self.model().len_told();
        self.check_len("close and open", reply.attr.len);
        Ok(())
    }

    pub async fn close(&mut self) -> Result<()> {
        self.client.close_session(report(&self.client, &self.file, false)).await.map(drop)
    }

    fn check_len(&self, after: &str, got: u64) {
        let must = self.model().len();
        if got != must {
            self.problem(&format!("after {after} its length is {got} and must be {must}"));
        }
    }

    async fn check_read(&self, offset: u64, len: u64) -> Result<Option<String>> {
        self.says("reads", offset, len);
        let (result, buf) = self.file.read(offset, self.rt.alloc(len as usize)).await;
        let got = result? as u64;
        let most = *self.model().lengths(true).end();
        if got > 0 && offset + got > most {
            self.problem(&format!("a read tells of {got} bytes at {offset}, and {most} are there"));
        }
        let wrong = self.model().check(offset, &buf);
        Ok(wrong.map(|wrong| format!("read of {len} bytes at {offset}: {wrong}")))
    }
}
