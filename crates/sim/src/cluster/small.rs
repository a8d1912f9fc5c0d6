//! Small files, whose contents begin with the metadata: own ones that live for some operations, some of which make them longer than fits there,
//! and one that all clients write at the same places, until somebody writes behind that.

use super::certain::{is_kept, open_kept, open_or_make_kept};
use super::contended::{read_from, write_to};
use super::estate::{Estate, Place};
use super::names::{make, unlink};
use super::own_file::OwnFile;
use super::registers::CELL_BYTES;
use super::workload::{Shared, caller, open_or_make_in, report};
use glowfs_client::{Client, OpenFile};
use glowfs_rt::{Duration, Rt};
use glowfs_types::layout::INLINE_BYTES_MAX;
use glowfs_types::wire::meta::{InodeKind, Lookup, ROOT_INODE, SetXattr};
use glowfs_types::{InodeId, RequestId, Result, Status};
use std::rc::Rc;

/// The directory of all of them.
pub const DIR: &str = "small";
/// The file that all clients write.
pub const CONTENDED: &str = "contended-small";
/// Its cells; the last one lies behind what fits beside an inode.
pub const CELLS: [u64; 4] = [0, 3, 7, INLINE_BYTES_MAX as u64 / CELL_BYTES + 1];
/// One operation on it of so many is on that last cell.
const LAST_CELL: u64 = 150;
/// Operations on one own file, at most.
const LIFE: u64 = 40;
/// Bytes of an own file and of one operation, at most; of one in three files. The others always fit.
const LONG: (u64, u64) = (40 << 10, 12 << 10);
const SHORT: (u64, u64) = (12 << 10, 4 << 10);

/// Makes the directory, with its layout.
pub async fn prepare(client: &Client) -> Result<()> {
    let inode = make(client, ROOT_INODE, DIR, InodeKind::Directory).await?;
    let value = format!("inline_bytes={INLINE_BYTES_MAX}").into_bytes();
    let name = b"glowfs.layout".to_vec().into();
    let (caller, request) = (caller(client), RequestId(0));
    client.setxattr(SetXattr { caller, request, inode, name, value, flags: 0 }).await?;
    Ok(())
}

/// Finds the directory.
pub async fn dir(client: &Client) -> Result<InodeId> {
    let name = DIR.as_bytes().to_vec().into();
    let q = Lookup { caller: caller(client), parent: ROOT_INODE, name };
    Ok(client.lookup(q).await?.attr.inode)
}

/// One client's own files, until told to stop.
pub async fn own(rt: Rt, client: Rc<Client>, shared: Rc<Shared>, estate: Rc<Estate>) {
    for n in 0.. {
        if shared.stop.get() {
            return;
        }
        let name = format!("{}-{n}", estate.name);
        if let Err(e) = one(&rt, &client, &shared, (&estate, &name)).await {
            return shared.problem(format!("{DIR}/{name}: {e}"));
        }
    }
}

async fn one(
    rt: &Rt,
    client: &Rc<Client>,
    shared: &Rc<Shared>,
    (estate, name): (&Estate, &str),
) -> Result<()> {
    let parent = dir(client).await?;
    let kept = estate.file(Place::Small, name.to_owned(), shared);
    let (file, made) = open_or_make_kept(client, shared, parent, name).await?;
    if !made.attr.inline {
        shared.problem(format!("{name}: made with chunks"));
    }
    let (bytes, op_bytes) = if rt.random_below(3) == 0 { LONG } else { SHORT };
    let mut own = OwnFile::new(rt.clone(), client.clone(), shared.clone(), kept.clone(), file);
    (own.bytes, own.op_bytes) = (bytes, Some(op_bytes));
    for _ in 0..rt.random_below(LIFE) {
        own.notice_losses();
        let done = match rt.random_below(12) {
            0..5 => own.write().await,
            5..8 => own.read().await,
            8 => own.cut().await,
            9 => own.fsync().await,
            10 => own.open_again().await,
            // Chunks are asked for.
            _ if rt.random_below(8) == 0 => own.zero().await,
            _ => Ok(()),
        };
        if own.is_in_doubt() {
            break;
        }
        done?;
        own.pause(10_000).await;
    }
    let closed = own.close().await;
    if own.is_in_doubt() {
        kept.judge_contents(rt, client, shared).await?;
    } else {
        closed?;
    }
    kept.goes();
    remove_kept(client, shared, parent, name).await?;
    estate.gone(&kept);
    Ok(())
}

/// Removes a file that is there, for good.
async fn remove_kept(client: &Client, shared: &Shared, parent: InodeId, name: &str) -> Result<()> {
    let mut may_be_gone = false;
    loop {
        let losses = shared.engine_losses.get();
        match unlink(client, parent, name, false).await {
            Err(e) if e.status == Status::NotFound && may_be_gone => {}
            removed => removed?,
        }
        if is_kept(client, shared, losses).await? {
            return Ok(());
        }
        may_be_gone = true;
    }
}

/// One client's work on the file that all write, until told to stop.
pub async fn contended(rt: Rt, client: Rc<Client>, shared: Rc<Shared>) {
    if let Err(e) = contend(&rt, &client, &shared).await {
        shared.problem(format!("{CONTENDED}: {e}"));
    }
}

async fn contend(rt: &Rt, client: &Rc<Client>, shared: &Rc<Shared>) -> Result<()> {
    let parent = dir(client).await?;
    let (mut file, _) = open_or_make_kept(client, shared, parent, CONTENDED).await?;
    while !shared.stop.get() {
        let last = CELLS.len() - 1;
        let i = match rt.random_below(LAST_CELL) {
            0 => last,
            n => n as usize % last,
        };
        match rt.random_below(8) {
            0..3 => write_to(rt, &file, &shared.small, i).await?,
            7 if rt.random_below(4) == 0 => {
                client.close_session(report(client, &file, false)).await?;
                file = open_kept(client, shared, file.inode()).await?.0;
            }
            _ => read_from(rt, &file, shared, &shared.small, i).await?,
        }
        shared.ops.set(shared.ops.get() + 1);
        rt.sleep(Duration::from_micros(rt.random_below(8_000))).await;
    }
    client.close_session(report(client, &file, true)).await?;
    Ok(())
}

/// Reads all of it once more.
pub async fn read_all(rt: &Rt, client: &Rc<Client>, shared: &Shared) -> Result<()> {
    let file: Rc<OpenFile> = open_or_make_in(client, dir(client).await?, CONTENDED).await?.0;
    for i in 0..CELLS.len() {
        read_from(rt, &file, shared, &shared.small, i).await?;
    }
    client.close_session(report(client, &file, false)).await?;
    Ok(())
}

/// Removes it, and the directory.
pub async fn remove(client: &Client) -> Result<()> {
    unlink(client, dir(client).await?, CONTENDED, false).await?;
    unlink(client, ROOT_INODE, DIR, true).await
}
