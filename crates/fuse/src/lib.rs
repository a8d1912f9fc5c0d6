//! The kernel's FUSE protocol: mounting, requests, replies, notifications and the `/dev/fuse` transport. Knows
//! nothing of GlowFS.
//!
//! [`mount()`] makes the mount and gives its device; [`Session::start`] negotiates; [`Session::next`] gives one
//! [`Incoming`] after another, each with its parsed operation, the payload of a WRITE in an owned page-aligned
//! buffer, and a [`Reply`] that is consumed by answering. A FUSE-over-io_uring transport joins behind the same
//! [`Session`]: payloads are owned slots and an answer consumes its request.
//!
//! Guarantees: bytes of the kernel never panic the parser; a request that is dropped without an answer is answered
//! with EIO, so no caller hangs; payloads are not copied but where that is cheaper. Must never: block the thread
//! (mounting and unmounting block: call them through `Rt::unblock`).

pub mod abi;
mod device;
mod mount;
mod negotiate;
mod reply;
pub mod request;
mod session;

pub use mount::{MountError, MountOptions, Mounted, abort_connection, mount};
pub use negotiate::{Negotiated, Options};
pub use reply::{DirWriter, Reply};
pub use request::{BadRequest, Header, Op, Request};
pub use session::{Incoming, Session};
