//! Start-up: superblock, checkpoint, replay of the log, cutting a torn tail.
//!
//! A batch that is not whole ends the log if nothing says that it was durable: then it was never flushed, and cutting
//! there gives a state that the store was in. If a later batch or segment says that it was durable, the disk has lost
//! or changed bytes, and the store is refused. The same holds for the data that records beyond the durable point refer to.
//! What is kept beyond the durable point is written once more ([`crate::doubt`]).
//!
//! What is cut off may have been acknowledged. After a loss of power that is to be expected; where only the process ended it is damage, and is told
//! as if the power had gone ([`Inner::cut`]): the store must not count as one that has everything. Only the last batch can be one whose
//! write had not ended; what tells that it had is behind it ([`crate::behind`]), or lies in slots, which were written before the batch.

use crate::alloc::corrupt;
use crate::behind::{Found, HEADER_BLOCKS_MAX, Window};
use crate::checkpoint::{CHECKPOINT, CHECKPOINT_NEW};
use crate::codec::Reader;
use crate::compact::NOTED_BLOCKS;
use crate::doubt::{Doubt, Header, Lost};
use crate::format::{BATCH_HEAD_BYTES, BLOCK, BatchHead, SegmentHead};
use crate::log::{Segment, locate};
use crate::record::Record;
use crate::slots::{CLASS_MAX, CLASS_MIN, blocks_of, bytes_of, file_name};
use crate::state::Inner;
use glowfs_rt::File;
use glowfs_rt::backend::OpenOptions;
use glowfs_types::{Result, Status, StoreId, TargetId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

enum Step {
    /// A whole batch: its head, its records and the blocks it takes.
    Batch(BatchHead, Vec<(TargetId, Record)>),
    /// No valid batch here.
    End(String),
}

impl Inner {
    /// Opens all block files and log segments, loads the checkpoint, replays. Leaves the log at its end. `finally`: a segment whose header is
    /// damaged is done without (the chunks with blocks there are damaged); else that is an error, for it may be read well the next time.
    pub async fn recover(self: &Rc<Self>, names: &BTreeSet<String>, finally: bool) -> Result<()> {
        let store = self.superblock.borrow().store;
        self.cut.set(false);
        let totals = self.open_block_files(names).await?;
        if names.contains(CHECKPOINT_NEW) {
            match self.dir.remove(CHECKPOINT_NEW).await {
                // An attempt before this one has.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => {
                    other.map_err(|e| self.read_error("removing checkpoint.new", &e))?;
                }
            }
        }
        let mut limit = u64::MAX;
        let unread = loop {
            let (lsn, first_segment) = self.load(names, store).await?;
            let (headers, doubtful, unread) =
                self.replay(names, store, lsn, first_segment, limit).await?;
            self.retired.borrow_mut().clear();
            self.leaving.forget();
            match self.secure_data(&doubtful).await? {
                None => {
                    self.secure_headers(headers).await?;
                    break unread;
                }
                Some(lost) => {
                    let Lost { lsn, in_slot } = lost;
                    tracing::warn!(
                        disk = self.dir.path(),
                        batch = lsn,
                        last = self.log.written.get(),
                        "data of an unflushed update is lost; cutting the log there"
                    );
                    if in_slot || lsn < self.log.written.get() {
                        self.cut.set(true);
                    }
                    limit = lsn - 1;
                }
            }
        };
        let mut needed = self.in_use_before(u64::MAX);
        needed.retain(|seq| !self.log.segments.borrow().contains_key(seq));
        // One that may be read another time is not done without: all that it holds would be lost for one block.
        if let Some(e) = unread.filter(|_| !needed.is_empty()) {
            return Err(self.read_error("read of the header of a segment", &e));
        }
        if !needed.is_empty() && !finally {
            return Err(self.log_error(&format!("the headers of segments {needed:?} are gone")));
        }
        // The replay has noted what it passed, too.
        self.dead.clear();
        let used = self.check_places(&totals)?;
        self.slots.borrow_mut().rebuild(&totals, &used);
        Ok(())
    }

    /// Loads the checkpoint; the last batch it covers and the first segment that is needed.
    async fn load(&self, names: &BTreeSet<String>, store: StoreId) -> Result<(u64, u64)> {
        self.in_log.borrow_mut().clear();
        self.dead.clear();
        self.targets.borrow_mut().clear();
        self.log.segments.borrow_mut().clear();
        if !names.contains(CHECKPOINT) {
            return Ok((0, 0));
        }
        let file = self.open_file(CHECKPOINT).await?;
        let loaded = self.load_checkpoint(&file, store).await?;
        let mut in_log = self.in_log.borrow_mut();
        for (t, target) in &loaded.targets {
            let logged = target.chunks.iter().filter(|(_, c)| c.has_log_extents());
            in_log.extend(logged.map(|(id, _)| (*t, *id)));
        }
        *self.targets.borrow_mut() = loaded.targets;
        self.checkpoint_bytes.set(loaded.bytes);
        Ok((loaded.head.lsn, loaded.head.first_segment))
    }

    async fn open_file(&self, name: &str) -> Result<File> {
        self.dir
            .open(name, OpenOptions { create: false, direct: true })
            .await
            .map_err(|e| self.read_error(&format!("opening {name}"), &e))
    }

    async fn open_block_files(&self, names: &BTreeSet<String>) -> Result<BTreeMap<u8, u32>> {
        let mut totals = BTreeMap::new();
        for class in CLASS_MIN..=CLASS_MAX {
            let name = file_name(class);
            if names.contains(&name) {
                let file = self.open_file(&name).await?;
                let len = file.len().map_err(|e| self.read_error(&name, &e))?;
                totals.insert(class, u32::try_from(len / bytes_of(class)).unwrap_or(u32::MAX));
                self.block_files.borrow_mut().insert(class, file);
            }
        }
        Ok(totals)
    }

    /// Finds the segments and replays what follows batch `lsn`. Also why the header of one cannot be read.
    async fn replay(
        self: &Rc<Self>,
        names: &BTreeSet<String>,
        store: StoreId,
        lsn: u64,
        first_segment: u64,
        limit: u64,
    ) -> Result<(Vec<Header>, Vec<Doubt>, Option<io::Error>)> {
        let mut found = BTreeMap::new();
        let mut spare = Vec::new();
        let mut headless = Vec::new();
        let mut unreadable = 0;
        let mut unread = None;
        self.log.files.set(0);
        for name in names.iter().filter(|n| n.starts_with("log-")) {
            let Ok(index) = name[4..].parse::<u32>() else { continue };
            let file = self.open_file(name).await?;
            self.log.files.set(self.log.files.get() + 1);
            self.log.numbers.set(self.log.numbers.get().max(index.saturating_add(1)));
            let mut head = self.segment_head(name, &file, store).await?;
            if !matches!(head, Ok(Some(_))) {
                head = self.segment_head(name, &file, store).await?;
            }
            match head {
                Ok(Some(head)) if head.seq >= first_segment && head.seq > 0 => {
                    if let Some(old) = found.insert(head.seq, Found { head, file, index }) {
                        return Err(
                            self.log_error(&format!("segment {} is there twice", old.head.seq))
                        );
                    }
                }
                Ok(Some(_)) => spare.push((index, file)),
                Ok(None) => {
                    headless.push((file.clone(), false));
                    spare.push((index, file));
                }
                // It is not written to: what it holds may be needed, by chunks here or another time.
                Err(e) => {
                    unreadable += 1;
                    headless.push((file, true));
                    unread.get_or_insert(e);
                }
            }
        }
        let mut durable = lsn.max(found.values().map(|f| f.head.durable_lsn).max().unwrap_or(0));
        {
            let sb = self.superblock.borrow();
            if sb.clean {
                durable = durable.max(sb.clean_lsn);
            }
        }
        for (seq, f) in &found {
            let segment = Segment { file: f.file.clone(), index: f.index, last_lsn: lsn };
            self.log.segments.borrow_mut().insert(*seq, segment);
        }
        let end = match (self.replay_segments(&found, lsn, durable, limit).await, &unread) {
            // What is missing may be in that one.
            (Err(e), Some(why)) if e.status == Status::Corrupt => {
                return Err(self.read_error("read of the header of a segment", why));
            }
            (end, _) => end?,
        };
        for (file, is_unread) in headless {
            let behind =
                self.behind_headless(file, store, first_segment, lsn, end.incarnation).await?;
            // Batches that are needed: another time their segment may be read.
            if let Some(e) = unread.as_ref().filter(|_| is_unread)
                && behind.durable.max(behind.began) > end.lsn
                && limit == u64::MAX
            {
                return Err(self.read_error("read of the header of a segment", e));
            }
            if behind.durable > end.lsn {
                return Err(self.log_error("the header of a segment is gone"));
            }
            // That header was written before them.
            if behind.began > end.lsn && limit == u64::MAX {
                self.note_cut(end.lsn + 1, "the header of its segment is gone");
            }
        }
        let last_seq = found.keys().next_back().copied().unwrap_or(0);
        {
            let mut segments = self.log.segments.borrow_mut();
            // Segments off the path were cut away.
            let cut: Vec<u64> = segments
                .range(end.start + 1..)
                .map(|(s, _)| *s)
                .filter(|s| !end.path.contains(s))
                .collect();
            for seq in cut {
                spare.extend(segments.remove(&seq).map(|s| (s.index, s.file)));
            }
            for (seq, segment) in segments.iter_mut() {
                segment.last_lsn = end.last.get(seq).copied().unwrap_or(lsn);
            }
        }
        *self.log.free.borrow_mut() = spare;
        // Another time those headers may be read again: no number that one of them may have is given to a second segment.
        self.log.current.set(last_seq.max(first_segment) + unreadable);
        self.log.next_lsn.set(end.lsn + 1);
        self.log.written.set(end.lsn);
        self.log.prev_crc.set(end.crc);
        Ok((end.headers, end.doubtful, unread))
    }

    /// The header of a segment file; `None` if there is no valid one, or why it cannot be read.
    async fn segment_head(
        &self,
        name: &str,
        file: &File,
        store: StoreId,
    ) -> Result<io::Result<Option<SegmentHead>>> {
        let (result, buf) = file.read(self.rt.alloc(BLOCK), 0).await;
        let n = match result {
            Ok(n) => n,
            Err(error) => {
                let disk = self.dir.path();
                tracing::warn!(disk, name, %error, "the header of a segment cannot be read");
                return Ok(Err(error));
            }
        };
        let head = buf.get(..n).map(|b| SegmentHead::decode(b, store)).transpose();
        let head = head.map_err(|e| e.context(format_args!("{}/{name}", self.dir.path())))?;
        Ok(Ok(head.flatten()))
    }

    fn log_error(&self, what: &str) -> glowfs_types::Error {
        corrupt(format!(
            "{}: the log is damaged: {what}; the store is not used: replace the disk and let the replicas be rebuilt",
            self.dir.path()
        ))
    }

    /// A batch whose write had ended is not whole, and is cut off with all behind it.
    fn note_cut(&self, lsn: u64, why: &str) {
        let disk = self.dir.path();
        tracing::warn!(disk, batch = lsn, why, "unflushed updates are lost; cutting the log there");
        self.cut.set(true);
    }

    async fn replay_segments(
        self: &Rc<Self>,
        found: &BTreeMap<u64, Found>,
        covered: u64,
        mut durable: u64,
        limit: u64,
    ) -> Result<End> {
        let mut end = End { lsn: covered, ..End::default() };
        // The last segment that begins at or before the first batch that is wanted.
        let start =
            found.iter().rev().find(|(_, f)| f.head.first_lsn <= covered + 1).map(|(seq, _)| *seq);
        let Some(start) = start else {
            if durable > covered || !found.is_empty() {
                return Err(self.log_error(&format!("batch {} is missing", covered + 1)));
            }
            return Ok(end);
        };
        end.start = start;
        let mut seq = start;
        let mut next = found[&start].head.first_lsn;
        let mut crc = found[&start].head.prev_crc;
        let mut knows_later = false;
        while let Some(f) = found.get(&seq) {
            end.path.insert(seq);
            end.incarnation = f.head.incarnation;
            if f.head.first_lsn > durable {
                end.headers.push(Header { segment: seq, block: 0, bytes: f.head.encode() });
            }
            let mut window = Window::new(f.file.clone());
            let mut reread = false;
            let mut block = 1u32;
            let mut follower = None;
            let why = loop {
                // The last one counts: segments between were cut away by an earlier recovery.
                follower = found
                    .range(seq + 1..)
                    .rev()
                    .find(|(_, n)| n.head.first_lsn == next && n.head.prev_crc == crc)
                    .map(|(s, _)| *s)
                    .or(follower);
                if follower.is_some() {
                    break None;
                }
                if next > limit {
                    break Some("cut".into());
                }
                match self.next_batch(&mut window, f, block, next, crc).await? {
                    Step::Batch(head, records) => {
                        durable = durable.max(head.durable_lsn);
                        if head.lsn > covered {
                            if head.lsn > durable && !knows_later {
                                let behind = self.behind(found, seq, block, next).await?;
                                durable = durable.max(behind.durable);
                                knows_later = true;
                            }
                            if head.lsn > durable {
                                let bytes = window
                                    .header(
                                        self,
                                        u64::from(block) * BLOCK as u64,
                                        head.header_blocks as usize * BLOCK,
                                    )
                                    .await?;
                                let bytes = bytes.map(<[u8]>::to_vec).unwrap_or_default();
                                end.headers.push(Header { segment: seq, block, bytes });
                            }
                            for (target, mut record) in records {
                                locate(&mut record, seq, block + head.header_blocks);
                                if head.lsn > durable {
                                    end.doubtful.extend(Doubt::of(target, &record, head.lsn));
                                }
                                self.apply(target, record, head.lsn);
                            }
                        }
                        block += head.header_blocks + head.payload_blocks;
                        crc = head.crc;
                        end.last.insert(seq, head.lsn);
                        next = head.lsn + 1;
                    }
                    // Read again: one wrong bit from the disk must not cut off what is there.
                    Step::End(_) if !reread => {
                        reread = true;
                        window = Window::new(f.file.clone());
                        continue;
                    }
                    Step::End(why) => break Some(why),
                }
                reread = false;
            };
            if let Some(why) = why {
                let behind = self.behind(found, seq, block, next).await?;
                if durable.max(behind.durable) >= next {
                    return Err(self.log_error(&format!(
                        "batch {next} (segment {seq}, block {block}) was durable and is not whole: {why}"
                    )));
                }
                if behind.began > next && next <= limit {
                    self.note_cut(next, &why);
                }
                break;
            }
            let Some(follower) = follower else { break };
            seq = follower;
        }
        end.lsn = next - 1;
        end.crc = crc;
        if end.lsn < covered || end.lsn < durable {
            return Err(self.log_error(&format!("batch {next} is missing")));
        }
        Ok(end)
    }

    /// The batch at `block`, if it is the expected one.
    async fn next_batch(
        &self,
        window: &mut Window,
        f: &Found,
        block: u32,
        lsn: u64,
        prev_crc: u32,
    ) -> Result<Step> {
        let at = u64::from(block) * BLOCK as u64;
        let Some(head) = window.header(self, at, BLOCK).await?.and_then(BatchHead::peek) else {
            return Ok(Step::End("no batch header".into()));
        };
        let fits =
            u64::from(block) + u64::from(head.header_blocks) + u64::from(head.payload_blocks)
                <= self.superblock.borrow().log_segment_bytes / BLOCK as u64;
        let expected = head.store == f.head.store
            && head.segment == f.head.seq
            && head.lsn == lsn
            && head.prev_crc == prev_crc
            && head.incarnation == f.head.incarnation;
        if !expected || !fits || head.header_blocks == 0 || head.header_blocks > HEADER_BLOCKS_MAX {
            return Ok(Step::End("a batch of another time".into()));
        }
        let len = head.header_blocks as usize * BLOCK;
        let Some(header) = window.header(self, at, len).await? else {
            return Ok(Step::End("cut short".into()));
        };
        if !head.verify(header) {
            return Ok(Step::End("checksum mismatch".into()));
        }
        let mut r =
            Reader(&header[BATCH_HEAD_BYTES..BATCH_HEAD_BYTES + head.records_bytes as usize]);
        let mut records = Vec::new();
        for _ in 0..head.record_count {
            match Record::decode(&mut r) {
                Ok(x) => records.push(x),
                Err(e) if e.status == glowfs_types::Status::NewerFormat => {
                    return Err(e.context(format_args!("{}: the log", self.dir.path())));
                }
                Err(e) => return Err(self.log_error(&format!("batch {lsn}: {}", e.message))),
            }
        }
        Ok(Step::Batch(head, records))
    }

    /// Every place must exist and belong to one chunk. Returns the slots in use.
    fn check_places(&self, totals: &BTreeMap<u8, u32>) -> Result<BTreeSet<(u8, u32)>> {
        let mut used = BTreeSet::new();
        for (target, t) in &*self.targets.borrow() {
            for (id, chunk) in &t.chunks {
                let mut own = BTreeSet::new();
                for e in chunk.all_extents() {
                    if let Some((class, index)) = e.loc.slot() {
                        if totals.get(&class).is_none_or(|n| index >= *n) {
                            return Err(corrupt(format!(
                                "{}: {} is shorter than chunk {id} of target {target} needs; replace the disk and let the replicas be rebuilt",
                                self.dir.path(),
                                file_name(class)
                            )));
                        }
                        own.insert((class, index));
                    }
                }
                let have: u32 = own.iter().map(|(class, _)| blocks_of(*class)).sum();
                let live: u32 =
                    chunk.all_extents().filter(|e| e.loc.slot().is_some()).map(|e| e.count).sum();
                if have / 2 > live && have - live > NOTED_BLOCKS {
                    self.dead.note((*target, *id), have - live);
                }
                for slot in own {
                    if !used.insert(slot) {
                        return Err(corrupt(format!(
                            "{}: slot {slot:?} belongs to two chunks, one of them {id} of target {target}; replace the disk and let the replicas be rebuilt",
                            self.dir.path()
                        )));
                    }
                }
            }
        }
        Ok(used)
    }
}

/// Where the log ends.
#[derive(Default)]
struct End {
    lsn: u64,
    crc: u32,
    /// The life that wrote there.
    incarnation: u64,
    /// The last batch in each segment.
    last: BTreeMap<u64, u64>,
    /// The first segment that was read, and all.
    start: u64,
    path: BTreeSet<u64>,
    /// What is not known to be durable.
    headers: Vec<Header>,
    doubtful: Vec<Doubt>,
}
