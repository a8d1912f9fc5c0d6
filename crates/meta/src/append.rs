//! APPEND: the right to append goes from client to client.
//!
//! Who wants it while another client has it is kept waiting here: that one is asked to give it back, and when he has, the one who waits gets it before the
//! answer to the other is out, so that nobody starves. A client that does not answer keeps it until its locks end with it. A right that was given is on
//! disk before that is told.

use crate::locks;
use crate::once::Doubt;
use crate::state::{Service, VOLUME};
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, AppendOutcome, AppendRight, Context};
use glowfs_net::{Conn, Reply};
use glowfs_rt::Duration;
use glowfs_rt::sync::join_all;
use glowfs_types::wire::append::{Append, AppendReply};
use glowfs_types::wire::meta::Recall;
use glowfs_types::wire::{Empty, decode, method};
use glowfs_types::{InodeId, Result};
use std::rc::Rc;

/// How long a call waits for the right: shorter than a client waits for an answer.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// How often it looks again when the holder cannot be asked: it may be dead, or have given the right back to another meta service.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Pause when the holder said that he had given it back and the record still says otherwise.
const ODD_PAUSE: Duration = Duration::from_millis(10);

pub async fn answer(s: &Service, conn: &Rc<Conn>, body: &[u8]) -> Result<Reply> {
    let mut q: Append = decode(body)?;
    s.who(conn, &mut q.caller).await?;
    s.wait_for_old_leases().await;
    if q.release {
        step(s, &q).await?;
        s.lock_waits.wake(q.inode);
        return Ok(Reply::msg(&AppendReply::default()));
    }
    let entry = s.lock_waits.enter(q.inode)?;
    let until = s.rt.now() + WAIT_MAX;
    let mut asked = None;
    loop {
        let news = entry.news.wait();
        let held = match step(s, &q).await? {
            AppendOutcome::Granted(attr) => {
                // What its appends rely on from here on, also over a loss of power: that nobody else has it.
                s.engine.flush_barrier().await?;
                return Ok(Reply::msg(&AppendReply { attr: Some(*attr) }));
            }
            AppendOutcome::Held(held) => held,
            AppendOutcome::Released => return Ok(Reply::msg(&AppendReply::default())),
        };
        let left = until.since(s.rt.now());
        if left.is_zero() || s.stopping.get() {
            return Ok(Reply::msg(&AppendReply::default()));
        }
        let odd = asked.replace(held) == Some(held);
        let given = ask_back(s, q.inode, &held, left).await;
        let pause = match given {
            true if odd => ODD_PAUSE,
            true => continue,
            false => LOOK_PAUSE.min(left),
        };
        let _ = s.rt.timeout(pause, news).await;
    }
}

async fn step(s: &Service, q: &Append) -> Result<AppendOutcome> {
    s.with_cut(q.inode, async || {
        let work = async |tx: &Transaction| ns::append(&Context::new(tx, &q.caller, s), q).await;
        s.run_on(q.inode, (false, true), &Doubt::default(), work).await
    })
    .await
}

/// Asks the holder to give the right back. Whether he said that he has.
async fn ask_back(s: &Service, inode: InodeId, held: &AppendRight, within: Duration) -> bool {
    let conns = s.peers.borrow().as_ref().map(|p| p.clients()).unwrap_or_default();
    let recall = Recall {
        volume: VOLUME,
        inode,
        name: None,
        epoch: None,
        data: false,
        append: Some(held.grant),
    };
    let calls = conns.iter().filter(|((c, _), _)| *c == held.client).map(|(_, conn)| {
        s.metrics.recalls.inc();
        async { conn.call_msg::<_, Empty>(method::RECALL, &recall, within).await.is_ok() }
    });
    join_all(calls).await.into_iter().any(|given| given)
}

/// What only waits has a bound of its own ([`locks`]), or those who wait would keep those out who give back.
pub fn only_waits(m: u16) -> bool {
    m == method::APPEND || locks::only_waits(m)
}
