//! TCP ports of a dev cluster.
//!
//! They lie below those that the kernel gives out by itself (ip(7), `ip_local_port_range`). A port of that range is taken by any
//! connection that happens to get it while its service is down, even by one that looks for that very service: it then meets itself.
//!
//! Whoever chooses a port claims it until its service listens there: between the two another cluster that comes up would find it free.

use crate::state::State;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// The lowest port.
const PORT_MIN: u16 = 10_000;
/// The kernel's own ports begin here if it does not say, or where they leave too few below.
const RANGE_DEFAULT: u16 = 32_768;
/// Ports that there must be to choose from.
const CHOICE_MIN: u16 = 1000;
/// Attempts to find one free port.
const ATTEMPTS: u32 = 1000;

/// A port that no other cluster of this machine chooses while this lives: a name among the abstract sockets (unix(7)). They are of one network namespace, as
/// ports are, and end with their process.
pub struct Claim {
    address: SocketAddr,
    _name: UnixDatagram,
}

impl Claim {
    /// The port, on 127.0.0.1.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `None` if another process claims it.
    fn of(port: u16) -> io::Result<Option<Claim>> {
        let name = format!("glowfs-dev/port/{port}");
        let name = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        match UnixDatagram::bind_addr(&name) {
            Ok(name) => {
                Ok(Some(Claim { address: (Ipv4Addr::LOCALHOST, port).into(), _name: name }))
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Finds `n` free ports of 127.0.0.1 that no other cluster keeps or claims. Nothing listens there yet: a process that is no cluster could take one, which the
/// service then reports.
pub fn free(n: usize) -> Result<Vec<Claim>> {
    let (all, kept) = (PORT_MIN..kernel_range_begin(), kept());
    (0..n).map(|_| one(all.clone(), &kept)).collect()
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

fn one(all: Range<u16>, kept: &BTreeSet<u16>) -> Result<Claim> {
    for _ in 0..ATTEMPTS {
        let mut raw = [0; 2];
        rustix::rand::getrandom(&mut raw, rustix::rand::GetRandomFlags::empty())?;
        let port = all.start + u16::from_le_bytes(raw) % (all.end - all.start);
        if kept.contains(&port) {
            continue;
        }
        // First the claim: to try a port that another cluster's service is about to listen on would be in its way.
        let claim = Claim::of(port).context("claiming a port")?;
        if let Some(claim) = claim
            && TcpListener::bind(claim.address).is_ok()
        {
            return Ok(claim);
        }
    }
    bail!("no free port from {} to {} on 127.0.0.1 in {ATTEMPTS} attempts", all.start, all.end)
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
        let mut numbers: Vec<_> = ports.iter().map(|c| c.address().port()).collect();
        assert!(
            numbers.iter().all(|p| (PORT_MIN..kernel_range_begin()).contains(p)),
            "{numbers:?}"
        );
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 40);
    }

    #[test]
    fn a_port_that_was_chosen_is_nobody_elses_before_its_service_listens() {
        let chosen = free(1).expect("a port").pop().expect("one");
        let port = chosen.address().port();
        let again = || one(port..port + 1, &BTreeSet::new());
        let error = again().map(|c| c.address()).expect_err("it is claimed");
        assert!(error.to_string().contains("no free port"), "{error}");
        drop(chosen);
        assert_eq!(again().expect("free again").address().port(), port);
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
