//! Services killed under load: no error reaches the application, nothing acknowledged is lost, all serve again.

use crate::harness::{Cluster, binary, sh};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;

/// Content of a block: its number and generation, all over.
fn fill(block: u64, generation: u64) -> Vec<u8> {
    let word = (block << 32) | generation;
    word.to_le_bytes().repeat(BLOCK / 8)
}

/// A thread that writes random blocks of its file, reads others back, and knows what each must hold.
fn writer(
    path: PathBuf,
    seed: u64,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> std::thread::JoinHandle<(Vec<u64>, Duration)> {
    std::thread::spawn(move || {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .expect("open");
        let mut acked = vec![0u64; BLOCKS as usize];
        let mut state = seed;
        let mut longest = Duration::ZERO;
        let mut buf = vec![0; BLOCK];
        while !stop.load(Ordering::Relaxed) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let block = (state >> 33) % BLOCKS;
            let begun = Instant::now();
            if state >> 60 < 10 {
                let generation = acked[block as usize] + 1;
                file.write_all_at(&fill(block, generation), block * BLOCK as u64)
                    .expect("no write may fail");
                acked[block as usize] = generation;
            } else if acked[block as usize] > 0 {
                file.read_exact_at(&mut buf, block * BLOCK as u64).expect("no read may fail");
                assert_eq!(
                    buf,
                    fill(block, acked[block as usize]),
                    "block {block} of {}",
                    path.display()
                );
            }
            longest = longest.max(begun.elapsed());
            done.fetch_add(1, Ordering::Relaxed);
        }
        (acked, longest)
    })
}

fn verify(path: &std::path::Path, acked: &[u64]) {
    let file = File::open(path).expect("open");
    let mut buf = vec![0; BLOCK];
    for (block, generation) in acked.iter().enumerate().filter(|(_, g)| **g > 0) {
        file.read_exact_at(&mut buf, (block * BLOCK) as u64).expect("read");
        assert_eq!(buf, fill(block as u64, *generation), "block {block} of {}", path.display());
    }
}

/// Runs writers while `fault` does its worst; returns the longest stall.
pub fn under_load(c: &Cluster, fault: impl FnOnce(&dyn Fn())) -> Duration {
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let path = |i: u64| c.mnt.join(format!("load{i}"));
    let writers: Vec<_> =
        (0..4).map(|i| writer(path(i), i + 1, stop.clone(), done.clone())).collect();
    std::thread::sleep(Duration::from_millis(500));
    // Refuses to go on unless operations are in flight.
    let busy = || {
        let before = done.load(Ordering::Relaxed);
        let end = Instant::now() + Duration::from_secs(30);
        while done.load(Ordering::Relaxed) < before + 50 {
            assert!(Instant::now() < end, "nothing moves any more:\n{}", c.logs());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    busy();
    fault(&busy);
    busy();
    stop.store(true, Ordering::Relaxed);
    let mut longest = Duration::ZERO;
    for (i, w) in writers.into_iter().enumerate() {
        let (acked, stall) = w.join().expect("a writer saw an error");
        longest = longest.max(stall);
        sh(&c.local, "echo 3 > /proc/sys/vm/drop_caches");
        verify(&path(i as u64), &acked);
    }
    longest
}

#[test]
fn storage_killed_under_load_goes_on_and_comes_back() {
    let c = Cluster::up("faults");
    for id in ["storage-1", "storage-2", "storage-3"] {
        let stall = under_load(&c, |busy| {
            c.dev("kill", &[id]);
            busy();
            c.dev("start", &[id]);
            busy();
            c.wait_serving(Duration::from_secs(90));
        });
        eprintln!("{id} killed and restarted: longest stall {stall:?}");
        assert!(stall < Duration::from_secs(20), "a stall of {stall:?}");
    }
}

#[test]
fn meta_and_mgmtd_killed_under_load() {
    let c = Cluster::up("metakill");
    for id in ["mgmtd-1", "meta-1"] {
        let stall = under_load(&c, |busy| {
            // One shell for both: a process started while meta is away would first have to close its copies of our open
            // files (on exec), and a close waits for meta.
            let glowfs = format!("{} dev", binary().display());
            let dir = c.dir.display();
            sh(
                &c.local,
                &format!(
                    "{glowfs} kill --dir {dir} {id}; sleep 0.3; {glowfs} start --dir {dir} {id}"
                ),
            );
            busy();
        });
        eprintln!("{id} killed and restarted: longest stall {stall:?}");
        c.wait_serving(Duration::from_secs(60));
        sh(&c.mnt, "echo after > new && cat new && rm new");
    }
}

#[test]
fn a_replica_that_hangs_holds_nobody_up_for_long() {
    let c = Cluster::up("hang");
    for id in ["storage-1", "storage-2", "storage-3"] {
        c.dev("kill", &[id, "--signal", "STOP"]);
        let begun = Instant::now();
        // Its connections stand, so only the routing info tells that it is out: writes, reads and fsyncs in flight must act on it.
        sh(
            &c.mnt,
            "for i in $(seq 24); do dd if=/dev/zero of=f$i bs=64k count=1 conv=fsync status=none & done; wait",
        );
        sh(&c.mnt, "cat f* | cmp -n $((24*65536)) - /dev/zero");
        let took = begun.elapsed();
        c.dev("kill", &[id, "--signal", "CONT"]);
        eprintln!("{id} stopped: writing, flushing and reading 24 files took {took:?}");
        assert!(took < Duration::from_secs(25), "{took:?}");
        c.wait_serving(Duration::from_secs(90));
    }
}

#[test]
fn everything_killed_at_once_loses_nothing_acknowledged() {
    let c = Cluster::up("allkill");
    sh(&c.mnt, "for i in $(seq 200); do head -c $((i*700)) /dev/urandom > f$i; done; md5sum f* > /proc/self/fd/1")
        .lines()
        .for_each(drop);
    let before = sh(&c.mnt, "md5sum f*");
    for s in c.status()["services"].as_array().expect("services") {
        c.dev("kill", &[s["id"].as_str().expect("id")]);
    }
    c.dev("up", &[]);
    assert_eq!(sh(&c.mnt, "md5sum f*"), before);
}

#[test]
fn writes_of_disk_durability_are_all_there_as_soon_as_their_client_is_back() {
    let c =
        Cluster::up_with("diskdur", &["--storages", "1", "--disks", "1", "--durability", "disk"]);
    let path = c.mnt.join("f");
    let file = File::options().write(true).create(true).truncate(true).open(&path).expect("open");
    for block in [0, 1, 2, 700] {
        file.write_all_at(&fill(block, 1), block * BLOCK as u64).expect("write");
    }
    // No close, no fsync.
    c.dev("kill", &["mount"]);
    drop(file);
    c.dev("start", &["mount"]);
    let bytes = std::fs::read(&path).expect("read");
    assert_eq!(bytes.len(), 701 * BLOCK, "the length is there at once");
    for block in [0, 1, 2, 700] {
        assert_eq!(bytes[block * BLOCK..(block + 1) * BLOCK], fill(block as u64, 1), "{block}");
    }
}
