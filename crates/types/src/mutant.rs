//! Bugs that can be planted, one at a time, to test the tests.
//!
//! Compiled only under the feature `mutants`; without it [`planted`] is the constant `false` and costs nothing. The simulator
//! (`./mutants`) must find every one of them.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal;)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $name,)*
        }
        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Mutant] = &[$(Self::$name,)*];
            /// Its name on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

mutants! {
    /// A disk's flush is answered without being done.
    MissingFlush = "missing-flush";
    /// The flush of a file does not wait for what was written of it.
    FlushOfOthers = "flush-of-others";
    /// A resynced target reports up to date before it flushed.
    SyncWithoutFlush = "sync-without-flush";
    /// mgmtd takes a new life of a store for the old one.
    IncarnationUnchecked = "incarnation-unchecked";
    /// The record of a committed write is forgotten: a retry is applied again.
    DedupeForgotten = "dedupe-forgotten";
    /// The record of a write is not persisted with it, and does not travel with a resync.
    DedupeNotPersisted = "dedupe-not-persisted";
    /// A replica with a pending version answers reads from its committed one.
    DirtyRead = "dirty-read";
    /// Updates commit under a chain version that is not active.
    ActivationIgnored = "activation-ignored";
    /// A node counts its lease from the answer to the heartbeat instead of its sending.
    LeaseFromReply = "lease-from-reply";
    /// A node serves without a lease.
    LeaseUnchecked = "lease-unchecked";
    /// The head answers the client when it has staged the write itself.
    AckBeforeTail = "ack-before-tail";
    /// A target commits before its successor has answered.
    CommitBeforeAck = "commit-before-ack";
    /// A resync does not remove what only the receiver has.
    ResyncSkipsRemoved = "resync-skips-removed";
    /// Messages of any chain version are taken.
    ChainVersionUnchecked = "chain-version-unchecked";
    /// mgmtd hands out a change before the engine has it, and keeps it if the engine refuses.
    RoutingBeforeCommit = "routing-before-commit";
    /// A primary goes on after its lease ran out.
    PrimaryOutlivesLease = "primary-outlives-lease";
    /// A store that is opened takes what it can read for durable.
    CacheTrusted = "cache-trusted";
    /// A read is not verified against its checksum.
    ChecksumUnchecked = "checksum-unchecked";
    /// A machine that lost power counts as one whose processes were killed.
    BootIgnored = "boot-ignored";
    /// A chain does not say that it began again without what was not flushed.
    LossUntold = "loss-untold";
    /// An fsync does not have metadata flushed.
    FsyncNotDurable = "fsync-not-durable";
    /// A call that is put into the transaction of another one is flushed only if that one asks for it.
    FsyncOfAnother = "fsync-of-another";
    /// A truncate removes chunks before it is on disk itself.
    CutBeforeFlush = "cut-before-flush";
    /// A removed file is opened although clients are being asked who has it open.
    DoomUnchecked = "doom-unchecked";
    /// What a resync tells of writes is stored, and the replica itself does not hear of it.
    ChannelsNotTold = "channels-not-told";
    /// A chunk is written to while it is repaired as a whole.
    RepairNotHeld = "repair-not-held";
}

#[cfg(feature = "mutants")]
thread_local!(static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) });

/// Plants one on this thread, or takes it out again.
#[cfg(feature = "mutants")]
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}

/// Whether this bug is planted.
#[cfg(feature = "mutants")]
pub fn planted(mutant: Mutant) -> bool {
    PLANTED.get() == Some(mutant)
}

/// Whether this bug is planted: never in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn planted(_: Mutant) -> bool {
    false
}
