//! `mount.glowfs`: called by mount(8) for file systems of the type `glowfs` (or `fuse.glowfs`), and so by fstab and systemd.
//!
//! It is the same program under another name (a symbolic link). It takes what mount(8) gives its helpers, returns when the file system serves, and
//! answers with mount(8)'s exit codes.

use super::options::Options;
use super::{MountArgs, background};
use crate::service::LogArgs;
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The names under which mount(8) looks for its helper.
const NAMES: [&str; 2] = ["mount.glowfs", "mount.fuse.glowfs"];
/// mount(8): «incorrect invocation or permissions».
const EXIT_USAGE: u8 = 1;
/// mount(8): «mount failure».
const EXIT_FAILURE: u8 = 32;

const USAGE: &str = "\
usage: mount.glowfs SPEC MNT [-sfnv] [-o OPTIONS] [-t TYPE]      (or: mount -t glowfs SPEC MNT -o OPTIONS)

SPEC     where mgmtd listens, HOST:PORT[,HOST:PORT...], or the absolute path of a mount's configuration file
MNT      an existing, empty directory
OPTIONS  token_file=FILE  config=FILE  log_file=FILE  log_level=LEVEL  timeout=SECONDS  ro  rw
         relatime strictatime noatime nodiratime  suid=true nosuid dev=true nodev exec noexec  allow_other
         fsname=NAME (what /proc/mounts shows, instead of SPEC), and any key of the mount's configuration as KEY=VALUE
-f       do all but mount       -s  ignore unknown options       -v  say what was done       -n  ignored

It returns when the file system serves; the daemon ends when it is unmounted. docs/operating.md has a line for fstab.";

/// Whether the program was called as mount(8)'s helper.
pub fn is_name(program: Option<&OsStr>) -> bool {
    let name = program.and_then(|p| Path::new(p).file_name());
    name.is_some_and(|n| NAMES.iter().any(|known| n == *known))
}

/// Runs as mount(8)'s helper.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let fail = |code: u8, e: &anyhow::Error| {
        eprintln!("mount.glowfs: {e:#}");
        ExitCode::from(code)
    };
    let call = match Call::parse(arguments) {
        Ok(Some(call)) => call,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(e) => return fail(EXIT_USAGE, &e),
    };
    let job = match call.understand() {
        Ok(job) => job,
        Err(e) => return fail(EXIT_USAGE, &e),
    };
    match call.perform(&job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(EXIT_FAILURE, &e),
    }
}

/// What is to be done.
enum Job {
    Mount(Box<MountArgs>),
    Remount(glowfs_mount::MountFlags),
}

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    spec: String,
    mountpoint: PathBuf,
    options: String,
    fake: bool,
    sloppy: bool,
    verbose: bool,
}

impl Call {
    /// None: it asks for help.
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Self>> {
        let mut call = Self::default();
        let mut places = Vec::new();
        let mut words = arguments.into_iter();
        let mut options_end = false;
        while let Some(word) = words.next() {
            let text = word.to_str().unwrap_or_default();
            if options_end || !text.starts_with('-') || text == "-" {
                places.push(word);
                continue;
            }
            match text {
                "--" => options_end = true,
                "--help" | "-h" => return Ok(None),
                _ => call.take_flags(text, &mut words)?,
            }
        }
        let Ok([spec, mountpoint]) = <[OsString; 2]>::try_from(places) else {
            bail!("it wants a source and a mount point\n{USAGE}");
        };
        call.spec = spec.into_string().ok().context("the source is not UTF-8")?;
        call.mountpoint = mountpoint.into();
        Ok(Some(call))
    }

    /// Letters behind one «-».
    fn take_flags(&mut self, text: &str, rest: &mut impl Iterator<Item = OsString>) -> Result<()> {
        for (at, letter) in text.char_indices().skip(1) {
            match letter {
                's' => self.sloppy = true,
                'f' => self.fake = true,
                'v' => self.verbose = true,
                'n' => {}
                'o' | 't' => {
                    let attached = Some(&text[at + 1..]).filter(|v| !v.is_empty());
                    let value = attached.map(OsString::from).or_else(|| rest.next());
                    let value = value.with_context(|| format!("-{letter} wants a value"))?;
                    if letter == 'o' {
                        let value =
                            value.into_string().ok().context("the options are not UTF-8")?;
                        self.options.push(',');
                        self.options.push_str(&value);
                    }
                    return Ok(());
                }
                'N' => bail!(
                    "-N is not offered: enter the other mount namespace with nsenter(1), and mount there"
                ),
                _ => bail!("-{letter} is unknown\n{USAGE}"),
            }
        }
        Ok(())
    }

    fn understand(&self) -> Result<Job> {
        // Of a mount that is there mount(8) names all options, also the kernel's.
        if self.options.split(',').any(|word| word == "remount") {
            let now = glowfs_mount::lets_through(&self.mountpoint).unwrap_or_default();
            return Options::parse_remount(&self.options, now).map(Job::Remount);
        }
        let mut options = Options::parse(&self.options, self.sloppy)?;
        let mut mgmtd = Vec::new();
        if self.spec.starts_with('/') {
            let file = PathBuf::from(&self.spec);
            if options.config.as_ref().is_some_and(|other| *other != file) {
                bail!("{} and `config=` name two configurations: leave one out", self.spec);
            }
            options.config = Some(file);
        } else if let Some(addresses) = addresses(&self.spec) {
            mgmtd = addresses;
        } else if options.config.is_none() {
            bail!(
                "the source {} is neither HOST:PORT of mgmtd (several separated by commas) nor the absolute path of a \
                 configuration file",
                self.spec
            );
        }
        if options.config.is_none() && options.token_file.is_none() {
            bail!(
                "`token_file=` is missing: name the file that holds the token of a user of the cluster"
            );
        }
        let source = toml::Value::String(options.source.unwrap_or_else(|| self.spec.clone()));
        options.sets.push(format!("source={source}"));
        let log = LogArgs::default();
        Ok(Job::Mount(Box::new(MountArgs {
            mountpoint: Some(self.mountpoint.clone()),
            mgmtd,
            token_file: options.token_file,
            config: options.config,
            read_only: options.read_only,
            timeout: options.timeout,
            sets: options.sets,
            background: true,
            log_file: options.log_file,
            announce: false,
            log: LogArgs { log_level: options.log_level.unwrap_or(log.log_level), ..log },
        })))
    }

