//! Asking the predecessor what it vouches for (`craq::shown`), and answering the successor that asks.
//!
//! Two sorts of questions, and no update waits for either. One about all chunks that were written since the last one, [`ASK_PAUSE`] apart, which is answered at once. And one about what
//! somebody has read here (or behind us) and waits to be told: it goes out at once, and the predecessor *keeps* it until it can say yes to a part of it.
//! Guarantees: it is asked as long as there is anything to ask, whatever fails; a question ends with its chain version. A predecessor keeps one question of its successor, the newest. That names all
//! that is waited for, as the ones before it did; only if that is more than [`KEPT_MAX`] chunks, it is asked about in turns, and of the others nothing is kept meanwhile.
//! Must never: take the silence of a predecessor for its word.

use crate::node::Node;
use crate::target::Target;
use glowfs_craq::{About, Event, View};
use glowfs_net::Incoming;
use glowfs_rt::sync::{Either, Notify, select};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::method;
use glowfs_types::wire::vouch::{KEPT_MAX, Unvouched, VOUCH_MAX, Vouch, VouchReply};
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion, Error, NodeId, Result, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

/// The pause before a question that nobody waits for.
const ASK_PAUSE: Duration = Duration::from_millis(50);
/// The least time between two questions that somebody waits for while one is under way: who comes meanwhile goes with the next one.
const SOON_PAUSE: Duration = Duration::from_millis(2);
/// The pause of a target that has nobody to ask just now, if its chain does not change before: its chain version is not active yet.
const NOBODY_PAUSE: Duration = Duration::from_millis(200);
/// How long one question may take.
const ASK_DEADLINE: Duration = Duration::from_secs(2);
/// How long a question is kept of which nothing is true yet; then it is answered, and asked again.
const KEPT_TIME: Duration = Duration::from_millis(500);
/// How long a service that stops goes on asking and answering when nothing is in work any more: those behind ask about all that was written once more.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(150);
/// Questions that somebody waits for, of one target and under way at once: such as a predecessor does not answer.
const QUESTIONS_MAX: usize = 4;

/// Asking and being asked, of one target.
#[derive(Default)]
pub(crate) struct Vouches {
    /// Somebody asks about all.
    asking: Cell<bool>,
    /// Somebody asks for those who wait.
    asking_soon: Cell<bool>,
    /// What is waited for, here or behind us: of each chunk the least version. Only such as are unvouched, so no more than `craq::UNVOUCHED_MAX`.
    wanted: RefCell<BTreeMap<ChunkId, ChunkVersion>>,
    /// Some of it is in no question yet.
    news: Cell<bool>,
    /// Questions for it that are under way.
    under_way: Cell<usize>,
    /// More came, or a question has ended.
    woken: Notify,
    /// How many questions of the successor were to be kept: only the newest is.
    kept: Cell<u64>,
    /// Those that are kept, or just about to be answered.
    keeping: Cell<usize>,
    /// Something that was kept may be true by now.
    truer: Notify,
}

impl Vouches {
    /// The core has taken this.
    pub fn after(&self, event: Happened) {
        if event != Happened::Other && self.keeping.get() > 0 {
            self.truer.notify_all();
        }
        if event == Happened::Chain {
            self.woken.notify_all();
        }
    }

    /// Somebody waits for that version of a chunk; `waits` tells whether one is unvouched still. Says whether it has to be asked for.
    fn want(
        &self,
        (chunk, version): (ChunkId, ChunkVersion),
        waits: impl Fn(ChunkVersion) -> bool,
    ) -> bool {
        match self.wanted.borrow_mut().entry(chunk) {
            // Of one that is vouched for by now no question tells anything.
            Entry::Occupied(e) if *e.get() <= version && waits(*e.get()) => return false,
            Entry::Occupied(mut e) => {
                e.insert(version);
            }
            Entry::Vacant(e) => {
                e.insert(version);
            }
        }
        self.news.set(true);
        self.woken.notify_all();
        true
    }

