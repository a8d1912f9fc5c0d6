//! What background work needs: the garbage queue, sessions of clients, old request records.

use crate::context::Context;
use crate::keys;
use crate::open::end;
use crate::record::{GarbageRecord, Inode, Session, unpack};
use crate::request::first_kept;
use glowfs_kv::{Key, Transaction, key_after};
use glowfs_types::wire::meta::{InodeKind, Time};
use glowfs_types::{ClientId, DataId, InodeId, Layout, Result, SessionId, TruncateEpoch, VolumeId};

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
pub async fn garbage(tx: &Transaction, volume: VolumeId, limit: u32) -> Result<Vec<Garbage>> {
    let (begin, end) = keys::all_garbage(volume);
    let page = tx.get_range_snapshot(&begin, &end, limit, false).await?;
    let mut out = Vec::with_capacity(page.entries.len());
    for (key, value) in page.entries {
        let r: GarbageRecord = unpack("garbage record", &value)?;
        out.push(Garbage { key, data: r.data, layout: r.layout, len: r.len });
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

/// The data ids of a page of inodes, and where the next page begins, if there is one.
pub async fn data_of_inodes(
    tx: &Transaction,
    volume: VolumeId,
    from: Option<&Key>,
    limit: u32,
) -> Result<(Vec<DataId>, Option<Key>)> {
    let data = |value: &[u8]| unpack::<Inode>("inode", value).map(|i| i.data);
    data_of(tx, keys::inodes(volume), from, limit, data).await
}

/// The same of the garbage queue.
pub async fn data_of_garbage(
    tx: &Transaction,
    volume: VolumeId,
    from: Option<&Key>,
    limit: u32,
) -> Result<(Vec<DataId>, Option<Key>)> {
    let data = |value: &[u8]| unpack::<GarbageRecord>("garbage record", value).map(|g| g.data);
    data_of(tx, keys::all_garbage(volume), from, limit, data).await
}

async fn data_of(
    tx: &Transaction,
    (begin, end): (Key, Key),
    from: Option<&Key>,
    limit: u32,
    data: impl Fn(&[u8]) -> Result<DataId>,
) -> Result<(Vec<DataId>, Option<Key>)> {
    let page = tx.get_range_snapshot(from.unwrap_or(&begin), &end, limit, false).await?;
    let next = page.entries.last().filter(|_| page.more).map(|(key, _)| key_after(key));
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
            let s: Session = unpack("session", value)?;
            if s.write || !writers_only {
                out.insert(s.client);
            }
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
pub async fn sessions_of(
    tx: &Transaction,
    volume: VolumeId,
    client: ClientId,
    limit: u32,
) -> Result<Vec<SessionEntry>> {
    let (begin, end) = keys::client_sessions(volume, client);
    let page = tx.get_range_snapshot(&begin, &end, limit, false).await?;
    let mut out = Vec::new();
    for (key, value) in page.entries {
        let Some((_, session)) = keys::client_session_of(&key) else { continue };
        let inode = <[u8; 8]>::try_from(value.as_slice()).map_or(0, u64::from_be_bytes);
        let record = tx.get_snapshot(&keys::session(volume, InodeId(inode), session)).await?;
        let entry = match record {
            Some(v) => {
                let s: Session = unpack("session", &v)?;
                SessionEntry { inode: InodeId(inode), session, write: s.write, opened: s.opened }
            }
            None => SessionEntry {
                inode: InodeId(inode),
                session,
                write: false,
                opened: Time::default(),
            },
        };
        out.push(entry);
    }
    Ok(out)
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
        cx.put_inode(id, &mut inode)?;
        cx.count(id, &inode, 0, grown)?;
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
    let counts = inode.cut.is_none() && (inode.nlink > 0 || inode.trashed.is_some());
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
