//! Both ends of a user-space ring in one thread: an operation prepared, taken, completed, seen.

use glowfs_types::{Error, Result, Status};
use glowfs_usrbio::{Completion, Consumer, Producer, SharedMemory, Submission, ring_bytes};
use std::os::fd::AsFd;

/// Entries of the ring, all of them used at a time.
const ENTRIES: u32 = 64;

/// So many operations.
pub fn rounds(count: u64) -> Result<()> {
    let mut application = Producer::new(ENTRIES)?;
    let memory = application.memory().as_fd().try_clone_to_owned()?;
    let memory = SharedMemory::adopt(memory, ring_bytes(ENTRIES))?;
    let broken = |what: String| Error::new(Status::Internal, what);
    let daemon = Consumer::new(memory, ENTRIES).map_err(|e| broken(e.to_string()))?;
    let mut seen = 0;
    while seen < count {
        for user in 0..u64::from(ENTRIES).min(count - seen) {
            application.prepare(Submission { kind: 1, user, ..Submission::default() });
        }
        application.submit()?;
        for _ in 0..daemon.available().map_err(|e| broken(e.to_string()))? {
            let s = daemon.take();
            daemon.put(Completion { user: s.user, result: 0 });
        }
        daemon.tell();
        while application.take().is_some() {
            seen += 1;
        }
    }
    Ok(())
}
