//! Faults: what strikes, whom, for how long, and what the applications felt of it.

mod cut;
mod damage;
mod full;

use crate::cluster::{Cluster, Service};
use crate::flight::Flight;
use crate::machine::Machine;
use crate::random::Random;
use crate::work::doomed;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use full::make_small_disk;

/// How long operations may take to be in flight before a fault strikes.
const AIM_BOUND: Duration = Duration::from_secs(60);
/// How long the cluster may take to be whole again after a fault.
pub const WHOLE_BOUND: Duration = Duration::from_secs(180);
/// How long operations that a fault held up may take to end after it.
const SETTLE_BOUND: Duration = Duration::from_secs(90);
/// Stops and kills last at most this long: past the detection of a failure (2 s).
const LONG: Duration = Duration::from_secs(6);
/// Of the metadata service and mgmtd there is only one: everything waits for them, and applications give up after a minute.
const LONG_ALONE: Duration = Duration::from_secs(2);

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// SIGKILL, and a restart some time later
    Kill,
    /// SIGSTOP, and SIGCONT some time later
    Stop,
    /// A graceful stop (SIGTERM) and a restart
    Restart,
    /// All storage nodes killed at once, and restarted
    All,
    /// Bytes flipped in the block files of one replica
    Corrupt,
    /// A disk of one replica filled up
    Fill,
    /// The network of a service cut off, one way or both, from some or all (needs `dev up --separate`)
    Cut,
    /// SIGKILL of a mount in use, and a fresh one some time later
    Mount,
}

/// One fault, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Strike {
    /// What.
    pub kind: Kind,
    /// Whom.
    pub target: String,
    /// When, in seconds since the start.
    pub at_s: f64,
    /// Operations in flight when it struck.
    pub in_flight: usize,
    /// How long it lasted.
    pub held_s: f64,
    /// The longest operation that the fault touched.
    pub stall_s: f64,
    /// Whose it was.
    pub who: String,
    /// From the end of the fault until all replicas served.
    pub whole_s: f64,
    /// Operations done between the strike and its end.
    pub done_meanwhile: u64,
    /// The longest stall of the machine itself meanwhile.
    pub machine_s: f64,
}

/// Does the faults of one run.
pub struct Nemesis {
    cluster: Arc<Cluster>,
    flight: Arc<Flight>,
    machine: Arc<Machine>,
    random: Random,
    kinds: Vec<Kind>,
    all_lost: Option<Box<dyn Fn()>>,
    /// What it did.
    pub done: Vec<Strike>,
}

impl Nemesis {
    /// One that knows these kinds.
    pub fn new(
        cluster: Arc<Cluster>,
        flight: Arc<Flight>,
        machine: Arc<Machine>,
        seed: u64,
        kinds: Vec<Kind>,
    ) -> Self {
        Self {
            cluster,
            flight,
            machine,
            random: Random::new(seed, 1 << 40),
            kinds,
            all_lost: None,
            done: vec![],
        }
    }
    /// Called when all replicas were gone at once.
    pub fn on_all_lost(&mut self, tell: Box<dyn Fn()>) {
        self.all_lost = Some(tell);
    }

