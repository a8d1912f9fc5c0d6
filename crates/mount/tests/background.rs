//! Requests that the kernel sends in the background, and of which it sends so many at a time.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::READS_WAIT_AT;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;
use std::time::Duration;

/// Readers who wait for a chain that is away.
const READERS: usize = 200;

#[test]
fn readers_who_wait_for_one_chain_do_not_keep_all_others() {
    let _alone = alone();
    let Some(m) = TestMount::new(120) else { return };
    for i in 0..=READERS {
        std::fs::write(m.join(&i.to_string()), [b'a'; 16384]).expect("write");
    }
    let open = |i: usize| File::open(m.join(&i.to_string())).expect("open");
    let files: Vec<File> = (0..READERS).map(open).collect();
    let healthy = open(READERS);
    READS_WAIT_AT.store(1, SeqCst);
    let read = |f: File| std::thread::spawn(move || f.read_exact_at(&mut [0; 100], 0));
    let readers: Vec<_> = files.into_iter().map(read).collect();
    std::thread::sleep(Duration::from_secs(1));
    let (tell, told) = mpsc::channel();
    let other = std::thread::spawn(move || {
        let found = healthy.read_exact_at(&mut [0; 100], 8192);
        let _ = tell.send(());
        found
    });
    let went_on = told.recv_timeout(Duration::from_secs(10));
    READS_WAIT_AT.store(0, SeqCst);
    for reader in readers {
        reader.join().expect("a reader").expect("read");
    }
    other.join().expect("the other one").expect("read");
    went_on.expect("a read of what is there ends meanwhile");
}
