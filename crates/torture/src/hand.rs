//! The hand that runs commands: a shell started before any file of a mount is open.
//!
//! A child process has copies of our open files until it execs, and closing those of a mount waits for the metadata service.
//! So whoever starts a process while that service is away would wait for it, though the command may be to bring it back.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The longest that a command may take.
const COMMAND_BOUND: Duration = Duration::from_secs(180);

/// A shell, and where it leaves the output of its commands.
pub struct Hand {
    shell: Child,
    to: Option<ChildStdin>,
    from: Receiver<String>,
    out: PathBuf,
    err: PathBuf,
}

impl Hand {
    /// Starts it; `dir` takes the output of the commands, in files that begin with `name`.
    pub fn new(dir: &Path, name: &str) -> Result<Self> {
        let mut shell = Command::new("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .current_dir("/")
            // Ctrl-C is not for it: what it runs ends by itself, and the guard needs no half-done commands.
            .process_group(0)
            .spawn()
            .context("starting a shell")?;
        let to = shell.stdin.take();
        let out = shell.stdout.take().context("the shell's output")?;
        let (tell, from) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(|l| l.ok()) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let file = |end: &str| dir.join(format!("{name}.{end}"));
        Ok(Self { shell, to, from, out: file("out"), err: file("err") })
    }
    /// Runs a command to its end; its standard output, or an error with what it said.
    pub fn run(&mut self, argv: &[impl AsRef<OsStr>]) -> Result<String> {
        let line: Vec<String> = argv.iter().map(|a| quoted(a.as_ref())).collect();
        let line = line.join(" ");
        let script = format!(
            "( {line} ) </dev/null >{} 2>{}; echo $?\n",
            quoted(self.out.as_ref()),
            quoted(self.err.as_ref())
        );
        let code = self.say(&script)?;
        let text = std::fs::read_to_string(&self.out).unwrap_or_default();
        if code != "0" {
            bail!("{line}: exit code {code}: {text}{}", std::fs::read_to_string(&self.err)?);
        }
        Ok(text)
    }
    /// Starts a command in the background, its output in `log`; its process id.
    pub fn start(&mut self, argv: &[impl AsRef<OsStr>], log: &Path) -> Result<u32> {
        let line: Vec<String> = argv.iter().map(|a| quoted(a.as_ref())).collect();
        let log = quoted(log.as_ref());
        let pid = self.say(&format!("{} </dev/null >>{log} 2>&1 & echo $!\n", line.join(" ")))?;
        pid.parse().with_context(|| format!("no process id: {pid}"))
    }
    fn say(&mut self, script: &str) -> Result<String> {
        let to = self.to.as_mut().context("the shell is gone")?;
        to.write_all(script.as_bytes()).context("telling the shell")?;
        match self.from.recv_timeout(COMMAND_BOUND) {
            Ok(answer) => Ok(answer),
            Err(_) => {
                // A late answer would be taken for that of the next command: this shell is of no use any more.
                self.to = None;
                let _ = self.shell.kill();
                bail!("no end within {COMMAND_BOUND:?} of: {script}")
            }
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        // End of input ends the shell, after the command that it runs.
        drop(self.to.take());
        let _ = self.shell.wait();
    }
}

fn quoted(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_and_fail_and_start() {
        let dir = tempfile::tempdir().expect("directory");
        let mut h = Hand::new(dir.path(), "hand").expect("shell");
        assert_eq!(h.run(&["echo", "it's", "$HOME"]).expect("echo"), "it's $HOME\n");
        let e = h.run(&["ls", "/nowhere/at/all"]).expect_err("not there");
        assert!(e.to_string().contains("/nowhere/at/all"), "{e}");
        let pid = h.start(&["sleep", "100"], &dir.path().join("log")).expect("start");
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        h.run(&["kill".to_owned(), pid.to_string()]).expect("kill");
    }
}
