//! What is on its way to other storage nodes, and how much time that gives to a transfer.
//!
//! A transfer takes as long as the link needs for its bytes, and for those that go to the same node before it. Whoever waits for it must not take that for a node that does nothing;
//! nor may bytes that never arrive hold up a chain for long: [`BYTES_PER_S_MIN`], [`TIME_MAX`], and time is given only while that node takes something ([`Sending::takes`]).

use glowfs_rt::{Duration, Instant};
use glowfs_types::NodeId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes per second that a node takes from another one, at least; with less it counts as one that takes nothing.
const BYTES_PER_S_MIN: u64 = 4 << 20;
/// More time than this no transfer is given for the bytes on their way, however many: those who write wait for it.
const TIME_MAX: Duration = Duration::from_secs(20);

/// What is on its way, by where it goes; of every node that something was ever sent to.
#[derive(Default)]
pub(crate) struct Sending(RefCell<BTreeMap<NodeId, Way>>);

#[derive(Default)]
struct Way {
    bytes: u64,
    /// When that node last took a transfer.
    taken: Option<Instant>,
}

/// Bytes on their way, until it is dropped.
pub(crate) struct OnItsWay {
    all: Rc<Sending>,
    to: NodeId,
    bytes: u64,
    /// What they, and those before them, may take.
    pub time: Duration,
}

impl Sending {
    /// So many bytes more are on their way to a node.
    pub fn begin(self: &Rc<Self>, to: NodeId, bytes: usize) -> OnItsWay {
        let (all, bytes) = (self.clone(), bytes as u64);
        let mut nodes = self.0.borrow_mut();
        let there = &mut nodes.entry(to).or_default().bytes;
        *there = there.saturating_add(bytes);
        let ms = there.saturating_mul(1000) / BYTES_PER_S_MIN;
        OnItsWay { all, to, bytes, time: Duration::from_millis(ms).min(TIME_MAX) }
    }
    /// Whether a node has taken a transfer within this time: one that does not is given no time for what is on its way.
    pub fn takes(&self, to: NodeId, now: Instant, within: Duration) -> bool {
        let taken = self.0.borrow().get(&to).and_then(|way| way.taken);
        taken.is_some_and(|at| now.since(at) < within)
    }
}

impl OnItsWay {
    /// That node has taken them.
    pub fn taken(&self, now: Instant) {
        if let Some(way) = self.all.0.borrow_mut().get_mut(&self.to) {
            way.taken = Some(now);
        }
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        if let Some(way) = self.all.0.borrow_mut().get_mut(&self.to) {
            way.bytes = way.bytes.saturating_sub(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_given_for_what_goes_there_before_and_with_an_end() {
        let (sending, second) = (Rc::<Sending>::default(), BYTES_PER_S_MIN as usize);
        let seconds = |s| Duration::from_secs(s);
        let first = sending.begin(NodeId(1), second);
        let behind = sending.begin(NodeId(1), 2 * second);
        let elsewhere = sending.begin(NodeId(2), second);
        assert_eq!([first.time, behind.time, elsewhere.time], [1, 3, 1].map(seconds));
        assert_eq!(sending.begin(NodeId(3), 0).time, Duration::ZERO);
        drop(first);
        assert_eq!(sending.begin(NodeId(1), 0).time, seconds(2));
        let much = sending.begin(NodeId(1), 1000 * second);
        assert_eq!(much.time, TIME_MAX);
        drop((much, behind, elsewhere));
        assert!(sending.0.borrow().values().all(|way| way.bytes == 0));
    }

    #[test]
    fn who_takes_nothing_is_given_no_time() {
        glowfs_rt::real::run(|rt| async move {
            let (sending, within) = (Rc::<Sending>::default(), Duration::from_secs(3));
            let (to, start) = (NodeId(1), rt.now());
            let way = sending.begin(to, 1 << 20);
            assert!(!sending.takes(to, start, within), "nothing yet");
            way.taken(start);
            drop(way);
            let _behind = sending.begin(to, 1 << 20);
            assert!(sending.takes(to, start + Duration::from_secs(2), within));
            assert!(!sending.takes(to, start + within, within));
            assert!(!sending.takes(NodeId(2), start, within), "another one");
        });
    }
}
