//! User-space I/O rings (USRBIO): an application reads and writes files of a mount through memory that it shares with the mount
//! daemon, many operations for one system call, or for none.
//!
//! An application uses [`Connection`], [`Buffer`] and [`Ring`]; the daemon uses [`Consumer`] and the control messages of
//! [`control`]. `docs/formats/rings.md` has every byte.
//!
//! Guarantees: all that the daemon reads of a ring is checked before it is used, and copied first, for the application can change it at
//! any time; memory is accepted only where nobody can shrink it. Must never: trust an index, a length or an offset that was read from
//! shared memory; block the daemon on an application.

mod available;
mod connection;
mod consumer;
pub mod control;
mod doorbell;
mod layout;
mod lent;
mod liveness;
mod maker;
mod memory;
mod mounts;
mod producer;
mod windows;

pub use connection::{
    Buffer, Completions, Connection, RegisteredFile, Ring, RingError, RingOptions,
};
pub use consumer::{Broken, Consumer};
pub use doorbell::Doorbell;
pub use layout::{Completion, ENTRIES_MAX, Kind, RING_VERSION, Submission, flags, ring_bytes};
pub use lent::LentMemory;
pub use memory::{Identity, SharedMemory};
pub use mounts::{mount_point_of, mount_point_of_device};
pub use producer::{Producer, Waiter};
pub use windows::Windows;
