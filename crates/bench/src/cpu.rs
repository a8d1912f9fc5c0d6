//! CPU time: of this process, and of others by proc_pid_stat(5).

use rustix::time::{ClockId, clock_gettime};

/// Clock ticks a second, as the kernel shows them to programs (always so on Linux).
const TICKS: f64 = 100.0;

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
    /// The same without this process.
    pub fn others(&self) -> f64 {
        self.0.iter().map(|pid| of(*pid).unwrap_or(0.0)).sum()
    }
}

fn of(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &text[text.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}
