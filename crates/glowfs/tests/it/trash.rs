//! The trash (docs/semantics.md): removed files come back with their contents, or go when their time has come.

use crate::harness::{Cluster, Mount, eventually, run, sh};
use serde_json::Value;
use std::process::Command;

fn list(c: &Cluster) -> Vec<Value> {
    c.admin(&["trash", "list"]).as_array().expect("rows").clone()
}

fn paths(c: &Cluster) -> Vec<String> {
    let mut all: Vec<_> =
        list(c).iter().map(|r| r["path"].as_str().expect("path").to_owned()).collect();
    all.sort();
    all
}

fn id_of(c: &Cluster, path: &str) -> String {
    let found = list(c).into_iter().find(|r| r["path"] == path).expect("in the trash");
    found["id"].as_str().expect("id").to_owned()
}

#[test]
fn what_was_removed_comes_back() {
    let c = Cluster::up("trash");
    let other = Mount::new(&c, "mnt2");
    sh(
        &c.mnt,
        r#"
        mkdir -p keep plain; setfattr -n glowfs.trash -v 1h keep
        mkdir -p keep/a/b; head -c 3000000 /dev/urandom > keep/a/b/f; echo g > keep/a/g; echo user > keep/a/named; ln -s g keep/a/link
        setfattr -n user.note -v here keep/a/g; chmod 640 keep/a/g; ln keep/a/named keep/second
        sha256sum keep/a/b/f | cut -d' ' -f1 > plain/sum; echo p > plain/p
        mv keep/a keep/moved
    "#,
    );
    assert_eq!(
        sh(&c.mnt, "getfattr --only-values -n glowfs.trash keep/moved"),
        "3600s",
        "inherited"
    );
    sh(&other.path, "rm -r keep/moved plain/p; ls keep");
    // A name that was not the last one is only a name; outside there is no trash.
    assert_eq!(paths(&c), ["/keep/moved/b/f", "/keep/moved/g", "/keep/moved/link"]);
    assert_eq!(sh(&c.mnt, "cat keep/second; ls keep"), "user\nsecond\n");
    // After a restart of everything it is there.
    c.dev("kill", &["meta-1"]);
    c.dev("start", &["meta-1"]);
    c.admin(&["trash", "restore", "--below", "/keep/moved", "--dry-run"]);
    assert_eq!(list(&c).len(), 3, "a dry run does nothing");
    c.admin(&["trash", "restore", "--below", "/keep/moved"]);
    sh(
        &c.mnt,
        "[ $(sha256sum keep/moved/b/f | cut -d' ' -f1) = $(cat plain/sum) ]; [ $(stat -c %h,%a keep/moved/g) = 1,640 ]; \
         [ $(getfattr --only-values -n user.note keep/moved/g) = here ]; [ $(readlink keep/moved/link) = g ]",
    );
    assert_eq!(sh(&other.path, "cat keep/moved/g"), "g\n");
    assert!(list(&c).is_empty());
    // What is open goes on; a taken place is not overwritten, but another one may be named.
    sh(
        &c.mnt,
        "exec 3<>keep/moved/g; rm keep/moved/g; echo more >&3; cat <&3; exec 3>&-; echo new > keep/moved/g",
    );
    let id = id_of(&c, "/keep/moved/g");
    let e = c.admin_fails(&["trash", "restore", &id]);
    assert!(e.contains("failed"), "{e}");
    c.admin(&["trash", "restore", &id, "--to", "/plain/back/g"]);
    assert_eq!(sh(&other.path, "cat plain/back/g keep/moved/g"), "more\nnew\n");
    // Purging asks first.
    sh(&c.mnt, "rm keep/moved/g keep/moved/b/f");
    c.admin(&["trash", "purge", "--all"]);
    assert_eq!(list(&c).len(), 2, "without --yes nothing is lost");
    let collected = || c.metric("meta", "glowfs_meta_gc_files_total");
    let before = collected();
    c.admin(&["trash", "purge", &id_of(&c, "/keep/moved/b/f"), "--yes"]);
    eventually("its space comes back", || collected() > before);
    assert_eq!(paths(&c), ["/keep/moved/g"]);
    c.admin_fails(&["trash", "purge", "1-1", "--yes"]);
    c.admin_fails(&["trash", "purge", "--yes"]);
    // The time comes.
    sh(
        &c.mnt,
        "setfattr -n glowfs.trash -v 2s keep/moved; echo x > keep/moved/short; rm keep/moved/short",
    );
    assert_eq!(list(&c).len(), 2);
    eventually("expired", || paths(&c) == ["/keep/moved/g"]);
    // Only operators look into it, and only the owner of a directory gives it one.
    sh(
        &c.mnt,
        r#"
        for v in 0 x 1y 99999d; do setfattr -n glowfs.trash -v $v keep 2>/dev/null && exit 1; done
        setpriv --reuid 1000 --clear-groups setfattr -n glowfs.trash -v 1d keep 2>/dev/null && exit 1
        touch keep/late; setfattr -x glowfs.trash keep; rm keep/late
    "#,
    );
    assert_eq!(paths(&c), ["/keep/moved/g"]);
    let token = c.admin(&["user-add", "1000", "someone"]);
    let token = token["token"].as_str().expect("token").to_owned();
    std::fs::write(c.local.join("token"), token).expect("token");
    let mgmtd = c.status()["mgmtd"][0].as_str().expect("address").to_owned();
    let args = ["admin", "--mgmtd", &mgmtd, "--token-file"];
    let o = run(Command::new(crate::harness::binary())
        .args(args)
        .arg(c.local.join("token"))
        .args(["trash", "list"]));
    assert!(o.code != 0 && o.err.contains("operators"), "{}", o.err);
}
