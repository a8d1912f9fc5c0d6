//! Updates of chunks: writes and truncates. Both go as WRITE, whose head says which.
//!
//! Guarantees: all attempts of one update under one truncate epoch carry the same client, channel and sequence number; under another epoch it
//! is another update; the pieces of one write are all made under one epoch; a channel is given back only after a definite outcome; bytes in
//! flight stay within the client's bound.

use crate::channel::Held;
use crate::core::Core;
use crate::file::{OpenFile, Permission, Rights};
use crate::retry::{Retry, again_write};
use crate::routes::{self, Site};
use crate::vain;
use glowfs_net::{Bulk, Request};
use glowfs_rt::Buf;
use glowfs_rt::sync::{Permit, join_all};
use glowfs_types::capability::rights;
use glowfs_types::checksum::piece_checksums;
use glowfs_types::layout::{Extent, FILE_BYTES_MAX};
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::copy::CopyChunk;
use glowfs_types::wire::data::{UPDATE_FLUSH, Update, UpdateHead, UpdateResult, update};
use glowfs_types::wire::{encode, method};
use glowfs_types::{
    Capability, ChunkId, ClientId, Durability, Error, HostId, Layout, NodeId, Result, Status,
    TruncateEpoch, VolumeId,
};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// How often a fresh capability is tried after a refusal.
const REFUSALS_MAX: u32 = 3;

/// How often a write or a copy is made again as a whole, because another client has cut the file before all of it was there.
pub const CUTS_MAX: u32 = 64;

/// One update of one chunk.
pub(crate) struct Change {
    pub kind: u8,
    /// Of the data of a signed capability. That of an open file goes with each attempt: a truncate may have put other data in its place, on other chains.
    pub layout: Layout,
    pub volume: VolumeId,
    pub index: u64,
    pub offset: u32,
    pub len: u32,
    pub payload: Option<Buf>,
    pub crcs: Vec<u32>,
    /// Instead of a payload: where the storage nodes find the bytes.
    pub source: Option<Source>,
    /// The truncate epoch that it is for; when the file has another one, it ends with `Stale`.
    pub under: Option<TruncateEpoch>,
}

/// A piece of a chunk of an open file.
pub(crate) struct Source {
    pub file: Rc<OpenFile>,
    pub index: u64,
    pub offset: u32,
    /// How often it was asked for: each time of another replica.
    pub asked: Cell<usize>,
}

/// Writes `buf` at `offset` of a file, one update per chunk, in parallel. `under`: as in [`Change::under`].
pub(crate) async fn write(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    offset: u64,
    buf: Buf,
    under: Option<TruncateEpoch>,
) -> Result<()> {
    let len = buf.len() as u64;
    if len == 0 {
        return Ok(());
    }
    if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
        return Err(Error::new(
            Status::FileTooBig,
            format!(
                "write of {len} bytes at {offset} of inode {}: past the greatest file size",
                file.inode()
            ),
        ));
    }
    let layout = file.layout();
    let mut extents = layout.extents(offset, len);
    // Most writes are within one chunk, and a future is copied as often as it is handed on.
    if let Some(whole) = extents.next().filter(|e| u64::from(e.len) == len) {
        let epoch = write_extent(core, file, layout, whole, buf, under).await?;
        file.wrote(epoch, offset + len);
        return Ok(());
    }
    let mut cuts = 0;
    loop {
        let epoch = under.unwrap_or(file.epoch());
        match write_pieces(core, file, offset, &buf, epoch).await {
            // What it had written of one piece may be cut off, and what it had not of another one would come after that. So all of it comes after.
            Err(e) if e.status == Status::Stale && under.is_none() && cuts < CUTS_MAX => cuts += 1,
            done => return done.map(|()| file.wrote(epoch, offset + len)),
        }
    }
}

