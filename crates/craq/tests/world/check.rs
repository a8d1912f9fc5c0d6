//! What must hold always, and what must come about when the troubles end.

use super::node::show;
use super::{Choice, Content, World, chunk};
use glowfs_types::routing::PublicState;

/// Steps within which everything must have come about once the troubles ended.
const SETTLE_STEPS: usize = 20_000;

impl World {
    fn removes(&self) -> bool {
        self.clients.iter().any(|c| !c.removals.is_empty())
    }

    /// Every content that could be read now extends every one that could be read before and holds every acknowledged write;
    /// no write is in it twice; no acknowledged write is missing on a serving replica.
    pub fn observe(&mut self) {
        let chunks: Vec<u8> = {
            let mut c: Vec<u8> = self.clients.iter().map(|c| c.chunk).collect();
            c.sort_unstable();
            c.dedup();
            c
        };
        for at in chunks {
            let mut readable: Vec<(u8, Content)> = Vec::new();
            for (i, n) in self.nodes.iter().enumerate() {
                let Some(r) = &n.replica else { continue };
                let m = n.store.chunks.get(&chunk(at)).cloned().unwrap_or_default();
                for w in &m.content {
                    let times = m.content.iter().filter(|x| *x == w).count();
                    assert_eq!(
                        times,
                        1,
                        "node {i}: a write was applied {times} times: {}",
                        show(&m.content)
                    );
                }
                let Some(view) = r.view() else { continue };
                if n.fenced || r.can_read(view.version, chunk(at)) != Ok(true) {
                    continue;
                }
                readable.push((i as u8, m.content));
            }
            if self.removes() {
                continue;
            }
            let seen = self.observed.entry(at).or_default();
            for (i, content) in readable {
                assert!(
                    content.starts_with(seen),
                    "node {i} serves [{}] of chunk {at} after [{}] was served",
                    show(&content),
                    show(seen)
                );
                for (c, w) in &self.acked {
                    assert!(
                        *c != at || content.contains(w),
                        "node {i} serves [{}] of chunk {at} without the acknowledged write {w:?}",
                        show(&content)
                    );
                }
                if content.len() > seen.len() {
                    *seen = content;
                }
            }
        }
    }

    /// Ends all troubles and lets everything run; then all must serve, be equal and quiet, and all writes be done.
    pub fn settle(mut self) {
        self.budget = super::Budget::default();
        self.serial_disks = true;
        for step in 0..SETTLE_STEPS {
            self.budget.pauses = 1;
            self.budget.syncs = 1;
            for c in &mut self.clients {
                c.repeats = 0;
            }
            let choices = self.choices();
            // Fair, so that nothing is put off for ever.
            let mixed = (step as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            let next = choices.get(mixed as usize % choices.len().max(1)).cloned();
            match next {
                Some(choice) => self.apply(&choice),
                None => match self.clients.iter().position(|c| c.number < c.writes) {
                    Some(c) => self.apply(&Choice::Repeat(c as u8)),
                    None => return self.settled(),
                },
            }
        }
        panic!("does not settle: {self:#?}");
    }

    fn settled(&self) {
        for (i, n) in self.nodes.iter().enumerate() {
            let r = n.replica.as_ref().expect("restarted");
            assert_eq!(self.chain.state(i as u8), PublicState::Serving, "node {i} serves again");
            assert!(r.is_quiet(), "node {i} has something left: {r:#?}");
            assert!(n.tickets.is_empty(), "node {i} left requests unanswered: {:?}", n.tickets);
            assert!(n.payloads.is_empty(), "node {i} keeps payloads: {:?}", n.payloads);
            for c in &self.clients {
                let (mine, first) = (&n.store.chunks, &self.nodes[0].store.chunks);
                let (a, b) = (mine.get(&chunk(c.chunk)), first.get(&chunk(c.chunk)));
                let content =
                    |m: Option<&super::Model>| m.map(|m| m.content.clone()).unwrap_or_default();
                assert_eq!(
                    content(a),
                    content(b),
                    "node {i} and node 0 differ in chunk {}",
                    c.chunk
                );
                assert!(a.is_none_or(|m| m.pending.is_empty()), "node {i} has pending versions");
            }
        }
        if self.removes() {
            return;
        }
        for (at, w) in &self.acked {
            let m = &self.nodes[0].store.chunks[&chunk(*at)];
            assert!(
                m.content.contains(w),
                "acknowledged write {w:?} is lost: [{}]",
                show(&m.content)
            );
        }
    }
}
