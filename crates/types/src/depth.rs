//! [`Depth`]: how many of the operations that wait in a ring or a batch begin now. The numbers are those of 3FS's `io_depth`; there -N is the size of a
//! batch, of which there may be any number at once.

/// N > 0: exactly N begin at a time; 0: all, as soon as they are there; N < 0: at most -N are in work at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depth(pub i32);

impl Depth {
    /// How many of `waiting` operations begin now. `working`: begun and not done; `waited`: for so long that fewer than N begin, too.
    pub fn begins(self, waiting: usize, working: usize, waited: bool) -> usize {
        let n = self.0.unsigned_abs() as usize;
        match self.0 {
            0 => waiting,
            ..0 => waiting.min(n.saturating_sub(working)),
            _ if waiting >= n => n,
            _ if waited => waiting,
            _ => 0,
        }
    }
    /// Whether fewer operations than may begin at once are waited for.
    pub fn is_exact(self) -> bool {
        self.0 > 0
    }
}

#[cfg(test)]
mod tests {
    use super::Depth;

    #[test]
    fn depth_says_how_many_at_a_time() {
        let begins =
            |depth, waiting, working, waited| Depth(depth).begins(waiting, working, waited);
        assert_eq!(begins(0, 7, 100, false), 7, "as soon as possible");
        assert_eq!(begins(4, 3, 0, false), 0, "exactly four: waits");
        assert_eq!(begins(4, 9, 0, false), 4);
        assert_eq!(begins(4, 3, 0, true), 3, "waited long enough");
        assert_eq!(begins(-4, 9, 0, false), 4, "at most four");
        assert_eq!(begins(-4, 9, 3, false), 1);
        assert_eq!(begins(-4, 9, 4, false), 0);
        assert_eq!(begins(i32::MIN, 9, 0, false), 9);
    }
}
