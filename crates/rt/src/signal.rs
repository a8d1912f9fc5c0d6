//! Signals as a future.

use crate::Rt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

/// A signal that asks the process to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
}

/// SIGTERM and SIGINT, taken away from their default action. Make it before other threads are started: they
/// inherit the mask.
pub struct Termination {
    fd: OwnedFd,
}

impl Termination {
    /// Blocks the signals on this thread and opens a signalfd for them.
    pub fn new() -> io::Result<Self> {
        // SAFETY: `set` is a plain structure that sigemptyset initialises before it is read; the descriptor that
        // signalfd returns is ours alone.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { fd: OwnedFd::from_raw_fd(fd) })
        }
    }
    /// Waits for the next one.
    pub async fn wait(&self, rt: &Rt) -> io::Result<Signal> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        loop {
            match rustix::io::read(&self.fd, &mut info) {
                Ok(n) if n >= 4 => {
                    let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
                    let interrupt = number == libc::SIGINT as u32;
                    return Ok(if interrupt { Signal::Interrupt } else { Signal::Terminate });
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    poll_fn(|cx| rt.poll_readable(self.fd.as_fd(), cx)).await?;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}
