//! Tables for people, JSON for programs.

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::Write;

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON instead of a table.
    pub json: bool,
}

impl Output {
    /// Prints rows: `columns` names the table's columns, `row` makes the cells of one.
    pub fn rows<T: Serialize>(
        self,
        rows: &[T],
        columns: &[&str],
        row: impl Fn(&T) -> Vec<String>,
    ) -> Result<()> {
        if self.json {
            return self.value(&rows);
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(columns.iter().map(|c| c.to_uppercase()));
        for r in rows {
            table.add_row(row(r).iter().map(|cell| plain(cell)));
        }
        print(&format!("{}\n", table.trim_fmt()))
    }

    /// Prints one value as JSON.
    pub fn value<T: Serialize>(self, value: &T) -> Result<()> {
        print(&format!("{}\n", serde_json::to_string_pretty(value)?))
    }

    /// Prints lines for people, or the value as JSON.
    pub fn either<T: Serialize>(self, value: &T, people: impl FnOnce(&T) -> String) -> Result<()> {
        if self.json { self.value(value) } else { print(&people(value)) }
    }
}

/// Writes to standard output; a reader that went away (`| head`) is no error.
pub fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Names may have any bytes: without what would move the cursor of a terminal, or begin a line that is none.
pub fn plain(text: &str) -> String {
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Bytes as people read them: `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// How long ago a moment was, from nanoseconds since the Unix epoch.
pub fn ago(then_ns: u64) -> String {
    if then_ns == 0 {
        return "never".into();
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64);
    let secs = now.saturating_sub(then_ns) as f64 / 1e9;
    if secs < 120.0 { format!("{secs:.1} s ago") } else { format!("{:.0} min ago", secs / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_speak_to_the_terminal() {
        assert_eq!(plain("größe 7\u{1b}[2J\nroot"), "größe 7\\u{1b}[2J\\nroot");
    }

    #[test]
    fn bytes_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
    }
}
