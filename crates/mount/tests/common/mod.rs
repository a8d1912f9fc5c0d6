//! A RAM file system mounted on a temporary directory by a thread of this process, with a watchdog: whatever hangs is
//! aborted, and no mount stays behind.
#![allow(dead_code)]

use glowfs_mount::{FuseTransport, MountConfig, ram, ram::RamFs};
use glowfs_rt::{Duration, real};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// One test at a time, which begins without switches: for those that set some ([`ram::switch_off`]).
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    ram::switch_off();
    one
}

/// Whether these are the tests of `uring.rs`.
const URING: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"uring");
/// Whether these are the tests of `write_back.rs`.
const WRITE_BACK: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"write_back");
/// The kernel's switch of FUSE over io_uring, for all mounts of the machine.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The kernel offers FUSE over io_uring to mounts that are made as long as this lives; then the switch is as it was.
struct Offered;

/// How many live, and whether the switch was off before the first.
static OFFERED: Mutex<(u32, bool)> = Mutex::new((0, false));

impl Offered {
    fn new() -> Option<Self> {
        let mut all = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
        if all.0 == 0 {
            let Ok(now) = std::fs::read_to_string(SWITCH) else {
                eprintln!("SKIPPED: this kernel has no FUSE over io_uring ({SWITCH} is missing)");
                return None;
            };
            all.1 = now.trim() != "Y";
            if all.1
                && let Err(e) = std::fs::write(SWITCH, "Y")
            {
                eprintln!("SKIPPED: FUSE over io_uring is off, and {SWITCH} cannot be set: {e}");
                return None;
            }
        }
        all.0 += 1;
        Some(Self)
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        let mut all = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
        all.0 -= 1;
        if all.0 == 0 && all.1 {
            let _ = std::fs::write(SWITCH, "N");
        }
    }
}

/// A mount in use by a test.
pub struct TestMount {
    _dir: tempfile::TempDir,
    path: PathBuf,
    connection: Option<u32>,
    transport: &'static str,
    done: Arc<AtomicBool>,
    daemon: Option<JoinHandle<()>>,
}

impl TestMount {
    /// Mounts, or says why not (then the test is skipped). Aborted after `seconds`.
    pub fn new(seconds: u64) -> Option<Self> {
        Self::with(seconds, |_| ())
    }
    /// The same with changes of the configuration.
    pub fn with(seconds: u64, change: impl FnOnce(&mut MountConfig)) -> Option<Self> {
        let transport = if URING { FuseTransport::Uring } else { FuseTransport::Dev };
        let write_back = Some(WRITE_BACK);
        let mut config =
            MountConfig { fuse_transport: transport, write_back, ..MountConfig::default() };
        change(&mut config);
        let runtime = config.runtime();
        let mount = Self::with_runtime(seconds, |_| config, runtime)?;
        assert_eq!(mount.transport, if URING { "io_uring" } else { "/dev/fuse" });
        Some(mount)
    }
    /// The same on a runtime made so.
    pub fn with_runtime(
        seconds: u64,
        change: impl FnOnce(MountConfig) -> MountConfig,
        runtime: real::Config,
    ) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs /dev/fuse and root");
            return None;
        }
        let _offered = if URING { Some(Offered::new()?) } else { None };
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().canonicalize().expect("its path").join("mnt");
        std::fs::create_dir(&path).expect("mount point");
        let config = MountConfig { fuse_transport: FuseTransport::Uring, ..MountConfig::default() };
        let config = MountConfig { mountpoint: path.clone(), stop_ms: 2000, ..change(config) };
        let done = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let stop = done.clone();
        let daemon = std::thread::spawn(move || {
            let work = move |rt| async move {
                let fs = RamFs::new(&rt);
                match glowfs_mount::ram::start(&rt, config, fs).await {
                    Ok(running) => {
                        let _ = tell.send(Ok((running.connection(), running.transport())));
                        while !stop.load(SeqCst) {
                            rt.sleep(Duration::from_millis(5)).await;
                        }
                        running.stop().await;
                    }
                    Err(e) => {
                        let _ = tell.send(Err(e));
                    }
                }
            };
            real::run_with(runtime, work).expect("a runtime");
        });
        let (connection, transport) = match told.recv().expect("the daemon lives") {
            Ok(started) => started,
            Err(e) if e.to_string().contains("not permitted") => {
                eprintln!("SKIPPED: {e}");
                return None;
            }
            Err(e) => panic!("{e}"),
        };
        watch(seconds, connection, done.clone());
        Some(Self { _dir: dir, path, connection, transport, done, daemon: Some(daemon) })
    }
    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// How requests come.
    pub fn transport(&self) -> &'static str {
        self.transport
    }
    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

fn watch(seconds: u64, connection: Option<u32>, done: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        for _ in 0..seconds * 10 {
            std::thread::sleep(Duration::from_millis(100));
            if done.load(SeqCst) {
                return;
            }
        }
        eprintln!("TIME-OUT after {seconds} s: aborting the FUSE connection");
        if let Some(c) = connection {
            abort(c);
        }
    });
}

/// Ends a connection in the kernel: all that waits for an answer fails. Where the kernel's directory for that is not mounted (so it is in many
/// containers), it is mounted first: without it a test that hangs would hang for ever.
fn abort(connection: u32) {
    const ALL: &str = "/sys/fs/fuse/connections";
    let file = format!("{ALL}/{connection}/abort");
    if !Path::new(&file).exists() {
        let _ = std::process::Command::new("mount").args(["-t", "fusectl", "none", ALL]).status();
    }
    if let Err(e) = std::fs::write(&file, b"1") {
        eprintln!("{file}: {e}");
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        self.done.store(true, SeqCst);
        if let Some(daemon) = self.daemon.take() {
            let failed = daemon.join().is_err();
            if failed {
                let _ = std::process::Command::new("umount").arg("-l").arg(&self.path).status();
                assert!(std::thread::panicking(), "the daemon panicked");
            }
        }
    }
}

/// Runs a shell script in the mount; it must succeed.
pub fn sh(dir: &Path, script: &str) -> String {
    let out = std::process::Command::new("timeout")
        .args(["60", "bash", "-euo", "pipefail", "-c", script])
        .current_dir(dir)
        .output()
        .expect("bash runs");
    let text =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{script}\n{}\n{text}", out.status);
    text
}

/// Whether a program is installed; says so if not.
pub fn has(program: &str) -> bool {
    let found =
        std::process::Command::new("which").arg(program).output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}
