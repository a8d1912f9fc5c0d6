//! A mount that begins while the daemon before it is still ending.

use crate::common::{TestMount, alone};
use std::net::TcpListener;
use std::time::Duration;

/// umount(8) returns when the kernel has unmounted, which is before the daemon has ended and its address is free.
#[test]
fn the_address_of_metrics_may_be_free_a_moment_late() {
    let _alone = alone();
    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = held.local_addr().expect("its address").to_string();
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(held);
    });
    let mount = TestMount::with(60, |c| c.http = Some(address));
    late.join().expect("released");
    let Some(m) = mount else { return };
    std::fs::write(m.join("f"), "works").expect("written");
}
