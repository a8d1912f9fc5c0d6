//! What background work needs: the garbage queue, sessions of clients, old request records.

use crate::context::Context;
use crate::keys;
use crate::open::end;
use crate::record::{GarbageRecord, Inode, Session, unpack};
use crate::request::first_kept;
use glowfs_kv::{Key, Transaction, key_after};
use glowfs_types::wire::meta::{InodeKind, Time};
use glowfs_types::{
    ClientId, DataId, InodeId, Layout, Result, SessionId, Status, TruncateEpoch, VolumeId,
};

/// Data that nobody can reach any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Garbage {
    key: Key,
    /// Its data id.
    pub data: DataId,
    /// Where its chunks are.
    pub layout: Layout,
    /// How long it was, as far as known.
    pub len: u64,
}

/// The oldest entries of the queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GarbagePage {
    /// What can be collected.
    pub found: Vec<Garbage>,
    /// Where those stand that cannot be read. They stay: what they are about is not known.
    pub damaged: Vec<Key>,
}

/// At most `limit` of them.
pub async fn garbage(tx: &Transaction, volume: VolumeId, limit: u32) -> Result<GarbagePage> {
    let (begin, end) = keys::all_garbage(volume);
    let page = tx.get_range_snapshot(&begin, &end, limit, false).await?;
    let mut out = GarbagePage::default();
    for (key, value) in page.entries {
        match unpack::<GarbageRecord>("garbage record", &value) {
            Ok(r) => out.found.push(Garbage { key, data: r.data, layout: r.layout, len: r.len }),
            Err(e) if e.status == Status::Corrupt => out.damaged.push(key),
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}

/// The place of the newest entry of the queue, if there is one.
pub async fn newest_garbage(tx: &Transaction, volume: VolumeId) -> Result<Option<Key>> {
    let (begin, end) = keys::all_garbage(volume);
    let page = tx.get_range_snapshot(&begin, &end, 1, true).await?;
    Ok(page.entries.into_iter().next().map(|(key, _)| key))
}

impl Garbage {
    /// Its place in the queue.
    pub fn place(&self) -> &Key {
        &self.key
    }
    /// Whether it stood in the queue when `place` was its newest entry.
    pub fn was_there(&self, place: &Key) -> bool {
        self.key <= *place
    }
}

/// The chunks of an entry are gone.
pub fn drop_garbage(tx: &Transaction, garbage: &Garbage) -> Result<()> {
    tx.clear(garbage.key.clone())
}

/// What the search for chunks without an owner reads of the inodes. One that cannot be read is an error: it may own some.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InodesPage {
    /// The data ids.
    pub data: Vec<DataId>,
    /// Those with an unfinished truncate.
    pub cuts: Vec<InodeId>,
    /// Where the next page begins, if there is one.
    pub next: Option<Key>,
}

/// A page of them.
pub async fn data_of_inodes(
    tx: &Transaction,
    volume: VolumeId,
    from: Option<&Key>,
    limit: u32,
) -> Result<InodesPage> {
    let (begin, end) = keys::inodes(volume);
    let page = tx.get_range_snapshot(from.unwrap_or(&begin), &end, limit, false).await?;
    let next = page.entries.last().filter(|_| page.more).map(|(key, _)| key_after(key));
    let mut out = InodesPage { next, ..InodesPage::default() };
    for (key, value) in &page.entries {
        let inode: Inode = unpack("inode", value)?;
        out.data.push(inode.data);
        out.cuts.extend(keys::inode_of(key).filter(|_| inode.cut.is_some()));
    }
    Ok(out)
}

/// The data ids of a page of the garbage queue, and where the next page begins, if there is one. Here, too, what cannot be read is an error.
pub async fn data_of_garbage(
    tx: &Transaction,
    volume: VolumeId,
    from: Option<&Key>,
    limit: u32,
) -> Result<(Vec<DataId>, Option<Key>)> {
    let (begin, end) = keys::all_garbage(volume);
    let page = tx.get_range_snapshot(from.unwrap_or(&begin), &end, limit, false).await?;
    let next = page.entries.last().filter(|_| page.more).map(|(key, _)| key_after(key));
    let data = |value: &[u8]| unpack::<GarbageRecord>("garbage record", value).map(|g| g.data);
    let data = page.entries.iter().map(|(_, value)| data(value)).collect::<Result<_>>()?;
    Ok((data, next))
}

/// Clients that have sessions, after one, at most `limit`.
pub async fn clients_with_sessions(
    tx: &Transaction,
    volume: VolumeId,
    after: Option<ClientId>,
    limit: usize,
) -> Result<Vec<ClientId>> {
    let (mut begin, end) = keys::all_client_sessions(volume);
    if let Some(client) = after {
        begin = keys::client_sessions(volume, client).1;
    }
    let mut out = Vec::new();
    while out.len() < limit {
        let page = tx.get_range_snapshot(&begin, &end, 1, false).await?;
        let Some((key, _)) = page.entries.first() else { break };
        match keys::client_session_of(key) {
            Some((client, _)) => {
                out.push(client);
                begin = keys::client_sessions(volume, client).1;
            }
            None => begin = key_after(key),
        }
    }
    Ok(out)
}

/// Stands for a client that has a session whose record cannot be read. It has no connection: who has to hear from all writers waits until what they have
/// has ended by itself.
const UNKNOWN: ClientId = ClientId(u128::MAX);

/// The clients that have a file open for writing.
pub async fn writers(tx: &Transaction, volume: VolumeId, inode: InodeId) -> Result<Vec<ClientId>> {
    sessions_clients(tx, volume, inode, true).await
}

/// The clients that have a session of a file.
pub(crate) async fn clients_of(
    tx: &Transaction,
    volume: VolumeId,
    inode: InodeId,
) -> Result<Vec<ClientId>> {
    sessions_clients(tx, volume, inode, false).await
}

async fn sessions_clients(
    tx: &Transaction,
    volume: VolumeId,
    inode: InodeId,
    writers_only: bool,
) -> Result<Vec<ClientId>> {
    let (mut begin, end) = keys::sessions(volume, inode);
    let mut out = std::collections::BTreeSet::new();
    loop {
        let page = tx.get_range_snapshot(&begin, &end, 256, false).await?;
        for (_, value) in &page.entries {
            match unpack::<Session>("session", value) {
                Ok(s) if s.write || !writers_only => out.insert(s.client),
                Ok(_) => false,
                Err(e) if e.status == Status::Corrupt => out.insert(UNKNOWN),
                Err(e) => return Err(e),
            };
        }
        match page.entries.last() {
            Some((last, _)) if page.more => begin = key_after(last),
            _ => return Ok(out.into_iter().collect()),
        }
    }
}

/// A session as background work sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionEntry {
    /// The file.
    pub inode: InodeId,
    /// The session.
    pub session: SessionId,
    /// Whether it may have written.
    pub write: bool,
    /// When it was opened.
    pub opened: Time,
}

