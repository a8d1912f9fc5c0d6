//! Asking the predecessor what it vouches for (`craq::shown`), and answering the successor that asks.
//!
//! One message about all chunks that were written since the last one, [`ASK_PAUSE`] after the first of them, and at once for a chunk that somebody waits to read. No update waits for it.
//! Guarantees: of a target one question is under way at a time; it is asked again as long as there is anything to ask. Must never: take the silence of a predecessor for its word.

use crate::node::Node;
use crate::target::Target;
use glowfs_craq::Event;
use glowfs_net::Incoming;
use glowfs_rt::Duration;
use glowfs_rt::sync::{Notify, select};
use glowfs_types::wire::method;
use glowfs_types::wire::vouch::{Unvouched, VOUCH_MAX, Vouch, VouchReply};
use glowfs_types::{ChunkId, ChunkVersion, Error, NodeId, Result, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;

/// The pause before a question that nobody waits for.
const ASK_PAUSE: Duration = Duration::from_millis(50);
/// The first pause before a question is asked again for which somebody waits; it grows up to the other one.
const ASK_AGAIN: Duration = Duration::from_millis(2);
/// The pause of a target that has nobody to ask just now: its chain version is not active yet, or it is away.
const NOBODY_PAUSE: Duration = Duration::from_millis(200);
/// How long one question may take.
const ASK_DEADLINE: Duration = Duration::from_secs(2);

/// Asking, of one target.
#[derive(Default)]
pub(crate) struct Vouches {
    /// Somebody is at it.
    asking: Cell<bool>,
    /// Chunks that readers wait for: such of which something is unvouched, so no more than `craq::UNVOUCHED_MAX`.
    wanted: RefCell<BTreeSet<ChunkId>>,
    /// Another one came.
    woken: Notify,
}

impl Vouches {
    /// It is to be asked about this chunk at once.
    pub fn reader_waits(&self, chunk: ChunkId) {
        self.wanted.borrow_mut().insert(chunk);
        self.woken.notify_all();
    }
    fn is_wanted(&self) -> bool {
        !self.wanted.borrow().is_empty()
    }
}

/// One question.
struct Question {
    to: NodeId,
    ask: Vouch,
}

impl Target {
    /// Something came that may not be shown yet.
    pub(crate) fn ask_soon(self: &Rc<Self>, node: &Node) {
        if !self.vouches.asking.replace(true) {
            node.rt.spawn_detached(self.clone().ask_while_unvouched());
        }
    }

    /// The chunks of a data id, from one on, of which something may not be shown yet.
    pub(crate) fn unvouched_of(&self, from: ChunkId) -> Vec<ChunkId> {
        let of_data = |c: &ChunkId| (c.volume, c.data) == (from.volume, from.data);
        let replica = self.replica.borrow();
        replica.unvouched(from).map(|(chunk, _)| chunk).take_while(of_data).collect()
    }

    async fn ask_while_unvouched(self: Rc<Self>) {
        let mut next = ChunkId::default();
        let mut again = Duration::ZERO;
        loop {
            let woken = self.vouches.woken.wait();
            let pause = if self.vouches.is_wanted() { again } else { ASK_PAUSE };
            let Some(node) = self.node.upgrade() else { break };
            if pause > Duration::ZERO {
                select(pin!(node.rt.sleep(pause)), pin!(woken)).await;
            }
            let here = !node.stopping.get() && node.target(self.id).is_ok();
            if !here || self.replica.borrow().unvouched(ChunkId::default()).next().is_none() {
                break;
            }
            match self.question(&mut next) {
                Some(question) => self.ask_predecessor(&node, question).await,
                None => node.rt.sleep(NOBODY_PAUSE).await,
            }
            let waits = self.still_wanted();
            again = if waits { (again * 2).clamp(ASK_AGAIN, ASK_PAUSE) } else { Duration::ZERO };
        }
        self.vouches.wanted.borrow_mut().clear();
        self.vouches.asking.set(false);
    }

    /// Whether there are chunks left that readers wait for.
    fn still_wanted(&self) -> bool {
        let replica = self.replica.borrow();
        let mut wanted = self.vouches.wanted.borrow_mut();
        wanted.retain(|chunk| !replica.may_tell(*chunk, ChunkVersion(u64::MAX)));
        !wanted.is_empty()
    }

    /// What to ask, and whom: what is wanted first, and of the others as many as go with it, from `next` on.
    fn question(&self, next: &mut ChunkId) -> Option<Question> {
        let replica = self.replica.borrow();
        let view = replica.asks_predecessor()?;
        let to = view.predecessor?.1;
        let wanted = self.vouches.wanted.borrow();
        let of = |chunk: &ChunkId| replica.unvouched(*chunk).next().filter(|(c, _)| c == chunk);
        let mut about: Vec<_> = wanted.iter().filter_map(of).take(VOUCH_MAX).collect();
        let room = VOUCH_MAX - about.len();
        let rest = about.len();
        about.extend(replica.unvouched(*next).take(room));
        *next = match about.last() {
            Some((chunk, _)) if about.len() - rest == room && room > 0 => *chunk,
            _ => ChunkId::default(),
        };
        let about = about.into_iter().map(|(chunk, version)| Unvouched { chunk, version });
        let ask = Vouch {
            chain: view.chain,
            chain_version: view.version,
            about: about.collect(),
            waits: replica.shows_nothing_early(),
            soon: !wanted.is_empty(),
        };
        Some(Question { to, ask })
    }

    async fn ask_predecessor(self: &Rc<Self>, node: &Node, Question { to, ask }: Question) {
        let work = async {
            let conn = node.connect(to).await?;
            let reply: VouchReply = conn.call_msg(method::VOUCH, &ask, ASK_DEADLINE).await?;
            Ok::<_, Error>(reply.vouched)
        };
        let late = |_| Error::new(Status::TimedOut, format!("storage node {to} did not answer"));
        let word = node.rt.timeout(ASK_DEADLINE, work).await.unwrap_or_else(|e| Err(late(e)));
        let vouched = match word {
            Ok(vouched) => vouched,
            // Of an older release: with it all is shown at once, as ever.
            Err(e) if e.status == Status::UnknownMethod => vec![true; ask.about.len()],
            Err(e) => {
                tracing::debug!(target = %self.id, error = %e, "the predecessor did not say what may be shown");
                return node.rt.sleep(ASK_PAUSE).await;
            }
        };
        let list = ask.about.iter().zip(vouched).filter(|(_, vouched)| *vouched);
        let list = list.map(|(u, _)| (u.chunk, u.version)).collect();
        self.feed(Event::Vouched(ask.chain_version, list));
    }
}

impl Node {
    pub(crate) fn vouch(self: &Rc<Self>, incoming: &Incoming) -> Result<VouchReply> {
        self.require_service(incoming)?;
        self.check_lease()?;
        let ask: Vouch = incoming.msg()?;
        if ask.about.len() > VOUCH_MAX {
            let e = format!("a question about {} chunks", ask.about.len());
            return Err(Error::new(Status::BadMessage, e));
        }
        let serving = |v: &glowfs_craq::View| v.serving();
        let (target, _) = self.member(ask.chain, ask.chain_version, "serving", serving)?;
        if ask.waits && !target.replica.borrow().successor_asks() {
            target.feed(Event::SuccessorAsks(ask.chain_version));
        }
        let replica = target.replica.borrow();
        let mut vouched = Vec::with_capacity(ask.about.len());
        for u in &ask.about {
            let word = replica.vouches(ask.chain_version, u.chunk, u.version);
            if ask.soon && !replica.may_tell(u.chunk, u.version) {
                target.vouches.reader_waits(u.chunk);
            }
            vouched.push(word.unwrap_or(false));
        }
        self.check_answer()?;
        Ok(VouchReply { vouched })
    }
}
