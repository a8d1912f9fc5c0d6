//! Logs, counters, histograms, and health and metrics over HTTP.
//!
//! Recording costs one or two plain memory writes: a [`Counter`], [`Gauge`] or [`Histogram`] is bound to the thread that made
//! it, and the [`Registry`] sums what the threads recorded when somebody asks. Guarantees: recording takes
//! no lock and allocates nothing. Must never: block the thread on a slow scraper or log reader's socket.

mod histogram;
pub mod http;
mod log;
mod process;
mod registry;
mod steps;

pub use histogram::{Histogram, Snapshot, Unit};
pub use http::{HttpServer, StatusFn};
pub use log::{LogConfig, init};
pub use registry::{Counter, Gauge, Registry};
pub use steps::Steps;

/// The release of this build, for people.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
