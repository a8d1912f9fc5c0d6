//! Exactly once: the last write of every channel, for as long as a retry of it may come.
//!
//! A record is needed while the head may still be asked for that write again. How long that can be is bounded
//! (`glowfs_types::limits::UPDATE_LIFE_MAX_MS`, and why), counted from the client's first try, which was before anything of the write was
//! seen here. So the shell says [`crate::Event::Age`] with at least that time between two of them; a channel of which nothing was seen
//! between the last two of them, and nothing is under way, is forgotten at the next one. Each target counts by itself: whatever others still know
//! or not, no retry comes to any of them. What is learned late (from the store, by a resync) counts as seen when it is learned.
//!
//! A client chooses its channels, as many as it likes. The head takes no write on a channel that it does not know while it knows
//! [`CLIENT_CHANNELS_MAX`] of that client, or [`TARGET_CHANNELS_MAX`] of all; it forgets nothing for it, so what was written once stays so. The others have
//! what the head let in within two of their ages, which is no more than three times that.
//!
//! What is to be forgotten is looked for in steps of [`AGED_AT_ONCE`] records: there may be many.

use crate::Origin;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{ChannelId, ChunkId, ChunkVersion, ClientId, Seq};
use std::collections::{BTreeMap, BTreeSet};

/// The age in which a record was seen may have begun just before, and end just after: a whole one must be between.
const AGES_KEPT: u32 = 2;

/// Channels of one client that the head knows, at most. A client uses 256 at once and gives up those whose outcome it does not learn within a
/// minute: all of them, each minute, for an hour (two ages) are fewer.
pub const CLIENT_CHANNELS_MAX: usize = 16 << 10;

/// Channels of all clients that the head knows of one target, at most: what 4096 clients use that write all they can at once. Each takes some 300 bytes of memory
/// on each replica, in the core and in the store.
pub const TARGET_CHANNELS_MAX: usize = 1 << 20;

/// Channels that are looked at in one step of an age.
pub const AGED_AT_ONCE: usize = 4096;

/// What became of a write that was seen before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// Never seen: apply it.
    New,
    /// It is on its way, on this chunk: join it.
    Running,
    /// It committed as this version.
    Done(ChunkVersion),
    /// The channel has moved on, or the number was used for something else.
    Old,
}

/// One channel: what committed last, and what is on its way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
struct Lane {
    done: Option<(Seq, ChunkId, ChunkVersion)>,
    /// Ascending. More than one where a client was refused a write of which an earlier copy still runs, and went on.
    running: Vec<(Seq, ChunkId)>,
    /// The age in which it was seen last.
    age: u32,
}

/// The table of channels of one target.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Channels {
    lanes: BTreeMap<(ClientId, ChannelId), Lane>,
    /// How many of them each client has.
    counts: BTreeMap<ClientId, usize>,
    /// How often [`Channels::age`] was called.
    age: u32,
    /// Where the look for what is to be forgotten goes on, if it has not ended.
    ageing: Option<(ClientId, ChannelId)>,
}

/// What is forgotten: clients, of which nothing is known any more, and channels of those of which something is.
pub(crate) type Forgotten = (BTreeSet<ClientId>, BTreeMap<ClientId, Vec<ChannelId>>);

