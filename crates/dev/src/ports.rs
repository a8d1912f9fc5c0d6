//! TCP ports of a dev cluster.
//!
//! They lie below those that the kernel gives out by itself (ip(7), `ip_local_port_range`). A port of that range is taken by any
//! connection that happens to get it while its service is down, even by one that looks for that very service: it then meets itself.

use anyhow::{Result, bail};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// The lowest port.
const PORT_MIN: u16 = 10_000;
/// The kernel's own ports begin here if it does not say, or where they leave too few below.
const RANGE_DEFAULT: u16 = 32_768;
/// Ports that there must be to choose from.
const CHOICE_MIN: u16 = 1000;
/// Attempts to find one free port.
const ATTEMPTS: u32 = 1000;

/// Finds `n` free ports of 127.0.0.1. They are all held until the last is found, so they differ; between here and the service's own
/// bind another process could take one, which that service then reports.
pub fn free(n: usize) -> Result<Vec<SocketAddr>> {
    let end = kernel_range_begin();
    let mut held = Vec::with_capacity(n);
    while held.len() < n {
        held.push(one(end)?);
    }
    Ok(held.into_iter().map(|(address, _)| address).collect())
}

fn kernel_range_begin() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|r| r.split_whitespace().next()?.parse::<u16>().ok());
    first.filter(|p| *p > PORT_MIN + CHOICE_MIN).unwrap_or(RANGE_DEFAULT)
}

fn one(end: u16) -> Result<(SocketAddr, TcpListener)> {
    for _ in 0..ATTEMPTS {
        let mut raw = [0; 2];
        rustix::rand::getrandom(&mut raw, rustix::rand::GetRandomFlags::empty())?;
        let port = PORT_MIN + u16::from_le_bytes(raw) % (end - PORT_MIN);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return Ok((listener.local_addr()?, listener));
        }
    }
    bail!("no free port from {PORT_MIN} to {end} on 127.0.0.1 in {ATTEMPTS} attempts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_are_not_the_kernels() {
        let ports = free(40).expect("ports");
        let mut numbers: Vec<_> = ports.iter().map(SocketAddr::port).collect();
        assert!(numbers.iter().all(|p| (PORT_MIN..kernel_range_begin()).contains(p)), "{ports:?}");
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 40);
    }
}
