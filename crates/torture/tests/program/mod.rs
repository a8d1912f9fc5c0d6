//! The program, run as a user would.

use std::path::Path;
use std::process::Command;

/// What it said, and its log.
pub struct Run {
    pub said: String,
    pub log: String,
}

/// One of some minutes with these faults and this cluster. It has to pass; what it made is removed.
pub fn passes(name: &str, minutes: &str, faults: &str, up: &str) -> Run {
    let torture = Path::new(env!("CARGO_BIN_EXE_glowfs-torture"));
    let glowfs = torture.with_file_name("glowfs");
    assert!(glowfs.exists(), "{} is not there: cargo build --bins first", glowfs.display());
    let dir = std::env::temp_dir().join(format!("glowfs-{name}-{}", std::process::id()));
    let out = Command::new(torture)
        .args(["--minutes", minutes, "--faults", faults, "--up", up, "--dir"])
        .arg(&dir)
        .output()
        .expect("glowfs-torture");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let run = Run { said: text(&out.stdout), log: text(&out.stderr) };
    let passed = out.status.success() && run.said.contains("PASSED");
    assert!(passed, "{}\n{}", run.said, run.log);
    let _ = std::fs::remove_dir_all(&dir);
    run
}
