//! Primary election and node leases together, over random delays, losses, pauses, drifting and jumping clocks and crashes. At
//! every moment:
//!
//! - at most one instance believes to be primary;
//! - a node that is declared dead has stopped serving, also when the primary that declares it is a new one, and grants other leases than the one before;
//!
//! and when the troubles end, there is one primary and every node is alive again.
//!
//! Within these bounds (the margins of the configuration allow no more): clocks run within 2 % of true time and jump forwards
//! by at most 30 ms in 3 s; processes pause for any time, with their clocks running; messages take any time or are lost.
//! (Whatever the clocks do, changes of the records compare the epoch; what a worse clock costs is nodes declared dead too early.)
#![allow(missing_docs)]

use glowfs_cluster::*;
use glowfs_types::{Incarnation, NodeId};
use std::collections::{BTreeMap, BTreeSet};

const INSTANCES: usize = 3;
const NODES: usize = 4;
/// As mgmtd's defaults; nodes are kept out for less, so that all are alive in the end.
const LEASES: LeaseConfig = LeaseConfig {
    lease_ms: 1500,
    margin_ms: 200,
    stall_ms: 200,
    return_beats: 2,
    pauses: FallPauses { first_ms: 1_000, longest_ms: 8_000 },
};
const PRIMARY_LEASE_MS: u64 = 700;
const RENEW_US: u64 = 200_000;
const SCAN_US: u64 = 50_000;
const HEARTBEAT_US: u64 = 300_000;
/// Troubles end here, and everything must be well here, in microseconds of true time.
const TROUBLES_US: u64 = 40_000_000;
const END_US: u64 = 60_000_000;

struct Random(u64);
impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % n.max(1)
    }
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A clock that drifts and jumps.
struct Clock {
    offset_us: u64,
    ppm: i64,
    jumped_us: u64,
}
impl Clock {
    fn ms(&self, now: u64) -> u64 {
        let drift = now as i64 * self.ppm / 1_000_000;
        (self.offset_us + self.jumped_us + (now as i64 + drift) as u64) / 1000
    }
}

struct Instance {
    clock: Clock,
    election: Election,
    life: u64,
    paused_until: u64,
    /// The book of the epoch that this instance is primary of.
    book: Option<(u64, NodeLeases)>,
}

struct Node {
    clock: Clock,
    life: u64,
    sequence: u64,
    /// It serves until then (ms of its own clock).
    until_ms: u64,
    paused_until: u64,
    primary: usize,
}

#[derive(Clone, Debug)]
enum Event {
    Look(usize),
    Read { at: usize, life: u64, began: u64 },
    Commit { at: usize, life: u64, began: u64, read: Option<LeaseRecord>, new: LeaseRecord },
    Answer { at: usize, life: u64, began: u64, new: LeaseRecord, won: Option<bool> },
    Tick { at: usize, life: u64 },
    Send(usize),
    Beat { node: usize, beat: Beat, sent_ms: u64, to: usize },
    Reply { node: usize, life: u64, sent_ms: u64, lease_ms: u64 },
    Trouble,
}

struct World {
    seed: u64,
    now: u64,
    random: Random,
    queue: BTreeMap<(u64, u64), Event>,
    count: u64,
    instances: Vec<Instance>,
    nodes: Vec<Node>,
    /// The engine: the lease, and the nodes that are recorded as alive.
    record: Option<LeaseRecord>,
    alive: BTreeSet<NodeId>,
    deaths: u64,
    epochs: u64,
    jumped_at: u64,
}

/// What a life of an instance grants: in half of all worlds all the same, else each as it is configured when it is started.
fn leases(i: usize, life: u64, seed: u64) -> LeaseConfig {
    let longer = [0, 0, 500, 1500][(i as u64 + 3 * life + seed) as usize % 4];
    LeaseConfig { lease_ms: LEASES.lease_ms + longer * (seed % 2), ..LEASES }
}