    /// One fault after another until the time is up; an error if the cluster does not become whole.
    pub fn rage(&mut self, until: Instant) -> Result<()> {
        // Each kind comes once before chance decides, so that a short run has them all.
        let mut first = self.kinds.clone();
        while Instant::now() < until {
            let kind = if first.is_empty() {
                self.random.pick(&self.kinds).copied().context("no faults")?
            } else {
                first.remove(self.random.below(first.len() as u64) as usize)
            };
            self.strike(kind)?;
            let calm = self.random.between(Duration::ZERO, Duration::from_millis(1500));
            std::thread::sleep(calm.min(until.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    fn strike(&mut self, kind: Kind) -> Result<()> {
        let targets = self.targets(kind)?;
        let names: Vec<_> = targets.iter().map(|t| t.id.as_str()).collect();
        let names = if kind == Kind::Mount { "mount-3".into() } else { names.join("+") };
        let alone = targets.iter().any(|t| t.role != "storage");
        let long = if alone { LONG_ALONE } else { LONG };
        let hold = self.random.between(Duration::from_millis(100), long);
        let in_flight = self.aim(kind)?;
        let (since, at, done) = (Instant::now(), self.flight.now(), self.flight.done());
        self.flight.say(&format!(
            "{kind:?} {names} for {:.1} s, {in_flight} operations in flight",
            hold.as_secs_f64()
        ));
        self.harm(kind, &targets, hold)?;
        let held = since.elapsed();
        let done_meanwhile = self.flight.done() - done;
        let whole = self.cluster.wait_complete(WHOLE_BOUND)?;
        let end = self.flight.now();
        self.settle(end)?;
        let (stall, who) = self.flight.longest(at, end);
        let strike = Strike {
            kind,
            target: names,
            at_s: at as f64 / 1e9,
            in_flight,
            held_s: held.as_secs_f64(),
            stall_s: stall.as_secs_f64(),
            who,
            whole_s: whole.as_secs_f64(),
            done_meanwhile,
            machine_s: self.machine.longest_since(since).as_secs_f64(),
        };
        self.flight.say(&format!(
            "whole {:.1} s after the end; longest stall {:.2} s ({}); machine {:.2} s",
            strike.whole_s, strike.stall_s, strike.who, strike.machine_s
        ));
        self.done.push(strike);
        Ok(())
    }

    /// Waits until operations are in flight; refuses to strike when there are none.
    fn aim(&self, kind: Kind) -> Result<usize> {
        let began = Instant::now();
        loop {
            let n = self.flight.in_flight();
            // A mount that is killed while nobody uses it is no proof either.
            if n > 0 && (kind != Kind::Mount || self.flight.flies(doomed::LANE)) {
                return Ok(n);
            }
            if began.elapsed() > AIM_BOUND {
                bail!("no operation was in flight for {AIM_BOUND:?}: a fault would prove nothing");
            }
            std::thread::yield_now();
        }
    }

    fn settle(&self, at: u64) -> Result<()> {
        let began = Instant::now();
        while !self.flight.settled(at) {
            if began.elapsed() > SETTLE_BOUND {
                let (stall, who) = self.flight.longest(0, at);
                bail!("an operation of {who} does not end: {stall:?}, though all replicas serve");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn targets(&mut self, kind: Kind) -> Result<Vec<Service>> {
        let all = self.cluster.services()?;
        let of = |role: &str| -> Vec<Service> {
            all.iter().filter(|s| s.role == role).cloned().collect()
        };
        let storages = of("storage");
        Ok(match kind {
            Kind::All => storages,
            Kind::Mount => vec![],
            // Always the same replica: damage is not repaired at once, and one good copy must be left.
            Kind::Corrupt | Kind::Fill => storages.into_iter().next_back().into_iter().collect(),
            Kind::Kill if storages.len() > 2 && self.random.chance(15) => {
                // All but one.
                let spared = self.random.below(storages.len() as u64) as usize;
                let hit = storages.into_iter().enumerate().filter(|(i, _)| *i != spared);
                hit.map(|(_, s)| s).collect()
            }
            _ => {
                let role = match self.random.below(10) {
                    0..6 => "storage",
                    6..8 => "meta",
                    _ => "mgmtd",
                };
                self.random.pick(&of(role)).cloned().into_iter().collect()
            }
        })
    }

    fn harm(&mut self, kind: Kind, targets: &[Service], hold: Duration) -> Result<()> {
        let c = self.cluster.clone();
        let signal = |name: &str| -> Result<()> {
            for t in targets {
                c.dev("kill", &[&t.id, "--signal", name])?;
            }
            Ok(())
        };
        let start = || -> Result<()> {
            for t in targets {
                c.dev("start", &[&t.id])?;
            }
            Ok(())
        };
        match kind {
            Kind::Kill | Kind::All => {
                signal("KILL")?;
                std::thread::sleep(hold);
                // Nobody serves and whoever read something has noted it by now.
                if let Some(tell) = self.all_lost.as_ref().filter(|_| kind == Kind::All) {
                    tell();
                }
                start()
            }
            Kind::Stop => {
                signal("STOP")?;
                std::thread::sleep(hold);
                signal("CONT")
            }
            Kind::Restart => {
                signal("TERM")?;
                gone(&c, targets)?;
                start()
            }
            Kind::Mount => {
                self.flight.mount_kills.fetch_add(1, Ordering::SeqCst);
                c.kill_doomed()?;
                std::thread::sleep(hold);
                c.mount_doomed()?;
                self.flight.mount_returns.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
            Kind::Cut => {
                let cut = cut::choose(&c.services()?, targets, &mut self.random)?;
                self.flight.say(&cut.name);
                cut.make(&c)?;
                std::thread::sleep(hold);
                cut.mend(&c)
            }
            Kind::Corrupt => {
                let t = targets.first().context("no storage")?;
                let places = damage::damage(t, &mut self.random)?;
                self.flight.say(&format!("{places} places damaged"));
                std::thread::sleep(hold);
                Ok(())
            }
            Kind::Fill => {
                self.flight.full.store(true, Ordering::SeqCst);
                let t = targets.first().context("no storage")?;
                let ballast = full::fill(t)?;
                std::thread::sleep(hold);
                drop(ballast);
                // What is refused now was decided while it was full; the next ENOSPC would be wrong.
                let now = self.flight.now();
                self.settle(now)?;
                std::thread::sleep(full::NOTICED);
                self.flight.full.store(false, Ordering::SeqCst);
                Ok(())
            }
        }
    }
}

/// Waits until the processes of these services are gone.
fn gone(c: &Cluster, targets: &[Service]) -> Result<()> {
    let began = Instant::now();
    loop {
        let now = c.services()?;
        let left = now.iter().find(|s| targets.iter().any(|t| t.id == s.id) && s.pid.is_some());
        let Some(left) = left else { return Ok(()) };
        if began.elapsed() > Duration::from_secs(30) {
            bail!("{} does not end within 30 s of SIGTERM", left.id);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
