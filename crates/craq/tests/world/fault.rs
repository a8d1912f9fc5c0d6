//! What can be made wrong around the core, on purpose: a test of the walks. Each looks to the chain like a core that lacks one of its rules.

use super::World;
use glowfs_craq::Update;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// A version counts as active when it is known.
    ActivationIgnored,
    /// The head answers its client when it has staged the write itself.
    AckBeforeTail,
    /// A replica takes what it has forwarded for acknowledged.
    CommitBeforeAck,
    /// A replica shows what it has committed, whatever those before it have stored.
    ShownAtOnce,
    /// A replica vouches for what it has stored itself, whatever those before it have.
    VouchesForOthers,
    /// A replica says that those behind it show nothing early, which they have not said.
    WaitsForOthers,
    /// What somebody has read is told when the predecessor would have to be asked about it.
    ToldUnvouched,
    /// Behind the head, what is committed may be read though a later version is under way.
    StaleRead,
    /// Who has lost its lease answers.
    LeaseUnchecked,
    /// What mgmtd says of a former life counts for the present one.
    FormerLifeTrusted,
    /// What the successor did not take is not sent again.
    NeverAgain,
    /// A resync sends nothing; and nobody reads, so that it shows in the end only.
    NothingTransferred,
    /// A resync sends content as the version after its own.
    VersionMiscounted,
    /// A replica that was brought up to date does not say so.
    NeverUpToDate,
    /// It says that it could not be brought up to date, each time.
    NeverDone,
}

impl World {
    /// The head tells its client so as soon as it has staged the write.
    pub fn ack_at_head(&mut self, node: u8, update: Update) {
        let head = self.nodes[node as usize]
            .replica
            .as_ref()
            .and_then(|r| r.view())
            .is_some_and(|v| v.head);
        if let Some(o) = update.origin.filter(|_| head) {
            self.client_answered((o.client.0 - 1) as u8, (o.seq.0 - 1) as u8, Ok(()));
        }
    }
}
