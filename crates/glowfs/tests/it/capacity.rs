//! A cluster that runs full: new data is refused with ENOSPC, everything else goes on, and the room comes back.

use crate::harness::{Cluster, Scratch, must, sh};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// All of the small disk that the cluster lies on.
const DISK: &str = "1200M";
/// What others take of it while it is full.
const OTHERS: &str = "100M";
/// One file of the filling.
const FILE_BYTES: usize = 8 << 20;
/// More files than fit three times on the disk.
const FILES_MAX: usize = 200;
/// How long room of removed files may take to come back.
const ROOM_BOUND: Duration = Duration::from_secs(60);

/// A file system of bounded size in memory.
pub struct SmallDisk {
    pub path: PathBuf,
}

impl SmallDisk {
    pub fn new(path: PathBuf) -> Self {
        fs::create_dir_all(&path).expect("directory");
        let size = format!("size={DISK}");
        must(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path));
        Self { path }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}

/// The bytes of file `i`: different in every block.
fn content(i: usize) -> Vec<u8> {
    (0..FILE_BYTES / 8).flat_map(|k| ((i << 32 | k) as u64).to_le_bytes()).collect()
}

/// Writes file `i` and syncs it; `false` when the file system says that it is full, any other error fails the test.
fn fill(mnt: &Path, i: usize) -> bool {
    let path = mnt.join(format!("f{i}"));
    let written = fs::File::create(&path)
        .and_then(|mut f| f.write_all(&content(i)).and_then(|()| f.sync_all()));
    match written {
        Ok(()) => true,
        Err(e) if e.kind() == ErrorKind::StorageFull => {
            let _ = fs::remove_file(&path);
            false
        }
        Err(e) => panic!("file {i}: {e} instead of ENOSPC"),
    }
}

#[test]
fn a_full_disk_refuses_new_data_and_recovers() {
    let scratch = Scratch::new("full");
    let disk = SmallDisk::new(scratch.path.join("disk"));
    let c = Cluster::up_in("full", disk.path.join("cluster"), &[]);
    let kept: Vec<usize> = (0..FILES_MAX).take_while(|i| fill(&c.mnt, *i)).collect();
    assert!(kept.len() > 4, "only {} files fit", kept.len());
    assert!(kept.len() < FILES_MAX, "the disk never ran full");
    // Names and removals go on, and so do reads of what was acknowledged.
    sh(
        &c.mnt,
        "mkdir -p still/works && mv still/works still/goes && ls still/goes && touch still/empty",
    );
    let same = |i: &usize| fs::read(c.mnt.join(format!("f{i}"))).expect("read") == content(*i);
    assert!(kept.iter().all(same), "an acknowledged file differs");

    // Neither logs nor anybody else leave the reserve of the disks alone.
    let others = disk.path.join("others");
    must(Command::new("fallocate").arg("-l").arg(OTHERS).arg(&others));
    let (gone, left) = kept.split_at(kept.len() / 2);
    for i in gone {
        fs::remove_file(c.mnt.join(format!("f{i}"))).expect("remove on a full disk");
    }
    let end = Instant::now() + ROOM_BOUND;
    let mut back = 0;
    // Files do not spread evenly: a disk may need a little more than what was removed gave it back.
    while back < gone.len() * 3 / 4 {
        if fill(&c.mnt, FILES_MAX + back) {
            back += 1;
        } else {
            assert!(
                Instant::now() < end,
                "room for {back} of {} removed files came back",
                gone.len()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    assert!(left.iter().all(same), "an acknowledged file differs");
    assert!((FILES_MAX..FILES_MAX + back).all(|i| same(&i)), "a new file differs");
    c.wait_serving(ROOM_BOUND);
    // Full again, and stopped and started like that.
    let end =
        (FILES_MAX + back..2 * FILES_MAX).find(|i| !fill(&c.mnt, *i)).expect("never full again");
    c.dev("down", &[]);
    c.dev("up", &[]);
    assert!(left.iter().all(same), "an acknowledged file differs after a restart");
    assert!((FILES_MAX..end).all(|i| same(&i)), "a new file differs after a restart");
}
