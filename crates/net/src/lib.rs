//! Frames, connections and RPC over tcp and shm, behind one interface.
//!
//! A [`Conn`] is symmetric: after the [handshake](peer) both ends may call. Control travels as frames (a 64-byte header and
//! a small body); bulk follows inline, or, on a Unix socket between processes of one host, is only named as a
//! place in a shared region, so that no byte of it is copied.
//!
//! Guarantees: every length and checksum from a peer is checked before it is used; a frame that is not well-formed closes the
//! connection with a logged reason; every queue is bounded ([`limits`]); a destination buffer belongs to one
//! attempt until it answered or the connection ended. Must never: let a peer's bytes crash or block the process.

pub mod limits;

mod conn;
mod connector;
mod dial;
mod handshake;
mod inbound;
mod incoming;
mod message;
mod metrics;
mod names;
mod peer;
mod regions;
mod server;
mod shares;
mod token_file;
mod waiters;

#[cfg(test)]
mod fuzz_tests;

pub use conn::Conn;
pub use connector::{Connector, ConnectorOptions, Target, Transport};
pub use incoming::{Handler, Incoming, NoCalls};
pub use message::{Bulk, Reply, Request, Response};
pub use peer::{
    Authenticator, Identity, Peer, TrustAll, local_host_id, local_hostname, unknown_token,
};
pub use server::{Server, ServerOptions};
pub use token_file::read_token_file;