/// Writes the pieces of `buf`, each to its chunk, all under one truncate epoch.
async fn write_pieces(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    offset: u64,
    buf: &Buf,
    epoch: TruncateEpoch,
) -> Result<()> {
    let layout = file.layout();
    let piece = |e: Extent| {
        let at = e.at as usize;
        let bytes = buf.slice(at..at + e.len as usize);
        Box::pin(write_extent(core, file, layout, e, bytes, Some(epoch)))
    };
    let pieces: Vec<_> = layout.extents(offset, buf.len() as u64).map(piece).collect();
    join_all(pieces).await.into_iter().try_for_each(|done| done.map(|_| ()))
}

/// Answers the epoch it was made under.
async fn write_extent(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    layout: Layout,
    extent: Extent,
    payload: Buf,
    under: Option<TruncateEpoch>,
) -> Result<TruncateEpoch> {
    let mut crcs = Vec::with_capacity(payload.len() / 4096 + 2);
    piece_checksums(extent.offset, &payload, &mut crcs);
    let change = Change {
        kind: update::WRITE,
        layout,
        volume: file.volume(),
        index: extent.index,
        offset: extent.offset,
        len: extent.len,
        payload: Some(payload),
        crcs,
        source: None,
        under,
    };
    apply(core, &Rights::File(file.clone()), &change).await
}

/// Sends one update until its outcome is known or the bound is reached. Answers the epoch it was made under.
pub(crate) async fn apply(
    core: &Rc<Core>,
    rights: &Rights,
    change: &Change,
) -> Result<TruncateEpoch> {
    let mut held = core.channels.take().await;
    // A retry keeps its identity, whatever becomes of the client meanwhile.
    let client = core.id();
    let mut room = room(core, change).await;
    let mut retry = core.retry(core.write_policy());
    let mut sent_to = None;
    let mut refusals = 0;
    // Whether an attempt may still arrive, or have arrived, somewhere.
    let mut uncertain = false;
    loop {
        let mut site = Site::default();
        let grant = match grant(rights, change).await {
            Ok(grant) => grant,
            // Meta has been asked for as long as it may be: no more of that here.
            Err(e) => return Err(given_up(held, uncertain, e.context(describe(rights, change)))),
        };
        if let Rights::File(file) = rights {
            // Whatever comes of it, something of the file may be in chunks from now on.
            file.wrote(grant.epoch, 0);
        }
        let place = (grant.chunk_data, grant.epoch);
        if sent_to.is_some_and(|before| before != place) {
            // The file was cut meanwhile. Cut to nothing, this is a write to another chunk now. Otherwise an earlier attempt may have been done
            // and then cut off, and would be answered as done. So it needs another identity; late copies carry the old epoch, and are refused.
            drop((grant, room.take()));
            end(held, uncertain);
            (sent_to, uncertain) = (None, false);
            held = core.channels.take().await;
            room = self::room(core, change).await;
            continue;
        }
        sent_to = Some(place);
        let id = (held.channel.0, held.seq.0);
        match attempt(core, change, &grant, (client, id), &retry, &mut site).await {
            Ok(_) => {
                held.settle();
                note_unflushed(rights, &grant, &site);
                return Ok(grant.epoch);
            }
            Err(e) => {
                uncertain |= !is_refusal(e.status);
                if e.status == Status::BadCapability {
                    refusals += 1;
                    refused(rights, change, &grant);
                }
                // Meta's recall waits for attempts, not for pauses, and so do those who want room.
                drop((grant, room.take()));
                let give_up = refusals > REFUSALS_MAX || (rights.is_signed() && refusals > 0);
                let again = again_write(e.status) && !give_up;
                let what = || describe(rights, change);
                let wait = core.wait_or_give_up(&mut retry, &what, &site, e, again);
                if let Err(e) = Box::pin(wait).await {
                    return Err(given_up(held, uncertain, e));
                }
                room = self::room(core, change).await;
            }
        }
    }
}

