//! Chain states, leases and primary election as pure state machines.
//!
//! mgmtd drives them: it feeds in what it heard and the time, and carries out what comes back. The rules are those of
//! docs/architecture.md; they are checked by exhaustive exploration in `tests/`.
//!
//! Must never: read a clock, do I/O, or iterate in an order that is not fixed.

mod chain;
mod election;
mod falls;
mod force;
mod give_way;
mod idle;
mod lease;
mod lives;
mod members;
mod reach;
mod repair;
mod restored;
mod time;

pub use chain::{Chain, Change, Evidence, MemberRecord, Observation, Proof, STEPS_MAX, View};
pub use election::{Command, Election, ElectionConfig, LeaseRecord, Standing};
pub use falls::FallPauses;
pub use force::{explain, explain_force, force};
pub use idle::Idle;
pub use lease::{Beat, LeaseConfig, NodeLeases, Verdict};
pub use members::MEMBERS_MAX;
pub use reach::{Blame, BrokenLinks, Pauses, Reach};
pub use repair::{Move, next_move};
pub use time::{AHEAD_NS, ClusterTime};
