//! `glowfs admin meta dump|load`: a cluster's metadata by way of a file into another directory; a bad file changes nothing.

use crate::harness::{Cluster, must, run, sh};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn meta(args: &[&str], file: &Path, config: &Path) -> Command {
    let mut c = Command::new(crate::harness::binary());
    c.args(["admin", "meta"]).args(&args[..1]).arg(file).arg("--config").arg(config);
    c.args(&args[1..]);
    c
}

/// A configuration like that of the cluster's metadata service, with another directory.
fn config_for(c: &Cluster, dir: &Path) -> PathBuf {
    let text = std::fs::read_to_string(c.dir.join("etc/meta-1.toml")).expect("configuration");
    let old = c.dir.join("data/meta-1");
    let (old, new) = (old.to_str().expect("UTF-8"), dir.to_str().expect("UTF-8"));
    assert!(text.contains(old), "{text}");
    let config = c.local.join("other.toml");
    std::fs::write(&config, text.replace(old, new)).expect("configuration");
    config
}

#[test]
fn metadata_moves_by_a_file() {
    let c = Cluster::up("transfer");
    sh(
        &c.mnt,
        "mkdir -p a/b; for i in $(seq 300); do echo $i > a/b/f$i; done; ln a/b/f1 a/second; rm a/b/f2; \
         head -c 3000000 /dev/urandom > a/big; setfattr -n user.note -v here a/big",
    );
    let sum = sh(&c.mnt, "md5sum < a/big");
    let own = c.dir.join("etc/meta-1.toml");
    let file = c.local.join("all.dump");
    // The engine is in use.
    let o = run(&mut meta(&["dump"], &file, &own));
    assert!(o.code != 0 && o.err.contains("stop that one first") && !file.exists(), "{}", o.err);
    c.dev("down", &[]);
    let neighbour = c.local.join("all.part");
    std::fs::write(&neighbour, "of somebody").expect("written");
    let said = must(&mut meta(&["dump"], &file, &own));
    assert!(said.contains("dumped and verified"), "{said}");
    assert_eq!(std::fs::read_to_string(&neighbour).expect("as it was"), "of somebody");
    let o = run(&mut meta(&["dump"], &file, &own));
    assert!(o.code != 0 && o.err.contains("exists"), "{}", o.err);
    std::fs::remove_file(&neighbour).expect("removed");
    assert_eq!(sh(&c.local, "ls | grep part || true"), "", "nothing else is left");

    // Cut, damaged, newer: refused, and nothing is touched.
    let new = c.dir.join("data/meta-new");
    let other = config_for(&c, &new);
    let bytes = std::fs::read(&file).expect("the dump");
    let (mut flipped, mut newer) = (bytes.clone(), bytes.clone());
    flipped[bytes.len() / 2] ^= 1;
    newer[8] = 9;
    let bad = c.local.join("bad.dump");
    let cut = bytes[..bytes.len() - 30].to_vec();
    for (bytes, word) in [(cut, "cut"), (flipped, "damaged"), (newer, "format 9")] {
        std::fs::write(&bad, bytes).expect("a bad dump");
        let o = run(&mut meta(&["load"], &bad, &other));
        assert!(o.code != 0 && o.err.contains(word), "{word}: {}", o.err);
        assert!(!new.exists(), "{word}");
    }
    must(&mut meta(&["load", "--dry-run"], &file, &other));
    assert!(!new.exists());
    let said = must(&mut meta(&["load"], &file, &other));
    assert!(said.contains("loaded and read back"), "{said}");
    let o = run(&mut meta(&["load"], &file, &other));
    assert!(o.code != 0 && o.err.contains("replaced"), "{}", o.err);
    let o = run(&mut meta(&["load", "--replace"], &file, &other));
    assert!(o.code != 0 && o.err.contains("--yes"), "{}", o.err);

    // The cluster goes on with it.
    let data = c.dir.join("data");
    std::fs::rename(data.join("meta-1"), data.join("meta-old")).expect("renamed");
    std::fs::rename(&new, data.join("meta-1")).expect("renamed");
    c.dev("up", &[]);
    let seen = sh(
        &c.mnt,
        "md5sum < a/big; cat a/second; ls a/b | wc -l; getfattr --only-values -n user.note a/big; echo more > a/late",
    );
    assert_eq!(seen, format!("{sum}1\n299\nhere"));
    assert_eq!(c.admin(&["fsck"])["problems"], serde_json::json!([]));
}

/// Files made now hold zeros wherever nothing was written, whatever stands in chunks of files that this metadata does not know.
fn new_files_are_empty(c: &Cluster, name: &str) {
    let odd = sh(
        &c.mnt,
        &format!(
            "for i in $(seq 20); do exec 3>{name}$i; truncate -s 1M {name}$i; exec 3>&-; done
             for f in {name}*; do cmp -s -n 1048576 $f /dev/zero || echo $f; done"
        ),
    );
    assert_eq!(odd, "", "these show what other files held");
}

