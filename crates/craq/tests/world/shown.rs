//! What a predecessor vouches for, and the check of it: what can be read is stored by all that may be called on to take over.

use super::node::show;
use super::{Content, Fault, Msg, World, chunk};
use glowfs_craq::{Event, View};
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion};

/// What is asked, of whom.
struct Question {
    to: u8,
    chain_version: u64,
    about: Vec<(ChunkId, ChunkVersion)>,
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
    fn vouched(&self, ask: &Question) -> Vec<(ChunkId, ChunkVersion)> {
        let n = &self.nodes[ask.to as usize];
        let Some(r) = n.replica.as_ref().filter(|_| !n.fenced) else { return Vec::new() };
        let vouches = |(id, version): &(ChunkId, ChunkVersion)| {
            let word = r.vouches(ChainVersion(ask.chain_version), *id, *version);
            let stored = || n.store.chunks.get(id).is_some_and(|m| m.has(version.0));
            word.is_ok_and(|w| w || self.fault == Some(Fault::VouchesForOthers) && stored())
        };
        ask.about.iter().copied().filter(vouches).collect()
    }

    /// Whether that node lets somebody read the chunk, as it is there.
    pub fn shows(&self, i: u8, at: u8) -> bool {
        let r = self.nodes[i as usize].replica.as_ref();
        let view = r.and_then(|r| r.view());
        view.is_some_and(|v| r.and_then(|r| r.can_read(v.version, chunk(at)).ok()) == Some(true))
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
    pub fn word(
        &mut self,
        to: u8,
        chain_version: u64,
        about: &[(ChunkId, ChunkVersion)],
        waits: bool,
    ) -> Vec<(ChunkId, ChunkVersion)> {
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
