//! Programs that speak to the storage services through memory of their own, and change it while they should not.

use crate::harness::{Cluster, sh};
use glowfs_client::{Client, ClientConfig, OpenHow};
use glowfs_rt::real;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// Writes, and bytes of each: below the bound of what goes into the log, and above.
const WRITES: u64 = 400;
const SMALL: usize = 16 << 10;
const LARGE: usize = 256 << 10;

/// Turns a byte over and over, until told to end.
fn spoil(at: *mut u8, ended: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let at = at as usize;
    std::thread::spawn(move || {
        // SAFETY: whoever joins this thread holds a buffer in this memory until then; nobody reads it but as plain bytes.
        let byte = unsafe { AtomicU8::from_ptr(at as *mut u8) };
        while !ended.load(Ordering::Relaxed) {
            byte.fetch_xor(0x55, Ordering::Relaxed);
            for _ in 0..2000 {
                std::hint::spin_loop();
            }
        }
    })
}

/// The chunk is its own affair: whatever it writes, all replicas have the same, and every target goes on serving.
#[test]
fn a_client_that_changes_its_memory_under_a_write_puts_no_target_offline() {
    let c = Cluster::up("shared-memory");
    sh(&c.mnt, "mkdir m && chmod 777 m && truncate -s 64M m/f && chown 1000:1000 m/f");
    let token = c.admin(&["user-add", "1000", "mallory"]);
    let token = token["token"].as_str().expect("a token").to_owned();
    let mgmtd = vec![c.status()["mgmtd"][0].as_str().expect("address").to_owned()];
    let written = real::run(|rt| async move {
        let config = ClientConfig { mgmtd, token, ..ClientConfig::default() };
        let client: Rc<Client> =
            Client::connect(&rt, config.on_this_host()).await.expect("connected");
        let how = OpenHow { uid: 1000, gid: 1000, read: true, write: true, ..OpenHow::default() };
        let file = client.open_path("/m/f", &how).await.expect("opened");
        let mut written = 0;
        for len in [SMALL, LARGE] {
            let mut buf = rt.alloc(len);
            buf.fill(7);
            let at = buf.as_mut_ptr();
            let buf = buf.freeze();
            assert!(buf.region().is_some(), "memory that is shared");
            let ended = Arc::new(AtomicBool::new(false));
            let spoiler = spoil(at, ended.clone());
            for i in 0..WRITES {
                let write = file.write((i * LARGE as u64) % (64 << 20), buf.clone());
                let done = rt.timeout(glowfs_rt::Duration::from_secs(60), write).await;
                written += usize::from(done.is_ok_and(|r| r.is_ok()));
            }
            ended.store(true, Ordering::Relaxed);
            spoiler.join().expect("ended");
        }
        client.close().await;
        written
    });
    assert!(written > 0, "some of them were right");
    c.wait_serving(Duration::from_secs(30));
    let failed = c.in_logs("target failed");
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(c.metric("storage", "glowfs_storage_diverged_total"), 0.0);
    // Every chunk can be read, to its end.
    sh(&c.mnt, "cat m/f > /dev/null");
    assert_eq!(c.admin(&["damaged"]), serde_json::json!([]));
}
