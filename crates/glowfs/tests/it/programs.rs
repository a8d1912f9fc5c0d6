//! Real programs on the mount, byte for byte (issue: «The mount passes»).

use crate::harness::{Cluster, large, make_tree, must, sh};
use std::path::Path;
use std::process::Command;

#[test]
fn cp_and_diff_of_thousands_of_files() {
    let c = Cluster::up("cp");
    let src = c.local.join("src");
    make_tree(&src, 5_000);
    must(Command::new("cp").arg("-a").arg(&src).arg(c.mnt.join("copy")));
    must(Command::new("diff").args(["-r", "--no-dereference"]).arg(&src).arg(c.mnt.join("copy")));
    let list = "find . -printf '%P %y %m %s %l %T@\\n' | sort";
    assert_eq!(sh(&src, list), sh(&c.mnt.join("copy"), list), "names, modes, sizes, links, times");
    // And it is still there, equal, after a stop of everything.
    c.dev("down", &[]);
    c.dev("up", &[]);
    must(Command::new("diff").args(["-r", "--no-dereference"]).arg(&src).arg(c.mnt.join("copy")));
    must(Command::new("rm").arg("-rf").arg(c.mnt.join("copy")));
    assert_eq!(sh(&c.mnt, "ls -A | wc -l").trim(), "0");
}

/// Clones a repository of so many files into a directory, and works on it there.
pub fn git(local: &Path, on: &Path, files: usize) {
    let src = local.join("git");
    make_tree(&src, files);
    let git = "git -c user.name=t -c user.email=t@t";
    sh(&src, &format!("git init -q . && {git} add -A && {git} commit -qm one"));
    for i in 0..5 {
        sh(&src, &format!("echo {i} >> d1/new && {git} add -A && {git} commit -qm c{i}"));
    }
    sh(on, &format!("git clone -q --no-hardlinks {} clone", src.display()));
    let script = format!(
        "git fsck --full --strict && git gc -q --aggressive --prune=now && git fsck --full \
         && echo x > y && {git} add y && {git} commit -qm y && git checkout -q -b b HEAD~3 \
         && git checkout -q - && git status --porcelain | wc -l"
    );
    assert!(sh(&on.join("clone"), &script).trim().ends_with('0'));
    sh(on, &format!("rm clone/y && diff -r --exclude=.git {} clone", src.display()));
}

#[test]
fn git_clone_fsck_gc() {
    let c = Cluster::up("git");
    git(&c.local, &c.mnt, 400);
}

#[test]
fn tar_and_rsync_both_ways() {
    let c = Cluster::up("tar");
    let src = c.local.join("src");
    make_tree(&src, 1000);
    let (s, m, l) = (src.display(), c.mnt.display(), c.local.display());
    sh(
        &c.local,
        &format!(
            "tar -C {s} -cf - . | (mkdir {m}/t && tar -C {m}/t -xpf -) && diff -r --no-dereference {s} {m}/t"
        ),
    );
    sh(
        &c.local,
        &format!(
            "tar -C {m}/t -cf {m}/t.tar . && mkdir back && tar -C back -xpf {m}/t.tar && diff -r --no-dereference {s} back"
        ),
    );
    sh(
        &c.local,
        &format!("rsync -aH --checksum {s}/ {m}/r/ && diff -r --no-dereference {s} {m}/r"),
    );
    let again = sh(&c.local, &format!("rsync -aH --checksum --itemize-changes {s}/ {m}/r/"));
    assert_eq!(again.trim(), "", "a second rsync finds nothing to do");
    sh(
        &c.local,
        &format!("rsync -aH --checksum {m}/r/ {l}/r2/ && diff -r --no-dereference {s} {l}/r2"),
    );
}

/// Who copies all attributes neither carries a directory's settings elsewhere nor takes them away where the source has none.
#[test]
fn rsync_of_all_attributes_leaves_trash_and_layout_where_they_are() {
    let c = Cluster::up("rsyncx");
    let (m, l) = (c.mnt.display(), c.local.display());
    sh(
        &c.local,
        &format!(
            "mkdir -p src/sub && echo x > src/sub/f && setfattr -n user.a -v 1 src/sub/f && setfacl -m u:1000:r src/sub/f \
             && mkdir {m}/dst {m}/dst/gone && setfattr -n glowfs.trash -v 7d {m}/dst && setfattr -n glowfs.layout -v stripe=1 {m}/dst \
             && rsync -aHAX --delete src/ {m}/dst/ && diff -r src {m}/dst"
        ),
    );
    let get = |of: &str, name: &str| sh(&c.mnt, &format!("getfattr --only-values -n {name} {of}"));
    assert_eq!(get("dst", "glowfs.trash"), "604800s");
    assert!(get("dst", "glowfs.layout").contains("stripe=1 "));
    assert_eq!(get("dst/sub/f", "user.a"), "1");
    sh(
        &c.local,
        &format!(
            "rsync -aHAX {m}/dst/ {l}/back/ && diff -r src back && getfacl -np back/sub/f | grep -q user:1000"
        ),
    );
    assert_eq!(sh(&c.local, "getfattr --only-values -n user.a back/sub/f"), "1");
}

#[test]
fn cargo_build_with_target_on_the_mount() {
    let c = Cluster::up("cargo");
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../types/Cargo.toml");
    let build = || {
        must(
            Command::new(env!("CARGO"))
                .args(["build", "--offline", "-p", "glowfs-types", "--manifest-path", manifest])
                .env("CARGO_TARGET_DIR", c.mnt.join("target"))
                .env_remove("RUSTFLAGS"),
        )
    };
    build();
    build();
    assert!(c.mnt.join("target/debug/libglowfs_types.rlib").exists());
    sh(&c.mnt, "rm -rf target && test -z \"$(ls -A)\"");
}

#[test]
fn sparse_and_large_files() {
    let c = Cluster::up("large");
    // Larger than any buffer of ours on the way; by command larger than all of them together (needs 32 GiB of disk).
    let mib = if large() { 8 << 10 } else { 300 };
    sh(
        &c.mnt,
        &format!(
            "truncate -s 1T hole && printf x | dd of=hole bs=1 seek=$((700*1024*1024*1024)) conv=notrunc status=none \
             && test $(stat -c %s hole) = $((1024*1024*1024*1024)) \
             && test \"$(dd if=hole bs=1 skip=$((700*1024*1024*1024-2)) count=5 status=none | od -An -tx1)\" = ' 00 00 78 00 00' \
             && truncate -s 5 hole && test \"$(od -An -tx1 hole)\" = ' 00 00 00 00 00' && rm hole \
             && openssl enc -aes-128-ctr -nosalt -K 00 -iv 00 -in /dev/zero 2>/dev/null | head -c {mib}M > {l}/big || true \
             && cp {l}/big big && sync big && cmp {l}/big big && md5sum < big > {l}/sum1 && echo 3 > /proc/sys/vm/drop_caches \
             && md5sum < big | cmp - {l}/sum1 && rm big",
            l = c.local.display()
        ),
    );
}
