//! Locks of files that all clients want: nobody is told that he has one while another one has it. They go with their client.

use super::certain::open_or_make_kept;
use super::workload::{Shared, caller, report};
use glowfs_client::Client;
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::wire::meta::ROOT_INODE;
use glowfs_types::{InodeId, RequestId, Result};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The files.
pub const NAMES: [&str; 2] = ["locked0", "locked1"];
/// How long a lock is kept, and a client waits before it asks again, at most, in us.
const KEPT_US: u64 = 60_000;

/// Who was told that he has which lock, and has not begun to give it back.
#[derive(Default)]
pub struct Locks(BTreeMap<&'static str, usize>);

impl Locks {
    /// A client was told that it has one; who has it, if that is somebody else.
    fn taken(&mut self, name: &'static str, client: usize) -> Option<usize> {
        self.0.insert(name, client).filter(|other| *other != client)
    }
    fn given_back(&mut self, name: &'static str) {
        self.0.remove(name);
    }
    /// A client is gone.
    pub fn forget(&mut self, client: usize) {
        self.0.retain(|_, holder| *holder != client);
    }
}

/// One client's work, until told to stop. `me` is its number.
pub async fn work(rt: Rt, client: Rc<Client>, shared: Rc<Shared>, me: usize) {
    if let Err(e) = ops(&rt, &client, &shared, me).await {
        shared.problem(format!("client {me} with locks: {e}"));
    }
}

async fn ops(rt: &Rt, client: &Rc<Client>, shared: &Rc<Shared>, me: usize) -> Result<()> {
    let mut files = Vec::new();
    for name in NAMES {
        let (file, _) = open_or_make_kept(client, shared, ROOT_INODE, name).await?;
        files.push((name, file));
    }
    let pause = async || rt.sleep(Duration::from_micros(rt.random_below(KEPT_US))).await;
    while !shared.stop.get() {
        let (name, file) = &files[rt.random_below(NAMES.len() as u64) as usize];
        if ask(client, file.inode(), LockWish::Exclusive).await? {
            if let Some(other) = shared.locks.borrow_mut().taken(name, me) {
                let what =
                    format!("client {me} was given the lock of {name} that client {other} has");
                shared.problem(what);
            }
            pause().await;
            shared.locks.borrow_mut().given_back(name);
            ask(client, file.inode(), LockWish::Release).await?;
        }
        shared.ops.set(shared.ops.get() + 1);
        pause().await;
    }
    for (_, file) in files {
        client.close_session(report(client, &file, false)).await?;
    }
    Ok(())
}

/// Whether it was granted.
async fn ask(client: &Client, inode: InodeId, wish: LockWish) -> Result<bool> {
    let query = Lock {
        caller: caller(client),
        request: RequestId(0),
        inode,
        owner: 1,
        whole: true,
        wish,
        end: u64::MAX,
        ..Lock::default()
    };
    Ok(client.lock(query).await?.holder.is_none())
}
