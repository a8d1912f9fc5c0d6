//! What goes into a [`crate::Replica`] and what comes out.

use crate::About;
use glowfs_types::routing::{ChainInfo, LocalState};
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{
    ChainVersion, ChannelId, ChunkId, ChunkVersion, ClientId, NodeId, Seq, Status, TargetId,
};
use std::collections::{BTreeMap, BTreeSet};

/// A request that waits for an answer; the service chose the number and holds the request and its payload under it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);
/// One message to the successor. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ForwardId(pub u64);
/// A pause that the service was asked to keep. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimerId(pub u64);

/// Which write of which client an update is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// The client.
    pub client: ClientId,
    /// Its channel.
    pub channel: ChannelId,
    /// The sequence number there.
    pub seq: Seq,
}

/// What the core needs to know of an update; the rest is the service's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Update {
    /// Whose write it is; none for what the cluster does by itself.
    pub origin: Option<Origin>,
    /// It must be flushed before it is answered.
    pub flush: bool,
    /// It needs room on the disk.
    pub needs_room: bool,
    /// It removes the chunk.
    pub removes: bool,
    /// Its sender vouches for it when all before the receiver have stored it (`shown.rs`). The head's always do; of an update that came by a member of an older
    /// release it is not so.
    pub vouches: bool,
}

/// A FORWARD that arrived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Forwarded {
    /// The chain version of the sender.
    pub chain_version: ChainVersion,
    /// The chunk.
    pub chunk: ChunkId,
    /// The version the head gave the update.
    pub version: ChunkVersion,
    /// The version it builds on (0: the chunk does not exist before it).
    pub base: ChunkVersion,
    /// See `UpdateHead::generation`.
    pub generation: u16,
    /// It carries the whole content (what a syncing target is sent).
    pub full: bool,
    /// It is a part of a resync, not a client's update.
    pub sync: bool,
    /// The update.
    pub update: Update,
}

/// A pending version that the store held when the target was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// The chunk.
    pub chunk: ChunkId,
    /// The version.
    pub version: ChunkVersion,
    /// Whose write it was.
    pub origin: Option<Origin>,
    /// It removes the chunk.
    pub removes: bool,
}

/// What the store has of a chunk, committed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ChunkBrief {
    /// The committed version; 0 for none.
    pub committed: ChunkVersion,
    /// Whether there is committed content (a removed chunk keeps its version).
    pub exists: bool,
    /// Checksum of the content; 0 if not known.
    pub content_crc: u32,
}

/// The store as the core sees it. Reads of memory only.
pub trait ChunkView {
    /// The committed state of a chunk.
    fn chunk(&self, chunk: ChunkId) -> ChunkBrief;
    /// Whether an update that needs room may be taken.
    fn has_room(&self) -> bool;
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The routing info has this of our chain (`None`: our target is in no chain).
    Chain(Option<ChainInfo>),
    /// The chain version of an [`Action::Adopt`] is persisted.
    Adopted(ChainVersion),
    /// A client's update.
    Update {
        /// The request.
        ticket: Ticket,
        /// The chain version of the client.
        chain_version: ChainVersion,
        /// The chunk.
        chunk: ChunkId,
        /// The update.
        update: Update,
    },
    /// An update from the predecessor.
    Forward(Ticket, Forwarded),
    /// An [`Action::Stage`] ended: with content safe from a SIGKILL, or refused with nothing stored.
    Staged(ChunkId, ChunkVersion, Result<(), Status>),
    /// An [`Action::Commit`] ended.
    Committed(ChunkId, ChunkVersion, Result<(), Status>),
    /// An [`Action::Discard`] ended.
    Discarded(ChunkId, Result<(), Status>),
    /// The successor answered (with the checksum of its content, 0 if not known), or the call failed.
    Answer(ForwardId, Result<u32, Status>),
    /// The predecessor vouches under that chain version for these versions, and for all before them: whoever is before this target has stored them.
    Vouched(ChainVersion, Vec<About>),
    /// The successor says under that chain version that neither it nor a serving target behind it shows what we sent before we vouch for it.
    SuccessorAsks(ChainVersion),
    /// A pause is over.
    Timer(TimerId),
    /// Someone wants to read.
    Read {
        /// The request.
        ticket: Ticket,
        /// The chain version of the client.
        chain_version: ChainVersion,
        /// The chunk.
        chunk: ChunkId,
    },
    /// Someone has read that version of a chunk, and waits until it may be told.
    Tell {
        /// The request.
        ticket: Ticket,
        /// The chain version under which it was read.
        chain_version: ChainVersion,
        /// The chunk.
        chunk: ChunkId,
        /// What was read of it.
        version: ChunkVersion,
    },
    /// A parked read, before or after it has read, has waited long enough.
    ReadExpired(Ticket, ChunkId),
    /// The committed content of a chunk is to be mended: when nothing of the chunk is under way, nothing new shall begin
    /// ([`Action::Held`]) until [`Event::LetGo`].
    Hold(Ticket, ChunkId),
    /// The end of that, whether it was held yet or not.
    LetGo(Ticket, ChunkId),
    /// The content that a pending version of the chunk is to be forwarded with is damaged here and stays so: the target gives way.
    Unreadable(ChunkId),
    /// The disk under the target failed: what was begun on it need never end.
    DiskFailed,
    /// The predecessor sent everything (SYNC_DONE, last): channel records are merged, everything is flushed.
    SyncDone(Ticket, ChainVersion),
    /// Channel records of the predecessor.
    Channels(ChainVersion, Vec<ChannelRecord>),
    /// An [`Action::ForgetChannels`] ended.
    Forgotten,
    /// No update whose client first tried it before the last [`Event::Age`] can arrive any more. What is forgotten for that is named in steps.
    Age,
    /// The next step of that, as long as [`crate::Replica::is_ageing`].
    AgeOn,
}

