//! What each operation asks of the metadata engine: the numbers that docs/scaling.md reckons with.
//! `cargo run --release -p glowfs-namespace --example questions`.
//!
//! Rounds are questions that wait for each other: the begin, each read or group of reads, the commit of what changes something. The
//! directories hold a few names; nothing is retried.

mod world;

use glowfs_kv::{Engine, Key, Memory, RangePage, Value, Version, run_transaction};
use glowfs_namespace::{
    Context, close, getattr, lookup, make, open, readdir, rename, setattr, sync, unlink,
};
use glowfs_rt::{BoxFuture, real};
use glowfs_types::wire::kv::{Commit, Mutation};
use glowfs_types::wire::meta::{
    AtimeRule, InodeKind, Lookup, Make, OfInode, Open, OpenFlags, ReadDir, Rename, SetAttr, Sync,
    Unlink,
};
use glowfs_types::{Error, InodeId, RequestId, Result, SessionId, TruncateEpoch};
use std::cell::RefCell;
use std::rc::Rc;
use world::{World, caller};

/// What an operation asked.
#[derive(Default)]
struct Asked {
    rounds: u32,
    keys: usize,
    ranges: u32,
    puts: usize,
    sums: usize,
    clears: usize,
    bytes: usize,
    conflicts: usize,
}

/// An engine in memory that counts.
struct Counting {
    memory: Memory,
    asked: Rc<RefCell<Asked>>,
}

impl Engine for Counting {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        self.asked.borrow_mut().rounds += 1;
        self.memory.begin()
    }
    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        let mut asked = self.asked.borrow_mut();
        asked.rounds += 1;
        asked.keys += keys.len();
        self.memory.get(version, keys)
    }
    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        let mut asked = self.asked.borrow_mut();
        asked.rounds += 1;
        asked.ranges += 1;
        self.memory.get_range(version, begin, end, limit, reverse)
    }
    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        let mut asked = self.asked.borrow_mut();
        if !commit.mutations.is_empty() {
            asked.rounds += 1;
        }
        asked.conflicts += commit.read_conflicts.len();
        for mutation in &commit.mutations {
            match mutation {
                Mutation::Put { key, value } => {
                    asked.puts += 1;
                    asked.bytes += key.len() + value.len();
                }
                Mutation::PutVersionstamped { prefix, suffix, value } => {
                    asked.puts += 1;
                    asked.bytes += prefix.len() + suffix.len() + value.len();
                }
                Mutation::ClearRange { begin, end } => {
                    asked.clears += 1;
                    asked.bytes += begin.len() + end.len();
                }
                Mutation::Add { key, .. } => {
                    asked.sums += 1;
                    asked.bytes += key.len() + 8;
                }
            }
        }
        self.memory.commit(commit)
    }
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        self.memory.flush_barrier()
    }
}

/// The file system, and what was asked of its engine since the last row.
struct Asking {
    rt: glowfs_rt::Rt,
    engine: Rc<dyn Engine>,
    world: Rc<World>,
    asked: Rc<RefCell<Asked>>,
}

impl Asking {
    async fn row<T>(
        &self,
        what: &str,
        work: impl for<'a> AsyncFn(&'a Context<'a>) -> Result<T>,
    ) -> Result<T> {
        self.asked.take();
        let caller = caller();
        let once = async |tx: &_| work(&Context::new(tx, &caller, &*self.world)).await;
        let done = run_transaction(&self.rt, &self.engine, once).await?;
        let a = self.asked.take();
        println!(
            "{what:<22} rounds {:>2}  keys read {:>2}  ranges {:>2}  puts {:>2}  sums {:>2}  clears {:>2}  bytes {:>4}  conflicts {:>2}",
            a.rounds, a.keys, a.ranges, a.puts, a.sums, a.clears, a.bytes, a.conflicts
        );
        Ok(done)
    }

    fn request(&self) -> RequestId {
        RequestId(self.rt.random_u128())
    }

