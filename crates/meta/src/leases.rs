//! Who may have cached the attributes and names of which inode, and until when. In memory only, of this service's own clients. Pure.
//!
//! A call that reads what it leases is watched ([`Leases::watch`]): if anything of it was changed by a commit that it may have missed,
//! it gets no lease. Inodes that one client changed while another had a lease are not leased for a while: they would be
//! recalled again and again. Their names are, unless it was a name that was taken.

use glowfs_rt::{Duration, Instant};
use glowfs_types::{ClientId, InodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Leases in one generation; beyond that none are given.
const LEASES_MAX: usize = 1 << 18;

/// Somebody from whom a lease was taken.
pub struct Taken<C> {
    /// The client.
    pub client: ClientId,
    /// How it can be called.
    pub conn: C,
    /// When its lease ends.
    pub until: Instant,
    /// It may have the name that went.
    pub name: bool,
}

/// Somebody who may have cached an inode: its attributes and names of it, each until then.
struct Holder<C> {
    client: ClientId,
    conn: C,
    attributes: Instant,
    names: Instant,
}

/// What is leased.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// The attributes of an inode.
    Attributes,
    /// And the name that it was found by.
    AndName,
    /// And the name, which may be kept also if the attributes may not.
    OrName,
}

/// For how long a client may keep what it was told; zero: it may not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Granted {
    /// The attributes.
    pub attributes: Duration,
    /// The name.
    pub name: Duration,
}

struct Generation<C> {
    holders: BTreeMap<InodeId, Vec<Holder<C>>>,
    contended: BTreeSet<InodeId>,
    /// Those of them of which a name was taken.
    names_contended: BTreeSet<InodeId>,
    count: usize,
}

impl<C> Default for Generation<C> {
    fn default() -> Self {
        Self {
            holders: BTreeMap::new(),
            contended: BTreeSet::new(),
            names_contended: BTreeSet::new(),
            count: 0,
        }
    }
}

/// See the module. What is older than two lease times has ended, so two generations hold everything.
pub struct Leases<C> {
    life: Duration,
    turned: Instant,
    young: Generation<C>,
    old: Generation<C>,
    /// What was changed during each call that reads.
    watches: BTreeMap<u64, BTreeSet<InodeId>>,
    next_watch: u64,
}

impl<C: Clone> Leases<C> {
    /// Leases that last `life`; zero: none are given.
    pub fn new(life: Duration, now: Instant) -> Self {
        Self {
            life,
            turned: now,
            young: Generation::default(),
            old: Generation::default(),
            watches: BTreeMap::new(),
            next_watch: 0,
        }
    }

    /// A call begins to read what it may lease. Give the number to [`Leases::unwatch`] when it has ended.
    pub fn watch(&mut self) -> u64 {
        self.next_watch += 1;
        self.watches.insert(self.next_watch, BTreeSet::new());
        self.next_watch
    }
    /// The call has ended.
    pub fn unwatch(&mut self, watch: u64) {
        self.watches.remove(&watch);
    }

    fn turn(&mut self, now: Instant) {
        let age = now.since(self.turned);
        if age < self.life {
            return;
        }
        self.old = std::mem::take(&mut self.young);
        if age >= self.life * 2 {
            self.old = Generation::default();
        }
        self.turned = now;
    }

    /// Lets a client keep what a call read of an inode under `watch`; returns for how long.
    pub fn grant_read(
        &mut self,
        watch: u64,
        (inode, what): (InodeId, What),
        (client, conn): (ClientId, &C),
        now: Instant,
    ) -> Granted {
        match self.watches.get(&watch) {
            Some(changed) if !changed.contains(&inode) => {
                self.grant((inode, what), (client, conn), now)
            }
            _ => Granted::default(),
        }
    }

