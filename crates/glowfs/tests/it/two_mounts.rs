//! Two clients on the same files: what one of them changes or removes while the other has it open (docs/semantics.md).

use crate::harness::{Cluster, Mount, eventually, sh};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

const MIB: usize = 1 << 20;

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

/// Files whose data the metadata service has removed.
fn collected(c: &Cluster) -> u64 {
    c.metric("meta", "glowfs_meta_gc_files_total") as u64
}

/// A file that is removed after those of interest: when it is gone, they would be, too. Too long to be kept with the metadata.
fn canary_is_collected(c: &Cluster) {
    let before = collected(c);
    sh(&c.mnt, "head -c 20000 /dev/zero > canary && rm canary");
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

/// The other client has the pages in its kernel, and is told that they are old.
#[test]
fn what_is_overwritten_is_seen_after_fsync_and_fdatasync() {
    const LEN: usize = 64 << 10;
    let c = Cluster::up("oversync");
    let other = Mount::new(&c, "mnt2");
    std::fs::write(c.mnt.join("f"), content(1, LEN)).expect("write");
    let writer = File::options().write(true).open(c.mnt.join("f")).expect("open");
    let reader = File::open(other.path.join("f")).expect("open");
    let read = |what: &str| {
        let mut bytes = vec![0; LEN];
        reader.read_exact_at(&mut bytes, 0).expect(what);
        bytes
    };
    for round in 2..12 {
        // Twice, so that it is from the pages.
        assert!(read("before") == read("again"));
        writer.write_all_at(&content(round, LEN), 0).expect("overwritten");
        if round % 2 == 0 { writer.sync_data() } else { writer.sync_all() }.expect("synced");
        assert!(read("after") == content(round, LEN), "round {round}");
    }
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

/// What stat says, but for who asks.
fn shown(path: &std::path::Path) -> Option<[i64; 10]> {
    let m = std::fs::symlink_metadata(path).ok()?;
    Some([
        m.ino() as i64,
        i64::from(m.mode()),
        m.nlink() as i64,
        m.size() as i64,
        m.atime(),
        m.atime_nsec(),
        m.mtime(),
        m.mtime_nsec(),
        m.ctime(),
        m.ctime_nsec(),
    ])
}

/// A client does not ask for names that are missing in a directory of its own, until another one makes something there.
#[test]
fn names_that_others_make_in_a_directory_of_ours_are_seen_at_once() {
    let c = Cluster::up("missing");
    let other = Mount::new(&c, "mnt2");
    sh(&other.path, "mkdir elsewhere && echo 1 > elsewhere/file");
    for i in 0..40 {
        let dir = format!("d{i}");
        let (here, there) = (c.mnt.join(&dir), other.path.join(&dir));
        std::fs::create_dir(&here).expect("mkdir");
        for own in ["a", "b"] {
            assert_eq!(shown(&here.join(own)), None, "turn {i}");
            std::fs::write(here.join(own), own).expect("write");
        }
        assert_eq!(shown(&here.join("x")), None, "turn {i}: nobody has made it");
        let made = match i % 5 {
            0 => std::fs::write(there.join("x"), "x"),
            1 => std::fs::create_dir(there.join("x")),
            2 => std::os::unix::fs::symlink("a", there.join("x")),
            3 => std::fs::hard_link(there.join("a"), there.join("x")),
            _ => std::fs::rename(other.path.join("elsewhere/file"), there.join("x")),
        };
        made.expect("made by the other client");
        assert!(shown(&here.join("x")).is_some(), "turn {i}: made there");
        assert_eq!(shown(&here), shown(&there), "turn {i}");
        // And what was known before is known no more.
        std::fs::write(there.join("y"), "y").expect("write");
        assert_eq!(std::fs::read(here.join("y")).expect("made there"), b"y", "turn {i}");
        std::fs::rename(there.join("y"), there.join("z")).expect("rename");
        assert_eq!((shown(&here.join("y")), shown(&here.join("z")).is_some()), (None, true));
        std::fs::rename(here.join("x"), other_name(&c, i)).expect("rename");
    }
}

fn other_name(c: &Cluster, i: usize) -> std::path::PathBuf {
    c.mnt.join("elsewhere").join(if i % 5 == 3 { "file".to_owned() } else { format!("x{i}") })
}

/// The attributes of a directory that came with the answer to a change of our own are those that others see.
#[test]
fn a_directory_looks_the_same_to_all_after_each_change() {
    let c = Cluster::up("dirattrs");
    let other = Mount::new(&c, "mnt2");
    let steps = [
        "mkdir d d/sub e",
        "touch d/f",
        "ln d/f d/g",
        // Two names of one file: nothing is to happen, both stay.
        "python3 -c 'import os; os.rename(\"d/f\", \"d/g\")' && test -e d/f && test -e d/g",
        "ln -s f d/s",
        "chmod 750 d",
        "touch -d 2001-01-01 d",
        "mkdir d/sub/deep",
        "ls d d/sub",
        "setfattr -n user.x -v 1 d",
        "mv d/sub e/moved",
        "mv d/s e/s",
        "python3 -c 'import ctypes, os; print(ctypes.CDLL(None).renameat2(-100, b\"d/f\", -100, b\"e/moved\", 2))' && test -d d/f",
        "mkfifo d/pipe",
        "rm d/pipe d/g",
        "rmdir d/f/deep",
        "mv e/moved d/f2",
        "mkdir e/over && mv -T d/f e/over && test ! -e d/f",
        "touch e/one && mv e/one d/f2",
        "rmdir e/over && rm -r d e",
    ];
    for step in steps {
        sh(&c.mnt, step);
        for dir in ["", "d", "e", "d/sub", "d/f", "e/moved", "e/over"] {
            let (here, there) = (shown(&c.mnt.join(dir)), shown(&other.path.join(dir)));
            assert_eq!(here, there, "`{dir}` after {step}");
            assert_eq!(here, shown(&c.mnt.join(dir)), "`{dir}` again after {step}");
        }
    }
}

#[test]
fn making_files_in_a_new_directory_asks_meta_once_for_each() {
    const FILES: usize = 500;
    let c = Cluster::up("questions");
    let asked =
        |op: &str| c.metric("meta", &format!("glowfs_meta_op_seconds_count{{op=\"{op}\"}}"));
    std::fs::create_dir(c.mnt.join("d")).expect("mkdir");
    let count = || ["LOOKUP", "GETATTR", "CLOSE", "CLOSES", "MAKE"].map(asked);
    let (before, began) = (count(), std::time::Instant::now());
    for i in 0..FILES {
        File::create(c.mnt.join(format!("d/{i}"))).expect("create");
    }
    let (after, took) = (count(), began.elapsed());
    let asked: Vec<f64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    eprintln!("LOOKUP, GETATTR, CLOSE, CLOSES, MAKE: {asked:?} in {took:?}");
    assert!(asked[4] as usize == FILES);
    // A few for each lease of a second, and some for the path to the directory.
    let questions = asked[0] + asked[1] + asked[2];
    assert!(questions <= 20.0 + 8.0 * took.as_secs_f64(), "{asked:?} in {took:?}");

    // The kernel has forgotten the names by then, the mount has not.
    std::thread::sleep(NAMES_FORGOTTEN);
    let (before, began) = (count(), std::time::Instant::now());
    let (old, new) = (|i| c.mnt.join(format!("d/{i}")), |i| c.mnt.join(format!("d/new-{i}")));
    (0..FILES).for_each(|i| std::fs::rename(old(i), new(i)).expect("rename"));
    std::thread::sleep(NAMES_FORGOTTEN);
    (0..FILES).for_each(|i| std::fs::remove_file(new(i)).expect("remove"));
    let (after, took) = (count(), began.elapsed());
    let asked: Vec<f64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    eprintln!("LOOKUP, GETATTR to rename and remove: {:?} in {took:?}", &asked[..2]);
    assert!(asked[0] + asked[1] <= 20.0 + 8.0 * took.as_secs_f64(), "{asked:?} in {took:?}");
}

/// For longer than this the kernel keeps no name.
const NAMES_FORGOTTEN: std::time::Duration = std::time::Duration::from_millis(800);

/// What a name in a directory of its own leads to, a client knows by itself, until another one changes it; what the kernel is told of the inode then, it
/// may not keep.
#[test]
fn names_that_others_change_in_a_directory_of_ours_are_seen_at_once() {
    let c = Cluster::up("theirs");
    let other = Mount::new(&c, "mnt2");
    for i in 0..8 {
        let dir = format!("d{i}");
        let (here, there) = (c.mnt.join(&dir), other.path.join(&dir));
        std::fs::create_dir(&here).expect("mkdir");
        for name in ["a", "b", "c"] {
            std::fs::write(here.join(name), name).expect("write");
        }
        std::fs::create_dir(here.join("sub")).expect("mkdir");
        std::fs::rename(here.join("c"), here.join("sub/c")).expect("rename");
        std::thread::sleep(NAMES_FORGOTTEN);
        // Attributes, of which this client hears nothing any more.
        sh(&there, "chmod 600 a && printf longer >> a && touch -d 2001-01-01 sub/c && ln b link");
        // The directories are leased again by a change of our own.
        for at in ["", "sub"] {
            std::fs::write(here.join(at).join("own"), "").expect("write");
        }
        for name in ["a", "b", "sub/c", "sub", "own"] {
            assert_eq!(shown(&here.join(name)), shown(&there.join(name)), "turn {i}, {name}");
        }
        assert_eq!(std::fs::read(here.join("a")).expect("read"), b"alonger", "turn {i}");
        std::thread::sleep(NAMES_FORGOTTEN);
        std::fs::write(here.join("own2"), "").expect("write");
        match i % 4 {
            0 => std::fs::rename(there.join("b"), there.join("a")).expect("rename"),
            1 => std::fs::remove_file(there.join("a")).expect("remove"),
            2 => drop(sh(&there, "mv a x && mkdir a")),
            _ => {
                let exchange = "import ctypes; assert ctypes.CDLL(None).renameat2(-100, b\"a\", -100, b\"sub/c\", 2) == 0";
                sh(&there, &format!("python3 -c '{exchange}'"));
            }
        }
        for name in ["a", "b", "link", "x", "sub/c"] {
            assert_eq!(shown(&here.join(name)), shown(&there.join(name)), "turn {i}, {name}");
        }
        let read = |at: &std::path::Path, name| std::fs::read(at.join(name)).ok();
        for name in ["a", "b", "sub/c"] {
            assert_eq!(read(&here, name), read(&there, name), "turn {i}, {name}");
        }
        sh(&c.mnt, &format!("rm -r {dir}"));
        assert_eq!(shown(&there), None);
    }
}

/// What was written to a file is not taken back from the kernel when its name is answered from what is known.
#[test]
fn a_file_of_ours_is_as_it_was_written_when_its_name_is_looked_up_again() {
    let c = Cluster::up("again");
    std::fs::create_dir(c.mnt.join("d")).expect("mkdir");
    let path = |name: &str| c.mnt.join("d").join(name);
    let mut open = File::create(path("open")).expect("create");
    std::fs::write(path("closed"), "0123456789").expect("write");
    let mut both = std::fs::OpenOptions::new();
    let mapped = both.read(true).write(true).create(true).open(path("cut")).expect("create");
    mapped.set_len(5).expect("cut");
    drop(mapped);
    open.write_all(b"0123").expect("write");
    for turn in 0..3 {
        std::thread::sleep(NAMES_FORGOTTEN);
        std::fs::write(path("renews the lease"), "").expect("write");
        open.write_all(b"4").expect("write");
        let len = |name: &str| std::fs::metadata(path(name)).expect("stat").len();
        assert_eq!((len("open"), len("closed"), len("cut")), (5 + turn, 10, 5), "turn {turn}");
        assert_eq!(std::fs::read(path("closed")).expect("read"), b"0123456789");
        assert_eq!(std::fs::read(path("open")).expect("read").len() as u64, 5 + turn);
    }
}

/// What a listing says of its entries is kept as if each had been looked up, and taken back like that.
#[test]
fn entries_that_were_listed_are_not_asked_for_and_not_old() {
    const FILES: usize = 200;
    let c = Cluster::up("listed");
    let other = Mount::new(&c, "mnt2");
    let (here, there) = (c.mnt.join("d"), other.path.join("d"));
    std::fs::create_dir(&here).expect("mkdir");
    (0..FILES).for_each(|i| std::fs::write(here.join(format!("f{i}")), "1").expect("write"));
    let list = || {
        let entries = std::fs::read_dir(&there).expect("list");
        let mut all: Vec<_> = entries
            .map(|e| e.expect("entry"))
            .map(|e| (e.file_name(), e.metadata().expect("stat").len()))
            .collect();
        all.sort();
        all
    };
    std::thread::sleep(NAMES_FORGOTTEN);
    let lookups = || c.metric("meta", "glowfs_meta_op_seconds_count{op=\"LOOKUP\"}");
    let before = lookups();
    assert_eq!(list().len(), FILES);
    let asked = lookups() - before;
    assert!(asked < FILES as f64 / 4.0, "{asked} of {FILES} names were looked up");
    for turn in 0..6 {
        // Beyond the time for which what was contended is not leased.
        std::thread::sleep(std::time::Duration::from_millis(if turn == 0 { 0 } else { 2100 }));
        list();
        let file = |n: usize| format!("f{}", turn * 10 + n);
        std::fs::rename(here.join(file(0)), here.join(file(1))).expect("rename");
        std::fs::remove_file(here.join(file(2))).expect("remove");
        std::fs::write(here.join(file(3)), "longer").expect("write");
        sh(&here, &format!("chmod 600 {} && rm {} && mkdir {}", file(4), file(5), file(5)));
        for n in 0..6 {
            let (a, b) = (shown(&here.join(file(n))), shown(&there.join(file(n))));
            assert_eq!(a, b, "turn {turn}, {}", file(n));
        }
        assert_eq!(std::fs::read(there.join(file(3))).expect("read"), b"longer");
    }
}

/// `cp -p`, `rsync --inplace -t` and `touch -r` leave a time that is no later than before, and the length may be the same.
#[test]
fn a_change_is_seen_though_its_writer_sets_the_time_back() {
    let c = Cluster::up("setback");
    let other = Mount::with(&c, "mnt2", &["--set", "atime=\"noatime\""]);
    for len in [5, 3 * MIB] {
        let write = |seed| {
            std::fs::write(c.mnt.join("f"), content(seed, len)).expect("write");
            sh(&c.mnt, "touch -d 2020-02-02 f");
        };
        let seen = |f: &File| {
            let mut bytes = vec![0; len];
            f.read_exact_at(&mut bytes, 0).expect("read");
            bytes
        };
        write(1);
        let open = File::open(other.path.join("f")).expect("open");
        assert!(seen(&open) == content(1, len));
        // Until no lease is left that could be recalled.
        std::thread::sleep(std::time::Duration::from_millis(2500));
        write(2);
        assert!(seen(&File::open(other.path.join("f")).expect("open")) == content(2, len), "anew");
        assert!(seen(&open) == content(2, len), "open since before");
        std::thread::sleep(std::time::Duration::from_millis(2500));
        write(3);
        assert!(seen(&open) == content(3, len), "open since before, and nobody opened it");
        std::thread::sleep(std::time::Duration::from_millis(2500));
        write(4);
        // The kernel takes the time from the answer to this.
        open.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("set");
        eventually("what was written before a time was set here", || {
            seen(&open) == content(4, len)
        });
    }
}

/// The same through the file that was written: what is told when it is closed, or when a lock is given back, has no time of its own.
#[test]
fn a_change_is_seen_though_its_writer_sets_the_time_back_before_the_close() {
    let c = Cluster::up("setopen");
    let other = Mount::with(&c, "mnt2", &["--set", "atime=\"noatime\""]);
    let len = 3 * MIB;
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_580_000_000);
    let options = File::options().read(true).write(true).create(true).truncate(false).to_owned();
    let write = |seed| {
        let f = options.open(c.mnt.join("f")).expect("open");
        f.write_all_at(&content(seed, len), 0).expect("write");
        f.set_modified(time).expect("set");
        f
    };
    let seen = |f: &File| {
        let mut bytes = vec![0; len];
        f.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    };
    drop(write(1));
    let open = options.open(other.path.join("f")).expect("open");
    assert!(seen(&open) == content(1, len));
    // Until no lease is left that could be recalled.
    let unleased = || std::thread::sleep(std::time::Duration::from_millis(2500));
    unleased();
    drop(write(2));
    assert!(seen(&File::open(other.path.join("f")).expect("open")) == content(2, len), "anew");
    assert!(seen(&open) == content(2, len), "open since before");
    assert_eq!(open.metadata().expect("stat").modified().expect("a time"), time);
    unleased();
    let writer = options.open(c.mnt.join("f")).expect("open");
    writer.lock().expect("a lock");
    writer.write_all_at(&content(3, len), 0).expect("write");
    writer.set_modified(time).expect("set");
    writer.unlock().expect("unlock");
    open.lock().expect("a lock");
    assert!(seen(&open) == content(3, len), "under a lock");
}
