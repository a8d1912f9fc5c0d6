//! Which of two answers about an inode is the newer one.
//!
//! A metadata engine that flushes in the background may lose its newest commits with the power. Then what it says of an inode is older than what clients
//! have heard, and is true all the same. So the life of the engine that said it counts first, then how often the inode had changed.

use super::meta::Attr;
use crate::{Error, Result, Status, TruncateEpoch};
use std::cmp::Ordering;

/// Which state of an inode attributes are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Edition {
    /// Of the engine; 0: it loses nothing, or it is not known (older releases).
    pub life: u64,
    /// Changes of the inode.
    pub change: u64,
    /// Truncates of it. (Meta services of older releases end one without counting a change.)
    pub epoch: TruncateEpoch,
}

impl Edition {
    /// Whether the engine said `other` in a later life, or this is an earlier state in the same one.
    pub fn is_older_than(&self, other: &Self) -> bool {
        self.lives(other).then(self.within(other)) == Ordering::Less
    }
    /// Whether the engine has begun another life since it said `other`: what it says now is true, even if it is less.
    pub fn is_of_later_life_than(&self, other: &Self) -> bool {
        self.lives(other) == Ordering::Greater
    }
    /// Whether the engine has lost `other` with its power before it said this. (Not noticed if the inode has changed as often since.)
    pub fn lost(&self, other: &Self) -> bool {
        self.is_of_later_life_than(other) && self.within(other) == Ordering::Less
    }
    /// Refuses an answer to a question that was asked after `heard` was, and is of an earlier life: nothing that the engine says from now on could be told from what is
    /// old.
    pub fn check_asked_after(&self, heard: &Self) -> Result<()> {
        if heard.is_of_later_life_than(self) {
            let e = "the metadata is of an earlier life than what this client has heard: it was put back from a backup; unmount this client and mount it anew";
            return Err(Error::new(Status::Stale, e));
        }
        Ok(())
    }
    fn within(&self, other: &Self) -> Ordering {
        (self.change, self.epoch).cmp(&(other.change, other.epoch))
    }
    fn lives(&self, other: &Self) -> Ordering {
        match self.life != 0 && other.life != 0 {
            true => self.life.cmp(&other.life),
            false => Ordering::Equal,
        }
    }
}

impl Attr {
    /// Which state of the inode they are of.
    pub fn edition(&self) -> Edition {
        Edition { life: self.life, change: self.change, epoch: self.epoch }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;
    use crate::InodeId;

    fn of(life: u64, change: u64, epoch: u64) -> Edition {
        Edition { life, change, epoch: TruncateEpoch(epoch) }
    }

    #[test]
    fn a_later_life_counts_more_than_changes() {
        let ascending = [of(5, 8, 2), of(5, 8, 3), of(5, 9, 1), of(6, 2, 0), of(6, 3, 0)];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(a.is_older_than(b), i < j, "{a:?} {b:?}");
                assert_eq!(a.is_of_later_life_than(b), a.life > b.life);
                assert_eq!(a.lost(b), a.life > b.life && a.change < b.change);
            }
        }
        // Beside a service that does not say its life the changes decide, as they did.
        assert!(
            of(0, 8, 0).is_older_than(&of(5, 9, 0)) && !of(0, 9, 0).is_older_than(&of(5, 8, 0))
        );
        assert!(!of(5, 9, 0).is_of_later_life_than(&of(0, 8, 0)));
    }

    #[test]
    fn golden_bytes() {
        let attr = Attr { inode: InodeId(1), change: 2, ..Attr::default() };
        let before = encode(&attr);
        let told = encode(&Attr { life: 7, ..attr.clone() });
        let end = |change| vec![0xf6, 0, 0, change, 0, 0, 0xf4, 0];
        assert_eq!((before[0], before[before.len() - 8..].to_vec()), (0x95, end(2)), "as ever");
        let told_end = [end(2), vec![0xf6, 0xf4, 7]].concat();
        assert_eq!(
            (told[..2].to_vec(), told[2..].to_vec()),
            (vec![0x98, 24], [&before[1..before.len() - 8], &told_end].concat())
        );
        assert_eq!(decode::<Attr>(&before).expect("read"), attr);
        assert_eq!(decode::<Attr>(&told).expect("read").life, 7);
    }
}
