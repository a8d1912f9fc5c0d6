//! A model of a node's store: what it keeps, and what it may be asked.

use super::{Content, Pay};
use glowfs_craq::{Onto, Origin, Update};
use glowfs_types::{ChannelId, ChunkId, ChunkVersion, ClientId, Seq, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Staged {
    pub version: u64,
    pub content: Content,
    pub removes: bool,
    pub replaces: bool,
    pub origin: Option<Origin>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Model {
    pub committed: u64,
    pub content: Content,
    pub removed: bool,
    pub pending: VecDeque<Staged>,
}

impl Model {
    fn commit_to(
        &mut self,
        version: u64,
        channels: &mut BTreeMap<(ClientId, ChannelId), (Seq, ChunkId, u64)>,
        at: ChunkId,
    ) {
        while let Some(s) = self.pending.pop_front_if(|s| s.version <= version) {
            let grows = s.version > self.committed || s.replaces;
            assert!(grows, "versions only grow: {} after {}", s.version, self.committed);
            self.committed = s.version;
            self.content = s.content;
            self.removed = s.removes;
            if let Some(o) = s.origin {
                channels.insert((o.client, o.channel), (o.seq, at, s.version));
            }
        }
    }
    /// Whether it has that version, or a later one.
    pub fn has(&self, version: u64) -> bool {
        self.committed >= version || self.pending.iter().any(|s| s.version >= version)
    }
    /// Whether there is nothing of it, nor will be.
    pub fn is_nothing(&self) -> bool {
        self.content.is_empty() && self.pending.iter().all(|s| s.content.is_empty())
    }
    /// Whether it has that content, or more.
    pub fn stores(&self, content: &Content) -> bool {
        let pending = self.pending.iter().map(|s| &s.content);
        pending.chain([&self.content]).any(|c| c.starts_with(content))
    }
    fn newest(&self) -> (u64, &Content, bool) {
        self.pending.back().map_or((self.committed, &self.content, self.removed), |s| {
            (s.version, &s.content, s.removes)
        })
    }
}

/// What survives a crash.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Store {
    pub chunks: BTreeMap<ChunkId, Model>,
    pub channels: BTreeMap<(ClientId, ChannelId), (Seq, ChunkId, u64)>,
    pub adopted: u64,
}

/// An operation of the store under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    Stage {
        chunk: ChunkId,
        version: u64,
        pay: Pay,
        update: Update,
        commit: bool,
        onto: Onto,
    },
    Commit(ChunkId, u64),
    Discard(ChunkId, u64),
    Forget(BTreeSet<ClientId>, BTreeMap<ClientId, Vec<ChannelId>>),
    ForgetAll(BTreeSet<ClientId>),
    /// With `true`, tombstones go: the target begins to sync.
    Adopt(u64, bool),
}

impl Op {
    pub fn forgets(&self) -> bool {
        matches!(self, Op::Forget(..) | Op::ForgetAll(_))
    }
    pub fn stages(&self) -> bool {
        matches!(self, Op::Stage { .. })
    }
    pub fn chunk(&self) -> Option<ChunkId> {
        match self {
            Op::Stage { chunk, .. } | Op::Commit(chunk, _) | Op::Discard(chunk, _) => Some(*chunk),
            Op::Adopt(..) | Op::Forget(..) | Op::ForgetAll(_) => None,
        }
    }
}

/// A checksum of a content; never 0.
pub fn crc(content: &Content) -> u32 {
    content.iter().fold(17, |h: u32, w| {
        h.wrapping_mul(1_000_003) ^ (u32::from(w.0) << 8 | u32::from(w.1)).wrapping_add(1)
    }) | 1
}

impl Store {
    /// Does an operation.
    pub fn run(&mut self, op: &Op) -> Result<(), Status> {
        match op {
            Op::Adopt(v, syncs) => {
                self.adopted = *v;
                if *syncs {
                    // As in the service, also one below a pending version.
                    for m in self.chunks.values_mut().filter(|m| m.removed) {
                        (m.committed, m.removed) = (0, false);
                    }
                    self.chunks.retain(|_, m| m.committed > 0 || !m.pending.is_empty());
                }
            }
            Op::Forget(clients, some) => self.channels.retain(|(c, channel), _| {
                !clients.contains(c) && !some.get(c).is_some_and(|list| list.contains(channel))
            }),
            Op::ForgetAll(clients) => self.channels.retain(|(c, _), _| !clients.contains(c)),
            Op::Commit(id, v) => {
                let m = self.chunks.entry(*id).or_default();
                m.commit_to(*v, &mut self.channels, *id);
                assert!(m.committed >= *v, "a commit of version {v} that was never staged");
            }
            Op::Discard(id, v) => {
                if let Some(m) = self.chunks.get_mut(id) {
                    m.pending.retain(|s| s.version < *v);
                }
            }
            Op::Stage { chunk: id, version, pay, update, commit, onto } => {
                let m = self.chunks.entry(*id).or_default();
                let (newest, content, removed) = m.newest();
                let content = content.clone();
                let version = *version;
                if *onto == Onto::Anything {
                    // As in the service: what a resync sends may be of any version; a removal at 0 forgets the chunk.
                    if *pay == Pay::Remove && version == 0 {
                        self.chunks.remove(id);
                        return Ok(());
                    }
                    m.pending.retain(|s| s.version > version);
                } else {
                    let gone = (removed || m.committed == 0) && m.pending.is_empty();
                    let anew = *onto == Onto::Nothing && gone && version > newest;
                    if version != newest + 1 && !anew {
                        return Err(Status::VersionGap);
                    }
                }
                let content = match pay {
                    Pay::Append(w) => {
                        let mut c = if removed { Vec::new() } else { content.clone() };
                        c.push(*w);
                        c
                    }
                    Pay::Full(c) => c.clone(),
                    Pay::Remove => Vec::new(),
                };
                m.pending.push_back(Staged {
                    version,
                    content,
                    removes: *pay == Pay::Remove,
                    replaces: *onto == Onto::Anything,
                    origin: update.origin,
                });
                if *commit {
                    m.commit_to(version, &mut self.channels, *id);
                }
            }
        }
        Ok(())
    }

    /// Content as of a version (or later, if that is superseded).
    pub fn content(&self, id: ChunkId, version: u64) -> Content {
        let Some(m) = self.chunks.get(&id) else { return Vec::new() };
        m.pending.iter().find(|s| s.version == version).map_or(&m.content, |s| &s.content).clone()
    }

    pub fn list(&self) -> Vec<(ChunkId, ChunkVersion, Content)> {
        self.chunks
            .iter()
            .filter(|(_, m)| m.committed > 0 && !m.removed)
            .map(|(id, m)| (*id, ChunkVersion(m.committed), m.content.clone()))
            .collect()
    }
}
