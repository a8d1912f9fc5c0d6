//! Starting, watching and ending the cluster's processes; only those, by pid and start time.

use crate::state::ProcessId;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// `glowfs ARGS`, of this very binary.
pub fn glowfs(args: &[String]) -> Result<Command> {
    let binary = std::env::current_exe().context("finding the glowfs binary")?;
    let mut command = Command::new(binary);
    command.args(args);
    Ok(command)
}

/// Starts a command as a process of its own session, its output appended to `log`.
pub fn spawn(mut command: Command, log: &Path) -> Result<ProcessId> {
    let out = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("opening the log {}", log.display()))?;
    let err = out.try_clone()?;
    command.stdin(Stdio::null()).stdout(out).stderr(err).current_dir("/");
    // SAFETY: between fork and exec only setsid is called, which is async-signal-safe (signal-safety(7)).
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
    let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let pid = child.id();
    let start_ticks = start_ticks(pid).unwrap_or(0);
    // The child is not waited for: this command ends soon and init takes over. Until then `alive` treats a
    // zombie as dead.
    Ok(ProcessId { pid, start_ticks })
}

/// Fields 3 (state), 22 (start time) and 20 (threads) of /proc/PID/stat, see proc_pid_stat(5).
fn stat(pid: u32) -> Option<(char, u64, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &text[text.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let threads = fields.nth(16)?.parse().ok()?;
    Some((state, fields.nth(1)?.parse().ok()?, threads))
}

fn start_ticks(pid: u32) -> Option<u64> {
    stat(pid).map(|s| s.1)
}

/// The state letter of a live process of ours (`T` is stopped), or `None` if it is gone.
pub fn alive(p: ProcessId) -> Option<char> {
    match stat(p.pid) {
        // The first thread may be a zombie while others still end and hold files, locks and ports.
        Some((state, start, threads))
            if start == p.start_ticks && (!matches!(state, 'Z' | 'X') || threads > 1) =>
        {
            Some(state)
        }
        _ => None,
    }
}

/// Sends a signal by name (`KILL`, `SIGTERM`, `9`), if the process is still ours.
pub fn signal(p: ProcessId, name: &str) -> Result<()> {
    use rustix::process::Signal;
    let word = name.to_ascii_uppercase();
    let signal = match word.strip_prefix("SIG").unwrap_or(&word) {
        "KILL" | "9" => Signal::KILL,
        "TERM" | "15" => Signal::TERM,
        "INT" | "2" => Signal::INT,
        "STOP" | "19" => Signal::STOP,
        "CONT" | "18" => Signal::CONT,
        "HUP" | "1" => Signal::HUP,
        "ABRT" | "6" => Signal::ABORT,
        "QUIT" | "3" => Signal::QUIT,
        "USR1" | "10" => Signal::USR1,
        "USR2" | "12" => Signal::USR2,
        _ => bail!(
            "unknown signal «{name}»; use KILL, TERM, INT, STOP, CONT, HUP, QUIT, ABRT, USR1 or USR2"
        ),
    };
    if alive(p).is_none() {
        return Ok(());
    }
    let pid =
        i32::try_from(p.pid).ok().and_then(rustix::process::Pid::from_raw).context("bad pid")?;
    match rustix::process::kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(e) => Err(e).with_context(|| format!("signalling process {}", p.pid)),
    }
}

/// Waits until the process is gone; false after `bound`.
pub fn wait_gone(p: ProcessId, bound: Duration) -> bool {
    let end = Instant::now() + bound;
    while alive(p).is_some() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The last lines of a log, for error messages.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_process_is_told_from_a_later_one() {
        let me = std::process::id();
        let p = ProcessId { pid: me, start_ticks: start_ticks(me).expect("own stat") };
        assert!(alive(p).is_some());
        assert!(alive(ProcessId { start_ticks: p.start_ticks + 1, ..p }).is_none());
    }

    #[test]
    fn unknown_signals_are_refused() {
        let gone = ProcessId { pid: u32::MAX, start_ticks: 1 };
        assert!(signal(gone, "NONSENSE").is_err());
        assert!(signal(gone, "sigkill").is_ok(), "a process that is gone is no error");
    }
}
