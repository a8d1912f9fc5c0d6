//! What is going on, on standard error: one line that moves on a terminal, a line each elsewhere.

use crate::row::Row;
use std::io::{IsTerminal, Write};

/// See the module.
#[derive(Clone, Copy)]
pub struct Progress {
    terminal: bool,
}

impl Progress {
    /// To standard error.
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal() }
    }
    /// A part begins.
    pub fn part(&self, what: &str) {
        eprintln!("{}{what}", if self.terminal { "\r\x1b[K" } else { "" });
    }
    /// A measurement begins; on a terminal only.
    pub fn begin(&self, what: &str) {
        if self.terminal {
            eprint!("\r\x1b[K  … {what}");
            let _ = std::io::stderr().flush();
        }
    }
    /// A measurement is done.
    pub fn row(&self, r: &Row) {
        eprintln!("{}{}", if self.terminal { "\r\x1b[K" } else { "" }, line(r));
    }
}

fn line(r: &Row) -> String {
    let head = format!(
        "  {:<9} {:<10} {:>8} x{:<4} j{:<4}",
        r.way,
        r.what,
        bytes(r.bytes),
        r.depth,
        r.jobs
    );
    if let Some(why) = &r.skipped {
        return format!("{head} left out: {why}");
    }
    let cpu = r.cpu_us_per_op.map_or(String::new(), |c| format!("  CPU {} each", micros(c)));
    let limit = r.of_limit().map_or(String::new(), |l| format!("  {:.2} of the limit", l));
    format!(
        "{head} {:>9}/s {:>11}  p50 {:>9}  p99 {:>9}{cpu}{limit}",
        count(r.ops_per_second),
        format!("{}/s", bytes(r.bytes_per_second as u64)),
        micros(r.latency_us[1]),
        micros(r.latency_us[2]),
    )
}

/// A number of about three figures, without a needless «.0».
fn short(n: f64) -> String {
    if n >= 100.0 || (n - n.round()).abs() < 0.005 { format!("{n:.0}") } else { format!("{n:.1}") }
}

/// `4 KiB`.
pub fn bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    format!("{} {unit}", short(value))
}

/// `12.3 K`.
pub fn count(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{} G", short(n / 1e9)),
        n if n >= 1e6 => format!("{} M", short(n / 1e6)),
        n if n >= 1e3 => format!("{} K", short(n / 1e3)),
        n => short(n),
    }
}

/// `12 us`, `3.4 ms`.
pub fn micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", short(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", short(us / 1e3)),
        us if us >= 1.0 => format!("{} us", short(us)),
        us => format!("{:.0} ns", us * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [bytes(0), bytes(4096), bytes(1536), bytes(300 << 30)],
            ["0 B", "4 KiB", "1.5 KiB", "300 GiB"]
        );
        assert_eq!(
            [count(7.0), count(1234.0), count(50_000.0), count(3e6)],
            ["7", "1.2 K", "50 K", "3 M"]
        );
        assert_eq!(
            [micros(0.25), micros(20.0), micros(1500.0), micros(2e6)],
            ["250 ns", "20 us", "1.5 ms", "2 s"]
        );
    }
}
