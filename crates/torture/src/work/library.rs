//! An application that uses the client library instead of a mount.

use super::Job;
use crate::block::BLOCK;
use crate::flight::Flight;
use crate::ledger::Ledger;
use glowfs_client::{Client, ClientConfig, FileAccess, OpenFile};
use glowfs_rt::{Buf, Duration, Rt, real};
use glowfs_types::wire::meta::{
    Caller as Identity, InodeKind, Lookup, Make, Name, OfInode, OpenFlags, ROOT_INODE,
    Sync as SyncFile,
};
use glowfs_types::{Error, RequestId, Result};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// Blocks of the file.
const BLOCKS: u64 = 512;
/// The longest read or write, in blocks.
const IO_BLOCKS: u64 = 16;

/// How to reach the cluster.
#[derive(Clone)]
pub struct Access {
    /// Addresses of mgmtd.
    pub mgmtd: Vec<String>,
    /// The token.
    pub token: String,
    /// The directory of the run, in the root directory.
    pub dir: String,
}

struct Worker {
    job: Job,
    ledger: Arc<Ledger>,
    client: Rc<Client>,
    file: Rc<OpenFile>,
}

/// Works until the end; tells `ready` when its file is there.
pub fn work(job: Job, access: Access, ready: Sender<bool>) {
    real::run(move |rt| async move {
        let told = ready.clone();
        let flight = job.flight.clone();
        let lane = job.lane;
        if let Err(e) = run(&rt, job, access, ready).await {
            flight.end(lane, flight.now());
            flight.error(lane, "library", &io::Error::from_raw_os_error(e.errno()));
            flight.say(&format!("library: {e}"));
            let _ = told.send(false);
        }
    });
}

async fn run(rt: &Rt, job: Job, access: Access, ready: Sender<bool>) -> Result<()> {
    let began = job.flight.begin(job.lane, "connecting and opening by the library");
    let client = connect(rt, &access).await?;
    let file = open(&client, &job, &access.dir).await?;
    job.flight.end(job.lane, began);
    let ledger =
        job.files.add(Ledger::new(job.lane as u64, format!("library-{}", job.lane), BLOCKS));
    let mut w = Worker { job, ledger, client, file };
    for at in (0..BLOCKS).step_by(IO_BLOCKS as usize) {
        w.write(at..at + IO_BLOCKS).await;
    }
    w.sync().await;
    let _ = ready.send(true);
    while w.job.flight.go_on() {
        rt.sleep(Duration::from_micros(w.job.random.below(w.job.think.as_micros() as u64 + 1)))
            .await;
        let count = 1 + w.job.random.below(IO_BLOCKS);
        let at = w.job.random.below(BLOCKS - count);
        match w.job.random.below(100) {
            0..55 => w.write(at..at + count).await,
            55..96 => w.read(rt, at..at + count).await,
            _ => w.sync().await,
        }
    }
    w.close().await;
    Ok(())
}

/// A client of its own.
pub(crate) async fn connect(rt: &Rt, access: &Access) -> Result<Rc<Client>> {
    let config = ClientConfig {
        mgmtd: access.mgmtd.clone(),
        token: access.token.clone(),
        description: "torture".into(),
        ..ClientConfig::default()
    };
    Client::connect(rt, config.on_this_host()).await
}

async fn open(client: &Rc<Client>, job: &Job, dir: &str) -> Result<Rc<OpenFile>> {
    let caller = Identity::default();
    let name = |n: &str| Name::from(n.as_bytes().to_vec());
    let look = Lookup { caller: caller.clone(), parent: ROOT_INODE, name: name(dir) };
    let dir = client.lookup(look).await?.attr.inode;
    let flags = OpenFlags {
        read: true,
        write: true,
        truncate: false,
        session: client.new_session(),
        append: false,
        inline: false,
        exec: false,
    };
    let make = Make {
        caller: caller.clone(),
        request: RequestId(0),
        parent: dir,
        name: name(&format!("library-{}", job.lane)),
        kind: InodeKind::File,
        mode: 0o644,
        rdev: 0,
        symlink: vec![],
        open: Some(flags),
        exclusive: true,
        ..Make::default()
    };
    let reply = client.make(make).await?;
    let opened = reply
        .open
        .ok_or_else(|| Error::new(glowfs_types::Status::Internal, "MAKE did not open the file"))?;
    client.open_file(&opened, FileAccess { caller, read: true, write: true, exec: false })
}

