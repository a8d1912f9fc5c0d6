//! Names in directories that all clients share: they make, rename (from one directory to another as well), remove and look for the same few names, and what they are told must be linearizable
//! ([`NameHistory`]). What a client asks for that ends in the middle may have happened or not.
//!
//! The directories are so many that not all belong to one metadata service ([architecture.md](../../../../docs/architecture.md), «What is hot has one owner»), in all but a few runs.

use super::name_history::{Answer, Asked, NameHistory};
use super::names::{list, lookup, make, unlink};
use super::workload::{Shared, caller};
use glowfs_client::Client;
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::meta::{InodeKind, ROOT_INODE, Rename};
use glowfs_types::{InodeId, RequestId, Result, Status};
use std::rc::Rc;

/// The directories.
const DIRS: [&str; 4] = ["common0", "common1", "common2", "common3"];
/// The names in each of them.
const NAMES: [&str; 2] = ["a", "b"];
/// How long a client waits between two operations, at most, in us.
const PAUSE_US: u64 = 80_000;

/// What is known of them.
pub struct SharedNames {
    dirs: Vec<InodeId>,
    history: NameHistory,
    tick: u64,
}

impl Default for SharedNames {
    fn default() -> Self {
        Self { dirs: Vec::new(), history: NameHistory::new(DIRS.len() * NAMES.len()), tick: 0 }
    }
}

impl SharedNames {
    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }
    fn begin(&mut self, asked: Asked) -> usize {
        let now = self.tick();
        self.history.begin(asked, now)
    }
    fn end(&mut self, op: usize, answer: Answer) {
        let now = self.tick();
        self.history.end(op, answer, now);
    }
    /// See [`NameHistory::lose_unacknowledged`].
    pub fn lose_unacknowledged(&mut self) -> Option<String> {
        let now = self.tick();
        self.history.lose_unacknowledged(now).err().map(|e| story(&e))
    }
    /// See [`NameHistory::lose_answered`].
    pub fn lose_answered(&mut self) -> Option<String> {
        let now = self.tick();
        self.history.lose_answered(now).err().map(|e| story(&e))
    }
    /// What is not linearizable.
    pub fn check(&self) -> Option<String> {
        self.history.check().err().map(|e| story(&e))
    }
    /// Changes that overlapped another one.
    pub fn contended(&self) -> usize {
        self.history.contended()
    }
}

fn story(what: &str) -> String {
    format!("names in shared directories are not linearizable: {what}")
}

/// Makes the directories.
pub async fn prepare(client: &Client, shared: &Shared) -> Result<()> {
    for dir in DIRS {
        let inode = make(client, ROOT_INODE, dir, InodeKind::Directory).await?;
        shared.names.borrow_mut().dirs.push(inode);
    }
    Ok(())
}

/// One client's work, until told to stop.
pub async fn work(rt: Rt, client: Rc<Client>, shared: Rc<Shared>) {
    let hand = Hand { client: &client, shared: &shared };
    while !shared.stop.get() {
        let name = rt.random_below((DIRS.len() * NAMES.len()) as u64) as usize;
        let other = rt.random_below((DIRS.len() * NAMES.len()) as u64) as usize;
        let asked = match rt.random_below(10) {
            0..3 => Asked::Make(name),
            3 => Asked::Unlink(name),
            4..7 => Asked::Rename(name, other),
            7 | 8 => Asked::Lookup(name),
            _ => Asked::List(of_dir(name / NAMES.len())),
        };
        if let Err(e) = hand.ask(asked.clone()).await {
            return shared.problem(format!("{asked:?} in shared directories: {e}"));
        }
        shared.ops.set(shared.ops.get() + 1);
        rt.sleep(Duration::from_micros(rt.random_below(PAUSE_US))).await;
    }
}

/// Looks at all of them once more.
pub async fn list_all(client: &Client, shared: &Shared) -> Result<()> {
    let hand = Hand { client, shared };
    for dir in 0..DIRS.len() {
        hand.ask(Asked::List(of_dir(dir))).await?;
    }
    Ok(())
}

/// Removes them.
pub async fn remove(client: &Client) -> Result<()> {
    for dir in DIRS {
        let Some(inode) = lookup(client, ROOT_INODE, dir).await? else { continue };
        for name in list(client, inode).await?.keys() {
            unlink(client, inode, name, false).await?;
        }
        unlink(client, ROOT_INODE, dir, true).await?;
    }
    Ok(())
}

fn of_dir(dir: usize) -> Vec<usize> {
    (dir * NAMES.len()..(dir + 1) * NAMES.len()).collect()
}

struct Hand<'a> {
    client: &'a Client,
    shared: &'a Shared,
}

impl Hand<'_> {
    /// Asks for something and notes when, and what was answered.
    async fn ask(&self, asked: Asked) -> Result<()> {
        let op = self.shared.names.borrow_mut().begin(asked.clone());
        let answer = self.answer(&asked).await?;
        self.shared.names.borrow_mut().end(op, answer);
        Ok(())
    }
    fn place(&self, name: usize) -> (InodeId, &'static str) {
        let dir = self.shared.names.borrow().dirs[name / NAMES.len()];
        (dir, NAMES[name % NAMES.len()])
    }
    async fn answer(&self, asked: &Asked) -> Result<Answer> {
        let (done, refusal) = match asked {
            Asked::Make(n) => {
                let (dir, name) = self.place(*n);
                let made = make(self.client, dir, name, InodeKind::File).await;
                (made.map(|inode| Answer::Made(inode.0)), Status::Exists)
            }
            Asked::Unlink(n) => {
                let (dir, name) = self.place(*n);
                let gone = unlink(self.client, dir, name, false).await;
                (gone.map(|()| Answer::Done), Status::NotFound)
            }
            Asked::Rename(from, to) => (self.rename(*from, *to).await, Status::NotFound),
            Asked::Lookup(n) => {
                let (dir, name) = self.place(*n);
                let found = lookup(self.client, dir, name).await?;
                return Ok(Answer::Found(vec![found.map(|i| i.0)]));
            }
            Asked::List(all) => return self.list(all).await,
        };
        match done {
            Err(e) if e.status == refusal => Ok(Answer::Refused),
            done => done,
        }
    }
    async fn rename(&self, from: usize, to: usize) -> Result<Answer> {
        let ((parent, name), (new_parent, new_name)) = (self.place(from), self.place(to));
        let query = Rename {
            caller: caller(self.client),
            request: RequestId(0),
            parent,
            name: name.as_bytes().to_vec().into(),
            new_parent,
            new_name: new_name.as_bytes().to_vec().into(),
            flags: 0,
        };
        self.client.rename(query).await.map(|_| Answer::Done)
    }
    async fn list(&self, all: &[usize]) -> Result<Answer> {
        let Some(first) = all.first() else { return Ok(Answer::Found(Vec::new())) };
        let listed = list(self.client, self.place(*first).0).await?;
        let of = |n: &usize| listed.get(self.place(*n).1).map(|i| i.0);
        Ok(Answer::Found(all.iter().map(of).collect()))
    }
}
