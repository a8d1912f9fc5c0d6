//! [`Maker`]: which process made something, so that a forked child does not take its parent's for its own.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How often this process is a child of one that used this library.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Async-signal-safe, as what runs in a child of a process of many threads must be.
extern "C" fn forked() {
    FORKS.fetch_add(1, Relaxed);
}

/// The process that made something.
#[derive(Clone, Copy)]
pub(crate) struct Maker {
    process: u32,
    forks: u32,
}

impl Maker {
    pub fn this() -> Self {
        static HEAR: Once = Once::new();
        // SAFETY: the handler touches an atomic number only. (Where there is no room for it, the number of the process is what tells.)
        HEAR.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(forked));
        });
        Self { process: std::process::id(), forks: FORKS.load(Relaxed) }
    }
    /// Whether it is this process.
    pub fn is_this(self) -> bool {
        self.is_likely_this() && self.process == std::process::id()
    }
    /// EINVAL if it is not.
    pub fn check(self) -> io::Result<()> {
        match self.is_this() {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }
    /// Whether it is this process, as far as can be told without a system call, of which rings have none for an operation: children of fork(2) are known, not those of a bare clone(2).
    pub fn is_likely_this(self) -> bool {
        self.forks == FORKS.load(Relaxed)
    }
}
