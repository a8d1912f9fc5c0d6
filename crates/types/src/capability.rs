//! Capabilities: what lets a client touch a file's chunks.
//!
//! Meta signs a capability with a key that mgmtd hands to meta and storage services; storage checks it
//! without asking anybody. It is a fixed 96-byte structure so that the data path does not decode it:
//! layout in docs/formats/wire.md, guarded by a golden test.

use crate::{ClientId, DataId, Error, InodeId, Result, SessionId, Status, TruncateEpoch, VolumeId};
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Rights of a capability, or-ed.
pub mod rights {
    /// Read chunks.
    pub const READ: u32 = 1;
    /// Write, truncate or extend chunks, not remove them.
    pub const WRITE: u32 = 2;
    /// Remove chunks (garbage collection only).
    pub const REMOVE: u32 = 4;
}

/// The key that signs capabilities. Kept by mgmtd, meta and storage; never sent to a client.
#[derive(Clone, PartialEq, Eq)]
pub struct CapabilityKey(pub [u8; 32]);

impl std::fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CapabilityKey(secret)")
    }
}

/// A signed permission to touch the chunks of one data id. 96 bytes.
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
pub struct Capability {
    /// The volume.
    pub volume: U64,
    /// The inode, for logs and recalls.
    pub inode: U64,
    /// The data id whose chunks may be touched.
    pub data: U64,
    /// The session it was issued under (0: none).
    pub session: U128,
    /// The truncate epoch of the inode when it was issued.
    pub epoch: U64,
    /// When it ends: nanoseconds since the Unix epoch.
    pub expiry_ns: U64,
    /// What it permits: see [`rights`].
    pub rights: U32,
    /// The key it was signed with (keys rotate).
    pub key_id: U32,
    /// The client it was issued to; nobody else may use it. 0: of meta's own work, or of a release that did not bind it.
    pub client: U128,
    /// Keyed BLAKE3 of all bytes before, first 16 bytes.
    pub mac: [u8; 16],
}

const SIGNED_BYTES: usize = size_of::<Capability>() - 16;

/// Compares in constant time: by the sum of differences, not by the first difference.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (a, b)| d | (a ^ b)) == 0
}

fn bad(what: &str) -> Result<()> {
    Err(Error::new(Status::BadCapability, format!("capability {what}")))
}

impl Capability {
    /// An unsigned capability.
    pub fn new(
        volume: VolumeId,
        inode: InodeId,
        data: DataId,
        session: SessionId,
        epoch: TruncateEpoch,
        expiry_ns: u64,
        rights: u32,
    ) -> Self {
        Self {
            volume: volume.0.into(),
            inode: inode.0.into(),
            data: data.0.into(),
            session: session.0.into(),
            epoch: epoch.0.into(),
            expiry_ns: expiry_ns.into(),
            rights: rights.into(),
            ..Self::default()
        }
    }

    /// Binds it to a client. Before it is signed.
    #[must_use]
    pub fn bound_to(mut self, client: ClientId) -> Self {
        self.client = client.0.into();
        self
    }

    /// Whether a client may use it: what one client was given is of no use to another.
    pub fn is_for(&self, client: ClientId) -> bool {
        let bound = self.client.get();
        bound == 0 || bound == client.0
    }

    /// Signs it.
    #[must_use]
    pub fn sign(mut self, key_id: u32, key: &CapabilityKey) -> Self {
        self.key_id = key_id.into();
        self.mac = self.mac_under(key);
        self
    }

    fn mac_under(&self, key: &CapabilityKey) -> [u8; 16] {
        let hash = blake3::keyed_hash(&key.0, &self.as_bytes()[..SIGNED_BYTES]);
        let mut mac = [0; 16];
        mac.copy_from_slice(&hash.as_bytes()[..16]);
        mac
    }

    /// Checks that a key has signed it.
    pub fn check_signature(&self, key: &CapabilityKey) -> Result<()> {
        if !same(&self.mac, &self.mac_under(key)) {
            return bad("has a wrong signature");
        }
        Ok(())
    }

    /// Whether they are the same, signature and all. How long it takes says nothing of how much is.
    pub fn is_same(&self, other: &Self) -> bool {
        same(self.as_bytes(), other.as_bytes())
    }

    /// Checks signature, expiry, rights, and that it is for the chunks of `volume` and `data`.
    pub fn check(
        &self,
        key: &CapabilityKey,
        now_ns: u64,
        volume: VolumeId,
        data: DataId,
        rights: u32,
    ) -> Result<()> {
        self.check_signature(key)?;
        self.check_terms(now_ns, volume, data, rights)
    }

    /// The same of one whose signature is right.
    pub fn check_terms(
        &self,
        now_ns: u64,
        volume: VolumeId,
        data: DataId,
        rights: u32,
    ) -> Result<()> {
        if self.expiry_ns.get() <= now_ns {
            return bad("has expired; reopen the file");
        }
        if self.rights.get() & rights != rights {
            return bad("does not permit this operation");
        }
        if self.volume.get() != volume.0 || self.data.get() != data.0 {
            return bad("is for another file");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap() -> Capability {
        Capability::new(
            VolumeId(1),
            InodeId(7),
            DataId(9),
            SessionId(3),
            TruncateEpoch(0),
            1000,
            rights::READ,
        )
    }

    #[test]
    fn is_96_bytes_with_a_golden_mac() {
        assert_eq!(size_of::<Capability>(), 96);
        let signed = cap().sign(1, &CapabilityKey([42; 32]));
        let again = Capability::read_from_bytes(signed.as_bytes()).expect("96 bytes");
        assert_eq!(again, signed);
        assert_eq!(&signed.as_bytes()[..8], &1u64.to_le_bytes());
        assert_eq!(signed.as_bytes()[56], rights::READ as u8);
        let bound = cap().bound_to(ClientId(0xC1)).sign(1, &CapabilityKey([42; 32]));
        assert_eq!(bound.as_bytes()[64..80], 0xC1u128.to_le_bytes());
        assert!(bound.is_for(ClientId(0xC1)) && !bound.is_for(ClientId(0xC2)));
        assert!(!bound.is_for(ClientId(0)) && signed.is_for(ClientId(0xC2)));
    }

    #[test]
    fn every_byte_is_signed() {
        let key = CapabilityKey([42; 32]);
        let good = cap().sign(1, &key);
        let check = |c: &Capability| c.check(&key, 999, VolumeId(1), DataId(9), rights::READ);
        assert!(check(&good).is_ok());
        for i in 0..size_of::<Capability>() {
            let mut bytes = good.as_bytes().to_vec();
            bytes[i] ^= 1;
            assert!(
                check(&Capability::read_from_bytes(&bytes).expect("size")).is_err(),
                "byte {i}"
            );
        }
    }

    #[test]
    fn limits_hold() {
        let key = CapabilityKey([42; 32]);
        let c = cap().sign(1, &key);
        assert!(c.check(&key, 1000, VolumeId(1), DataId(9), rights::READ).is_err(), "expired");
        assert!(c.check(&key, 0, VolumeId(1), DataId(9), rights::WRITE).is_err(), "rights");
        assert!(c.check(&key, 0, VolumeId(1), DataId(8), rights::READ).is_err(), "other file");
        assert!(c.check(&key, 0, VolumeId(2), DataId(9), rights::READ).is_err(), "other volume");
        assert!(
            c.check(&CapabilityKey([1; 32]), 0, VolumeId(1), DataId(9), 1).is_err(),
            "other key"
        );
    }
}