/// What is sent down the chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Form {
    /// The update as it came (the service holds it until [`Action::Release`]).
    Original,
    /// The content as of that version, read from the own store; or the removal.
    Full {
        /// The chunk is removed by that version.
        removed: bool,
    },
}

/// What a version is staged on top of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Onto {
    /// The version before it, and no other: the store refuses it if that is not there.
    Previous,
    /// Nothing: the chunk begins anew. The chain knows of a later removal than the store, which takes this one version above its tombstone
    /// (or as the first) whatever lies between.
    Nothing,
    /// Whatever the store has, which is replaced: the target is syncing.
    Anything,
}

/// A positive answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Done {
    /// The chunk.
    pub chunk: ChunkId,
    /// The version the update became.
    pub version: ChunkVersion,
    /// Flush the target first.
    pub flush: bool,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Persist the chain version (with all that the target's record says), then say [`Event::Adopted`].
    Adopt(ChainVersion),
    /// The view changed: tell mgmtd what [`crate::Replica::local`] and [`crate::Replica::view`] say now.
    Report,
    /// Stage the update of `ticket` as `version`.
    Stage {
        /// Whose payload.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: ChunkVersion,
        /// Commit at once.
        commit: bool,
        /// What it goes on top of.
        onto: Onto,
    },
    /// Stage a version again that was refused for want of room and must not be taken back, or for want of a place in the store's queue; with its payload, which is not released yet.
    StageAgain {
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: ChunkVersion,
        /// What it goes on top of.
        onto: Onto,
        /// After a pause. Else it was only refused for one before it, which is stored by now.
        pause: bool,
    },
    /// Commit a staged version.
    Commit(ChunkId, ChunkVersion),
    /// Drop pending versions from this one on.
    Discard(ChunkId, ChunkVersion),
    /// Send an update down the chain; answer with [`Event::Answer`].
    Forward {
        /// Names the message.
        id: ForwardId,
        /// The successor.
        target: TargetId,
        /// Its node.
        node: NodeId,
        /// The chain version.
        chain_version: ChainVersion,
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: ChunkVersion,
        /// What it builds on.
        base: ChunkVersion,
        /// See `UpdateHead::generation`.
        generation: u16,
        /// What is sent.
        form: Form,
        /// The update.
        update: Update,
    },
    /// The payload of that version is not needed any more.
    Release(ChunkId, ChunkVersion),
    /// Answer a request.
    Reply(Ticket, Result<Done, Status>),
    /// Let a read go on, or be told.
    ReadNow(Ticket),
    /// Refuse a read.
    ReadRefused(Ticket, Status),
    /// A read waits for the predecessor's word on that version: ask, now ([`crate::Replica::unvouched_of`]).
    AskPredecessor(ChunkId, ChunkVersion),
    /// Nothing of the chunk is under way now; or it cannot be held.
    Held(Ticket, Result<(), Status>),
    /// Ask mgmtd for newer routing info.
    Refresh,
    /// Say [`Event::Timer`] after a pause: something is sent again.
    Pause(TimerId),
    /// The same after a longer one: the store is asked again, whose queue was full.
    Rest(TimerId),
    /// This target cannot go on; it must be reported offline.
    Failed(Status),
    /// The successor's content differs from ours at the same version.
    Diverged(ChunkId, ChunkVersion),
    /// Nothing of these clients' former updates can come again, nor of those on these channels of others: the store may forget them, behind what it was asked to do
    /// before this and ahead of what it will be asked to do after it. No more than [`crate::AGED_AT_ONCE`].
    Forget(BTreeSet<ClientId>, BTreeMap<ClientId, Vec<ChannelId>>),
    /// The store shall forget these clients' channels, then say [`Event::Forgotten`]; until then nothing is asked of it.
    ForgetChannels(BTreeSet<ClientId>),
}

/// The state to report, in the words of mgmtd.
pub(crate) fn local_state(failed: bool, up_to_date: bool) -> LocalState {
    match (failed, up_to_date) {
        (true, _) => LocalState::Offline,
        (_, true) => LocalState::UpToDate,
        _ => LocalState::Online,
    }
}
