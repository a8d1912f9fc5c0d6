//! Two clients on the same files: what one of them changes or removes while the other has it open (docs/semantics.md).

use crate::harness::{Cluster, Mount, eventually, sh};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};

const MIB: usize = 1 << 20;

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

/// Files whose data the metadata service has removed.
fn collected(c: &Cluster) -> u64 {
    c.metric("meta", "glowfs_meta_gc_files_total") as u64
}

/// A file that is removed after those of interest: when it is gone, they would be, too.
fn canary_is_collected(c: &Cluster) {
    let before = collected(c);
    sh(&c.mnt, "echo tweet > canary && rm canary");
    eventually("the canary is collected", || collected(c) > before);
}

fn read_all(f: &File, len: usize) -> Vec<u8> {
    // Nothing may come from the page cache.
    rustix::fs::fadvise(f, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
    let mut bytes = vec![0; len];
    f.read_exact_at(&mut bytes, 0).expect("an open file can be read");
    bytes
}

#[test]
fn what_another_client_has_open_stays_until_it_is_closed() {
    let c = Cluster::up("openelse");
    let other = Mount::new(&c, "mnt2");
    let names = ["unlinked", "replaced", "written"];
    for (i, name) in names.iter().enumerate() {
        std::fs::write(c.mnt.join(name), content(i as u8, 3 * MIB + 5)).expect("write");
    }
    // The last one is open for writing there, the others for reading only.
    let open = |name: &str, write| {
        File::options().read(true).write(write).open(other.path.join(name)).expect("open")
    };
    let files = [open("unlinked", false), open("replaced", false), open("written", true)];
    sh(&c.mnt, "rm unlinked written && echo new > unlinked-too && mv unlinked-too replaced");
    canary_is_collected(&c);
    for (i, f) in files.iter().enumerate() {
        assert!(read_all(f, 3 * MIB + 5) == content(i as u8, 3 * MIB + 5), "{}", names[i]);
        let stat = f.metadata().expect("fstat of an open file");
        assert_eq!((stat.nlink(), stat.len()), (0, 3 * MIB as u64 + 5), "{}", names[i]);
    }
    files[2].write_all_at(b"still", 7).expect("write to an unlinked file");
    assert_eq!(&read_all(&files[2], 20)[7..12], b"still");
    assert_eq!(sh(&other.path, "cat replaced; ls"), "new\nreplaced\n");
    // Opened anew through /proc, as programs do with what they have open.
    let fd = std::os::fd::AsRawFd::as_raw_fd(&files[0]);
    let mut again = File::open(format!("/proc/self/fd/{fd}")).expect("open of an open file");
    let mut bytes = Vec::new();
    again.read_to_end(&mut bytes).expect("read");
    assert!(bytes == content(0, 3 * MIB + 5));
    drop(again);
    let before = collected(&c);
    drop(files);
    eventually("the space comes back", || collected(&c) >= before + 3);
}

#[test]
fn a_truncate_is_seen_by_who_has_the_file_open() {
    let c = Cluster::up("cutelse");
    let other = Mount::new(&c, "mnt2");
    let len = 2 * MIB + 77;
    std::fs::write(c.mnt.join("f"), content(1, len)).expect("write");
    let f = File::open(other.path.join("f")).expect("open");
    assert!(read_all(&f, len) == content(1, len));
    let mut tail = [0; 16];
    let cut = |to: u64| {
        File::options().write(true).open(c.mnt.join("f")).expect("open").set_len(to).expect("cut");
    };
    cut(MIB as u64 + 5);
    assert_eq!(f.metadata().expect("fstat").len(), MIB as u64 + 5);
    assert_eq!(f.read_at(&mut tail, MIB as u64).expect("read"), 5);
    assert_eq!(tail[..5], content(1, len)[MIB..MIB + 5]);
    cut(0);
    assert_eq!(f.metadata().expect("fstat").len(), 0);
    assert_eq!(f.read_at(&mut tail, 0).expect("read"), 0);
    std::fs::write(c.mnt.join("f"), b"anew").expect("write");
    assert_eq!(read_all(&f, 4), b"anew");
    canary_is_collected(&c);
    assert_eq!(read_all(&f, 4), b"anew");
}
