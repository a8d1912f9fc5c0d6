//! What processes took. CPU time: of this process, and of others by the scheduler's own account (`schedstat`: nanoseconds on a processor, thread by thread).

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;

/// Who took part in what is measured: this process, and these.
#[derive(Clone, Default)]
pub struct Processes(pub Vec<u32>);

impl Processes {
    /// User and system time so far, in seconds.
    pub fn seconds(&self) -> f64 {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        let own = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
        own + self.others()
    }
    /// The same without this process. (A thread that ended meanwhile takes its time with it; services keep theirs.)
    pub fn others(&self) -> f64 {
        self.0.iter().map(|pid| of(*pid).unwrap_or(0.0)).sum()
    }
    /// From now on [`Processes::peaks`] are counted.
    pub fn forget_peaks(&self) {
        for pid in &self.0 {
            // Only root may; else the peak is that of the process's life.
            let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
        }
    }
    /// The most memory that each had, in bytes, by its role (the greatest of several).
    pub fn peaks(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (role, bytes) in self.0.iter().filter_map(|pid| peak(*pid)) {
            let most: &mut u64 = all.entry(role).or_default();
            *most = bytes.max(*most);
        }
        all
    }
}

fn of(pid: u32) -> Option<f64> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let first = text.split_ascii_whitespace().next().and_then(|n| n.parse::<u64>().ok());
        nanoseconds += first.unwrap_or(0);
    }
    Some(nanoseconds as f64 / 1e9)
}

/// The sub-command that a process runs, and the peak of its memory.
fn peak(pid: u32) -> Option<(String, u64)> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let role = String::from_utf8_lossy(line.split(|b| *b == 0).nth(1)?).into_owned();
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some((role, kib << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_another_process_is_seen() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a process");
        let who = Processes(vec![child.id()]);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while who.others() < 0.01 && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let seen = who.others();
        let peaks = who.peaks();
        child.kill().expect("ended");
        let _ = child.wait();
        assert!(seen >= 0.01, "{seen} s");
        assert!(peaks.get("-c").is_some_and(|bytes| *bytes > 100 << 10), "{peaks:?}");
    }
}
