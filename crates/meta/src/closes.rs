//! CLOSES: many sessions of one client, ended in one transaction.
//!
//! Nobody waits for the end of a session, so clients gather them. All of them go with one commit. If one is refused, or has to wait for
//! a truncate, nothing of that transaction counts, and each of them gets one of its own: closing may be repeated.

use crate::ops;
use crate::recall::Change;
use crate::state::Service;
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, Context};
use glowfs_net::Conn;
use glowfs_types::wire::closes::{CLOSES_MAX, Closes, ClosesReply};
use glowfs_types::wire::decode;
use glowfs_types::{Error, Result, Status};
use std::rc::Rc;

/// Answers CLOSES.
pub async fn answer(s: &Service, conn: &Rc<Conn>, body: &[u8]) -> Result<ClosesReply> {
    let mut q: Closes = decode(body)?;
    if q.closes.len() > CLOSES_MAX {
        let e = format!("{} sessions to close at once; at most {CLOSES_MAX}", q.closes.len());
        return Err(Error::new(Status::BadMessage, e));
    }
    s.who(conn, &mut q.caller).await?;
    for close in &mut q.closes {
        (close.caller.client, close.caller.volume) = (q.caller.client, q.caller.volume);
        s.users.check(&conn.peer().identity, &mut close.caller).await?;
    }
    s.wait_for_old_leases().await;
    let durable = q.closes.iter().any(|c| c.durable);
    let together = async |tx: &Transaction| {
        for close in &q.closes {
            ns::close(&Context::new(tx, &close.caller, s), close).await?;
        }
        Ok(())
    };
    let statuses = match s.run(durable, true, together).await {
        Ok(()) => vec![Status::Ok; q.closes.len()],
        Err(error) => {
            tracing::debug!(%error, sessions = q.closes.len(), "closing one by one");
            let mut statuses = Vec::with_capacity(q.closes.len());
            for close in &q.closes {
                let closed = ops::settle_length(s, close, true).await;
                statuses.push(closed.err().map_or(Status::Ok, |e| e.status));
            }
            statuses
        }
    };
    let closed = q.closes.iter().zip(&statuses).filter(|(_, status)| **status == Status::Ok);
    let changes: Vec<Change> = closed.filter_map(|(close, _)| ops::change_of(close)).collect();
    s.changed(q.caller.client, &changes).await;
    Ok(ClosesReply { statuses: statuses.iter().map(|status| status.code()).collect() })
}
