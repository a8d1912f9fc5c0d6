//! Which stores make which chains: pure and deterministic, no solver, any number of nodes, disks, racks and replicas.
//!
//! What is wanted, in this order:
//! 1. the members of a chain lie on distinct nodes (always), and on distinct racks while the cluster has enough of them;
//! 2. every disk carries targets in proportion to its capacity;
//! 3. every two disks share as few chains as possible, so that when one fails, the traffic of recovery is spread
//!    over all others;
//! 4. every disk is the head of equally many chains;
//! 5. neighbours on the table use different disks, so that a file striped over a few chains uses many disks.
//!
//! How: quotas by capacity ([`quota`]), a greedy choice that always serves the node with the most left ([`Plan`]), a
//! bounded exchange of members between chains that evens out pairs, then the heads, then the order. More chains are laid like the first ones, over what
//! each disk lacks of its share ([`lacking`]).
//!
//! Must never: depend on anything but its arguments.

mod growth;
mod improve;
mod order;
mod plan;
mod quota;
mod replacement;

pub use growth::lacking;
pub use plan::{CHAINS_MAX, Place, Plan, REPLICAS_MAX, Request, plan};
pub use replacement::{Burden, replacement};
