//! A cluster for one test, and commands with a time limit.

use serde_json::Value;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The longest that any command of a test may take; eight times that for the large sizes.
pub const COMMAND_BOUND: Duration = Duration::from_secs(480);

/// Clusters that tests have at the same time: they wait for two thirds of theirs, for leases, time-outs and flushes.
const CLUSTERS_AT_ONCE: u32 = 2;

/// The longest that a test may have a cluster; then its mounts are aborted, so that what hangs fails. Eight times that for the large sizes.
const CLUSTER_BOUND: Duration = Duration::from_secs(900);

/// Rooms that are taken, and tests that wait for all of them.
static TAKEN: Mutex<(u32, u32)> = Mutex::new((0, 0));
static FREED: Condvar = Condvar::new();

/// The right to have a cluster, or to have the machine alone.
pub struct Room(u32);

impl Room {
    /// Waits for room for one cluster beside those of other tests. Who waits to be alone goes first, or would wait for ever.
    pub fn one() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(|e| e.into_inner());
        let wait = |s: &mut (u32, u32)| s.0 >= CLUSTERS_AT_ONCE || s.1 > 0;
        let mut taken = FREED.wait_while(taken, wait).unwrap_or_else(|e| e.into_inner());
        taken.0 += 1;
        Self(1)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        TAKEN.lock().unwrap_or_else(|e| e.into_inner()).0 -= self.0;
        FREED.notify_all();
    }
}

/// For a test that makes its cluster by itself, or that measures: no other one meanwhile.
pub fn alone() -> Room {
    let mut taken = TAKEN.lock().unwrap_or_else(|e| e.into_inner());
    taken.1 += 1;
    let mut taken = FREED.wait_while(taken, |s| s.0 > 0).unwrap_or_else(|e| e.into_inner());
    *taken = (CLUSTERS_AT_ONCE, taken.1 - 1);
    Room(CLUSTERS_AT_ONCE)
}

/// Whether the long sizes are wanted.
pub fn large() -> bool {
    std::env::var_os("GLOWFS_TEST_LARGE").is_some()
}

/// The binary under test.
pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_glowfs"))
}

