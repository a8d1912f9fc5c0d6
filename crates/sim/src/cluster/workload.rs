//! What clients do on a shared file: random reads and writes, checked as registers. And what all workloads have in common.

use super::certain::open_or_make_kept;
use super::contended::{self, Contended};
use super::harness::CHUNK_BYTES;
use super::locks::Locks;
use super::registers::{CELL_BYTES, Registers, Writing};
use super::shared_names::SharedNames;
use super::small;
use glowfs_client::{Client, FileAccess, OpenFile};
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_types::wire::meta::{
    Caller, Make, Open, OpenFlags, OpenReply, ROOT_INODE, Sync as SyncFile,
};
use glowfs_types::{Error, InodeId, RequestId, Result, Status, VolumeId};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Bytes of one operation, at most.
const OP_BYTES: u64 = 100 << 10;
/// Cells of one operation on the shared file, at most.
const OP_CELLS: u64 = 12;

/// How long a client waits that was told that a disk is full.
const FULL_PAUSE: Duration = Duration::from_millis(50);

/// What all clients share.
pub struct Shared {
    /// The registers of the shared file.
    pub registers: RefCell<Registers>,
    /// What was wrong with own files, and operations that failed.
    pub problems: RefCell<Vec<String>>,
    /// No new operations.
    pub stop: Cell<bool>,
    /// Operations that ended.
    pub ops: Cell<u64>,
    /// Writers of the shared file.
    pub writers: usize,
    /// The histories of the contended file.
    pub contended: RefCell<Contended>,
    /// The same of a small one.
    pub small: RefCell<Contended>,
    /// Names that all change.
    pub names: RefCell<SharedNames>,
    /// Who has which lock.
    pub locks: RefCell<Locks>,
    /// How often all power was lost.
    pub power_losses: Cell<u64>,
    /// How often of these all stores had only failed to flush: clients are not told of what is gone then.
    pub failed_flushes: Cell<u64>,
    /// Changes of metadata are answered before they are flushed.
    pub background: Cell<bool>,
    /// Bytes in a chunk.
    pub chunk_bytes: Cell<u32>,
    /// How often the host of the metadata engine lost its power, and with it changes that were answered.
    pub engine_losses: Cell<u64>,
    /// Sessions that were opened and that nobody makes sure of.
    pub opens: Cell<u64>,
}

/// How all storage nodes were interrupted at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interruption {
    /// Their processes were killed, and one may have lost its power as well: nothing that was acknowledged or read is lost.
    Killed,
    /// They lost their power: what was not flushed may be gone, and who flushes it is told so.
    Power,
    /// They failed to flush, and their processes were started again: what was not flushed may be gone.
    FailedFlushes,
}

