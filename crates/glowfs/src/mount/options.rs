//! The options of mount(8) and fstab(5), as mount(8) hands them to its helper: words and `key=value`, separated by commas.

use crate::config;
use anyhow::{Context, Result, bail};
use glowfs_mount::{MountConfig, MountFlags};
use std::path::PathBuf;

/// What mount(8), systemd and fstab say among themselves, and what is so anyway.
const NOT_OURS: &[&str] = &[
    "defaults",
    "_netdev",
    "auto",
    "noauto",
    "nofail",
    "async",
    "remount",
    "user",
    "users",
    "nouser",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "silent",
    "loud",
    "nomand",
    "noiversion",
    "nolazytime",
    "norelatime",
    "nostrictatime",
    "default_permissions",
];
/// The same, by how the word begins.
const NOT_OURS_BEGIN: &[&str] = &["x-", "X-", "comment=", "user=", "uhelper=", "helper="];
/// Keys of a mount's configuration that have another place here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("mountpoint", "the mount point stands behind the source"),
    ("mgmtd", "mgmtd's addresses are the source: HOST:PORT[,HOST:PORT...]"),
    ("read_only", "write `ro`"),
];
/// Keys that a remount can change: the kernel's flags.
const FLAGS: &[&str] = &["suid", "dev", "exec", "atime", "nodiratime"];

/// An option string, understood.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `ro`.
    pub read_only: bool,
    /// `config=`.
    pub config: Option<PathBuf>,
    /// `token_file=`.
    pub token_file: Option<PathBuf>,
    /// `log_file=`.
    pub log_file: Option<PathBuf>,
    /// `log_level=`.
    pub log_level: Option<String>,
    /// `timeout=`, in seconds.
    pub timeout: Option<u64>,
    /// `source=` or `fsname=`.
    pub source: Option<String>,
    /// All else: keys of the mount's configuration with their values, later ones over earlier ones.
    pub sets: Vec<String>,
}

impl Options {
    /// Understands an option string. `sloppy`: what is unknown is ignored.
    pub fn parse(text: &str, sloppy: bool) -> Result<Self> {
        let mut options = Self::default();
        for word in split(text)? {
            options.take(word, sloppy)?;
        }
        options.deny(text)?;
        Ok(options)
    }
    /// The same for a mount that is there: of it, mount(8) names all options that it has, and only flags can change. But it never says `suid` and
    /// `dev`, so that where it does not deny them it stays as it is `now`.
    pub fn parse_remount(text: &str, now: MountFlags) -> Result<MountFlags> {
        let sets = vec![format!("suid={}", now.suid), format!("dev={}", now.dev)];
        let mut options = Self { sets, ..Self::default() };
        for word in split(text)? {
            // What else is said was said, and checked, when it was mounted.
            let _ = options.take(word, true);
        }
        options.deny(text)?;
        let is_flag = |set: &String| FLAGS.contains(&set.split('=').next().unwrap_or_default());
        options.sets.retain(is_flag);
        let config: MountConfig = config::load(None, &options.sets)?;
        Ok(MountConfig { read_only: options.read_only, ..config }.flags())
    }

    /// mount(8) puts its own words in front of all others, so where the last of them denies something, that counts over `KEY=true`, whatever
    /// was written last.
    fn deny(&mut self, text: &str) -> Result<()> {
        let words = split(text)?;
        for (key, allows, denies) in
            [("suid", "suid", "nosuid"), ("dev", "dev", "nodev"), ("exec", "exec", "noexec")]
        {
            if words.iter().rev().find(|w| **w == allows || **w == denies) == Some(&denies) {
                let set = format!("{key}=false");
                self.sets.retain(|s| *s != set);
                self.sets.push(set);
            }
        }
        Ok(())
    }

    fn take(&mut self, word: &str, sloppy: bool) -> Result<()> {
        if let Some((key, value)) = word.split_once('=') {
            return self.take_value(word, key, value, sloppy);
        }
        let set = match word {
            "ro" | "rw" => {
                self.read_only = word == "ro";
                return Ok(());
            }
            "suid" => "suid=true",
            "nosuid" => "suid=false",
            "dev" => "dev=true",
            "nodev" => "dev=false",
            "exec" => "exec=true",
            "noexec" => "exec=false",
            "atime" | "relatime" => "atime=relatime",
            "noatime" => "atime=noatime",
            "strictatime" => "atime=strictatime",
            "diratime" => "nodiratime=false",
            "nodiratime" => "nodiratime=true",
            "allow_other" => "allow_other=true",
            "nonempty" => "allow_non_empty=true",
            "sync" | "dirsync" => bail!(
                "`{word}` is not offered: have files made with durability=disk, which a write does not return before (setfattr -n glowfs.layout -v \
                 durability=disk DIR), or let programs use O_SYNC or fsync"
            ),
            _ if NOT_OURS.contains(&word) || begins(word) => return Ok(()),
            _ if sloppy => return Ok(()),
            _ if !is_unknown(word) => bail!("`{word}` wants a value: {word}=..."),
            _ => return unknown(word),
        };
        self.sets.push(set.into());
        Ok(())
    }

