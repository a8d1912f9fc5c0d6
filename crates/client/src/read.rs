//! Reads: cut by the layout, grouped by node, in parallel, straight into pieces of the caller's buffer.
//!
//! Guarantees: what is returned as read was verified (by the service that read it; over tcp also here); every piece that fails
//! is tried at other replicas until the bound. A buffer of an unanswered attempt is never used again.

mod asked;
mod found;
mod hedged;

pub use found::Found;

use crate::ask::{self, Ask};
use crate::core::Core;
use crate::few::Few;
use crate::file::{OpenFile, Permission};
use crate::plan;
use crate::retry::{Retry, again_read};
use crate::routes::{self, Place, Site};
use crate::vain;
use asked::Asked;
use found::assemble;
use glowfs_net::{Bulk, Request};
use glowfs_rt::sync::join_all;
use glowfs_rt::{BufMut, Duration};
use glowfs_types::checksum::crc32c;
use glowfs_types::layout::{Extent, FILE_BYTES_MAX};
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::data::{Read, ReadOp, ReadResult};
use glowfs_types::wire::method;
use glowfs_types::{ChunkId, Error, NodeId, Result, Status};
use hedged::hedged;
use std::rc::Rc;
use zerocopy::FromBytes;

/// How often a fresh capability is tried after a refusal.
const REFUSALS_MAX: u32 = 3;

/// What became of one extent: how many of its bytes exist.
type Piece = Result<u32>;

/// What became of one request.
struct Outcome {
    /// One for each extent; or why there was no answer.
    pieces: Result<Few<Piece>>,
    /// The buffer, if it came back.
    buf: Option<BufMut>,
}

/// Reads into all of `buf`.
pub(crate) async fn read(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    offset: u64,
    mut buf: BufMut,
) -> (Result<Found>, BufMut) {
    let len = (buf.len() as u64).min(FILE_BYTES_MAX.saturating_sub(offset));
    if len < buf.len() as u64 {
        // Past the end of every file there is nothing.
        buf[len as usize..].fill(0);
    }
    if len == 0 {
        return (Ok(Found::default()), buf);
    }
    let layout = file.layout();
    let mut extents = layout.extents(offset, len);
    if let (Some(only), None) = (extents.next(), extents.next())
        && only.len as usize == buf.len()
    {
        // What most reads are: one piece of one chunk.
        let (result, buf) =
            read_piece(core, file, only, buf, (Asked::default(), Ask::InTurn)).await;
        return (result.map(|n| Found::first(n as usize)), buf);
    }
    Box::pin(read_extents(core, file, layout.extents(offset, len).collect(), buf)).await
}

async fn read_extents(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    extents: Vec<Extent>,
    mut buf: BufMut,
) -> (Result<Found>, BufMut) {
    let nodes = match first_nodes(core, file, &extents).await {
        Ok(nodes) => nodes,
        Err(e) => return (Err(e), buf),
    };
    let total = buf.len();
    let groups = plan::group(&extents, &nodes);
    let mut parts = Vec::with_capacity(groups.len());
    for g in groups {
        let some = extents[g].to_vec();
        let bytes: usize = some.iter().map(|e| e.len as usize).sum();
        parts.push(read_group(core, file, some, buf.split_to(bytes)));
    }
    let done = match <[_; 1]>::try_from(parts) {
        Ok([only]) => vec![only.await],
        Err(parts) => join_all(parts).await,
    };
    assemble(core, total, done, buf)
}

/// The node each extent would be asked of first.
async fn first_nodes(core: &Rc<Core>, file: &OpenFile, extents: &[Extent]) -> Result<Vec<u64>> {
    let mut retry = core.retry(core.read_policy());
    loop {
        let info = core.routing(core.config.data_total).await?;
        let nodes: Result<Vec<u64>> = extents
            .iter()
            .map(|e| Ok(order(core, &info, file, e)?.first().map_or(0, |p| p.node.0)))
            .collect();
        match nodes {
            Ok(nodes) => return Ok(nodes),
            Err(e) => {
                let again = again_read(e.status);
                let site = Site { info: Some(info), ..Site::default() };
                let what = || format!("read of inode {}", file.inode());
                core.wait_or_give_up(&mut retry, &what, &site, e, again).await?;
            }
        }
    }
}

