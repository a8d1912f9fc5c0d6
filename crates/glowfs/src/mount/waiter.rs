//! [`Waiter`]: the daemon's end of the pipe on which the command that started it waits for one answer ([`Answer`]).
//!
//! The pipe is the daemon's standard output, so no descriptor has to be named. It ends without an answer if the daemon dies, and breaks if the
//! command does.

use anyhow::{Context, Error, Result};
use glowfs_rt::Rt;
use std::cell::RefCell;
use std::fs::File;
use std::future::{pending, poll_fn};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// What the daemon says when it serves. Anything else is why it does not.
const READY: &str = "ready\n";

/// How the mounting went, as read from the pipe to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It serves.
    Ready,
    /// It does not, for this reason.
    Failed(String),
    /// It ended without a word.
    Silence,
}

impl Answer {
    /// What `text` means.
    pub fn of(text: &[u8]) -> Self {
        match String::from_utf8_lossy(text).trim_end() {
            "" => Self::Silence,
            t if t == READY.trim_end() => Self::Ready,
            reason => Self::Failed(reason.to_owned()),
        }
    }
}

/// See the module.
pub struct Waiter(RefCell<Option<File>>);

impl Waiter {
    /// Nobody waits.
    pub fn nobody() -> Self {
        Self(RefCell::new(None))
    }
    /// Takes standard output; what is printed there from now on is thrown away.
    pub fn on_stdout() -> Result<Self> {
        let taken = || -> io::Result<File> {
            let pipe = io::stdout().as_fd().try_clone_to_owned()?;
            let null = File::options().write(true).open("/dev/null")?;
            // SAFETY: dup2 touches no memory; the descriptor that it closes is standard output, which nothing owns.
            match unsafe { libc::dup2(null.as_raw_fd(), libc::STDOUT_FILENO) } {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(pipe.into()),
            }
        };
        Ok(Self(RefCell::new(Some(taken().context("taking over standard output")?))))
    }
    /// Whether somebody waits for an answer.
    pub fn waits(&self) -> bool {
        self.0.borrow().is_some()
    }
    /// Resolves when whoever waited is gone.
    pub async fn gone(&self, rt: &Rt) {
        let pipe = self.0.borrow().as_ref().map(|pipe| pipe.as_fd().try_clone_to_owned());
        // That it cannot be watched is noticed at the answer.
        let Some(Ok(pipe)) = pipe else { return pending().await };
        let watched = Watched { rt, pipe };
        // The end that is written to only becomes «readable» when the other one is closed.
        if poll_fn(|cx| rt.poll_readable(watched.pipe.as_fd(), cx)).await.is_err() {
            pending().await
        }
    }
    /// Says that the mount serves.
    pub fn told_ready(&self) -> io::Result<()> {
        match self.0.take() {
            Some(mut pipe) => pipe.write_all(READY.as_bytes()),
            None => Ok(()),
        }
    }
    /// Says why it does not, if that was not decided before.
    pub fn told_failure(&self, reason: &Error) {
        if let Some(mut pipe) = self.0.take() {
            // To nobody, if he is gone.
            let _ = pipe.write_all(format!("{reason:#}\n").as_bytes());
        }
    }
}

/// A descriptor that the runtime watches until it is closed.
struct Watched<'a> {
    rt: &'a Rt,
    pipe: OwnedFd,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.rt.forget_readable(self.pipe.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        assert_eq!(Answer::of(b""), Answer::Silence);
        assert_eq!(Answer::of(READY.as_bytes()), Answer::Ready);
        assert_eq!(Answer::of(b"no\nroom\n"), Answer::Failed("no\nroom".into()));
        assert_eq!(Answer::of(b"rea"), Answer::Failed("rea".into()), "cut short");
    }
}