    fn make(&self, parent: InodeId, name: &str, kind: InodeKind) -> Make {
        Make {
            caller: caller(),
            request: self.request(),
            parent,
            name: name.as_bytes().to_vec().into(),
            kind,
            mode: 0o755,
            exclusive: true,
            ..Make::default()
        }
    }

    fn sync(&self, inode: InodeId, session: SessionId) -> Sync {
        Sync {
            caller: caller(),
            request: self.request(),
            inode,
            session: Some(session),
            len_at_least: Some(1024),
            epoch: TruncateEpoch(0),
            mtime: None,
            atime: None,
            durable: false,
            allocated: None,
            fence: 0,
            wrote: false,
        }
    }

    fn unlink(&self, parent: InodeId, name: &str, directory: bool) -> Unlink {
        let name = name.as_bytes().to_vec().into();
        Unlink { caller: caller(), request: self.request(), parent, name, directory }
    }

    async fn all(&self) -> Result<()> {
        let q = self.make(InodeId(1), "dir", InodeKind::Directory);
        let dir = self.row("mkdir", async |cx| make(cx, &q).await).await?.attr.inode;
        let q = self.make(dir, "file", InodeKind::File);
        let file = self.row("create", async |cx| make(cx, &q).await).await?.attr.inode;
        let flags =
            |session| OpenFlags { read: true, write: true, session, ..OpenFlags::default() };
        let mut q = self.make(dir, "open", InodeKind::File);
        let session = SessionId(1);
        q.open = Some(flags(session));
        let opened = self.row("create and open", async |cx| make(cx, &q).await).await?.attr.inode;
        let q = self.sync(opened, session);
        self.row("sync of a length", async |cx| sync(cx, &q).await).await?;
        let q = self.sync(opened, session);
        self.row("close", async |cx| close(cx, &q).await).await?;
        let (request, session) = (self.request(), SessionId(2));
        let q = Open { caller: caller(), request, inode: opened, flags: flags(session) };
        self.row("open for writing", async |cx| open(cx, &q).await).await?;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let q = Open { caller: caller(), request: self.request(), inode: file, flags };
        self.row("open for reading", async |cx| open(cx, &q).await).await?;
        let name = b"file".to_vec().into();
        let q = Lookup { caller: caller(), parent: dir, name };
        self.row("look-up", async |cx| lookup(cx, &q).await).await?;
        let q = OfInode { caller: caller(), inode: file };
        self.row("attributes", async |cx| getattr(cx, &q).await).await?;
        let q = SetAttr {
            caller: caller(),
            request: self.request(),
            inode: file,
            mode: Some(0o600),
            ..SetAttr::default()
        };
        self.row("chmod", async |cx| setattr(cx, &q).await).await?;
        let q = ReadDir {
            caller: caller(),
            inode: dir,
            after: 0,
            limit: 1000,
            attributes: true,
            atime: AtimeRule::default(),
        };
        self.row("list with attributes", async |cx| readdir(cx, &q).await).await?;
        let q = Rename {
            caller: caller(),
            request: self.request(),
            parent: dir,
            name: b"file".to_vec().into(),
            new_parent: dir,
            new_name: b"other".to_vec().into(),
            flags: 0,
        };
        self.row("rename", async |cx| rename(cx, &q).await).await?;
        let q = self.unlink(dir, "other", false);
        self.row("remove", async |cx| unlink(cx, &q).await).await?;
        let q = self.make(dir, "sub", InodeKind::Directory);
        self.row("mkdir, again", async |cx| make(cx, &q).await).await?;
        let q = self.unlink(dir, "sub", true);
        self.row("rmdir", async |cx| unlink(cx, &q).await).await?;
        Ok::<(), Error>(())
    }
}

fn main() -> Result<()> {
    real::run(|rt| async move {
        let asked = Rc::new(RefCell::default());
        let counting = Counting { memory: Memory::new(), asked: Rc::clone(&asked) };
        let (engine, world): (Rc<dyn Engine>, _) = (Rc::new(counting), World::new(&rt));
        world::make_root(&rt, &engine, &world).await?;
        Asking { rt, engine, world, asked }.all().await
    })
}
