//! Whole clusters of shipped services in one simulated world, worked on by shipped clients, under faults; and the checkers
//! of what must hold.
//!
//! [`run_seed`] does all of it for one seed; equal seeds give equal runs.

pub mod certain;
pub mod contended;
mod corners;
mod disks;
mod end;
pub mod estate;
mod faults;
pub mod fsck;
pub mod harness;
mod held;
pub mod history;
pub mod lab;
pub mod leaks;
pub mod lives;
pub mod locks;
pub mod model;
pub mod name_history;
pub mod names;
mod operator;
pub mod orphans;
mod own_file;
pub mod records;
pub mod registers;
mod resyncs;
mod run;
pub mod scenes;
mod shape;
pub mod shared_names;
pub mod small;
pub mod watch;
mod weights;
pub mod workload;

pub use corners::Corner;
pub use disks::OUT;
pub use faults::Breaker;
pub use run::{Plan, Report, run_seed};
pub use weights::Faults;
