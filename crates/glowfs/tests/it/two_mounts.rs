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

#[test]
fn names_are_never_old() {
    let c = Cluster::up("names");
    let other = Mount::new(&c, "mnt2");
    let at = |name: &str| c.mnt.join(name);
    let there = |name: &str| other.path.join(name);
    let inode = |name: &str| std::fs::symlink_metadata(at(name)).map(|m| m.ino()).ok();
    for i in 0..30 {
        for name in ["a", "b"] {
            std::fs::write(there(name), name).expect("write");
        }
        std::fs::create_dir(there("d")).expect("mkdir");
        std::fs::write(there("d/inside"), "x").expect("write");
        // Twice: from the second time on this client's kernel may keep names and attributes.
        let (a, b) = (inode("a"), inode("b"));
        assert_eq!((inode("a"), inode("b")), (a, b));
        assert!(a.is_some() && inode("d/inside").is_some() && inode("d/inside").is_some());
        if i % 2 == 0 {
            // Takes the attributes away from the other client, but not the name.
            sh(&other.path, "chmod 600 a b && chmod 700 d");
        }
        std::fs::rename(there("a"), there("c")).expect("rename");
        assert_eq!((inode("a"), inode("c")), (None, a), "turn {i}: moved");
        std::fs::rename(there("c"), there("b")).expect("rename over");
        assert_eq!((inode("c"), inode("b")), (None, a), "turn {i}: replaced");
        std::fs::rename(there("d"), there("e")).expect("rename");
        assert_eq!(inode("d/inside"), None, "turn {i}: below a directory that moved");
        // Moved here, then there: the kernel moves what it knows with the name.
        std::fs::rename(at("b"), at("b2")).expect("rename");
        std::fs::rename(there("b2"), there("b3")).expect("rename");
        assert_eq!((inode("b2"), inode("b3")), (None, a), "turn {i}: moved on");
        sh(&other.path, "rm -r b3 e");
        assert_eq!((inode("b3"), inode("e/inside"), inode("e")), (None, None, None), "turn {i}");
    }
}

#[test]
fn what_a_client_has_just_made_is_not_kept_after_a_change_elsewhere() {
    let c = Cluster::up("fresh");
    let other = Mount::new(&c, "mnt2");
    for i in 0..30 {
        let name = format!("f{i}");
        std::fs::write(c.mnt.join(&name), "").expect("write");
        std::fs::create_dir(c.mnt.join(format!("d{i}"))).expect("mkdir");
        sh(&other.path, &format!("chmod 640 {name} && chmod 711 d{i} && mv {name} g{i}"));
        let mode =
            |name: &str| std::fs::symlink_metadata(c.mnt.join(name)).map(|m| m.mode() & 0o777).ok();
        assert_eq!(mode(&format!("d{i}")), Some(0o711));
        assert_eq!((mode(&name), mode(&format!("g{i}"))), (None, Some(0o640)));
    }
}
