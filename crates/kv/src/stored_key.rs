//! [`StoredKey`]: a key as it stands in the tree, so that a search compares words instead of following a pointer at each step.

use std::cmp::Ordering;
use std::rc::Rc;

/// Bytes of a key that stand in the tree itself. Keys of the namespace are 17 to 41 bytes long, those of entries 17 and the name.
const HEAD_BYTES: usize = 48;
const WORD_BYTES: usize = 8;

/// A key in bytewise order. Longer ones than [`HEAD_BYTES`] are kept whole beside it.
#[derive(Clone)]
pub(crate) struct StoredKey {
    /// The beginning, filled up with zeros.
    head: [u8; HEAD_BYTES],
    /// Bytes in `head`; one more than fit if the key is long.
    len: u8,
    long: Option<Rc<[u8]>>,
}

impl StoredKey {
    pub fn new(key: &[u8]) -> Self {
        let mut head = [0; HEAD_BYTES];
        let here = key.len().min(HEAD_BYTES);
        head[..here].copy_from_slice(&key[..here]);
        let long = (key.len() > HEAD_BYTES).then(|| key.into());
        Self { head, len: here as u8 + u8::from(long.is_some()), long }
    }
    pub fn as_slice(&self) -> &[u8] {
        match &self.long {
            Some(key) => key,
            None => &self.head[..usize::from(self.len)],
        }
    }
    /// Bytes of the key.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }
}

fn word(bytes: &[u8; HEAD_BYTES], at: usize) -> u64 {
    let mut word = [0; WORD_BYTES];
    word.copy_from_slice(&bytes[at * WORD_BYTES..(at + 1) * WORD_BYTES]);
    u64::from_be_bytes(word)
}

impl Ord for StoredKey {
    fn cmp(&self, other: &Self) -> Ordering {
        for at in 0..HEAD_BYTES / WORD_BYTES {
            let (mine, others) = (word(&self.head, at), word(&other.head, at));
            if mine != others {
                return mine.cmp(&others);
            }
        }
        match (&self.long, &other.long) {
            (Some(mine), Some(others)) => mine[HEAD_BYTES..].cmp(&others[HEAD_BYTES..]),
            // One is the other with zeros, or more, behind it.
            _ => self.len.cmp(&other.len),
        }
    }
}

impl PartialOrd for StoredKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for StoredKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for StoredKey {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys that often agree for long, with zeros where one of them ends.
    fn keys() -> impl Strategy<Value = Vec<u8>> {
        let len = prop_oneof![0..4usize, 14..19usize, 45..52usize, 94..100usize];
        len.prop_flat_map(|len| {
            proptest::collection::vec(prop_oneof![8 => Just(0u8), 1 => 0..3u8], len)
        })
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_the_bytes(a in keys(), b in keys()) {
            let (x, y) = (StoredKey::new(&a), StoredKey::new(&b));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(x == y, a == b);
            prop_assert_eq!(x.as_slice(), &a);
            prop_assert_eq!(x.len(), a.len());
        }
    }
}
