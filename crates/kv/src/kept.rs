//! [`Kinds`]: all that stands in an engine, kind by kind, for those who treat every kind alike: the fuzzer and golden tests.
//!
//! A crate that keeps records in the engine names every kind of them in one function (`namespace::kept`, `mgmtd::kept`), each with how it is read and how it is written, so
//! that its types stay its own. Pure. Must never: read or write a kind in another way than the service does.

use glowfs_types::Result;
use std::fmt::Debug;

/// A kind of what is kept: a record, a sum, or the keys.
pub struct Kind<T> {
    /// What it is.
    pub name: &'static str,
    /// Reads one, of this release or an older one.
    pub read: fn(&[u8]) -> Result<T>,
    /// Writes one.
    pub write: fn(&T) -> Vec<u8>,
    /// What is read has one form only: it is written as the very bytes that were read.
    pub one_form: bool,
    /// Some that are written like this for ever.
    pub samples: fn() -> Vec<T>,
}

/// Takes all kinds, one after the other. New ones come behind the others.
pub trait Kinds {
    /// The next one.
    fn kind<T: PartialEq + Debug>(&mut self, kind: Kind<T>);
}

/// The samples of every kind, as they are stored.
#[derive(Default)]
pub struct Samples(Vec<(&'static str, Vec<Vec<u8>>)>);

impl Samples {
    /// Names of the kinds and their samples, in order.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &[Vec<u8>])> {
        self.0.iter().map(|(name, samples)| (*name, samples.as_slice()))
    }
    /// As text: a line for each sample, for golden tests.
    pub fn listed(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        self.all()
            .flat_map(|(name, samples)| {
                samples.iter().map(move |s| format!("{name}: {}\n", hex(s)))
            })
            .collect()
    }
}

impl Kinds for Samples {
    fn kind<T: PartialEq + Debug>(&mut self, kind: Kind<T>) {
        let samples = (kind.samples)();
        for sample in &samples {
            let read = (kind.read)(&(kind.write)(sample));
            assert!(read.is_ok_and(|r| r == *sample), "a sample is not read as it was: {sample:?}");
        }
        self.0.push((kind.name, samples.iter().map(kind.write).collect()));
    }
}
