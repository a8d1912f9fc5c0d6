//! LOCK, LOCK_TEST, and what ends with a client: the [`LockTable`] of each file as a record.
//!
//! Locks are records like everything else, so that they outlive a meta service and any service may grant them. An owner that waits says for
//! what, in a record of its own; whoever is refused follows these records from those in its way, and if they lead back to itself,
//! nobody of the circle would ever go on: it gets `Deadlock`.

use crate::access::{self, READ, WRITE};
use crate::context::{Context, err};
use crate::keys;
use crate::locks::{Held, LockTable};
use crate::record::{pack, unpack};
use glowfs_kv::{Key, Transaction, key_after};
use glowfs_types::wire::kv::VALUE_BYTES_MAX;
use glowfs_types::wire::lock::{Lock, LockHolder, LockWish};
use glowfs_types::wire::meta::{Caller, InodeKind};
use glowfs_types::{ClientId, Error, InodeId, Result, Status, VolumeId};
use minicbor::{Decode, Encode};
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

/// Owners that the search for a circle looks at, at most. What is longer is not found: those owners wait.
const CIRCLE_MAX: usize = 256;
/// Records that it reads so that a change of them is a conflict, at most: an engine takes a bounded number of conditions (etcd 128, if it is not told otherwise), and as
/// many owners as there are may stand in the way. Of the others it sees what is there: a circle that closes by two owners at the same moment is not found by them.
const CIRCLE_CONDITIONS: usize = 64;

/// What an owner waits for.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub(crate) struct Waiting {
    #[n(0)]
    pub(crate) inode: InodeId,
    #[n(1)]
    pub(crate) exclusive: bool,
    #[n(2)]
    pub(crate) start: u64,
    #[n(3)]
    pub(crate) end: u64,
}

/// What LOCK did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Locked {
    /// What stands in the way, if it was not granted.
    pub holder: Option<LockHolder>,
    /// Others may get now what they were refused before.
    pub weaker: bool,
    /// It was not granted, and waiting for it would never end.
    pub deadlock: bool,
}

/// Locks, gives back, or gives up waiting.
pub async fn lock(cx: &Context<'_>, q: &Lock) -> Result<Locked> {
    check(cx, q).await?;
    let mut table = table(cx.tx, cx.volume(), q.inode).await?;
    if let Some(done) = cx.done_before(q).await? {
        // What was granted may be gone since: given back, or taken away because the client was given up and asks again in its next life. It is refused then,
        // not granted anew, or a late copy would get a lock that nobody gives back. Who still wants it asks with a new request.
        let granted = done.inode == q.inode && table.holds(q);
        // What the first copy gave back is not known, nor whether those who wait were told: they look.
        let weaker = q.wish != LockWish::GiveUp;
        let holder = (!granted).then(LockHolder::default);
        return Ok(Locked { holder, weaker, ..Locked::default() });
    }
    // A refusal is remembered, too: a late copy of the request must not get the lock when nobody waits for it any more.
    if q.wish == LockWish::GiveUp {
        cx.tx.clear(keys::lock_wait(cx.volume(), cx.caller.client, q.owner))?;
        cx.remember(q, q.inode)?;
        return Ok(Locked::default());
    }
    // As on Linux, a flock of another kind is a new one: the old one goes first, or two who both want more would wait for ever.
    let flock_again = q.whole && table.has_locks(cx.caller.client);
    let given = flock_again && table.apply(&Lock { wish: LockWish::Release, ..q.clone() })?;
    let blocker = table.first_conflict(q).map(Held::holder);
    if blocker.is_some() {
        let waits = q.waits && !q.whole;
        let deadlock = waits && closes_circle(cx, q, &table).await?;
        if waits && !deadlock {
            wait(cx, q)?;
        }
        if given {
            store(cx, q.inode, &table)?;
        }
        if deadlock {
            // A copy hears the same: no record says that this owner waits, so nobody would find the circle again.
            crate::request::refuse(cx, q, Status::Deadlock).await?;
        } else {
            cx.remember(q, InodeId(0))?;
        }
        return Ok(Locked { holder: blocker, weaker: given, deadlock });
    }
    cx.tx.clear(keys::lock_wait(cx.volume(), cx.caller.client, q.owner))?;
    let weaker = table.apply(q)?;
    store(cx, q.inode, &table)?;
    cx.remember(q, q.inode)?;
    Ok(Locked { weaker: weaker || given, ..Locked::default() })
}

