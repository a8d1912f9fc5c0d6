//! The runtime of GlowFS: tasks, time, streams, files and buffers behind one handle.
//!
//! Everything with I/O in GlowFS is written against [`Rt`]. Two backends stand behind it: the real one
//! ([`real`]: one thread, io_uring or a portable fallback) and the simulator's (crate `glowfs-sim`: virtual time,
//! seeded network and disks). So the simulator runs the shipped services, not models of them.
//!
//! Guarantees: one `Rt` belongs to one thread; tasks of it run one at a time and never in parallel; nothing here
//! blocks the thread but [`Rt::unblock`]'s helper threads. Must never: read a clock, a random source, a socket or
//! a file other than through the backend.

pub mod address;
pub mod backend;
pub mod mem;
pub mod process;
pub mod real;
pub mod signal;
pub mod sync;
pub mod tasks;
pub mod time;
pub mod timers;

mod buddy;
mod foreign;
mod handle;
mod heap;
mod outcome;
mod pool;

pub use address::{Address, BadAddress, check_announced};
pub use backend::{BoxFuture, Dir, File, Listener, Stream};
pub use handle::{Elapsed, Rt, Sleep, Task};
pub use heap::Heap;
pub use mem::{Buf, BufMut, Pool};
pub use time::{Duration, Instant};
