//! Removal of whole trees (docs/semantics.md): gone at once for all mounts, then emptied, whatever stops in between.

use crate::harness::{Cluster, Mount, binary, eventually, make_tree, must, run, sh};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn trees(c: &Cluster) -> Vec<Value> {
    c.admin(&["trees"]).as_array().expect("rows").clone()
}

fn inodes(c: &Cluster) -> u64 {
    c.admin(&["df"])["inodes"].as_u64().expect("a number")
}

fn used(c: &Cluster) -> u64 {
    let df = c.admin(&["df"]);
    let disks = df["disks"].as_array().expect("disks").iter();
    disks.map(|d| d["used_bytes"].as_u64().expect("a number")).sum()
}

fn clean(c: &Cluster) {
    let shown = c.admin(&["--timeout", "60", "fsck"]);
    assert_eq!(shown["problems"].as_array().map(Vec::len), Some(0), "{shown:#}");
}

fn remove(path: &Path, yes: bool) -> String {
    let more: &[&str] = if yes { &["--yes"] } else { &[] };
    must(Command::new(binary()).arg("remove-tree").arg(path).args(more))
}

/// A process in a directory that waits for `go` and then tries what can be done there.
fn waits_in(dir: &Path, go: &Path) -> Child {
    let script = r#"
        while [ ! -e "$0" ]; do sleep 0.05; done
        for try in 'touch new' 'mkdir newdir' 'ln -s x newlink' "ln $1 hard" "mv $1 moved"; do
            $try 2>/dev/null && echo "could $try"
        done
        readlink /proc/self/cwd
    "#;
    let out = dir.parent().expect("a mount").join("outside");
    Command::new("bash")
        .current_dir(dir)
        .args(["-c", script])
        .args([go, &out])
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash")
}

#[test]
fn a_removed_tree_is_gone_at_once_and_its_space_comes_back() {
    let c = Cluster::up("trees");
    let other = Mount::new(&c, "mnt2");
    sh(&c.mnt, "echo x > outside; mkdir keep");
    let (inodes_before, used_before) = (inodes(&c), used(&c));
    make_tree(&c.mnt.join("t"), 3000);
    sh(&c.mnt, "ln t/d1/e1/f1 keep/linked; setfattr -n user.note -v x t/d2");
    let count = "find t | wc -l";
    assert_eq!(sh(&c.mnt, count), sh(&other.path, count));
    let made = inodes(&c) - inodes_before;
    assert!(made > 3000, "{made}");
    sh(&other.path, "cat t/d3/*/f* keep/linked > /dev/null; sync");
    let before = std::fs::read(c.mnt.join("t/d0/e0/f0")).expect("read");
    let linked = std::fs::read(c.mnt.join("keep/linked")).expect("read");
    // Slowly, so that there is something in between.
    c.retune("meta-1", "[tuning]\ngc_chunks_per_s = 400\n");
    let mut open: Vec<File> =
        [&c.mnt, &other.path].map(|m| File::open(m.join("t/d0/e0/f0")).expect("opened")).into();
    let go = c.local.join("go");
    let waiting = [&c.mnt, &other.path].map(|m| waits_in(&m.join("t"), &go));
    // A dry run does nothing.
    assert!(remove(&c.mnt.join("t"), false).contains("--yes"));
    assert!(c.mnt.join("t/d0").exists() && trees(&c).is_empty());
    let begin = Instant::now();
    remove(&c.mnt.join("t"), true);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    for m in [&c.mnt, &other.path] {
        assert!(!m.join("t").exists() && !m.join("t/d5/e5").exists());
        assert_eq!(sh(m, "ls"), "keep\noutside\n");
    }
    let shown = trees(&c);
    assert_eq!((shown.len(), &shown[0]["path"]), (1, &Value::from("/t")), "{shown:?}");
    assert!(shown[0]["waiting"].as_u64() > Some(0), "{shown:?}");
    // The name is free again, and who is inside can do nothing there any more.
    sh(&other.path, "mkdir t; echo new > t/new");
    std::fs::write(&go, "").expect("go");
    for child in waiting {
        let o = child.wait_with_output().expect("ended");
        let said = String::from_utf8_lossy(&o.stdout).into_owned();
        assert!(!said.contains("could") && said.contains("(deleted)"), "{said}");
    }
    clean(&c);
    // Killed in between, it goes on.
    for _ in 0..2 {
        c.dev("kill", &["meta-1"]);
        c.dev("start", &["meta-1"]);
        assert_eq!(trees(&c).len(), 1, "it takes longer than that");
        std::thread::sleep(Duration::from_secs(1));
    }
    clean(&c);
    c.retune("meta-1", "");
    eventually("it is empty", || trees(&c).is_empty());
    // What is open is read as before, by who removed it and elsewhere.
    for f in &mut open {
        let mut bytes = Vec::new();
        f.read_to_end(&mut bytes).expect("read");
        assert!(bytes == before);
    }
    drop(open);
    // `t`, `t/new`, and the file with another name.
    eventually("the inodes are given back", || inodes(&c) == inodes_before + 3);
    eventually("the space is given back", || used(&c) <= used_before + (8 << 20));
    assert!(std::fs::read(other.path.join("keep/linked")).expect("read") == linked);
    assert_eq!(sh(&c.mnt, "cat t/new; stat -c %h keep/linked"), "new\n1\n");
    clean(&c);
}

