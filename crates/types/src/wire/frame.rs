//! The frame header: 64 bytes in front of every message on every transport.
//!
//! Layout in docs/formats/wire.md. All integers are little-endian.

use crate::checksum::crc32c;
use crate::{Error, Result, Status};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// «GLF1», little-endian.
pub const MAGIC: u32 = u32::from_le_bytes(*b"GLF1");
/// The frame version this build speaks.
pub const FRAME_VERSION: u16 = 1;
/// The greatest body in bytes.
pub const BODY_BYTES_MAX: u32 = 4 << 20;
/// The greatest bulk in bytes (one chunk of the greatest size).
pub const BULK_BYTES_MAX: u32 = 64 << 20;

/// A request; an answer is expected.
pub const KIND_REQUEST: u8 = 1;
/// An answer; `request_id` names the request.
pub const KIND_RESPONSE: u8 = 2;
/// A message without an answer.
pub const KIND_ONEWAY: u8 = 3;

/// The bulk follows the body on this connection.
pub const FLAG_BULK_INLINE: u8 = 1;
/// The bulk lies in the sender's region (`region_key`, `region_offset`, `bulk_len`).
pub const FLAG_BULK_REGION: u8 = 2;
/// The sender wants up to `bulk_len` bytes of bulk put into its region (`region_key`, `region_offset`).
pub const FLAG_RECV_REGION: u8 = 4;
/// The sender wants up to `bulk_len` bytes of bulk inline with the answer.
pub const FLAG_RECV_INLINE: u8 = 8;

/// The header.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct FrameHeader {
    /// [`MAGIC`].
    pub magic: U32,
    /// [`FRAME_VERSION`].
    pub version: U16,
    /// Request, response or one-way.
    pub kind: u8,
    /// `FLAG_*`, or-ed.
    pub flags: u8,
    /// Which method: see [`super::method`].
    pub method: U16,
    /// In a response: the status.
    pub status: U16,
    /// In a request: how long the caller will wait from now on, in ms; 0 is «no limit».
    pub deadline_ms: U32,
    /// Unique among the outstanding requests of this direction of this connection.
    pub request_id: U64,
    /// The tenant, for fair queues.
    pub tenant: U64,
    /// Bytes of body.
    pub body_len: U32,
    /// Bytes of bulk (inline or in the region), or the room for it.
    pub bulk_len: U32,
    /// The region the bulk lies in or goes to.
    pub region_key: U32,
    /// CRC-32C of the body.
    pub body_crc: U32,
    /// The place in the region.
    pub region_offset: U64,
    /// Zero; ignored by readers.
    pub reserved: U32,
    /// CRC-32C of the 60 bytes before.
    pub header_crc: U32,
}

/// Bytes of a header.
pub const HEADER_BYTES: usize = size_of::<FrameHeader>();

impl FrameHeader {
    /// Fills magic, version and checksum in; the last thing before sending.
    #[must_use]
    pub fn seal(mut self) -> Self {
        self.magic = MAGIC.into();
        self.version = FRAME_VERSION.into();
        self.header_crc = crc32c(&self.as_bytes()[..HEADER_BYTES - 4]).into();
        self
    }

    /// Reads and checks a header from outside. After an error nothing more on that connection can be trusted.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        let bad = |what: String| Err(Error::new(Status::BadMessage, what));
        let header = Self::read_from_bytes(bytes)
            .map_err(|_| Error::new(Status::BadMessage, "frame header: wrong size"))?;
        if header.magic.get() != MAGIC {
            return bad(format!("not a GlowFS frame (magic {:#010x})", header.magic.get()));
        }
        if header.header_crc.get() != crc32c(&bytes[..HEADER_BYTES - 4]) {
            return bad("frame header: checksum mismatch".into());
        }
        if header.version.get() != FRAME_VERSION {
            return Err(Error::new(
                Status::WrongProtocol,
                format!(
                    "frame version {}; this build speaks {FRAME_VERSION}: upgrade the older side",
                    header.version.get()
                ),
            ));
        }
        if !(KIND_REQUEST..=KIND_ONEWAY).contains(&header.kind) {
            return bad(format!("frame kind {}", header.kind));
        }
        if header.body_len.get() > BODY_BYTES_MAX || header.bulk_len.get() > BULK_BYTES_MAX {
            return bad(format!(
                "frame of {} + {} bytes is over the limit of {BODY_BYTES_MAX} + {BULK_BYTES_MAX}",
                header.body_len, header.bulk_len
            ));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        assert_eq!(HEADER_BYTES, 64);
        let h = FrameHeader {
            kind: KIND_REQUEST,
            flags: FLAG_BULK_INLINE,
            method: 0x0102.into(),
            deadline_ms: 5000.into(),
            request_id: 7.into(),
            tenant: 1.into(),
            body_len: 3.into(),
            bulk_len: 4096.into(),
            body_crc: crc32c(b"abc").into(),
            ..Default::default()
        }
        .seal();
        let hex: String = h.as_bytes()[..56].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "474c463101000101020100008813000007000000000000000100000000000000030000000010000000000000b73f4b360000000000000000"
        );
        let bytes: &[u8; 64] = h.as_bytes().try_into().expect("64 bytes");
        assert_eq!(FrameHeader::parse(bytes).expect("valid"), h);
    }

    #[test]
    fn any_flipped_bit_is_refused() {
        let h = FrameHeader { kind: KIND_ONEWAY, ..Default::default() }.seal();
        for bit in 0..512 {
            let mut bytes: [u8; 64] = h.as_bytes().try_into().expect("64 bytes");
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::parse(&bytes).is_err(), "bit {bit}");
        }
    }
}
