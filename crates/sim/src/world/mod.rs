//! A simulated world: nodes with their own clocks, a network and disks, all in one thread, all from one seed.
//!
//! ```
//! use glowfs_sim::world::World;
//! use std::time::Duration;
//!
//! let world = World::new(7);
//! let node = world.node("storage-1");
//! let rt = node.rt();
//! let answer = world.run(&node, Duration::from_secs(10), async move {
//!     rt.sleep(Duration::from_secs(3)).await;
//!     42
//! });
//! assert_eq!(answer, Some(42));
//! ```
//!
//! Guarantees: the same seed and the same calls give the same run, down to every byte and moment
//! ([`World::trace_hash`] tells). Time passes only as fast as the nodes let it: a step of a task costs
//! about a microsecond, waiting costs nothing of ours. Among ready tasks any may run next.
//!
//! Must never: look at the real clock, a real random source, or the order of a hash map.

mod blocks;
mod core;
mod disk;
mod file;
mod net;
mod node;
mod random;
mod stream;
mod under_way;

#[cfg(test)]
mod tests;

pub use self::core::{World, running};
pub use disk::{DISK_BYTES, DiskFaults, DiskImage, SimDisk};
pub use net::Link;
pub use node::SimNode;
pub use random::Random;
