//! Real programs on the mount over a RAM file system.

use crate::common::{TestMount, has, sh};

macro_rules! mounted {
    ($m:ident) => {
        let Some($m) = TestMount::new(120) else { return };
    };
}

#[test]
fn copies_of_a_tree() {
    mounted!(m);
    sh(
        m.path(),
        r#"
        src=$(mktemp -d); trap 'rm -rf "$src"' EXIT
        for d in $(seq 20); do mkdir $src/$d; for f in $(seq 25); do head -c $((f * d * 13)) /dev/urandom > $src/$d/$f; done; done
        ln -s 1/1 $src/link; ln $src/1/2 $src/hard; touch -d 2001-02-03 $src/1/3; chmod 600 $src/1/4
        cp -a $src tree; diff -r $src tree
        test "$(stat -c '%Y %a' tree/1/3)" = "$(stat -c '%Y %a' $src/1/3)"
        test "$(stat -c %h tree/hard)" = 2
        tar cf all.tar tree; mkdir out; tar xf all.tar -C out; diff -r $src out/tree
        rm -rf tree out; test "$(ls | wc -l)" = 1
        "#,
    );
}

#[test]
fn git() {
    mounted!(m);
    if !has("git") {
        return;
    }
    sh(
        m.path(),
        r#"
        export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
        git config --global user.email a@example.org; git config --global user.name a
        git init -q r; cd r
        for i in $(seq 100); do seq $i $((i * 50)) > f$i; done
        git add .; git commit -qm one
        for i in $(seq 50); do echo more >> f$i; done; git commit -qam two
        cd ..; git clone -q r c; cd c; git fsck --full; git gc -q; git fsck --full
        test -z "$(git status --porcelain)"; git log --oneline | wc -l | grep -q 2
        "#,
    );
}

#[test]
fn sqlite() {
    mounted!(m);
    if !has("sqlite3") {
        return;
    }
    for mode in ["wal", "delete"] {
        sh(
            m.path(),
            &format!(
                r#"
                db={mode}.db; sqlite3 $db "pragma journal_mode={mode}; create table t(a integer primary key, b text);"
                for w in 1 2 3; do
                    (for i in $(seq 20); do sqlite3 -cmd ".timeout 20000" $db "insert into t(b) select hex(randomblob(500)) from generate_series(1,20);"; done) &
                done; wait
                test "$(sqlite3 $db 'select count(*) from t')" = 1200
                test "$(sqlite3 $db 'pragma integrity_check')" = ok
                "#
            ),
        );
    }
}

#[test]
fn fio_verifies() {
    mounted!(m);
    if !has("fio") {
        return;
    }
    for (engine, direct, bs, rw) in [
        ("psync", 1, "4k", "randrw"),
        ("psync", 0, "4k", "randrw"),
        ("libaio", 1, "128k", "randwrite"),
        ("libaio", 1, "1m", "write"),
        ("io_uring", 1, "4k", "randwrite"),
        ("io_uring", 0, "1m", "rw"),
        ("mmap", 0, "4k", "randwrite"),
        ("psync", 1, "4m", "write"),
    ] {
        sh(
            m.path(),
            &format!(
                "fio --name=v --filename=f --size=32m --bs={bs} --rw={rw} --ioengine={engine} --direct={direct} \
                 --iodepth=16 --verify=crc32c --do_verify=1 --verify_fatal=1 --fallocate=none --output-format=terse; rm f"
            ),
        );
    }
    sh(
        m.path(),
        "fio --name=j --directory=. --numjobs=8 --size=4m --bs=16k --rw=randwrite --ioengine=libaio --direct=1 --iodepth=8 \
         --verify=crc32c --verify_fatal=1 --fallocate=none --output-format=terse; rm j.*",
    );
}