    fn take_value(&mut self, word: &str, key: &str, value: &str, sloppy: bool) -> Result<()> {
        let plain = unquoted(value);
        let path = || absolute(key, plain).map(Some);
        match key {
            "token_file" => self.token_file = path()?,
            "config" => self.config = path()?,
            "log_file" => self.log_file = path()?,
            "log_level" => self.log_level = Some(plain.to_owned()),
            "timeout" => {
                let seconds = plain.parse();
                self.timeout = Some(seconds.with_context(|| {
                    format!("`{word}`: write a whole number of seconds, as in timeout=30")
                })?);
            }
            "source" | "fsname" => self.source = Some(plain.to_owned()),
            "subtype" if plain == "glowfs" => {}
            "subtype" => bail!("`{word}`: the type of a GlowFS mount is fuse.glowfs; leave it out"),
            _ if begins(word) => {}
            _ => {
                if let Some((_, instead)) = ELSEWHERE.iter().find(|(k, _)| *k == key) {
                    bail!("`{word}`: {instead}");
                }
                if !is_unknown(key) {
                    self.sets.push(configured(key, value)?);
                } else if !sloppy {
                    return unknown(word);
                }
            }
        }
        Ok(())
    }
}

fn begins(word: &str) -> bool {
    NOT_OURS_BEGIN.iter().any(|b| word.starts_with(b))
}

fn unknown<T>(word: &str) -> Result<T> {
    bail!(
        "`{word}` is no option of GlowFS: leave it out (mount -s ignores what is unknown), or write a key of the mount's \
         configuration as KEY=VALUE"
    )
}

/// Words of an option string. As for mount(8), commas in double quotes do not separate.
fn split(text: &str) -> Result<Vec<&str>> {
    let mut quoted = false;
    let words: Vec<_> = text
        .split(|c| {
            quoted ^= c == '"';
            c == ',' && !quoted
        })
        .filter(|word| !word.is_empty())
        .collect();
    if quoted {
        bail!("the options {text} end within quotes");
    }
    Ok(words)
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value)
}

fn absolute(key: &str, value: &str) -> Result<PathBuf> {
    let path = PathBuf::from(value);
    if !path.is_absolute() {
        bail!("`{key}={value}`: write an absolute path, for mount(8) may be called from anywhere");
    }
    Ok(path)
}

fn try_set(set: String) -> Result<String> {
    config::load::<MountConfig>(None, std::slice::from_ref(&set)).map(|_| set)
}

/// Whether the mount's configuration has no such key. Only its reader knows them all, so it is asked.
fn is_unknown(key: &str) -> bool {
    let refused = try_set(format!("{key}=0")).err();
    key.contains('.')
        || refused.is_some_and(|e| format!("{e:#}").contains(&format!("unknown field `{key}`")))
}

