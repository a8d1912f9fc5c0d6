//! Wire messages.
//!
//! Every message is a 64-byte [`frame::FrameHeader`], a body, and bulk bytes that follow inline or move through
//! a shared region. Bodies of the data path are fixed little-endian structures ([`data`]); bodies of everything
//! else are CBOR with numbered fields, in which unknown fields are ignored and missing optional ones are `None`.

pub mod append;
pub mod atime;
pub mod closes;
pub mod copy;
pub mod data;
pub mod edition;
pub mod flush;
pub mod frame;
pub mod fsck;
pub mod hello;
pub mod inline;
pub mod kv;
pub mod listing;
pub mod lock;
pub mod meta;
pub mod method;
pub mod mgmtd;
pub mod operate;
pub mod orphans;
pub mod recall;
pub mod repair;
pub mod sparse;
pub mod trash;
pub mod tree;
pub mod vouch;

use crate::{Error, Result, Status};

/// Encodes a control message.
pub fn encode<T: minicbor::Encode<()>>(message: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    // Writing into a Vec cannot fail, and our types have no failing encoders.
    minicbor::encode(message, &mut out).expect("encoding into memory");
    out
}

/// Decodes a control message from outside.
pub fn decode<'b, T: minicbor::Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T> {
    minicbor::decode(bytes)
        .map_err(|e| Error::new(Status::BadMessage, format!("{}: {e}", std::any::type_name::<T>())))
}

/// A reply without fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, minicbor::Encode, minicbor::Decode)]
pub struct Empty {}

/// The body of a reply whose status is not Ok.
#[derive(Clone, PartialEq, Eq, Debug, Default, minicbor::Encode, minicbor::Decode)]
pub struct ErrorBody {
    /// What, where, and the way out.
    #[n(0)]
    pub message: String,
}
