//! What clients feel of the work in the background, and how much of its time that may work therefore. Pure: it is told what happens and when.
//!
//! While resyncs and scrubs work and rest by turns, each request of a client is either *alone* (nothing of them worked between its beginning and its end) or beside
//! them. How long requests of a kind and size take alone is what they would take; how many end in a rest is how many would. From both this tells, window after
//! window, how much slower clients are than without the background, whatever is short: a disk, a link, the processor. More than [`SLOWER_TOLERATED`] halves
//! the share; below [`SLOWER_UNFELT`] the share grows again.
//!
//! Guarantees: the share is never below the floor that is asked for, nor above the greatest, so the background ends under any load, and without clients it does not rest at
//! all. Must never: learn what is usual from requests that the background held up.

use glowfs_rt::{Duration, Instant};

/// How long the least window is in which requests are looked at.
const WINDOW: Duration = Duration::from_millis(250);
/// A window with too few requests to judge ends after this.
const WINDOW_MAX: Duration = Duration::from_secs(2);
/// Requests of a window from which times tell something, and from which their rate does.
const TIMES_MIN: u64 = 32;
const RATES_MIN: u64 = 128;
/// After so long without work in the background it begins at the floor again.
const FORGET: Duration = Duration::from_secs(2);
/// Clients are there until so long after their last request: longer than one that is held up takes, so that who waits for one forward after the other counts.
const LATELY: Duration = Duration::from_secs(2);
/// What clients may be slower for the background, in per cent, before its share is halved.
const SLOWER_TOLERATED: u64 = 15;
/// As long as they are no more than this slower, it grows.
const SLOWER_UNFELT: u64 = 5;
/// So many requests of a kind make its usual time.
const REMEMBERED: u64 = 128;
/// Shares are counted in thousandths.
pub(crate) const WHOLE: u32 = 1000;
/// By how much a share grows after a window, at least.
const STEP: u32 = 5;

/// What a client's request does here.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Read,
    /// An update that entered here.
    Update,
    /// One that came from the member before.
    Forward,
}

/// Requests that are compared with each other: of one kind, and of alike size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class(usize);

/// Where the next greater size begins, in bytes.
const SIZES: [u64; 2] = [16 << 10, 256 << 10];
const CLASSES: usize = 3 * (SIZES.len() + 1);

impl Class {
    pub fn new(kind: Kind, bytes: u64) -> Self {
        let size = SIZES.iter().filter(|s| bytes > **s).count();
        Self(kind as usize * (SIZES.len() + 1) + size)
    }
}

/// How long requests of a class take alone.
#[derive(Clone, Copy, Default)]
struct Usual {
    requests: u64,
    ns: u64,
}

impl Usual {
    fn add(&mut self, ns: u64) {
        self.requests = (self.requests + 1).min(REMEMBERED);
        self.ns = (self.ns * (self.requests - 1) + ns) / self.requests;
    }
}

