//! After the end of a connection: when memory that the peer could reach is used again.
//!
//! Guarantee: not before the peer's end has closed, however long that takes (a peer that was stopped goes on where it stood, and writes into what it was
//! given), and the quarantine after that is over: a disk may still be at what it was asked for. What is kept so is no more than what was under way.

use super::Conn;
use super::calls::Buffers;
use crate::inbound::Inbound;
use std::rc::Rc;

/// Keeps what the peer can reach for as long as it can.
pub(super) async fn linger(conn: Rc<Conn>, mut inbound: Inbound) {
    let reachable: Vec<Buffers> = conn.reachable.take();
    if reachable.is_empty() {
        return;
    }
    let (rt, stream, quarantine) = (conn.rt.clone(), conn.stream.clone(), conn.quarantine);
    // The connection itself need not wait for that.
    drop(conn);
    // A peer that lives closes its end when it reads to the end of ours; of one that died the kernel does.
    while inbound.skip_some().await {
        rt.yield_now().await;
    }
    stream.shutdown();
    drop(inbound);
    rt.sleep(quarantine).await;
    drop(reachable);
}
