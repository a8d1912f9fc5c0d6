//! Clients that die, that are paused, and that cache: nobody sees old data, nothing leaks, nothing is overwritten late
//! (docs/semantics.md).

use crate::harness::{Cluster, Mount, eventually, scrape, sh};
use rustix::process::Signal;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

/// Short leases, so that a test need not wait for long ones.
fn short_leases(c: &Cluster) {
    c.retune("mgmtd-1", "[timing]\nclient_session_ms = 3000\n");
    c.retune("meta-1", "[tuning]\ncapability_ms = 3000\nsession_grace_ms = 500\n");
    sh(&c.mnt, "echo up > up && rm up");
}

fn reaped(c: &Cluster) -> u64 {
    c.metric("meta", "glowfs_meta_sessions_reaped_total") as u64
}
fn collected(c: &Cluster) -> u64 {
    c.metric("meta", "glowfs_meta_gc_files_total") as u64
}

#[test]
fn a_killed_mount_leaves_no_session_and_no_lost_space() {
    let c = Cluster::up("mountkill");
    short_leases(&c);
    let other = Mount::new(&c, "mnt2");
    let open = |name: &str| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(other.path.join(name)).expect("open")
    };
    let (kept, removed) = (open("kept"), open("removed"));
    let bytes = vec![7; 3 << 20];
    kept.write_all_at(&bytes, 0).expect("write");
    removed.write_all_at(&bytes, 0).expect("write");
    // Open there for reading only, removed here.
    sh(&c.mnt, "head -c 2000000 /dev/zero > read");
    let read = File::open(other.path.join("read")).expect("open");
    sh(&c.mnt, "rm read removed");
    let (before, gone) = (reaped(&c), collected(&c));
    other.kill();
    assert!(kept.write_all_at(&bytes, 0).is_err(), "the mount is gone");
    drop((kept, removed, read));
    eventually("its sessions end", || reaped(&c) >= before + 2);
    eventually("the space of what it had open comes back", || collected(&c) >= gone + 2);
    // What it was told is written is there, though it never said how long the file became.
    // (The sessions counted above may be others of the same client: each file's length is settled with its own.)
    eventually("the acknowledged bytes are all there", || {
        std::fs::read(c.mnt.join("kept")).expect("read") == bytes
    });
}

#[test]
fn a_paused_client_cannot_write_late() {
    let c = Cluster::up("paused");
    short_leases(&c);
    let other = Mount::new(&c, "mnt2");
    std::fs::write(c.mnt.join("f"), vec![1; 300_000]).expect("write");
    let theirs = File::options().read(true).write(true).open(other.path.join("f")).expect("open");
    theirs.write_all_at(&[2; 4096], 0).expect("write");
    // No process may be started while the mount is stopped: it would first close its copies of our files, and wait.
    let meta = c.services("meta")[0]["http"].as_str().expect("http").to_owned();
    let reaped = || scrape(&meta, "glowfs_meta_sessions_reaped_total") as u64;
    let before = reaped();
    other.signal(Signal::STOP);
    // This write is in the kernel when its client is taken for dead.
    let late = theirs.try_clone().expect("clone");
    let late = std::thread::spawn(move || late.write_all_at(&[3; 4096], 200_000));
    eventually("its session ends", || reaped() > before);
    // Longer than any capability that it can have.
    let ours = File::options().read(true).write(true).open(c.mnt.join("f")).expect("open");
    ours.set_len(100_000).expect("truncate");
    ours.set_len(300_000).expect("truncate");
    ours.write_all_at(&[4; 4096], 0).expect("write");
    std::thread::sleep(Duration::from_secs(3));
    other.signal(Signal::CONT);
    let error = late.join().expect("thread").expect_err("a late write is refused");
    assert!([5, 116].contains(&error.raw_os_error().unwrap_or(0)), "EIO or ESTALE: {error}");
    assert!(theirs.write_all_at(&[5; 4096], 0).is_err(), "and so is every other one");
    let mut want = vec![1; 100_000];
    want[..4096].fill(4);
    want.resize(300_000, 0);
    assert!(std::fs::read(c.mnt.join("f")).expect("read") == want);
    // The mount goes on as a new client.
    eventually("the paused mount works again", || {
        std::fs::write(other.path.join("g"), b"again").is_ok()
    });
    assert_eq!(sh(&c.mnt, "cat g"), "again");
    // What is opened there now is of the new client, whatever is still open of the old one.
    let f = other.path.join("f");
    assert!(std::fs::read(&f).expect("read") == want);
    let new = File::options().read(true).write(true).open(&f).expect("open");
    new.write_all_at(&[6; 4096], 100_000).expect("write");
    new.sync_all().expect("fsync");
    want[100_000..][..4096].fill(6);
    assert!(std::fs::read(c.mnt.join("f")).expect("read") == want);
    assert!(theirs.write_all_at(&[5; 4096], 0).is_err(), "what was open stays dead");
    drop(theirs);
    assert!(std::fs::read(&f).expect("read") == want);
}

