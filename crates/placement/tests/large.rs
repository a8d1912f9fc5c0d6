//! A plan for a large cluster. mgmtd makes it on the thread that renews its lease.

use glowfs_placement::{Place, Request, plan};
use glowfs_types::{NodeId, StoreId};

/// Nanoseconds of CPU that the plan may take; it took 19 s.
const CPU_MAX: u64 = 3_000_000_000;

/// Nanoseconds that this thread has run, as of the last time it was put aside.
fn cpu() -> u64 {
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    stat.split(' ').next().expect("a number").parse().expect("a number")
}

#[test]
fn ten_thousand_chains_over_hundreds_of_disks() {
    let place = |n: u64, d: u32| Place {
        node: NodeId(n + 1),
        store: StoreId(u128::from(n) << 32 | u128::from(d)),
        disk_index: d,
        capacity_bytes: (1 + (n * 7 + u64::from(d)) % 5) << 40,
        rack: format!("r{}", n % 6),
    };
    let places: Vec<_> = (0..30).flat_map(|n| (0..10).map(move |d| place(n, d))).collect();
    let begin = cpu();
    let plan = plan(&places, Request { replicas: 3, chains: 10_000 }).expect("a plan");
    let took = cpu() - begin;
    println!("{} ms of CPU", took / 1_000_000);
    assert!(took < CPU_MAX, "{took} ns of CPU");
    // The same as it was when it took long.
    let chains = plan.chains.iter().flatten();
    let sum = chains.fold(0u64, |h, i| h.wrapping_mul(31).wrapping_add(*i as u64));
    assert_eq!(sum, 12_575_652_282_271_106_902);
}
