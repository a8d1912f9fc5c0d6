//! copy_file_range on the storage nodes (docs/semantics.md), against bytes in memory.

use crate::harness::{Cluster, Mount, sh};
use rustix::fs::copy_file_range;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

fn copy(from: &File, at: u64, to: &File, place: u64, len: u64) -> Result<u64, Errno> {
    let (mut at, mut place, mut done) = (at, place, 0);
    while done < len {
        match copy_file_range(from, Some(&mut at), to, Some(&mut place), (len - done) as usize)? {
            0 => break,
            n => done += n as u64,
        }
    }
    Ok(done)
}

fn content(f: &File) -> Vec<u8> {
    rustix::fs::fadvise(f, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
    let mut bytes = vec![0; f.metadata().expect("stat").len() as usize];
    f.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(seed * 2 + 1) >> 7) as u8 ^ i as u8).collect()
}

#[test]
fn files_are_copied_where_they_lie() {
    let c = Cluster::up("copy");
    let other = Mount::new(&c, "mnt2");
    let (a, b) = (open(&c.mnt.join("a")), open(&c.mnt.join("b")));
    let bytes = pattern(3, 5 * M + 777);
    a.write_all_at(&bytes, 0).expect("write");
    b.write_all_at(&pattern(9, 3 * M), 0).expect("write");
    let mut model = content(&b);
    let copies = || c.metric("storage", "glowfs_storage_copies_total");
    let before = copies();
    // Aligned and not, over borders of chunks, into and behind the end of the other file.
    for (at, place, len) in [
        (0, 0, M),
        (5, M - 7, 100),
        (M - 1, 2 * M + 4095, 2 * M + 2),
        (12_345, 54_321, 700 * K),
        (0, 6 * M + 1, 5 * M + 777),
    ] {
        assert_eq!(copy(&a, at, &b, place, len), Ok(len), "{at} {place} {len}");
        let end = (place + len) as usize;
        model.resize(model.len().max(end), 0);
        model[place as usize..end].copy_from_slice(&bytes[at as usize..(at + len) as usize]);
        assert!(content(&b) == model, "{at} {place} {len}");
    }
    assert!(copies() > before, "the storage nodes copied");
    assert!(content(&open(&other.path.join("b"))) == model, "through another client");
    // What another client has written and closed is copied; past the end there is nothing.
    open(&other.path.join("a")).write_all_at(b"theirs", 100).expect("write");
    assert_eq!(copy(&a, 100, &b, 0, 6), Ok(6));
    assert_eq!(content(&b)[..6], *b"theirs");
    assert_eq!(copy(&a, 5 * M + 700, &b, 0, M), Ok(77));
    assert_eq!(copy(&a, 5 * M + 777, &b, 0, M), Ok(0));
    assert_eq!(copy(&a, 9 * M, &b, 0, M), Ok(0));
    // In one file: apart from one another, but not over one another.
    let bytes = content(&a);
    assert_eq!(copy(&a, 0, &a, 6 * M, 2 * M), Ok(2 * M));
    assert!(content(&a)[6 * M as usize..] == bytes[..2 * M as usize]);
    assert_eq!(copy(&a, 0, &a, 100, 2 * M), Err(Errno::INVAL));
    assert_eq!(copy(&a, 100, &a, 0, 2 * M), Err(Errno::INVAL));
    // Rights are those of the descriptors.
    let read_only = File::open(c.mnt.join("b")).expect("open");
    assert_eq!(copy(&a, 0, &read_only, 0, 5), Err(Errno::BADF));
    // Holes stay holes, and make holes of what was there.
    let (s, d) = (open(&c.mnt.join("sparse")), open(&c.mnt.join("dense")));
    s.set_len(40 * M).expect("extend");
    s.write_all_at(&pattern(1, 20 * K), 30 * M + 8 * K).expect("write");
    d.write_all_at(&vec![1; 10 * M as usize], 0).expect("write");
    assert_eq!(copy(&s, 0, &d, 0, 40 * M), Ok(40 * M));
    assert!(content(&d) == content(&s));
    drop((s, d));
    assert_eq!(std::fs::metadata(c.mnt.join("dense")).expect("stat").blocks(), 40);
    // Under load: what is copied while it is written is old or new in each block of a write.
    let script = "for i in $(seq 20); do cp --reflink=never a copy-$i & done; wait; for i in $(seq 20); do cmp a copy-$i; done";
    sh(&other.path, script);
}