    fn grant(
        &mut self,
        (inode, what): (InodeId, What),
        (client, conn): (ClientId, &C),
        now: Instant,
    ) -> Granted {
        if self.life.is_zero() {
            return Granted::default();
        }
        self.turn(now);
        let among = |of: fn(&Generation<C>) -> &BTreeSet<InodeId>| {
            [&self.young, &self.old].into_iter().any(|g| of(g).contains(&inode))
        };
        let contended = among(|g| &g.contended);
        // Who works in a directory by turns with others changes its attributes, and leaves its name alone.
        let alone = what == What::OrName && !among(|g| &g.names_contended);
        if (contended && !alone) || self.young.count >= LEASES_MAX {
            return Granted::default();
        }
        let until = now + self.life;
        let holders = self.young.holders.entry(inode).or_default();
        let attributes = if contended { Instant::default() } else { until };
        let names = if what == What::Attributes { Instant::default() } else { until };
        match holders.iter_mut().find(|h| h.client == client) {
            Some(h) => {
                h.conn = conn.clone();
                (h.attributes, h.names) = (h.attributes.max(attributes), h.names.max(names));
            }
            None => {
                holders.push(Holder { client, conn: conn.clone(), attributes, names });
                self.young.count += 1;
            }
        }
        let life = |until: Instant| if until > now { self.life } else { Duration::ZERO };
        Granted { attributes: life(attributes), name: life(names) }
    }

    /// Takes away what others than `by` hold of an inode, because `by` changed it: its attributes, and with `name` a name that led to
    /// it as well. They have to be told. `own` is the watch of the call that changed it, if that knows what came of it: no other change that it
    /// may have missed is overlooked.
    pub fn take(
        &mut self,
        inode: InodeId,
        (by, own): (ClientId, Option<u64>),
        name: bool,
        now: Instant,
    ) -> Vec<Taken<C>> {
        self.turn(now);
        for (_, changed) in self.watches.iter_mut().filter(|(w, _)| Some(**w) != own) {
            changed.insert(inode);
        }
        let mut taken: Vec<Taken<C>> = Vec::new();
        for generation in [&mut self.young, &mut self.old] {
            let Some(holders) = generation.holders.get_mut(&inode) else { continue };
            let before = holders.len();
            holders.retain(|h| h.client == by || h.attributes.max(h.names) > now);
            for h in holders.iter_mut().filter(|h| h.client != by) {
                let has_name = name && h.names > now;
                let until = if has_name { h.attributes.max(h.names) } else { h.attributes };
                if until > now {
                    match taken.iter_mut().find(|t| t.client == h.client) {
                        Some(t) => (t.until, t.name) = (t.until.max(until), t.name || has_name),
                        None => {
                            let conn = h.conn.clone();
                            taken.push(Taken { client: h.client, conn, until, name: has_name });
                        }
                    }
                }
                // One name was recalled; it may know others, of a file with several.
                h.attributes = Instant::default();
            }
            generation.count -= before - holders.len();
            if holders.is_empty() {
                generation.holders.remove(&inode);
            }
        }
        if !taken.is_empty() {
            self.young.contended.insert(inode);
            if name {
                self.young.names_contended.insert(inode);
            }
        }
        taken
    }

    /// The clients that may have a name of an inode.
    pub fn holders_of_names(&self, inode: InodeId, now: Instant) -> Vec<ClientId> {
        let all = [&self.young, &self.old].into_iter().filter_map(|g| g.holders.get(&inode));
        all.flatten().filter(|h| h.names > now).map(|h| h.client).collect()
    }

    /// Something was changed of which it is not known what: no call that is under way may lease what it read. What is leased already ends within
    /// the time that is returned.
    pub fn doubt_all(&mut self) -> Duration {
        self.watches.clear();
        self.life
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.count + self.old.count
    }
}

