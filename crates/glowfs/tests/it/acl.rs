//! POSIX ACLs through the mount: kept, inherited, and what they say holds on another client, too (docs/semantics.md).

use crate::harness::{Cluster, Mount, sh};

const SCRIPT: &str = r#"
import os, struct, subprocess, sys
here, there = sys.argv[1], sys.argv[2]
NONE = 0xffffffff
def acl(*entries): return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)
def may(path, what):
    run = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", what + ' "$0"', path]
    return subprocess.run(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
os.umask(0o077)
for d in (here, there): os.chmod(d, 0o755)
os.mkdir(here + "/d"); os.chmod(here + "/d", 0o700)
open(here + "/d/f", "w").write("secret"); os.chmod(here + "/d/f", 0o600)
assert not may(there + "/d/f", "cat")
named = lambda perm: acl((1, 7, NONE), (2, perm, 65534), (4, 0, NONE), (16, 7, NONE), (32, 0, NONE))
os.setxattr(here + "/d", "system.posix_acl_access", named(5))
os.setxattr(here + "/d/f", "system.posix_acl_access", named(4))
for d in (here, there):
    assert may(d + "/d/f", "cat"), d
    assert not may(d + "/d/f", "echo more >>"), d
    assert not may(d + "/d/new", "touch"), d
    assert os.getxattr(d + "/d/f", "system.posix_acl_access") == named(4), d
assert os.stat(there + "/d").st_mode & 0o777 == 0o770
os.chmod(here + "/d/f", 0o600)
for d in (here, there): assert not may(d + "/d/f", "cat"), "the mask is in the mode: " + d
os.setxattr(here + "/d", "system.posix_acl_default", named(6))
open(there + "/d/g", "w").write("x")
assert may(here + "/d/g", "cat") and may(here + "/d/g", "echo more >>")
os.removexattr(here + "/d/g", "system.posix_acl_access")
try: os.getxattr(there + "/d/g", "system.posix_acl_access"); assert False
except OSError as e: assert e.errno == 61
for bad in (b"", b"xxxx", named(5)[:-3], acl((1, 7, NONE))):
    try: os.setxattr(here + "/d/f", "system.posix_acl_access", bad); assert bad == b""
    except OSError as e: assert e.errno in (22, 95), e
open(here + "/plain", "w").close()
assert os.stat(there + "/plain").st_mode & 0o777 == 0o600, "the umask"
"#;

/// Entries of each kind by right, against the algorithm of acl(5); then programs that keep lists.
const TABLE: &str = include_str!("acl_table.py");

#[test]
fn acls_hold_on_every_client() {
    let c = Cluster::up("acl");
    let other = Mount::new(&c, "mnt2");
    let (a, b) = (c.mnt.display(), other.path.display());
    sh(&c.local, "chmod 755 .. .");
    for (name, text) in [("acl.py", SCRIPT), ("acl_table.py", TABLE)] {
        let script = c.local.join(name);
        std::fs::write(&script, text).expect("script");
        sh(&c.local, &format!("timeout 120 python3 {} {a} {b}", script.display()));
    }
}