impl Shared {
    /// For `writers` clients, each with its part of every `stretch` of the shared file's cells.
    pub fn new(writers: usize, cells: usize) -> Rc<Self> {
        Rc::new(Self {
            registers: RefCell::new(Registers::new("shared file", cells)),
            problems: RefCell::default(),
            stop: Cell::new(false),
            ops: Cell::new(0),
            writers,
            contended: RefCell::new(Contended::new(contended::NAME, &contended::CELLS)),
            small: RefCell::new(Contended::new(small::CONTENDED, &small::CELLS)),
            power_losses: Cell::new(0),
            names: RefCell::default(),
            locks: RefCell::default(),
            failed_flushes: Cell::new(0),
            background: Cell::new(false),
            chunk_bytes: Cell::new(CHUNK_BYTES),
            engine_losses: Cell::new(0),
            opens: Cell::new(0),
        })
    }
    /// All storage nodes were interrupted at once.
    pub fn interrupted(&self, how: Interruption) {
        self.registers.borrow_mut().interrupted(how);
        if how != Interruption::Killed {
            for file in [&self.contended, &self.small] {
                let wrong = file.borrow_mut().lose();
                self.problems.borrow_mut().extend(wrong);
            }
            self.power_losses.set(self.power_losses.get() + 1);
        }
        if how == Interruption::FailedFlushes {
            self.failed_flushes.set(self.failed_flushes.get() + 1);
        }
    }
    /// The metadata engine's host lost its power: commits that were not flushed, and so not acknowledged, may have been seen. Where they are acknowledged before that, these may be gone as well.
    pub fn engine_lost_power(&self) {
        if self.background.get() {
            self.engine_losses.set(self.engine_losses.get() + 1);
            let wrong = self.small.borrow_mut().lose_answered();
            self.problems.borrow_mut().extend(wrong);
            let wrong = self.names.borrow_mut().lose_answered();
            self.problems.borrow_mut().extend(wrong);
            return;
        }
        let wrong = self.small.borrow_mut().lose_unacknowledged();
        self.problems.borrow_mut().extend(wrong);
        let wrong = self.names.borrow_mut().lose_unacknowledged();
        self.problems.borrow_mut().extend(wrong);
    }
    /// The cells of the shared file that this writer writes.
    pub fn cells_of(&self, writer: usize) -> Range<usize> {
        let part = self.registers.borrow().len() / self.writers;
        part * writer..part * (writer + 1)
    }
    /// Notes what is wrong.
    pub fn problem(&self, what: String) {
        self.problems.borrow_mut().push(what);
    }
    /// Everything that was wrong.
    pub fn all_problems(&self) -> Vec<String> {
        let mut all = self.problems.borrow().clone();
        all.extend(self.registers.borrow().problems.iter().cloned());
        all.extend(self.contended.borrow().check());
        all.extend(self.small.borrow().check());
        all.extend(self.names.borrow().check());
        all
    }
}

/// Root, in the first volume.
pub fn caller(client: &Client) -> Caller {
    Caller { client: client.id(), volume: VolumeId(1), ..Caller::default() }
}

/// Makes a file in the root directory, or opens it if it is there, for reading and writing.
pub async fn open_or_make(client: &Rc<Client>, name: &str) -> Result<(Rc<OpenFile>, OpenReply)> {
    open_or_make_in(client, ROOT_INODE, name).await
}

/// The same in another directory.
pub async fn open_or_make_in(
    client: &Rc<Client>,
    parent: InodeId,
    name: &str,
) -> Result<(Rc<OpenFile>, OpenReply)> {
    let flags = OpenFlags {
        read: true,
        write: true,
        truncate: false,
        session: client.new_session(),
        append: false,
        inline: false,
        exec: false,
    };
    let reply = client
        .make(Make {
            caller: caller(client),
            request: RequestId(0),
            parent,
            name: name.as_bytes().to_vec().into(),
            kind: Default::default(),
            mode: 0o644,
            rdev: 0,
            symlink: Vec::new(),
            open: Some(flags),
            exclusive: false,
            ..Make::default()
        })
        .await?;
    let open = reply
        .open
        .ok_or_else(|| Error::new(Status::Internal, "MAKE with open answered without"))?;
    let access = FileAccess { caller: caller(client), read: true, write: true, exec: false };
    Ok((client.open_file(&open, access)?, open))
}

/// Opens a file again.
pub async fn open(client: &Rc<Client>, inode: InodeId) -> Result<(Rc<OpenFile>, OpenReply)> {
    let flags = OpenFlags {
        read: true,
        write: true,
        truncate: false,
        session: client.new_session(),
        append: false,
        inline: false,
        exec: false,
    };
    let query = Open { caller: caller(client), request: RequestId(0), inode, flags };
    let open = client.open(query).await?;
    let access = FileAccess { caller: caller(client), read: true, write: true, exec: false };
    Ok((client.open_file(&open, access)?, open))
}

/// What SYNC and CLOSE say of a file.
pub fn report(client: &Client, file: &OpenFile, durable: bool) -> SyncFile {
    SyncFile {
        caller: caller(client),
        request: RequestId(0),
        inode: file.inode(),
        session: file.session(),
        len_at_least: file.len_written(),
        epoch: file.epoch(),
        mtime: None,
        atime: None,
        durable,
        ..SyncFile::default()
    }
}

/// The greatest length of the next operation: small ones are the most, since many operations find more than many bytes.
pub fn op_bytes(rt: &Rt) -> u64 {
    if rt.random_below(8) == 0 { OP_BYTES } else { OP_BYTES / 12 }
}