impl Worker {
    fn failed(&self, what: &str, e: &Error) {
        self.job.flight.error(
            self.job.lane,
            &format!("{what}: {e}"),
            &io::Error::from_raw_os_error(e.errno()),
        );
    }
    async fn write(&mut self, blocks: Range<u64>) {
        let at = blocks.start * BLOCK as u64;
        let w = self.ledger.write(blocks, self.job.lane as u32, vec![]);
        let bytes = Buf::from_vec(w.bytes().to_vec());
        let began = self.job.flight.begin(self.job.lane, "write by the library");
        let result = self.file.write(at, bytes).await;
        self.job.flight.end(self.job.lane, began);
        if let Err(e) = &result {
            self.failed("write", e);
        }
        self.ledger.wrote(w, result.is_ok());
    }
    async fn read(&mut self, rt: &Rt, blocks: Range<u64>) {
        let r = self.ledger.read(blocks.clone());
        let buf = rt.alloc(blocks.clone().count() * BLOCK);
        let began = self.job.flight.begin(self.job.lane, "read by the library");
        let (result, buf) = self.file.read(blocks.start * BLOCK as u64, buf).await;
        self.job.flight.end(self.job.lane, began);
        match result {
            Ok(n) => {
                let n = n.min(buf.len());
                for problem in self.ledger.check(r, &buf[..n], "the library") {
                    self.job.flight.wrong(problem);
                }
            }
            Err(e) => self.failed("read", &e),
        }
    }
    async fn sync(&mut self) {
        let covered = self.ledger.sync();
        let began = self.job.flight.begin(self.job.lane, "sync by the library");
        let result = self.flush().await;
        self.job.flight.end(self.job.lane, began);
        match result {
            Ok(()) => self.ledger.synced(&covered),
            Err(e) => self.failed("sync", &e),
        }
    }
    async fn flush(&self) -> Result<()> {
        self.file.flush().await?;
        self.client.sync(self.query(true)).await.map(|_| ())
    }
    fn query(&self, durable: bool) -> SyncFile {
        SyncFile {
            caller: Identity::default(),
            request: RequestId(0),
            inode: self.file.inode(),
            session: self.file.session(),
            len_at_least: self.file.len_written(),
            epoch: self.file.epoch(),
            mtime: None,
            atime: None,
            durable,
            ..SyncFile::default()
        }
    }
    async fn close(self) {
        let began = self.job.flight.begin(self.job.lane, "close by the library");
        if let Err(e) = self.client.close_session(self.query(false)).await {
            self.failed("close", &e);
        }
        self.client.close().await;
        self.job.flight.end(self.job.lane, began);
    }
}

/// A client that only looks the root directory up, over and over.
pub struct Caller {
    /// How to reach the cluster.
    pub access: Access,
    /// Where it tells what it does.
    pub flight: Arc<Flight>,
    /// Its place there.
    pub lane: usize,
    /// Ends it.
    pub stop: Arc<AtomicBool>,
}

/// Looks up until the end; tells `ready` when it is connected.
pub fn look_up(c: Caller, ready: Sender<()>) {
    real::run(move |rt| async move {
        let client = match connect(&rt, &c.access).await {
            Ok(client) => client,
            Err(e) => return c.flight.wrong(format!("a client cannot connect: {e}")),
        };
        let _ = ready.send(());
        while !c.stop.load(Ordering::Relaxed) {
            let query = OfInode { caller: Identity::default(), inode: ROOT_INODE };
            let began = c.flight.begin(c.lane, "getattr");
            let result = client.getattr(query).await;
            c.flight.end(c.lane, began);
            if let Err(e) = result {
                let errno = io::Error::from_raw_os_error(e.errno());
                c.flight.error(c.lane, &format!("getattr: {e}"), &errno);
            }
            rt.sleep(Duration::from_millis(2)).await;
        }
        client.close().await;
    });
}
