//! The kernel's FUSE protocol: mounting, requests, replies, notifications and the `/dev/fuse` transport. Knows
//! nothing of GlowFS.
//!
//! [`mount()`] makes the mount and gives its device; [`Session::start`] negotiates; [`Session::next`] gives one
//! [`Incoming`] after another, each with its parsed operation, the payload of a WRITE in an owned page-aligned
//! buffer, and a [`Reply`] that is consumed by answering. Where the kernel offers it and [`Options::queue_depth`] asks for it, requests come
//! by FUSE over io_uring behind the same [`Session`].
//!
//! Guarantees: bytes of the kernel never panic the parser; a request that is dropped without an answer is answered
//! with EIO, so no caller hangs; payloads are not copied but where that is cheaper. Must never: block the thread
//! (mounting and unmounting block: call them through `Rt::unblock`).

pub mod abi;
mod device;
mod flags;
mod mount;
mod negotiate;
mod notices;
mod reply;
pub mod request;
mod session;
mod table;
mod uring;

pub use flags::{MountFlags, remount};
pub use mount::{
    MountError, MountOptions, Mounted, abort_connection, mount, read_ahead_file, release_dead,
    set_read_ahead,
};
pub use negotiate::{Negotiated, Options};
pub use reply::{DirWriter, Reply};
pub use request::{BadRequest, Header, Op, Request};
pub use session::{Incoming, Session};
pub use table::lets_through;
