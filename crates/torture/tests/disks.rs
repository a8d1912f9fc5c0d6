//! Disks die under a cluster, as a user would have it: `glowfs-torture --faults disk`. Their file systems are real ones, on loop devices.

mod program;

use std::path::Path;

/// Faults strike for so long, in minutes; each death comes at least once in it, or after it.
const MINUTES: &str = "0.2";

#[test]
fn a_dead_disk_goes_alone_loses_nothing_and_fails_nothing() {
    if !Path::new("/dev/loop-control").exists() {
        eprintln!("SKIPPED: this machine has no loop devices");
        return;
    }
    let run = program::passes("disks", MINUTES, "disk", "--mgmtds 2 --metas 2");
    assert!(run.said.contains("disk storage"), "{}", run.said);
    let both = run.log.contains("Eio") && run.log.contains("ReadOnly");
    assert!(both, "both deaths: {}", run.log);
}
