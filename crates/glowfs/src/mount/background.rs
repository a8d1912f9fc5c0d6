//! `glowfs mount --background`: starts a daemon and waits until it serves.
//!
//! The daemon is this program anew and not a fork of it, for a fork of a program with threads has one thread and all its locks. It gets a
//! session of its own (no terminal reaches it, so neither does its Ctrl-C), none of our descriptors, and `/` to be in. If we are killed while
//! it begins, it finds nobody waiting, unmounts, and ends.

use super::MountArgs;
use super::waiter::Answer;
use crate::service::LogArgs;
use anyhow::{Context, Result, bail};
use glowfs_mount::MountConfig;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Where the system's log listens.
const SYSTEM_LOG: &str = "/dev/log";

/// Returns the daemon's process id when it serves.
pub fn start(args: &MountArgs) -> Result<u32> {
    // What is wrong with the arguments is said here, and paths mean what they mean here.
    let config = args.config()?;
    let mut child = spawn(&arguments(args, &config), log(args.log_file.as_deref())?)?;
    let mut said = Vec::new();
    let pipe = child.stdout.take().context("the daemon has no standard output")?;
    pipe.take(ANSWER_BYTES_MAX).read_to_end(&mut said).context("waiting for the mount daemon")?;
    match Answer::of(&said) {
        Answer::Ready => Ok(child.id()),
        Answer::Failed(reason) => {
            // It has unmounted before it ends.
            let _ = child.wait();
            bail!("{reason}")
        }
        Answer::Silence => died(child, &config.mountpoint, args.log_file.as_deref()),
    }
}

/// The longest answer of the daemon in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// It ended without a word: a mount that it has made is of no use.
fn died(mut child: Child, at: &Path, log_file: Option<&Path>) -> Result<u32> {
    let status = child.wait().context("waiting for the mount daemon")?;
    let log = log_file.map_or_else(String::new, |f| format!("; its log is {}", f.display()));
    let left = match glowfs_mount::release_dead(at) {
        Ok(_) => String::new(),
        Err(e) => format!("; what it left cannot be released ({e}): umount -l {}", at.display()),
    };
    bail!("the mount daemon ended before it served ({status}){log}{left}")
}

fn spawn(arguments: &[OsString], log: Stdio) -> Result<Child> {
    let binary = std::env::current_exe().context("finding the glowfs binary")?;
    let mut command = Command::new(&binary);
    // Under the name of mount(8)'s helper it would take other arguments.
    command.arg0("glowfs").args(arguments).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    // SAFETY: between fork and exec only two system calls are made, which are async-signal-safe and touch no memory.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() == -1 {
                return Err(std::io::Error::last_os_error());
            }
            // What our caller left open (locks, pipes) is not the daemon's. Kernels before 5.11 cannot say so: then it is kept.
            let (first, last) = (libc::STDERR_FILENO + 1, libc::c_uint::MAX);
            libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    command.spawn().with_context(|| format!("starting {}", binary.display()))
}

/// Where the daemon's standard error goes, and with it its log.
fn log(file: Option<&Path>) -> Result<Stdio> {
    match file {
        Some(path) => {
            let file = File::options().create(true).append(true).open(path);
            Ok(file.with_context(|| format!("opening the log {}", path.display()))?.into())
        }
        None => Ok(system_log(Path::new(SYSTEM_LOG)).map_or_else(Stdio::null, Stdio::from)),
    }
}

/// A socket to the system's log, for which each line written is a message. A full one loses lines, and does not hold the daemon up.
fn system_log(path: &Path) -> Option<OwnedFd> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(path).ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket.into())
}

/// The same command line for the daemon, all paths absolute.
fn arguments(args: &MountArgs, config: &MountConfig) -> Vec<OsString> {
    // Every field, so that none is forgotten. Paths that the configuration has, too, are said as they were understood here.
    let MountArgs {
        mountpoint: _,
        mgmtd,
        token_file: _,
        config: file,
        read_only,
        timeout,
        sets,
        background: _,
        log_file: _,
        announce: _,
        log: LogArgs { log_level, log_json },
    } = args;
    let mut out: Vec<OsString> = vec!["mount".into(), "--announce".into()];
    let mut option = |name: &str, value: &OsStr| {
        let mut word = OsString::from(format!("--{name}="));
        word.push(value);
        out.push(word);
    };
    if let Some(file) = file {
        let absolute = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        option("config", absolute.as_os_str());
    }
    mgmtd.iter().for_each(|m| option("mgmtd", m.as_ref()));
    option("token-file", config.token_file.as_os_str());
    if let Some(seconds) = timeout {
        option("timeout", seconds.to_string().as_ref());
    }
    sets.iter().for_each(|set| option("set", set.as_ref()));
    option("log-level", log_level.as_ref());
    out.extend(log_json.then(|| "--log-json".into()));
    out.extend(read_only.then(|| "--read-only".into()));
    out.extend(["--".into(), config.mountpoint.clone().into()]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        mount: MountArgs,
    }
    fn parse(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> MountArgs {
        Line::try_parse_from(words).expect("a command line").mount
    }

    /// The daemon must understand what it is told as the user meant it.
    #[test]
    fn the_daemon_is_told_all() {
        let given = parse([
            "mount",
            "--background",
            "--mgmtd",
            "a:1",
            "--mgmtd=b:2",
            "--token-file",
            "tok",
            "--config",
            "c.toml",
            "--read-only",
            "--timeout",
            "7",
            "--set",
            "source=-x=y",
            "--log-level",
            "debug",
            "--log-json",
            "--log-file",
            "log",
            "--",
            "-odd name",
        ]);
        let here = std::env::current_dir().expect("a directory");
        let config = MountConfig {
            mountpoint: here.join("-odd name"),
            token_file: here.join("tok"),
            ..MountConfig::default()
        };
        let mut words = arguments(&given, &config);
        assert_eq!(words.remove(0), "mount");
        let told = parse(std::iter::once("glowfs".into()).chain(words));
        assert!(told.announce && !told.background && told.log_file.is_none());
        assert_eq!(told.mountpoint, Some(config.mountpoint));
        assert_eq!(told.token_file, Some(config.token_file));
        assert_eq!(told.config, Some(here.join("c.toml")));
        assert_eq!((told.mgmtd, told.sets), (given.mgmtd, given.sets));
        assert_eq!((told.read_only, told.timeout), (true, Some(7)));
        assert_eq!((told.log.log_level.as_str(), told.log.log_json), ("debug", true));
    }

    #[test]
    fn each_line_is_a_message_of_the_system_log() {
        use std::io::Write;
        let path = std::env::temp_dir().join(format!("glowfs-log-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        assert!(system_log(&path).is_none(), "no log is no error");
        let listener = UnixDatagram::bind(&path).expect("socket");
        let mut stderr = File::from(system_log(&path).expect("connected"));
        std::fs::remove_file(&path).expect("socket");
        stderr.write_all(b"mounted\n").expect("write");
        let mut buf = [0; 100];
        let n = listener.recv(&mut buf).expect("message");
        assert_eq!(&buf[..n], b"mounted\n");
    }
}
