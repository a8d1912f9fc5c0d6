//! Names, attributes and rights of POSIX on the real metadata: what one client does is there, to the last bit, for another one (docs/semantics.md).
//! What names may hold and how long they and paths may be is in `limits`, holes are in `sparse`, lists of rights in `acl`.

use crate::harness::{Cluster, Mount, sh};

const SCRIPT: &str = include_str!("posix.py");

#[test]
fn what_one_client_makes_another_one_finds() {
    let c = Cluster::up("posix");
    let other = Mount::new(&c, "mnt2");
    let script = c.local.join("posix.py");
    std::fs::write(&script, SCRIPT).expect("script");
    sh(&c.mnt, "chmod 755 .");
    let (a, b) = (c.mnt.display(), other.path.display());
    let run = format!("chmod 755 .. . && timeout 240 python3 {} {a} {b}", script.display());
    print!("{}", sh(&c.local, &run));
}
