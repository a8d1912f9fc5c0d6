//! Cuts in the network of a cluster whose services have networks of their own (`dev up --separate`).

use crate::cluster::{Cluster, Network, Service};
use crate::random::Random;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// What was lost in a short cut is sent again after a while (TCP's is 200 ms at least).
const AGAIN_BOUND: Duration = Duration::from_secs(2);

/// A cut, ready to be made.
pub struct Cut {
    /// In words.
    pub name: String,
    make: Vec<String>,
    mend: Vec<String>,
    /// A cable is out, on which packets are lost without a count: those that were sent again tell.
    cable: bool,
}

/// What the kernel has counted in the networks of some services and of this process, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Packets that no way was there for.
    no_way: u64,
    /// Packets of TCP that were sent again.
    again: u64,
}

impl Counts {
    /// As it is now.
    pub fn now(all: &[Service]) -> Self {
        let pids =
            all.iter().filter_map(|s| s.network.as_ref().and(s.process)).map(|p| p.pid.to_string());
        let mut sum = Self::default();
        for of in pids.chain(["self".to_owned()]) {
            let text = std::fs::read_to_string(format!("/proc/{of}/net/snmp")).unwrap_or_default();
            sum.no_way += count(&text, "Ip:", "OutNoRoutes");
            sum.again += count(&text, "Tcp:", "RetransSegs");
        }
        sum
    }
}

/// One number of `/proc/PID/net/snmp`: of each protocol there is a line of names, and one of numbers.
fn count(text: &str, protocol: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|l| l.starts_with(protocol));
    let (names, numbers) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut both = names.split(' ').zip(numbers.split(' '));
    both.find(|(n, _)| *n == name).and_then(|(_, v)| v.parse().ok()).unwrap_or_default()
}

impl Cut {
    /// Makes it.
    pub fn make(&self, c: &Cluster) -> Result<()> {
        self.make.iter().try_for_each(|line| ip(c, line))
    }
    /// Mends it.
    pub fn mend(&self, c: &Cluster) -> Result<()> {
        self.mend.iter().try_for_each(|line| ip(c, line))
    }
    /// How many packets it took, or rather: at least one for each that was to pass and was tried again. Call when it is mended.
    pub fn lost(&self, before: &Counts, all: &[Service]) -> u64 {
        let began = Instant::now();
        loop {
            let now = Counts::now(all);
            let again = if self.cable { now.again.saturating_sub(before.again) } else { 0 };
            let lost = now.no_way.saturating_sub(before.no_way) + again;
            if lost > 0 || !self.cable || began.elapsed() > AGAIN_BOUND {
                return lost;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    /// What `from` sends to `to` is lost; `None` is this side, with all clients.
    fn block(&mut self, from: Option<&Network>, to: &Network) {
        let at = from.map(|f| format!("-n {} ", f.namespace)).unwrap_or_default();
        self.make.push(format!("{at}route add blackhole {}/32", to.ip));
        self.mend.push(format!("{at}route del blackhole {}/32", to.ip));
    }
}

fn ip(c: &Cluster, line: &str) -> Result<()> {
    let argv: Vec<String> =
        std::iter::once("ip").chain(line.split(' ')).map(String::from).collect();
    c.run(&argv).map(|_| ())
}

fn own(s: &Service) -> Result<Network> {
    s.network.clone().context("no network of its own: dev up --separate")
}

/// Its cable is out.
pub fn from_all(target: &Service) -> Result<Cut> {
    let net = own(target)?;
    Ok(Cut {
        name: format!("{} is cut off from all", target.id),
        make: vec![format!("link set {} down", net.port)],
        mend: vec![format!("link set {} up", net.port)],
        cable: true,
    })
}

/// A cut that hits the first of `targets`.
pub fn choose(all: &[Service], targets: &[Service], random: &mut Random) -> Result<Cut> {
    let target = targets.first().context("nobody to cut off")?;
    let net = own(target)?;
    let mut cut = Cut { name: String::new(), make: vec![], mend: vec![], cable: false };
    let managers: Vec<&Service> =
        all.iter().filter(|s| s.role == "mgmtd" && s.id != target.id).collect();
    let others: Vec<&Service> = all.iter().filter(|s| s.id != target.id).collect();
    match random.below(5) {
        0 | 1 => cut = from_all(target)?,
        2 if !managers.is_empty() => {
            let deaf = random.chance(50);
            cut.name = format!(
                "{} {} mgmtd",
                target.id,
                if deaf { "is deaf to" } else { "is not heard by" }
            );
            for m in managers {
                let m = own(m)?;
                if deaf { cut.block(Some(&m), &net) } else { cut.block(Some(&net), &m) }
            }
        }
        3 => {
            cut.name = format!("{} is not reached by any client", target.id);
            cut.block(None, &net);
        }
        _ => {
            let other = random.pick(&others).context("nobody else")?;
            cut.name = format!("what {} sends to {} is lost", target.id, other.id);
            cut.block(Some(&net), &own(other)?);
        }
    }
    Ok(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_are_read_by_name() {
        let text = "Ip: Forwarding OutNoRoutes\nIp: 1 7\nIcmp: InMsgs\nIcmp: 3\nTcp: RetransSegs InErrs\nTcp: 5 0\n";
        assert_eq!(count(text, "Ip:", "OutNoRoutes"), 7);
        assert_eq!(count(text, "Tcp:", "RetransSegs"), 5);
        assert_eq!(count(text, "Udp:", "RetransSegs"), 0);
        let mine = std::fs::read_to_string("/proc/self/net/snmp").expect("this kernel's");
        for name in ["OutNoRoutes", "RetransSegs"] {
            assert!(mine.contains(name), "{name}: {mine}");
        }
    }
}