fn election(i: usize, life: u64, seed: u64) -> Election {
    Election::new(ElectionConfig {
        node: NodeId(i as u64 + 1),
        life,
        // Every other life listens elsewhere.
        addresses: vec![format!("{}", life / 2)],
        lease_ms: PRIMARY_LEASE_MS,
        margin_ms: LEASES.margin_ms,
        node_lease_ms: leases(i, life, seed).lease_ms,
        renew_ms: RENEW_US / 1000,
    })
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut clock = || Clock {
            offset_us: random.below(1 << 40),
            ppm: random.below(40_001) as i64 - 20_000,
            jumped_us: 0,
        };
        let instances = (0..INSTANCES)
            .map(|i| Instance {
                clock: clock(),
                election: election(i, 1, seed),
                life: 1,
                paused_until: 0,
                book: None,
            })
            .collect();
        let nodes = (0..NODES)
            .map(|_| Node {
                clock: clock(),
                life: 1,
                sequence: 0,
                until_ms: 0,
                paused_until: 0,
                primary: 0,
            })
            .collect();
        let mut w = Self {
            seed,
            now: 0,
            random,
            queue: BTreeMap::new(),
            count: 0,
            instances,
            nodes,
            record: None,
            alive: BTreeSet::new(),
            deaths: 0,
            epochs: 0,
            jumped_at: 0,
        };
        for i in 0..INSTANCES {
            w.after(i as u64 * 1000, Event::Look(i));
            w.after(i as u64 * 1000, Event::Tick { at: i, life: 1 });
        }
        for n in 0..NODES {
            w.after(n as u64 * 7000, Event::Send(n));
        }
        w.after(500_000, Event::Trouble);
        w
    }
    fn after(&mut self, us: u64, event: Event) {
        self.count += 1;
        self.queue.insert((self.now + us, self.count), event);
    }
    /// How long a message or a transaction takes.
    fn delay(&mut self) -> u64 {
        let slow = self.now < TROUBLES_US && self.random.chance(5);
        if slow { self.random.below(3_000_000) } else { 100 + self.random.below(20_000) }
    }
    fn lost(&mut self) -> bool {
        self.now < TROUBLES_US && self.random.chance(5)
    }
    /// Who must deal with an event, if it is a process: paused ones do so later.
    fn paused_until(&self, event: &Event) -> u64 {
        match event {
            Event::Look(i)
            | Event::Read { at: i, .. }
            | Event::Answer { at: i, .. }
            | Event::Tick { at: i, .. }
            | Event::Beat { to: i, .. } => self.instances[*i].paused_until,
            Event::Send(n) | Event::Reply { node: n, .. } => self.nodes[*n].paused_until,
            Event::Commit { .. } | Event::Trouble => 0,
        }
    }
    fn run(&mut self) {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > END_US {
                break;
            }
            self.now = at;
            let paused = self.paused_until(&event);
            if paused > at {
                self.after(paused - at, event);
                continue;
            }
            self.take(event);
            let now = self.now;
            let primaries: Vec<_> = self
                .instances
                .iter_mut()
                .map(|i| i.election.standing(i.clock.ms(now)))
                .filter(|s| matches!(s, Standing::Primary { .. }))
                .collect();
            assert!(primaries.len() <= 1, "two primaries at {now}: {primaries:?}");
        }
        assert!(self.primary().is_some(), "no primary in the end");
        let all = (1..=NODES as u64).all(|n| self.alive.contains(&NodeId(n)));
        assert!(all, "not all nodes are alive in the end: {:?}", self.alive);
    }
    fn primary(&mut self) -> Option<usize> {
        let now = self.now;
        self.instances
            .iter_mut()
            .position(|i| matches!(i.election.standing(i.clock.ms(now)), Standing::Primary { .. }))
    }
    fn take(&mut self, event: Event) {
        match event {
            Event::Look(at) => {
                let i = &self.instances[at];
                let (life, began) = (i.life, i.clock.ms(self.now));
                let wait = self.delay();
                self.after(wait, Event::Read { at, life, began });
            }
            Event::Read { at, life, began } if self.instances[at].life == life => {
                let record = self.record.clone();
                let now_ms = self.instances[at].clock.ms(self.now);
                match self.instances[at].election.read(record.as_ref(), began, now_ms) {
                    Command::Write(new) => {
                        let wait = self.delay();
                        self.after(wait, Event::Commit { at, life, began, read: record, new });
                    }
                    Command::Wait => self.look_again(at),
                }
            }
            Event::Commit { at, life, began, read, new } => {
                let wait = self.delay();
                if self.random.chance(3) && self.now < TROUBLES_US {
                    // The instance gives up waiting; the write may still happen, later.
                    let answer = Event::Answer { at, life, began, new: new.clone(), won: None };
                    self.after(wait, answer);
                    if self.random.chance(50) {
                        let late = self.delay();
                        self.after(late, Event::Commit { at, life: 0, began, read, new });
                    }
                    return;
                }
                let won = self.record == read;
                if won {
                    self.record = Some(new.clone());
                }
                if life != 0 {
                    self.after(wait, Event::Answer { at, life, began, new, won: Some(won) });
                }
            }
            Event::Answer { at, life, began, new, won } if self.instances[at].life == life => {
                let election = &mut self.instances[at].election;
                match won {
                    Some(true) => election.won(&new, began),
                    Some(false) => election.lost(),
                    None => election.unknown(&new, began),
                }
                self.lead(at);
                self.look_again(at);
            }
            Event::Tick { at, life } if self.instances[at].life == life => {
                self.lead(at);
                self.tick(at);
                self.after(SCAN_US, Event::Tick { at, life });
            }
            Event::Send(n) => self.send(n),
            Event::Beat { node, beat, sent_ms, to } => self.beat(node, beat, sent_ms, to),
            Event::Reply { node, life, sent_ms, lease_ms } => {
                let n = &mut self.nodes[node];
                if n.life == life {
                    n.until_ms = n.until_ms.max(sent_ms + lease_ms);
                }
            }
            Event::Trouble => self.trouble(),
            _ => {}
        }
    }
    fn look_again(&mut self, at: usize) {
        self.after(RENEW_US, Event::Look(at));
    }
    /// Takes the state over when it has become primary, and drops it when it is not any more.
    fn lead(&mut self, at: usize) {
        let (now, seed) = (self.now, self.seed);
        let i = &mut self.instances[at];
        let config = leases(at, i.life, seed);
        let now_ms = i.clock.ms(now);
        match i.election.standing(now_ms) {
            Standing::Primary { epoch, .. } if i.book.as_ref().is_none_or(|b| b.0 != epoch) => {
                let extra = i.election.overlap_ms();
                let known = self.alive.iter().copied();
                i.book = Some((epoch, NodeLeases::new(config, known, now_ms, extra)));
                self.epochs += 1;
            }
            Standing::Primary { .. } => {}
            Standing::Standby => i.book = None,
        }
    }
    /// Whether a change of the records by this epoch takes effect.
    fn may_change(&self, epoch: u64) -> bool {
        self.record.as_ref().is_some_and(|r| r.epoch == epoch)
    }
    fn tick(&mut self, at: usize) {
        let now_ms = self.instances[at].clock.ms(self.now);
        let Some((epoch, mut book)) = self.instances[at].book.take() else { return };
        for id in book.tick(now_ms) {
            if self.may_change(epoch) {
                let n = &self.nodes[id.0 as usize - 1];
                assert!(
                    n.clock.ms(self.now) >= n.until_ms,
                    "node {id} is declared dead at {} and serves for {} ms more",
                    self.now,
                    n.until_ms - n.clock.ms(self.now)
                );
                self.alive.remove(&id);
                self.deaths += 1;
            }
        }
        self.instances[at].book = Some((epoch, book));
    }
    fn send(&mut self, node: usize) {
        let to = self.primary().unwrap_or(self.nodes[node].primary);
        let n = &mut self.nodes[node];
        n.primary = to;
        n.sequence += 1;
        let beat = Beat {
            node: NodeId(node as u64 + 1),
            incarnation: Incarnation(n.life),
            sequence: n.sequence,
            leaving: false,
            unanswered_ms: 0,
            storage: true,
            needed: self.random.chance(20),
        };
        let sent_ms = n.clock.ms(self.now);
        let copies = if self.lost() { 0 } else { 1 + u64::from(self.random.chance(3)) };
        for _ in 0..copies {
            let wait = self.delay();
            self.after(wait, Event::Beat { node, beat, sent_ms, to });
        }
        self.after(HEARTBEAT_US, Event::Send(node));
    }
    fn beat(&mut self, node: usize, beat: Beat, sent_ms: u64, to: usize) {
        self.lead(to);
        let now_ms = self.instances[to].clock.ms(self.now);
        let Some((epoch, mut book)) = self.instances[to].book.take() else { return };
        let verdict = book.beat(beat, now_ms);
        let mut granted =
            matches!(verdict, Verdict::Alive | Verdict::Joined) && book.alive(beat.node);
        if verdict == Verdict::Joined {
            // It is recorded before the answer.
            granted &= self.may_change(epoch);
            if granted {
                self.alive.insert(beat.node);
                book.settled();
            }
        }
        let lease_ms = book.lease_ms();
        self.instances[to].book = Some((epoch, book));
        if granted && !self.lost() {
            let wait = self.delay();
            let life = beat.incarnation.0;
            self.after(wait, Event::Reply { node, life, sent_ms, lease_ms });
        }
    }
    fn trouble(&mut self) {
        if self.now >= TROUBLES_US {
            return;
        }
        // Longer where leases are.
        let pause = self.now + self.random.below(4_000_000 * (1 + self.seed % 2));
        match self.random.below(6) {
            0 | 1 => {
                let i = self.random.below(INSTANCES as u64) as usize;
                self.instances[i].paused_until = pause;
            }
            2 => {
                let n = self.random.below(NODES as u64) as usize;
                self.nodes[n].paused_until = pause;
            }
            3 => {
                // The process dies and is started again.
                let (i, seed) = (self.random.below(INSTANCES as u64) as usize, self.seed);
                let instance = &mut self.instances[i];
                instance.life += 1;
                instance.book = None;
                instance.election = election(i, instance.life, seed);
                let life = instance.life;
                self.after(100_000, Event::Look(i));
                self.after(100_000, Event::Tick { at: i, life });
            }
            4 => {
                let n = self.random.below(NODES as u64) as usize;
                let node = &mut self.nodes[n];
                (node.life, node.sequence, node.until_ms) = (node.life + 1, 0, 0);
            }
            _ if self.now > self.jumped_at + 3_000_000 => {
                self.jumped_at = self.now;
                let by = self.random.below(30_000);
                let who = self.random.below((INSTANCES + NODES) as u64) as usize;
                match self.nodes.get_mut(who) {
                    Some(n) => n.clock.jumped_us += by,
                    None => self.instances[who - NODES].clock.jumped_us += by,
                }
            }
            _ => {}
        }
        let next = 200_000 + self.random.below(3_000_000);
        self.after(next, Event::Trouble);
    }
}

#[test]
fn never_two_primaries_and_nobody_serves_after_its_death() {
    let seeds = std::env::var("GLOWFS_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(300u64);
    let (mut deaths, mut epochs) = (0, 0);
    for seed in 1..=seeds {
        let mut w = World::new(seed);
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| w.run())).is_err();
        assert!(!failed, "seed {seed}");
        deaths += w.deaths;
        epochs += w.epochs;
    }
    println!("{seeds} seeds: {epochs} changes of the primary, {deaths} nodes declared dead");
    assert!(2 * deaths > seeds && epochs > 2 * seeds, "too little happened: {deaths}, {epochs}");
}
