//! Exactly once: the last write of every channel.

use crate::Origin;
use glowfs_types::mutant::{Mutant, planted};
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{ChannelId, ChunkId, ChunkVersion, ClientId, Seq};
use std::collections::BTreeMap;

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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
struct Lane {
    done: Option<(Seq, ChunkId, ChunkVersion)>,
    running: Option<(Seq, ChunkId)>,
}

/// The table of channels of one target.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Channels(BTreeMap<(ClientId, ChannelId), Lane>);

impl Channels {
    /// What is known of a write.
    pub fn look(&self, o: &Origin, chunk: ChunkId) -> Seen {
        let Some(lane) = self.0.get(&(o.client, o.channel)) else { return Seen::New };
        if let Some((seq, at)) = lane.running
            && seq >= o.seq
        {
            return if seq == o.seq && at == chunk { Seen::Running } else { Seen::Old };
        }
        match lane.done {
            Some((seq, at, version)) if seq == o.seq && at == chunk => Seen::Done(version),
            Some((seq, ..)) if seq >= o.seq => Seen::Old,
            _ => Seen::New,
        }
    }
    /// A write begins.
    pub fn begin(&mut self, o: &Origin, chunk: ChunkId) {
        let lane = self.0.entry((o.client, o.channel)).or_default();
        if lane.running.is_none_or(|(seq, _)| seq < o.seq) {
            lane.running = Some((o.seq, chunk));
        }
    }
    /// A write committed.
    pub fn commit(&mut self, o: &Origin, chunk: ChunkId, version: ChunkVersion) {
        let lane = self.0.entry((o.client, o.channel)).or_default();
        let newer = lane.done.is_none_or(|(seq, ..)| seq < o.seq);
        if newer && !planted(Mutant::DedupeForgotten) {
            lane.done = Some((o.seq, chunk, version));
        }
        if lane.running == Some((o.seq, chunk)) {
            lane.running = None;
        }
    }
    /// A write was taken back.
    pub fn abort(&mut self, o: &Origin, chunk: ChunkId) {
        let key = (o.client, o.channel);
        if let Some(lane) = self.0.get_mut(&key) {
            if lane.running == Some((o.seq, chunk)) {
                lane.running = None;
            }
            if *lane == Lane::default() {
                self.0.remove(&key);
            }
        }
    }
    /// A record of another replica or of the store: committed.
    pub fn merge(&mut self, r: &ChannelRecord) {
        let o = Origin { client: r.client, channel: r.channel, seq: r.seq };
        let lane = self.0.entry((o.client, o.channel)).or_default();
        if lane.done.is_none_or(|(seq, ..)| seq < o.seq) {
            lane.done = Some((o.seq, r.chunk, r.version));
        }
    }
    /// All committed records, in order.
    pub fn records(&self) -> impl Iterator<Item = ChannelRecord> + '_ {
        self.0.iter().filter_map(|(&(client, channel), lane)| {
            let (seq, chunk, version) = lane.done?;
            Some(ChannelRecord { client, channel, seq, chunk, version })
        })
    }
    /// Channels known.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