/// What was acknowledged may be gone with the next loss of power, if it was not flushed with the answer.
fn note_unflushed(rights: &Rights, grant: &Grant, site: &Site) {
    if let (Rights::File(file), Some(at)) = (rights, &site.place)
        && grant.layout.durability != Durability::Disk
    {
        file.note_unflushed((grant.chunk_data, grant.epoch), at);
    }
}

/// A capability was refused: it is not used again.
fn refused(rights: &Rights, change: &Change, grant: &Grant) {
    if let Rights::File(f) = rights {
        f.refused(&grant.capability);
    }
    // It may be that of the source.
    if let Some(s) = &change.source {
        s.file.refuse_any();
    }
}

/// Room for the bytes of an attempt, if it takes any along.
async fn room(core: &Core, change: &Change) -> Option<Permit> {
    match &change.payload {
        Some(payload) => Some(core.room(payload.len()).await),
        None => None,
    }
}

/// A write ends with an error.
fn given_up(held: Held, uncertain: bool, error: Error) -> Error {
    end(held, uncertain);
    error
}

/// An identity of a write ends unanswered. Its channel goes on if nothing of it can be anywhere: a retired one leaves a record on each head that it was used with,
/// and a client that writes on to a full disk would use up all that it may have.
fn end(held: Held, uncertain: bool) {
    if !uncertain {
        held.settle();
    }
}

/// Whether the head has said that nothing of the update was done, or will be.
const fn is_refusal(status: Status) -> bool {
    matches!(
        status,
        Status::NoSpace | Status::Lost | Status::BadCapability | Status::InvalidArgument
    ) || matches!(status, Status::Overloaded | Status::TooLarge)
}

/// The rights of one attempt.
struct Grant {
    capability: Capability,
    chunk_data: glowfs_types::DataId,
    epoch: TruncateEpoch,
    layout: Layout,
    held: Option<Permission>,
}

/// What an attempt goes by. `Stale`: the file was truncated since the place of the update was computed.
async fn grant(rights: &Rights, change: &Change) -> Result<Grant> {
    let grant = match rights {
        Rights::File(file) => {
            let mut p = match file.permission_now() {
                Some(p) => p,
                None => Box::pin(file.permission()).await?,
            };
            if reads_only(&p) {
                // Perhaps it may be written again by now.
                file.refused(&p.capability);
                drop(p);
                p = Box::pin(file.permission()).await?;
                if reads_only(&p) {
                    return Err(Error::new(Status::NotPermitted, "the file is immutable by now"));
                }
            }
            Grant {
                capability: p.capability,
                chunk_data: p.data,
                epoch: p.epoch,
                layout: p.layout,
                held: Some(p),
            }
        }
        Rights::Signed(c) => Grant {
            capability: *c,
            chunk_data: c.data.get().into(),
            epoch: c.epoch.get().into(),
            layout: change.layout,
            held: None,
        },
    };
    match change.under {
        Some(epoch) if epoch != grant.epoch => {
            Err(Error::new(Status::Stale, "the file was truncated meanwhile"))
        }
        _ => Ok(grant),
    }
}

/// Whether what was opened for reading and writing may only be read: it was made immutable since. (Without any right its contents are with the metadata.)
fn reads_only(p: &Permission) -> bool {
    p.capability.rights.get() & (rights::READ | rights::WRITE) == rights::READ
}

impl Rights {
    fn is_signed(&self) -> bool {
        matches!(self, Self::Signed(_))
    }
}

fn describe(rights: &Rights, change: &Change) -> String {
    let data = match rights {
        Rights::File(f) => f.data(),
        Rights::Signed(c) => c.data.get().into(),
    };
    let what = if change.kind == update::WRITE { "write of" } else { "truncate to" };
    format!(
        "{what} {} bytes at {} of chunk {}/{data}/{}",
        change.len, change.offset, change.volume, change.index
    )
}

