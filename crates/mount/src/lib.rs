//! The mount daemon: FUSE requests to client calls.
//!
//! [`start`] connects to the cluster and mounts; [`ram::start`] mounts a file system in memory (in tests, and when FUSE alone is
//! measured). Both are a [`FileSystem`]. One task per request; all state lies on one thread.
//!
//! Guarantees, on one client: the length of a file is always exact; a truncate never meets a write in flight; after close
//! or fsync the cluster knows the length. Must never: know about chains, open a block file, or keep what the kernel
//! was told beyond the lease that meta gave.

mod astray;
mod attr;
mod back;
mod call;
mod caller;
mod config;
mod cut_pages;
mod daemon;
mod direct;
mod errno;
mod filesystem;
mod forgetting;
mod gate;
mod gather;
mod given_pages;
mod handles;
mod inodes;
mod kernel_len;
mod known;
mod late;
mod metrics;
mod moves;
mod old_tails;
mod open;
mod ops;
mod places;
pub mod ram;
mod recall;
mod rights;
mod rings;
mod running;
mod service;
mod uses;

pub use config::{Atime, FuseTransport, MountConfig};
pub use filesystem::{FileData, FileSystem};
pub use glowfs_fuse::{MountFlags, lets_through, release_dead, remount};
pub use service::{Running, connect, start, start_connected};