impl Channels {
    /// What is known of a write.
    pub fn look(&self, o: &Origin, chunk: ChunkId) -> Seen {
        let Some(lane) = self.lanes.get(&(o.client, o.channel)) else { return Seen::New };
        if lane.running.contains(&(o.seq, chunk)) {
            return Seen::Running;
        }
        if lane.running.last().is_some_and(|(seq, _)| *seq >= o.seq) {
            return Seen::Old;
        }
        match lane.done {
            Some((seq, at, version)) if seq == o.seq && at == chunk => Seen::Done(version),
            Some((seq, ..)) if seq >= o.seq => Seen::Old,
            _ => Seen::New,
        }
    }
    /// Whether there is no room for the channel of a write.
    pub fn is_full(&self, o: &Origin) -> bool {
        let of_client = self.counts.get(&o.client).copied().unwrap_or(0);
        (of_client >= CLIENT_CHANNELS_MAX || self.lanes.len() >= TARGET_CHANNELS_MAX)
            && !self.lanes.contains_key(&(o.client, o.channel))
    }
    /// The channel of a write that is seen now.
    fn seen(&mut self, o: &Origin) -> &mut Lane {
        let lane = self.lanes.entry((o.client, o.channel)).or_insert_with(|| {
            *self.counts.entry(o.client).or_default() += 1;
            Lane::default()
        });
        lane.age = self.age;
        lane
    }
    fn forget(&mut self, client: ClientId, channel: ChannelId) {
        if self.lanes.remove(&(client, channel)).is_some()
            && let Some(n) = self.counts.get_mut(&client)
        {
            *n -= 1;
            if *n == 0 {
                self.counts.remove(&client);
            }
        }
    }
    /// A write begins.
    pub fn begin(&mut self, o: &Origin, chunk: ChunkId) {
        let lane = self.seen(o);
        if let Err(at) = lane.running.binary_search(&(o.seq, chunk)) {
            lane.running.insert(at, (o.seq, chunk));
        }
    }
    /// A write committed.
    pub fn commit(&mut self, o: &Origin, chunk: ChunkId, version: ChunkVersion) {
        let lane = self.seen(o);
        let newer = lane.done.is_none_or(|(seq, ..)| seq < o.seq);
        if newer && !planted(Mutant::DedupeForgotten) {
            lane.done = Some((o.seq, chunk, version));
        }
        lane.running.retain(|r| *r != (o.seq, chunk));
    }
    /// A write was taken back.
    pub fn abort(&mut self, o: &Origin, chunk: ChunkId) {
        let key = (o.client, o.channel);
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.running.retain(|r| *r != (o.seq, chunk));
            if lane.done.is_none() && lane.running.is_empty() {
                self.forget(o.client, o.channel);
            }
        }
    }
    /// A record of another replica or of the store: committed.
    pub fn merge(&mut self, r: &ChannelRecord) {
        let o = Origin { client: r.client, channel: r.channel, seq: r.seq };
        let lane = self.seen(&o);
        if lane.done.is_none_or(|(seq, ..)| seq < o.seq) {
            lane.done = Some((o.seq, r.chunk, r.version));
        }
    }
    /// All committed records, in order.
    pub fn records(&self) -> impl Iterator<Item = ChannelRecord> + '_ {
        self.lanes.iter().filter_map(|(&(client, channel), lane)| {
            let (seq, chunk, version) = lane.done?;
            Some(ChannelRecord { client, channel, seq, chunk, version })
        })
    }
    /// Forgets everything, and names whose it was.
    pub fn clear(&mut self) -> BTreeSet<ClientId> {
        self.lanes.clear();
        std::mem::take(&mut self.counts).into_keys().collect()
    }
    /// Channels known.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }
    /// A new age begins: the first step of [`Channels::age_on`].
    pub fn age(&mut self) -> Forgotten {
        self.age += 1;
        self.ageing = Some((ClientId(0), ChannelId(0)));
        self.age_on()
    }
    /// One step: forgets the channels of which nothing was seen in the whole age that has ended, of as many as are looked at, and names them.
    pub fn age_on(&mut self) -> Forgotten {
        let Some(from) = self.ageing.take() else { return Forgotten::default() };
        let now = self.age;
        let mut gone: BTreeMap<ClientId, Vec<ChannelId>> = BTreeMap::new();
        for (looked, ((client, channel), lane)) in self.lanes.range(from..).enumerate() {
            if looked == AGED_AT_ONCE {
                self.ageing = Some((*client, *channel));
                break;
            }
            if lane.running.is_empty() && now - lane.age >= AGES_KEPT {
                gone.entry(*client).or_default().push(*channel);
            }
        }
        for (client, channels) in &gone {
            channels.iter().for_each(|channel| self.forget(*client, *channel));
        }
        let clients = gone.keys().copied().filter(|c| !self.counts.contains_key(c)).collect();
        gone.retain(|client, _| self.counts.contains_key(client));
        (clients, gone)
    }
    /// Whether there are steps left of this age.
    pub fn is_ageing(&self) -> bool {
        self.ageing.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{DataId, VolumeId};

    const CHUNK: ChunkId = ChunkId { volume: VolumeId(1), data: DataId(1), index: 0 };

    fn origin(client: u128, seq: u64) -> Origin {
        Origin { client: ClientId(client), channel: ChannelId(1), seq: Seq(seq) }
    }
    fn write(c: &mut Channels, client: u128, seq: u64) {
        c.begin(&origin(client, seq), CHUNK);
        c.commit(&origin(client, seq), CHUNK, ChunkVersion(seq));
    }

    /// The clients that are forgotten as a whole; no other channel is.
    fn clients(c: &mut Channels) -> BTreeSet<ClientId> {
        let (clients, channels) = c.age();
        assert!(channels.is_empty(), "{channels:?}");
        clients
    }

    #[test]
    fn a_client_is_forgotten_after_a_whole_age_without_it_and_not_before() {
        let mut c = Channels::default();
        write(&mut c, 7, 1);
        c.begin(&origin(8, 1), CHUNK);
        assert!(clients(&mut c).is_empty(), "it may have been seen just now");
        assert_eq!(c.look(&origin(7, 1), CHUNK), Seen::Done(ChunkVersion(1)));
        assert_eq!(clients(&mut c), BTreeSet::from([ClientId(7)]), "8 has something under way");
        assert_eq!(c.look(&origin(7, 1), CHUNK), Seen::New);
        c.commit(&origin(8, 1), CHUNK, ChunkVersion(2));
        for seq in 2..9 {
            assert!(clients(&mut c).is_empty(), "it goes on");
            write(&mut c, 8, seq);
        }
        assert_eq!((clients(&mut c).len(), clients(&mut c).len(), c.len()), (0, 1, 0));
    }

    /// A client goes on, and gave up a channel: that one is forgotten by itself.
    #[test]
    fn a_channel_is_forgotten_after_a_whole_age_without_it_and_not_before() {
        let mut c = Channels::default();
        let given_up = Origin { channel: ChannelId(2), ..origin(7, 1) };
        c.begin(&given_up, CHUNK);
        for seq in 1..4 {
            write(&mut c, 7, seq);
            assert!(clients(&mut c).is_empty(), "it is under way");
        }
        c.commit(&given_up, CHUNK, ChunkVersion(2));
        write(&mut c, 7, 4);
        assert!(clients(&mut c).is_empty(), "it may have been seen just now");
        assert_eq!(c.look(&given_up, CHUNK), Seen::Done(ChunkVersion(2)));
        write(&mut c, 7, 5);
        let of = BTreeMap::from([(ClientId(7), vec![ChannelId(2)])]);
        assert_eq!(c.age(), (BTreeSet::new(), of));
        assert_eq!(c.look(&given_up, CHUNK), Seen::New);
        assert_eq!(c.look(&origin(7, 5), CHUNK), Seen::Done(ChunkVersion(5)));
    }

    #[test]
    fn a_client_has_so_many_channels_and_no_more_until_some_are_forgotten() {
        let mut c = Channels::default();
        let on = |channel: usize| Origin { channel: ChannelId(channel as u64), ..origin(7, 1) };
        for channel in 0..CLIENT_CHANNELS_MAX {
            assert!(!c.is_full(&on(channel)));
            c.begin(&on(channel), CHUNK);
            c.commit(&on(channel), CHUNK, ChunkVersion(1));
        }
        assert!(c.is_full(&on(CLIENT_CHANNELS_MAX)) && !c.is_full(&on(0)));
        assert!(!c.is_full(&origin(8, 1)), "others have theirs");
        assert!(clients(&mut c).is_empty());
        c.begin(&on(0), CHUNK);
        let mut gone = c.age().1.remove(&ClientId(7)).expect("some");
        let mut steps = 1;
        while c.is_ageing() {
            gone.extend(c.age_on().1.remove(&ClientId(7)).expect("more"));
            steps += 1;
        }
        assert_eq!((gone.len(), steps), (CLIENT_CHANNELS_MAX - 1, 4));
        assert!(!c.is_full(&on(CLIENT_CHANNELS_MAX)));
    }

    /// A client after the other takes what it may, and goes: all replicas had them all in memory.
    #[test]
    fn all_clients_together_have_so_many_channels_and_no_more() {
        let mut c = Channels::default();
        let on = |i: usize| {
            let (client, channel) = (i / CLIENT_CHANNELS_MAX, i % CLIENT_CHANNELS_MAX);
            Origin { channel: ChannelId(channel as u64), ..origin(client as u128 + 1, 1) }
        };
        for i in 0..TARGET_CHANNELS_MAX {
            assert!(!c.is_full(&on(i)));
            c.begin(&on(i), CHUNK);
            c.commit(&on(i), CHUNK, ChunkVersion(1));
        }
        assert!(c.is_full(&on(TARGET_CHANNELS_MAX)) && !c.is_full(&on(0)));
        c.age();
        // Each step names as many as the store takes at once, and nothing that comes meanwhile.
        let (clients, channels) = c.age();
        assert_eq!((clients.len(), channels.values().map(Vec::len).sum()), (0, AGED_AT_ONCE));
        let mut clients = BTreeSet::new();
        while c.is_ageing() {
            let (more, channels) = c.age_on();
            assert!(more.len() + channels.values().map(Vec::len).sum::<usize>() <= AGED_AT_ONCE);
            clients.extend(more);
        }
        assert_eq!((clients.len(), c.len()), (TARGET_CHANNELS_MAX / CLIENT_CHANNELS_MAX, 0));
        assert!(!c.is_full(&on(TARGET_CHANNELS_MAX)));
    }

    /// A client was refused one copy of a write, went on, and was refused that as well; the first copy still runs.
    #[test]
    fn a_write_that_runs_is_known_though_its_channel_has_gone_on() {
        let mut c = Channels::default();
        let (first, second) = (origin(7, 1), origin(7, 2));
        c.begin(&first, CHUNK);
        c.begin(&second, CHUNK);
        c.abort(&second, CHUNK);
        assert_eq!(c.look(&first, CHUNK), Seen::Running, "a late copy would be done twice");
        c.commit(&first, CHUNK, ChunkVersion(1));
        assert_eq!(c.look(&first, CHUNK), Seen::Done(ChunkVersion(1)));
        assert_eq!(c.look(&second, CHUNK), Seen::New);
    }

    #[test]
    fn very_many_clients_that_come_and_go_leave_no_more_than_two_ages_of_them() {
        let mut c = Channels::default();
        for client in 1..=100_000 {
            write(&mut c, client, 1);
            if client % 1000 == 0 {
                c.age();
                while c.is_ageing() {
                    c.age_on();
                }
            }
            assert!(c.len() <= 2000, "{} channels are kept", c.len());
        }
    }
}
