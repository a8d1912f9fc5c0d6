//! The tests of the mount once more with writes that are answered before they are sent, and random operations against bytes in memory.

mod common;
#[path = "suite/demands.rs"]
mod demands;
#[path = "suite/posix.rs"]
mod posix;
#[path = "suite/programs.rs"]
mod programs;
#[path = "suite/rings.rs"]
mod rings;

use common::TestMount;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

const O_DIRECT: i32 = libc::O_DIRECT;
const O_DSYNC: i32 = libc::O_DSYNC;
const FILE: usize = 400_000;

/// splitmix64.
struct Random(u64);
impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn open(path: &Path, how: u64) -> File {
    let mut o = OpenOptions::new();
    o.read(true).write(true).create(true);
    match how {
        0 => o.append(true),
        1 => o.custom_flags(O_DSYNC),
        _ => &mut o,
    };
    o.open(path).expect("open")
}

/// What the daemon says, past the kernel's pages.
fn all_of(path: &Path) -> Vec<u8> {
    let f = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path).expect("open");
    let mut out = vec![0; FILE * 2];
    let n = f.read_at(&mut out, 0).expect("read");
    out.truncate(n);
    out
}

fn step(r: &mut Random, path: &Path, handles: &mut [File; 3], model: &mut Vec<u8>) {
    let which = r.below(3) as usize;
    let offset = r.below(FILE as u64);
    match r.below(24) {
        0 => {
            handles[which].set_len(offset).expect("truncate");
            model.resize(offset as usize, 0);
        }
        1 => handles[which].sync_all().expect("fsync"),
        2 => handles[which] = open(path, which as u64),
        3 => assert!(all_of(path) == *model),
        4 => {
            let from = (offset as usize).min(model.len());
            let mut got = vec![0; 5000.min(model.len() - from)];
            handles[which].read_exact_at(&mut got, from as u64).expect("read");
            assert!(got == model[from..from + got.len()]);
        }
        5 => {
            use rustix::fs::{FallocateFlags, fallocate};
            let hole = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
            fallocate(handles[which].as_fd(), hole, offset, 9000).expect("punch");
            let end = model.len();
            model[(offset as usize).min(end)..(offset as usize + 9000).min(end)].fill(0);
        }
        _ => {
            let len = [1 + r.below(300), 4096, 1 + r.below(20_000), 140_000][r.below(4) as usize];
            let bytes = vec![r.below(256) as u8; len as usize];
            let at = if which == 0 {
                (&handles[0]).write_all(&bytes).expect("append");
                model.len()
            } else {
                handles[which].write_all_at(&bytes, offset).expect("write");
                offset as usize
            };
            model.resize(model.len().max(at + bytes.len()), 0);
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            if model.len() > FILE {
                handles[1].set_len(FILE as u64 / 3).expect("truncate");
                model.truncate(FILE / 3);
            }
        }
    }
    assert_eq!(std::fs::metadata(path).expect("stat").len(), model.len() as u64);
}

#[test]
fn random_operations_agree_with_bytes_in_memory() {
    let Some(m) = TestMount::with(120, |c| c.write_back_ms = 20) else { return };
    for seed in 0..12 {
        let mut r = Random(seed);
        let path = m.join(&format!("f{seed}"));
        let mut handles = [open(&path, 0), open(&path, 1), open(&path, 2)];
        let mut model = Vec::new();
        for i in 0..300 {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                step(&mut r, &path, &mut handles, &mut model);
            }));
            assert!(done.is_ok(), "seed {seed}, step {i}");
        }
        drop(handles);
        assert!(all_of(&path) == model, "seed {seed}: after the last close");
        assert_eq!(std::fs::metadata(&path).expect("stat").size(), model.len() as u64);
    }
}
