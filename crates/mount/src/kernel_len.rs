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
//! An answer that ends early lowers the least only if nothing that sets or raises it was said since that READ came ([`Moves`]): otherwise the kernel passes over it, or takes what was said after it. Which of the two the mount does not
//! see, so it has the kernel give the pages of that READ back from where it ended on, and none with zeros stays once that is through. Such an answer says what is known as it is given: a READ during which the file became longer here is made again, once.
//!
//! Which one to go by. The kernel has zeros in its pages behind the end at which it read them, whether it took its length from that or not. So what another client has
//! put behind the **least** is in danger: of a page that was stored into the kernel writes all that lies before the end that it knows, with the zeros, and that may be the most already, or become so by what it is told or does. So
//! whoever asks whether the file has become longer than the kernel knows, and from where on, goes by the least: if the kernel knew more, a page is given back for nothing. All pages from the one in which the file ends at
//! least to the one in which it ends at **most** are given back: of none of them it is sure that it was read when the file was longer. And where the two differ, or the kernel is about to take the file for longer by itself, what lies
//! behind the least in those pages is not written meanwhile ([`crate::old_tails`]). That takes nothing away: as the answer was given that made it the least, the file ended there; nothing greater had been told or written while it was under way; and what is
//! told or written since makes that the least. So what a program has stored there it has stored behind the end, into pages that were read as zeros, for the kernel goes by a length of before another client's cut. What is there by now
//! another client has written, or a ring, of which the kernel does not know. The kernel does not say which bytes of a page were stored: written whole, it would lay its zeros over those, acknowledged and made durable as they may be.
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

/// So often something was told or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Moves(u64);

/// See the module.
#[derive(Default)]
pub struct KernelLen {
    now: Cell<Between>,
    moves: Cell<u64>,
}

impl KernelLen {
    /// As it was known before.
    pub fn new(known: Between) -> Self {
        Self { now: Cell::new(known), moves: Cell::default() }
    }
    /// What is known.
    pub fn get(&self) -> Between {
        self.now.get()
    }
    /// Take this as a READ arrives, before anything is waited for.
    pub fn moves(&self) -> Moves {
        Moves(self.moves.get())
    }
    fn set(&self, now: Between) {
        self.now.set(now);
        self.moves.set(self.moves.get() + 1);
    }
    /// It is told that the file is so long.
    pub fn told(&self, len: u64) {
        self.set(Between::exactly(len));
    }
    /// It is answered that it wrote so far.
    pub fn wrote(&self, end: u64) {
        let Between { least, most } = self.now.get();
        self.set(Between { least: least.max(end), most: most.max(end) });
    }
    /// It is answered that what it reads ends there, before all that it asked for; `since`: as the request came. False: it may have passed over that, and what it has read behind the
    /// end is to be given back.
    #[must_use]
    pub fn read_short(&self, end: u64, since: Moves) -> bool {
        let Between { least, most } = self.now.get();
        // Its zeros begin where those begin that are looked after already, if not behind them: nothing is lowered, and it is all the same whether the kernel took it in.
        if end >= least {
            return true;
        }
        if since != self.moves() {
            return false;
        }
        self.now.set(Between { least: end, most });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_short_lowers_the_least_only() {
        let len = KernelLen::new(Between::exactly(20_000));
        let is = |least, most| assert_eq!(len.get(), Between { least, most });
        let read_short = |end| assert!(len.read_short(end, len.moves()));
        read_short(30_000);
        is(20_000, 20_000);
        read_short(5000);
        read_short(131_072);
        is(5000, 20_000);
        assert!(len.get().has(5000) && len.get().has(20_000) && !len.get().has(4999));
        len.wrote(6000);
        is(6000, 20_000);
        len.wrote(30_000);
        is(30_000, 30_000);
        read_short(5000);
        len.told(5050);
        is(5050, 5050);
    }

    #[test]
    fn what_is_overtaken_lowers_nothing() {
        for say in [KernelLen::wrote, KernelLen::told] {
            let len = KernelLen::new(Between::exactly(5000));
            let came = len.moves();
            say(&len, 9000);
            assert!(!len.read_short(5000, came));
            assert!(len.read_short(9000, came), "it ends where the kernel has it end");
            assert_eq!(len.get(), Between::exactly(9000));
            assert!(len.read_short(5000, len.moves()));
        }
    }
}
