//! Metrics of the process itself, read from the kernel when somebody asks.

use std::fmt::Write;

/// CPU seconds, memory, file descriptors, uptime and build, in the Prometheus text format. What cannot be read is left out.
pub(crate) fn text(uptime_seconds: f64) -> String {
    let mut out = String::new();
    let mut put = |name: &str, kind: &str, help: &str, value: f64| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    if let Some((cpu_seconds, threads, rss_bytes)) = stat() {
        put("process_cpu_seconds_total", "counter", "User and system CPU time.", cpu_seconds);
        put("process_threads", "gauge", "Threads.", threads);
        put("process_resident_memory_bytes", "gauge", "Resident memory.", rss_bytes);
    }
    if let Ok(dir) = std::fs::read_dir("/proc/self/fd") {
        // The directory being read is one of them.
        let open = dir.count().saturating_sub(1) as f64;
        put("process_open_fds", "gauge", "Open file descriptors.", open);
    }
    put("process_uptime_seconds", "gauge", "Time since the start.", uptime_seconds);
    let release = crate::RELEASE;
    let _ = writeln!(
        out,
        "# HELP glowfs_build_info The build.\n# TYPE glowfs_build_info gauge\n\
         glowfs_build_info{{release=\"{release}\"}} 1"
    );
    out
}

/// CPU seconds, threads and resident bytes.
fn stat() -> Option<(f64, f64, f64)> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    parse_stat(&text, rustix::param::clock_ticks_per_second(), rustix::param::page_size())
}

fn parse_stat(text: &str, ticks_per_second: u64, page_bytes: usize) -> Option<(f64, f64, f64)> {
    // The second field is the command in parentheses and may hold anything.
    let rest = text.rsplit_once(')')?.1;
    let field = |n: usize| rest.split_whitespace().nth(n - 3)?.parse::<f64>().ok();
    let cpu = (field(14)? + field(15)?) / ticks_per_second as f64;
    Some((cpu, field(20)?, field(24)? * page_bytes as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields() {
        let line =
            "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 3 0 99 1000 25 18446744073709551615";
        assert_eq!(parse_stat(line, 100, 4096), Some((2.0, 3.0, 25.0 * 4096.0)));
        assert_eq!(parse_stat("", 100, 4096), None);
        assert!(text(1.5).contains("process_resident_memory_bytes "));
    }
}
