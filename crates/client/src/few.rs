//! A list that mostly has one entry, and takes no memory of its own then: most reads are one piece of one chunk.

use std::ops::Deref;

/// See the module. What has been collected into one is [`Few::One`] whenever there is exactly one.
#[derive(Debug)]
pub(crate) enum Few<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> Deref for Few<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<T> From<Few<T>> for Vec<T> {
    fn from(few: Few<T>) -> Self {
        match few {
            Few::One(one) => vec![one],
            Few::Many(many) => many,
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        // One that stops at an error goes on after its end.
        let mut all = all.into_iter().fuse();
        match (all.next(), all.next()) {
            (Some(one), None) => Self::One(one),
            (first, second) => Self::Many(first.into_iter().chain(second).chain(all).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_was_collected() {
        let stopped = |all: &[Option<u32>]| all.iter().copied().collect::<Option<Few<u32>>>();
        for holes in [&[None, Some(1)][..], &[Some(1), None], &[None]] {
            assert!(stopped(holes).is_none());
        }
        for n in 0..5 {
            let few: Few<u32> = (0..n).collect();
            assert_eq!(matches!(few, Few::One(_)), n == 1);
            assert!(few.iter().copied().eq(0..n) && few.len() == n as usize);
            assert_eq!(Vec::from(few), Vec::from_iter(0..n));
        }
    }
}