    fn perform(&self, job: &Job) -> Result<()> {
        let at = self.mountpoint.display();
        match job {
            Job::Mount(args) if self.fake => args.config().map(drop)?,
            Job::Remount(_) if self.fake => {}
            Job::Mount(args) => {
                let pid = background::start(args)?;
                if self.verbose {
                    println!("mount.glowfs: {} is mounted at {at}, process {pid}", self.spec);
                }
            }
            Job::Remount(flags) => {
                let done = glowfs_mount::remount(&self.mountpoint, *flags);
                done.with_context(|| format!("remounting {at} (only root can)"))?;
            }
        }
        Ok(())
    }
}

/// `HOST:PORT[,HOST:PORT...]`, taken apart.
fn addresses(spec: &str) -> Option<Vec<String>> {
    let is_address = |text: &str| {
        let parts = text.rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    let all: Vec<_> = spec.split(',').map(str::to_owned).collect();
    all.iter().all(|a| is_address(a)).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(words: &[&str]) -> Result<Call> {
        Ok(Call::parse(words.iter().map(OsString::from))?.expect("not help"))
    }
    fn mount(words: &[&str]) -> Result<MountArgs> {
        match call(words)?.understand()? {
            Job::Mount(args) => Ok(*args),
            Job::Remount(flags) => panic!("{flags:?}"),
        }
    }
    fn refused(words: &[&str]) -> String {
        format!("{:#}", mount(words).map(|m| format!("{m:?}")).expect_err("refused"))
    }

    #[test]
    fn names() {
        for yes in ["mount.glowfs", "/sbin/mount.fuse.glowfs"] {
            assert!(is_name(Some(OsStr::new(yes))), "{yes}");
        }
        for no in ["glowfs", "/usr/bin/glowfs", "mount.glowfs2", "/mount.glowfs/glowfs"] {
            assert!(!is_name(Some(OsStr::new(no))), "{no}");
        }
        assert!(!is_name(None));
    }

    #[test]
    fn as_mount_calls_it() {
        let got =
            call(&["a:1,b:2", "/mnt/x y", "-sfnv", "-o", "rw,token_file=/t", "-t", "fuse.glowfs"]);
        let want = Call {
            spec: "a:1,b:2".into(),
            mountpoint: "/mnt/x y".into(),
            options: ",rw,token_file=/t".into(),
            fake: true,
            sloppy: true,
            verbose: true,
        };
        assert_eq!(got.expect("a call"), want);
        let other = call(&["-vn", "-oro", "--", "a:1", "-m"]).expect("a call");
        assert_eq!((other.options.as_str(), other.mountpoint), (",ro", "-m".into()));
    }

    #[test]
    fn addresses_or_a_configuration() {
        let m =
            mount(&["a:1,[::1]:2", "/m", "-o", "ro,token_file=/t,timeout=2,suid"]).expect("mount");
        assert_eq!(m.mgmtd, ["a:1", "[::1]:2"]);
        assert_eq!(m.sets, ["suid=true", "source=\"a:1,[::1]:2\""]);
        assert!(m.read_only && m.background);
        assert_eq!((m.token_file, m.timeout), (Some("/t".into()), Some(2)));
        let m = mount(&["/etc/c.toml", "/m"]).expect("mount");
        assert_eq!((m.config, m.token_file), (Some("/etc/c.toml".into()), None));
        assert_eq!(m.sets, ["source=\"/etc/c.toml\""]);
        let m = mount(&["train", "/m", "-oconfig=/c,fsname=x"]).expect("mount");
        assert_eq!((m.config, m.mgmtd.len()), (Some("/c".into()), 0));
        assert_eq!(m.sets, ["source=\"x\""]);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(refused(&["a:1"]).contains("usage"));
        assert!(refused(&["a:1", "/m", "/n"]).contains("usage"));
        assert!(refused(&["a:1", "/m", "-x"]).contains("-x is unknown"));
        assert!(refused(&["a:1", "/m", "-o"]).contains("-o wants a value"));
        assert!(refused(&["a:1", "/m", "-N", "/proc/1/ns/mnt"]).contains("nsenter"));
        assert!(refused(&["a:1", "/m"]).contains("token_file="));
        for spec in ["train", "a", "a:", ":1", "a:1,", "a:99999", ""] {
            assert!(refused(&[spec, "/m", "-o", "token_file=/t"]).contains("HOST:PORT"), "{spec}");
        }
        assert!(refused(&["/a", "/m", "-o", "config=/b"]).contains("two configurations"));
        assert!(refused(&["a:1", "/m", "-o", "token_file=/t,what"]).contains("`what`"));
        assert!(mount(&["a:1", "/m", "-s", "-o", "token_file=/t,what"]).is_ok());
    }

    #[test]
    fn a_remount_is_one() {
        let job = call(&["a:1", "/m", "-o", "rw,remount,ro,user_id=0"]).expect("call").understand();
        let Ok(Job::Remount(flags)) = job else { panic!("no remount") };
        assert!(flags.read_only && !flags.suid);
    }
}