    /// The time between two questions: none if what was asked is answered, and there is more to ask.
    async fn pause(&self, rt: &Rt) {
        let mut over = std::pin::pin!(rt.sleep(SOON_PAUSE));
        loop {
            let woken = self.woken.wait();
            if self.news.get() && self.under_way.get() == 0 {
                return;
            }
            if let Either::Left(()) = select(over.as_mut(), woken).await {
                return;
            }
        }
    }

    /// Until it is worth looking whether there is anybody to ask; `turned` tells of another chain version.
    async fn nobody_to_ask(&self, rt: &Rt, turned: &Notify) {
        // It may become active, too.
        let chain = select(turned.wait(), self.woken.wait());
        select(rt.sleep(NOBODY_PAUSE), chain).await;
    }
}

/// What an event means for what is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Happened {
    /// Something is stored, or vouched for by those before.
    MayVouch,
    /// The same if nobody is before us any more; or the chain version is active, and there is somebody to ask.
    Chain,
    /// Something else.
    Other,
}

impl Happened {
    pub fn of(event: &Event) -> Self {
        match event {
            Event::Staged(..) | Event::Vouched(..) => Self::MayVouch,
            Event::Chain(..) => Self::Chain,
            _ => Self::Other,
        }
    }
}

/// One question.
struct Question {
    to: NodeId,
    version: ChainVersion,
    about: Vec<About>,
    ask: Vouch,
}

impl Target {
    /// Something came that may not be shown yet.
    pub(crate) fn ask_soon(self: &Rc<Self>, node: &Node) {
        if !self.vouches.asking.replace(true) {
            node.rt.spawn_detached(self.clone().ask_about_all());
        }
    }

    /// Somebody waits until that may be told.
    pub(crate) fn ask_for(self: &Rc<Self>, chunk: ChunkId, version: ChunkVersion) {
        let (v, node) = (&self.vouches, self.node.upgrade());
        let Some(node) = node.filter(|_| self.waits_for(chunk, version).is_some()) else { return };
        let new = v.want((chunk, version), |version| self.waits_for(chunk, version).is_some());
        if new && !v.asking_soon.replace(true) {
            node.rt.spawn_detached(self.clone().ask_for_readers());
        }
    }

    fn waits_for(&self, chunk: ChunkId, version: ChunkVersion) -> Option<About> {
        self.replica.borrow().unvouched_of(chunk, version)
    }

    /// The chunks of a data id, from one on, of which something may not be shown yet.
    pub(crate) fn unvouched_of(&self, from: ChunkId) -> Vec<ChunkId> {
        let of_data = |c: &ChunkId| (c.volume, c.data) == (from.volume, from.data);
        let replica = self.replica.borrow();
        replica.unvouched(from).map(|a| a.chunk).take_while(of_data).collect()
    }

    /// Whether there is any use in asking: also while the service lets what it has taken finish, and those behind hear the last of it.
    fn may_ask(&self, node: &Node) -> bool {
        !node.silent.get() && node.target(self.id).is_ok()
    }

    /// Whether a serving member behind us may show only what we vouch for.
    fn vouches_for_others(&self) -> bool {
        let view = self.view().filter(View::serving);
        view.and_then(|v| v.successor).is_some_and(|(_, _, syncing)| !syncing)
    }

    async fn ask_about_all(self: Rc<Self>) {
        let mut next = ChunkId::default();
        while let Some(node) = self.node.upgrade() {
            node.rt.sleep(ASK_PAUSE).await;
            if !self.may_ask(&node) || self.replica.borrow().unvouched_chunks() == 0 {
                break;
            }
            match self.question_about_all(&mut next) {
                Some(question) => self.ask_predecessor(&node, question).await,
                None => self.vouches.nobody_to_ask(&node.rt, &self.turned).await,
            }
        }
        self.ahead.nothing_to_ask();
        self.vouches.asking.set(false);
    }

