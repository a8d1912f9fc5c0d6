//! A world for the store's tests: a seeded executor and a disk that can be cut off after any operation.

mod content;
mod disk;
mod files;
mod world;

pub use disk::{Crash, Disk};
pub use world::{run, run_observed};

use std::cell::Cell;

const BLOCK: usize = 4096;

/// SplitMix64.
pub struct Rng(Cell<u64>);
impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }
    pub fn next(&self) -> u64 {
        let s = self.0.get();
        self.0.set(s.wrapping_add(1));
        glowfs_types::layout::splitmix64(s)
    }
    pub fn below(&self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }
}