impl Source {
    /// The message that has the piece written by `update`, read where it is cheapest for the node that writes, and after that where it is elsewhere.
    fn ask(
        &self,
        core: &Rc<Core>,
        info: &RoutingInfo,
        permission: &Permission,
        update: &UpdateHead,
        writer: NodeId,
    ) -> Result<CopyChunk> {
        let chain = routes::chain_of(info, &permission.layout, self.index)?;
        let spread = self.index ^ u64::from(self.offset);
        let mut places = routes::readers(info, chain, HostId(0), spread, |n| core.is_suspect(n))?;
        places.sort_by_key(|p| p.node != writer);
        // Who writes says only that it did not get the piece, so the one who has it may be away.
        let turn = self.asked.replace(self.asked.get() + 1) % places.len().max(1);
        let place = *places.get(turn).ok_or(Status::ChainUnavailable)?;
        Ok(CopyChunk {
            write: CopyChunk::pack(update),
            from: ChunkId { volume: self.file.volume(), data: permission.data, index: self.index },
            from_offset: self.offset,
            target: place.target,
            chain_version: place.version,
            node: place.node,
            capability: permission.capability.as_bytes().to_vec(),
        })
    }
}

async fn attempt(
    core: &Rc<Core>,
    change: &Change,
    grant: &Grant,
    (client, (channel, seq)): (ClientId, (u64, u64)),
    retry: &Retry,
    site: &mut Site,
) -> Result<UpdateResult> {
    let late = || Error::new(Status::Disconnected, "the time for this write is up");
    let time = retry.attempt_time(core.rt.now()).ok_or_else(late)?;
    let info = match core.routing_now() {
        Some(info) => info,
        None => Box::pin(core.routing(time)).await?,
    };
    site.info = Some(info.clone());
    let chain = routes::chain_of(&info, &grant.layout, change.index)?;
    let head = routes::head(&info, chain)?;
    site.place = Some(head);
    let chunk = ChunkId { volume: change.volume, data: grant.chunk_data, index: change.index };
    let flush = if grant.layout.durability == Durability::Disk { UPDATE_FLUSH } else { 0 };
    let update = UpdateHead {
        kind: change.kind,
        flags: flush,
        capability: grant.capability,
        chunk: chunk.into(),
        chain: chain.0.into(),
        chain_version: head.version.0.into(),
        target: head.target.0.into(),
        offset: change.offset.into(),
        len: change.len.into(),
        client: client.0.into(),
        channel: channel.into(),
        seq: seq.into(),
        chunk_bytes: grant.layout.chunk_bytes.into(),
        ..UpdateHead::default()
    };
    // The right to read the source is held until the answer is here.
    let mut held = None;
    let (method, body) = match &change.source {
        None => (method::WRITE, Update::encode(&update, &change.crcs)),
        Some(source) => {
            let permission = Box::pin(source.file.permission()).await?;
            let ask = source.ask(core, &info, &permission, &update, head.node)?;
            held = Some(permission);
            (method::COPY_CHUNK, encode(&ask))
        }
    };
    let time = retry.attempt_time(core.rt.now()).ok_or_else(late)?;
    let most = retry.late_time(core.rt.now(), core.config.late_attempt);
    let outcome = pin!(async {
        let conn = match core.conn_now(&info, head.node) {
            Some(conn) => conn,
            None => Box::pin(core.conn(&info, head.node, time)).await?,
        };
        // Nothing is waited for from here on, so the connection is of the life of this client that the update is of.
        if let Some(permission) = &grant.held {
            permission.check_owner()?;
        }
        let bulk = change.payload.clone().map_or(Bulk::None, |b| Bulk::Send(vec![b]));
        let tenant = core.config.tenant;
        conn.call_patiently(Request { method, body, bulk, tenant, deadline: time }, most).await
    });
    let outcome = core.unless(|now| vain::head_moved(now, &head), outcome);
    let response = outcome.await.inspect_err(|e| core.blame(head.node, e))?;
    drop(held);
    UpdateResult::read_from_prefix(&response.body)
        .map(|(r, _)| r)
        .map_err(|_| Error::new(Status::Internal, "the answer to a write is too short"))
}
