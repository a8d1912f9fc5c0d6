//! Turns at an inode: who has it, who waits, and who is let in by the one that has it. Decides nothing else: see [`crate::together`].

use glowfs_kv::Transaction;
use glowfs_rt::sync::{OneReceiver, OneSender, oneshot};
use glowfs_rt::{Duration, Rt};
use glowfs_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::rc::Rc;

/// Calls that wait for one inode; more go without a turn.
pub const WAITING_MAX: usize = 256;
/// Nobody waits longer for a turn while the one that has it does not go on; then it goes without,
const WAIT_MAX: Duration = Duration::from_secs(1);
/// and at the next such time after this one in any case: its client waits for 5 s.
const WAIT_TOTAL_MAX: Duration = Duration::from_secs(2);

/// See the module. An inode is in it while somebody has its turn.
#[derive(Default)]
pub struct Lanes(Rc<RefCell<BTreeMap<InodeId, Queue>>>);

/// Who waits at an inode.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// How many have come.
    came: u64,
    /// How many were let in or got the turn.
    went: u64,
}

struct Waiting {
    /// Of those that came.
    number: u64,
    /// It may take part in another call's transaction.
    joins: bool,
    turn: OneSender<Turn>,
}

/// What a call may do.
pub enum Turn {
    /// It has the turn, until it drops this.
    Lead(Lane),
    /// It may add its part to the transaction of the one that has the turn.
    Join(Joined),
}

/// The turn at an inode. When dropped, the next one has it.
pub struct Lane {
    lanes: Lanes,
    inode: InodeId,
    /// So many had come when its transaction began.
    came: Cell<u64>,
}

/// A part in another call's transaction.
pub struct Joined {
    /// Nobody else uses it until `done` is sent or dropped.
    pub tx: Rc<Transaction>,
    /// To be sent when the part is done, with whether it has to be on disk before it is answered. Dropped: it is not known what was done of it.
    pub done: OneSender<bool>,
    /// What became of the transaction. Dropped: nobody knows.
    pub outcome: OneReceiver<End>,
}

/// What became of a transaction of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It is committed.
    Committed,
    /// Nothing came of it, and nothing will.
    Nothing,
    /// Nobody knows.
    Unknown,
}

impl Lanes {
    fn same(&self) -> Self {
        Self(self.0.clone())
    }

    /// Whether nobody has a turn.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Waits for the turn at an inode, or, with `joins`, until the one who has it lets this one in. None: it takes too long.
    pub async fn turn(&self, rt: &Rt, inode: InodeId, joins: bool) -> Option<Turn> {
        let (coming, mut went) = {
            let mut lanes = self.0.borrow_mut();
            let Some(queue) = lanes.get_mut(&inode) else {
                lanes.insert(inode, Queue::default());
                return Some(Turn::Lead(Lane::of(self, inode)));
            };
            if queue.waiting.len() >= WAITING_MAX {
                // Who asked may have gone.
                queue.waiting.retain(|w| !w.turn.is_closed());
                if queue.waiting.len() >= WAITING_MAX {
                    return None;
                }
            }
            let (turn, coming) = oneshot();
            queue.came += 1;
            queue.waiting.push_back(Waiting { number: queue.came, joins, turn });
            (coming, queue.went)
        };
        let (mut coming, until) = (pin!(coming), rt.now() + WAIT_TOTAL_MAX);
        loop {
            if let Ok(turn) = rt.timeout(WAIT_MAX, coming.as_mut()).await {
                return turn.ok();
            }
            let before = std::mem::replace(&mut went, self.went(inode));
            if went == before || rt.now() >= until {
                return None;
            }
        }
    }

    fn went(&self, inode: InodeId) -> u64 {
        self.0.borrow().get(&inode).map_or(0, |q| q.went)
    }
}

impl Lane {
    fn of(lanes: &Lanes, inode: InodeId) -> Self {
        Self { lanes: lanes.same(), inode, came: Cell::new(0) }
    }

    /// A transaction is about to begin. Only who waits by now may take part: what was answered to others before a call was made must not be missing in what that call reads.
    pub fn begins(&self) {
        let lanes = self.lanes.0.borrow();
        self.came.set(lanes.get(&self.inode).map_or(0, |q| q.came));
    }

    /// Lets the first one in that waits and may be let in. False: there is none, and nothing is done.
    pub fn join(&self, part: Joined) -> bool {
        let mut lanes = self.lanes.0.borrow_mut();
        let Some(Queue { waiting, went, .. }) = lanes.get_mut(&self.inode) else { return false };
        let may = |w: &Waiting| w.joins && w.number <= self.came.get() && !w.turn.is_closed();
        let Some(at) = waiting.iter().position(may) else { return false };
        *went += 1;
        waiting.remove(at).is_some_and(|w| w.turn.send(Turn::Join(part)).is_ok())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut lanes = self.lanes.0.borrow_mut();
        let Some(queue) = lanes.get_mut(&self.inode) else { return };
        while let Some(next) = queue.waiting.pop_front() {
            // Who asked may have gone.
            if !next.turn.is_closed() {
                queue.went += 1;
                drop(lanes);
                let _ = next.turn.send(Turn::Lead(Self::of(&self.lanes, self.inode)));
                return;
            }
        }
        lanes.remove(&self.inode);
    }
}
