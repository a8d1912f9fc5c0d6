//! Where a run lives: a directory of its own, its cluster, and a guard that takes both down however the run ends.
//!
//! Must never: remove what the run did not make.

use crate::cluster::{Cluster, Shape};
use crate::nemesis::{self, Kind};
use crate::view::View;
use anyhow::{Context, Result, bail};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The guard: not a thread, so that no way to end this process leaves the cluster behind.
const GUARD: &str = include_str!("guard.sh");
/// How long the guard may take.
const GUARD_BOUND: Duration = Duration::from_secs(300);
/// Runs of one process number that may have left their place in one directory.
const PLACES_MAX: u32 = 1000;

/// A running cluster in a place of its own.
pub struct Site {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    place: Place,
    /// File systems of their own that some of its disks are.
    mounted: Vec<PathBuf>,
    keep: bool,
    closed: bool,
}

/// The directory of one run, and that above if it was made for it.
#[derive(Clone, Debug)]
pub struct Place {
    own: PathBuf,
    above: Option<PathBuf>,
}

impl Place {
    /// A new directory in `dir`, which may be new, too, or hold anything.
    pub fn make(dir: &Path) -> Result<Self> {
        let new = !dir.exists();
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        for n in 0..PLACES_MAX {
            let own = dir.join(format!("torture-{}-{n}", std::process::id()));
            match std::fs::create_dir(&own) {
                Ok(()) => return Ok(Self { own, above: new.then_some(dir) }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e).with_context(|| format!("making {}", own.display())),
            }
        }
        bail!("{} is full of what former runs left", dir.display())
    }
    /// Removes what was made, unless something is mounted in it.
    pub fn remove(&self) -> Result<()> {
        let inside = format!(" {}/", self.own.display());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if let Some(line) = mounts.lines().find(|l| l.contains(&inside)) {
            bail!("{} stays, something is mounted below it: {line}", self.own.display());
        }
        std::fs::remove_dir_all(&self.own)
            .with_context(|| format!("removing {}", self.own.display()))?;
        // Others may use it by now; then it is not empty and stays.
        let _ = self.above.as_ref().map(std::fs::remove_dir);
        Ok(())
    }
}

