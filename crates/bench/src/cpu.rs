//! CPU time: of this process, and of others by the scheduler's own account (`schedstat`: nanoseconds on a processor, thread by thread).

use rustix::time::{ClockId, clock_gettime};

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
        child.kill().expect("ended");
        let _ = child.wait();
        assert!(seen >= 0.01, "{seen} s");
    }
}
