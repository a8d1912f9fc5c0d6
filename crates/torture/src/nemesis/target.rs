//! Whom a fault strikes.

use super::{Kind, Nemesis};
use crate::cluster::Service;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// How long another mgmtd may take to be primary when the primary is cut off. A machine that is busy is slow, and a call waits for its answer.
const TAKE_OVER_BOUND: Duration = Duration::from_secs(30);

/// Whether everything waits for it while it is away: no other service does what it does.
pub fn is_alone(all: &[Service], target: &Service) -> bool {
    let of = |role: &str| all.iter().filter(|s| s.role == role).count();
    match target.role.as_str() {
        "storage" => false,
        // The first one holds the metadata engine, where that is not another program's.
        "meta" => of("meta") < 2 || (of("etcd") == 0 && target.id == "meta-1"),
        role => of(role) < 2,
    }
}

impl Nemesis {
    pub(super) fn targets(&mut self, kind: Kind) -> Result<Vec<Service>> {
        let all = self.cluster.services()?;
        let of = |role: &str| -> Vec<Service> {
            all.iter().filter(|s| s.role == role).cloned().collect()
        };
        let storages = of("storage");
        Ok(match kind {
            Kind::All => storages,
            Kind::Mount => vec![],
            Kind::Etcd => {
                let members = of("etcd");
                let struck = self.done.iter().filter(|s| s.kind == Kind::Etcd).count();
                let next = members.get(struck % members.len().max(1)).cloned();
                let next = next.context(
                    "the fault «etcd» needs members of etcd: --up \"--meta-engine etcd\"",
                )?;
                vec![next]
            }
            // Always the same replica: damage is not repaired at once, and one good copy must be left.
            Kind::Disk => storages.into_iter().next().into_iter().collect(),
            Kind::Corrupt | Kind::Fill => storages.into_iter().next_back().into_iter().collect(),
            Kind::Primary => vec![self.primary(&all)?],
            Kind::Kill if storages.len() > 2 && self.random.chance(15) => {
                // All but one.
                let spared = self.random.below(storages.len() as u64) as usize;
                let hit = storages.into_iter().enumerate().filter(|(i, _)| *i != spared);
                hit.map(|(_, s)| s).collect()
            }
            _ => {
                let role = match self.random.below(10) {
                    0..5 => "storage",
                    5..7 => "meta",
                    7 if kind == Kind::Cut && !of("etcd").is_empty() => "etcd",
                    _ => "mgmtd",
                };
                self.random.pick(&of(role)).cloned().into_iter().collect()
            }
        })
    }

    fn primary(&self, all: &[Service]) -> Result<Service> {
        let node = self.cluster.primary_node()?;
        let found = all.iter().find(|s| s.role == "mgmtd" && s.node == node);
        let found = found.with_context(|| format!("no mgmtd has the node id {node}"))?;
        if is_alone(all, found) {
            bail!("the fault «primary» needs somebody to take over: --up \"--mgmtds 3\"");
        }
        Ok(found.clone())
    }

    /// Waits for `hold`, and until another one than `was` is the primary mgmtd.
    pub(super) fn another_primary(&self, was: &Service, hold: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            let now = self.cluster.primary_node();
            let another = now.as_ref().is_ok_and(|now| *now != was.node);
            let waited = began.elapsed();
            if another && waited >= hold {
                return Ok(());
            }
            if waited > TAKE_OVER_BOUND {
                bail!("{} is cut off, and nobody has taken over in {waited:.0?}: {now:?}", was.id);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
