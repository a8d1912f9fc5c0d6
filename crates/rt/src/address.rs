//! Where a service listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An address as it stands in configuration and routing info: `tcp://host:port` or `unix:///path`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Address {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A Unix stream socket: same host, can pass shared memory.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(a) => write!(f, "tcp://{a}"),
            Self::Unix(p) => write!(f, "unix://{}", p.display()),
        }
    }
}

/// An address that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadAddress(pub String);

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "«{}» is not an address; write HOST:PORT, tcp://HOST:PORT or unix:///PATH",
            self.0
        )
    }
}
impl std::error::Error for BadAddress {}

impl Address {
    /// An address that needs no resolver; None: it names a host.
    pub fn literal(s: &str) -> Option<Result<Self, BadAddress>> {
        if let Some(path) = s.strip_prefix("unix://") {
            let absolute = path.starts_with('/');
            return Some(absolute.then(|| Self::Unix(path.into())).ok_or(BadAddress(s.to_owned())));
        }
        let host = s.strip_prefix("tcp://").unwrap_or(s);
        host.parse().ok().map(|address| Ok(Self::Tcp(address)))
    }
}

impl std::str::FromStr for Address {
    type Err = BadAddress;
    /// Also takes a bare `HOST:PORT`. A host name is resolved (the first address counts), which may wait for the network: on a loop, only while
    /// the process starts.
    fn from_str(s: &str) -> Result<Self, BadAddress> {
        if let Some(literal) = Self::literal(s) {
            return literal;
        }
        let bad = || BadAddress(s.to_owned());
        let host = s.strip_prefix("tcp://").unwrap_or(s);
        let mut found = std::net::ToSocketAddrs::to_socket_addrs(host).map_err(|_| bad())?;
        found.next().map(Self::Tcp).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        for s in ["tcp://127.0.0.1:80", "tcp://[::1]:80", "unix:///run/x.sock"] {
            assert_eq!(s.parse::<Address>().expect(s).to_string(), s);
        }
        assert_eq!(
            "127.0.0.1:9".parse::<Address>().expect("bare").to_string(),
            "tcp://127.0.0.1:9"
        );
        assert_eq!(Address::literal("localhost:9"), None, "needs a resolver");
        for s in ["", "nonsense", "unix://relative", "tcp://", "1.2.3.4"] {
            assert!(s.parse::<Address>().is_err(), "{s}");
        }
    }
}
