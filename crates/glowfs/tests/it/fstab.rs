//! GlowFS mounted as any other file system is: `glowfs mount --background`, and as mount(8), fstab and systemd do it.

use crate::harness::{Cluster, Output, Scratch, binary, eventually, must, run, sh};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program under the name by which mount(8) would call it, in a directory of the test's.
fn helper_in(dir: &Path) -> PathBuf {
    let link = dir.join("mount.fuse.glowfs");
    std::os::unix::fs::symlink(binary(), &link).expect("symlink");
    link
}

/// Where things of a cluster are.
struct Place {
    helper: PathBuf,
    mgmtd: String,
    token: String,
    mnt: PathBuf,
}

impl Place {
    fn of(c: &Cluster) -> Self {
        let status = c.status();
        let text = |v: &serde_json::Value| v.as_str().expect("text").to_owned();
        let mnt = c.local.join("a mount");
        std::fs::create_dir(&mnt).expect("mount point");
        let (mgmtd, token) = (text(&status["mgmtd"][0]), text(&status["token_file"]));
        Self { helper: helper_in(&c.local), mgmtd, token, mnt }
    }
    /// Calls the helper as mount(8) does.
    fn mount(&self, options: &str) -> Output {
        let options = format!("rw,token_file={},{options}", self.token);
        let mut command = Command::new(&self.helper);
        run(command.args([&self.mgmtd as &str]).arg(&self.mnt).args(["-v", "-o", &options]))
    }
    /// The same, which must succeed; returns the daemon's process.
    fn mounted(&self, options: &str) -> Pid {
        let o = self.mount(options);
        assert!(o.code == 0 && o.err.is_empty(), "{options}: {o:?}");
        let pid = o.out.trim().rsplit(' ').next().and_then(|n| n.parse().ok());
        pid.and_then(Pid::from_raw).unwrap_or_else(|| panic!("no process in {o:?}"))
    }
    /// Its line of /proc/mounts: source, type, options.
    fn line(&self) -> Option<(String, String, Vec<String>)> {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
        let at = self.mnt.to_str().expect("UTF-8").replace(' ', "\\040");
        let line = mounts.lines().find(|l| l.split(' ').nth(1) == Some(&at))?;
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        Some((words[0].clone(), words[2].clone(), words[3].split(',').map(str::to_owned).collect()))
    }
    fn has(&self, options: &[&str]) -> bool {
        let shown = self.line().expect("mounted").2;
        options.iter().all(|o| shown.iter().any(|s| s == o))
    }
    /// Unmounts; the daemon ends.
    fn unmounted(&self, daemon: Pid) {
        must(Command::new("umount").arg(&self.mnt));
        eventually("the daemon ends", || !lives(daemon));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.line().is_some() {
            let _ = Command::new("umount").arg("-l").arg(&self.mnt).output();
        }
    }
}

/// Whether a process runs. (One that has ended and that nobody waited for does not.)
fn lives(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|s| !s.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// Daemons whose command line ends with this mount point.
fn daemons(mnt: &Path) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|&b| b == 0).filter(|w| !w.is_empty()).collect();
        let at = words.last().is_some_and(|w| *w == mnt.as_os_str().as_encoded_bytes());
        if at && words.iter().any(|w| *w == b"--announce") {
            let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
            found.extend(pid.and_then(Pid::from_raw));
        }
    }
    found
}

