//! Names, attributes and rights of POSIX on the real metadata: what one client does is there, to the last bit, for another one (docs/semantics.md).
//! What names may hold and how long they and paths may be is in `limits`, holes are in `sparse`, lists of rights in `acl`.

use crate::capacity::SmallDisk;
use crate::harness::{Cluster, Mount, Scratch, sh};

const SCRIPT: &str = include_str!("posix.py");

#[test]
fn what_one_client_makes_another_one_finds() {
    // A disk for one store alone, so that what is free is changed by nobody else, and is told once.
    let scratch = Scratch::new("posix");
    let disk = SmallDisk::new(scratch.path.join("disk"));
    let one = ["--storages", "1", "--disks", "1", "--replicas", "1"];
    let c = Cluster::up_in("posix", disk.path.join("cluster"), &one);
    let other = Mount::new(&c, "mnt2");
    let script = c.local.join("posix.py");
    std::fs::write(&script, SCRIPT).expect("script");
    sh(&c.mnt, "chmod 755 .");
    let (a, b) = (c.mnt.display(), other.path.display());
    let run = format!("chmod 755 .. . && timeout 240 python3 {} {a} {b}", script.display());
    print!("{}", sh(&c.local, &run));
}
