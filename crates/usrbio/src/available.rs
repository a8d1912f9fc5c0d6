//! How much memory this process can still get without anybody losing any.
//!
//! Asked for more, the kernel ends some process, of the machine or of the control group that is full: a container, for example.

use std::path::Path;

/// Where a version of control groups says what.
struct Files {
    root: &'static str,
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`: what is used and is given up when others need it.
    kept_while_free: &'static [&'static str],
}

const V1: Files = Files {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    kept_while_free: &["total_inactive_file", "total_active_file"],
};
const V2: Files = Files {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    kept_while_free: &["inactive_file", "active_file", "slab_reclaimable"],
};

/// In bytes: of the machine, or of a control group that this process is in, if one has less. None: nobody says.
pub(crate) fn available_bytes() -> Option<u64> {
    available(&|path: &str| std::fs::read_to_string(path).ok())
}

fn available(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    of_machine(read).into_iter().chain(of_groups(read)).min()
}

/// `MemAvailable` of proc_meminfo(5).
fn of_machine(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let text = read("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The least of its groups and of all that these are in.
fn of_groups(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let of_line = |line: &str| {
        // cgroups(7): hierarchy, controllers, path.
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let files = match controllers {
            "" => &V2,
            some if some.split(',').any(|c| c == "memory") => &V1,
            _ => return None,
        };
        // A container may see its own group as the root: of the path there is nothing then, and of the root what is its own.
        let within = Path::new(path).ancestors().filter_map(Path::to_str);
        within.filter_map(|path| of_group(files, path.trim_end_matches('/'), read)).min()
    };
    groups.lines().filter_map(of_line).min()
}

fn of_group(files: &Files, path: &str, read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let file = |name: &str| read(&format!("{}{path}/{name}", files.root));
    let number = |name: &str| file(name)?.trim().parse::<u64>().ok();
    // No number: there is no limit.
    let limit = number(files.limit)?;
    let stat = file("memory.stat").unwrap_or_default();
    let kept = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        files.kept_while_free.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
    });
    let used = number(files.used)?.saturating_sub(kept.fold(0, u64::saturating_add));
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    4000 kB\n");

    fn with(files: &[(&str, &str)]) -> Option<u64> {
        let read = |path: &str| {
            let found = files.iter().chain([&MACHINE]).find(|(name, _)| *name == path)?;
            Some(found.1.to_owned())
        };
        available(&read)
    }

    #[test]
    fn it_is_what_the_machine_has_or_the_tightest_group() {
        assert_eq!(with(&[]), Some(4_096_000));
        let group = ("/proc/self/cgroup", "0::/jobs/one\n");
        let unlimited = ("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
        assert_eq!(with(&[group, unlimited]), Some(4_096_000));
        let outer = [
            group,
            unlimited,
            ("/sys/fs/cgroup/jobs/memory.max", "1000000\n"),
            ("/sys/fs/cgroup/jobs/memory.current", "900000\n"),
        ];
        assert_eq!(with(&outer), Some(100_000));
        let stat =
            "anon 5\nfile 700000\ninactive_file 200000\nactive_file 100000\nslab_reclaimable 7\n";
        let cached = ("/sys/fs/cgroup/jobs/memory.stat", stat);
        assert_eq!(
            with(&[&outer[..], &[cached]].concat()),
            Some(400_007),
            "it is given up for others"
        );
        let large = ("/sys/fs/cgroup/jobs/memory.max", "1000000000000\n");
        assert_eq!(with(&[group, large, outer[3]]), Some(4_096_000));
    }

    #[test]
    fn older_groups_and_containers_that_see_their_own_as_the_root() {
        let older = [
            ("/proc/self/cgroup", "5:cpu,cpuacct:/a\n3:memory,hugetlb:/docker/x:y\n0::/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 2500\ninactive_file 9\n"),
        ];
        assert_eq!(with(&older), Some(1500));
        assert_eq!(with(&older[..3]), Some(0), "more is used than may be");
        let own = [
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/memory.max", "5000\n"),
            ("/sys/fs/cgroup/memory.current", "1000\n"),
        ];
        assert_eq!(with(&own), Some(4000));
    }
}