#[test]
fn mounted_as_mount_8_does() {
    let c = Cluster::up("fstab");
    let p = Place::of(&c);

    // It serves when the call returns, and says so where one looks.
    let log = c.local.join("log");
    let daemon =
        p.mounted(&format!("_netdev,nofail,x-systemd.automount,log_file={}", log.display()));
    std::fs::write(p.mnt.join("f"), "contents").expect("write");
    let (source, kind, _) = p.line().expect("mounted");
    assert_eq!((source, kind), (p.mgmtd.clone(), "fuse.glowfs".into()));
    assert!(p.has(&["rw", "nosuid", "nodev", "relatime", "default_permissions", "allow_other"]));
    assert!(!p.has(&["noexec"]) && p.has(&["rw"]));
    let text = std::fs::read_to_string(&log).expect("log");
    assert!(text.contains("mounted"), "{text}");
    assert_eq!(
        std::fs::read_link(format!("/proc/{}/cwd", daemon.as_raw_nonzero())).expect("cwd"),
        Path::new("/")
    );
    assert!(rustix::process::getsid(Some(daemon)).expect("session") == daemon);
    // A second one there is refused, and leaves the first alone.
    let again = p.mount("");
    assert_eq!(again.code, 32, "{again:?}");
    assert!(again.err.contains("already a mount"), "{again:?}");
    assert_eq!(std::fs::read_to_string(p.mnt.join("f")).expect("read"), "contents");
    // Other flags, as mount(8) asks for them.
    let remount = |to: &str| {
        let options = format!("rw,remount,user_id=0,group_id=0,allow_other,{to}");
        must(Command::new(&p.helper).arg("x:1").arg(&p.mnt).args(["-o", &options]));
    };
    remount("ro");
    assert!(p.has(&["ro", "nosuid"]) && std::fs::write(p.mnt.join("g"), "").is_err());
    remount("rw");
    std::fs::write(p.mnt.join("g"), "").expect("writable again");
    p.unmounted(daemon);

    // The kernel's flags, and a name with commas.
    let program = "#!/bin/sh\nexit 0\n";
    let daemon = p.mounted("suid,dev,noexec,noatime,nodiratime,fsname=\"a,b c\"");
    assert!(p.has(&["noexec", "noatime", "nodiratime"]));
    assert!(!p.has(&["nosuid"]) && !p.has(&["nodev"]), "{:?}", p.line());
    assert_eq!(p.line().expect("mounted").0, "a,b\\040c");
    std::fs::write(p.mnt.join("p"), program).expect("write");
    sh(&p.mnt, "chmod 755 p; if ./p 2>/dev/null; then exit 1; fi");
    p.unmounted(daemon);

    let daemon = p.mounted("ro");
    assert!(p.has(&["ro"]));
    let refused = std::fs::write(p.mnt.join("f"), "other").expect_err("read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(std::fs::read_to_string(p.mnt.join("f")).expect("read"), "contents");
    p.unmounted(daemon);

    // A configuration file instead: it also says where the token is.
    let file = c.local.join("mount.toml");
    let text = format!(
        "mgmtd = [\"{}\"]\ntoken_file = \"{}\"\natime = \"strictatime\"\n",
        p.mgmtd, p.token
    );
    std::fs::write(&file, text).expect("configuration");
    must(Command::new(&p.helper).arg(&file).arg(&p.mnt));
    let shown = p.line().expect("mounted");
    assert!(
        shown.0 == file.to_str().expect("UTF-8") && !shown.2.contains(&"relatime".into()),
        "{shown:?}"
    );
    p.unmounted(daemons(&p.mnt)[0]);

    what_is_wrong_is_said(&p);
    by_mount_itself(&c, &p);
}

fn what_is_wrong_is_said(p: &Place) {
    for (options, code, says) in [
        ("frobnicate", 1, "`frobnicate`"),
        ("sync", 1, "`sync`"),
        ("write_back=perhaps", 1, "`write_back=perhaps`"),
        ("token_file=/nonexistent/token", 32, "/nonexistent/token"),
        ("log_file=/nonexistent/log", 32, "/nonexistent/log"),
    ] {
        let o = p.mount(options);
        assert!(o.code == code && o.err.contains(says), "{options}: {o:?}");
    }
    let o = run(Command::new(&p.helper)
        .args([&p.mgmtd as &str, "/nonexistent/mnt", "-o"])
        .arg(format!("token_file={}", p.token)));
    assert!(o.code == 32 && o.err.contains("/nonexistent/mnt does not exist"), "{o:?}");
    // Nothing listens there: for as long as it was told.
    let mut nowhere = Command::new(&p.helper);
    nowhere
        .arg("127.0.0.1:1")
        .arg(&p.mnt)
        .arg("-o")
        .arg(format!("token_file={},timeout=2", p.token));
    let began = std::time::Instant::now();
    let o = run(&mut nowhere);
    assert!(o.code == 32 && o.err.contains("127.0.0.1:1"), "{o:?}");
    assert!(began.elapsed().as_secs() >= 1, "it was to wait for a moment");
    // Not to mount at all, and to ignore what is unknown.
    must(
        Command::new(&p.helper)
            .arg(&p.mgmtd)
            .arg(&p.mnt)
            .args(["-fs", "-o"])
            .arg(format!("token_file={},frobnicate", p.token)),
    );
    assert!(p.line().is_none() && daemons(&p.mnt).is_empty());
}

/// It can be mounted, but does not serve: the metadata service hangs. (Where it is the engine as well, mgmtd would hang with it.)
#[test]
fn a_mount_whose_root_does_not_answer_is_taken_down() {
    let c = Cluster::up_with("fstab-root", &["--meta-engine", "etcd"]);
    let p = Place::of(&c);
    c.dev("kill", &["meta-1", "--signal", "STOP"]);
    let o = p.mount("timeout=2");
    assert!(o.code == 32 && o.err.contains("did not answer within"), "{o:?}");
    assert!(p.line().is_none());
    eventually("the daemon ends", || daemons(&p.mnt).is_empty());
    // Who waits for it gives up when it is mounted already.
    let mut waiting = Command::new(&p.helper)
        .arg(&p.mgmtd)
        .arg(&p.mnt)
        .arg("-o")
        .arg(format!("token_file={},timeout=300", p.token))
        .spawn()
        .expect("mount");
    eventually("mounted", || p.line().is_some());
    waiting.kill().expect("kill");
    waiting.wait().expect("wait");
    eventually("unmounted", || p.line().is_none() && daemons(&p.mnt).is_empty());
    c.dev("kill", &["meta-1", "--signal", "CONT"]);
}

/// mount(8) finds its helpers in /sbin only: in a mount namespace of the test's there is a /sbin of the test's.
fn by_mount_itself(c: &Cluster, p: &Place) {
    let sbin = c.local.join("sbin");
    std::fs::create_dir(&sbin).expect("directory");
    for name in ["mount.glowfs", "mount.fuse.glowfs"] {
        std::os::unix::fs::symlink(binary(), sbin.join(name)).expect("symlink");
    }
    let mnt = c.local.join("mnt8");
    std::fs::create_dir(&mnt).expect("mount point");
    let line = format!(
        "{} {} glowfs token_file={},_netdev,nofail,noexec,x-systemd.mount-timeout=30 0 0\n",
        p.mgmtd,
        mnt.display(),
        p.token
    );
    let fstab = c.local.join("fstab");
    std::fs::write(&fstab, line).expect("fstab");
    let script = r#"
        mount --bind "$PWD/sbin" "$(realpath /sbin)"
        mount -T fstab "$PWD/mnt8"
        grep -q " $PWD/mnt8 fuse.glowfs rw,nosuid,nodev,noexec,relatime" /proc/mounts
        echo "by fstab" > mnt8/by
        mount -T fstab -a
        [ "$(grep -c "$PWD/mnt8" /proc/mounts)" = 1 ]
        mount -o remount,ro "$PWD/mnt8"
        if echo no > mnt8/by; then exit 1; fi 2>/dev/null
        umount "$PWD/mnt8"
        # Of `suid` and `dev` mount(8) says nothing to its helper, for they are what others do by default.
        mount -T fstab -o suid=true,dev=true "$PWD/mnt8"
        mknod mnt8/null c 1 3
        echo gone > mnt8/null
        mount -o remount,ro "$PWD/mnt8"
        mount -o remount,rw "$PWD/mnt8"
        echo gone > mnt8/null
        if grep " $PWD/mnt8 " /proc/mounts | grep -e nosuid -e nodev; then exit 1; fi
        mount -o remount,nosuid,nodev "$PWD/mnt8"
        mount -o remount,rw "$PWD/mnt8"
        grep " $PWD/mnt8 .*nosuid,nodev" /proc/mounts
        rm mnt8/null
        umount "$PWD/mnt8"
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-euxc", script]);
    must(command.current_dir(&c.local));
    assert_eq!(std::fs::read_to_string(c.mnt.join("by")).expect("read"), "by fstab\n");
    eventually("the daemon ends", || daemons(&mnt).is_empty());
}

/// What reads move; `f`, `d` and `l` are a file, a directory and a symlink. A mount says `moves` of each: never, the first time, each time.
const READS: &str = r#"
import os, sys, time
def at(p): return os.lstat(p).st_atime_ns
def read(p): open(p, "rb").read()
def check(what, look, moves):
    times = [at(what)]
    for i in range(3):
        time.sleep(0.03); look(what); times.append(at(what))
    moved = [b > a for a, b in zip(times, times[1:])]
    want = dict(never=[False] * 3, first=[True, False, False], each=[True] * 3)[moves]
    assert moved == want, (what, moves, moved, times)
for (what, look), moves in zip((("f", read), ("d", os.listdir), ("l", os.readlink)), sys.argv[1:]):
    check(what, look, moves)
"#;

#[test]
fn reads_move_the_time_of_last_access_as_the_mount_says() {
    let c = Cluster::up("atime");
    let p = Place::of(&c);
    std::fs::write(c.local.join("reads.py"), READS).expect("script");
    let script = c.local.join("reads.py");
    for (options, moves) in [
        ("noatime", ["never"; 3]),
        ("ro,strictatime", ["never"; 3]),
        ("nodiratime", ["first", "never", "first"]),
        ("relatime", ["first"; 3]),
        ("strictatime", ["each"; 3]),
        ("strictatime,nodiratime", ["each", "never", "each"]),
    ] {
        // Made anew, and so never read since they were changed.
        sh(&c.mnt, "rm -rf f d l; echo contents > f; mkdir d; touch d/x; ln -s f l; sleep 0.05");
        let before = times(&c.mnt);
        let daemon = p.mounted(options);
        must(Command::new("python3").arg(&script).args(moves).current_dir(&p.mnt));
        let here = times(&p.mnt);
        p.unmounted(daemon);
        // What this mount showed, others see when it is gone at the latest.
        eventually("the same elsewhere", || times(&c.mnt) == here);
        assert!(moves != ["never"; 3] || here == before, "{options}: {before:?} {here:?}");
    }
}

/// Times of last access of `f`, `d` and `l`, in ns.
fn times(dir: &Path) -> Vec<(i64, i64)> {
    use std::os::unix::fs::MetadataExt;
    let look = |name| std::fs::symlink_metadata(dir.join(name)).expect("stat");
    ["f", "d", "l"].map(look).iter().map(|m| (m.atime(), m.atime_nsec())).collect()
}

/// A mount that waits for a cluster which never answers.
struct Waiting {
    child: Child,
    daemon: Pid,
    mnt: PathBuf,
    _silent: TcpListener,
}

impl Waiting {
    fn new(scratch: &Scratch) -> Self {
        // One for each: what a former daemon tried last may still be in the queue of its own.
        let silent = TcpListener::bind("127.0.0.1:0").expect("listen");
        let mnt = scratch.path.join("mnt");
        std::fs::create_dir_all(&mnt).expect("mount point");
        let token = scratch.path.join("token");
        std::fs::write(&token, "word").expect("token");
        // A background job of a script has SIGINT ignored, and so would what it starts, were it not given back its default.
        let child = Command::new("env")
            .arg("--default-signal=INT")
            .arg(binary())
            .args(["mount", "--background", "--timeout", "300", "--mgmtd"])
            .arg(silent.local_addr().expect("address").to_string())
            .arg("--token-file")
            .arg(&token)
            .arg(&mnt)
            .stderr(Stdio::piped())
            .spawn()
            .expect("mount");
        eventually("the daemon has begun", || daemons(&mnt).len() == 1);
        silent.accept().expect("a connection");
        Self { child, daemon: daemons(&mnt)[0], mnt, _silent: silent }
    }
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal");
    }
    fn nothing_is_left(mut self) -> (i32, String) {
        eventually("the daemon is gone", || !lives(self.daemon));
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.child.stderr.take().expect("piped"), &mut said)
            .expect("stderr");
        let status = self.child.wait().expect("wait");
        let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
        assert!(!mounts.contains(self.mnt.to_str().expect("UTF-8")));
        (status.code().unwrap_or(-1), said)
    }
}

#[test]
fn who_gives_up_waiting_leaves_no_mount() {
    let scratch = Scratch::new("given-up");
    // Killed, or by Ctrl-C, which reaches the command only: the daemon notices.
    for signal in [Signal::KILL, Signal::INT] {
        let waiting = Waiting::new(&scratch);
        waiting.signal(signal);
        waiting.nothing_is_left();
    }
    // The daemon is killed: the command says so.
    let waiting = Waiting::new(&scratch);
    kill_process(waiting.daemon, Signal::KILL).expect("signal");
    let (code, said) = waiting.nothing_is_left();
    assert!(code == 1 && said.contains("ended before it served"), "{code}: {said}");
    // It is told to end.
    let waiting = Waiting::new(&scratch);
    kill_process(waiting.daemon, Signal::TERM).expect("signal");
    let (code, said) = waiting.nothing_is_left();
    assert!(code == 1 && said.contains("given up"), "{code}: {said}");
}
