//! The names that a replica gives to its messages, pauses and requests, given anew: for model checkers, to which two states that differ only in these
//! names are one state, and which could not come to an end otherwise, for names are never used twice.
//!
//! Guarantees: the replica that comes back behaves as the one that it is made of, as long as whoever drives it renames what it holds by the same maps, and forgets
//! what is in none of them. Must never: be used by a service, in which what was renamed is still on its way to others.

use crate::lane::Ack;
use crate::{ForwardId, Replica, Ticket, TimerId};
use glowfs_types::ChainVersion;
use std::collections::BTreeMap;

/// A replica under new names.
#[derive(Clone, Debug)]
pub struct Renumbered {
    /// The same replica.
    pub replica: Replica,
    /// Messages of which the answer still matters: their new names. An answer to any other changes nothing.
    pub forwards: BTreeMap<ForwardId, ForwardId>,
    /// Pauses that somebody still waits for. The end of any other changes nothing.
    pub timers: BTreeMap<TimerId, TimerId>,
    /// Requests that wait for an answer of this replica, all of them.
    pub tickets: BTreeMap<Ticket, Ticket>,
}

impl Replica {
    /// The same replica with its names given anew, by the place in which they stand, and chain versions by that function, which keeps their order. With `never_refused`, the caller promises that no store and no
    /// successor of the chain ever refuses an update itself (for want of room, or bad bytes): then it forgets, too, how often each was sent and who may have shown it, which is
    /// read nowhere else (`progress.rs: refusals, answered`).
    pub fn renumbered(
        &self,
        never_refused: bool,
        version: &dyn Fn(ChainVersion) -> ChainVersion,
    ) -> Renumbered {
        let mut r = self.clone();
        let (mut forwards, mut timers, mut tickets) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        r.ids = 0;
        // Read for what stores have refused only.
        r.successor_asks &= !never_refused;
        // Whoever has a view goes by that: it is newer than all of a former life.
        r.former = if r.view.is_some() { ChainVersion(0) } else { version(r.former) };
        for view in r.view.iter_mut().chain(&mut r.next) {
            view.version = version(view.version);
        }
        let mut name = |ticket: &mut Ticket| {
            let next = Ticket(tickets.len() as u64 + 1);
            *ticket = *tickets.entry(*ticket).or_insert(next);
        };
        for lane in r.lanes.values_mut() {
            for e in &mut lane.entries {
                match &mut e.ack {
                    Ack::Sent(id) => {
                        r.ids += 1;
                        *id = *forwards.entry(*id).or_insert(ForwardId(r.ids));
                    }
                    Ack::Paused(id) => {
                        r.ids += 1;
                        *id = *timers.entry(*id).or_insert(TimerId(r.ids));
                    }
                    Ack::Unsent | Ack::InOrder | Ack::Refused(_) | Ack::Acked(_) => {}
                }
                if never_refused {
                    (e.copies, e.shown) = (0, false);
                }
                e.waiters.iter_mut().for_each(|w| name(&mut w.ticket));
            }
            lane.queue.iter_mut().flat_map(|q| &mut q.tickets).for_each(&mut name);
            lane.readers.iter_mut().for_each(&mut name);
            lane.held.iter_mut().for_each(|(ticket, _)| name(ticket));
        }
        r.telling.values_mut().flatten().for_each(|(_, ticket)| name(ticket));
        let named = |(id, what): (ForwardId, _)| Some((*forwards.get(&id)?, what));
        r.forwards = std::mem::take(&mut r.forwards).into_iter().filter_map(named).collect();
        for id in r.again.keys() {
            r.ids += 1;
            timers.insert(*id, TimerId(r.ids));
        }
        let named = |(id, what)| Some((*timers.get(&id)?, what));
        r.again = std::mem::take(&mut r.again).into_iter().filter_map(named).collect();
        let named = |(id, what): (TimerId, _)| Some((*timers.get(&id)?, what));
        r.timers = std::mem::take(&mut r.timers).into_iter().filter_map(named).collect();
        Renumbered { replica: r, forwards, timers, tickets }
    }
}
