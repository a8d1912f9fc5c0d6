//! Callers that get a signal while the cluster does not answer.

use crate::common::{TestMount, alone};
use glowfs_mount::ram::STATFS_WAITS;
use std::os::unix::thread::JoinHandleExt;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, SeqCst);
}

/// SIGUSR1 is handled, and what it interrupts goes on.
fn handle_sigusr1() {
    // SAFETY: all zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is filled in, and its handler does nothing but an atomic addition.
    let done = unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) };
    assert_eq!(done, 0);
}

/// statfs(2), stat(2) and their like know no EINTR: whoever handles a signal meanwhile waits on, whoever is killed is let go.
#[test]
fn only_who_is_killed_is_let_go() {
    let _alone = alone();
    let Some(m) = TestMount::with(60, |c| c.interrupt_grace_ms = 100) else { return };
    handle_sigusr1();
    STATFS_WAITS.store(true, SeqCst);
    let path = m.path().to_owned();
    let asking = std::thread::spawn(move || rustix::fs::statfs(path).map(|s| s.f_blocks));
    let mut killed =
        Command::new("stat").arg("-f").arg(m.path()).stdout(Stdio::null()).spawn().expect("runs");
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: the thread has not been joined, so its id is that of a thread.
    assert_eq!(unsafe { libc::pthread_kill(asking.as_pthread_t(), libc::SIGUSR1) }, 0);
    killed.kill().expect("killed");
    let since = Instant::now();
    killed.wait().expect("it ended");
    assert!(since.elapsed() < Duration::from_secs(10), "it was let go after {:?}", since.elapsed());
    // Longer than the grace, and than the pause between looks.
    std::thread::sleep(Duration::from_secs(2));
    assert!(!asking.is_finished(), "it was answered while nobody knew the answer");
    STATFS_WAITS.store(false, SeqCst);
    let blocks = asking.join().expect("it ended").expect("no EINTR");
    assert!(blocks > 0 && SIGNALS.load(SeqCst) == 1);
}
