//! `glowfs admin fsck` on a real cluster: no false alarm while two mounts work, and damage in the records is found and mended.

use crate::harness::{Cluster, Mount, run, sh};
use glowfs_kv::{Embedded, EmbeddedConfig, Transaction};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// Names made, linked, moved, exchanged and removed at random, until a file says stop.
const LOAD: &str = r#"
RANDOM=$SEED
mkdir -p a b c/d; dirs=(a b c c/d .)
while [ ! -e "$STOP" ]; do
    p=${dirs[RANDOM % 5]}/n$((RANDOM % 8)); q=${dirs[RANDOM % 5]}/n$((RANDOM % 8))
    case $((RANDOM % 9)) in
        0|1) echo $RANDOM > $p ;;
        2) mkdir $p ;;
        3) ln $p $q ;;
        4|5) mv -T $p $q ;;
        6) rm $p ;;
        7) rmdir $p ;;
        8) ln -s x $p; exec 5<>$p && rm $p; exec 5>&- ;;
    esac 2>/dev/null || true
done
"#;

/// Runs the checker; what it exits with and shows.
fn fsck(c: &Cluster, args: &[&str]) -> (i32, Value) {
    let o = run(Command::new(crate::harness::binary())
        .args(["admin", "--json", "--dev"])
        .arg(&c.dir)
        .args(["--timeout", "60", "fsck"])
        .args(args));
    let shown = serde_json::from_str(&o.out).unwrap_or_else(|e| panic!("{e}: {}{}", o.out, o.err));
    (o.code, shown)
}

fn kinds(shown: &Value) -> BTreeSet<String> {
    let rows = shown["problems"].as_array().expect("problems");
    rows.iter().map(|r| r["problem"].as_str().expect("a kind").to_owned()).collect()
}

/// Takes records out of the metadata engine, which must not be in use.
fn lose(c: &Cluster, keys: Vec<Vec<u8>>) {
    let text = std::fs::read_to_string(c.dir.join("etc/meta-1.toml")).expect("configuration");
    let cluster = text.lines().find_map(|l| l.strip_prefix("cluster_id = ")).expect("cluster_id");
    let cluster = cluster.trim_matches('"').parse().expect("hexadecimal");
    let dir = c.dir.join("data/meta-1");
    glowfs_rt::real::run(move |rt| async move {
        let dir = rt.open_dir(&dir).expect("directory");
        let engine = Embedded::open(&rt, dir, EmbeddedConfig::new(cluster)).await.expect("engine");
        let tx = Transaction::new(std::rc::Rc::new(engine.clone()));
        for key in keys {
            assert!(tx.get(&key).await.expect("read").is_some(), "that is where it is");
            tx.clear(key).expect("cleared");
        }
        tx.commit(true).await.expect("commit");
        engine.close().await.expect("close");
    });
}

fn key(kind: u8, inode: u64, name: &str) -> Vec<u8> {
    [&1u64.to_be_bytes()[..], &[kind], &inode.reverse_bits().to_be_bytes(), name.as_bytes()]
        .concat()
}

fn inode(c: &Cluster, path: &str) -> u64 {
    sh(&c.mnt, &format!("stat -c %i {path}")).trim().parse().expect("an inode")
}

#[test]
fn clean_under_load_and_mended_after_damage() {
    let c = Cluster::up("fsck");
    let other = Mount::new(&c, "mnt2");
    let stop = c.local.join("stop");
    let loads: Vec<_> = [&c.mnt, &other.path]
        .into_iter()
        .zip(1..)
        .map(|(dir, seed)| {
            let (dir, stop) = (dir.clone(), stop.clone());
            let script = format!("SEED={seed} STOP={}\n{LOAD}", stop.display());
            std::thread::spawn(move || sh(&dir, &script))
        })
        .collect();
    for _ in 0..8 {
        let (code, shown) = fsck(&c, &[]);
        // Whatever keeps changing is said to be undecided, and only that is not called sound.
        let undecided = shown["undecided"].as_array().expect("inodes").len();
        assert_eq!(code, if undecided == 0 { 0 } else { 3 }, "{shown:#}");
        assert_eq!(shown["problems"], serde_json::json!([]), "{shown:#}");
        assert!(shown["inodes"].as_u64().expect("a number") > 0);
    }
    std::fs::write(&stop, "").expect("stop");
    loads.into_iter().for_each(|l| drop(l.join().expect("the load ends well")));
    let (code, shown) = fsck(&c, &[]);
    assert!(code == 0 && shown["undecided"] == serde_json::json!([]), "{shown:#}");

    sh(
        &c.mnt,
        "mkdir -p t/lost/below t/kept; echo 1 > t/lost/below/f; echo 2 > t/dangles; echo 3 > t/unlisted; echo 4 > t/kept/f",
    );
    let (lost, dangles, top) = (inode(&c, "t/lost"), inode(&c, "t/dangles"), inode(&c, "t"));
    drop(other);
    c.dev("down", &[]);
    let records = vec![key(b'I', lost, ""), key(b'I', dangles, ""), key(b'D', top, "unlisted")];
    lose(&c, records);
    c.dev("up", &[]);
    let (code, shown) = fsck(&c, &[]);
    assert_eq!(code, 1, "{shown:#}");
    let found = kinds(&shown);
    for kind in ["lost-directory", "dangling", "stray-cookie"] {
        assert!(found.contains(kind), "{kind}: {shown:#}");
    }
    assert_eq!(fsck(&c, &[]).1["problems"], shown["problems"], "a dry run changes nothing");
    // Nobody to ask.
    let e = c.admin_fails(&["fsck", "--repair"]);
    assert!(e.contains("--yes"), "{e}");
    let (code, mended) = fsck(&c, &["--repair", "--yes"]);
    assert!(code == 0 && mended["mended"].as_u64() > Some(2), "{mended:#}");
    let (code, shown) = fsck(&c, &[]);
    assert_eq!(code, 0, "{shown:#}");
    let seen = sh(&c.mnt, "cat t/lost/below/f t/unlisted t/kept/f; ls t; stat -c %a t/lost");
    assert_eq!(seen, "1\n3\n4\nkept\nlost\nunlisted\n700\n");

    // Only for root.
    let token = c.admin(&["user-add", "1000", "someone", "--admin"]);
    std::fs::write(c.local.join("token"), token["token"].as_str().expect("token")).expect("file");
    let mgmtd = c.status()["mgmtd"][0].as_str().expect("address").to_owned();
    let o = run(Command::new(crate::harness::binary())
        .args(["admin", "--mgmtd", &mgmtd, "--token-file"])
        .arg(c.local.join("token"))
        .arg("fsck"));
    assert!(o.code != 0 && o.err.contains("token of root"), "{}", o.err);
}
