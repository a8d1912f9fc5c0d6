//! User-space rings on a whole cluster: a C program as it is written for 3FS, compiled and run.

use crate::harness::{Cluster, must};
use std::path::PathBuf;
use std::process::Command;

/// Where cargo put the C library of this build.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("this test's own path");
    let built =
        exe.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps").to_owned();
    assert!(
        built.join("libglowfs_c.so").exists(),
        "no {}: build the whole workspace (./test does)",
        built.join("libglowfs_c.so").display()
    );
    built
}

#[test]
fn a_program_for_3fs_runs_unmodified() {
    let c = Cluster::up("rings");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../usrbio-c");
    let built = library();
    let lib = c.local.join("lib");
    std::fs::create_dir(&lib).expect("a directory for the link");
    std::os::unix::fs::symlink(built.join("libglowfs_c.so"), lib.join("libhf3fs_api_shared.so"))
        .expect("the name that such programs link with");
    let program = c.local.join("hf3fs");
    must(
        Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .args([
                format!("{root}/examples/hf3fs.c"),
                format!("-I{root}/include"),
                format!("-L{}", lib.display()),
                format!("-Wl,-rpath,{}:{}", lib.display(), built.display()),
                "-lhf3fs_api_shared".into(),
            ]),
    );
    let said = must(Command::new(&program).arg(c.mnt.join("file")));
    assert_eq!(said.trim(), "ok");
    // What went through the ring is there for everybody, also after everything was stopped and started.
    let before = std::fs::read(c.mnt.join("file")).expect("the file");
    assert_eq!(before.len(), 1 << 20);
    c.dev("down", &[]);
    c.dev("up", &[]);
    assert!(std::fs::read(c.mnt.join("file")).expect("the file") == before);
}
