//! The library's network thread: started with the first engine of a process, stopped when the process ends.
//!
//! FoundationDB allows one, once: it cannot be started again, nor can a second library be used beside the first. Must never: let the process end while the thread runs.

use super::library::Library;
use glowfs_types::{Error, Result, Status};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

struct Network {
    path: PathBuf,
    library: &'static Library,
    /// Taken when it is stopped.
    thread: Option<JoinHandle<()>>,
}

static NETWORK: Mutex<Option<Network>> = Mutex::new(None);

/// The library at `path`, with its network running.
pub fn start(path: &Path) -> Result<&'static Library> {
    let mut network = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = &*network {
        if running.thread.is_none() {
            return Err(Error::new(Status::ShuttingDown, "this process is ending"));
        }
        if running.path != path {
            let (has, wants) = (running.path.display(), path.display());
            let e = format!(
                "this process has loaded {has} and cannot load {wants} as well; name one in all configurations"
            );
            return Err(Error::new(Status::InvalidArgument, e));
        }
        return Ok(running.library);
    }
    let library: &'static Library = Box::leak(Box::new(Library::open(path)?));
    let failed = |what: &str, why: String| {
        let path = library.path();
        Error::new(Status::Internal, format!("{path}: {what}: {why}"))
    };
    // SAFETY: the version is selected, and this is done once (under the lock, and what follows cannot bring us here again but after a failure).
    let code = unsafe { (library.fdb_setup_network)() };
    if code != 0 {
        return Err(failed("setting up the network", library.text(code)));
    }
    let run = move || {
        // SAFETY: the network is set up, and this is the only thread that runs it.
        let code = unsafe { (library.fdb_run_network)() };
        if code != 0 {
            tracing::error!(code, "FoundationDB's network thread ended: {}", library.text(code));
        }
    };
    let thread = std::thread::Builder::new()
        .name("fdb-network".into())
        .spawn(run)
        .map_err(|e| failed("starting the network thread", e.to_string()))?;
    // SAFETY: `stop` is a function without arguments that does not unwind. It runs before what the library registered when it was loaded.
    if unsafe { libc::atexit(stop) } != 0 {
        tracing::warn!("FoundationDB's network thread will not be stopped at the end");
    }
    *network = Some(Network { path: path.to_owned(), library, thread: Some(thread) });
    Ok(library)
}

/// At the end of the process: the library must not run while what it stands on is taken down.
extern "C" fn stop() {
    // Who holds the lock now is starting an engine while the process ends: it must not be waited for.
    let Ok(mut network) = NETWORK.try_lock() else { return };
    let Some(running) = &mut *network else { return };
    let Some(thread) = running.thread.take() else { return };
    // SAFETY: the network was set up; this may be called on any thread.
    let code = unsafe { (running.library.fdb_stop_network)() };
    if code == 0 {
        // A panic of that thread was reported already.
        let _ = thread.join();
    }
}
