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
pub enum BadAddress {
    /// It is not written as one.
    Form(String),
    /// It is, but nobody knows its host.
    Unknown {
        /// The address.
        address: String,
        /// What the resolver said.
        why: String,
    },
}

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(s) => write!(
                f,
                "«{s}» is not an address; write HOST:PORT, tcp://HOST:PORT or unix:///PATH"
            ),
            Self::Unknown { address, why } => write!(
                f,
                "the host of «{address}» cannot be resolved ({why}): correct the name, or see to DNS or /etc/hosts"
            ),
        }
    }
}
impl std::error::Error for BadAddress {}

impl Address {
    /// An address that needs no resolver; None: it names a host.
    pub fn literal(s: &str) -> Option<Result<Self, BadAddress>> {
        if let Some(path) = s.strip_prefix("unix://") {
            let absolute = path.starts_with('/');
            let bad = || BadAddress::Form(s.to_owned());
            return Some(absolute.then(|| Self::Unix(path.into())).ok_or_else(bad));
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
        let host = s.strip_prefix("tcp://").unwrap_or(s);
        let named = host.rsplit_once(':').is_some_and(|(name, port)| {
            !name.is_empty() && !name.contains(['/', ':']) && port.parse::<u16>().is_ok()
        });
        if !named {
            return Err(BadAddress::Form(s.to_owned()));
        }
        let unknown = |why| BadAddress::Unknown { address: s.to_owned(), why };
        let mut found =
            std::net::ToSocketAddrs::to_socket_addrs(host).map_err(|e| unknown(e.to_string()))?;
        found.next().map(Self::Tcp).ok_or_else(|| unknown("it has no address".into()))
    }
}

/// Checks where a service listens, for that is what it tells all others to dial: no address that means every machine («0.0.0.0», «[::]»), and
/// not only this machine's own where those that it works with (`others`) are elsewhere. The error says what to write.
pub fn check_announced(listen: &[String], others: &[String]) -> Result<(), String> {
    let mut reached = false;
    for text in listen {
        let address: Address = text.parse().map_err(|e: BadAddress| e.to_string())?;
        let Address::Tcp(tcp) = &address else { continue };
        if tcp.ip().is_unspecified() {
            return Err(format!(
                "{text} is every address of this machine, and of every other one that is told to dial it; write the one by which the others reach this machine"
            ));
        }
        reached |= !tcp.ip().to_canonical().is_loopback();
    }
    // Names of others are looked up only if they matter.
    if reached {
        return Ok(());
    }
    let elsewhere = |text: &&String| matches!(text.parse(), Ok(Address::Tcp(a)) if !a.ip().to_canonical().is_loopback());
    match others.iter().find(elsewhere) {
        Some(other) => Err(format!(
            "only this machine reaches {}, and {other} is another one; write the address by which the others reach this machine",
            listen.join(", ")
        )),
        None => Ok(()),
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
            assert!(matches!(s.parse::<Address>(), Err(BadAddress::Form(_))), "{s}");
        }
        let e = "no-such-host.invalid:9000".parse::<Address>().expect_err("nobody knows it");
        assert!(matches!(&e, BadAddress::Unknown { .. }), "{e}");
        assert!(!e.to_string().contains("not an address"), "{e}");
    }

    #[test]
    fn what_is_announced_can_be_dialled_by_others() {
        let check = |listen: &[&str], others: &[&str]| {
            let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
            check_announced(&own(listen), &own(others))
        };
        let (here, there) = ("tcp://127.0.0.1:0", "tcp://10.0.0.1:9000");
        check(&[here], &["tcp://[::1]:9000"]).expect("all on one machine");
        check(&[here, "tcp://10.0.0.2:1"], &[there]).expect("reached");
        check(&["unix:///run/x.sock"], &["unix:///run/y.sock"]).expect("no network");
        for (listen, others) in [
            ("tcp://0.0.0.0:1", here),
            ("tcp://[::]:1", here),
            (here, there),
            ("tcp://127.0.1.1:1", there),
            ("unix:///run/x.sock", there),
        ] {
            check(&[listen], &[others]).expect_err(listen);
        }
    }
}