/// The replicas of an extent in the order to ask them.
fn order(core: &Core, info: &RoutingInfo, file: &OpenFile, extent: &Extent) -> Result<Vec<Place>> {
    let chain = routes::chain_of(info, &file.layout(), extent.index)?;
    let spread = file.data().0 ^ extent.index.rotate_left(32);
    routes::readers(info, chain, core.config.host, spread, |n| core.is_suspect(n))
}

/// Reads neighbours in one request; what fails of it is read piece by piece.
async fn read_group(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    extents: Vec<Extent>,
    buf: BufMut,
) -> (Result<Found>, BufMut) {
    if let [only] = extents.as_slice() {
        let (result, buf) =
            read_piece(core, file, *only, buf, (Asked::default(), Ask::InTurn)).await;
        return (result.map(|n| Found::first(n as usize)), buf);
    }
    let bytes = buf.len();
    let room = core.room(bytes).await;
    let mut asked = None;
    let outcome = match first_try(core, file, &extents, buf, &mut asked).await {
        Ok(outcome) => outcome,
        Err((e, buf)) => Outcome { pieces: Err(e), buf: Some(buf) },
    };
    drop(room);
    let mut buf = outcome.buf.unwrap_or_else(|| core.rt.alloc(bytes));
    let pieces: Vec<Piece> = match outcome.pieces {
        Ok(pieces) => pieces.into(),
        Err(e) => extents.iter().map(|_| Err(e.clone())).collect(),
    };
    let mut parts = Vec::with_capacity(extents.len());
    for (extent, piece) in extents.into_iter().zip(pieces) {
        let mine = buf.split_to(extent.len as usize);
        parts.push(async move {
            match piece {
                Ok(n) => (Ok(Found::first(n as usize)), mine),
                Err(e) => {
                    let by_head = asked.is_some_and(|node| headed_by(core, file, &extent, node));
                    let ask = Ask::after(e.status, by_head);
                    let mut before = Asked::default();
                    if let Some(node) = asked {
                        before.failed(node, e.status);
                    }
                    let (result, mine) = read_piece(core, file, extent, mine, (before, ask)).await;
                    (result.map(|n| Found::first(n as usize)), mine)
                }
            }
        });
    }
    let done = join_all(parts).await;
    assemble(core, bytes, done, buf)
}

/// Whether the chain of an extent has its head on that node.
fn headed_by(core: &Core, file: &OpenFile, extent: &Extent, node: NodeId) -> bool {
    let head = core.routing_now().and_then(|info| {
        let chain = routes::chain_of(&info, &file.layout(), extent.index).ok()?;
        routes::head(&info, chain).ok()
    });
    head.is_some_and(|head| head.node == node)
}

/// The first request of a group, with a hedge if one node has all the pieces besides. `asked` becomes whom it was made to.
async fn first_try(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    extents: &[Extent],
    buf: BufMut,
    asked: &mut Option<NodeId>,
) -> Result<Outcome, (Error, BufMut)> {
    let time = core.config.read_attempt;
    let info = match core.routing(time).await {
        Ok(info) => info,
        Err(e) => return Err((e, buf)),
    };
    let orders: Result<Vec<Vec<Place>>> =
        extents.iter().map(|e| order(core, &info, file, e)).collect();
    let orders = match orders {
        Ok(orders) => orders,
        Err(e) => return Err((e, buf)),
    };
    let pick = |n: usize| -> Option<Few<(Extent, Place)>> {
        let ops: Option<Few<_>> =
            extents.iter().zip(&orders).map(|(e, o)| Some((*e, *o.get(n)?))).collect();
        ops.filter(|ops| {
            ops.iter().all(|(_, p)| ops.first().is_some_and(|(_, q)| p.node == q.node))
        })
    };
    match pick(0) {
        Some(first) => {
            *asked = first.first().map(|(_, place)| place.node);
            let alone = orders.iter().all(|order| order.len() == 1);
            let late = if alone { core.config.late_attempt } else { time };
            let times = (time, late.min(core.config.data_total));
            Ok(hedged(core, file, &info, first, pick(1), buf, times).await)
        }
        // The order changed since the grouping: piece by piece then.
        None => Err((Error::new(Status::NotServing, "the replicas changed"), buf)),
    }
}

