//! What must hold at every moment: one primary at most, versions that only grow.

use glowfs_mgmtd as mgmtd;
use glowfs_types::routing::RoutingInfo;
use glowfs_types::{ChainId, ChainVersion, RoutingVersion};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The greatest number of problems kept.
const PROBLEMS_MAX: usize = 20;

/// See the module.
#[derive(Default)]
pub struct Watch {
    /// The managers that run, by name.
    managers: RefCell<BTreeMap<String, Rc<mgmtd::Running>>>,
    /// By observer.
    seen: RefCell<BTreeMap<String, Seen>>,
    problems: RefCell<Vec<String>>,
}

#[derive(Default)]
struct Seen {
    routing: RoutingVersion,
    chains: BTreeMap<ChainId, (ChainVersion, ChainVersion)>,
}

impl Watch {
    /// A manager runs.
    pub fn started(&self, name: &str, running: Rc<mgmtd::Running>) {
        self.managers.borrow_mut().insert(name.to_owned(), running);
    }
    /// It is gone.
    pub fn ended(&self, name: &str) {
        let gone = self.managers.borrow_mut().remove(name);
        drop(gone);
    }
    /// How many managers believe to be primary now.
    pub fn primaries(&self) -> usize {
        self.managers.borrow().values().filter(|m| m.is_primary()).count()
    }
    /// Looks at the managers.
    pub fn look(&self, now: std::time::Duration) {
        if self.primaries() < 2 {
            return;
        }
        let all = self.managers.borrow();
        let names: Vec<_> = all.iter().filter(|(_, m)| m.is_primary()).map(|(n, _)| n).collect();
        self.problem(format!("at {now:?} there are several primaries: {names:?}"));
    }
    /// Looks at what an observer knows of the cluster.
    pub fn routing(&self, observer: &str, info: &RoutingInfo) {
        let mut all = self.seen.borrow_mut();
        let seen = all.entry(observer.to_owned()).or_default();
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
