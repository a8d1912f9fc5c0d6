//! The network under a cluster is cut, as a user would do it: `glowfs-torture --faults cut`.

mod program;

/// Faults strike for so long, in minutes.
const MINUTES: &str = "0.25";

#[test]
fn cuts_lose_nothing_and_fail_nothing() {
    let run = program::passes("cuts", MINUTES, "cut", "--mgmtds 3 --metas 2");
    assert!(run.said.contains("cut "), "{}\n{}", run.said, run.log);
}