/// Some sessions of a client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionsPage {
    /// Those that can be ended.
    pub found: Vec<SessionEntry>,
    /// Those whose records cannot be read. They stay: whether it may have written is not known.
    pub damaged: Vec<SessionId>,
    /// Where the next page begins, if there may be one.
    pub next: Option<Key>,
}

/// Those from `from` on, at most `limit`.
pub async fn sessions_of(
    tx: &Transaction,
    volume: VolumeId,
    client: ClientId,
    from: Option<&Key>,
    limit: u32,
) -> Result<SessionsPage> {
    let (begin, end) = keys::client_sessions(volume, client);
    let page = tx.get_range_snapshot(from.unwrap_or(&begin), &end, limit, false).await?;
    let next = page.entries.last().filter(|_| page.more).map(|(key, _)| key_after(key));
    let mut out = SessionsPage { next, ..SessionsPage::default() };
    for (key, value) in page.entries {
        let Some((_, session)) = keys::client_session_of(&key) else { continue };
        let inode = <[u8; 8]>::try_from(value.as_slice()).map_or(0, u64::from_be_bytes);
        let inode = InodeId(inode);
        let record = tx.get_snapshot(&keys::session(volume, inode, session)).await?;
        match record.map(|v| unpack::<Session>("session", &v)).transpose() {
            Ok(record) => {
                let (write, opened) = record.map(|s| (s.write, s.opened)).unwrap_or_default();
                out.found.push(SessionEntry { inode, session, write, opened });
            }
            Err(e) if e.status == Status::Corrupt => out.damaged.push(session),
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}

/// The files that a client may have written to, by its sessions from `from` on, at most `limit`, and where the next ones begin, if there may be more. A session that
/// cannot be read counts as one for writing.
pub async fn written_by(
    tx: &Transaction,
    volume: VolumeId,
    client: ClientId,
    from: Option<&Key>,
    limit: u32,
) -> Result<(Vec<InodeId>, Option<Key>)> {
    let (begin, end) = keys::client_sessions(volume, client);
    let page = tx.get_range_snapshot(from.unwrap_or(&begin), &end, limit, false).await?;
    let next = page.entries.last().filter(|_| page.more).map(|(key, _)| key_after(key));
    let of_file = |(key, value): &(Key, Vec<u8>)| {
        let (_, session) = keys::client_session_of(key)?;
        let inode = InodeId(u64::from_be_bytes(value.as_slice().try_into().ok()?));
        Some((inode, keys::session(volume, inode, session)))
    };
    let (files, sessions): (Vec<_>, Vec<_>) = page.entries.iter().filter_map(of_file).unzip();
    let mut written = Vec::new();
    for (inode, record) in files.into_iter().zip(tx.get_all_snapshot(&sessions).await?) {
        match record.map(|v| unpack::<Session>("session", &v)).transpose() {
            Ok(record) => written.extend(record.filter(|s| s.write).map(|_| inode)),
            Err(e) if e.status == Status::Corrupt => written.push(inode),
            Err(e) => return Err(e),
        }
    }
    Ok((written, next))
}

/// Ends a dead client's session. `settled` is the length that the chains have and the epoch it was asked under: the file
/// becomes at least that long, with `allocated` bytes of blocks. What the client wrote inside of the file and did not tell of nobody finds out, so its
/// contents count as others than they were; their time stays, for it may have written nothing.
pub async fn end_session(
    cx: &Context<'_>,
    client: ClientId,
    id: InodeId,
    session: SessionId,
    settled: Option<(u64, TruncateEpoch)>,
    allocated: Option<u64>,
) -> Result<()> {
    let v = cx.volume();
    let Some(mut inode) = cx.find_inode(id).await? else {
        cx.tx.clear(keys::session(v, id, session))?;
        return cx.tx.clear(keys::client_session(v, client, session));
    };
    // What was written to contents beside the inode is counted with each write.
    let chunks = inode.kind == InodeKind::File && inode.stored && !inode.is_inline();
    if chunks && cx.find_session(id, session).await?.is_some_and(|s| s.write) {
        let grown = settle(cx, &mut inode, settled, allocated);
        inode.contents_change += 1;
        inode.only_writer = None;
        cx.put_inode(id, &mut inode)?;
        cx.count(&inode, 0, grown)?;
    }
    end(cx, id, session, client, &mut inode, false).await
}

/// Makes a file as long as its chains have it, if that still counts. Returns by how much it grew.
fn settle(
    cx: &Context<'_>,
    inode: &mut Inode,
    settled: Option<(u64, TruncateEpoch)>,
    allocated: Option<u64>,
) -> i64 {
    // Also of a removed file: others may read it still.
    let counts = inode.cut.is_none();
    let longer = settled.filter(|(len, epoch)| *epoch == inode.epoch && *len > inode.len);
    let Some((len, _)) = longer.filter(|_| counts) else { return 0 };
    let grown = i64::try_from(len - inode.len).unwrap_or(i64::MAX);
    inode.len = len;
    if let Some(bytes) = allocated {
        inode.set_allocated(bytes);
    }
    inode.mtime = cx.now;
    inode.ctime = cx.now;
    grown
}

/// Forgets up to `limit` requests that nobody retries any more, behind `after`. Returns how far it came, if there are more: what stood there is passed over by
/// the next step, also where the engine has not let go of it yet.
pub async fn sweep_requests(
    tx: &Transaction,
    volume: VolumeId,
    (now_secs, keep_secs): (i64, u64),
    after: Option<&Key>,
    limit: u32,
) -> Result<Option<Key>> {
    let (mut begin, end) = keys::requests_before(volume, first_kept(now_secs, keep_secs));
    if let Some(after) = after {
        begin.clone_from(after);
    }
    let page = tx.get_range_snapshot(&begin, &end, limit, false).await?;
    let Some((last, _)) = page.entries.last() else { return Ok(None) };
    let next = key_after(last);
    tx.clear_range(&begin, &next)?;
    Ok(page.more.then_some(next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsck::tests::world::layout;
    use crate::record::pack;
    use glowfs_kv::{Engine, Memory, run_transaction};
    use glowfs_rt::{Rt, real};
    use std::rc::Rc;

    const V: VolumeId = VolumeId(1);

    async fn put(rt: &Rt, engine: &Rc<dyn Engine>, records: Vec<(Key, Vec<u8>)>) {
        let work = async |tx: &Transaction| {
            records.iter().try_for_each(|(key, value)| tx.put(key.clone(), value.clone()))
        };
        run_transaction(rt, engine, work).await.expect("put");
    }

    /// One record that could not be read kept all chunks of all removed files, for good.
    #[test]
    fn what_is_damaged_keeps_no_other_garbage() {
        real::run(|rt| async move {
            let engine = Memory::engine();
            let bad = |n: u64| n == 0 || n == 4;
            let record = |n| {
                let (layout, len, from) = (layout(0), 1, 0);
                pack(&GarbageRecord { data: DataId(n), layout, len, from })
            };
            let key = |n: u64| [keys::garbage(V), vec![0, 0], n.to_be_bytes().to_vec()].concat();
            let records =
                (0..9).map(|n| (key(n), if bad(n) { b"damaged".to_vec() } else { record(n) }));
            put(&rt, &engine, records.collect()).await;
            let look = async |tx: &Transaction| garbage(tx, V, 100).await;
            let page = run_transaction(&rt, &engine, look).await.expect("a page");
            let found: Vec<u64> = page.found.iter().map(|g| g.data.0).collect();
            assert_eq!(found, (0..9).filter(|n| !bad(*n)).collect::<Vec<_>>());
            assert_eq!(page.damaged, [key(0), key(4)]);
            // What tells whose chunks are whose must not guess.
            let owners = async |tx: &Transaction| data_of_garbage(tx, V, None, 100).await;
            let e = run_transaction(&rt, &engine, owners).await.expect_err("unknown");
            assert_eq!(e.status, Status::Corrupt);
        });
    }

    /// One session that could not be read kept all others of its client, and all truncates of its file.
    #[test]
    fn what_is_damaged_keeps_no_other_session() {
        real::run(|rt| async move {
            let (engine, client) = (Memory::engine(), ClientId(5));
            let (mut records, file) = (Vec::new(), InodeId(7));
            for n in 1..=4 {
                let id = SessionId(n);
                let (write, opened) = (n != 4, Time::default());
                let session = Session { client, read: true, write, opened, fence: 0 };
                let value = if n == 2 { b"damaged".to_vec() } else { pack(&session) };
                records.push((keys::session(V, file, id), value));
                let index = keys::client_session(V, client, id);
                records.push((index, file.0.to_be_bytes().to_vec()));
            }
            put(&rt, &engine, records).await;
            let look = async |tx: &Transaction| sessions_of(tx, V, client, None, 100).await;
            let page = run_transaction(&rt, &engine, look).await.expect("a page");
            let found: Vec<_> = page.found.iter().map(|s| (s.session.0, s.write)).collect();
            assert_eq!(found, [(1, true), (3, true), (4, false)]);
            assert_eq!(page.damaged, [SessionId(2)]);
            // What it may have written to is not known to be as long as meta has it.
            let written = async |tx: &Transaction| {
                let (mut found, next) = written_by(tx, V, client, None, 2).await?;
                found.extend(written_by(tx, V, client, next.as_ref(), 9).await?.0);
                Ok(found)
            };
            let found = run_transaction(&rt, &engine, written).await.expect("files");
            assert_eq!(found, [file; 3], "by three of four sessions");
            // Whoever that one is may write: he is waited for.
            let look = async |tx: &Transaction| writers(tx, V, file).await;
            let all = run_transaction(&rt, &engine, look).await.expect("writers");
            assert_eq!(all, [client, UNKNOWN]);
        });
    }
}
