//! `glowfs bench`: what each layer does alone, and what fio sees of all of them, as JSON and as one HTML page with pictures.
//!
//! Guarantees: it measures what ships, by its public interfaces; it uses directories and clusters of its own, and ends and removes only
//! those; its memory is bounded whatever is swept. Must never: be needed by a service, or touch data that was there.

mod args;
mod cluster;
mod cpu;
mod drive;
mod fio;
mod latency;
mod layer;
mod page;
mod picture;
mod progress;
mod row;
mod run;

pub use args::{BenchArgs, Layer, Sweep};
pub use cpu::Processes;
pub use row::{Machine, Report, Row};
pub use run::run;
