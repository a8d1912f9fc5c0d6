//! What overlayfs needs of the file system that its upper directory is on: whiteouts, above all.

use crate::harness::{Cluster, Mount, eventually, must, sh};
use std::process::Command;

/// renameat2 with RENAME_WHITEOUT, which no program of coreutils calls.
const RENAME: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), int(sys.argv[3])) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
"#;

#[test]
fn a_rename_leaves_a_whiteout() {
    let c = Cluster::up("whiteout");
    let other = Mount::new(&c, "mnt2");
    std::fs::write(c.local.join("rename.py"), RENAME).expect("script");
    let rename = format!("python3 '{}'", c.local.join("rename.py").display());
    sh(&c.mnt, "echo a > a; echo old > b; mkdir d; echo x > x");
    sh(&other.path, "cat a b x > /dev/null; ls -l d > /dev/null");
    sh(
        &c.mnt,
        &format!(
            r#"
        {rename} a b 4; test "$(cat b)" = a; test "$(stat -c '%F %t:%T' a)" = "character special file 0:0"
        {rename} x d/x 5; test "$(cat d/x)" = x; test -c x
        {rename} d e 4; test "$(cat e/x)" = x; test -c d
        if {rename} b e/x 5 2>err; then exit 1; fi; grep -q exists err
        test "$(ls | tr '\n' ' ')" = "a b d e err x "
    "#
        ),
    );
    eventually("the other mount sees it", || other.path.join("e/x").exists());
    sh(
        &other.path,
        r#"test "$(cat b)" = a; test -c a; test -c d; test -c x; test "$(cat e/x)" = x"#,
    );
}

#[test]
fn overlayfs_has_its_upper_directory_here() {
    if !std::fs::read_to_string("/proc/filesystems").expect("read").contains("overlay") {
        eprintln!("this kernel has no overlayfs: not tested");
        return;
    }
    let c = Cluster::up("overlay");
    let script = r#"
        mkdir -p lower/d merged; echo below > lower/f; echo below > lower/gone; echo below > lower/d/x; echo below > lower/moved
        mkdir "$MNT/upper" "$MNT/work"
        over() { mount -t overlay overlay -o "lowerdir=$PWD/lower,upperdir=$MNT/upper,workdir=$MNT/work" "$PWD/merged"; }
        over
        echo above > merged/f; rm merged/gone; mv merged/moved merged/there; rm -r merged/d; mkdir merged/d; echo new > merged/d/y
        check() {
            test "$(cat merged/f merged/there merged/d/y | tr '\n' ' ')" = "above below new "
            test "$(ls merged merged/d | tr '\n' ' ')" = "merged: d f there  merged/d: y "
        }
        check
        umount merged
        test -c "$MNT/upper/gone"; test -c "$MNT/upper/moved"
        over
        check
        umount merged
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-euxc", script]);
    must(command.current_dir(&c.local).env("MNT", &c.mnt));
}

/// What overlayfs does on behalf of a user, it does by the privileges of who has mounted it: it makes what he makes in a directory of its own first.
#[test]
fn users_who_are_not_root_work_in_an_overlay() {
    if !std::fs::read_to_string("/proc/filesystems").expect("read").contains("overlay") {
        eprintln!("this kernel has no overlayfs: not tested");
        return;
    }
    let c = Cluster::up("overlayusers");
    let script = r#"
        mkdir -p lower/home merged; echo below > lower/home/f; echo roots > lower/home/roots; mkdir lower/home/d; echo x > lower/home/d/x
        chown -R 1000:1000 lower/home; chown 0:0 lower/home/roots; chmod 755 . .. "$MNT"
        mkdir "$MNT/upper" "$MNT/work"
        mount -t overlay overlay -o "lowerdir=$PWD/lower,upperdir=$MNT/upper,workdir=$MNT/work" "$PWD/merged"
        setpriv --reuid=1000 --regid=1000 --clear-groups bash -euxc 'cd merged/home
            rm f; touch f; test ! -s f; echo above > f; test "$(cat f)" = above; chmod 600 f
            rm -r d; mkdir d; echo y > d/y; mv d e; ln f e/g; ln -s f s; mkfifo p; cp e/y e/z; mv e/z e/y
            if echo mine >> roots; then exit 1; fi; rm -f roots; echo mine > roots; test "$(cat roots)" = mine'
        test "$(stat -c %u merged/home/f merged/home/roots merged/home/e | tr '\n' ' ')" = "1000 1000 1000 "
        umount merged
        test "$(cat "$MNT/upper/home/f")" = above
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-euxc", script]);
    must(command.current_dir(&c.local).env("MNT", &c.mnt));
}
