//! Immutable and append-only files and directories (chattr), through two mounts (docs/semantics.md).

use crate::harness::{Cluster, Mount, sh};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

const O_DIRECT: i32 = libc::O_DIRECT;

#[test]
fn immutable_and_append_only_bind_every_client() {
    let c = Cluster::up("flags");
    let other = Mount::new(&c, "mnt2");
    let set = r#"
        mkdir d; echo one > d/f; echo log > d/log; ln d/f d/g
        lsattr -d d/f | grep -q '^-*  *d/f$\|^[-]* d/f$'
        chattr +i d/f; chattr +a d/log
        lsattr d/f | cut -d' ' -f1 | grep -q i; lsattr d/log | cut -d' ' -f1 | grep -q a
        lsattr -d d | cut -d' ' -f1 | grep -q '[ia]' && exit 1
    "#;
    sh(&c.mnt, &format!("{set}\ntrue"));
    // Every way to change them is refused, also to root, on both mounts.
    let refused = r#"
        no() { if eval "$1" 2>/tmp/glowfs-flags-err; then echo "allowed: $1"; exit 1; fi; grep -q 'not permitted' /tmp/glowfs-flags-err || { echo "$1:"; cat /tmp/glowfs-flags-err; exit 1; }; }
        for f in d/f d/g; do
            no "echo x > $f"; no "echo x >> $f"; no "truncate -s 1 $f"; no "rm -f $f"; no "mv $f d/x"
            no "ln $f d/x"; no "chmod 600 $f"; no "chown 1 $f"; no "touch $f"; no "touch -d 2001-01-01 $f"; no "setfattr -n user.a -v b $f"
            no "setfacl -m u:1:r $f"; echo new > d/new; no "mv d/new $f"; rm d/new
        done
        cat d/f > /dev/null
        echo more >> d/log
        no "echo x > d/log"; no "truncate -s 0 d/log"; no "rm -f d/log"; no "mv d/log d/x"; no "ln d/log d/x"; no "chmod 600 d/log"
        no "dd if=/dev/zero of=d/log bs=1 count=1 conv=notrunc status=none"; no "fallocate -p -o 0 -l 4096 d/log"; touch d/log
    "#;
    sh(&c.mnt, refused);
    sh(&other.path, refused);
    assert_eq!(sh(&c.mnt, "cat d/log"), "log\nmore\nmore\n");
    // Directories: nothing in or out, or only in.
    sh(
        &other.path,
        r#"
        no() { if eval "$1" 2>/dev/null; then echo "allowed: $1"; exit 1; fi; }
        mkdir im ap; touch im/a ap/a x; chattr +i im; chattr +a ap
        no "touch im/new"; no "mkdir im/new"; no "rm -f im/a"; no "mv im/a y"; no "mv x im/x"; no "ln x im/x"; no "ln -s x im/s"; no "rmdir im"; no "chmod 700 im"
        echo still > im/a
        touch ap/b; no "rm -f ap/a"; no "mv ap/a y"; no "mv ap/a ap/c"; mv x ap/x; touch x; no "mv x ap/a"; no "rm -rf ap"
    "#,
    );
    sh(
        &c.mnt,
        "touch im/new 2>/dev/null && exit 1; rm -f ap/b 2>/dev/null && exit 1; cat im/a | grep -q still",
    );
    // Only root may set them; taken away, all is as before.
    sh(
        &c.mnt,
        r#"
        touch mine; chown 1000 mine
        setpriv --reuid 1000 --clear-groups chattr +i mine 2>/dev/null && exit 1
        chattr +c d/f 2>/dev/null && exit 1
        chattr -i d/f im; chattr -a d/log ap
        echo two > d/g; [ "$(cat d/f)" = two ]; rm d/log; rm -r im ap d
    "#,
    );
    // An open file is not left open for writing.
    sh(
        &c.mnt,
        r#"
        exec 3>kept; echo a >&3; chattr +i kept
        (echo b > kept) 2>/dev/null && exit 1
        exec 3>&-; chattr -i kept; rm kept
    "#,
    );
}

/// Also by who has it open for writing as well, and beside him.
#[test]
fn an_immutable_file_is_read_by_who_had_it_open() {
    const LEN: usize = 64 << 10;
    let c = Cluster::up("immutable");
    c.retune("meta-1", "[tuning]\ncapability_ms = 3000\n");
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).custom_flags(O_DIRECT);
    let open = options.open(c.mnt.join("f")).expect("open");
    open.write_all_at(&[1; LEN], 0).expect("write");
    sh(&c.mnt, "chattr +i f");
    // Longer than a capability lives.
    std::thread::sleep(Duration::from_secs(4));
    let mut found = vec![0; LEN];
    open.read_exact_at(&mut found, 0).expect("read");
    assert!(found == [1; LEN]);
    sh(
        &c.mnt,
        "dd if=f of=/dev/null iflag=direct bs=64k status=none; cmp -n 65536 f <(tr '\\0' '\\1' </dev/zero)",
    );
    let refused = open.write_all_at(&[2; LEN], 0).expect_err("it is immutable");
    assert_eq!(refused.raw_os_error(), Some(1), "{refused}");
    open.read_exact_at(&mut found, 0).expect("read");
    assert!(found == [1; LEN]);
    sh(&c.mnt, "chattr -i f");
    open.write_all_at(&[3; LEN], 0).expect("write, when it is not any more");
    open.read_exact_at(&mut found, 0).expect("read");
    assert!(found == [3; LEN]);
}
