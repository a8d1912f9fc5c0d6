//! Faults: what strikes, whom, for how long, and what the applications felt of it.

mod cut;
mod damage;
mod dead;
mod full;
mod target;
mod turns;

use crate::cluster::{Cluster, Service};
use crate::flight::Flight;
use crate::machine::Machine;
use crate::random::Random;
use crate::scrub::{self, Expected, Logs};
use crate::work::doomed;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cut::Cut;
pub use dead::make_disk_of_its_own;
pub use full::make_small_disk;
use turns::Turns;

/// How long operations may take to be in flight before a fault strikes.
const AIM_BOUND: Duration = Duration::from_secs(60);
/// How long the cluster may take to be whole again after a fault.
pub const WHOLE_BOUND: Duration = Duration::from_secs(180);
/// How long operations that a fault held up may take to end after it.
const SETTLE_BOUND: Duration = Duration::from_secs(90);
/// Stops and kills last at most this long: past the detection of a failure (2 s).
const LONG: Duration = Duration::from_secs(6);
/// Where there is only one metadata service or mgmtd everything waits for it, and applications give up after a minute.
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
    /// A disk of one storage node that answers everything with EIO, or turns read-only, until it is repaired
    Disk,
    /// The network of a service cut off, one way or both, from some or all (needs `dev up --separate`)
    Cut,
    /// The primary mgmtd cut off from all for longer than its lease: another one has to take over (needs `dev up --separate --mgmtds 3`)
    Primary,
    /// SIGKILL of a mount in use, and a fresh one some time later
    Mount,
    /// SIGKILL of a member of etcd, each in turn, and a restart some time later (needs `dev up --meta-engine etcd`)
    Etcd,
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
    /// Operations in flight at the moment when it struck.
    pub in_flight: usize,
    /// Why it does not count, if it does not.
    pub without_effect: Option<String>,
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
    turns: Turns,
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
            turns: Turns::new(&kinds),
            done: vec![],
        }
    }
    /// What a scrub may find after what was done.
    pub fn expected(&self) -> Expected {
        match self.done.iter().any(|s| s.kind == Kind::Corrupt) {
            true => Expected::Planted,
            false => Expected::Sound(Logs::default()),
        }
    }

    /// One fault after another until the time is up and each kind has struck with effect (or not often enough); an error if the cluster does not become whole.
    pub fn rage(&mut self, until: Instant) -> Result<()> {
        // Also where the time is too short for that.
        while Instant::now() < until || self.turns.due() {
            let kind = self.turns.next(&mut self.random).context("no faults")?;
            let done = self.strike(kind);
            if done.is_err() {
                // Whatever it is that fails, nothing more is done to the cluster.
                self.flight.fault_ends();
            }
            done?;
            let calm = self.random.between(Duration::ZERO, Duration::from_millis(1500));
            std::thread::sleep(calm.min(until.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    fn strike(&mut self, kind: Kind) -> Result<()> {
        let targets = self.targets(kind)?;
        let names: Vec<_> = targets.iter().map(|t| t.id.as_str()).collect();
        let names = if kind == Kind::Mount { "mount-3".into() } else { names.join("+") };
        let all = self.cluster.services()?;
        let alone = targets.iter().any(|t| target::is_alone(&all, t));
        let long = if alone { LONG_ALONE } else { LONG };
        let hold = self.random.between(Duration::from_millis(100), long);
        let (since, at, done) = (Instant::now(), self.flight.now(), self.flight.done());
        self.flight.say(&format!("{kind:?} {names} for {:.1} s", hold.as_secs_f64()));
        self.flight.fault_begins(format!("{kind:?} {names}"));
        let hit = self.harm(kind, &targets, hold)?;
        let held = since.elapsed();
        let done_meanwhile = self.flight.done() - done;
        let whole = self.cluster.wait_complete(WHOLE_BOUND)?;
        self.flight.fault_ends();
        let end = self.flight.now();
        self.settle(end)?;
        let (stall, who) = self.flight.longest(at, end);
        let strike = Strike {
            kind,
            target: names,
            at_s: at as f64 / 1e9,
            in_flight: hit.in_flight,
            without_effect: hit.without_effect(),
            held_s: held.as_secs_f64(),
            stall_s: stall.as_secs_f64(),
            who,
            whole_s: whole.as_secs_f64(),
            done_meanwhile,
            machine_s: self.machine.longest_since(since).as_secs_f64(),
        };
        if let Some(why) = &strike.without_effect {
            self.flight.say(&format!("it had no effect: {why}"));
        }
        self.flight.say(&format!(
            "{} operations in flight; whole {:.1} s after the end; longest stall {:.2} s ({}); machine {:.2} s",
            strike.in_flight, strike.whole_s, strike.stall_s, strike.who, strike.machine_s
        ));
        self.turns.came(kind, strike.without_effect.is_none());
        self.done.push(strike);
        Ok(())
    }

    /// Waits until operations are in flight; refuses to strike when there are none. How many at this very moment.
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

    /// Sends a signal to all of them while operations are in flight: nothing lies between the look and the first signal.
    fn signal(&self, targets: &[Service], signal: Signal) -> Result<Hit> {
        let found = targets.iter().map(|t| self.cluster.process(t)).collect::<Result<Vec<_>>>()?;
        let in_flight = self.aim(Kind::Kill)?;
        for p in &found {
            p.signal(signal)?;
        }
        Ok(Hit { in_flight, missed: None })
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

    /// Does it, for `hold`; what came of it at the moment when it struck.
    fn harm(&mut self, kind: Kind, targets: &[Service], hold: Duration) -> Result<Hit> {
        let c = self.cluster.clone();
        let start = || targets.iter().try_for_each(|t| c.dev("start", &[&t.id]).map(drop));
        match kind {
            Kind::Kill | Kind::All | Kind::Etcd => {
                let hit = self.signal(targets, Signal::KILL)?;
                gone(&c, targets)?;
                std::thread::sleep(hold);
                start()?;
                Ok(hit)
            }
            Kind::Stop => {
                let mut hit = self.signal(targets, Signal::STOP)?;
                std::thread::sleep(hold);
                let runs = targets.iter().find(|t| !t.stopped());
                hit.missed = runs.map(|t| format!("{} was not stopped", t.id));
                for t in targets {
                    c.process(t)?.signal(Signal::CONT)?;
                }
                Ok(hit)
            }
            Kind::Restart => {
                let hit = self.signal(targets, Signal::TERM)?;
                gone(&c, targets)?;
                start()?;
                Ok(hit)
            }
            Kind::Mount => self.kill_mount(hold),
            Kind::Cut => {
                let all = c.services()?;
                let cut = cut::choose(&all, targets, &mut self.random)?;
                self.cut(&all, &cut, || {
                    std::thread::sleep(hold);
                    Ok(())
                })
            }
            Kind::Primary => {
                let all = c.services()?;
                let was = targets.first().context("no primary mgmtd")?;
                let cut = cut::from_all(was)?;
                self.cut(&all, &cut, || self.another_primary(was, hold))
            }
            Kind::Corrupt => self.corrupt(targets, hold),
            Kind::Fill => self.fill(targets, hold),
            Kind::Disk => self.kill_disk(targets, hold),
        }
    }

    /// Cuts, and mends once `meanwhile` is over, however it ends.
    fn cut(&self, all: &[Service], cut: &Cut, meanwhile: impl Fn() -> Result<()>) -> Result<Hit> {
        self.flight.say(&cut.name);
        self.aim(Kind::Cut)?;
        let before = cut::Counts::now(all);
        cut.make(&self.cluster)?;
        // Those that the cut finds on their way; making it takes a moment.
        let in_flight = self.flight.in_flight();
        let done = meanwhile();
        cut.mend(&self.cluster)?;
        done?;
        let lost = cut.lost(&before, all);
        self.flight.say(&format!("{lost} packets did not pass"));
        let none = "nothing was to pass where the network was cut";
        Ok(Hit { in_flight, missed: (lost == 0).then(|| none.to_owned()) })
    }

    /// Both deaths by turns.
    fn kill_disk(&self, targets: &[Service], hold: Duration) -> Result<Hit> {
        let t = targets.first().context("no storage")?;
        let struck = self.done.iter().filter(|s| s.kind == Kind::Disk).count();
        let death = [dead::Death::Eio, dead::Death::ReadOnly][struck % 2];
        self.flight.say(&format!("{death:?}"));
        let in_flight = self.aim(Kind::Disk)?;
        dead::kill(t, death)?;
        let missed = dead::wait_gone(&self.cluster, t)?;
        std::thread::sleep(hold);
        self.cluster.process(t)?.signal(Signal::TERM)?;
        gone(&self.cluster, targets)?;
        dead::revive(&self.cluster, t)?;
        self.cluster.dev("start", &[&t.id])?;
        Ok(Hit { in_flight, missed })
    }

    fn corrupt(&mut self, targets: &[Service], hold: Duration) -> Result<Hit> {
        let t = targets.first().context("no storage")?;
        self.aim(Kind::Corrupt)?;
        let (flight, mut in_flight, logs) = (&self.flight, 0, Logs::now(targets));
        let moment = || in_flight = in_flight.max(flight.in_flight());
        let places = damage::damage(t, &mut self.random, moment)?;
        flight.say(&format!("{places} places damaged"));
        std::thread::sleep(hold);
        // Until it is known that damage is met at all, the scrub looks for it; later now and then, so that some waits for other faults.
        let look = self.random.chance(50) || !self.turns.settled(Kind::Corrupt);
        let mut met = logs.met(targets);
        if met.is_empty() && places > 0 && look {
            scrub::pass(&self.cluster, flight)?;
            met = logs.met(targets);
        }
        flight.say(&format!("the node has said {} times that it met damage", met.len()));
        let missed = match (places, look) {
            (0, _) => Some("no block of that node holds anything"),
            _ if !met.is_empty() => None,
            (_, true) => {
                Some("what was damaged was free, or was written again, before anybody read it")
            }
            (_, false) => Some("nobody has read so far what was damaged"),
        };
        Ok(Hit { in_flight, missed: missed.map(str::to_owned) })
    }

    fn kill_mount(&self, hold: Duration) -> Result<Hit> {
        let process = self.cluster.doomed_process()?;
        let in_flight = self.aim(Kind::Mount)?;
        self.flight.mount_kills.fetch_add(1, Ordering::SeqCst);
        process.signal(Signal::KILL)?;
        self.cluster.clear_doomed()?;
        std::thread::sleep(hold);
        self.cluster.mount_doomed()?;
        self.flight.mount_returns.fetch_add(1, Ordering::SeqCst);
        Ok(Hit { in_flight, missed: None })
    }

    fn fill(&self, targets: &[Service], hold: Duration) -> Result<Hit> {
        self.flight.full.store(true, Ordering::SeqCst);
        let t = targets.first().context("no storage")?;
        self.aim(Kind::Fill)?;
        let ballast = full::fill(t)?;
        let in_flight = self.flight.in_flight();
        let free = full::free(t)?;
        std::thread::sleep(hold);
        drop(ballast);
        // What is refused now was decided while it was full; the next ENOSPC would be wrong.
        let now = self.flight.now();
        self.settle(now)?;
        std::thread::sleep(full::NOTICED);
        self.flight.full.store(false, Ordering::SeqCst);
        let room = free > 2 * full::LEFT;
        Ok(Hit { in_flight, missed: room.then(|| format!("{free} bytes were free still")) })
    }
}

/// How a fault struck.
struct Hit {
    in_flight: usize,
    missed: Option<String>,
}

impl Hit {
    /// Why it proves nothing, if so.
    fn without_effect(&self) -> Option<String> {
        let idle = || "no operation was in flight when it struck".to_owned();
        self.missed.clone().or_else(|| (self.in_flight == 0).then(idle))
    }
}

/// Each kind that was asked for, with how often it struck with effect.
pub fn effective(asked: &[Kind], done: &[Strike]) -> BTreeMap<Kind, usize> {
    let count = |k: Kind| done.iter().filter(|s| s.kind == k && s.without_effect.is_none()).count();
    asked.iter().map(|k| (*k, count(*k))).collect()
}

/// Kinds that were asked for and never struck with effect: the run did not prove what it was for.
pub fn never_struck(effective: &BTreeMap<Kind, usize>, done: &[Strike]) -> Vec<String> {
    let never = effective.iter().filter(|(_, n)| **n == 0).map(|(k, _)| *k);
    let why = |k: Kind| {
        let last = done.iter().rev().find(|s| s.kind == k);
        last.and_then(|s| s.without_effect.as_deref()).unwrap_or("its turn never came").to_owned()
    };
    never.map(|k| format!("the fault {k:?} never struck with effect: {}", why(k))).collect()
}

/// Waits until the processes of these services are gone.
pub fn gone(c: &Cluster, targets: &[Service]) -> Result<()> {
    let began = Instant::now();
    loop {
        let now = c.services()?;
        let left = now.iter().find(|s| targets.iter().any(|t| t.id == s.id) && s.process.is_some());
        let Some(left) = left else { return Ok(()) };
        if began.elapsed() > Duration::from_secs(30) {
            bail!("{} does not end within 30 s of SIGTERM", left.id);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strike(kind: Kind, hit: Hit) -> Strike {
        Strike {
            kind,
            target: "storage-1".into(),
            at_s: 0.0,
            in_flight: hit.in_flight,
            without_effect: hit.without_effect(),
            held_s: 0.0,
            stall_s: 0.0,
            who: String::new(),
            whole_s: 0.0,
            done_meanwhile: 0,
            machine_s: 0.0,
        }
    }

    #[test]
    fn a_kind_that_did_nothing_or_never_came_is_not_done() {
        let asked = [Kind::Kill, Kind::Corrupt, Kind::Stop, Kind::Fill];
        let done = [
            strike(Kind::Kill, Hit { in_flight: 3, missed: None }),
            strike(Kind::Kill, Hit { in_flight: 0, missed: None }),
            strike(Kind::Corrupt, Hit { in_flight: 3, missed: Some("no blocks".into()) }),
            strike(Kind::Stop, Hit { in_flight: 0, missed: None }),
        ];
        let counts = effective(&asked, &done);
        assert_eq!(counts.values().copied().collect::<Vec<_>>(), [1, 0, 0, 0]);
        let said = never_struck(&counts, &done).join("\n");
        for part in [
            "Corrupt never struck with effect: no blocks",
            "Fill never struck with effect: its turn never came",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(said.contains("Stop") && !said.contains("Kill"), "{said}");
    }
}
