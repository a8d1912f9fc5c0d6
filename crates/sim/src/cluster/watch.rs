//! What must hold at every moment: one primary at most; no node serves that the primary has declared dead; versions only grow, and
//! a version of a chain has the same members for everyone.

use glowfs_mgmtd as mgmtd;
use glowfs_storage as storage;
use glowfs_types::routing::{ChainMember, RoutingInfo};
use glowfs_types::{ChainId, ChainVersion, NodeId, RoutingVersion};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The greatest number of problems kept.
const PROBLEMS_MAX: usize = 20;
/// What two services that serve take for the cluster's time may differ by so much, in ns: the ways of messages, and a change of the primary.
const TIMES_APART_NS: u64 = 5_000_000_000;
/// ... and by more for as long as this: when a primary hears of a later time from who remembers it (all managers were away meanwhile), the others
/// hear it with their next lease. Longer than any such lease.
const TIMES_APART_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// See the module.
#[derive(Default)]
pub struct Watch {
    /// The managers that run, by name.
    managers: RefCell<BTreeMap<String, Rc<mgmtd::Running>>>,
    /// The storage services that run, by name.
    storages: RefCell<BTreeMap<String, (NodeId, Rc<storage::Running>)>>,
    /// By observer.
    seen: RefCell<BTreeMap<String, Seen>>,
    /// What anybody knew to be a chain's members under a version.
    members: RefCell<BTreeMap<(ChainId, ChainVersion), Vec<ChainMember>>>,
    /// Since when those who serve have been apart in time.
    apart_since: Cell<Option<std::time::Duration>>,
    problems: RefCell<Vec<String>>,
}

#[derive(Default)]
struct Seen {
    /// What it knew when it was looked at last: that is not looked at again.
    last: Option<Rc<RoutingInfo>>,
    routing: RoutingVersion,
    chains: BTreeMap<ChainId, (ChainVersion, ChainVersion)>,
}

impl Watch {
    /// A manager runs.
    pub fn started(&self, name: &str, running: Rc<mgmtd::Running>) {
        self.managers.borrow_mut().insert(name.to_owned(), running);
    }
    /// A storage service runs.
    pub fn storage_started(&self, name: &str, id: NodeId, running: Rc<storage::Running>) {
        self.storages.borrow_mut().insert(name.to_owned(), (id, running));
    }
    /// A service is gone.
    pub fn ended(&self, name: &str) {
        let gone =
            (self.managers.borrow_mut().remove(name), self.storages.borrow_mut().remove(name));
        drop(gone);
        // Its next life begins to learn from nothing.
        self.seen.borrow_mut().remove(name);
    }
    /// The name of the primary, if there is one.
    pub fn primary(&self) -> Option<String> {
        let all = self.managers.borrow();
        all.iter().find(|(_, m)| m.is_primary()).map(|(name, _)| name.clone())
    }
    /// How many managers believe to be primary now.
    pub fn primaries(&self) -> usize {
        self.managers.borrow().values().filter(|m| m.is_primary()).count()
    }
    /// Looks at the managers, and at who serves.
    pub fn look(&self, now: std::time::Duration) {
        self.look_at_leases(now);
        self.look_at_times(now);
        if self.primaries() < 2 {
            return;
        }
        let all = self.managers.borrow();
        let names: Vec<_> = all.iter().filter(|(_, m)| m.is_primary()).map(|(n, _)| n).collect();
        self.problem(format!("at {now:?} there are several primaries: {names:?}"));
    }
    /// A node that the primary has declared dead must have stopped serving before.
    fn look_at_leases(&self, now: std::time::Duration) {
        let managers = self.managers.borrow();
        for (name, (id, storage)) in self.storages.borrow().iter() {
            let serves = storage.lease_valid();
            if serves && let Some((m, _)) = managers.iter().find(|(_, m)| m.declares_dead(*id)) {
                self.problem(format!("at {now:?} {name} serves, which {m} has declared dead"));
            }
        }
    }
    /// Whoever serves goes by one time, whatever became of the wall clocks.
    fn look_at_times(&self, now: std::time::Duration) {
        let storages = self.storages.borrow();
        let serve = storages.values().filter(|(_, s)| s.lease_valid());
        let mut times = serve.filter_map(|(_, s)| s.cluster_time());
        let Some(one) = times.next() else {
            return self.apart_since.set(None);
        };
        let (first, last) = times.fold((one, one), |(f, l), t| (f.min(t), l.max(t)));
        if last - first <= TIMES_APART_NS {
            return self.apart_since.set(None);
        }
        let since = self.apart_since.get().unwrap_or(now);
        self.apart_since.set(Some(since));
        if now - since > TIMES_APART_MAX {
            let apart = std::time::Duration::from_nanos(last - first);
            self.problem(format!("at {now:?} those who serve are {apart:?} apart"));
        }
    }
    /// Looks at what the storage services know of the cluster; the newest of it.
    pub fn storages_routing(&self) -> Option<Rc<RoutingInfo>> {
        let storages = self.storages.borrow();
        let known = storages.iter().map(|(name, (_, storage))| {
            let info = storage.routing();
            self.routing(name, &info);
            info
        });
        known.max_by_key(|r| r.version)
    }
    fn look_at_members(&self, observer: &str, info: &RoutingInfo) {
        let mut all = self.members.borrow_mut();
        for (id, chain) in &info.chains {
            let known = all.entry((*id, chain.version)).or_insert_with(|| chain.members.clone());
            if *known != chain.members {
                self.problem(format!(
                    "{observer}: version {} of chain {id} has members {:?}, and had {known:?} before",
                    chain.version, chain.members
                ));
            }
        }
    }
    /// Looks at what an observer knows of the cluster.
    pub fn routing(&self, observer: &str, info: &Rc<RoutingInfo>) {
        let mut all = self.seen.borrow_mut();
        let known = all.get(observer).and_then(|seen| seen.last.as_ref());
        if known.is_some_and(|last| Rc::ptr_eq(last, info)) {
            return;
        }
        self.look_at_members(observer, info);
        let seen = all.entry(observer.to_owned()).or_default();
        seen.last = Some(info.clone());
        if info.version < seen.routing {
            self.problem(format!(
                "{observer}: the routing version went back from {} to {}",
                seen.routing, info.version
            ));
        }
        seen.routing = info.version;
        for (id, chain) in &info.chains {
            let now = (chain.version, chain.activated);
            let before = seen.chains.insert(*id, now).unwrap_or_default();
            if now.0 < before.0 || now.1 < before.1 || now.1 > now.0 {
                self.problem(format!(
                    "{observer}: chain {id} went from version and activated version {before:?} to {now:?}"
                ));
            }
        }
    }
    fn problem(&self, what: String) {
        let mut all = self.problems.borrow_mut();
        if all.len() < PROBLEMS_MAX {
            all.push(what);
        }
    }
    /// What was wrong.
    pub fn problems(&self) -> Vec<String> {
        self.problems.borrow().clone()
    }
}
