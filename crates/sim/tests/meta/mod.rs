//! The metadata service with several clients, and what must outlive its restarts: requests that take effect once, ids, sessions.
#![allow(clippy::expect_used, missing_docs)]

mod admission;
mod as_shipped;
mod hot;
mod inline;
mod lab;
mod locks;
mod lost_opens;
mod names;
mod requests;
mod restarts;
mod sessions;
mod truncates;
