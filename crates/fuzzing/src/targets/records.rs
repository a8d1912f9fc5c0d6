//! What namespace and mgmtd keep in the metadata engine. The first byte chooses the kind, the rest is one of it: kinds of the namespace from 0 on, of mgmtd from
//! [`OF_MGMTD`] on. What is read must mean the same when it is written and read again, and must not have grown out of nothing.

use glowfs_kv::kept::{Kind, Kinds, Samples};
use glowfs_mgmtd::kept as of_mgmtd;
use glowfs_namespace::kept as of_namespace;
use std::fmt::Debug;

/// The first kind of mgmtd.
const OF_MGMTD: u8 = 128;
/// What is read may be written as so many bytes for each byte that it was read from, and so many more.
const GROWTH: usize = 8;
const GROWTH_BESIDE: usize = 256;

/// Looks for one kind, and tries the bytes on it.
struct Chosen<'a> {
    /// Kinds that come before it.
    before: u8,
    bytes: &'a [u8],
}

impl Kinds for Chosen<'_> {
    fn kind<T: PartialEq + Debug>(&mut self, kind: Kind<T>) {
        let Some(before) = self.before.checked_sub(1) else {
            // That was it.
            return;
        };
        self.before = before;
        if before == 0 {
            both_ways(&kind, self.bytes);
        }
    }
}

fn both_ways<T: PartialEq + Debug>(kind: &Kind<T>, bytes: &[u8]) {
    let Ok(value) = (kind.read)(bytes) else { return };
    let once = (kind.write)(&value);
    assert!(once.len() <= GROWTH * bytes.len() + GROWTH_BESIDE, "{} has grown", kind.name);
    assert!(!kind.one_form || once == bytes, "{}: another form is read as well", kind.name);
    let again = (kind.read)(&once);
    assert_eq!(again.as_ref().ok(), Some(&value), "{} changes by being written", kind.name);
    // Equal values are written alike, or what is compared as bytes would differ.
    assert_eq!(again.ok().map(|v| (kind.write)(&v)), Some(once), "{}", kind.name);
}

pub fn run(input: &[u8]) {
    let Some((&which, bytes)) = input.split_first() else { return };
    // One more than stand before it, so that the chosen one brings it to 0.
    let before = which % OF_MGMTD + 1;
    let mut chosen = Chosen { before, bytes };
    if which < OF_MGMTD {
        of_namespace::kinds(&mut chosen);
    } else {
        of_mgmtd::kinds(&mut chosen);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let (mut namespace, mut mgmtd) = (Samples::default(), Samples::default());
    of_namespace::kinds(&mut namespace);
    of_mgmtd::kinds(&mut mgmtd);
    let mut seeds = Vec::new();
    for (first, samples) in [(0, namespace), (OF_MGMTD, mgmtd)] {
        for (which, (_, all)) in (first..).zip(samples.all()) {
            seeds.extend(all.iter().map(|bytes| [&[which], &bytes[..]].concat()));
        }
    }
    seeds
}