/// What stands in the way of a lock.
pub async fn lock_test(cx: &Context<'_>, q: &Lock) -> Result<Option<LockHolder>> {
    check(cx, q).await?;
    let table = table(cx.tx, cx.volume(), q.inode).await?;
    Ok(table.first_conflict(q).map(Held::holder))
}

/// Only who may open the file, or has it open, may hinder others.
async fn check(cx: &Context<'_>, q: &Lock) -> Result<()> {
    if q.start > q.end {
        return err(Status::InvalidArgument);
    }
    if matches!(q.wish, LockWish::Release | LockWish::GiveUp) {
        return Ok(());
    }
    let inode = cx.inode(q.inode).await?;
    if inode.kind != InodeKind::File {
        return err(Status::InvalidArgument);
    }
    let may = |want| access::check_named(cx.caller, &inode, want).is_ok();
    if may(READ) || may(WRITE) || access::owns(cx.caller, &inode) {
        return Ok(());
    }
    let has = crate::gc::clients_of(cx.tx, cx.volume(), q.inode).await?;
    if has.contains(&cx.caller.client) { Ok(()) } else { err(Status::AccessDenied) }
}

pub(crate) async fn table(tx: &Transaction, volume: VolumeId, inode: InodeId) -> Result<LockTable> {
    match tx.get(&keys::locks(volume, inode)).await? {
        Some(v) => unpack("locks", &v),
        None => Ok(LockTable::default()),
    }
}

pub(crate) fn store(cx: &Context<'_>, inode: InodeId, table: &LockTable) -> Result<()> {
    let (v, client) = (cx.volume(), cx.caller.client);
    let key = keys::locks(v, inode);
    if table.is_empty() {
        cx.tx.clear(key)?
    } else {
        let record = pack(table);
        if record.len() > VALUE_BYTES_MAX {
            let e = format!("the locks of a file take at most {VALUE_BYTES_MAX} bytes");
            return Err(Error::new(Status::NoLocks, e));
        }
        cx.tx.put(key, record)?
    }
    let key = keys::client_lock(v, client, inode);
    if table.has(client) { cx.tx.put(key, Vec::new()) } else { cx.tx.clear(key) }
}

fn wait(cx: &Context<'_>, q: &Lock) -> Result<()> {
    let exclusive = q.wish == LockWish::Exclusive;
    let record = Waiting { inode: q.inode, exclusive, start: q.start, end: q.end };
    cx.tx.put(keys::lock_wait(cx.volume(), cx.caller.client, q.owner), pack(&record))
}

/// Whether those in the way of `q` wait, one for another, for its owner.
async fn closes_circle(cx: &Context<'_>, q: &Lock, table_of_q: &LockTable) -> Result<bool> {
    let me = (cx.caller.client, q.owner);
    let next = |t: &LockTable, q: &Lock| -> Vec<_> {
        t.conflicts(q).map(|h| (h.client, h.owner)).collect()
    };
    let mut open = next(table_of_q, q);
    let mut tables = BTreeMap::<InodeId, LockTable>::new();
    let (mut seen, mut read) = (BTreeSet::new(), 0);
    let mut get = async |key: Vec<u8>| {
        read += 1;
        if read > CIRCLE_CONDITIONS {
            cx.tx.get_snapshot(&key).await
        } else {
            cx.tx.get(&key).await
        }
    };
    while let Some(owner) = open.pop() {
        if owner == me {
            return Ok(true);
        }
        if !seen.insert(owner) || seen.len() > CIRCLE_MAX {
            continue;
        }
        let key = keys::lock_wait(cx.volume(), owner.0, owner.1);
        let Some(waiting) = get(key).await? else { continue };
        let waiting: Waiting = unpack("waiting owner", &waiting)?;
        let wish = if waiting.exclusive { LockWish::Exclusive } else { LockWish::Shared };
        let theirs = Lock {
            caller: Caller { client: owner.0, ..Caller::default() },
            inode: waiting.inode,
            owner: owner.1,
            wish,
            start: waiting.start,
            end: waiting.end,
            ..Lock::default()
        };
        // Many may wait for locks of one file: its table is read and unpacked once.
        if let Entry::Vacant(place) = tables.entry(waiting.inode) {
            let there = get(keys::locks(cx.volume(), waiting.inode)).await?;
            place.insert(match there {
                Some(there) => unpack("locks", &there)?,
                None => LockTable::default(),
            });
        }
        open.extend(tables.get(&waiting.inode).into_iter().flat_map(|t| next(t, &theirs)));
    }
    Ok(false)
}

