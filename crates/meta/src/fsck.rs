//! FSCK: one question of the checker of the whole metadata, or one repair. What is checked and mended, and why that is safe while the file
//! system is in use, is in [`glowfs_namespace::fsck`]; who asks keeps the counts, so this service keeps nothing.

use crate::recall::Change;
use crate::state::{Service, VOLUME};
use glowfs_kv::Transaction;
use glowfs_namespace::{Context, fsck};
use glowfs_net::Conn;
use glowfs_types::wire::decode;
use glowfs_types::wire::fsck::{Fsck, FsckReply};
use glowfs_types::wire::meta::Caller;
use glowfs_types::{ClientId, Error, Result, Status};

pub async fn answer(s: &Service, conn: &Conn, body: &[u8]) -> Result<FsckReply> {
    let identity = &conn.peer().identity;
    if !identity.service && !identity.root {
        let e = "only a token of root may check or mend the metadata: it shows and moves everybody's files";
        return Err(Error::new(Status::AccessDenied, e));
    }
    let q: Fsck = decode(body)?;
    let who = Caller { volume: VOLUME, ..Caller::default() };
    let work = async |tx: &Transaction| fsck::answer(&Context::new(tx, &who, s), &q).await;
    if !fsck::changes(&q) {
        return s.look(work).await;
    }
    s.wait_for_old_leases().await;
    // Repeating it does no harm: what is mended is not wrong any more.
    let reply = s.run(true, true, work).await?;
    let changes: Vec<_> = reply.touched.iter().copied().map(Change::attributes).collect();
    s.changed(ClientId(0), &changes).await;
    if reply.mended {
        let what = q.finding.as_ref().map_or("", |f| f.text.as_str());
        tracing::warn!(what, "mended by fsck");
    }
    Ok(reply)
}
