//! [`KernelLen`]: what the kernel takes for the length of a file, as far as this mount can know.
//!
//! The kernel takes a length from what it is told (attributes, the answer to a truncate), raises it to the end of a write that was answered, and lowers it where a page that
//! it reads ends early (a READ that is answered with less than it asked for: the file ends there, `fuse_short_read`). The last is not certain. The kernel does so only if nothing
//! has changed what it knows of the file since it sent that READ (`attr_version`), and not for direct reads: of several READs that were sent together the first short answer that it takes in
//! makes it pass over those of the others, and the mount does not see in which order it takes answers in. So there are two lengths, and what the kernel has lies between them:
//!
//! - The *least*: what it was told, or the end of its last write behind that, or where the shortest answer since ended.
//! - The *most*: the same without the answers that ended early.
//!
//! Which one to go by. The kernel has zeros in its pages behind the end at which it read them, whether it took its length from that or not. So what another client has
//! put behind the **least** is in danger: of a page that was stored into the kernel writes all that lies before the end that it knows, with the zeros, and that may be the most already, or become so by what it is told or does. So
//! whoever asks whether the file has become longer than the kernel knows, and from where on, goes by the least: if the kernel knew more, a page is given back for nothing. All pages from the one in which the file ends at
//! least to the one in which it ends at **most** are given back: of none of them it is sure that it was read when the file was longer. And where the two differ, or the kernel is about to take the file for longer by itself, what lies
//! behind the least in those pages is not written meanwhile ([`crate::old_tails`]). That takes nothing away: at the answer that made it the least the file ended there, so what a program has stored
//! behind it since lies behind the end, unless the kernel was told of a greater length since, or has written behind it; and then the least is that.
//! Whether a length is one that the kernel may have had in mind ([`crate::direct`]) is a question of both: it may be any from the least to the most.
//!
//! Attributes that the kernel was told count as taken, though it can pass over those as well, where it got others between its question and the answer. Then it asks once more before it goes by any. What
//! it has written back by then may hold zeros over what came between the two (as if it had not been asked in between).

use std::cell::Cell;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Between {
    /// It takes the file to be at least so long,
    pub least: u64,
    /// and at most so long.
    pub most: u64,
}

impl Between {
    /// It was told so.
    pub fn exactly(len: u64) -> Self {
        Self { least: len, most: len }
    }
    /// Whether it may take it to be just so long.
    pub fn has(self, len: u64) -> bool {
        (self.least..=self.most).contains(&len)
    }
}

/// See the module.
#[derive(Default)]
pub struct KernelLen(Cell<Between>);

impl KernelLen {
    /// As it was known before.
    pub fn new(known: Between) -> Self {
        Self(Cell::new(known))
    }
    /// What is known.
    pub fn get(&self) -> Between {
        self.0.get()
    }
    /// It is told that the file is so long.
    pub fn told(&self, len: u64) {
        self.0.set(Between::exactly(len));
    }
    /// It is answered that it wrote so far.
    pub fn wrote(&self, end: u64) {
        let Between { least, most } = self.0.get();
        self.0.set(Between { least: least.max(end), most: most.max(end) });
    }
    /// It is answered that what it reads ends there, before all that it asked for.
    pub fn read_short(&self, end: u64) {
        let Between { least, most } = self.0.get();
        self.0.set(Between { least: least.min(end), most });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_short_lowers_the_least_only() {
        let len = KernelLen::new(Between::exactly(20_000));
        let is = |least, most| assert_eq!(len.get(), Between { least, most });
        len.read_short(30_000);
        is(20_000, 20_000);
        len.read_short(5000);
        len.read_short(131_072);
        is(5000, 20_000);
        assert!(len.get().has(5000) && len.get().has(20_000) && !len.get().has(4999));
        len.wrote(6000);
        is(6000, 20_000);
        len.wrote(30_000);
        is(30_000, 30_000);
        len.read_short(5000);
        len.told(5050);
        is(5050, 5050);
    }
}
