//! The network under a cluster is cut, as a user would do it: `glowfs-torture --faults cut`.

mod program;

/// Faults strike for so long, in minutes.
const MINUTES: &str = "0.25";

#[test]
fn cuts_lose_nothing_and_fail_nothing() {
    let run = program::passes("cuts", MINUTES, "cut,primary", "--mgmtds 3 --metas 2");
    assert!(run.said.contains("cut "), "{}\n{}", run.said, run.log);
}

/// The primary's lease is in three members of etcd, each with a network of its own, which are cut off as well.
#[test]
fn the_primary_that_is_cut_off_is_replaced_over_etcd() {
    let shape = "--meta-engine etcd --mgmtds 3 --metas 2 --disks 1";
    let run = program::passes("cuts-etcd", MINUTES, "cut,primary", shape);
    assert!(run.said.contains("primary "), "{}\n{}", run.said, run.log);
}
