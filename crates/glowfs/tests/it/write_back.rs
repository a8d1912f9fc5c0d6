//! Mounts that answer small writes before they are sent (docs/semantics.md, «Write-back»): what other clients see, what programs see, and what a mount
//! that dies leaves behind.

use crate::harness::{Cluster, Mount, eventually, sh};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const ON: [&str; 2] = ["--set", "write_back=true"];
/// So that nothing is sent because of its age.
const SLOW: [&str; 4] = ["--set", "write_back=true", "--set", "write_back_ms=10000"];

fn both(path: &Path) -> File {
    OpenOptions::new().create(true).read(true).write(true).truncate(false).open(path).expect("open")
}
fn contents(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("read")
}
/// Writes that the storage nodes were asked for.
fn chunk_writes(c: &Cluster) -> f64 {
    c.metric("storage", "glowfs_storage_writes_total")
}

#[test]
fn others_see_it_at_fsync_close_and_unlock() {
    let c = Cluster::up("writeback");
    let one = Mount::with(&c, "one", &SLOW);
    let (here, there) = (one.path.join("f"), c.mnt.join("f"));
    let f = both(&here);
    for i in 0..50u8 {
        f.write_all_at(&[i; 100], u64::from(i) * 100).expect("write");
    }
    assert_eq!(std::fs::metadata(&here).expect("stat").len(), 5000, "here at once");
    f.sync_all().expect("fsync");
    let whole: Vec<u8> = (0..5000u32).map(|i| (i / 100) as u8).collect();
    assert!(contents(&there) == whole, "after fsync");
    f.write_all_at(b"more", 4998).expect("write");
    drop(f);
    assert!(contents(&there).ends_with(b"\x31\x31more"), "after close");
    // Under a lock: the one who gets it next sees what was written, also over what it had cached.
    let other = both(&there);
    for i in 0..10u8 {
        let f = both(&here);
        f.lock().expect("lock");
        f.write_all_at(&[i; 64], 0).expect("write");
        f.unlock().expect("unlock");
        other.lock().expect("lock");
        let mut got = [99; 64];
        other.read_exact_at(&mut got, 0).expect("read");
        assert_eq!(got, [i; 64]);
        other.write_all_at(&[i + 100; 64], 64).expect("write");
        other.unlock().expect("unlock");
        f.lock().expect("lock");
        f.read_exact_at(&mut got, 64).expect("read");
        assert_eq!(got, [i + 100; 64]);
        f.unlock().expect("unlock");
    }
    // Another client's truncate does not let come back what was written before it.
    let f = both(&here);
    f.write_all_at(&[7; 30_000], 0).expect("write");
    f.sync_all().expect("fsync");
    f.write_all_at(&[8; 20_000], 10_000).expect("write");
    File::options().write(true).open(&there).expect("open").set_len(12_000).expect("truncate");
    assert_eq!(std::fs::metadata(&here).expect("stat").len(), 12_000);
    f.write_all_at(b"after", 15_000).expect("write");
    drop(f);
    let mut expected = vec![7; 10_000];
    expected.resize(12_000, 8);
    expected.resize(15_000, 0);
    expected.extend(b"after");
    assert!(contents(&there) == expected);
}

#[test]
fn small_writes_become_few_and_wait_no_longer_than_they_may() {
    let c = Cluster::up("writebackfew");
    let one = Mount::with(&c, "one", &ON);
    let before = chunk_writes(&c);
    let mut f = both(&one.path.join("f"));
    for i in 0..2000u32 {
        f.write_all(&[i as u8; 1000]).expect("write");
    }
    f.sync_all().expect("fsync");
    // Three replicas, and at most a few sets that were sent because of their age.
    let sent = chunk_writes(&c) - before;
    assert!(sent <= 3.0 * 12.0, "{sent} writes of chunks for 2000");
    let before = chunk_writes(&c);
    let began = Instant::now();
    f.write_all(b"tail").expect("write");
    eventually("it is sent without being asked for", || chunk_writes(&c) > before);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// The file is a beginning of what was written to it, and not shorter than what was made durable.
#[test]
fn a_mount_that_dies_loses_only_the_end() {
    let c = Cluster::up("writebackdies");
    let ended = || c.metric("meta", "glowfs_meta_sessions_reaped_total");
    let before = ended();
    let record = |round: u64, i: u64| format!("{round}:{i:08} and some more of it\n");
    let mut durable = Vec::new();
    for round in 0..4 {
        let one = Mount::with(&c, &format!("one{round}"), &ON);
        let mut f = both(&one.path.join(format!("f{round}")));
        for i in 0..60_000 {
            f.write_all(record(round, i).as_bytes()).expect("write");
            if i == 20_000 + round * 5000 {
                f.sync_all().expect("fsync");
                durable.push(i as usize + 1);
            }
        }
        one.kill();
    }
    let check = || {
        for (round, durable) in durable.iter().enumerate() {
            let text = contents(&c.mnt.join(format!("f{round}")));
            let all: String = (0..60_000).map(|i| record(round as u64, i)).collect();
            let least = durable * record(0, 0).len();
            assert!(text.len() >= least, "{round}: {} of {least} durable bytes", text.len());
            assert!(all.as_bytes()[..text.len()] == text[..], "{round}: not its beginning");
        }
    };
    check();
    // Then meta finds out how much there is.
    eventually("the sessions have ended", || ended() >= before + 4.0);
    check();
}

#[test]
fn programs_do_not_notice() {
    let c = Cluster::up("writebackapps");
    let one = Mount::with(&c, "one", &ON);
    sh(
        &one.path,
        r#"
        git init -q repo; cd repo; git config user.email a@b; git config user.name a
        for i in $(seq 300); do echo "line $i" >> "file$((i % 40))"; done
        git add .; git commit -qm first; git gc -q; git fsck --strict
        cd ..; git clone -q repo copy; diff -r --exclude=.git repo copy; cd copy; git status --porcelain | wc -l | grep -qx 0; cd ..
        for mode in DELETE WAL; do
          rm -f t.db*
          sqlite3 t.db "PRAGMA journal_mode=$mode; PRAGMA synchronous=FULL; CREATE TABLE t(i INTEGER PRIMARY KEY, v BLOB);"
          for n in 1 2 3; do (echo '.timeout 20000'; echo 'BEGIN IMMEDIATE;'
            for k in $(seq 200); do echo "INSERT INTO t(v) VALUES(randomblob($((k*7))));"; done; echo 'COMMIT;') | sqlite3 t.db & done; wait
          test "$(sqlite3 t.db 'DELETE FROM t WHERE i%3=0; VACUUM; PRAGMA integrity_check; SELECT count(*) FROM t;' | tr '\n' ' ')" = "ok 400 "
        done
        for bs in 512 4k 16k; do
          fio --name=x --rw=randwrite --bs=$bs --size=4m --ioengine=psync --numjobs=2 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 \
            --fallocate=none --end_fsync=1 --unlink=1 --group_reporting > /dev/null
        done
        mkdir tree; for i in $(seq 200); do head -c $((i * 97)) /dev/urandom > tree/$i; done
        tar cf t.tar tree; mkdir back; tar xf t.tar -C back; diff -r tree back/tree; rsync -a tree/ synced; diff -r tree synced
        test "$(stat -c %Y tree/7)" = "$(stat -c %Y back/tree/7)"
        "#,
    );
    sh(
        &c.mnt,
        "diff -r tree back/tree; sqlite3 t.db 'PRAGMA integrity_check' | grep -qx ok; cd copy; git fsck --strict",
    );
}