    async fn ask_for_readers(self: Rc<Self>) {
        let mut next = ChunkId::default();
        let v = &self.vouches;
        loop {
            let woken = v.woken.wait();
            let Some(node) = self.node.upgrade().filter(|n| self.may_ask(n)) else { break };
            if !self.still_wanted() {
                break;
            }
            // What was asked for and is kept is not asked for again.
            let due = v.news.get() && v.under_way.get() < QUESTIONS_MAX;
            if !due && v.under_way.get() > 0 {
                woken.await;
                continue;
            }
            let Some(question) = self.question_of_wanted(&mut next) else {
                v.nobody_to_ask(&node.rt, &self.turned).await;
                continue;
            };
            v.under_way.set(v.under_way.get() + 1);
            let (target, asked) = (self.clone(), node.clone());
            node.rt.spawn_detached(async move {
                target.ask_predecessor(&asked, question).await;
                let v = &target.vouches;
                v.under_way.set(v.under_way.get() - 1);
                v.woken.notify_all();
            });
            v.pause(&node.rt).await;
        }
        v.wanted.borrow_mut().clear();
        v.asking_soon.set(false);
    }

    /// Whether there is anything left that somebody waits for.
    fn still_wanted(&self) -> bool {
        let mut wanted = self.vouches.wanted.borrow_mut();
        wanted.retain(|chunk, version| self.waits_for(*chunk, *version).is_some());
        !wanted.is_empty()
    }

    /// Of all chunks the newest version, as many as go with one question, from `next` on.
    fn question_about_all(&self, next: &mut ChunkId) -> Option<Question> {
        let about: Vec<_> = self.replica.borrow().unvouched(*next).take(VOUCH_MAX).collect();
        // The last one is asked about again, if all did not fit.
        *next = about.get(VOUCH_MAX - 1).map_or(ChunkId::default(), |a| a.chunk);
        self.question(about, false)
    }

    /// What is waited for: from `next` on, and then from the beginning, if it is more than one question takes.
    fn question_of_wanted(&self, next: &mut ChunkId) -> Option<Question> {
        let wanted = self.vouches.wanted.borrow();
        let in_turn = wanted.range(*next..).chain(wanted.range(..*next));
        let mut about = in_turn.filter_map(|(chunk, version)| self.waits_for(*chunk, *version));
        let now: Vec<_> = about.by_ref().take(KEPT_MAX).collect();
        let left = about.next();
        *next = left.map_or(ChunkId::default(), |a| a.chunk);
        let question = self.question(now, true)?;
        self.vouches.news.set(left.is_some());
        Some(question)
    }

    fn question(&self, about: Vec<About>, keep: bool) -> Option<Question> {
        let replica = self.replica.borrow();
        let view = replica.asks_predecessor()?;
        let to = view.predecessor?.1;
        let list = about.iter().map(|a| Unvouched { chunk: a.chunk, version: a.version });
        let ask = Vouch {
            chain: view.chain,
            chain_version: view.version,
            about: list.collect(),
            waits: replica.shows_nothing_early(),
            keep,
        };
        Some(Question { to, version: view.version, about, ask })
    }

    /// Asks, and has the core know the answer.
    async fn ask_predecessor(self: &Rc<Self>, node: &Node, question: Question) {
        let Question { to, version, about, ask } = question;
        self.ahead.asked(version, node.rt.now());
        node.metrics.vouches.inc();
        let call = async {
            let conn = node.connect(to).await?;
            let reply: VouchReply = conn.call_msg(method::VOUCH, &ask, ASK_DEADLINE).await?;
            Ok::<_, Error>(reply.vouched)
        };
        let call = node.rt.timeout(ASK_DEADLINE, call);
        let word = match select(call, self.left(version)).await {
            Either::Left(Ok(word)) => word,
            Either::Left(Err(_)) => {
                Err(Error::new(Status::TimedOut, format!("storage node {to} did not answer")))
            }
            // Of what is asked under the next one it says so again.
            Either::Right(()) => return,
        };
        let silent =
            matches!(&word, Err(e) if matches!(e.status, Status::Disconnected | Status::TimedOut));
        if !silent {
            self.ahead.answered(version);
        }
        let vouched = match word {
            Ok(vouched) => vouched,
            // Of an older release: with it all is shown at once, as ever.
            Err(e) if e.status == Status::UnknownMethod => vec![true; about.len()],
            Err(e) => {
                if silent {
                    node.metrics.vouches_unanswered.inc();
                }
                tracing::debug!(target = %self.id, error = %e, "the predecessor did not say what may be shown");
                select(node.rt.sleep(ASK_PAUSE), self.left(version)).await;
                return;
            }
        };
        let list = about.into_iter().zip(vouched).filter(|(_, vouched)| *vouched);
        self.feed(Event::Vouched(version, list.map(|(about, _)| about).collect()));
    }

