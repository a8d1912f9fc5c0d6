//! Bad input: each gets a message that says what, where and what to do; nothing panics, hangs or is lost.

use crate::harness::{Cluster, Scratch, binary, run, sh};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Runs the binary; it must fail with a message that has all of `words`, and no panic.
fn refused(args: &[&str], words: &[&str]) {
    let o = run(Command::new(binary()).args(args));
    let text = format!("{}{}", o.out, o.err);
    assert_ne!(o.code, 0, "{args:?} succeeded: {text}");
    assert!(!text.contains("panicked"), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?} does not say «{word}»:\n{text}");
    }
}

fn config_of(c: &Cluster, id: &str) -> String {
    std::fs::read_to_string(c.dir.join(format!("etc/{id}.toml"))).expect("config")
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("file");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn configuration_mistakes() {
    let c = Cluster::up("badconfig");
    for (role, id) in [("storage", "storage-1"), ("meta", "meta-1"), ("mgmtd", "mgmtd-1")] {
        let good = config_of(&c, id);
        let f = write(&c.local, "unknown.toml", &format!("colour = \"red\"\n{good}"));
        refused(&[role, "--config", &f], &["colour", "unknown.toml"]);
        let f = write(&c.local, "type.toml", &good.replace("node_id = ", "node_id = true # "));
        refused(&[role, "--config", &f], &["node_id", "type.toml"]);
        let f = write(&c.local, "syntax.toml", "listen = [\n");
        refused(&[role, "--config", &f], &["syntax.toml"]);
        refused(&[role, "--config", "/nonexistent/x.toml"], &["/nonexistent/x.toml"]);
        refused(&[role], &["--config FILE"]);
        // A comment behind the token: whoever does not see it takes it for a part of the token.
        let token = write(&c.local, "commented.token", "0123456789abcdef\n# root\n");
        let named = good.lines().find(|l| l.starts_with("service_token_file")).expect("a token");
        let f = write(
            &c.local,
            "token.toml",
            &good.replace(named, &format!("service_token_file = {token:?}")),
        );
        refused(&[role, "--config", &f], &["commented.token", "one word on one line"]);
        // Its ports (and its data) are in use by the running service.
        let f = write(&c.local, "inuse.toml", &good);
        refused(&[role, "--config", &f], &["in use"]);
    }
    // Who hosts the embedded engine is a metadata service.
    let mgmtd: String = config_of(&c, "mgmtd-1")
        .lines()
        .take_while(|l| *l != "[engine]")
        .map(|l| format!("{l}\n"))
        .collect();
    let embedded = format!("{mgmtd}[engine]\nkind = \"embedded\"\ndir = \"/nonexistent\"\n");
    let f = write(&c.local, "embedded.toml", &embedded);
    refused(&["mgmtd", "--config", &f], &["embedded", "remote"]);
}

#[test]
fn no_cluster_is_named() {
    refused(&["admin", "status"], &["--mgmtd", "GLOWFS_MGMTD", "--dev"]);
    refused(&["admin", "status", "--mgmtd", "127.0.0.1:1"], &["--token-file", "GLOWFS_TOKEN_FILE"]);
}

#[test]
fn data_of_another_cluster() {
    let c = Cluster::up("foreign");
    c.dev("down", &[]);
    let other = config_of(&c, "storage-1");
    let id = other.lines().find(|l| l.starts_with("cluster_id")).expect("cluster_id").to_owned();
    let foreign = other.replace(&id, "cluster_id = \"00000000000000000000000000000bad\"");
    let f = write(&c.local, "foreign.toml", &foreign);
    refused(&["storage", "--config", &f], &["cluster"]);
    let foreign =
        config_of(&c, "meta-1").replace(&id, "cluster_id = \"00000000000000000000000000000bad\"");
    let f = write(&c.local, "foreign.toml", &foreign);
    refused(&["meta", "--config", &f], &["cluster"]);
}

/// As when the disk of the metadata is not mounted at boot: a new file system would look healthy, and take what users write.
#[test]
fn an_empty_directory_is_no_new_file_system() {
    let c = Cluster::up("unmounted");
    c.dev("down", &[]);
    let (data, empty) = (c.dir.join("data/meta-1"), c.local.join("disk"));
    std::fs::create_dir(&empty).expect("directory");
    let path = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    let config = config_of(&c, "meta-1").replace(&path(&data), &path(&empty));
    let f = write(&c.local, "unmounted.toml", &config);
    refused(&["meta", "--config", &f], &[&path(&empty), "mount", "--format"]);
    assert_eq!(std::fs::read_dir(&empty).expect("listed").count(), 0, "it was formatted");
    // Neither for what only looks at the metadata.
    refused(&["admin", "meta", "skip-ids", "--config", &f], &[&path(&empty)]);
    assert_eq!(std::fs::read_dir(&empty).expect("listed").count(), 0, "it was formatted");
}

/// Changes one byte of a file and puts it back when dropped.
struct Changed(std::path::PathBuf, Vec<u8>);

impl Changed {
    fn new(path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let old = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut new = old.clone();
        change(&mut new);
        std::fs::write(path, new).expect("write");
        Self(path.to_owned(), old)
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        std::fs::write(&self.0, &self.1).expect("put back");
    }
}

/// The first file of a directory whose name begins with `prefix`.
fn file_in(dir: &Path, prefix: &str) -> std::path::PathBuf {
    let names = std::fs::read_dir(dir).expect("directory").map(|e| e.expect("entry").path());
    let mut found: Vec<_> = names
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
        .collect();
    found.sort();
    found.into_iter().next().unwrap_or_else(|| panic!("no {prefix} in {}", dir.display()))
}

/// Puts a key of the metadata engine, which must not be in use; returns what was there.
fn put(c: &Cluster, key: &[u8], value: impl FnOnce(Vec<u8>) -> Vec<u8> + 'static) -> Vec<u8> {
    let text = config_of(c, "meta-1");
    let cluster = text.lines().find_map(|l| l.strip_prefix("cluster_id = ")).expect("cluster_id");
    let cluster = glowfs_types::ClusterId(
        u128::from_str_radix(cluster.trim_matches('"'), 16).expect("hexadecimal"),
    );
    let (dir, key) = (c.dir.join("data/meta-1"), key.to_vec());
    glowfs_rt::real::run(move |rt| async move {
        let dir = rt.open_dir(&dir).expect("directory");
        let config = glowfs_kv::EmbeddedConfig::new(cluster);
        let engine = glowfs_kv::Embedded::open(&rt, dir, config).await.expect("engine");
        let tx = glowfs_kv::Transaction::new(std::rc::Rc::new(engine.clone()));
        let old = tx.get(&key).await.expect("read").expect("the key exists");
        tx.put(key, value(old.clone())).expect("put");
        tx.commit(true).await.expect("commit");
        engine.close().await.expect("close");
        old
    })
}

#[test]
fn data_of_a_newer_release_is_refused_and_left_alone() {
    let c = Cluster::up("newer");
    sh(&c.mnt, "dd if=/dev/urandom of=f bs=1M count=8 status=none && md5sum f > ../local/sum");
    c.dev("down", &[]);
    let config =
        |id: &str| c.dir.join(format!("etc/{id}.toml")).to_str().expect("UTF-8").to_owned();
    let next_version = |at: usize| move |bytes: &mut Vec<u8>| bytes[at] += 1;
    // Every storage disk, and every file of the metadata engine: what, where, what to do.
    for (id, file) in [
        ("storage-1", c.dir.join("data/storage-1/disk-2/superblock")),
        ("meta-1", file_in(&c.dir.join("data/meta-1"), "log-")),
    ] {
        let _changed = Changed::new(&file, next_version(8));
        let dir = file.parent().and_then(Path::to_str).expect("UTF-8");
        let role = id.split('-').next().expect("role");
        refused(&[role, "--config", &config(id)], &[dir, "format 2", "newer"]);
    }
    // mgmtd's records and the namespace's lie in the engine, which meta-1 hosts.
    let newer = |mut v: Vec<u8>| {
        v[0] += 1;
        v
    };
    let old = put(&c, b"mgmtd/cluster/", newer);
    let mut host = Running::start("meta", &config("meta-1"));
    refused(&["mgmtd", "--config", &config("mgmtd-1")], &["mgmtd/cluster", "format 2", "newer"]);
    host.stop();
    put(&c, b"mgmtd/cluster/", |_| old);
    // The volume record is a CBOR array whose first element is the format.
    let volume = [&1u64.to_be_bytes()[..], b"M"].concat();
    let old = put(&c, &volume, |mut v| {
        assert_eq!(v[1], 2, "the format, with contents of files in it: {v:?}");
        v[1] = 3;
        v
    });
    let mut manager = Running::start("mgmtd", &config("mgmtd-1"));
    refused(&["meta", "--config", &config("meta-1")], &["volume 1", "format 3", "newer"]);
    manager.stop();
    put(&c, &volume, |_| old);
    // Nothing was changed by the refusals.
    c.dev("up", &[]);
    sh(&c.mnt, "md5sum f | diff - ../local/sum");
}

/// A service that the test runs itself.
struct Running(std::process::Child);

impl Running {
    fn start(role: &str, config: &str) -> Self {
        let null = std::process::Stdio::null;
        let mut command = Command::new(binary());
        command.args([role, "--config", config]).stdin(null()).stdout(null()).stderr(null());
        Self(command.spawn().expect("start"))
    }
    fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn mounting_mistakes() {
    let c = Cluster::up("badmount");
    let status = c.status();
    let mgmtd = status["mgmtd"][0].as_str().expect("address").to_owned();
    let token = status["token_file"].as_str().expect("file").to_owned();
    let mount = |mgmtd: &str, token: &str, at: &str, words: &[&str]| {
        refused(&["mount", "--mgmtd", mgmtd, "--token-file", token, "--timeout", "3", at], words);
    };
    let full = c.local.join("full");
    std::fs::create_dir(&full).expect("directory");
    std::fs::write(full.join("x"), "x").expect("file");
    mount(&mgmtd, &token, full.to_str().expect("UTF-8"), &["not empty"]);
    mount(&mgmtd, &token, "/nonexistent/mnt", &["/nonexistent/mnt"]);
    let empty = c.local.join("empty");
    std::fs::create_dir(&empty).expect("directory");
    let empty = empty.to_str().expect("UTF-8");
    mount("127.0.0.1:1", &token, empty, &["127.0.0.1:1"]);
    mount(&mgmtd, "/nonexistent/token", empty, &["/nonexistent/token"]);
    let wrong = write(&c.local, "wrong", "wrong\n");
    mount(&mgmtd, &wrong, empty, &["token"]);
    // A machine without /dev/fuse: an empty /dev in a mount namespace of its own.
    let script = format!(
        "mount -t tmpfs none /dev && exec {} mount --timeout 3 --mgmtd {mgmtd} --token-file {token} {empty}",
        binary().display()
    );
    let o = run(Command::new("unshare").args(["--mount", "bash", "-c", &script]));
    assert!(o.code != 0 && o.err.contains("/dev/fuse"), "{}", o.err);
    assert!(!o.err.contains("panicked"), "{}", o.err);
}

#[test]
fn random_bytes_on_every_port() {
    let c = Cluster::up("noise");
    sh(&c.mnt, "echo here > f");
    let mut state = 88_172_645_463_325_252_u64;
    let mut noise = |n: usize| -> Vec<u8> {
        (0..n)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect()
    };
    let status = c.status();
    for s in status["services"].as_array().expect("services") {
        for key in ["address", "http"] {
            let address = s[key].as_str().expect("address");
            if address.is_empty() {
                continue;
            }
            for round in 0..40 {
                let mut stream = TcpStream::connect(address).expect("connect");
                stream.set_read_timeout(Some(Duration::from_millis(200))).expect("time-out");
                let mut bytes = noise(1 + (round * 97) % 5000);
                if round % 3 == 0 {
                    bytes.splice(0..0, *b"GLF1"); // Looks right at first.
                }
                let _ = stream.write_all(&bytes);
                if round % 2 == 0 {
                    let _ = stream.read(&mut [0; 64]);
                }
            }
        }
    }
    assert_eq!(sh(&c.mnt, "cat f"), "here\n");
    for s in c.status()["services"].as_array().expect("services") {
        assert_eq!(s["state"], "running", "{s}");
        let log = std::fs::read_to_string(s["log"].as_str().expect("log")).expect("log");
        assert!(!log.contains("panicked"), "{}:\n{log}", s["id"]);
    }
}

#[test]
fn damaged_block_files_are_noticed_and_other_replicas_serve() {
    let c = Cluster::up("bitrot");
    sh(
        &c.mnt,
        "dd if=/dev/urandom of=f bs=1M count=24 status=none && sync f && md5sum f > ../local/sum",
    );
    c.dev("down", &[]);
    // Flip bytes all over the largest files of one storage node, and cut one short.
    sh(
        &c.dir.join("data/storage-2"),
        "for f in $(find . -type f -size +3M | sort | head -4); do s=$(stat -c %s $f); \
           for at in $(seq 40960 262144 $s); do printf 'ROT' | dd of=$f bs=1 seek=$at conv=notrunc status=none; done; done; \
         f=$(find . -type f -size +3M | sort | tail -1); truncate -s 1M $f",
    );
    c.dev("up", &[]);
    sh(&c.mnt, "md5sum f | diff - ../local/sum");
}

#[test]
fn dev_mistakes() {
    let s = Scratch::new("devbad");
    let (dir, mnt) = (s.path.join("c"), s.path.join("m"));
    let (dir, mnt) = (dir.to_str().expect("UTF-8"), mnt.to_str().expect("UTF-8"));
    refused(&["dev", "status", "--dir", dir], &["dev up"]);
    refused(&["dev", "up", "--dir", dir], &["--mount"]);
    refused(&["dev", "up", "--dir", dir, "--mount", mnt, "--replicas", "5"], &["--replicas 5"]);
    refused(&["dev", "up", "--dir", dir, "--mount", mnt, "--chunk-size", "3M"], &["power of two"]);
    refused(&["dev", "up", "--dir", dir, "--mount", mnt, "--chunk-size", "lots"], &["lots"]);
    let file = write(&s.path, "file", "x");
    refused(&["dev", "up", "--dir", dir, "--mount", &file], &["not a directory"]);
    std::fs::create_dir_all(s.path.join("full/x")).expect("directory");
    let full = s.path.join("full");
    let full = full.to_str().expect("UTF-8");
    refused(&["dev", "up", "--dir", full, "--mount", mnt], &["not empty"]);
    refused(
        &["dev", "up", "--dir", &s.path.join("c2").to_string_lossy(), "--mount", full],
        &["not empty"],
    );
}

#[test]
fn a_reader_that_stops_early_is_no_fault() {
    let cluster = Cluster::up("closed");
    // As `| head -0` does; closed before it starts, or all that it says might be in the pipe already.
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let o = Command::new(binary())
        .args(["dev", "status", "--dir"])
        .arg(&cluster.dir)
        .stdout(writer)
        .output()
        .expect("its end");
    let err = String::from_utf8_lossy(&o.stderr);
    assert!(!err.contains("panicked"), "{err}");
    assert_eq!(o.status.code(), Some(141), "{err}");
}
