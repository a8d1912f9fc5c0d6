//! Two worlds that behave alike are made equal: what can have no effect any more is dropped, moments and sequence numbers are counted anew, and nodes that are alike change places.
//!
//! In rounds mgmtd looks in each, so no moment is ever moved by a look that comes late: moments are only compared with the present, and what is longer ago than anything it is compared with
//! is put just so long ago.

use super::{Fault, NOW, UNANSWERED_LEASES, World, id};
use crate::closer::closer;
use glowfs_types::NodeId;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

impl World {
    pub fn mgmtd_moments(&mut self, f: &mut dyn FnMut(&mut u64)) {
        let silence_only = !self.setting.storage;
        let books = self.book.iter_mut().chain(self.former.iter_mut().map(|former| &mut former.0));
        books.for_each(|b| b.reword(silence_only, f, &mut |_, _| {}));
        self.former.iter_mut().for_each(|former| f(&mut former.1));
        self.nodes.iter_mut().filter_map(|n| n.fence.as_mut()).for_each(f);
    }
    pub fn node_moments(&mut self, i: usize, f: &mut dyn FnMut(&mut u64)) {
        let n = &mut self.nodes[i];
        for until in [&mut n.until, &mut n.before] {
            if *until > NOW {
                f(until);
            } else {
                *until = 0;
            }
        }
        n.in_time.iter_mut().for_each(&mut *f);
        for mut s in std::mem::take(&mut self.beats) {
            if s.beat.node == id(i) {
                f(&mut s.at);
            }
            self.beats.insert(s);
        }
        for mut a in std::mem::take(&mut self.answers) {
            if a.node == i {
                f(&mut a.sent);
            }
            self.answers.insert(a);
        }
    }
    fn sequences(&mut self, i: usize, f: &mut dyn FnMut(&mut u64)) {
        f(&mut self.nodes[i].sequence);
        for mut s in std::mem::take(&mut self.beats) {
            if s.beat.node == id(i) {
                f(&mut s.beat.sequence);
            }
            self.beats.insert(s);
        }
        let books = self.book.iter_mut().chain(self.former.iter_mut().map(|former| &mut former.0));
        books.for_each(|b| {
            b.reword(!self.setting.storage, &mut |_| {}, &mut |node, sequence| {
                if node == id(i) {
                    f(sequence);
                }
            });
        });
    }
    /// Forgets what can have no effect any more, and gives moments and sequence numbers new names.
    pub fn put_in_order(&mut self) {
        let longest = self.setting.longest(self.nodes.len());
        // What grants nothing any more, or is for a former life, is as good as lost.
        let (nodes, lease) = (&self.nodes, self.setting.leases.lease_ms);
        let counts = self.setting.fault == Some(Fault::LeaseFromAnswer);
        self.answers.retain(|a| {
            a.life == nodes[a.node].life && (counts || a.sent + a.lease.max(lease) > NOW)
        });
        if self.setting.rounds {
            self.forget_long_ago();
        }
        let mut all = BTreeSet::from([NOW]);
        self.mgmtd_moments(&mut |m| {
            all.insert(*m);
        });
        let names = closer(all, longest, NOW, NOW);
        self.mgmtd_moments(&mut |m| *m = names[m]);
        for i in 0..self.nodes.len() {
            let mut all = BTreeSet::from([NOW]);
            self.node_moments(i, &mut |m| {
                all.insert(*m);
            });
            let names = closer(all, longest, NOW, NOW);
            self.node_moments(i, &mut |m| *m = names[m]);
            if !self.setting.storage {
                self.nodes[i].in_time = None;
            }
            let mut all = BTreeSet::from([0]);
            self.sequences(i, &mut |s| {
                all.insert(*s);
            });
            let names = closer(all, 1, 0, 0);
            self.sequences(i, &mut |s| *s = names[s]);
        }
        if self.setting.rounds && self.nodes.len() == 2 {
            self.lesser_of_two();
        }
    }
    fn forget_long_ago(&mut self) {
        let (falls, lease) = (self.setting.falls, self.setting.leases.lease_ms);
        self.book.iter_mut().for_each(|b| b.forget_long_ago(falls, NOW));
        for in_time in self.nodes.iter_mut().filter_map(|n| n.in_time.as_mut()) {
            *in_time = (*in_time).max(NOW - UNANSWERED_LEASES * lease);
        }
    }
    /// Two nodes are alike but for their names, and either may be heard first: of a world and the one in which they have changed places, one stands for both.
    fn lesser_of_two(&mut self) {
        assert!(self.beats.is_empty() && self.answers.is_empty() && self.former.is_none());
        let mut turned = self.clone();
        let other = |n: NodeId| NodeId(3 - n.0);
        turned.nodes.swap(0, 1);
        turned.alive = self.alive.iter().map(|n| other(*n)).collect();
        for of in [&mut turned.chain.serving, &mut turned.chain.unheard, &mut turned.chain.holds] {
            *of = of.iter().map(|i| 1 - i).collect();
        }
        turned.book = self.book.as_ref().map(|b| b.renamed(other));
        let key = |w: &Self| {
            let mut h = DefaultHasher::new();
            w.hash(&mut h);
            h.finish()
        };
        if key(&turned) < key(self) {
            *self = turned;
        }
    }
}
