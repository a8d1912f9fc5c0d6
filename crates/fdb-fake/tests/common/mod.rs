//! Which FoundationDB the tests run against: the stand-in that cargo has just built, or with `GLOWFS_FDB_CLUSTER_FILE` a real one.
#![allow(dead_code)]

pub use glowfs_fdb_fake::faults::Fault;
use glowfs_kv::{Engine, Fdb, FdbConfig};
use glowfs_rt::Rt;
use glowfs_types::ClusterId;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The cluster file of a real FoundationDB, of which the test may use all keys that begin with `glowfs/`.
pub const CLUSTER_FILE: &str = "GLOWFS_FDB_CLUSTER_FILE";
/// The library to go with it, if it is not the usual one.
pub const LIBRARY: &str = "GLOWFS_FDB_LIBRARY";

/// Whether it is a real one.
pub fn real() -> Option<PathBuf> {
    std::env::var_os(CLUSTER_FILE).map(PathBuf::from)
}

/// Where cargo put the stand-in.
pub fn fake() -> PathBuf {
    let exe = std::env::current_exe().expect("this test's own path");
    let deps = exe.parent().expect("target/PROFILE/deps");
    let places = [deps, deps.parent().expect("target/PROFILE")];
    let found = places.iter().map(|p| p.join("libglowfs_fdb_fake.so")).find(|p| p.exists());
    found.expect("cargo builds the library for its package's tests")
}

/// A database that no other test of this process uses.
pub struct Place {
    _dir: tempfile::TempDir,
    pub cluster_file: PathBuf,
    pub library: Option<PathBuf>,
    cluster: ClusterId,
}

impl Place {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let dir = tempfile::tempdir().expect("a directory");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = u128::from(std::process::id()) << 64 | u128::from(number);
        let (cluster_file, library) = match real() {
            Some(file) => (file, std::env::var_os(LIBRARY).map(PathBuf::from)),
            None => {
                let file = dir.path().join("fdb.cluster");
                std::fs::write(&file, "# a comment\ntest:abc@127.0.0.1:4500\n").expect("written");
                (file, Some(fake()))
            }
        };
        Self { _dir: dir, cluster_file, library, cluster: ClusterId(id) }
    }
    pub fn config(&self, name: &str) -> FdbConfig {
        FdbConfig {
            cluster_file: self.cluster_file.clone(),
            library: self.library.clone(),
            cluster: self.cluster,
            name: name.into(),
        }
    }
    pub fn open(&self, rt: &Rt, name: &str) -> Rc<dyn Engine> {
        Rc::new(Fdb::open(rt, &self.config(name)).expect("the library is there"))
    }
}

fn function(path: &Path, name: &str) -> *mut c_void {
    let path = CString::new(path.to_str().expect("text")).expect("no zero");
    let name = CString::new(name).expect("no zero");
    // SAFETY: C strings; it is the library that cargo built, which is loaded already or may be.
    let found = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// Makes a fault strike every n-th time; 0: never. One test at a time: they are the process's.
pub fn every(fault: Fault, n: u64) {
    static F: OnceLock<usize> = OnceLock::new();
    let f = *F.get_or_init(|| function(&fake(), "glowfs_fdb_fake_every").expose_provenance());
    let f = std::ptr::with_exposed_provenance::<c_void>(f);
    // SAFETY: found in our own library, of which `faults.rs` declares it `extern "C" fn(u32, u64)`.
    let f: extern "C" fn(u32, u64) = unsafe { std::mem::transmute(f) };
    f(fault as u32, n);
}

/// How often it struck.
pub fn struck(fault: Fault) -> u64 {
    let f = function(&fake(), "glowfs_fdb_fake_struck");
    // SAFETY: found in our own library, of which `faults.rs` declares it `extern "C" fn(u32) -> u64`.
    let f: extern "C" fn(u32) -> u64 = unsafe { std::mem::transmute(f) };
    f(fault as u32)
}