/// Clients that have locks or wait for some, in order, after one, at most `limit`.
pub async fn clients_with_locks(
    tx: &Transaction,
    volume: VolumeId,
    after: Option<ClientId>,
    limit: usize,
) -> Result<Vec<ClientId>> {
    let mut all = BTreeSet::new();
    let behind =
        |client| [keys::client_locks(volume, client).1, keys::lock_waits(volume, client).1];
    for (kind, (mut begin, end)) in keys::all_lockers(volume).into_iter().enumerate() {
        if let Some(client) = after {
            begin = behind(client)[kind].clone();
        }
        let mut found = 0;
        while found < limit {
            let page = tx.get_range_snapshot(&begin, &end, 1, false).await?;
            let Some((key, _)) = page.entries.first() else { break };
            match keys::client_of_lock(key) {
                Some(client) => {
                    all.insert(client);
                    found += 1;
                    begin = behind(client)[kind].clone();
                }
                None => begin = key_after(key),
            }
        }
    }
    Ok(all.into_iter().take(limit).collect())
}

/// The file is erased: nobody has locks of it any more, nor the right to append to it.
pub(crate) async fn end_all(cx: &Context<'_>, inode: InodeId) -> Result<()> {
    let v = cx.volume();
    for client in table(cx.tx, v, inode).await?.clients() {
        cx.tx.clear(keys::client_lock(v, client, inode))?;
    }
    cx.tx.clear(keys::locks(v, inode))
}

/// What [`end_locks`] did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LocksEnded {
    /// The files of which locks were taken away.
    pub files: Vec<InodeId>,
    /// Where the next ones begin, if there are more.
    pub next: Option<Key>,
}

/// Takes the locks of a dead client away, and its rights to append, those of at most `limit` files from `from` on. Of files in `written` it keeps them: the client has
/// them open for writing still, so how long they are is not known yet, and whoever got the right now would append over what the client has appended.
pub async fn end_locks(
    cx: &Context<'_>,
    client: ClientId,
    written: &BTreeSet<InodeId>,
    from: Option<&Key>,
    limit: u32,
) -> Result<LocksEnded> {
    let v = cx.volume();
    let (begin, end) = keys::lock_waits(v, client);
    cx.tx.clear_range(&begin, &end)?;
    let (begin, end) = keys::client_locks(v, client);
    let page = cx.tx.get_range(from.unwrap_or(&begin), &end, limit, false).await?;
    let next = page.entries.last().filter(|_| page.more).map(|(key, _)| key_after(key));
    let mut files = Vec::new();
    for (key, _) in page.entries {
        let of = keys::client_lock_of(&key);
        if of.is_some_and(|(_, inode)| written.contains(&inode)) {
            continue;
        }
        cx.tx.clear(key)?;
        let Some((_, inode)) = of else { continue };
        let mut locks = table(cx.tx, v, inode).await?;
        locks.drop_client(client);
        let key = keys::locks(v, inode);
        if locks.is_empty() {
            cx.tx.clear(key)?
        } else {
            cx.tx.put(key, pack(&locks))?
        }
        files.push(inode);
    }
    Ok(LocksEnded { files, next })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_kv::{Memory, run_transaction};

    /// One that only waits was overlooked, so its record stayed for ever when it died.
    #[test]
    fn who_holds_and_who_waits_is_listed_in_pages() {
        glowfs_rt::real::run(|rt| async move {
            let (engine, v) = (Memory::engine(), VolumeId(1));
            let holders = [3, 5, 9].map(ClientId);
            let waiting = [2, 5, 7].map(ClientId);
            run_transaction(&rt, &engine, async |tx| {
                for c in holders {
                    tx.put(keys::client_lock(v, c, InodeId(8)), Vec::new())?;
                    tx.put(keys::client_lock(v, c, InodeId(9)), Vec::new())?;
                }
                for c in waiting {
                    tx.put(keys::lock_wait(v, c, 1), Vec::new())?;
                }
                tx.put(keys::lock_wait(VolumeId(2), ClientId(4), 1), Vec::new())
            })
            .await
            .expect("put");
            for limit in 1..8 {
                let (mut all, mut after) = (Vec::new(), None);
                loop {
                    let work =
                        async |tx: &Transaction| clients_with_locks(tx, v, after, limit).await;
                    let page = run_transaction(&rt, &engine, work).await.expect("listed");
                    all.extend(page.iter().map(|c| c.0));
                    after = page.last().copied();
                    if page.len() < limit {
                        break;
                    }
                }
                assert_eq!(all, [2, 3, 5, 7, 9], "pages of {limit}");
            }
        });
    }
}