/// Reads one extent, at one replica after another. Some were `asked` already, and this is whom to ask first.
async fn read_piece(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    extent: Extent,
    buf: BufMut,
    (mut asked, mut ask): (Asked, Ask),
) -> (Result<u32>, BufMut) {
    let len = extent.len as usize;
    let what = || {
        format!(
            "read of {len} bytes at {} of chunk {}/{}/{}",
            extent.offset,
            file.volume(),
            file.data(),
            extent.index
        )
    };
    let mut room = Some(core.room(len).await);
    let mut retry = core.retry(core.read_policy());
    let mut buf = Some(buf);
    let mut refusals = 0;
    loop {
        let mut site = Site::default();
        let own = buf.take().unwrap_or_else(|| core.rt.alloc(len));
        let (result, back) =
            piece_attempt(core, file, extent, own, &retry, (&mut asked, ask), &mut site).await;
        buf = back;
        let error = match result {
            Ok(n) => return (Ok(n), buf.unwrap_or_else(|| core.rt.alloc(len))),
            Err(e) => e,
        };
        let by_head = site.info.as_ref().zip(site.place).is_some_and(|(i, p)| ask::is_head(i, &p));
        ask = Ask::after(error.status, by_head);
        if let Some(place) = &site.place {
            asked.failed(place.node, error.status);
        }
        refusals += u32::from(error.status == Status::BadCapability);
        let again = again_read(error.status) && refusals <= REFUSALS_MAX;
        drop(room.take());
        // What is rare stands apart: it would make the futures of all reads larger, and they are copied.
        let wait = Box::pin(core.wait_or_give_up(&mut retry, &what, &site, error, again));
        if let Err(e) = wait.await {
            return (Err(e), buf.unwrap_or_else(|| core.rt.alloc(len)));
        }
        room = Some(core.room(len).await);
    }
}

async fn piece_attempt(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    extent: Extent,
    buf: BufMut,
    retry: &Retry,
    (asked, ask): (&mut Asked, Ask),
    site: &mut Site,
) -> (Result<u32>, Option<BufMut>) {
    let late = || Error::new(Status::Disconnected, "the time for this read is up");
    let Some(time) = retry.attempt_time(core.rt.turn_began()) else {
        return (Err(late()), Some(buf));
    };
    let (info, time) = match core.routing_now() {
        Some(info) => (info, time),
        None => match Box::pin(core.routing(time)).await {
            Ok(info) => (info, time.min(retry.attempt_time(core.rt.now()).unwrap_or(time))),
            Err(e) => return (Err(e), Some(buf)),
        },
    };
    site.info = Some(info.clone());
    let found = order(core, &info, file, &extent).and_then(|order| {
        let chain = || routes::chain_of(&info, &file.layout(), extent.index);
        let in_turn = if ask == Ask::InTurn { asked.next(&order) } else { None };
        let first = match (ask, in_turn) {
            (Ask::InTurn, Some(p)) => p,
            (Ask::Head, _) => routes::head(&info, chain()?)?,
            _ => routes::tail(&info, chain()?)?,
        };
        let second = order.iter().copied().find(|p| p.node != first.node);
        Ok((first, second, asked.waits_for(first.node, &order)))
    });
    let (first, second, waits) = match found {
        Ok(found) => found,
        Err(e) => return (Err(e), Some(buf)),
    };
    site.place = Some(first);
    let hedge = second.map(|p| Few::One((extent, p)));
    let late = if waits { core.config.late_attempt } else { time };
    let times = (time, retry.late_time(core.rt.turn_began(), late));
    let outcome = hedged(core, file, &info, Few::One((extent, first)), hedge, buf, times).await;
    let result = outcome.pieces.and_then(|pieces| match pieces {
        Few::One(piece) => piece,
        Few::Many(_) => Err(Error::new(Status::Internal, "no result for the piece")),
    });
    (result, outcome.buf)
}

