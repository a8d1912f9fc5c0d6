//! The short forms of `./torture`: every acknowledged byte, and linearizability, under kills, stops and restarts.

use crate::harness::{Scratch, alone, binary};
use glowfs_torture::cluster::Shape;
use glowfs_torture::linear;
use glowfs_torture::nemesis::Kind;
use glowfs_torture::run::{Plan, run};
use glowfs_torture::watchdog::Patience;
use std::time::Duration;

fn shape(scratch: &Scratch) -> Shape {
    Shape {
        glowfs: binary().into(),
        dir: scratch.path.join("run"),
        storages: 3,
        options: ["--mgmtds", "2", "--metas", "2"].map(String::from).into(),
    }
}

#[test]
fn half_a_minute_of_torture_loses_nothing_and_errors_nothing() {
    let _alone = alone();
    let scratch = Scratch::new("torture");
    let plan = Plan {
        shape: shape(&scratch),
        time: Duration::from_secs(25),
        seed: 7,
        faults: vec![Kind::Kill, Kind::Stop, Kind::Restart, Kind::Mount],
        // Two cores have to be enough.
        think: Duration::from_millis(20),
        keep: false,
        patience: Patience::default(),
    };
    let report = run(&plan).expect("the run");
    eprintln!("{}", report.text());
    assert!(report.passed, "{}", report.text());
}

#[test]
fn metadata_in_etcd_bears_the_death_of_each_member() {
    let _alone = alone();
    let scratch = Scratch::new("torture-etcd");
    let mut shape = shape(&scratch);
    shape.options.extend(["--meta-engine", "etcd"].map(String::from));
    let plan = Plan {
        shape,
        time: Duration::from_secs(20),
        seed: 5,
        faults: vec![Kind::Etcd, Kind::Kill],
        think: Duration::from_millis(20),
        keep: false,
        patience: Patience::default(),
    };
    let report = run(&plan).expect("the run");
    eprintln!("{}", report.text());
    assert!(report.passed, "{}", report.text());
}

#[test]
fn two_mounts_see_linearizable_blocks_under_faults() {
    let _alone = alone();
    let scratch = Scratch::new("linear");
    let plan = linear::Plan {
        shape: shape(&scratch),
        time: Duration::from_secs(10),
        seed: 11,
        faults: vec![Kind::Kill, Kind::Stop],
        keep: false,
        patience: Patience::default(),
    };
    let report = linear::run(&plan).expect("the run");
    eprintln!("{}", report.text());
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.registers.violations.is_empty(), "{:?}", report.registers.violations);
    assert!(report.registers.overlapping >= linear::OVERLAP_MIN && !report.strikes.is_empty());
}
