//! What a predecessor vouches for, and the check of it: what is told is stored by all that may be called on to take over.

use super::node::{self, show};
use super::{Content, Fault, Msg, Node, World, chunk};
use glowfs_craq::{About, Event, Ticket, View};
use glowfs_types::{ChainVersion, ChunkId, ChunkVersion};

/// So many read of one node at a time.
const READINGS_MAX: usize = 2;

/// What somebody has read of a node, and waits for until it may be told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reading {
    ticket: Ticket,
    at: u8,
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
    /// That about this.
    fn asks(&self, i: u8, about: Vec<About>) -> Option<Question> {
        let n = &self.nodes[i as usize];
        let r = n.replica.as_ref().filter(|_| !n.older)?;
        let View { version, predecessor, .. } = r.asks_predecessor()?;
        let to = (predecessor?.0.0 - 1) as u8;
        let waits = r.shows_nothing_early() || self.fault == Some(Fault::WaitsForOthers);
        (!about.is_empty()).then_some(Question { to, chain_version: version.0, about, waits })
    }

    /// What it has to ask for itself.
    fn question(&self, i: u8) -> Option<Question> {
        let r = self.nodes[i as usize].replica.as_ref()?;
        self.asks(i, r.unvouched(chunk(0)).collect())
    }

    /// What it has to ask for those who have read, where that is not the same.
    fn question_of_readers(&self, i: u8) -> Option<Question> {
        let n = &self.nodes[i as usize];
        let r = n.replica.as_ref()?;
        let of = |x: &Reading| r.unvouched_of(chunk(x.at), ChunkVersion(x.version));
        let about: Vec<_> = n.readings.iter().filter_map(of).collect();
        if r.unvouched(chunk(0)).eq(about.iter().copied()) { None } else { self.asks(i, about) }
    }

    /// What that node vouches for.
    fn vouched(&self, ask: &Question) -> Vec<About> {
        let n = &self.nodes[ask.to as usize];
        if n.older && n.replica.is_some() {
            // That it knows no such question counts as the word of everybody.
            return ask.about.clone();
        }
        let Some(r) = n.replica.as_ref().filter(|_| !n.fenced) else { return Vec::new() };
        let store = node::View(&n.store, n.full);
        let vouches = |a: &About| {
            let word = r.vouches(ChainVersion(ask.chain_version), a.chunk, a.version, &store);
            let stored = || n.store.chunks.get(&a.chunk).is_some_and(|m| m.has(a.version.0));
            word.is_ok_and(|w| w || self.fault == Some(Fault::VouchesForOthers) && stored())
        };
        ask.about.iter().copied().filter(vouches).collect()
    }

    /// Whether that node lets somebody read the chunk now, to be told then or later.
    pub fn can_read(&self, i: u8, at: u8) -> bool {
        let n = &self.nodes[i as usize];
        let Some((r, view)) = n.replica.as_ref().and_then(|r| Some((r, r.view()?))) else {
            return false;
        };
        let serves = r.check(view.version).is_ok_and(|v| v.serving() && !v.head);
        r.can_read(view.version, chunk(at)) == Ok(true)
            || self.fault == Some(Fault::StaleRead) && serves
    }

    /// Whether it lets somebody read the chunk, as it is there, and tells it at once.
    pub fn shows(&self, i: u8, at: u8) -> bool {
        let n = &self.nodes[i as usize];
        let Some((r, view)) = n.replica.as_ref().and_then(|r| Some((r, r.view()?))) else {
            return false;
        };
        let committed = n.store.chunks.get(&chunk(at)).map_or(0, |m| m.committed);
        let told = r.may_tell(view.version, chunk(at), ChunkVersion(committed));
        self.can_read(i, at) && (n.older || told == Ok(true))
    }

    /// Which chunks somebody may read of that node now.
    pub fn may_read(&self, i: u8) -> Vec<u8> {
        let n = &self.nodes[i as usize];
        let free = self.budget.reads > 0 && n.readings.len() < READINGS_MAX && !n.fenced;
        self.chunks().into_iter().filter(|at| free && self.can_read(i, *at)).collect()
    }

    /// Somebody reads, and it is told as soon as the core says so.
    pub fn read(&mut self, i: u8, at: u8) {
        self.budget.reads -= 1;
        let n = &mut self.nodes[i as usize];
        let Some(view) = n.replica.as_ref().and_then(|r| r.view()) else { return };
        let chain_version = view.version;
        let m = n.store.chunks.get(&chunk(at)).cloned().unwrap_or_default();
        n.next_ticket += 1;
        let ticket = Ticket(n.next_ticket);
        let (version, older) = (m.committed, n.older);
        n.readings.push(Reading { ticket, at, version, content: m.content });
        if older {
            return self.told(i, ticket);
        }
        let (chunk, version) = (chunk(at), ChunkVersion(version));
        self.feed(i, Event::Tell { ticket, chain_version, chunk, version });
    }

    pub fn waits_no_more(&mut self, i: u8, ticket: Ticket) -> Option<Reading> {
        let readings = &mut self.nodes[i as usize].readings;
        let place = readings.iter().position(|r| r.ticket == ticket)?;
        Some(readings.remove(place))
    }

    /// It is told now; it held all that was shown before when it was read ([`World::observe`]).
    pub fn told(&mut self, i: u8, ticket: Ticket) {
        let Some(reading) = self.waits_no_more(i, ticket) else { return };
        if self.nodes[i as usize].fenced {
            // Without a lease nothing is told.
            return;
        }
        let Reading { at, version, content, .. } = reading;
        self.check_stored((i, "tells"), at, &content, version);
        if self.removes() || self.gave_way {
            return;
        }
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

    /// [`Fault::ToldUnvouched`].
    pub fn tell_all(&mut self, i: u8, of: ChunkId) {
        let mut waiting = self.nodes[i as usize].readings.clone();
        waiting.retain(|r| chunk(r.at) == of);
        waiting.into_iter().for_each(|r| self.told(i, r.ticket));
    }

    /// That the successor waits matters to nobody else.
    fn stores_refuse(&self) -> bool {
        self.refused || self.budget.refusals > 0
    }

    /// Whether it has something to ask, and something comes of it.
    pub fn may_ask(&self, i: u8) -> bool {
        self.question(i).is_some_and(|ask| self.is_of_use(i, &ask))
    }

    pub fn may_ask_for_reader(&self, i: u8) -> bool {
        self.question_of_readers(i).is_some_and(|ask| self.is_of_use(i, &ask))
    }

    fn is_of_use(&self, i: u8, ask: &Question) -> bool {
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
        let hears = |n: &Node| !n.fenced && !n.older && self.stores_refuse();
        let news = r.is_some_and(|r| ask.waits && hears(n) && !r.successor_asks());
        news || !self.vouched(ask).is_empty()
    }

    pub fn ask(&mut self, i: u8) {
        if let Some(ask) = self.question(i) {
            self.put(i, ask);
        }
    }

    pub fn ask_for_reader(&mut self, i: u8) {
        if let Some(ask) = self.question_of_readers(i) {
            self.put(i, ask);
        }
    }

    fn put(&mut self, i: u8, ask: Question) {
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
        let n = &self.nodes[to as usize];
        if waits && self.stores_refuse() && !n.fenced && !n.older {
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

    /// Whoever may be called on to take over has stored what node `i` shows. Where nothing is left of a chunk, or may be removed once more, that goes by versions: who has
    /// nothing at all can bring nothing back.
    pub fn check_stored(&self, (i, does): (u8, &str), at: u8, content: &Content, version: u64) {
        // Older releases show at once, and so does who has the word of one: there it is that what was seen stays that counts.
        if self.nodes.iter().any(|n| n.older) {
            return;
        }
        for j in &self.chain.activated_serving {
            let m = self.nodes[*j as usize].store.chunks.get(&chunk(at));
            let stored = match m {
                _ if content.is_empty() => m.is_none_or(|m| m.has(version) || m.is_nothing()),
                Some(m) if self.removes() => m.has(version),
                Some(m) => m.stores(content),
                None => false,
            };
            assert!(
                stored,
                "linearizable: node {i} {does} [{}] of chunk {at}, version {version}, which node {j} has not stored",
                show(content)
            );
        }
    }
}