/// One READ to one node. All places are on it. `time`: how long it waits, and how long where its answer is on its way behind others.
async fn request(
    core: Rc<Core>,
    file: Rc<OpenFile>,
    info: Rc<RoutingInfo>,
    ops: Few<(Extent, Place)>,
    buf: BufMut,
    (time, late): (Duration, Duration),
) -> Outcome {
    let Some((_, first)) = ops.first().copied() else {
        return Outcome { pieces: Ok(Few::Many(Vec::new())), buf: Some(buf) };
    };
    let lost = |e: Error, buf| Outcome { pieces: Err(e), buf };
    let permission = match file.permission_now() {
        Some(p) => Ok(p),
        None => Box::pin(file.permission()).await,
    };
    let permission = match permission {
        Ok(p) => p,
        Err(e) => return lost(e, Some(buf)),
    };
    if !still_there(&info, &permission, &ops) {
        let e = Error::new(Status::NotServing, "the file has other data, on other chains");
        return lost(e, Some(buf));
    }
    let conn = match core.conn_now(&info, first.node) {
        Some(conn) => Ok(conn),
        None => Box::pin(core.conn(&info, first.node, time)).await,
    };
    let conn = match conn {
        Ok(conn) => conn,
        Err(e) => {
            core.blame(first.node, &e);
            return lost(e, Some(buf));
        }
    };
    let body = Read::encode(&permission.capability, &encode_ops(&file, &permission, &ops));
    let request = Request {
        method: method::READ,
        body,
        bulk: Bulk::Recv(buf),
        tenant: core.config.tenant,
        deadline: time,
    };
    let call =
        core.unless(|now| vain::serves_no_more(now, &first), conn.call_patiently(request, late));
    let response = match call.await {
        Ok(r) => r,
        Err(e) => {
            core.blame(first.node, &e);
            if e.status == Status::BadCapability {
                file.refused(&permission.capability);
            }
            return lost(e, None);
        }
    };
    let Some(buf) = response.bulk else {
        return lost(Error::new(Status::Internal, "a read came back without its buffer"), None);
    };
    let verify = !conn.peer().shares_memory();
    let pieces = check(&ops, &response.body, &buf, response.bulk_len, verify);
    if let Ok(pieces) = &pieces
        && pieces.iter().any(|p| p.as_ref().is_err_and(|e| e.status == Status::BadCapability))
    {
        file.refused(&permission.capability);
    }
    Outcome { pieces, buf: Some(buf) }
}

/// Whether the data that may be read lies where the places were looked up. (A truncate may have put other data in its place since; all places are of one moment.)
fn still_there(info: &RoutingInfo, permission: &Permission, ops: &[(Extent, Place)]) -> bool {
    ops.first().is_none_or(|(extent, place)| {
        routes::chain_of(info, &permission.layout, extent.index).is_ok_and(|c| c == place.chain)
    })
}

fn encode_ops(file: &OpenFile, permission: &Permission, ops: &[(Extent, Place)]) -> Few<ReadOp> {
    let base = ops.first().map_or(0, |(e, _)| e.at);
    ops.iter()
        .map(|(e, p)| ReadOp {
            chunk: ChunkId { volume: file.volume(), data: permission.data, index: e.index }.into(),
            chain: p.chain.0.into(),
            chain_version: p.version.0.into(),
            target: p.target.0.into(),
            offset: e.offset.into(),
            len: e.len.into(),
            // A group is shorter than the greatest bulk, so this fits.
            at: ((e.at - base) as u32).into(),
            flags: 0.into(),
        })
        .collect()
}

/// Takes an answer apart: nothing in it is trusted.
fn check(
    ops: &[(Extent, Place)],
    body: &[u8],
    buf: &BufMut,
    filled: usize,
    verify: bool,
) -> Result<Few<Piece>> {
    let results =
        <[ReadResult]>::ref_from_bytes(body).ok().filter(|r| r.len() == ops.len()).ok_or_else(
            || Error::new(Status::Internal, format!("a read answer of {} bytes", body.len())),
        )?;
    let base = ops.first().map_or(0, |(e, _)| e.at);
    Ok(ops
        .iter()
        .zip(results)
        .map(|((e, place), r)| {
            let status = Status::from_code(r.status.get());
            if status != Status::Ok {
                return Err(Error::new(
                    status,
                    format!("{place} (its chain version is {})", r.chain_version),
                ));
            }
            let start = (e.at - base) as usize;
            let bytes =
                buf.get(start..start + e.len as usize).filter(|_| start + e.len as usize <= filled);
            let Some(bytes) = bytes else {
                return Err(Error::new(
                    Status::Corrupt,
                    format!("{place}: only {filled} bytes arrived"),
                ));
            };
            if verify && crc32c(bytes) != r.crc.get() {
                return Err(Error::new(
                    Status::Corrupt,
                    format!("{place}: the bytes do not match their checksum"),
                ));
            }
            Ok(r.len.get().min(e.len))
        })
        .collect())
}
