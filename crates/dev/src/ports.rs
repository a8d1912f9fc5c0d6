//! TCP ports of a dev cluster.
//!
//! They lie below those that the kernel gives out by itself (ip(7), `ip_local_port_range`). A port of that range is taken by any
//! connection that happens to get it while its service is down, even by one that looks for that very service: it then meets itself.

use crate::state::State;
use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The lowest port.
const PORT_MIN: u16 = 10_000;
/// The kernel's own ports begin here if it does not say, or where they leave too few below.
const RANGE_DEFAULT: u16 = 32_768;
/// Ports that there must be to choose from.
const CHOICE_MIN: u16 = 1000;
/// Attempts to find one free port.
const ATTEMPTS: u32 = 1000;

/// Finds `n` free ports of 127.0.0.1 that no other cluster keeps. They are all held until the last is found, so they differ; between here and the service's own
/// bind another process could take one, which that service then reports.
pub fn free(n: usize) -> Result<Vec<SocketAddr>> {
    let (end, kept) = (kernel_range_begin(), kept());
    let mut held = Vec::with_capacity(n);
    while held.len() < n {
        held.push(one(end, &kept)?);
    }
    Ok(held.into_iter().map(|(address, _)| address).collect())
}

/// Ports of all clusters that have a process on this machine: of a service that is down just now nothing else tells that it will want its port again.
fn kept() -> BTreeSet<u16> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    let clusters: BTreeSet<PathBuf> = lines.filter_map(|line| cluster_of(&line)).collect();
    // What is no cluster of this release keeps none that could be known.
    let states = clusters.iter().filter_map(|dir| State::load(dir).ok());
    let services = states.flat_map(|s| s.services);
    let addresses = services.flat_map(|s| [Some(s.address), Some(s.http), s.peer]);
    addresses.flatten().filter_map(|a| a.parse::<SocketAddr>().ok()).map(|a| a.port()).collect()
}

/// The directory of the cluster that a process is of: `glowfs ROLE --config DIR/etc/ID.toml`, as it stands in `/proc/PID/cmdline`.
fn cluster_of(cmdline: &[u8]) -> Option<PathBuf> {
    let mut words = cmdline.split(|b| *b == 0);
    words.find(|w| *w == b"--config")?;
    let config = Path::new(OsStr::from_bytes(words.next()?));
    config.parent().filter(|etc| etc.ends_with("etc"))?.parent().map(Path::to_owned)
}

fn kernel_range_begin() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|r| r.split_whitespace().next()?.parse::<u16>().ok());
    first.filter(|p| *p > PORT_MIN + CHOICE_MIN).unwrap_or(RANGE_DEFAULT)
}

fn one(end: u16, kept: &BTreeSet<u16>) -> Result<(SocketAddr, TcpListener)> {
    for _ in 0..ATTEMPTS {
        let mut raw = [0; 2];
        rustix::rand::getrandom(&mut raw, rustix::rand::GetRandomFlags::empty())?;
        let port = PORT_MIN + u16::from_le_bytes(raw) % (end - PORT_MIN);
        if !kept.contains(&port)
            && let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        {
            return Ok((listener.local_addr()?, listener));
        }
    }
    bail!("no free port from {PORT_MIN} to {end} on 127.0.0.1 in {ATTEMPTS} attempts")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Service;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn ports_differ_and_are_not_the_kernels() {
        let ports = free(40).expect("ports");
        let mut numbers: Vec<_> = ports.iter().map(SocketAddr::port).collect();
        assert!(numbers.iter().all(|p| (PORT_MIN..kernel_range_begin()).contains(p)), "{ports:?}");
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 40);
    }

    #[test]
    fn the_port_of_a_service_that_is_down_is_kept() {
        let dir = std::env::temp_dir().join(format!("glowfs-ports-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        let mut state = State::new("0".repeat(32), dir.join("mnt"), dir.join("run"));
        let service = |id: &str, port: u16| Service {
            role: "storage".into(),
            id: id.into(),
            node: 0,
            address: format!("127.0.0.1:{port}"),
            http: format!("127.0.0.1:{}", port + 1),
            data: vec![],
            peer: None,
            namespace: None,
            process: None,
        };
        state.services = vec![service("storage-1", 5), service("storage-2", 8)];
        state.save(&dir).expect("saved");
        let begun = Command::new("sh")
            .args(["-c", "read end", "glowfs", "--config"])
            .arg(dir.join("etc/storage-1.toml"))
            .stdin(Stdio::piped())
            .spawn();
        let mut one_lives = begun.expect("sh");
        let all: BTreeSet<u16> = [5, 6, 8, 9].into();
        // Its command line is there a moment after the process.
        let patience = Instant::now() + Duration::from_secs(20);
        while !kept().is_superset(&all) {
            assert!(Instant::now() < patience, "{:?}", kept());
        }
        drop(one_lives.stdin.take());
        one_lives.wait().expect("it ended");
        assert!(kept().is_disjoint(&all), "{:?}", kept());
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