    /// What this target says to a question now.
    fn word(&self, ask: &Vouch) -> Result<Vec<bool>> {
        let word = |u: &Unvouched| self.vouches_for(ask.chain_version, u.chunk, u.version);
        let word: Result<Vec<bool>, Status> = ask.about.iter().map(word).collect();
        word.map_err(|status| self.refusal(status))
    }
}

/// A question of the successor that is kept.
struct Kept<'a>(&'a Vouches);

impl<'a> Kept<'a> {
    fn new(vouches: &'a Vouches) -> Self {
        vouches.keeping.set(vouches.keeping.get() + 1);
        Self(vouches)
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.keeping.set(self.0.keeping.get() - 1);
    }
}

impl Node {
    /// Lets those behind hear once more of what is stored here, and asks no more. Nothing is in work.
    pub(crate) async fn say_last_words(&self) {
        if self.all_targets().iter().any(|t| t.vouches_for_others()) {
            self.rt.sleep(LAST_WORDS).await;
        }
        self.silent.set(true);
    }

    /// Also while the service stops: those behind go on serving what they have taken, or for good.
    pub(crate) async fn vouch(self: &Rc<Self>, incoming: &Incoming) -> Result<VouchReply> {
        self.require_service(incoming)?;
        self.check_answer()?;
        let ask: Vouch = incoming.msg()?;
        if ask.about.len() > if ask.keep { KEPT_MAX } else { VOUCH_MAX } {
            let e = format!("a question about {} chunks", ask.about.len());
            return Err(Error::new(Status::BadMessage, e));
        }
        let (target, view) = self.member(ask.chain, ask.chain_version, "serving", View::serving)?;
        let peer = incoming.conn().peer().node;
        if view.successor.is_none_or(|(_, node, _)| node != peer) {
            let e = format!("node {peer} has no target behind target {}", target.id);
            return Err(Error::new(Status::NotServing, e));
        }
        if ask.waits && !target.replica.borrow().successor_asks() {
            target.feed(Event::SuccessorAsks(ask.chain_version));
        }
        let vouched = if ask.keep { self.keep(&target, &ask).await } else { target.word(&ask) };
        self.check_answer()?;
        Ok(VouchReply { vouched: vouched? })
    }

    /// Answers when a part of it is true, when a newer one comes, or when it was kept long enough.
    async fn keep(&self, target: &Rc<Target>, ask: &Vouch) -> Result<Vec<bool>> {
        let v = &target.vouches;
        let mine = v.kept.get() + 1;
        v.kept.set(mine);
        v.truer.notify_all();
        let _kept = Kept::new(v);
        let end = self.rt.now() + KEPT_TIME;
        loop {
            let truer = v.truer.wait();
            // What we wait for ourselves; anew when we have heard of an earlier version.
            for u in &ask.about {
                target.ask_for(u.chunk, u.version);
            }
            let word = target.word(ask)?;
            if word.contains(&true) || v.kept.get() != mine || self.rt.now() >= end {
                return Ok(word);
            }
            let over = select(self.rt.sleep_until(end), target.left(ask.chain_version));
            select(truer, over).await;
        }
    }
}

#[cfg(test)]
mod tests;
