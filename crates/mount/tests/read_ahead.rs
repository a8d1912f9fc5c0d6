//! How far the kernel reads ahead.

use crate::common::{TestMount, alone};
use std::fs::{self, File};
use std::os::linux::fs::MetadataExt;

/// INIT can only lower what the kernel begins with, so it stayed 128 KiB whatever was asked for.
#[test]
fn the_kernel_reads_ahead_as_far_as_is_said() {
    let _alone = alone();
    for (bytes, kib) in
        [(None, "1024"), (Some(4 << 20), "4096"), (Some(64 << 10), "64"), (Some(0), "128")]
    {
        let mount = TestMount::with(60, |c| {
            if let Some(bytes) = bytes {
                c.read_ahead_bytes = bytes;
            }
        });
        let Some(m) = mount else { return };
        let device = fs::metadata(m.path()).expect("stat").st_dev();
        let file = glowfs_fuse::read_ahead_file(libc::minor(device));
        if File::options().write(true).open(&file).is_err() {
            eprintln!("SKIPPED: {} cannot be written here", file.display());
            return;
        }
        assert_eq!(fs::read_to_string(file).expect("read").trim(), kib);
    }
}
