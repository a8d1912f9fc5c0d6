//! A process that is known by its number and by when it began: a number alone may be another process by the time it is signalled.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fmt;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in clock ticks since the machine did (field 22 of `/proc/PID/stat`).
    pub began: u64,
}

impl Process {
    /// The one that has this number now.
    pub fn now(pid: u32) -> Result<Self> {
        let (_, began) = stat(pid).with_context(|| format!("process {pid} does not run"))?;
        Ok(Self { pid, began })
    }
    /// The letter of its state, if it is there still.
    pub fn state(&self) -> Option<char> {
        stat(self.pid).filter(|(_, began)| *began == self.began).map(|(state, _)| state)
    }
    /// Its program, for a look at who it is.
    pub fn program(&self) -> Result<String> {
        let exe = std::fs::read_link(format!("/proc/{}/exe", self.pid))
            .with_context(|| format!("{self} does not run any more"))?;
        Ok(exe.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }
    /// Sends it a signal, and nobody else.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let number = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let handle = pidfd_open(number.context("no process id")?, PidfdFlags::empty())
            .with_context(|| format!("{self} does not run any more"))?;
        // Looked at after it is held: from here on the handle means this process, whatever becomes of the number.
        if self.state().is_none() {
            bail!("{self} does not run any more; its number is another process's");
        }
        pidfd_send_signal(handle, signal).with_context(|| format!("signalling {self}"))
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (begun at tick {})", self.pid, self.began)
    }
}

/// State and start of a process.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in brackets and may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn another_process_of_the_same_number_is_left_alone() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("a process");
        let real = Process::now(child.id()).expect("it runs");
        assert!(real.state().is_some() && real.program().expect("its program") == "sleep");
        let former = Process { began: real.began - 1, ..real };
        assert_eq!(former.state(), None);
        let refused = former.signal(Signal::KILL).expect_err("not that one").to_string();
        assert!(refused.contains("another process"), "{refused}");
        assert!(child.try_wait().expect("its state").is_none(), "it lives");
        real.signal(Signal::KILL).expect("killed");
        assert!(!child.wait().expect("its end").success());
        assert!(real.signal(Signal::KILL).is_err() && real.state().is_none());
    }
}