/// What a command printed.
#[derive(Debug)]
pub struct Output {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs a command to its end, or kills it at the bound and panics.
pub fn run(command: &mut Command) -> Output {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("cannot run {shown}: {e} (./test installs what is missing)"));
    let out = drain(child.stdout.take().expect("piped"));
    let err = drain(child.stderr.take().expect("piped"));
    let bound = if large() { COMMAND_BOUND * 8 } else { COMMAND_BOUND };
    let end = Instant::now() + bound;
    let status = loop {
        if let Some(status) = child.try_wait().expect("waiting for a child") {
            break status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("{shown} took longer than {bound:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output {
        code: status.code().unwrap_or(-1),
        out: out.join().expect("reader"),
        err: err.join().expect("reader"),
    }
}

/// Reads a pipe to its end beside the command, so that it never blocks on a full one.
fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = vec![];
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Runs a command that must succeed; returns its standard output.
pub fn must(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let o = run(command);
    assert!(o.code == 0, "{shown} failed with {}:\n{}{}", o.code, o.out, o.err);
    o.out
}

/// Runs a shell script with `set -e` in a directory; it must succeed.
pub fn sh(dir: &Path, script: &str) -> String {
    must(Command::new("bash").arg("-euo").arg("pipefail").arg("-c").arg(script).current_dir(dir))
}

/// A directory of one test, removed at its end.
pub struct Scratch {
    /// Its path.
    pub path: PathBuf,
}

impl Scratch {
    pub fn new(name: &str) -> Self {
        let base =
            std::env::var_os("GLOWFS_TEST_DIR").map_or_else(|| "/var/tmp".into(), PathBuf::from);
        let path = base.join(format!("glowfs-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("making the test's directory");
        Self { path }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("GLOWFS_TEST_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A dev cluster of one test.
pub struct Cluster {
    /// Its directory.
    pub dir: PathBuf,
    /// Where it is mounted.
    pub mnt: PathBuf,
    /// A directory of the local disk for the test's own files.
    pub local: PathBuf,
    scratch: Scratch,
    over: Arc<()>,
    _room: Room,
}

impl Cluster {
    /// Brings the usual cluster up: 3 storages, 2 disks each, 3 replicas.
    pub fn up(name: &str) -> Self {
        Self::up_with(name, &[])
    }

    /// Brings a cluster up with more options for `dev up`.
    pub fn up_with(name: &str, options: &[&str]) -> Self {
        let scratch = Scratch::new(name);
        let dir = scratch.path.join("cluster");
        Self::up_at(scratch, dir, options)
    }

    /// Brings the usual cluster up with another build of the binary.
    pub fn up_by(binary: &Path, name: &str) -> Self {
        let scratch = Scratch::new(name);
        let dir = scratch.path.join("cluster");
        Self::up_at_by(binary, scratch, dir, &[])
    }

    /// Brings a cluster up in a directory of the caller's, which outlives it.
    pub fn up_in(name: &str, dir: PathBuf, options: &[&str]) -> Self {
        Self::up_at(Scratch::new(&format!("{name}-mount")), dir, options)
    }

    fn up_at(scratch: Scratch, dir: PathBuf, options: &[&str]) -> Self {
        Self::up_at_by(binary(), scratch, dir, options)
    }

    fn up_at_by(by: &Path, scratch: Scratch, dir: PathBuf, options: &[&str]) -> Self {
        let room = Room::one();
        let cluster = Self {
            dir,
            mnt: scratch.path.join("mnt"),
            local: scratch.path.join("local"),
            scratch,
            over: Arc::new(()),
            _room: room,
        };
        watch(&cluster);
        std::fs::create_dir_all(&cluster.local).expect("local directory");
        let mnt = cluster.mnt.to_str().expect("UTF-8").to_owned();
        let mut args = vec!["--mount", &mnt];
        args.extend(options);
        must(Command::new(by).args(["dev", "up", "--dir"]).arg(&cluster.dir).args(args));
        if std::env::var_os("GLOWFS_FUSE").is_some_and(|v| v == "uring") {
            // Not by the device, unseen.
            sh(&cluster.dir, "grep -rq 'transport=\"io_uring\"' log");
        }
        if std::env::var_os("GLOWFS_TEST_INLINE").is_some() {
            sh(&cluster.mnt, "setfattr -n glowfs.layout -v inline_bytes=16384 .");
        }
        cluster
    }

    /// `glowfs dev COMMAND --dir DIR ARGS`, which must succeed.
    pub fn dev(&self, command: &str, args: &[&str]) -> String {
        must(Command::new(binary()).args(["dev", command, "--dir"]).arg(&self.dir).args(args))
    }

    /// `glowfs admin --dev DIR --json ARGS`, which must succeed.
    pub fn admin<S: AsRef<OsStr>>(&self, args: &[S]) -> Value {
        let text = must(
            Command::new(binary()).args(["admin", "--json", "--dev"]).arg(&self.dir).args(args),
        );
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("not JSON: {e}\n{text}"))
    }

    /// The same, whether it fails or not: if it succeeded, and what it printed.
    pub fn admin_tried(&self, args: &[&str]) -> (bool, Value) {
        let all = ["admin", "--json", "--dev"];
        let o = run(Command::new(binary()).args(all).arg(&self.dir).args(args));
        let rows = serde_json::from_str(&o.out);
        (o.code == 0, rows.unwrap_or_else(|e| panic!("not JSON: {e}\n{}{}", o.out, o.err)))
    }

    /// The same, which must fail; returns what it said.
    pub fn admin_fails(&self, args: &[&str]) -> String {
        let o = run(Command::new(binary()).args(["admin", "--dev"]).arg(&self.dir).args(args));
        assert_ne!(o.code, 0, "{args:?} succeeded: {}", o.out);
        o.err
    }

    /// `dev status --json`.
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.dev("status", &["--json"])).expect("JSON")
    }

    /// Rows of the status, by role.
    pub fn services(&self, role: &str) -> Vec<Value> {
        let status = self.status();
        let all = status["services"].as_array().expect("services").clone();
        all.into_iter().filter(|s| s["role"] == role).collect()
    }

    /// Sums a Prometheus counter over the services of a role. The name matches whole metrics, any labels.
    pub fn metric(&self, role: &str, name: &str) -> f64 {
        self.services(role).iter().map(|s| scrape(s["http"].as_str().expect("http"), name)).sum()
    }

    /// Waits until every member of every chain serves.
    pub fn wait_serving(&self, bound: Duration) {
        let end = Instant::now() + bound;
        loop {
            let chains = self.admin(&["list-chains"]);
            let chains = chains.as_array().expect("chains");
            if !chains.is_empty() && chains.iter().all(|c| c["status"] == "complete") {
                return;
            }
            assert!(Instant::now() < end, "not all chains serve after {bound:?}: {chains:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Gives a service more configuration (whole tables) and starts it anew.
    pub fn retune(&self, id: &str, more: &str) {
        let file = self.dir.join(format!("etc/{id}.more.toml"));
        std::fs::write(&file, more).expect("configuration");
        self.dev("kill", &[id]);
        self.dev("start", &[id]);
    }

    /// The lines of all logs in which that stands.
    pub fn in_logs(&self, what: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.join("log")).into_iter().flatten().flatten();
        let logs = entries.map(|e| std::fs::read_to_string(e.path()).unwrap_or_default());
        logs.flat_map(|l| l.lines().map(str::to_owned).collect::<Vec<_>>())
            .filter(|l| l.contains(what))
            .collect()
    }

    /// Shows the end of every log (for a failing test), mgmtd's and meta's first: of a long text the end may be cut.
    pub fn logs(&self) -> String {
        let entries = std::fs::read_dir(self.dir.join("log")).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|e| e.path()).collect();
        paths.sort_by_key(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (!name.starts_with("mgmtd"), !name.starts_with("meta"), name)
        });
        let mut text = String::new();
        for path in paths {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(15)..].join("\n");
            text += &format!("--- {}\n{tail}\n", path.display());
        }
        text
    }
}

/// Aborts all mounts of a test that has its cluster for too long: no request to them waits any longer, and the test fails.
fn watch(c: &Cluster) {
    let over = Arc::downgrade(&c.over);
    let root = format!("{}/", c.scratch.path.display());
    let bound = if large() { CLUSTER_BOUND * 8 } else { CLUSTER_BOUND };
    std::thread::spawn(move || {
        let end = Instant::now() + bound;
        while over.strong_count() > 0 {
            if Instant::now() > end {
                eprintln!("TIME-OUT after {bound:?}: aborting the mounts in {root}");
                abort_mounts(&root);
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    });
}

/// Ends the FUSE connections of all mounts below a directory. The kernel's directory of connections is mounted if it is not, as in many
/// containers.
fn abort_mounts(root: &str) {
    const ALL: &str = "/sys/fs/fuse/connections";
    if !std::fs::read_dir(ALL).is_ok_and(|mut d| d.next().is_some()) {
        let _ = Command::new("mount").args(["-t", "fusectl", "none", ALL]).status();
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines().filter(|l| l.contains(" - fuse")) {
        let mut fields = line.split(' ').skip(2);
        let (Some(device), Some(_), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let connection = device.rsplit(':').next().unwrap_or_default();
        if path.starts_with(root) {
            let done = std::fs::write(format!("{ALL}/{connection}/abort"), b"1");
            eprintln!("{path}: {done:?}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        let destroy = Command::new("timeout")
            .args(["-k", "5", "120"])
            .arg(binary())
            .args(["dev", "destroy", "--yes", "--dir"])
            .arg(&self.dir)
            .output();
        if !destroy.as_ref().is_ok_and(|o| o.status.success()) {
            eprintln!("dev destroy failed: {destroy:?}");
            abort_mounts(&format!("{}/", self.scratch.path.display()));
            let _ = Command::new("umount").arg("-l").arg(&self.mnt).output();
        }
    }
}

/// A further mount of a cluster: a client of its own.
pub struct Mount {
    /// Where it is mounted.
    pub path: PathBuf,
    child: Option<std::process::Child>,
}

impl Mount {
    /// Mounts at `local/NAME` and waits until it can be used.
    pub fn new(c: &Cluster, name: &str) -> Self {
        Self::with(c, name, &[])
    }
    /// The same with more options for `glowfs mount`.
    pub fn with(c: &Cluster, name: &str, options: &[&str]) -> Self {
        let status = c.status();
        let token_file = Path::new(status["token_file"].as_str().expect("file"));
        Self::by(c, name, token_file, options)
    }
    /// The same by the token in a file.
    pub fn by(c: &Cluster, name: &str, token_file: &Path, options: &[&str]) -> Self {
        let status = c.status();
        let path = c.local.join(name);
        std::fs::create_dir_all(&path).expect("directory");
        let log = std::fs::File::create(c.dir.join(format!("log/{name}.log"))).expect("log");
        let child = Command::new(binary())
            .args(["mount", "--mgmtd", status["mgmtd"][0].as_str().expect("address")])
            .arg("--token-file")
            .arg(token_file)
            .arg(&path)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("mount");
        let mount = Self { path, child: Some(child) };
        mount.wait_mounted(true);
        mount
    }
    fn wait_mounted(&self, wanted: bool) {
        let end = Instant::now() + Duration::from_secs(60);
        let path = format!(" {} ", self.path.display());
        while std::fs::read_to_string("/proc/mounts").expect("mounts").contains(&path) != wanted {
            assert!(Instant::now() < end, "{path} mounted: not {wanted}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, std::process::Child::id)
    }
    /// Sends it a signal. Not through a command: a child would close its copies of our open files first, and wait for the daemon.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).expect("a process");
        rustix::process::kill_process(pid, signal).expect("signal");
    }
    /// Kills it without a word, as a crash does. Its open files fail from then on.
    pub fn kill(mut self) {
        self.signal(rustix::process::Signal::KILL);
        self.end();
    }
    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
            }
            let _ = Command::new("umount").arg("-l").arg(&self.path).output();
            let end = Instant::now() + Duration::from_secs(20);
            while child.try_wait().expect("waiting").is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until something holds, for at most a minute.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(60), what, holds);
}
/// The same with another bound.
pub fn eventually_within(bound: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + bound;
    while !holds() {
        assert!(Instant::now() < end, "not within {bound:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// One HTTP GET of a service's metrics; the sum of all series of a name.
pub fn scrape(http: &str, name: &str) -> f64 {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(http).unwrap_or_else(|e| panic!("{http}: {e}"));
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("time-out");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answer");
    let series = text.lines().filter(|l| {
        l.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
    });
    series.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// A tree of `files` small files in nested directories, with links, made the same way every time.
pub fn make_tree(root: &Path, files: usize) {
    let mut state = 0x9e37_79b9_u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for i in 0..files {
        let dir = root.join(format!("d{}/e{}", i % 37, i % 11));
        std::fs::create_dir_all(&dir).expect("directory");
        let len = match i % 100 {
            0 => 300_000 + random() % 3_000_000,
            1..10 => random() % 70_000,
            10 => 0,
            _ => random() % 3000,
        };
        let byte = random();
        let bytes: Vec<u8> = (0..len).map(|k| ((k * 31) ^ byte ^ (k >> 8)) as u8).collect();
        let path = dir.join(format!("f{i}"));
        std::fs::write(&path, bytes).expect("file");
        if i % 50 == 7 {
            std::os::unix::fs::symlink(format!("f{i}"), dir.join(format!("s{i}")))
                .expect("symlink");
            std::fs::hard_link(&path, dir.join(format!("h{i}"))).expect("hard link");
        }
    }
}
