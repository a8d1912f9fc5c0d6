//! REMOVE_TREE and TREES; and the work that empties the directories of removed trees.
//!
//! The queue is in the engine ([`glowfs_namespace`]), so this work begins anew with each life of a service, and goes on where the last one stopped. Several
//! services work side by side: who comes second to a directory finds it changed, and looks again.

use crate::names::{Naming, seen};
use crate::once::Doubt;
use crate::pace::Pace;
use crate::portions::Portions;
use crate::recall::Change;
use crate::state::{Service, VOLUME};
use glowfs_kv::{Key, Transaction};
use glowfs_namespace::{self as ns, Context, Emptied, TreeEntry, TreePlace, TreeRemoved};
use glowfs_net::Conn;
use glowfs_rt::sync::join_all;
use glowfs_rt::{Duration, Instant};
use glowfs_types::wire::decode;
use glowfs_types::wire::meta::{Caller, DirChanged};
use glowfs_types::wire::tree::{RemoveTree, RemoveTreeReply, TREES_PAGE_MAX, Trees, TreesReply};
use glowfs_types::{ClientId, Error, InodeId, RequestId, Result};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Directories that are looked at before a tree is removed; what is in others is looked at when its turn comes.
const CHECK_DIRECTORIES: u64 = 16 << 10;
/// Names that are read for that.
const CHECK_NAMES: u64 = 256 << 10;
/// How long that may take: less than a client waits for an answer.
const CHECK_TIME: Duration = Duration::from_secs(2);
/// Names that one step of it reads.
const CHECK_PAGE: u32 = 512;
/// Directories of the queue that are read at once.
const QUEUE_PAGE: u32 = 64;
/// Directories that are emptied side by side.
const PARALLEL: usize = 8;
/// Names taken out by one transaction, if the engine takes so many.
const BATCH_NAMES: usize = 64;
/// Batches until the others' turn comes.
const BATCHES: usize = 64;

/// Pause until a directory is looked at again in which records cannot be read.
const DAMAGED_PAUSE: Duration = Duration::from_secs(60);
/// Such directories remembered, about.
const DAMAGED_MAX: usize = 1 << 12;

/// REMOVE_TREE.
pub async fn remove(s: &Service, conn: &Rc<Conn>, body: &[u8]) -> Result<RemoveTreeReply> {
    let mut q: RemoveTree = decode(body)?;
    s.who(conn, &mut q.caller).await?;
    s.wait_for_old_leases().await;
    let find = async |tx: &Transaction| ns::tree_place(&Context::new(tx, &q.caller, s), &q).await;
    let found = s.look(find).await;
    let place = found.as_ref().ok();
    let names: Vec<_> = place.iter().map(|p| (p.parent, &p.name)).collect();
    let by = q.caller.client;
    let naming = match q.check {
        true => None,
        false => s.begin_names((by, conn), q.request, &names, true),
    };
    let run = async |_: &Doubt| remove_found(s, &q, found.clone(), naming.as_ref()).await;
    let done = s.once(&q, run).await;
    let (done, dirs) = match done {
        Ok(done) => done,
        Err(e) => {
            s.names_failed(naming, &e);
            s.others_finished(by, seen(&names, &[])).await;
            return Err(e);
        }
    };
    let TreePlace { parent, name, .. } = found.clone()?;
    if done.now {
        let name = Change::name(done.tree, parent, &name);
        let changes = [Change::attributes(parent), Change::attributes(done.tree), name];
        // The caller's kernel as well: it has removed nothing itself.
        let nobody = ClientId(0);
        s.names_committed(naming.as_ref(), nobody, &changes, &dirs);
        s.changed(nobody, &changes).await;
        tracing::info!(tree = %done.tree, uid = q.caller.uid, "a tree was removed, and is being emptied");
    } else if !q.check {
        s.names_changed_unknown(naming.as_ref()).await;
    }
    s.others_finished(by, seen(&names, &dirs)).await;
    Ok(RemoveTreeReply { tree: done.tree, parent, name })
}

async fn remove_found(
    s: &Service,
    q: &RemoveTree,
    place: Result<TreePlace>,
    naming: Option<&Naming>,
) -> Result<(TreeRemoved, Vec<DirChanged>)> {
    let place = place?;
    if place.tree != InodeId(0) {
        check(s, &q.caller, place.tree).await?;
    }
    let once = q.request != RequestId(0);
    s.run_naming(naming, once, async |tx| {
        let cx = &Context::new(tx, &q.caller, s);
        Ok((ns::remove_tree(cx, q, &place).await?, cx.dirs_changed()))
    })
    .await
}

