//! A line on standard error that says how far something long is.

use glowfs_rt::{Duration, Instant, Rt};
use std::io::{IsTerminal, Write};

/// Between two lines: often on a terminal, where a line replaces the one before, seldom in a log.
const TERMINAL_EVERY: Duration = Duration::from_millis(200);
const LOG_EVERY: Duration = Duration::from_secs(10);

/// See the module.
pub struct ProgressLine {
    rt: Rt,
    last: Instant,
    terminal: bool,
    open: bool,
}

impl ProgressLine {
    /// Nothing is shown before some time has passed.
    pub fn new(rt: &Rt) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { rt: rt.clone(), last: rt.now(), terminal, open: false }
    }

    /// `done` of `of` (0: not known) in this step.
    pub fn show(&mut self, step: &str, done: u64, of: u64) {
        let now = self.rt.now();
        let every = if self.terminal { TERMINAL_EVERY } else { LOG_EVERY };
        if now.since(self.last) < every {
            return;
        }
        self.last = now;
        let share = match done.saturating_mul(100).checked_div(of) {
            Some(percent) => format!(" (about {} %)", percent.min(100)),
            None => String::new(),
        };
        if self.terminal {
            eprint!("\r\x1b[K{step}: {done}{share}");
            let _ = std::io::stderr().flush();
            self.open = true;
        } else {
            eprintln!("{step}: {done}{share}");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.open {
            eprintln!();
        }
    }
}
