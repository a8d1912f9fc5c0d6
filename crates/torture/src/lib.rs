//! Torture of a real cluster of real processes: faults under load, and a checker that knows every acknowledged byte.
//!
//! It uses the cluster as anybody would: `glowfs dev`, `glowfs admin`, `glowfs mount`, the mounts and the client library. Not
//! part of a release. Guarantees: a run passes only if each kind of fault that was asked for struck with effect while operations were in flight, nothing acknowledged
//! was lost or wrong, all replicas hold the same, and no application saw an error that the fault does not excuse; what it did is reproducible from the seed as
//! far as the order and kind of faults and operations go (not their timing). However a run ends, what it started
//! is taken down. Must never: end a process that it did not start, remove a file that it did not make.

pub mod block;
pub mod cluster;
pub mod flight;
pub mod hand;
pub mod ledger;
pub mod linear;
pub mod machine;
pub mod nemesis;
pub mod process;
pub mod random;
pub mod replicas;
pub mod report;
pub mod run;
pub mod scrub;
pub mod shutdown;
pub mod site;
pub mod stalls;
pub mod view;
pub mod watchdog;
pub mod work;
