//! Losses of power of the metadata engine, as [`POWER_KEEPS`], [`POWER_LOST`] and [`PUT_BACK`] ask for them.

use super::meta::Node;
use super::switches::{POWER_KEEPS, POWER_LOST, PUT_BACK};
use glowfs_types::wire::meta::Attr;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

/// What the engine has flushed, and its life.
pub struct Power {
    flushed: RefCell<Vec<Attr>>,
    life: Cell<u64>,
}

impl Default for Power {
    fn default() -> Self {
        Self { flushed: RefCell::default(), life: Cell::new(1) }
    }
}

impl Power {
    /// The life of the engine.
    pub fn life(&self) -> u64 {
        self.life.get()
    }
    /// Before a question: does what the switches say.
    pub fn look(&self, nodes: impl Fn() -> Vec<Rc<Node>>) {
        if POWER_KEEPS.swap(false, Relaxed) {
            *self.flushed.borrow_mut() = nodes().iter().map(|n| n.attr.borrow().clone()).collect();
        }
        match (POWER_LOST.swap(false, Relaxed), PUT_BACK.swap(false, Relaxed)) {
            (false, false) => return,
            (_, true) => self.life.set(1),
            (true, false) => self.life.set(self.life.get() + 1),
        }
        for node in nodes() {
            let mut attr = node.attr.borrow_mut();
            if let Some(was) = self.flushed.borrow().iter().find(|was| was.inode == attr.inode) {
                *attr = was.clone();
            }
            attr.life = self.life.get();
        }
    }
}
