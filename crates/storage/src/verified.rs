//! Capabilities whose signature was right are remembered: each READ and WRITE brings one, most of them the same, and to verify a signature is a keyed hash.
//!
//! Guarantees: nothing passes that would not verify. Remembered is all that was signed and the signature, under the very keys that it was verified with: what
//! differs in a bit is verified itself, and when other keys come, all is forgotten. Only the signature is remembered; time, rights, file and client are
//! looked at each time. Bounded: [`PLACES`], of one capability each; the newest of a place stays. Must never: tell by the time it takes how much of a
//! signature was right, so neither the place nor the comparison goes by it.

use glowfs_types::layout::splitmix64;
use glowfs_types::{Capability, CapabilityKey, Error, Result, Status};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Capabilities remembered at most, of 96 bytes each: what a node serves within a moment, and small enough for a cache.
const PLACES: usize = 1024;

/// The keys of capabilities by id, as the agent has them.
pub(crate) type Keys = Rc<BTreeMap<u32, CapabilityKey>>;

/// See the module.
#[derive(Default)]
pub(crate) struct Verified(RefCell<Inner>);

#[derive(Default)]
struct Inner {
    /// What all that is remembered was verified with.
    keys: Keys,
    /// Empty before the first one.
    places: Vec<Option<Capability>>,
}

/// Where a capability is remembered. (Not by its signature.)
fn place_of(c: &Capability) -> usize {
    let who = c.session.get() as u64 ^ (c.client.get() as u64).rotate_left(32);
    splitmix64(who ^ c.data.get()) as usize % PLACES
}

impl Verified {
    /// Whether one of the keys has signed it.
    pub fn check(&self, keys: &Keys, capability: &Capability) -> Result<()> {
        let place = place_of(capability);
        let mut inner = self.0.borrow_mut();
        if !Rc::ptr_eq(&inner.keys, keys) {
            *inner = Inner { keys: keys.clone(), places: Vec::new() };
        }
        let known = inner.places.get(place).and_then(Option::as_ref);
        if known.is_some_and(|known| known.is_same(capability)) {
            return Ok(());
        }
        let key = keys.get(&capability.key_id.get()).ok_or_else(|| {
            Error::new(
                Status::BadCapability,
                "capability is signed with a key that is not known here; reopen the file",
            )
        })?;
        capability.check_signature(key)?;
        if inner.places.is_empty() {
            inner.places = vec![None; PLACES];
        }
        inner.places[place] = Some(*capability);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{DataId, InodeId, SessionId, TruncateEpoch, VolumeId};
    use zerocopy::{FromBytes, IntoBytes};

    fn keys(secret: u8) -> Keys {
        Rc::new([(1, CapabilityKey([secret; 32]))].into())
    }
    fn capability(data: u64) -> Capability {
        let (volume, session, epoch) = (VolumeId(1), SessionId(3), TruncateEpoch(0));
        Capability::new(volume, InodeId(7), DataId(data), session, epoch, 1000, 1)
    }
    fn signed(data: u64, keys: &Keys) -> Capability {
        capability(data).sign(1, &keys[&1])
    }

    #[test]
    fn what_differs_in_one_bit_from_what_is_remembered_does_not_pass() {
        let (v, keys) = (Verified::default(), keys(42));
        let good = signed(9, &keys);
        assert!(v.check(&keys, &good).is_ok() && v.check(&keys, &good).is_ok());
        for bit in 0..8 * size_of::<Capability>() {
            let mut bytes = good.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let other = Capability::read_from_bytes(&bytes).expect("size");
            assert!(v.check(&keys, &other).is_err(), "bit {bit}");
            assert!(v.check(&keys, &good).is_ok(), "and drives nothing out");
        }
    }

    #[test]
    fn a_place_that_remembers_nothing_lets_nothing_pass() {
        let (v, keys) = (Verified::default(), keys(42));
        assert!(v.check(&keys, &Capability::default()).is_err());
        assert!(v.check(&keys, &signed(9, &keys)).is_ok());
        let nothing = Capability { key_id: 1.into(), ..Capability::default() };
        assert!(v.check(&keys, &nothing).is_err());
        assert!(v.check(&keys, &Capability::default()).is_err());
    }

    #[test]
    fn other_keys_forget_it_also_of_the_same_id() {
        let (v, old, new) = (Verified::default(), keys(42), keys(43));
        let good = signed(9, &old);
        assert!(v.check(&old, &good).is_ok());
        assert_eq!(v.check(&new, &good).map_err(|e| e.status), Err(Status::BadCapability));
        assert!(v.check(&Keys::default(), &good).is_err(), "no key at all");
        assert!(v.check(&old, &good).is_ok());
    }

    #[test]
    fn more_than_there_are_places_for_pass_and_are_forgotten() {
        let (v, keys) = (Verified::default(), keys(42));
        for data in 0..3 * PLACES as u64 {
            assert!(v.check(&keys, &signed(data, &keys)).is_ok());
            assert!(v.check(&keys, &capability(data)).is_err(), "not signed");
        }
        let inner = v.0.borrow();
        assert!(inner.places.len() == PLACES && inner.places.iter().flatten().count() > PLACES / 2);
    }
}