/// Looks for what the caller may not remove.
async fn check(s: &Service, who: &Caller, tree: InodeId) -> Result<()> {
    if who.uid == 0 {
        return Ok(());
    }
    let until = s.rt.now() + CHECK_TIME;
    let (mut open, mut directories, mut names) = (vec![tree], 0, 0);
    while let Some(dir) = open.pop() {
        directories += 1;
        let mut from: Option<Key> = None;
        loop {
            if directories > CHECK_DIRECTORIES || names > CHECK_NAMES || s.rt.now() > until {
                return Ok(());
            }
            let step = async |tx: &Transaction| {
                let cx = &Context::new(tx, who, s);
                ns::check_tree(cx, dir, from.as_ref(), CHECK_PAGE).await
            };
            let found = s.look(step).await?;
            names += found.names;
            open.extend(found.directories);
            from = found.next;
            if from.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// TREES.
pub async fn list(s: &Service, conn: &Rc<Conn>, body: &[u8]) -> Result<TreesReply> {
    let mut q: Trees = decode(body)?;
    s.who(conn, &mut q.caller).await?;
    let identity = &conn.peer().identity;
    let all = identity.service || identity.admin || identity.root;
    let uid = (!all).then_some(q.caller.uid);
    let work = async |tx: &Transaction| {
        ns::trees(&Context::new(tx, &q.caller, s), q.after, uid, TREES_PAGE_MAX).await
    };
    let (trees, next) = s.look(work).await?;
    Ok(TreesReply { trees, next })
}

/// Empties removed trees.
pub struct Emptier {
    caller: Caller,
    portions: Portions,
    /// What was taken out so far.
    pace: Pace,
    /// Directories with nothing left but what cannot be read, and when they are looked at again.
    damaged: RefCell<BTreeMap<InodeId, Instant>>,
}

impl Emptier {
    /// Nothing begun.
    pub fn new(s: &Service) -> Self {
        let caller = Caller { volume: VOLUME, ..Caller::default() };
        let (portions, pace) = (Portions::new(BATCH_NAMES), Pace::new(s.rt.now()));
        Self { caller, portions, pace, damaged: RefCell::default() }
    }

    /// Goes through the queue until there is nothing to do.
    pub async fn round(&self, s: &Service) -> Result<()> {
        loop {
            let (mut before, mut any, mut outcome) = (None, false, Ok(()));
            let empty = loop {
                let page =
                    s.look(async |tx| ns::leaving(tx, VOLUME, before, QUEUE_PAGE).await).await?;
                let (did, done) = self.page(s, &page).await;
                any |= did;
                outcome = done.and(outcome);
                if page.len() < QUEUE_PAGE as usize || stops(s) {
                    break before.is_none() && page.is_empty();
                }
                // What came meanwhile goes first, so that there is never much.
                before = if did { None } else { page.last().copied() };
            };
            if !any || stops(s) {
                self.tidy(s, empty).await?;
                return outcome;
            }
        }
    }

    /// Whether something was done, and what went wrong elsewhere: what cannot be emptied does not keep the others.
    async fn page(&self, s: &Service, page: &[InodeId]) -> (bool, Result<()>) {
        if page.is_empty() {
            return (false, Ok(()));
        }
        // Services begin at different places.
        let (front, back) = page.split_at(s.rt.random() as usize % page.len());
        let (mut any, mut outcome) = (false, Ok(()));
        let dirs: Vec<_> = back.iter().chain(front).copied().collect();
        for some in dirs.chunks(PARALLEL) {
            if stops(s) {
                break;
            }
            for done in join_all(some.iter().map(|dir| self.directory(s, *dir))).await {
                match done {
                    Ok(did) => any |= did,
                    Err(e) => outcome = Err(e),
                }
            }
        }
        (any, outcome)
    }

    /// Empties a directory, as far as its turn reaches. Whether something was done.
    async fn directory(&self, s: &Service, dir: InodeId) -> Result<bool> {
        if self.damaged.borrow().get(&dir).is_some_and(|again| *again > s.rt.now()) {
            return Ok(false);
        }
        // Names of things that cannot be read, and how many names cannot.
        let (mut damaged, mut unreadable) = (BTreeSet::new(), 0);
        for batch in 0..BATCHES {
            let limit = (BATCH_NAMES + damaged.len() + unreadable) as u32;
            let read = async |tx: &Transaction| ns::leaving_entries(tx, VOLUME, dir, limit).await;
            let mut page = s.look(read).await?;
            page.found.retain(|e| !damaged.contains(&e.name));
            let before = std::mem::replace(&mut unreadable, page.damaged.len());
            let entries = page.found;
            if entries.is_empty() && unreadable > before {
                continue;
            }
            if entries.is_empty() && damaged.is_empty() && unreadable == 0 {
                return self.finish(s, dir).await.map(|did| did || batch > 0);
            }
            if entries.is_empty() {
                self.pass_over(s, dir, damaged.len() + unreadable);
                return Ok(batch > 0);
            }
            let empty = async |some: &[TreeEntry]| {
                // It may be repeated: what is not there any more is passed over.
                let work = async |tx: &Transaction| {
                    ns::empty(&Context::new(tx, &self.caller, s), dir, some).await
                };
                s.run(false, true, work).await
            };
            let pass_over = |e: &TreeEntry, _: &Error| damaged.extend([e.name.clone()]);
            let done = self.portions.each_sound(&entries, empty, pass_over).await?;
            tell(s, dir, &entries, &done).await;
            if done.iter().any(|d| d.over) {
                return Ok(batch > 0);
            }
            self.slowly(s, entries.len()).await;
            if stops(s) {
                break;
            }
        }
        Ok(true)
    }

    /// What cannot be read stays, and the directory with it; it does not keep the others.
    fn pass_over(&self, s: &Service, dir: InodeId, names: usize) {
        let now = s.rt.now();
        let mut damaged = self.damaged.borrow_mut();
        if damaged.len() >= DAMAGED_MAX {
            damaged.retain(|_, again| *again > now);
        }
        if damaged.insert(dir, now + DAMAGED_PAUSE).is_none() {
            tracing::warn!(%dir, names, "names in a removed tree cannot be removed, for records that cannot be read; run `glowfs admin fsck`");
        }
    }

    async fn finish(&self, s: &Service, dir: InodeId) -> Result<bool> {
        let work = async |tx: &Transaction| {
            let cx = &Context::new(tx, &self.caller, s);
            // One without a tree is left to `fsck`: nothing is done with it.
            Ok(ns::finish_leaving(cx, dir).await? && !tx.is_read_only())
        };
        let did = s.run(false, true, work).await?;
        // Also if it was an earlier attempt, without an answer, that did it.
        s.changed(ClientId(0), &[Change::attributes(dir)]).await;
        if did {
            self.slowly(s, 1).await;
        }
        Ok(did)
    }

    /// Not faster, all directories together, than garbage is collected.
    async fn slowly(&self, s: &Service, names: usize) {
        self.pace.take(&s.rt, names as u64, s.config.tuning.gc_chunks_per_s).await;
    }

    async fn tidy(&self, s: &Service, empty: bool) -> Result<()> {
        if !empty {
            return Ok(());
        }
        let left = async |tx: &Transaction| {
            let cx = Context::new(tx, &self.caller, s);
            Ok(!ns::trees(&cx, None, None, 1).await?.0.is_empty())
        };
        if !s.look(left).await? {
            return Ok(());
        }
        let work =
            async |tx: &Transaction| ns::forget_trees(&Context::new(tx, &self.caller, s)).await;
        s.run(false, true, work).await
    }
}

fn stops(s: &Service) -> bool {
    s.stopping.get() || !s.agent.lease_valid()
}

/// Whoever has something of these names cached has forgotten it when this returns. All of them, also if an earlier attempt without an answer did it.
async fn tell(s: &Service, dir: InodeId, entries: &[TreeEntry], done: &[Emptied]) {
    let mut changes = vec![Change::attributes(dir)];
    changes.extend(entries.iter().map(|e| Change::name(e.inode, dir, &e.name)));
    for d in done {
        changes.extend(d.touched.iter().copied().map(Change::attributes));
        for (inode, name) in &d.kept {
            let name = name.escape_ascii();
            tracing::warn!(%inode, %name, "may not be removed by who removed the tree it was in: it is in /lost+found");
        }
        s.metrics.tree_kept.add(d.kept.len() as u64);
    }
    s.changed(ClientId(0), &changes).await;
    s.metrics.tree_names.add(entries.len() as u64);
}
