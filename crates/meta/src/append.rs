//! APPEND: the right to append goes from client to client.
//!
//! Who wants it while another client has it is kept waiting here: that one is asked to give it back, and when he has, the one who waits gets it before the
//! answer to the other is out, so that nobody starves. A client that does not answer keeps it until its locks end with it. A right that was given is on
//! disk before that is told.

use crate::locks::WaitsFor;
use crate::once::Doubt;
use crate::state::{Asker, Service, VOLUME};
use glowfs_kv::Transaction;
use glowfs_namespace::{self as ns, AppendOutcome, AppendRight, Context};
use glowfs_net::{Conn, Reply};
use glowfs_rt::sync::{Notify, Share, join_all};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::append::{Append, AppendReply};
use glowfs_types::wire::meta::Recall;
use glowfs_types::wire::{Empty, decode, method};
use glowfs_types::{ClientId, InodeId, RequestId, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

/// How long a call waits for the right: shorter than a client waits for an answer.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// How often it looks again when the holder cannot be asked: it may be dead, or have given the right back to another meta service.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Pause when the holder said that he had given it back and the record still says otherwise.
const ODD_PAUSE: Duration = Duration::from_millis(10);

/// Answers. The call keeps its place among those in work until it is seen to wait.
pub async fn answer(
    s: &Service,
    conn: &Rc<Conn>,
    body: &[u8],
    place: Share<Asker>,
) -> Result<Reply> {
    let mut q: Append = decode(body)?;
    s.who(conn, &mut q.caller).await?;
    s.wait_for_old_leases().await;
    if q.release {
        step(s, &q).await?;
        s.lock_waits.wake(q.inode);
        return Ok(Reply::msg(&AppendReply::default()));
    }
    let until = s.rt.now() + WAIT_MAX;
    if let ControlFlow::Break(reply) = take(s, &q).await? {
        return Ok(reply);
    }
    let entry = s.lock_waits.enter(Asker::of(conn), q.inode, WaitsFor::Append)?;
    drop(place);
    let mut asked = None;
    loop {
        // Before the look: what is given back after it wakes.
        let news = entry.news.wait();
        let held = match take(s, &q).await? {
            ControlFlow::Break(reply) => return Ok(reply),
            ControlFlow::Continue(held) => held,
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

/// Takes the right, if nobody else has it.
async fn take(s: &Service, q: &Append) -> Result<ControlFlow<Reply, AppendRight>> {
    let attr = match step(s, q).await? {
        AppendOutcome::Held(held) => return Ok(ControlFlow::Continue(held)),
        AppendOutcome::Granted(attr) => Some(*attr),
        AppendOutcome::Released => None,
    };
    if attr.is_some() {
        // What its appends rely on from here on, also over a loss of power: that nobody else has it.
        s.engine.flush_barrier().await?;
    }
    Ok(ControlFlow::Break(Reply::msg(&AppendReply { attr })))
}

async fn step(s: &Service, q: &Append) -> Result<AppendOutcome> {
    s.with_cut(q.inode, async || {
        let work = async |tx: &Transaction| ns::append(&Context::new(tx, &q.caller, s), q).await;
        s.run_on(q.inode, (false, true), &Doubt::default(), work).await
    })
    .await
}

type Right = (InodeId, ClientId, RequestId);

/// Rights that are being asked back: however many wait for one, its holder is asked once at a time.
#[derive(Default)]
pub struct AskedBack(RefCell<BTreeMap<Right, Rc<Asked>>>);

#[derive(Default)]
struct Asked {
    given: Cell<bool>,
    over: Cell<bool>,
    news: Notify,
}

/// Somebody asks; over when it is dropped.
struct Asking<'a> {
    all: &'a AskedBack,
    right: Right,
    asked: Rc<Asked>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.all.0.borrow_mut().remove(&self.right);
        self.asked.over.set(true);
        self.asked.news.notify_all();
    }
}

impl AskedBack {
    /// Whether the holder has given it back, by what `ask` says, or what somebody hears who asks at this moment.
    async fn shared(
        &self,
        rt: &Rt,
        right: Right,
        within: Duration,
        ask: impl Future<Output = bool>,
    ) -> bool {
        let other = self.0.borrow().get(&right).cloned();
        if let Some(other) = other {
            let news = other.news.wait();
            if !other.over.get() {
                let _ = rt.timeout(within, news).await;
            }
            return other.given.get();
        }
        let asked = Rc::new(Asked::default());
        self.0.borrow_mut().insert(right, asked.clone());
        let asking = Asking { all: self, right, asked };
        let given = ask.await;
        asking.asked.given.set(given);
        given
    }
}

/// Asks the holder to give the right back. Whether he said that he has.
async fn ask_back(s: &Service, inode: InodeId, held: &AppendRight, within: Duration) -> bool {
    let ask = async {
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
    };
    s.asked_back.shared(&s.rt, (inode, held.client, held.grant), within, ask).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::real;

    /// Each of thousands that waited sent a recall of its own, until the holder's connection took no calls at all.
    #[test]
    fn who_holds_the_right_is_asked_once_at_a_time() {
        real::run(|rt| async move {
            let all = Rc::new(AskedBack::default());
            let sent = Rc::new(Cell::new(0));
            let right = |grant| (InodeId(1), ClientId(2), RequestId(grant));
            for (round, given) in [(1, true), (2, false)] {
                let tasks: Vec<_> = (0..100)
                    .map(|n| {
                        let (rt2, all, sent) = (rt.clone(), all.clone(), sent.clone());
                        // One of another right among them.
                        let which = right(if n == 50 { 9 } else { 3 });
                        rt.spawn(async move {
                            let ask = async {
                                sent.set(sent.get() + 1);
                                rt2.sleep(Duration::from_millis(5)).await;
                                given
                            };
                            all.shared(&rt2, which, Duration::from_secs(5), ask).await
                        })
                    })
                    .collect();
                for task in tasks {
                    assert_eq!(task.await, given);
                }
                assert_eq!(sent.get(), 2 * round);
            }
            // Whoever asks has left: the others do not wait for him.
            let (rt2, all2) = (rt.clone(), all.clone());
            let within = Duration::from_secs(5);
            let gone = rt.timeout(Duration::from_millis(5), async {
                all.shared(&rt, right(3), within, std::future::pending()).await
            });
            let waits =
                rt.spawn(async move { all2.shared(&rt2, right(3), within, async { true }).await });
            assert!(gone.await.is_err());
            let began = rt.now();
            waits.await;
            assert!(rt.now().since(began) < Duration::from_secs(1));
            assert!(all.0.borrow().is_empty());
        });
    }
}
