//! Where the blocks of a chunk lie: a sorted list of extents. What no extent covers is a hole.

/// Where a run of blocks begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub(crate) enum Loc {
    /// In the log: segment sequence number and block in the segment.
    Log { segment: u64, block: u32 },
    /// In a slot: size class (log2 of its bytes), slot number, block in the slot.
    Slot { class: u8, index: u32, block: u32 },
}

impl Loc {
    /// The place `n` blocks further.
    pub fn plus(self, n: u32) -> Loc {
        match self {
            Loc::Log { segment, block } => Loc::Log { segment, block: block.wrapping_add(n) },
            Loc::Slot { class, index, block } => {
                Loc::Slot { class, index, block: block.wrapping_add(n) }
            }
        }
    }
    /// The segment, if it is in the log.
    pub fn segment(self) -> Option<u64> {
        match self {
            Loc::Log { segment, .. } => Some(segment),
            Loc::Slot { .. } => None,
        }
    }
    /// The slot, if it is one.
    pub fn slot(self) -> Option<(u8, u32)> {
        match self {
            Loc::Slot { class, index, .. } => Some((class, index)),
            Loc::Log { .. } => None,
        }
    }
}

/// `count` blocks of a chunk from `block` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub block: u32,
    pub count: u32,
    pub loc: Loc,
}

impl Extent {
    pub fn end(&self) -> u32 {
        self.block + self.count
    }
    /// The part inside `[from, to)`.
    pub fn clip(&self, from: u32, to: u32) -> Option<Extent> {
        let a = self.block.max(from);
        let b = self.end().min(to);
        (a < b).then(|| Extent { block: a, count: b - a, loc: self.loc.plus(a - self.block) })
    }
}

/// Removes `[from, to)` from a sorted list; what was there is appended to `removed`.
pub(crate) fn cut(list: &mut Vec<Extent>, from: u32, to: u32, removed: &mut Vec<Extent>) {
    if from >= to {
        return;
    }
    let first = list.partition_point(|e| e.end() <= from);
    let last = list.partition_point(|e| e.block < to);
    if first >= last {
        return;
    }
    let left = list[first].clip(0, from);
    let right = list[last - 1].clip(to, u32::MAX);
    removed.extend(list[first..last].iter().filter_map(|e| e.clip(from, to)));
    list.splice(first..last, left.into_iter().chain(right));
}

/// Puts `new` into a sorted list, over what was there.
pub(crate) fn put(list: &mut Vec<Extent>, new: Extent, removed: &mut Vec<Extent>) {
    let goes_on =
        |before: &Extent| before.end() == new.block && before.loc.plus(before.count) == new.loc;
    let at = list.partition_point(|e| e.block < new.block);
    let joins = at.checked_sub(1).and_then(|i| list.get(i)).is_some_and(goes_on);
    if let Some(same) = list.get_mut(at)
        && (same.block, same.count) == (new.block, new.count)
        && !joins
    {
        // The same blocks again, as in a chunk that is written one block at a time: nothing behind them moves.
        removed.push(std::mem::replace(same, new));
        return;
    }
    cut(list, new.block, new.end(), removed);
    let at = list.partition_point(|e| e.block < new.block);
    if let Some(before) = at.checked_sub(1).and_then(|i| list.get_mut(i))
        && goes_on(before)
    {
        before.count += new.count;
        return;
    }
    list.insert(at, new);
}

/// The first of a sorted list that ends behind `block`. `blocks`: how many the list spreads over, which tells about where it stands: long
/// lists of many chunks are not in the processor's caches, and then each look into them costs more than all the rest of a search.
fn first_behind(list: &[Extent], block: u32, blocks: u32) -> usize {
    let behind = |i: usize| list.get(i).is_some_and(|e| e.end() > block);
    let guess = block as usize * list.len() / blocks.max(1) as usize;
    let (mut low, mut high, mut step) = (0, list.len(), 1);
    if behind(guess) {
        high = guess;
        while let Some(probe) = high.checked_sub(step) {
            if !behind(probe) {
                low = probe + 1;
                break;
            }
            (high, step) = (probe, step * 2);
        }
    } else if guess < list.len() {
        low = guess + 1;
        while low + step <= list.len() {
            let probe = low + step - 1;
            if behind(probe) {
                high = probe;
                break;
            }
            (low, step) = (probe + 1, step * 2);
        }
    }
    low + list[low..high].partition_point(|e| e.end() <= block)
}

/// The parts of a sorted list inside `[from, to)`; `blocks`: how many the list spreads over, about.
pub(crate) fn within(
    list: &[Extent],
    (from, to): (u32, u32),
    blocks: u32,
) -> impl Iterator<Item = Extent> + '_ {
    list[first_behind(list, from, blocks)..]
        .iter()
        .map_while(move |e| if e.block >= to { None } else { Some(*e) })
        .filter_map(move |e| e.clip(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against an array of blocks.
        #[test]
        fn like_an_array(ops in proptest::collection::vec((0u32..40, 1u32..12, any::<bool>()), 1..60)) {
            let mut list = Vec::new();
            let mut model = vec![None; 64];
            for (i, (block, count, is_put)) in ops.into_iter().enumerate() {
                let mut removed = Vec::new();
                let before = model.clone();
                if is_put {
                    let loc = Loc::Slot { class: 12, index: i as u32, block: 0 };
                    put(&mut list, Extent { block, count, loc }, &mut removed);
                    for k in 0..count { model[(block + k) as usize] = Some(loc.plus(k)); }
                } else {
                    cut(&mut list, block, block + count, &mut removed);
                    for k in 0..count { model[(block + k) as usize] = None; }
                }
                let gone = (block..block + count).filter(|b| before[*b as usize].is_some()).count();
                prop_assert_eq!(removed.iter().map(|e| e.count as usize).sum::<usize>(), gone);
                for e in removed {
                    for k in 0..e.count { prop_assert_eq!(before[(e.block + k) as usize], Some(e.loc.plus(k))); }
                }
                let mut got = vec![None; 64];
                for e in within(&list, (0, 64), 64) {
                    for k in 0..e.count { got[(e.block + k) as usize] = Some(e.loc.plus(k)); }
                }
                prop_assert_eq!(&got, &model);
                prop_assert!(list.windows(2).all(|w| w[0].end() <= w[1].block));
                for (block, blocks) in (0..70).flat_map(|b| [(b, 0), (b, 7), (b, 64), (b, 1000)]) {
                    let plain = list.partition_point(|e| e.end() <= block);
                    prop_assert_eq!(first_behind(&list, block, blocks), plain);
                }
            }
        }
    }

    /// What takes the place of the same blocks joins what goes before it, as if it had been put anywhere else.
    #[test]
    fn the_same_blocks_again_join_what_they_follow() {
        let at =
            |block, index| Extent { block, count: 1, loc: Loc::Log { segment: 1, block: index } };
        let mut removed = Vec::new();
        let mut list = vec![at(0, 10), at(1, 20), at(2, 30)];
        put(&mut list, at(1, 40), &mut removed);
        assert_eq!((&list, &removed), (&vec![at(0, 10), at(1, 40), at(2, 30)], &vec![at(1, 20)]));
        put(&mut list, at(1, 11), &mut removed);
        assert_eq!(list, [Extent { count: 2, ..at(0, 10) }, at(2, 30)]);
        assert_eq!(removed, [at(1, 20), at(1, 40)]);
    }
}
