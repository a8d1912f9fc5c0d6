//! Cuts in the network of a cluster whose services have networks of their own (`dev up --separate`).

use crate::cluster::{Cluster, Network, Service};
use crate::random::Random;
use anyhow::{Context, Result};

/// A cut, ready to be made.
pub struct Cut {
    /// In words.
    pub name: String,
    make: Vec<String>,
    mend: Vec<String>,
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

/// A cut that hits the first of `targets`.
pub fn choose(all: &[Service], targets: &[Service], random: &mut Random) -> Result<Cut> {
    let target = targets.first().context("nobody to cut off")?;
    let own = |s: &Service| s.network.clone().context("no network of its own: dev up --separate");
    let net = own(target)?;
    let mut cut = Cut { name: String::new(), make: vec![], mend: vec![] };
    let managers: Vec<&Service> =
        all.iter().filter(|s| s.role == "mgmtd" && s.id != target.id).collect();
    let others: Vec<&Service> = all.iter().filter(|s| s.id != target.id).collect();
    match random.below(5) {
        0 | 1 => {
            cut.name = format!("{} is cut off from all", target.id);
            cut.make.push(format!("link set {} down", net.port));
            cut.mend.push(format!("link set {} up", net.port));
        }
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
