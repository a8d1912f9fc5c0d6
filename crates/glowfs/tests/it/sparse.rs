//! Holes (docs/semantics.md): SEEK_HOLE and SEEK_DATA, and what stat and du say of files with holes.

use crate::harness::{Cluster, Mount, eventually, sh};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// The runs of data, as SEEK_DATA and SEEK_HOLE tell them.
fn runs(f: &File) -> Vec<(u64, u64)> {
    let (mut at, mut found) = (0, Vec::new());
    loop {
        let begin = match seek(f, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            Err(rustix::io::Errno::NXIO) => return found,
            Err(e) => panic!("SEEK_DATA {at}: {e}"),
        };
        at = seek(f, SeekFrom::Hole(begin)).expect("SEEK_HOLE");
        assert!(begin < at, "{begin} {at}");
        found.push((begin, at));
    }
}

fn kib(path: &Path) -> u64 {
    std::fs::metadata(path).expect("stat").blocks() / 2
}

#[test]
fn holes_are_found_and_take_no_room() {
    let c = Cluster::up("sparse");
    let other = Mount::new(&c, "mnt2");
    let (here, there) = (c.mnt.join("f"), other.path.join("f"));
    let f = open(&here);
    // Blocks inside chunks, over the border of two, and far away; a tail that is a hole.
    for (at, len) in [(8 * K, 4 * K), (40 * K, 100), (M - 4 * K, 8 * K), (700 * M, 20 * K)] {
        f.write_all_at(&vec![7; len as usize], at).expect("write");
    }
    f.set_len(900 * M + 5).expect("extend");
    let want =
        [(8 * K, 12 * K), (40 * K, 44 * K), (M - 4 * K, M + 4 * K), (700 * M, 700 * M + 20 * K)];
    assert_eq!(runs(&f), want);
    drop(f);
    assert_eq!(kib(&here), 36);
    assert_eq!(kib(&there), 36, "through another client");
    assert_eq!(runs(&open(&there)), want);
    let f = open(&here);
    assert_eq!(seek(&f, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(&f, SeekFrom::Data(M)), Ok(M));
    assert_eq!(seek(&f, SeekFrom::Hole(M)), Ok(M + 4 * K));
    assert_eq!(seek(&f, SeekFrom::Hole(800 * M)), Ok(800 * M));
    let nothing = Err(rustix::io::Errno::NXIO);
    assert_eq!(seek(&f, SeekFrom::Data(800 * M)), nothing);
    assert_eq!(seek(&f, SeekFrom::Data(900 * M + 5)), nothing);
    assert_eq!(seek(&f, SeekFrom::Hole(900 * M + 5)), nothing);
    // Punched over many chunks, at once.
    fallocate(&f, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 40 * K, 800 * M)
        .expect("punch");
    assert_eq!(runs(&f), [(8 * K, 12 * K)]);
    drop(f);
    assert_eq!(kib(&there), 4);
    // Filled, it is a file without holes again; cut, what is left counts.
    let g = open(&c.mnt.join("g"));
    g.write_all_at(&vec![1; 2 * M as usize], 2 * M).expect("write");
    drop(g);
    assert_eq!(kib(&other.path.join("g")), 2 * K);
    std::fs::write(c.mnt.join("half"), vec![2; 2 * M as usize]).expect("write");
    assert_eq!(kib(&other.path.join("half")), 2 * K);
    let g = open(&other.path.join("g"));
    g.set_len(3 * M).expect("cut");
    assert_eq!(kib(&c.mnt.join("g")), K);
    g.write_all_at(&vec![3; 2 * M as usize], 0).expect("fill");
    drop(g);
    assert_eq!(kib(&c.mnt.join("g")), 3 * K);
    eventually("told", || kib(&other.path.join("g")) == 3 * K);
}

#[test]
fn programs_keep_holes() {
    let c = Cluster::up("sparseprog");
    let other = Mount::new(&c, "mnt2");
    let script = r#"
        truncate -s 50M empty; printf x | dd of=disk bs=1 seek=30M conv=notrunc status=none; truncate -s 64M disk
        dd if=/dev/urandom of=disk bs=64k count=3 seek=100 conv=notrunc status=none
        [ $(du -k empty | cut -f1) = 0 ]; [ $(du -k disk | cut -f1) = 196 ]
        cp --sparse=auto disk copy; cmp disk copy; [ $(du -k copy | cut -f1) = 196 ]
        cp --sparse=always disk always; cmp disk always; [ $(du -k always | cut -f1) = 196 ]
        tar -S -cf all.tar disk empty; [ $(stat -c %s all.tar) -lt 400000 ]
        mkdir out; tar -C out -xf all.tar; cmp disk out/disk; cmp empty out/empty; [ $(du -k out/disk | cut -f1) = 196 ]
        rsync -S disk synced; cmp disk synced; [ $(du -k synced | cut -f1) -le 256 ]
    "#;
    sh(&c.mnt, script);
    sh(&other.path, "cmp disk copy; cmp disk out/disk; [ $(du -k disk | cut -f1) = 196 ]");
}
