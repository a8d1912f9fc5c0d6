//! What this process is: its id, its host and the host's name.
//!
//! Services tell each other; so it must be the same in every run of a simulated seed, and the simulator
//! says for each task which simulated process it belongs to ([`pretend`]).

use std::cell::Cell;

thread_local!(static PRETENDED: Cell<Option<Simulated>> = const { Cell::new(None) });

/// A simulated process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulated {
    /// Its id.
    pub pid: u32,
    /// The number of its host.
    pub host: u32,
    /// How often that was started.
    pub boot: u32,
}

/// From now on this thread is that simulated process (or the real one again).
pub fn pretend(process: Option<Simulated>) {
    PRETENDED.set(process);
}

/// The id of this process.
pub fn pid() -> u32 {
    PRETENDED.get().map_or_else(std::process::id, |p| p.pid)
}

/// The boot id of this host, in its usual form; None if it cannot be read.
pub fn boot_id() -> Option<String> {
    match PRETENDED.get() {
        Some(p) => {
            let boot = u128::from(p.boot) << 64;
            Some(format!("{:032x}", boot + 0xb007_0000_0000_0001 + u128::from(p.host)))
        }
        None => read_line("/proc/sys/kernel/random/boot_id"),
    }
}

/// The name of this host, for people; "" if it cannot be read.
pub fn hostname() -> String {
    match PRETENDED.get() {
        Some(p) => format!("simulated{}", p.host),
        None => read_line("/proc/sys/kernel/hostname").unwrap_or_default(),
    }
}

/// How many mappings a process may have (`vm.max_map_count`); what it is by default if that cannot be read.
pub fn mappings_max() -> u64 {
    const BY_DEFAULT: u64 = 65_530;
    let set = read_line("/proc/sys/vm/max_map_count");
    set.and_then(|n| n.parse().ok()).unwrap_or(BY_DEFAULT)
}

/// Lets this process have as many descriptors as it may (the soft limit of them is small for the sake of old programs); how many
/// that are.
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let all = Rlimit { current: now.maximum, ..now };
    let limit = match setrlimit(Resource::Nofile, all) {
        Ok(()) => now.maximum,
        Err(_) => now.current,
    };
    limit.unwrap_or(u64::MAX)
}

/// Whether an operation failed only because this process, or the system, has no descriptor left: no fault of the file, and it passes.
pub fn lacks_descriptors(e: &std::io::Error) -> bool {
    use rustix::io::Errno;
    Errno::from_io_error(e).is_some_and(|e| matches!(e, Errno::MFILE | Errno::NFILE))
}

fn read_line(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
