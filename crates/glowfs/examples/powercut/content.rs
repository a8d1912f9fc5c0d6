//! Blocks and files that say what they are, so that a reader without any memory can tell old, new and wrong.

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Threads; each has a directory of its own.
pub const THREADS: u64 = 3;
/// Files of blocks of each thread.
pub const FILES: u64 = 4;
/// Blocks of each.
pub const BLOCKS: u64 = 48;
/// Names of each thread that come, move and go.
pub const NAMES: u64 = 6;

/// One step of SplitMix64.
pub fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A seeded generator.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % n.max(1)
    }
}

/// What a block holds: `place` is its thread, file and number, `generation` how often it was written.
pub fn block(place: u64, generation: u64) -> Vec<u8> {
    let head = [place, generation];
    let rest = (2..BLOCK as u64 / 8).map(|i| mix(place ^ generation.rotate_left(32) ^ (i << 48)));
    head.into_iter().chain(rest).flat_map(u64::to_le_bytes).collect()
}

/// The generation of a block: 0 for one that was never written, `None` for what nobody ever wrote there.
pub fn generation(place: u64, bytes: &[u8]) -> Option<u64> {
    if bytes.iter().all(|b| *b == 0) {
        return Some(0);
    }
    let g = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    (block(place, g) == bytes).then_some(g)
}

/// The place of a block.
pub fn place(thread: u64, file: u64, block: u64) -> u64 {
    (thread << 32) | (file << 16) | block
}

/// The content of a named file in step `step` of its life.
pub fn named(thread: u64, name: u64, step: u64) -> Vec<u8> {
    let id = (thread << 32) | (name << 16) | 0xffff;
    let len = (mix(id ^ step) % 9000) as usize;
    let mut bytes = [id, step].into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
    let mut i = 0;
    while bytes.len() < 16 + len {
        bytes.extend(mix(id ^ step.rotate_left(24) ^ i).to_le_bytes());
        i += 1;
    }
    bytes
}

/// The step whose content this is.
pub fn step_of(thread: u64, name: u64, bytes: &[u8]) -> Option<u64> {
    let step = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    (named(thread, name, step) == bytes).then_some(step)
}