#[test]
fn what_one_client_caches_is_never_older_than_what_another_one_did() {
    let c = Cluster::up("honest");
    let other = Mount::new(&c, "mnt2");
    let ours = c.mnt.join("f");
    std::fs::write(&ours, vec![0; 20_000]).expect("write");
    let theirs = File::open(other.path.join("f")).expect("open");
    let mut buf = vec![0; 20_000];
    for i in 1..=60u8 {
        // Cached there: attributes and pages.
        theirs.read_exact_at(&mut buf, 0).expect("read");
        theirs.metadata().expect("fstat");
        match i % 4 {
            0 => {
                std::fs::set_permissions(&ours, Permissions::from_mode(0o600 + u32::from(i % 8)))
                    .expect("chmod");
                let mode = theirs.metadata().expect("fstat").mode() & 0o777;
                assert_eq!(mode, 0o600 + u32::from(i % 8), "round {i}");
            }
            1 => {
                let f = File::options().write(true).open(&ours).expect("open");
                f.set_len(20_000 - u64::from(i)).expect("truncate");
                assert_eq!(theirs.metadata().expect("fstat").len(), 20_000 - u64::from(i));
                assert_eq!(theirs.read_at(&mut buf, 19_999).expect("read"), 0, "round {i}");
                f.set_len(20_000).expect("truncate");
            }
            2 => {
                std::fs::hard_link(&ours, c.mnt.join(format!("link{i}"))).expect("link");
                let nlink = theirs.metadata().expect("fstat").nlink();
                assert_eq!(nlink, 2 + u64::from(i / 4), "round {i}");
            }
            _ => {}
        }
        let f = File::options().write(true).open(&ours).expect("open");
        f.write_all_at(&vec![i; 20_000], 0).expect("write");
        drop(f);
        theirs.read_exact_at(&mut buf, 0).expect("read");
        assert!(buf.iter().all(|b| *b == i), "round {i}: old bytes after a close elsewhere");
        if i % 20 == 0 {
            // Long enough for a lease to be given again after all this contention.
            std::thread::sleep(Duration::from_millis(2100));
        }
    }
    assert!(c.metric("meta", "glowfs_meta_recalls_total") > 0.0, "nothing was ever cached");
    // A client that does not answer delays a change until its lease ends, and then sees it.
    theirs.metadata().expect("fstat");
    other.signal(Signal::STOP);
    let began = Instant::now();
    std::fs::set_permissions(&ours, Permissions::from_mode(0o640)).expect("chmod");
    let took = began.elapsed();
    other.signal(Signal::CONT);
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(theirs.metadata().expect("fstat").mode() & 0o777, 0o640);
}

#[test]
fn buffered_reads_do_not_ask_meta() {
    let c = Cluster::up("getattrs");
    std::fs::write(c.mnt.join("f"), vec![1; 1 << 20]).expect("write");
    let f = File::open(c.mnt.join("f")).expect("open");
    let asked = || c.metric("meta", "glowfs_meta_op_seconds_count{op=\"GETATTR\"}");
    let (before, began) = (asked(), Instant::now());
    let mut buf = vec![0; 4096];
    for i in 0..4000u64 {
        f.read_exact_at(&mut buf, i % 256 * 4096).expect("read");
    }
    let (asked, took) = (asked() - before, began.elapsed());
    eprintln!("4000 buffered reads of 4 KiB: {asked} GETATTRs in {took:?}");
    // One for each lease of a second, and a few for the start.
    assert!(asked <= 10.0 + 4.0 * took.as_secs_f64(), "{asked} GETATTRs in {took:?}");
}

#[test]
fn reads_do_not_wait_for_a_storage_that_has_stopped() {
    let c = Cluster::up("hedge");
    sh(
        &c.mnt,
        "for i in $(seq 90); do head -c 200000 /dev/zero > f$i; done; sync f1; cat f* > /dev/null",
    );
    let mut longest = Duration::ZERO;
    // The machine itself may stall; a wait for the failure detection would show every time.
    for round in 0..3 {
        let id = format!("storage-{}", round + 1);
        c.wait_serving(Duration::from_secs(90));
        sh(&c.local, "echo 3 > /proc/sys/vm/drop_caches");
        // Warm connections, and know how long a read takes.
        sh(&c.mnt, "cat f8* > /dev/null");
        c.dev("kill", &[&id, "--signal", "STOP"]);
        longest = Duration::ZERO;
        for i in 1..80 {
            let began = Instant::now();
            let bytes = std::fs::read(c.mnt.join(format!("f{i}"))).expect("read");
            assert_eq!(bytes.len(), 200_000);
            longest = longest.max(began.elapsed());
        }
        c.dev("start", &[&id]);
        eprintln!("{id} stopped: longest read {longest:?}");
        if longest < Duration::from_secs(1) {
            return;
        }
    }
    panic!("a read waited {longest:?}");
}
