//! C programs on a real mount, compiled with our headers and linked with the library that cargo has just built.

#[path = "../../mount/tests/common/mod.rs"]
mod common;

use common::TestMount;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo put the C library of this build.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("this test's own path");
    let deps = exe.parent().expect("target/PROFILE/deps");
    let places = [deps, deps.parent().expect("target/PROFILE")];
    let found = places.into_iter().find(|p| p.join("libglowfs_c.so").exists());
    found.expect("cargo builds the library for its package's tests").to_owned()
}

fn must(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{command:?}: {} {text}{err}", out.status);
    text
}

/// Compiles a program of `from`; returns it.
fn compile(dir: &Path, from: &str, name: &str, library_name: &str) -> PathBuf {
    let root = env!("CARGO_MANIFEST_DIR");
    let link = dir.join(format!("lib{library_name}.so"));
    if !link.exists() {
        std::os::unix::fs::symlink(library().join("libglowfs_c.so"), link).expect("a link");
    }
    let program = dir.join(name);
    must(
        Command::new("cc")
            .args(["-std=gnu11", "-pthread", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .args([
                format!("{root}/{from}/{name}.c"),
                format!("-I{root}/include"),
                format!("-L{}", dir.display()),
                // Before what cargo names as the place of libraries, where an older build of ours may lie.
                format!("-Wl,--disable-new-dtags,-rpath,{}:{}", dir.display(), library().display()),
                format!("-l{library_name}"),
            ]),
    );
    program
}

#[test]
fn a_program_for_3fs_runs_unmodified() {
    let Some(m) = TestMount::new(60) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = compile(dir.path(), "examples", "hf3fs", "hf3fs_api_shared");
    let file = m.join("file");
    assert_eq!(must(Command::new(program).arg(&file)).trim(), "ok");
    assert_eq!(std::fs::metadata(file).expect("the file").len(), 1 << 20);
}

#[test]
fn a_program_with_our_own_names() {
    let Some(m) = TestMount::new(60) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = compile(dir.path(), "examples", "rings", "glowfs_c");
    let file = m.join("file");
    std::fs::write(&file, "0123456789").expect("the file");
    assert_eq!(must(Command::new(program).arg(&file)).trim(), "9876543210");
}

#[test]
fn numbers_threads_and_holders_are_kept_apart() {
    let Some(m) = TestMount::new(60) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = compile(dir.path(), "tests/programs", "numbers", "hf3fs_api_shared");
    assert_eq!(must(Command::new(program).arg(m.join("file"))).trim(), "ok");
}

#[test]
fn a_forked_child_has_a_session_of_its_own() {
    let Some(m) = TestMount::new(60) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = compile(dir.path(), "tests/programs", "forked", "hf3fs_api_shared");
    assert_eq!(must(Command::new(program).arg(m.join("file"))).trim(), "ok");
}

#[test]
fn a_forked_child_has_no_ring_of_its_parent() {
    let Some(m) = TestMount::new(60) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = compile(dir.path(), "tests/programs", "forked_own", "glowfs_c");
    assert_eq!(must(Command::new(program).arg(m.join("file"))).trim(), "ok");
}

#[test]
fn a_process_of_many_threads_forks() {
    let Some(m) = TestMount::new(60) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = compile(dir.path(), "tests/programs", "forked_threads", "hf3fs_api_shared");
    assert_eq!(must(Command::new(program).arg(m.join("file"))).trim(), "ok");
}

/// Runs a case of what is the same as in 3FS, each in a process of its own.
fn same(case: &str) {
    let Some(m) = TestMount::new(60) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let program = compile(dir.path(), "tests/programs", "same", "hf3fs_api_shared");
    assert_eq!(must(Command::new(program).arg(m.join("file")).arg(case)).trim(), "ok");
}

#[test]
fn what_was_prepared_is_carried_out_for_who_waits() {
    same("unsubmitted");
}

#[test]
fn a_ring_has_the_entries_that_were_asked_for() {
    same("entries");
}

#[test]
fn a_wrapped_buffer_holds_nothing() {
    same("wrapped");
}

#[test]
fn who_makes_memory_or_closes_a_file_waits_alone() {
    same("locks");
}

#[test]
fn wrong_arguments_get_the_errno_of_3fs() {
    same("arguments");
}

#[test]
fn a_file_that_is_registered_no_more_gets_its_operations() {
    same("deregistered");
}

#[test]
fn the_mount_point_is_told_to_who_may_not_read_it() {
    same("mount_point");
}
