//! The network under a cluster is cut, as a user would do it: `glowfs-torture --faults cut`.

use std::path::Path;
use std::process::Command;

/// Faults strike for so long, in minutes.
const MINUTES: &str = "0.25";

#[test]
fn cuts_lose_nothing_and_fail_nothing() {
    let torture = Path::new(env!("CARGO_BIN_EXE_glowfs-torture"));
    let glowfs = torture.with_file_name("glowfs");
    assert!(glowfs.exists(), "{} is not there: cargo build --bins first", glowfs.display());
    let dir = std::env::temp_dir().join(format!("glowfs-cuts-{}", std::process::id()));
    let out = Command::new(torture)
        .args(["--minutes", MINUTES, "--faults", "cut", "--up", "--mgmtds 3 --metas 2", "--dir"])
        .arg(&dir)
        .output()
        .expect("glowfs-torture");
    let said = String::from_utf8_lossy(&out.stdout);
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}\n{log}");
    assert!(said.contains("PASSED") && said.contains("cut "), "{said}");
    let _ = std::fs::remove_dir_all(&dir);
}
