//! What is wrong with the library or the cluster file is said, with what to do. And once it is right, it works.

mod common;

use common::{Place, fake, real as real_cluster};
use glowfs_kv::fdb::SYMBOLS;
use glowfs_kv::{Fdb, FdbConfig};
use glowfs_rt::{Rt, real};
use glowfs_types::{ClusterId, Status};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library of functions that do nothing, but for those that are left out, with one that says the version.
fn library(dir: &Path, name: &str, version: u32, without: &str) -> PathBuf {
    let mut source = String::new();
    for symbol in SYMBOLS.iter().filter(|s| **s != without) {
        let value = if *symbol == "fdb_get_max_api_version" { version } else { 0 };
        source.push_str(&format!("long {symbol}(void) {{ return {value}; }}\n"));
    }
    let (c, so) = (dir.join(format!("{name}.c")), dir.join(format!("lib{name}.so")));
    std::fs::write(&c, source).expect("written");
    let mut cc = Command::new("cc");
    cc.args(["-w", "-shared", "-fPIC", "-o"]).arg(&so).arg(&c);
    assert!(cc.status().expect("a C compiler").success());
    so
}

fn refused(rt: &Rt, cluster_file: &Path, library: &Path) -> (Status, String) {
    let config = FdbConfig {
        cluster_file: cluster_file.into(),
        library: Some(library.into()),
        cluster: ClusterId(7),
        name: "a".into(),
    };
    match Fdb::open(rt, &config) {
        Ok(_) => panic!("{} {}", cluster_file.display(), library.display()),
        Err(e) => (e.status, e.message),
    }
}

fn says(refused: (Status, String), status: Status, words: &[&str]) {
    let (is, text) = refused;
    assert_eq!(is, status, "{text}");
    for word in words {
        assert!(text.contains(word), "«{word}» is not in: {text}");
    }
}

/// One test: a process loads one library.
#[test]
fn what_is_wrong_is_said() {
    if real_cluster().is_some() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_owned();
    real::run(move |rt| async move {
        let place = Place::new();
        let file = &place.cluster_file;
        let way = ["foundationdb-clients", "`library`"];
        let nowhere = path.join("libnone.so");
        let words = [&["libnone.so", "cannot open"][..], &way].concat();
        says(refused(&rt, file, &nowhere), Status::NotSupported, &words);
        std::fs::write(path.join("libtext.so"), "no library").expect("written");
        says(refused(&rt, file, &path.join("libtext.so")), Status::NotSupported, &way);
        let partial = library(&path, "partial", 710, "fdb_transaction_get_range");
        let words =
            [&["libpartial.so", "no function fdb_transaction_get_range"][..], &way].concat();
        says(refused(&rt, file, &partial), Status::NotSupported, &words);
        let old = library(&path, "old", 620, "");
        let words = [&["libold.so", "version 620", "710"][..], &way].concat();
        says(refused(&rt, file, &old), Status::NotSupported, &words);

        // Cluster files, looked at before anything is loaded.
        let none = path.join("none.cluster");
        let way = ["`cluster_file`", "none.cluster", "No such file"];
        says(refused(&rt, &none, &fake()), Status::InvalidArgument, &way);
        let unreadable = path.join("secret.cluster");
        std::fs::write(&unreadable, "a:b@127.0.0.1:4500\n").expect("written");
        let nobody = std::fs::Permissions::from_mode(0o0);
        std::fs::set_permissions(&unreadable, nobody).expect("its mode");
        // Root reads everything.
        if std::fs::read(&unreadable).is_err() {
            says(refused(&rt, &unreadable, &fake()), Status::InvalidArgument, &["ermission"]);
        }
        says(refused(&rt, &path, &fake()), Status::InvalidArgument, &["directory"]);
        for text in ["", "# a:b@c:1\n", "nothing\n", "a:b@\n", "a@127.0.0.1:4500\n", "a:b@host\n"] {
            let wrong = path.join("wrong.cluster");
            std::fs::write(&wrong, text).expect("written");
            let way = ["DESCRIPTION:ID@HOST:PORT", "wrong.cluster"];
            says(refused(&rt, &wrong, &fake()), Status::InvalidArgument, &way);
        }
        for text in ["a:b@[::1]:4500:tls,host:1\n", "# x\n\n  a_1:b2@127.0.0.1:4500\n"] {
            let right = path.join("right.cluster");
            std::fs::write(&right, text).expect("written");
            says(refused(&rt, &right, &nowhere), Status::NotSupported, &["libnone.so"]);
        }

        // After all that, the right one.
        let engine = place.open(&rt, "a");
        assert!(engine.begin().await.expect("a version") > 0);
        // One library for one process.
        let words = ["has loaded", "libold.so", "name one"];
        says(refused(&rt, file, &old), Status::InvalidArgument, &words);
        drop(engine);
        place.open(&rt, "b").begin().await.expect("it is still there");
    });
}