impl Site {
    /// Makes and starts the cluster; with one small disk if disks are to be filled, and one of its own if disks are to die. Call before any file of a mount is open.
    pub fn up(shape: &Shape, faults: &[Kind], keep: bool) -> Result<Self> {
        let place = Place::make(&shape.dir)?;
        let shape = Shape { dir: place.own.clone(), ..shape.clone() };
        guard(&place.own, &shape.glowfs)?;
        let cluster = Arc::new(Cluster::new(&shape)?);
        let mut site = Self { cluster, place, mounted: vec![], keep, closed: false };
        site.cluster.start()?;
        type Make = fn(&Cluster) -> Result<PathBuf>;
        let makers: [(Kind, Make); 2] =
            [(Kind::Fill, nemesis::make_small_disk), (Kind::Disk, nemesis::make_disk_of_its_own)];
        for (_, make) in makers.iter().filter(|(kind, _)| faults.contains(kind)) {
            site.cluster.down()?;
            site.mounted.push(make(&site.cluster)?);
            let lines = site.mounted.iter().map(|d| format!("{}\n", d.display()));
            std::fs::write(site.place.own.join("mounted"), lines.collect::<String>())?;
            site.cluster.up_again()?;
        }
        Ok(site)
    }
    /// What mgmtd knows of the cluster.
    pub fn view(&self) -> Arc<View> {
        self.cluster.view.clone()
    }
    /// Has the guard take down everything, also what hangs, and waits for it; for a run that cannot go on.
    pub fn give_up(&self) -> impl Fn() + Send + 'static {
        let (own, keep) = (self.place.own.clone(), self.keep);
        move || {
            if keep {
                let _ = std::fs::write(own.join("cut"), "");
                eprintln!("the cluster stays in {} for a look, but for its mounts", own.display());
                return;
            }
            let _ = std::fs::write(own.join("down"), "");
            let began = Instant::now();
            while own.exists() && began.elapsed() < GUARD_BOUND {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    /// The end: everything is taken down, unless the run failed and what is there shall be kept.
    pub fn close<R>(mut self, result: Result<R>, passed: impl Fn(&R) -> bool) -> Result<R> {
        let good = result.as_ref().is_ok_and(passed);
        if self.keep && !good {
            self.stay();
            return result;
        }
        let down = self.take_down();
        self.closed = down.is_ok();
        let report = result?;
        down?;
        Ok(report)
    }
    fn take_down(&mut self) -> Result<()> {
        if !self.mounted.is_empty() {
            self.cluster.down()?;
        }
        for disk in self.mounted.drain(..) {
            self.cluster.run(&["umount".into(), disk.to_string_lossy().into_owned()])?;
        }
        self.cluster.destroy()?;
        self.place.remove()
    }
    fn stay(&mut self) {
        self.closed = true;
        let _ = std::fs::write(self.place.own.join("leave"), "");
        eprintln!("the cluster stays in {} for a look", self.cluster.dir.display());
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        match self.keep {
            true => self.stay(),
            // The guard does the rest.
            false => drop(std::fs::write(self.place.own.join("down"), "")),
        }
    }
}

/// Starts the guard over `place`, in a process group that no Ctrl-C reaches.
fn guard(place: &Path, glowfs: &Path) -> Result<()> {
    let glowfs = glowfs.canonicalize().with_context(|| format!("{}", glowfs.display()))?;
    let mut sh = Command::new("sh");
    sh.args(["-c", GUARD, "guard"]).arg(place).arg(glowfs).arg(std::process::id().to_string());
    let mut child = sh
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .context("starting the guard")?;
    std::thread::spawn(move || child.wait());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    #[test]
    fn only_what_was_made_is_removed() {
        let top = tempfile::tempdir().expect("directory");
        std::fs::write(top.path().join("precious"), "mine").expect("a file");
        let (a, b) = (Place::make(top.path()).expect("one"), Place::make(top.path()).expect("two"));
        assert_ne!(a.own, b.own);
        std::fs::write(a.own.join("x"), "").expect("a file");
        a.remove().expect("removed");
        assert!(!a.own.exists() && b.own.exists());
        assert_eq!(std::fs::read(top.path().join("precious")).expect("still there"), b"mine");

        let new = top.path().join("new");
        let c = Place::make(&new).expect("three");
        c.remove().expect("removed");
        assert!(!new.exists(), "made for the run");
        let c = Place::make(&new).expect("four");
        std::fs::write(new.join("of another"), "").expect("a file");
        c.remove().expect("removed");
        assert!(new.join("of another").exists());
    }

    #[test]
    fn the_guard_takes_down_what_a_dead_process_left() {
        let top = tempfile::tempdir().expect("directory");
        let place = Place::make(top.path()).expect("a place");
        std::fs::create_dir(place.own.join("data")).expect("data");
        let sleep = || Command::new("sleep").arg("1000").spawn().expect("a process");
        let (mut run, mut mount, mut another) = (sleep(), sleep(), sleep());
        // A mount's daemon, and one whose number another process has by now, of the very same program.
        let began = |c: &std::process::Child| Process::now(c.id()).expect("it runs").began;
        let note = |name: &str, pid: u32, began: u64| {
            std::fs::write(place.own.join(name), format!("{pid} {began}\n")).expect("a note");
        };
        note("mount2.pid", mount.id(), began(&mount));
        note("mount3.pid", another.id(), began(&another) - 1);
        let program = std::fs::read_link(format!("/proc/{}/exe", mount.id())).expect("sleep");
        let mut sh = Command::new("sh");
        sh.args(["-c", GUARD, "guard"]).arg(&place.own).arg(program).arg(run.id().to_string());
        let mut guard = sh.spawn().expect("the guard");
        std::thread::sleep(Duration::from_millis(1200));
        assert!(place.own.exists(), "it lives");
        run.kill().expect("kill");
        assert!(guard.wait().expect("the guard").success());
        assert!(!place.own.exists() && top.path().exists());
        run.wait().expect("wait");
        assert!(!mount.wait().expect("its end").success(), "killed");
        assert!(another.try_wait().expect("its state").is_none(), "it lives");
        another.kill().expect("kill");
        another.wait().expect("wait");
    }
}