/// A key with a value of its type.
fn configured(key: &str, value: &str) -> Result<String> {
    let as_text = || try_set(format!("{key}={}", toml::Value::String(unquoted(value).into())));
    let as_said = try_set(format!("{key}={value}"));
    as_said.or_else(|e| as_text().map_err(|_| e)).with_context(|| format!("`{key}={value}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Options {
        Options::parse(text, false).unwrap_or_else(|e| panic!("{text}: {e:#}"))
    }
    fn refused(text: &str) -> String {
        format!("{:#}", Options::parse(text, false).expect_err(text))
    }
    /// What the mount makes of it.
    fn config(text: &str) -> MountConfig {
        config::load(None, &parse(text).sets).unwrap_or_else(|e| panic!("{text}: {e:#}"))
    }

    #[test]
    fn nothing_and_what_is_not_ours() {
        let none = Options::default();
        for text in
            ["", ",", ",,rw,,", "defaults", "rw,_netdev,nofail,auto,noauto,async,user,users"]
        {
            assert_eq!(parse(text), none, "{text}");
        }
        let text = "x-systemd.automount,x-systemd.requires=a.service,X-mount.mkdir=0755,comment=hello=x,user=me";
        assert_eq!(parse(text), none);
        assert_eq!(parse("default_permissions,subtype=glowfs,nostrictatime"), none);
    }

    #[test]
    fn ours() {
        let text = "token_file=/etc/a token,config=/etc/c.toml,log_file=/var/log/g,log_level=debug,timeout=7,ro";
        let want = Options {
            read_only: true,
            config: Some("/etc/c.toml".into()),
            token_file: Some("/etc/a token".into()),
            log_file: Some("/var/log/g".into()),
            log_level: Some("debug".into()),
            timeout: Some(7),
            ..Options::default()
        };
        assert_eq!(parse(text), want);
        assert!(!parse("ro,rw").read_only && parse("rw,ro").read_only, "the last one counts");
    }

    #[test]
    fn flags_and_times() {
        let c = MountConfig::default;
        assert_eq!(config("rw,nosuid,nodev,exec"), c());
        let all = MountConfig { suid: true, dev: true, exec: false, ..c() };
        assert_eq!(config("suid,dev,noexec"), all);
        assert_eq!(config("suid,dev,exec,nosuid,nodev"), c(), "the last one counts");
        let denied = config("rw,nosuid,nodev,noexec,suid=true,dev=true,exec=true");
        assert_eq!(denied, MountConfig { exec: false, ..c() }, "in mount(8)'s order");
        let other = Options::parse_remount("remount,nosuid,suid=true", MountFlags::default());
        assert_eq!(other.expect("flags"), MountFlags::default());
        use glowfs_mount::Atime::*;
        for (text, atime) in [
            ("relatime", Relatime),
            ("noatime", Noatime),
            ("strictatime", Strictatime),
            ("noatime,strictatime", Strictatime),
            ("noatime,atime", Relatime),
            ("atime=noatime", Noatime),
        ] {
            assert_eq!(config(text), MountConfig { atime: Some(atime), ..c() }, "{text}");
        }
        assert_eq!(config("relatime=false"), MountConfig { relatime: Some(false), ..c() });
        assert!(config("nodiratime").nodiratime && !config("nodiratime,diratime").nodiratime);
        let fuse = MountConfig { allow_other: Some(true), allow_non_empty: true, ..c() };
        assert_eq!(config("allow_other,nonempty"), fuse);
    }

    #[test]
    fn keys_of_the_configuration() {
        let got =
            config("write_back=true,attr_timeout_ms=50,http=127.0.0.1:80,fuse_transport=uring");
        assert_eq!((got.write_back, got.attr_timeout_ms), (Some(true), 50));
        assert_eq!(got.http.as_deref(), Some("127.0.0.1:80"));
        assert_eq!(got.fuse_transport, glowfs_mount::FuseTransport::Uring);
        // Text that looks like a number where text is wanted, and values with «=», commas and quotes.
        let digits = "12345678901234567";
        assert_eq!(config(&format!("cluster_id={digits}")).cluster_id, digits);
        assert_eq!(config("http=a=b=c").http.as_deref(), Some("a=b=c"));
        assert_eq!(config("http=\"a,b=c\",exec").http.as_deref(), Some("a,b=c"));
        assert_eq!(parse("source=a=b").source.as_deref(), Some("a=b"));
        assert_eq!(parse("fsname=\"a,b\"").source.as_deref(), Some("a,b"));
        assert_eq!(parse("token_file=\"/a,b\"").token_file, Some("/a,b".into()));
        assert_eq!(parse("token_file=/a=b").token_file, Some("/a=b".into()));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, says) in [
            ("rw,frobnicate", "`frobnicate` is no option"),
            ("nosuch=1", "`nosuch=1` is no option"),
            ("mgmtd.x=1", "`mgmtd.x=1` is no option"),
            ("=", "`=` is no option"),
            ("sync", "`sync` is not offered"),
            ("rw,dirsync", "`dirsync` is not offered"),
            ("lazytime", "`lazytime` is no option"),
            ("timeout=soon", "`timeout=soon`"),
            ("timeout=-1", "`timeout=-1`"),
            ("token_file=etc/token", "absolute path"),
            ("config=", "absolute path"),
            ("write_back", "`write_back` wants a value"),
            ("write_back=perhaps", "`write_back=perhaps`"),
            ("attr_timeout_ms=", "`attr_timeout_ms=`"),
            ("atime=sometimes", "`atime=sometimes`"),
            ("mountpoint=/x", "behind the source"),
            ("read_only=true", "write `ro`"),
            ("subtype=other", "fuse.glowfs"),
            ("http=\"a", "within quotes"),
        ] {
            let said = refused(text);
            assert!(said.contains(says), "{text}: {said}");
        }
    }

    #[test]
    fn sloppy_ignores_only_what_is_unknown() {
        let got = Options::parse("frobnicate,nosuch=1,noexec", true).expect("sloppy");
        assert_eq!(got.sets, ["exec=false"]);
        for text in ["sync", "timeout=soon", "write_back=perhaps"] {
            assert!(Options::parse(text, true).is_err(), "{text}");
        }
    }

    #[test]
    fn a_remount_takes_flags_only() {
        // As mount(8) says it of a mount without a line in fstab.
        let text = "remount,ro,nosuid,nodev,noexec,noatime,user_id=0,group_id=0,default_permissions,allow_other,token_file=x";
        let want =
            MountFlags { read_only: true, noexec: true, noatime: true, ..Default::default() };
        let now = MountFlags { suid: true, dev: true, ..Default::default() };
        assert_eq!(Options::parse_remount(text, now).expect("flags"), want);
    }

    #[test]
    fn a_remount_keeps_what_it_does_not_name() {
        let now = MountFlags { suid: true, ..Default::default() };
        assert_eq!(Options::parse_remount("remount,rw", now).expect("flags"), now);
        let other = MountFlags { dev: true, ..Default::default() };
        assert_eq!(Options::parse_remount("remount,dev=true,nosuid", now).expect("flags"), other);
    }
}
