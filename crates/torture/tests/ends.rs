//! However a run ends, nothing of it stays: `glowfs-torture` is ended by a signal, or an operation of it never ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Two clusters at once are too much for two cores.
static ALONE: Mutex<()> = Mutex::new(());
/// How long each step may take.
const BOUND: Duration = Duration::from_secs(180);

/// A run in a directory in which something else is.
struct Run {
    dir: PathBuf,
    child: Child,
    _alone: MutexGuard<'static, ()>,
}

impl Run {
    fn start(name: &str, args: &[&str]) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let torture = Path::new(env!("CARGO_BIN_EXE_glowfs-torture"));
        let glowfs = torture.with_file_name("glowfs");
        assert!(glowfs.exists(), "{} is not there: cargo build --bins first", glowfs.display());
        let dir = std::env::temp_dir().join(format!("glowfs-ends-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        std::fs::write(dir.join("precious"), "mine").expect("a file");
        let mut command = Command::new(torture);
        command.args(args).arg("--dir").arg(&dir).stdout(Stdio::piped());
        let child = command.spawn().expect("glowfs-torture");
        Self { dir, child, _alone: alone }
    }
    /// The process of the second mount, once it is mounted.
    fn mount(&self) -> String {
        until("the second mount", || {
            let place = std::fs::read_dir(&self.dir).ok()?.flatten().map(|e| e.path());
            let mut found = place.filter_map(|p| {
                let mounted = Command::new("mountpoint").arg("-q").arg(p.join("mnt2")).status();
                let there = mounted.is_ok_and(|s| s.success());
                std::fs::read_to_string(p.join("mount2.pid")).ok().filter(|_| there)
            });
            found.next()
        })
        .split_whitespace()
        .next()
        .expect("its number, and when it began")
        .to_owned()
    }
    /// Only what was there before is there still, and no process works below the directory.
    fn nothing_stays(&self) {
        until("the end of all that was started", || {
            let rest: Vec<_> =
                std::fs::read_dir(&self.dir).ok()?.flatten().map(|e| e.file_name()).collect();
            (rest == ["precious"] && processes(&self.dir).is_empty()).then_some(())
        });
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!mounts.contains(&*self.dir.to_string_lossy()), "{mounts}");
        std::fs::remove_dir_all(&self.dir).expect("the directory");
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < BOUND, "{what} did not come within {BOUND:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Those whose command line names `dir`.
fn processes(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = all.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    let lines = lines.map(|l| String::from_utf8_lossy(&l).replace('\0', " "));
    lines.filter(|l| l.contains(&*dir.to_string_lossy())).collect()
}

fn signal(name: &str, process: &str) {
    let done = Command::new("kill").arg(name).arg(process).status().expect("kill");
    assert!(done.success(), "kill {name} {process}");
}

#[test]
fn a_run_that_is_told_to_end_leaves_nothing() {
    let mut run = Run::start("told", &["--minutes", "10", "--faults", "restart,fill"]);
    run.mount();
    std::thread::sleep(Duration::from_secs(5));
    signal("-TERM", &run.child.id().to_string());
    assert!(!run.child.wait().expect("its end").success());
    run.nothing_stays();
}

#[test]
fn an_operation_that_never_ends_fails_the_run_and_leaves_nothing() {
    let mut run =
        Run::start("hung", &["--minutes", "10", "--faults", "restart", "--patience", "8"]);
    let mount = run.mount();
    std::thread::sleep(Duration::from_secs(3));
    signal("-STOP", &mount);
    let out = run.child.stdout.take().expect("its output");
    let said = std::io::read_to_string(out).expect("its output");
    let status = until("its end", || run.child.try_wait().expect("its status"));
    assert_eq!(status.code(), Some(1), "{said}");
    for part in
        ["does not end: «", "begun at", "Restart", "mgmtd says: all", "nodes are alive", "FAILED"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    run.nothing_stays();
}
