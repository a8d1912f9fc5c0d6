//! The order of the updates of one chunk that are under way: they may write their data side by side, but enter the
//! log in version order, and none enters after one before it failed.

use crate::signal::Signal;
use crate::state::Inner;
use glowfs_types::{ChunkId, ChunkVersion, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

#[derive(Default)]
pub(crate) struct Gate {
    /// The newest version that someone has begun.
    pub newest: Cell<ChunkVersion>,
    /// The chunk's length after it.
    pub len: Cell<u32>,
    /// The chunk's size after it; 0 if it removes the chunk.
    pub chunk_bytes: Cell<u32>,
    tickets: Cell<u64>,
    turn: Cell<u64>,
    /// Tickets that are through before their turn.
    passed: RefCell<BTreeSet<u64>>,
    /// Tickets after this one fail.
    broken: Cell<Option<u64>>,
    /// Records in the log's queue or being written.
    pub unapplied: Cell<u32>,
    /// A record of this chunk was refused by the log: those behind it must not be written either.
    pub refused: Cell<bool>,
    signal: Signal,
}

/// A place in the order. Dropping it lets the next one go.
pub(crate) struct Ticket {
    inner: Rc<Inner>,
    key: (TargetId, ChunkId),
    pub gate: Rc<Gate>,
    number: u64,
    entered: bool,
}

impl Gate {
    fn idle(&self) -> bool {
        self.tickets.get() == self.turn.get() && self.unapplied.get() == 0
    }
    /// One of those under way failed: none of those behind it comes through, nor does any that comes before they have all ended.
    pub fn is_broken(&self) -> bool {
        self.broken.get().is_some()
    }
    /// Updates that are under way.
    pub fn in_flight(&self) -> usize {
        (self.tickets.get() - self.turn.get()) as usize + self.unapplied.get() as usize
    }
    /// A record of this chunk was applied (or failed).
    pub fn applied(&self) {
        self.unapplied.set(self.unapplied.get().saturating_sub(1));
        self.signal.wake();
    }
}

impl Inner {
    pub fn gate(&self, target: TargetId, chunk: ChunkId) -> Option<Rc<Gate>> {
        self.gates.borrow().get(&(target, chunk)).cloned()
    }
    /// Forgets the gate if nobody uses it.
    pub fn sweep_gate(&self, target: TargetId, chunk: ChunkId) {
        let mut gates = self.gates.borrow_mut();
        if gates.get(&(target, chunk)).is_some_and(|g| g.idle()) {
            gates.remove(&(target, chunk));
        }
    }
    /// Resolves when no update of the chunk is under way.
    pub async fn wait_idle(&self, target: TargetId, chunk: ChunkId) {
        while let Some(gate) = self.gate(target, chunk) {
            gate.signal.wait(|| gate.idle().then_some(())).await;
            self.sweep_gate(target, chunk);
        }
    }
}

impl Ticket {
    /// Draws the next one; the gate is made if need be with `make`.
    pub fn draw(
        inner: &Rc<Inner>,
        key: (TargetId, ChunkId),
        make: impl FnOnce() -> Gate,
    ) -> Ticket {
        let gate = inner.gates.borrow_mut().entry(key).or_insert_with(|| Rc::new(make())).clone();
        let number = gate.tickets.get();
        gate.tickets.set(number + 1);
        Ticket { inner: inner.clone(), key, gate, number, entered: false }
    }
    /// Waits until all before it entered the log (`true`) or one of them failed (`false`).
    pub async fn turn(&self) -> bool {
        let gate = &self.gate;
        gate.signal.wait(|| (gate.turn.get() == self.number).then_some(())).await;
        gate.broken.get().is_none_or(|b| b >= self.number)
    }
    /// Waits until everything that entered the log was applied. Only in one's turn.
    pub async fn applied(&self) {
        self.gate.signal.wait(|| (self.gate.unapplied.get() == 0).then_some(())).await;
    }
    /// Its record is in the log's queue: the next one may go.
    pub fn enter(mut self) {
        self.entered = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let gate = &self.gate;
        if !self.entered {
            let first = gate.broken.get().map_or(self.number, |b| b.min(self.number));
            gate.broken.set(Some(first));
        }
        if gate.turn.get() == self.number {
            gate.turn.set(self.number + 1);
        } else {
            gate.passed.borrow_mut().insert(self.number);
        }
        while gate.passed.borrow_mut().remove(&gate.turn.get()) {
            gate.turn.set(gate.turn.get() + 1);
        }
        gate.signal.wake();
        self.inner.sweep_gate(self.key.0, self.key.1);
    }
}