#[cfg(test)]
mod tests {
    use super::What::{AndName, Attributes, OrName};
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    fn at(ms: u64) -> Instant {
        Instant(0) + MS(ms)
    }
    const I: InodeId = InodeId(7);
    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    #[test]
    fn a_change_takes_the_leases_of_others() {
        let mut l = Leases::new(MS(1000), at(0));
        assert_eq!(l.grant((I, AndName), (A, &"a"), at(10)).attributes, MS(1000));
        assert_eq!(l.grant((I, AndName), (B, &"b"), at(20)).attributes, MS(1000));
        let taken = l.take(I, (A, None), true, at(30));
        assert_eq!(taken.len(), 1);
        assert_eq!((taken[0].client, taken[0].until), (B, at(1020)));
        assert!(l.take(I, (A, None), false, at(31)).is_empty(), "taken once");
        assert!(
            l.holders_of_names(I, at(1009)).contains(&A)
                && !l.holders_of_names(I, at(1010)).contains(&A)
        );
        assert!(l.holders_of_names(I, at(32)).contains(&B), "names of which it has not been told");
        assert_eq!(l.take(I, (B, None), true, at(32)).len(), 1, "its own stayed");
    }

    #[test]
    fn names_outlive_a_change_of_attributes() {
        let mut l = Leases::new(MS(1000), at(0));
        l.grant((I, AndName), (A, &"a"), at(10));
        assert_eq!(l.take(I, (B, None), false, at(20)).len(), 1);
        assert!(l.take(I, (B, None), false, at(30)).is_empty(), "the attributes are gone already");
        assert_eq!(l.take(I, (B, None), true, at(40)).len(), 1, "the name was not");
        assert_eq!(l.take(I, (B, None), true, at(50)).len(), 1, "nor is a second one");
        assert!(l.take(I, (B, None), true, at(1010)).is_empty(), "ended by itself");
        l.grant((I, AndName), (A, &"a"), at(3000));
        assert_eq!(l.take(I, (B, None), false, at(3001)).len(), 1);
        assert!(l.take(I, (B, None), true, at(4001)).is_empty(), "ended by itself");
    }

    #[test]
    fn names_are_recalled_from_who_may_have_some() {
        let mut l = Leases::new(MS(1000), at(0));
        l.grant((I, Attributes), (A, &"a"), at(10));
        assert!(!l.holders_of_names(I, at(11)).contains(&A));
        let taken = l.take(I, (B, None), true, at(20));
        assert_eq!((taken.len(), taken[0].name), (1, false));
        assert!(l.take(I, (B, None), true, at(21)).is_empty());
        // A name from before stays, when attributes are leased later.
        l.grant((I, AndName), (A, &"a"), at(4000));
        l.grant((I, Attributes), (A, &"a"), at(4500));
        assert!(
            l.holders_of_names(I, at(4999)).contains(&A)
                && !l.holders_of_names(I, at(5000)).contains(&A)
        );
        let taken = l.take(I, (B, None), true, at(4600));
        assert_eq!((taken[0].name, taken[0].until), (true, at(5500)));
    }

    #[test]
    fn a_lease_is_found_until_it_ends_and_not_later() {
        for granted in [0, 1, 999, 1000, 1001, 1999, 2500] {
            for asked in [1, 500, 998, 999] {
                let mut l = Leases::new(MS(1000), at(0));
                l.grant((InodeId(1), AndName), (A, &"a"), at(granted / 2));
                l.grant((I, AndName), (A, &"a"), at(granted));
                // Other traffic turns the generations meanwhile.
                l.grant((InodeId(2), AndName), (A, &"a"), at(granted + asked / 2));
                assert_eq!(
                    l.take(I, (B, None), true, at(granted + asked)).len(),
                    1,
                    "{granted} {asked}"
                );
            }
            let mut l = Leases::new(MS(1000), at(0));
            l.grant((I, AndName), (A, &"a"), at(granted));
            assert!(l.take(I, (B, None), true, at(granted + 1000)).is_empty(), "{granted}");
        }
    }

    #[test]
    fn what_was_changed_while_it_was_read_is_not_leased() {
        let mut l = Leases::new(MS(1000), at(0));
        let w = l.watch();
        assert!(l.take(I, (B, None), true, at(1)).is_empty());
        assert_eq!(l.grant_read(w, (I, AndName), (A, &"a"), at(2)).attributes, Duration::ZERO);
        assert_eq!(l.grant_read(w, (InodeId(8), AndName), (A, &"a"), at(2)).attributes, MS(1000));
        l.unwatch(w);
        assert_eq!(l.grant_read(w, (InodeId(9), AndName), (A, &"a"), at(2)), Granted::default());
    }

