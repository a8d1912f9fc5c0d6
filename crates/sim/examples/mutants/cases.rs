//! Under what each bug is looked for, and what it has to be found for.

use glowfs_rt::Duration;
use glowfs_sim::cluster::scenes::{as_shipped, doomed, forwards, repairs, retries, sources};
use glowfs_sim::cluster::{Corner, Faults, Plan};
use glowfs_types::mutant::Mutant;

/// What is run with a seed.
#[derive(Clone, Copy)]
pub enum Runs {
    /// A cluster under faults drawn by chance.
    Random(Plan),
    /// Chosen faults.
    Scene(fn(u64)),
}

/// See the module.
pub struct Case {
    /// What shows it.
    pub runs: Runs,
    /// A problem that shows it says one of these.
    pub says: &'static [&'static str],
}

impl Case {
    /// Whether this is the bug, and not something else that came of it.
    pub fn is_found(&self, problem: &str) -> bool {
        self.says.iter().any(|s| problem.contains(s))
    }
}

/// A cell of a file that all write to is older, or newer, than it may be, or none at all.
const CELL: &str = "is not linearizable";
/// Parts of two values.
const TORN: &str = "torn at byte";
/// A cell with one writer is older than what was acknowledged or seen.
const OLDER: &str = "which is not between";
/// A byte of a file with one user is not what was written last.
const BYTE: &str = "and must be 0x";
/// Replicas of a chunk are not equal in the end.
const DIFFERS: &str = "differs: target";
/// A store cannot be opened, and its service ends.
const REFUSED: &str = ": start: ";
/// Clients are not answered any more.
const HANG: &str = "clients did not finish";

/// What was written is gone, in any of the files.
const GONE: &[&str] = &[BYTE, OLDER, CELL];

fn says(mutant: Mutant) -> &'static [&'static str] {
    match mutant {
        Mutant::FlushOfOthers | Mutant::BootIgnored | Mutant::LossUntold => GONE,
        Mutant::SyncWithoutFlush => &["a flushed byte is gone"],
        // Or the store itself misses what it had flushed.
        Mutant::MissingFlush | Mutant::CacheTrusted => &[BYTE, OLDER, CELL, REFUSED],
        Mutant::IncarnationUnchecked | Mutant::ActivationIgnored => GONE,
        Mutant::AckBeforeTail | Mutant::CommitBeforeAck | Mutant::DirtyRead => GONE,
        Mutant::DedupeForgotten | Mutant::DedupeNotPersisted => GONE,
        // Or a node that knows nothing of late, not even with which keys rights are signed, and answers all the same.
        Mutant::LeaseUnchecked => &[BYTE, OLDER, CELL, "signed with a key that is not known"],
        Mutant::ChecksumUnchecked => &[TORN, BYTE, "holds value"],
        Mutant::ResyncSkipsRemoved => &[BYTE, OLDER, CELL, DIFFERS, "chunks left"],
        Mutant::ChainVersionUnchecked => &["an acknowledged byte is gone"],
        Mutant::LeaseFromReply => &["has declared dead"],
        Mutant::PrimaryOutlivesLease => &["several primaries"],
        // All hear of members that the next primary does not know, and nobody takes what it says.
        Mutant::RoutingBeforeCommit => &["went back from", "has members", HANG],
        Mutant::FsyncNotDurable => &[
            "before it there was one of",
            "after the engine lost its power",
            "its length is",
            BYTE,
        ],
        Mutant::FsyncOfAnother => &["a flushed length is gone"],
        Mutant::CutBeforeFlush => &["a truncate that never was has cut", "a truncate is gone: "],
        Mutant::DoomUnchecked => &["what a client has open is erased"],
        Mutant::ChannelsNotTold => &["a retry was done twice"],
        Mutant::RepairNotHeld => &["an acknowledged write is gone", "are not put right"],
    }
}

/// How to look for a bug.
pub fn case(mutant: Mutant) -> Case {
    let runs = scene(mutant).map_or_else(|| Runs::Random(plan(mutant)), Runs::Scene);
    Case { runs, says: says(mutant) }
}

/// What no random run reaches.
fn scene(mutant: Mutant) -> Option<fn(u64)> {
    match mutant {
        // The engine is elsewhere for two of three.
        Mutant::FsyncOfAnother => Some(|seed| {
            as_shipped::flushed_lengths(seed, 3);
        }),
        Mutant::CutBeforeFlush => Some(|seed| {
            as_shipped::undone_truncates(seed);
        }),
        Mutant::DoomUnchecked => Some(|seed| {
            doomed::opened_late(seed);
        }),
        Mutant::SyncWithoutFlush => Some(sources::one_that_was_just_brought_up_to_date),
        Mutant::ChainVersionUnchecked => Some(forwards::of_a_version_that_is_over),
        Mutant::ChannelsNotTold => Some(retries::at_one_that_was_brought_up_to_date),
        Mutant::RepairNotHeld => Some(repairs::a_write_beside_a_repair),
        _ => None,
    }
}

/// The faults that a bug is most likely to show under; the run is the same otherwise.
fn plan(mutant: Mutant) -> Plan {
    let all = Faults::ALL;
    let corner = match mutant {
        Mutant::ActivationIgnored => Some(Corner::Squeeze),
        Mutant::DedupeForgotten => Some(Corner::Mute),
        Mutant::DedupeNotPersisted => Some(Corner::MuteAndKill),
        Mutant::LeaseFromReply => Some(Corner::LateAnswers),
        Mutant::CacheTrusted => Some(Corner::FailedFlushes),
        Mutant::RoutingBeforeCommit | Mutant::PrimaryOutlivesLease => Some(Corner::CutPrimary),
        _ => None,
    };
    let faults = match mutant {
        _ if corner.is_some() => Faults { corners: 10, ..Faults::NONE },
        Mutant::MissingFlush | Mutant::FlushOfOthers | Mutant::LossUntold => {
            Faults { all: 6, ..all }
        }
        // Nothing else: all fall as often as chains are whole.
        Mutant::BootIgnored => Faults { all: 6, storages: 2, calm: 4, ..Faults::NONE },
        Mutant::ChecksumUnchecked => Faults { disks: 10, ..all },
        Mutant::LeaseUnchecked => Faults { freezes: 8, ..all },
        Mutant::ResyncSkipsRemoved => Faults { storages: 12, ..all },
        Mutant::FsyncNotDurable => Faults { control: 12, ..all },
        _ => all,
    };
    let background = mutant == Mutant::FsyncNotDurable;
    Plan { faults, corner, background, time: Duration::from_secs(10), ..Plan::default() }
}
