//! A set of ids that were given out in order: a bit for each, in pages. A hundred million ids that lie together cost 13 MB.

use std::collections::BTreeMap;

/// Bits of one page (8 KiB).
const PAGE_BITS: u64 = 1 << 16;
const WORDS: usize = (PAGE_BITS / 64) as usize;

/// See the module.
#[derive(Default)]
pub struct IdSet {
    pages: BTreeMap<u64, Box<[u64; WORDS]>>,
    count: u64,
}

fn place(id: u64) -> (u64, usize, u64) {
    let bit = id % PAGE_BITS;
    (id / PAGE_BITS, (bit / 64) as usize, 1 << (bit % 64))
}

impl IdSet {
    /// Puts an id in, unless that would need more than `pages_max` pages. Whether it is in.
    pub fn insert(&mut self, id: u64, pages_max: usize) -> bool {
        let (page, word, bit) = place(id);
        if self.pages.len() >= pages_max && !self.pages.contains_key(&page) {
            return false;
        }
        let words = self.pages.entry(page).or_insert_with(|| Box::new([0; WORDS]));
        self.count += u64::from(words[word] & bit == 0);
        words[word] |= bit;
        true
    }
    /// Takes an id out.
    pub fn remove(&mut self, id: u64) {
        let (page, word, bit) = place(id);
        if let Some(words) = self.pages.get_mut(&page) {
            self.count -= u64::from(words[word] & bit != 0);
            words[word] &= !bit;
        }
    }
    /// Whether it is in.
    pub fn contains(&self, id: u64) -> bool {
        let (page, word, bit) = place(id);
        self.pages.get(&page).is_some_and(|w| w[word] & bit != 0)
    }
    /// How many are in.
    pub fn len(&self) -> u64 {
        self.count
    }
    /// All of them, the smallest first.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter().flat_map(|(page, words)| {
            let set = (0..PAGE_BITS).filter(|b| words[(b / 64) as usize] & (1 << (b % 64)) != 0);
            set.map(move |bit| page * PAGE_BITS + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn is_a_set(ops in proptest::collection::vec((any::<bool>(), 0u64..200_000), 0..300)) {
            let (mut ids, mut model) = (IdSet::default(), BTreeSet::new());
            for (put, id) in ops {
                if put {
                    assert!(ids.insert(id, 8));
                    model.insert(id);
                } else {
                    ids.remove(id);
                    model.remove(&id);
                }
                assert_eq!(ids.contains(id), put);
            }
            assert_eq!(ids.len(), model.len() as u64);
            assert_eq!(ids.iter().collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn is_bounded_and_takes_the_greatest() {
        let mut ids = IdSet::default();
        assert!(ids.insert(u64::MAX, 2) && ids.insert(0, 2) && !ids.insert(1 << 20, 2));
        assert!(ids.insert(65_535, 2), "in a page that is there");
        assert_eq!(ids.iter().collect::<Vec<_>>(), [0, 65_535, u64::MAX]);
        assert_eq!(ids.len(), 3);
    }
}