    #[test]
    fn a_call_may_lease_what_it_changed_itself_unless_others_did_too() {
        let mut l = Leases::new(MS(1000), at(0));
        let (mine, other) = (l.watch(), l.watch());
        assert!(l.take(I, (A, Some(mine)), false, at(1)).is_empty());
        assert_eq!(
            l.grant_read(other, (I, AndName), (A, &"a"), at(2)),
            Granted::default(),
            "not its own change"
        );
        assert_eq!(l.grant_read(mine, (I, AndName), (A, &"a"), at(2)).attributes, MS(1000));
        assert_eq!(l.take(I, (B, Some(other)), false, at(3)).len(), 1, "others are told");
        assert_eq!(l.grant_read(mine, (I, AndName), (A, &"a"), at(4)).attributes, Duration::ZERO);
    }

    #[test]
    fn what_is_changed_by_turns_is_not_leased_for_a_while() {
        let mut l = Leases::new(MS(1000), at(0));
        l.grant((I, AndName), (A, &"a"), at(0));
        assert_eq!(l.take(I, (B, None), true, at(1)).len(), 1);
        assert_eq!(l.grant((I, AndName), (A, &"a"), at(2)).attributes, Duration::ZERO);
        assert_eq!(l.grant((I, AndName), (A, &"a"), at(900)).attributes, Duration::ZERO);
        assert_eq!(l.grant((I, AndName), (A, &"a"), at(3000)).attributes, MS(1000));
    }

    #[test]
    fn a_name_may_be_kept_while_the_attributes_change_by_turns() {
        let mut l = Leases::new(MS(1000), at(0));
        let both = Granted { attributes: MS(1000), name: MS(1000) };
        assert_eq!(l.grant((I, OrName), (A, &"a"), at(0)), both);
        assert_eq!(l.take(I, (B, None), false, at(1)).len(), 1);
        let name = Granted { attributes: Duration::ZERO, name: MS(1000) };
        assert_eq!(l.grant((I, OrName), (A, &"a"), at(500)), name);
        assert_eq!(l.grant((I, AndName), (A, &"a"), at(500)), Granted::default());
        assert!(l.take(I, (B, None), false, at(501)).is_empty(), "it keeps no attributes");
        // Who moves it takes the name, and then it is not leased for a while either.
        let taken = l.take(I, (B, None), true, at(502));
        assert_eq!((taken.len(), taken[0].name, taken[0].until), (1, true, at(1500)));
        assert_eq!(l.grant((I, OrName), (A, &"a"), at(503)), Granted::default());
        assert_eq!(l.grant((I, OrName), (A, &"a"), at(3000)), both);
    }

    #[test]
    fn a_name_that_is_kept_leaves_the_attributes_as_they_are_leased() {
        let mut l = Leases::new(MS(1000), at(0));
        l.grant((I, AndName), (A, &"a"), at(0));
        l.grant((I, AndName), (B, &"b"), at(0));
        // A changed it: its own lease stays.
        assert_eq!(l.take(I, (A, None), false, at(1)).len(), 1);
        l.grant((I, OrName), (A, &"a"), at(2));
        let taken = l.take(I, (B, None), false, at(3));
        assert_eq!((taken.len(), taken[0].until, taken[0].name), (1, at(1000), false));
    }

    #[test]
    fn leases_are_bounded_and_forgotten() {
        let mut l = Leases::new(MS(1000), at(0));
        for i in 0..LEASES_MAX as u64 {
            assert!(!l.grant((InodeId(i), AndName), (A, &"a"), at(1)).attributes.is_zero());
        }
        assert!(
            l.grant((InodeId(u64::MAX), AndName), (A, &"a"), at(1)).attributes.is_zero(),
            "full"
        );
        assert!(!l.grant((InodeId(u64::MAX), AndName), (A, &"a"), at(1500)).attributes.is_zero());
        l.grant((I, AndName), (A, &"a"), at(4000));
        assert_eq!(l.len(), 1);
    }
}
