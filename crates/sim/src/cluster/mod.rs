//! Whole clusters of shipped services in one simulated world, worked on by shipped clients, under faults; and the checkers
//! of what must hold.

pub mod model;
pub mod registers;
pub mod workload;
