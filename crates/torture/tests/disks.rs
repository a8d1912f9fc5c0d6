//! Disks die under a cluster, as a user would have it: `glowfs-torture --faults disk`. Their file systems are real ones, on loop devices.

use std::path::Path;
use std::process::Command;

/// Faults strike for so long, in minutes; each death comes at least once in it, or after it.
const MINUTES: &str = "0.2";

#[test]
fn a_dead_disk_goes_alone_loses_nothing_and_fails_nothing() {
    if !Path::new("/dev/loop-control").exists() {
        eprintln!("SKIPPED: this machine has no loop devices");
        return;
    }
    let torture = Path::new(env!("CARGO_BIN_EXE_glowfs-torture"));
    let glowfs = torture.with_file_name("glowfs");
    assert!(glowfs.exists(), "{} is not there: cargo build --bins first", glowfs.display());
    let dir = std::env::temp_dir().join(format!("glowfs-disks-{}", std::process::id()));
    let out = Command::new(torture)
        .args(["--minutes", MINUTES, "--faults", "disk", "--up", "--mgmtds 2 --metas 2", "--dir"])
        .arg(&dir)
        .output()
        .expect("glowfs-torture");
    let said = String::from_utf8_lossy(&out.stdout);
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}\n{log}");
    assert!(said.contains("PASSED") && said.contains("disk storage"), "{said}");
    assert!(log.contains("Eio") && log.contains("ReadOnly"), "both deaths: {log}");
    let _ = std::fs::remove_dir_all(&dir);
}
