//! Who asks: uid and gid are in the request, supplementary groups in /proc.

use glowfs_fuse::Header;
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::VolumeId;
use glowfs_types::wire::meta::Caller;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The greatest number of processes whose groups are kept.
const CACHE_MAX: usize = 1024;

/// pid, uid, gid.
type Who = (u32, u32, u32);
/// When they were read, and the groups.
type Known = (Instant, Vec<u32>);

/// Makes [`Caller`]s; keeps groups for a moment.
pub struct Callers {
    rt: Rt,
    volume: VolumeId,
    ttl: Duration,
    cache: RefCell<BTreeMap<Who, Known>>,
}

impl Callers {
    /// Callers of one volume.
    pub fn new(rt: &Rt, volume: VolumeId, ttl: Duration) -> Self {
        Self { rt: rt.clone(), volume, ttl, cache: RefCell::default() }
    }

    /// The caller of a request. Root needs no groups; they are not looked up for it.
    pub fn of(&self, h: &Header, sent: &[u32]) -> Caller {
        let mut groups = if h.uid == 0 || h.pid == 0 { Vec::new() } else { self.groups(h) };
        for g in sent {
            if !groups.contains(g) {
                groups.push(*g);
            }
        }
        Caller { uid: h.uid, gid: h.gid, groups, volume: self.volume, ..Caller::default() }
    }

    /// The daemon itself, for what the kernel delegated to it (clearing set-user-id bits).
    pub fn root(&self) -> Caller {
        Caller { volume: self.volume, ..Caller::default() }
    }

    fn groups(&self, h: &Header) -> Vec<u32> {
        let key = (h.pid, h.uid, h.gid);
        let now = self.rt.now();
        let mut cache = self.cache.borrow_mut();
        if let Some((at, groups)) = cache.get(&key)
            && now.since(*at) < self.ttl
        {
            return groups.clone();
        }
        // procfs answers from memory and does not block, so this needs no helper thread.
        let status = std::fs::read_to_string(format!("/proc/{}/status", h.pid)).unwrap_or_default();
        let groups = parse_groups(&status);
        if cache.len() >= CACHE_MAX {
            cache.clear();
        }
        cache.insert(key, (now, groups.clone()));
        groups
    }
}

/// Whether a thread is to end by SIGKILL, or by another signal that ends its process: the kernel then has SIGKILL wait for each of its threads. Not of a
/// thread that this process cannot see.
pub fn is_killed(thread: u32) -> bool {
    if thread == 0 {
        return false;
    }
    std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|s| parse_killed(&s))
}

fn parse_killed(status: &str) -> bool {
    let pending = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    };
    let all = status.lines().filter_map(pending).fold(0, |all, set| all | set);
    all & (1 << (libc::SIGKILL - 1)) != 0
}

fn parse_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix("Groups:"));
    line.map(|l| l.split_whitespace().filter_map(|g| g.parse().ok()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn sees_who_was_killed() {
        let killed = |own, shared| {
            super::parse_killed(&format!(
                "SigQ:\t0/1\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t00000100\n"
            ))
        };
        assert!(killed("0000000000000100", "0000000000000000"));
        assert!(killed("0000000000000000", "0000000000004100"));
        assert!(!killed("0000000000002000", "0000000000004000"));
        assert!(!super::is_killed(std::process::id()) && !super::is_killed(0));
    }
    #[test]
    fn reads_the_groups_line() {
        assert_eq!(super::parse_groups("Uid:\t0\nGroups:\t4 24 1000 \nX:\t1\n"), [4, 24, 1000]);
        assert!(super::parse_groups("Groups:\t\n").is_empty());
        assert!(super::parse_groups("").is_empty());
    }
}