/// Random bytes.
pub fn random_bytes(rt: &Rt, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rt.random().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// One client's work on the shared file: writes to its own cells, reads of all. `me` is its number among the writers.
pub async fn shared_file(rt: Rt, client: Rc<Client>, shared: Rc<Shared>, name: String, me: usize) {
    if let Err(e) = shared_file_ops(&rt, &client, &shared, &name, me).await {
        shared.problem(format!("client {me} on {name}: {e}"));
    }
}

async fn shared_file_ops(
    rt: &Rt,
    client: &Rc<Client>,
    shared: &Rc<Shared>,
    name: &str,
    me: usize,
) -> Result<()> {
    let (file, _) = open_or_make_kept(client, shared, ROOT_INODE, name).await?;
    let cells = shared.registers.borrow().len() as u64;
    let own = shared.cells_of(me);
    let (first, part) = (own.start as u64, own.len() as u64);
    while !shared.stop.get() {
        let what = rt.random_below(20);
        if what == 0 {
            let flushing = shared.registers.borrow().flush(own.clone());
            let told = is_told_of_loss(file.flush().await)?;
            shared.registers.borrow_mut().flushed(flushing, told);
            client.sync(report(client, &file, true)).await?;
        } else if what < 10 {
            let from = first + rt.random_below(part);
            let n = 1 + rt.random_below(OP_CELLS.min(first + part - from));
            write_cells(rt, &file, shared, from, n).await?;
        } else {
            let from = rt.random_below(cells);
            let n = 1 + rt.random_below(OP_CELLS.min(cells - from));
            read_cells(rt, &file, shared, from, n, &format!("client {me}")).await?;
        }
        shared.ops.set(shared.ops.get() + 1);
        rt.sleep(Duration::from_micros(rt.random_below(10_000))).await;
    }
    client.close_session(report(client, &file, true)).await?;
    Ok(())
}

/// Writes; while disks are full, again and again.
pub async fn write_patiently(rt: &Rt, file: &OpenFile, offset: u64, bytes: Buf) -> Result<()> {
    patiently(rt, async || file.write(offset, bytes.clone()).await).await
}

/// Whether a flush told that something is gone which was acknowledged before; what is left of it is flushed then as well.
pub fn is_told_of_loss(flushed: Result<()>) -> Result<bool> {
    match flushed {
        Err(e) if e.status == Status::WritesLost => Ok(true),
        flushed => flushed.map(|()| false),
    }
}

/// Does something that may need room; while disks are full, again and again.
pub async fn patiently<T>(rt: &Rt, mut work: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    loop {
        match work().await {
            Err(e) if e.status == Status::NoSpace => rt.sleep(FULL_PAUSE).await,
            done => return done,
        }
    }
}

/// A write of cells whose outcome its client need not live to hear.
struct UnderWay<'a>(&'a Shared, Option<Writing>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(writing) = self.1.take() {
            self.0.registers.borrow_mut().wrote_perhaps(writing);
        }
    }
}

async fn write_cells(rt: &Rt, file: &OpenFile, shared: &Shared, from: u64, n: u64) -> Result<()> {
    let (writing, bytes) = shared.registers.borrow_mut().write(from as usize..(from + n) as usize);
    let mut under_way = UnderWay(shared, Some(writing));
    let result = write_patiently(rt, file, from * CELL_BYTES, Buf::from_vec(bytes)).await;
    if let Some(writing) = under_way.1.take() {
        shared.registers.borrow_mut().wrote(writing, result.is_ok());
    }
    result
}

/// Reads and checks some cells.
pub async fn read_cells(
    rt: &Rt,
    file: &OpenFile,
    shared: &Shared,
    from: u64,
    n: u64,
    who: &str,
) -> Result<()> {
    let reading = shared.registers.borrow().read(from as usize..(from + n) as usize);
    let (result, buf) = file.read(from * CELL_BYTES, rt.alloc((n * CELL_BYTES) as usize)).await;
    result?;
    shared.registers.borrow_mut().check(reading, &buf, who);
    Ok(())
}