/// Whatever way older metadata is put back: the data ids that were given out since are not given out again.
#[test]
fn older_metadata_does_not_give_new_files_the_chunks_of_others() {
    let c = Cluster::up("older");
    sh(&c.mnt, "echo before > before");
    let own = c.dir.join("etc/meta-1.toml");
    let (file, copy) = (c.local.join("all.dump"), c.local.join("copy"));
    c.dev("down", &[]);
    must(&mut meta(&["dump"], &file, &own));
    let data = c.dir.join("data/meta-1");
    must(Command::new("cp").arg("-a").args([&data, &copy]));
    let put_back = || {
        std::fs::remove_dir_all(&data).expect("removed");
        must(Command::new("cp").arg("-a").args([&copy, &data]));
    };
    c.dev("up", &[]);
    sh(
        &c.mnt,
        "head -c 1048576 /dev/urandom > one; for i in $(seq 20); do cp one since$i; done; rm one",
    );

    // The dump, loaded.
    c.dev("down", &[]);
    let new = c.dir.join("data/meta-new");
    must(&mut meta(&["load"], &file, &config_for(&c, &new)));
    std::fs::remove_dir_all(&data).expect("removed");
    std::fs::rename(&new, &data).expect("renamed");
    c.dev("up", &[]);
    c.wait_serving(Duration::from_secs(30));
    new_files_are_empty(&c, "loaded");

    // A copy of the directory, and the command that goes with it.
    c.dev("down", &[]);
    put_back();
    let mut skip = Command::new(crate::harness::binary());
    must(skip.args(["admin", "meta", "skip-ids", "--config"]).arg(&own));
    c.dev("up", &[]);
    c.wait_serving(Duration::from_secs(30));
    new_files_are_empty(&c, "skipped");

    // Without the command, the search for chunks without an owner notices; it leaves them alone.
    c.dev("down", &[]);
    put_back();
    c.dev("up", &[]);
    c.wait_serving(Duration::from_secs(30));
    let seen = c.admin(&["--timeout", "60", "orphans", "--dry-run"]);
    assert!(seen["problem"].as_str().is_some_and(|p| p.contains("old copy")), "{seen}");
    new_files_are_empty(&c, "searched");
    let seen = c.admin(&["--timeout", "60", "orphans", "--dry-run"]);
    assert!(seen["problem"].as_str().is_some_and(|p| p.contains("are left alone")), "{seen}");
    assert_eq!(seen["ownerless_total"], 0, "{seen}");
    assert_eq!(c.admin(&["fsck"])["problems"], serde_json::json!([]));
}

/// Chain versions that targets have adopted since the dump was made lie behind those that its records would count up to; and one of them was away at the end, so it
/// lacks what was overwritten then, though the records say that it has everything.
#[test]
fn chains_go_on_with_what_is_newest_after_older_metadata_was_put_back() {
    let c = Cluster::up("chains");
    let own = c.dir.join("etc/meta-1.toml");
    sh(&c.mnt, "dd if=/dev/zero of=big bs=1M count=24 status=none conv=fsync");
    let file = c.local.join("all.dump");
    c.dev("down", &[]);
    must(&mut meta(&["dump"], &file, &own));
    for round in 0..3 {
        c.dev("up", &[]);
        c.wait_serving(Duration::from_secs(30));
        if round == 2 {
            c.dev("kill", &["--signal", "TERM", "storage-1"]);
        }
        sh(&c.mnt, "dd if=/dev/urandom of=big bs=1M count=24 status=none conv=notrunc,fsync");
        if round == 2 {
            std::fs::copy(c.mnt.join("big"), c.local.join("big")).expect("copied");
        }
        c.dev("down", &[]);
    }
    let (new, data) = (c.dir.join("data/meta-new"), c.dir.join("data/meta-1"));
    must(&mut meta(&["load"], &file, &config_for(&c, &new)));
    std::fs::remove_dir_all(&data).expect("removed");
    std::fs::rename(&new, &data).expect("renamed");
    c.dev("up", &[]);
    c.wait_serving(Duration::from_secs(60));
    must(Command::new("cmp").arg(c.mnt.join("big")).arg(c.local.join("big")));
}

/// Of a file that is moved to and fro exactly one name is in a dump that is made meanwhile.
#[test]
fn a_dump_of_an_engine_in_use_is_of_one_moment() {
    let c = Cluster::up("online");
    sh(&c.mnt, "mkdir one two; echo content > one/f; for i in $(seq 3000); do : > one/n$i; done");
    let mut moving = Command::new("bash")
        .args(["-c", "while :; do mv one/f two/f && mv two/f one/f || exit; : > two/new; done"])
        .current_dir(&c.mnt)
        .spawn()
        .expect("bash");
    let own = c.dir.join("etc/meta-1.toml");
    let file = c.local.join("all.dump");
    for _ in 0..4 {
        let _ = std::fs::remove_file(&file);
        let said = must(&mut meta(&["dump", "--online"], &file, &own));
        assert!(said.contains("dumped and verified"), "{said}");
    }
    moving.kill().expect("it still moves");
    moving.wait().expect("ended");
    c.dev("down", &[]);
    let (data, new) = (c.dir.join("data/meta-1"), c.dir.join("data/meta-new"));
    must(&mut meta(&["load"], &file, &config_for(&c, &new)));
    std::fs::remove_dir_all(&data).expect("removed");
    std::fs::rename(&new, &data).expect("renamed");
    c.dev("up", &[]);
    c.wait_serving(Duration::from_secs(30));
    assert_eq!(
        sh(&c.mnt, "cat one/f two/f 2>/dev/null || true; ls one | grep -c n"),
        "content\n3000\n"
    );
    assert_eq!(c.admin(&["fsck"])["problems"], serde_json::json!([]));
}
