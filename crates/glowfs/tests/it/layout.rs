//! Layouts of directories: by xattr and by `glowfs admin`, inherited (docs/semantics.md).

use crate::harness::{Cluster, Mount, sh};

#[test]
fn a_directory_hands_its_layout_down() {
    let c = Cluster::up("layout");
    let other = Mount::new(&c, "mnt2");
    let text = |path: &str| sh(&c.mnt, &format!("getfattr --only-values -n glowfs.layout {path}"));
    let inline = "inline_bytes=4096";
    assert_eq!(
        text("."),
        format!("chunk_bytes=1048576 stripe=16 table=1 durability=written {inline}")
    );
    sh(
        &c.mnt,
        r#"
        mkdir d; echo before > d/before
        setfattr -n glowfs.layout -v 'stripe=2 chunk_bytes=64K' d
        mkdir d/sub; head -c 300000 /dev/urandom > d/sub/f; cp d/sub/f plain; cmp d/sub/f plain
    "#,
    );
    let small = format!("chunk_bytes=65536 stripe=2 table=1 durability=written {inline}");
    for path in ["d", "d/sub", "d/sub/f"] {
        assert_eq!(text(path), small, "{path}");
    }
    assert_eq!(text("d/before"), text("."), "what is there keeps its own");
    assert_eq!(sh(&other.path, "getfattr --only-values -n glowfs.layout d"), small);
    sh(
        &other.path,
        "cmp d/sub/f plain; ! getfattr -d -m - d | grep glowfs.layout; ! getfattr -d -m - d/sub | grep glowfs.layout",
    );
    let stat = c.admin(&["stat", "/d/sub/f"]);
    assert_eq!((&stat["chunk_bytes"], &stat["stripe"]), (&65536.into(), &2.into()));
    assert_eq!(stat["chains"].as_array().expect("chains").len(), 2);
    // Copied on the servers between files of different chunk sizes.
    sh(
        &c.mnt,
        "cp --reflink=never plain d/sub/copy; cmp plain d/sub/copy; cp d/sub/copy back; cmp plain back",
    );
    // What makes no sense is refused, and changes nothing.
    sh(
        &c.mnt,
        r#"
        for v in stripe=0 stripe=13 chunk_bytes=1000 chunk_bytes=3M chunk_bytes=1G table=9 colour=red '' stripe; do
            if setfattr -n glowfs.layout -v "$v" d 2>/dev/null; then echo "taken: $v"; exit 1; fi
        done
        setfattr -n glowfs.layout -v stripe=2 d/sub/f 2>/dev/null && exit 1
        setfattr -n glowfs.else -v 1 d 2>/dev/null && exit 1
        setpriv --reuid 1000 --clear-groups setfattr -n glowfs.layout -v stripe=3 d 2>/dev/null && exit 1
        true
    "#,
    );
    assert_eq!(text("d"), small);
    let e = c.admin_fails(&["set-layout", "/d", "--stripe", "13"]);
    assert!(e.contains("12 chains"), "{e}");
    let e = c.admin_fails(&["set-layout", "/d", "--chunk-size", "3M"]);
    assert!(e.contains("power of two"), "{e}");
    let e = c.admin_fails(&["set-layout", "/d", "--table", "9"]);
    assert!(e.contains("no chain table 9"), "{e}");
    // By the operator.
    let shown = c.admin(&["set-layout", "/d", "--chunk-size", "4M", "--stripe", "5"]);
    assert_eq!((&shown["chunk_bytes"], &shown["stripe"]), (&(4 << 20).into(), &5.into()));
    assert_eq!(
        text("d"),
        format!("chunk_bytes=4194304 stripe=5 table=1 durability=written {inline}")
    );
    assert_eq!(c.admin(&["show-layout", "/d"]), shown);
    c.admin(&["set-layout", "/d", "--inherit"]);
    assert_eq!(text("d"), text("."));
    sh(&c.mnt, "rm -r d");
}
