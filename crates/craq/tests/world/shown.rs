//! What a predecessor vouches for, and the check of it: what is told is stored by all that may be called on to take over.

use super::node::{self, show};
use super::{Content, Fault, Msg, World, chunk};
use glowfs_craq::{About, Event, View};
use glowfs_types::{ChainVersion, ChunkVersion, Status};

/// What somebody has read of a node, and waits for until it may be told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reading {
    at: u8,
    chain_version: ChainVersion,
    version: u64,
    content: Content,
}

/// What is asked, of whom.
struct Question {
    to: u8,
    chain_version: u64,
    about: Vec<About>,
    waits: bool,
}

impl World {
    fn question(&self, i: u8) -> Option<Question> {
        let r = self.nodes[i as usize].replica.as_ref()?;
        let View { version, predecessor, .. } = r.asks_predecessor()?;
        let about: Vec<_> = r.unvouched(chunk(0)).collect();
        let to = (predecessor?.0.0 - 1) as u8;
        let ask = Question { to, chain_version: version.0, about, waits: r.shows_nothing_early() };
        (!ask.about.is_empty()).then_some(ask)
    }

    /// What that node vouches for.
    fn vouched(&self, ask: &Question) -> Vec<About> {
        let n = &self.nodes[ask.to as usize];
        let Some(r) = n.replica.as_ref().filter(|_| !n.fenced) else { return Vec::new() };
        let store = node::View(&n.store, n.full);
        let vouches = |a: &About| {
            let word = r.vouches(ChainVersion(ask.chain_version), a.chunk, a.version, &store);
            let stored = || n.store.chunks.get(&a.chunk).is_some_and(|m| m.has(a.version.0));
            word.is_ok_and(|w| w || self.fault == Some(Fault::VouchesForOthers) && stored())
        };
        ask.about.iter().copied().filter(vouches).collect()
    }

    /// Whether that node lets somebody read the chunk, as it is there; it may be told later.
    pub fn can_read(&self, i: u8, at: u8) -> bool {
        let r = self.nodes[i as usize].replica.as_ref();
        r.is_some_and(|r| r.view().is_some_and(|v| r.can_read(v.version, chunk(at)) == Ok(true)))
    }

    /// The same if it is told at once.
    pub fn shows(&self, i: u8, at: u8) -> bool {
        let n = &self.nodes[i as usize];
        let Some((r, view)) = n.replica.as_ref().and_then(|r| Some((r, r.view()?))) else {
            return false;
        };
        let committed = n.store.chunks.get(&chunk(at)).map_or(0, |m| m.committed);
        self.can_read(i, at)
            && r.may_tell(view.version, chunk(at), ChunkVersion(committed)) == Ok(true)
    }

    /// Which chunks somebody may read of that node now, to be told later.
    pub fn may_read(&self, i: u8) -> Vec<u8> {
        let n = &self.nodes[i as usize];
        let Some((r, view)) = n.replica.as_ref().and_then(|r| Some((r, r.view()?))) else {
            return Vec::new();
        };
        let free = self.budget.reads > 0 && n.reading.is_none() && !n.fenced;
        let can = |at: &u8| r.can_read(view.version, chunk(*at)) == Ok(true);
        self.chunks().into_iter().filter(|at| free && can(at)).collect()
    }

    pub fn read(&mut self, i: u8, at: u8) {
        self.budget.reads -= 1;
        let n = &mut self.nodes[i as usize];
        let view = n.replica.as_ref().and_then(|r| r.view());
        let m = n.store.chunks.get(&chunk(at)).cloned().unwrap_or_default();
        n.reading = view.map(|view| Reading {
            at,
            chain_version: view.version,
            version: m.committed,
            content: m.content,
        });
    }

    /// What was read is told as soon as it may, and is checked as what is read then.
    pub fn tell_what_was_read(&mut self) {
        for i in 0..self.nodes.len() {
            let n = &mut self.nodes[i];
            let Some((r, reading)) = n.replica.as_ref().zip(n.reading.clone()) else { continue };
            let Reading { at, chain_version, version, content } = reading;
            let may = match r.may_tell(chain_version, chunk(at), ChunkVersion(version)) {
                Ok(true) if n.fenced => Err(Status::NoLease),
                other => other,
            };
            if may == Ok(false) {
                continue;
            }
            n.reading = None;
            if may.is_err() || self.removes() {
                continue;
            }
            self.check_stored(i as u8, at, &content);
            let (seen, shown) = self.observed.entry(at).or_default();
            assert!(
                seen.starts_with(&content) || content.starts_with(seen),
                "linearizable: node {i} tells [{}] of chunk {at} after [{}] was served",
                show(&content),
                show(seen)
            );
            if content.len() > seen.len() {
                (*seen, *shown) = (content, version);
            }
        }
    }

    /// That the successor waits matters to nobody else.
    fn stores_refuse(&self) -> bool {
        self.refused || self.budget.refusals > 0
    }

    /// Whether it has something to ask, and something comes of it.
    pub fn may_ask(&self, i: u8) -> bool {
        let Some(ask) = self.question(i) else { return false };
        if self.slow_words {
            let mine = |m: &Msg| match m {
                Msg::Ask { from, .. } => *from == i,
                Msg::Word { to, .. } => *to == i,
                _ => false,
            };
            return !self.msgs.keys().any(mine);
        }
        let n = &self.nodes[ask.to as usize];
        let r = n.replica.as_ref().filter(|r| r.check(ChainVersion(ask.chain_version)).is_ok());
        let news = r.is_some_and(|r| ask.waits && !n.fenced && !r.successor_asks());
        let news = news && self.stores_refuse();
        news || !self.vouched(&ask).is_empty()
    }

    pub fn ask(&mut self, i: u8) {
        let Some(ask) = self.question(i) else { return };
        let Question { to, chain_version, about, waits } = ask;
        if self.slow_words {
            let life = self.nodes[i as usize].life;
            return self.send(Msg::Ask { from: i, life, to, chain_version, about, waits });
        }
        let vouched = self.word(to, chain_version, &about, waits);
        self.feed(i, Event::Vouched(ChainVersion(chain_version), vouched));
    }

    /// The word of that node.
    pub fn word(&mut self, to: u8, chain_version: u64, about: &[About], waits: bool) -> Vec<About> {
        if waits && self.stores_refuse() && !self.nodes[to as usize].fenced {
            self.feed(to, Event::SuccessorAsks(ChainVersion(chain_version)));
        }
        self.vouched(&Question { to, chain_version, about: about.to_vec(), waits })
    }

    /// [`Fault::ShownAtOnce`].
    pub fn show_at_once(&mut self, i: u8) {
        if let Some(Question { chain_version, about, .. }) = self.question(i) {
            self.feed(i, Event::Vouched(ChainVersion(chain_version), about));
        }
    }

    /// Whoever may be called on to take over has stored what node `i` lets others read.
    pub fn check_stored(&self, i: u8, at: u8, content: &Content) {
        for j in &self.chain.activated_serving {
            let m = self.nodes[*j as usize].store.chunks.get(&chunk(at));
            let stored = content.is_empty() || m.is_some_and(|m| m.stores(content));
            assert!(
                stored,
                "linearizable: node {i} serves [{}] of chunk {at}, which node {j} has not stored",
                show(content)
            );
        }
    }
}
