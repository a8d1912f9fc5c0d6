//! Mounts by the token of a user that is not root: whatever the daemon does by itself it may do as he.

use crate::harness::{Cluster, Mount, sh};
use std::path::{Path, PathBuf};

/// A directory of user 1000, and a file with his token.
fn user(c: &Cluster) -> PathBuf {
    sh(&c.mnt, "chmod 755 . .. ../local; mkdir u; chown 1000:1000 u");
    let token = c.admin(&["user-add", "1000", "someone"]);
    let file = c.local.join("token");
    std::fs::write(&file, token["token"].as_str().expect("token")).expect("file");
    file
}

/// Runs a script of user 1000 in his directory of a mount; `other` is where root sees it.
fn as_user(c: &Cluster, mount: &Path, script: &str) {
    let text = format!(
        r#"
import fcntl, mmap, os, subprocess, time
other = "{}/u/"
def elsewhere(script): subprocess.run(["bash", "-euc", script], cwd=other, check=True)
os.setgroups([]); os.setegid(1000); os.seteuid(1000)
os.chdir("{}/u")
{script}
"#,
        c.mnt.display(),
        mount.display()
    );
    let file = c.local.join("script.py");
    std::fs::write(&file, text).expect("script");
    sh(&c.local, &format!("timeout 60 python3 {}", file.display()));
}

#[test]
fn what_the_daemon_asks_by_itself_it_asks_as_the_user_of_its_token() {
    let c = Cluster::up("owntoken");
    let token = user(&c);
    let mount = Mount::by(&c, "mnt2", &token, &[]);
    // The kernel writes pages back as nobody in particular.
    as_user(
        &c,
        &mount.path,
        r#"
fd = os.open("f", os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 65536)
m = mmap.mmap(fd, 65536); m[:5] = b"first"
# No lease is left.
time.sleep(2)
m.flush(); os.fsync(fd)
"#,
    );
    assert_eq!(sh(&c.mnt, "head -c 5 u/f; stat -c ' %s' u/f"), "first 65536\n");
    // The right to append goes to and fro.
    as_user(
        &c,
        &mount.path,
        r#"
fd = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for i in range(3):
    os.write(fd, b"here ")
    os.seteuid(0); elsewhere("echo -n 'there ' >> log"); os.seteuid(1000)
"#,
    );
    assert_eq!(sh(&c.mnt, "cat u/log"), "here there here there here there ");
}

#[test]
fn what_was_gathered_by_the_token_of_a_user_is_sent_after_another_clients_truncate() {
    let c = Cluster::up("owngather");
    let token = user(&c);
    let slow = ["--set", "write_back=true", "--set", "write_back_ms=10000"];
    let mount = Mount::by(&c, "mnt2", &token, &slow);
    as_user(
        &c,
        &mount.path,
        r#"
fd = os.open("f", os.O_RDWR | os.O_CREAT); os.pwrite(fd, b"a" * 20000, 0); os.fsync(fd)
os.pwrite(fd, b"b" * 4000, 1000)
os.seteuid(0); elsewhere("truncate -s 3000 f"); os.seteuid(1000)
os.fsync(fd)
assert os.pread(fd, 9999, 0) == b"a" * 1000 + b"b" * 2000
"#,
    );
}