/// Requests since the last judgement.
#[derive(Clone, Copy, Default)]
struct Window {
    began: Instant,
    /// All, those of which it is known how long they usually take, and those that ended in a rest.
    requests: u64,
    known: u64,
    alone: u64,
    /// What the known ones took, and usually take.
    took_ns: u64,
    usual_ns: u64,
    /// How long the rests were.
    rested: Duration,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Behind {
    usual: [Usual; CLASSES],
    window: Window,
    /// Pieces of work under way, since when it is as it is (none or some), and when the last one ended.
    working: u32,
    since: Instant,
    worked: Instant,
    served: Option<Instant>,
    share: u32,
}

impl Behind {
    /// A piece of work in the background begins.
    pub fn work_begins(&mut self, now: Instant) {
        if self.working == 0 {
            if now.since(self.worked) > FORGET {
                self.window = Window { began: now, ..Window::default() };
                self.share = 0;
            } else {
                self.window.rested += now.since(self.since.max(self.window.began));
            }
            self.since = now;
        }
        self.working += 1;
    }
    /// It ends.
    pub fn work_ends(&mut self, now: Instant) {
        self.working = self.working.saturating_sub(1);
        if self.working == 0 {
            (self.since, self.worked) = (now, now);
        }
    }
    /// A client's request was answered.
    pub fn served(&mut self, class: Class, began: Instant, now: Instant) {
        self.served = Some(now);
        let took = now.since(began).as_nanos() as u64;
        let rests = self.working == 0;
        let usual = &mut self.usual[class.0];
        if rests && self.worked <= began {
            usual.add(took);
        }
        let w = &mut self.window;
        w.requests += 1;
        w.alone += u64::from(rests);
        if usual.requests > 0 {
            w.known += 1;
            w.took_ns += took;
            w.usual_ns += usual.ns;
        }
    }
    /// Whether clients are being served, or were just now.
    pub fn clients_are_here(&self, now: Instant) -> bool {
        self.served.is_some_and(|at| now.since(at) <= LATELY)
    }
    /// The share of its time, in thousandths, that each of those who work in the background may work now.
    pub fn share(&self, now: Instant, floor: u32, most: u32) -> u32 {
        let forgotten = self.working == 0 && now.since(self.worked) > FORGET;
        let share = if forgotten { 0 } else { self.share };
        share.clamp(floor.min(most), most)
    }
    /// The same, when a piece of work has just ended: if there is enough to judge by, it is another one from now on.
    pub fn judge(&mut self, now: Instant, floor: u32, most: u32) -> u32 {
        let clamp = |share: u32| share.clamp(floor.min(most), most);
        self.share = clamp(self.share);
        if let Some(slower) = self.slower(now) {
            if slower > SLOWER_TOLERATED {
                self.share /= 2;
            } else if slower <= SLOWER_UNFELT {
                self.share += self.share / 4 + STEP;
            }
            self.share = clamp(self.share);
            self.window = Window { began: now, ..Window::default() };
        }
        self.share
    }
    /// By how many per cent clients were slower in this window, if it is over.
    fn slower(&self, now: Instant) -> Option<u64> {
        let (w, age) = (&self.window, now.since(self.window.began));
        if age < WINDOW || (w.requests < TIMES_MIN && age < WINDOW_MAX) {
            return None;
        }
        if w.requests == 0 {
            return Some(0);
        }
        // Most of it never ran alone: the rests are too short to know more.
        if w.known * 2 < w.requests {
            return Some(u64::MAX);
        }
        let more = |a: u128, b: u128| (a.saturating_sub(b) * 100 / b.max(1)) as u64;
        let times = more(w.took_ns.into(), w.usual_ns.into());
        let rates = match w.alone {
            RATES_MIN.. if !w.rested.is_zero() => more(
                u128::from(w.alone) * age.as_nanos(),
                u128::from(w.requests) * w.rested.as_nanos(),
            ),
            _ => 0,
        };
        Some(times.max(rates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR: u32 = 100;
    const MOST: u32 = 500;
    /// With this share clients of which some are held up are no more than a fifth slower.
    const FEW: u32 = 150;
    const MS: u64 = 1_000_000;

    /// A node whose background works for 5 ms and rests, and a client whose requests follow each other: each takes so long if it begins in a rest, so long if not, and
    /// so long until the next one then.
    struct Life {
        behind: Behind,
        now: u64,
        shares: Vec<u32>,
    }

    impl Life {
        fn new() -> Self {
            Self { behind: Behind::default(), now: 1 << 40, shares: Vec::new() }
        }
        fn at(&self) -> Instant {
            Instant(self.now)
        }
        /// The share after so many seconds.
        fn goes_on(&mut self, seconds: u64, request: impl Fn(bool) -> (u64, u64)) -> u32 {
            let end = self.now + seconds * 1000 * MS;
            let mut next = self.now;
            self.shares.clear();
            while self.now < end {
                self.behind.work_begins(self.at());
                self.requests(5 * MS, &mut next, true, &request);
                self.behind.work_ends(self.at());
                let share = self.behind.judge(self.at(), FLOOR, MOST);
                self.shares.push(share);
                self.requests(
                    5 * MS * u64::from(WHOLE - share) / u64::from(share),
                    &mut next,
                    false,
                    &request,
                );
            }
            *self.shares.last().expect("some")
        }
        /// Those that begin within a time; they end in it as well, or right behind it.
        fn requests(
            &mut self,
            time: u64,
            next: &mut u64,
            works: bool,
            request: impl Fn(bool) -> (u64, u64),
        ) {
            let end = self.now + time;
            while *next < end {
                let (took, pause) = request(works);
                let (began, done) = (Instant(*next), Instant(*next + took));
                self.behind.served(Class::new(Kind::Read, 4096), began, done);
                *next += took + pause;
            }
            self.now = end;
        }
    }

    #[test]
    fn the_share_falls_while_clients_wait_and_grows_while_they_do_not() {
        let mut life = Life::new();
        assert_eq!(life.goes_on(5, |_| (MS / 2, 0)), MOST, "nobody feels it");
        let waits = |works| (if works { 2 * MS } else { MS / 2 }, 0);
        assert!(life.goes_on(2, waits) <= FEW, "within 2 s: {:?}", life.shares);
        assert!(life.shares.iter().all(|s| (FLOOR..=MOST).contains(s)), "{:?}", life.shares);
        assert_eq!(life.goes_on(5, |_| (MS / 2, 0)), MOST, "and back");
    }

    /// What the service measures begins when it has the request; of a processor that is short its clients know more.
    #[test]
    fn the_share_falls_where_fewer_requests_come_while_it_works() {
        let mut life = Life::new();
        life.goes_on(5, |_| (MS / 10, MS / 10));
        let fewer = |works| (MS / 10, if works { MS } else { MS / 10 });
        assert!(life.goes_on(2, fewer) <= FEW, "{:?}", life.shares);
    }

    #[test]
    fn what_is_usual_is_not_learned_beside_the_background() {
        let mut life = Life::new();
        let waits = |works| (if works { 5 * MS } else { MS / 2 }, 0);
        for _ in 0..20 {
            assert!(life.goes_on(1, waits) <= FEW, "{:?}", life.shares);
        }
        // Clients that are slower by themselves are no reason.
        life.goes_on(5, |_| (2 * MS, 0));
        assert_eq!(life.goes_on(5, |_| (2 * MS, 0)), MOST);
    }

    #[test]
    fn it_begins_at_the_floor_and_a_floor_above_the_greatest_is_the_greatest() {
        let mut b = Behind::default();
        let at = |ms: u64| Instant((1 << 40) + ms * MS);
        assert_eq!(b.share(at(0), FLOOR, MOST), FLOOR);
        assert_eq!(b.share(at(0), 900, MOST), MOST);
        b.served(Class::new(Kind::Forward, 1 << 20), at(0), at(10));
        assert!(b.clients_are_here(at(1000)) && !b.clients_are_here(at(3000)));
        // A few requests that never run alone: nothing is known of them, and they are given room.
        b.share = MOST;
        for second in 0..5 {
            b.work_begins(at(second * 1000));
            b.served(Class::new(Kind::Update, 4096), at(second * 1000 + 1), at(second * 1000 + 2));
            b.work_ends(at(second * 1000 + 900));
            b.judge(at(second * 1000 + 900), FLOOR, MOST);
        }
        assert_eq!(b.share, FLOOR);
    }

    #[test]
    fn requests_are_compared_with_their_like() {
        let classes = [Kind::Read, Kind::Update, Kind::Forward]
            .map(|k| [0, 16 << 10, 64 << 10, 1 << 20].map(|b| Class::new(k, b)));
        assert!(classes.iter().flatten().all(|c| c.0 < CLASSES));
        for kind in &classes {
            assert!(kind[0] == kind[1] && kind[1] != kind[2] && kind[2] != kind[3]);
        }
        assert_ne!(classes[0][3], classes[1][0]);
    }
}