#[test]
fn a_tree_is_removed_by_who_may() {
    let c = Cluster::up("treemay");
    let other = Mount::new(&c, "mnt2");
    sh(
        &c.mnt,
        "mkdir -m 777 u; setpriv --reuid 1000 --regid 1000 --clear-groups bash -c 'mkdir -p u/own/a/b; touch u/own/a/f u/own/g'; mkdir u/own/roots; touch u/own/roots/f",
    );
    let user = |args: &[&str]| {
        run(Command::new("setpriv")
            .args(["--reuid", "1000", "--regid", "1000", "--clear-groups"])
            .arg(binary())
            .arg("remove-tree")
            .args(args)
            .current_dir(&c.mnt))
    };
    for args in [&["u/own"][..], &["u/own", "--yes"]] {
        let o = user(args);
        assert!(o.code != 0 && o.out.contains("ermission denied"), "{} {}", o.out, o.err);
    }
    assert_eq!(sh(&other.path, "ls u/own"), "a\ng\nroots\n");
    sh(&c.mnt, "rm u/own/roots/f");
    let o = user(&["u/own", "--yes"]);
    assert_eq!(o.code, 0, "{} {}", o.out, o.err);
    assert_eq!(sh(&other.path, "ls u"), "");
    eventually("it is empty", || trees(&c).is_empty());
    // Its own name only, a directory only, on a mount only, and never the root.
    sh(
        &c.mnt,
        r#"
        mkdir -p d/e; touch f
        setfattr -n glowfs.remove_tree -v e d 2>/dev/null && exit 1
        setfattr -n glowfs.remove_tree -v f f 2>/dev/null && exit 1
        setfattr -n glowfs.remove_tree -v mnt . 2>/dev/null && exit 1
        [ "$(getfattr --only-values -n glowfs.remove_tree d/e)" = e ]; getfattr -d -m - d | grep -q remove && exit 1
        [ -d d/e ]
    "#,
    );
    for path in [c.mnt.join("f"), c.mnt.clone(), c.local.clone()] {
        let o = run(Command::new(binary()).arg("remove-tree").arg(&path).arg("--yes"));
        assert!(o.code != 0, "{path:?} {}", o.out);
    }
    // Something immutable inside is kept.
    sh(&c.mnt, "echo kept > d/e/i; chattr +i d/e/i; setfattr -n glowfs.remove_tree -v d d");
    assert!(!other.path.join("d").exists());
    eventually("it is empty", || trees(&c).is_empty());
    assert_eq!(
        sh(&other.path, "cat lost+found/*; chattr -i lost+found/*; ls"),
        "kept\nf\nlost+found\nu\n"
    );
    clean(&c);
}

#[test]
fn two_metadata_services_empty_a_tree_together() {
    let c = Cluster::up_with("treetwo", &["--metas", "2"]);
    let other = Mount::new(&c, "mnt2");
    let before = inodes(&c);
    make_tree(&c.mnt.join("t"), 1000);
    sh(&other.path, "find t > /dev/null; mkdir t/own");
    remove(&other.path.join("t"), true);
    assert!(!c.mnt.join("t").exists() && !other.path.join("t").exists());
    eventually("it is empty", || trees(&c).is_empty());
    eventually("the inodes are given back", || inodes(&c) == before);
    clean(&c);
}
