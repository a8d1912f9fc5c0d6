//! Contents of small files that are kept with the metadata: reading, writing, and putting them into chunks.
//!
//! Must never: let chunks be used before they hold all of the contents on disk; forget the contents before that is committed.

use crate::once::Doubt;
use crate::recall::Change;
use crate::state::{Service, VOLUME};
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Context, Spill};
use glowfs_net::Conn;
use glowfs_rt::{Buf, Duration};
use glowfs_types::capability::rights;
use glowfs_types::wire::decode;
use glowfs_types::wire::inline::{InlineRead, InlineReply, InlineWrite};
use glowfs_types::wire::meta::{Attr, Caller};
use glowfs_types::{
    ChunkId, ClientId, DataId, Durability, Error, InodeId, RequestId, Result, SessionId, Status,
};
use std::rc::Rc;

/// How long another service gets to end what it began, before an attempt of our own takes its place,
const PATIENCE: Duration = Duration::from_secs(2);
/// and how often we look whether it has.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// How long contents may take to get into their chunk. Less than a client waits for its call (5 s): what nobody waits for any more holds nothing.
const STORE_MAX: Duration = Duration::from_secs(4);
/// Attempts until somebody has to ask again.
const ATTEMPTS: u32 = 5;

fn nobody() -> Caller {
    Caller { volume: VOLUME, ..Caller::default() }
}

/// INLINE_READ.
pub async fn read(s: &Service, conn: &Rc<Conn>, body: &[u8]) -> Result<InlineReply> {
    let mut q: InlineRead = decode(body)?;
    s.who(conn, &mut q.caller).await?;
    let watch = s.watch();
    let work = async |tx: &Transaction| ns::inline_read(&Context::new(tx, &q.caller, s), &q).await;
    let (attr, content) = s.look(work).await?;
    let lease_ms = watch.lease(q.inode, q.caller.client, conn);
    Ok(InlineReply { attr, lease_ms, content: content.map(Into::into), done: false })
}

/// INLINE_WRITE.
pub async fn write(s: &Service, conn: &Rc<Conn>, body: &[u8]) -> Result<InlineReply> {
    let mut q: InlineWrite = decode(body)?;
    s.who(conn, &mut q.caller).await?;
    s.wait_for_old_leases().await;
    let once = q.request != RequestId(0);
    let work = async |tx: &Transaction| ns::inline_write(&Context::new(tx, &q.caller, s), &q).await;
    let client = q.caller.client;
    let write = async |doubt: &Doubt| {
        let run = async || s.run_on(q.inode, (false, once), doubt, &work).await;
        s.with_cut_by(client, q.inode, run).await
    };
    let (attr, done) = s.once(&q, write).await?;
    if done {
        s.changed(q.caller.client, &[Change::contents(q.inode, None)]).await;
        // As of its chunks: what was acknowledged survives the loss of power.
        if attr.layout.is_some_and(|l| l.durability == Durability::Disk) {
            s.engine.flush_barrier().await?;
        }
    }
    Ok(InlineReply { attr, lease_ms: 0, content: None, done })
}

/// Puts the contents of a file into chunks, if they are not there yet. `by` is not told: the answer to what it asked says so.
pub async fn spill(s: &Service, by: ClientId, inode: InodeId) -> Result<()> {
    s.wait_for_old_leases().await;
    let Some(_turn) = s.spills.turn(inode).await else { return Ok(()) };
    let mut given_up = None;
    for _ in 0..ATTEMPTS {
        let caller = nobody();
        let begin = async |tx: &Transaction| {
            ns::spill(&Context::new(tx, &caller, s), inode, given_up).await
        };
        match s.run(false, false, begin).await? {
            Spill::Over(changed) => {
                if changed {
                    s.changed(by, &[Change::contents(inode, None)]).await;
                }
                return Ok(());
            }
            Spill::Underway(data) => {
                wait_for_other(s, inode, data).await?;
                given_up = Some(data);
            }
            Spill::Store(attr, bytes) => {
                tracing::debug!(%inode, data = %attr.data, "contents go into chunks");
                match store(s, &attr, bytes).await {
                    // Somebody took this attempt for given up and removed what it had stored; what it began is looked up.
                    Err(e) if e.status == Status::BadCapability => continue,
                    Err(e) => {
                        tracing::debug!(%inode, data = %attr.data, error = %e, "contents did not get into chunks");
                        abandon(s, inode, attr.data).await;
                        return Err(e);
                    }
                    Ok(()) => {}
                }
                let finish = async |tx: &Transaction| {
                    ns::finish_spill(&Context::new(tx, &caller, s), inode, attr.data).await
                };
                // Durable: clients go on with the chunks from here on, and a commit that was lost would take them away again.
                if s.run(true, true, finish).await? {
                    s.changed(by, &[Change::contents(inode, None)]).await;
                    return Ok(());
                }
            }
        }
    }
    let e = format!("the contents of inode {inode} are being put into chunks by somebody else");
    Err(Error::new(Status::Pending, e))
}

/// What could not be stored in chunks is changed where it is again, by whoever has no need of chunks. If this fails as well, the file stays in between until
/// somebody needs it.
async fn abandon(s: &Service, inode: InodeId, data: DataId) {
    let caller = nobody();
    let back = async |tx: &Transaction| {
        ns::abandon_spill(&Context::new(tx, &caller, s), inode, data).await
    };
    match s.run(false, true, back).await {
        Ok(true) => s.changed(ClientId(0), &[Change::contents(inode, None)]).await,
        Ok(false) => {}
        Err(error) => tracing::warn!(%inode, %error, "contents stay on their way into chunks"),
    }
}

/// Waits until another service, or a former life of this one, has ended what it began.
async fn wait_for_other(s: &Service, inode: InodeId, data: DataId) -> Result<()> {
    let until = s.rt.now() + PATIENCE;
    while s.rt.now() < until {
        let caller = nobody();
        let under_way =
            async |tx: &Transaction| ns::spilling(&Context::new(tx, &caller, s), inode).await;
        if s.look(under_way).await? != Some(data) {
            break;
        }
        s.rt.sleep(LOOK_PAUSE).await;
    }
    Ok(())
}

/// Stores contents in the first chunk of the data that the attributes name, on disk.
async fn store(s: &Service, attr: &Attr, bytes: Vec<u8>) -> Result<()> {
    let layout = attr.layout.ok_or_else(|| Error::from(Status::Corrupt))?;
    // Who waits for it takes a place of those who do not need it: of calls, and of channels.
    let Ok(head) = s.chunks.first_head(&layout) else {
        let what = format!("nobody serves the chain of the first chunk of inode {}", attr.inode);
        return Err(Error::new(Status::ChainUnavailable, what));
    };
    let capability = s.capability(attr, (ClientId(0), SessionId(0)), rights::WRITE)?;
    let chunk = ChunkId { volume: VOLUME, data: attr.data, index: 0 };
    let write = async {
        let _place = s.spills.place(head).await?;
        s.chunks.write_durably(&layout, chunk, Buf::from_vec(bytes), &capability).await
    };
    s.rt.timeout(STORE_MAX, Box::pin(write)).await.unwrap_or_else(|_| {
        let what = format!("node {head} does not take the contents of inode {}", attr.inode);
        Err(Error::new(Status::Pending, what))
    })
}
