//! Keeping resyncs and scrubs behind the clients: a bandwidth for the node, and a share of time for each of them while clients are being served.
//!
//! The share lies between `sync_floor_percent` and `sync_share_percent`, by what clients feel ([`crate::behind`]). Guarantees: while clients are being served,
//! a resync rests after each group of transfers for what the share leaves, at most [`PAUSE_MAX`]; so it ends under any load. A small share makes small groups, too.

use crate::behind::WHOLE;
use crate::node::Node;
use glowfs_rt::{Duration, Instant};

/// The longest pause after one group of transfers, so that a resync goes on under any load.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// So many bytes are transferred at once however small the share is: that is not felt, and small chunks would take for ever one by one.
pub(crate) const GROUP_BYTES: u64 = 256 << 10;

/// How often those who wait for bandwidth look whether it was changed.
const LOOK: Duration = Duration::from_millis(100);

/// How long so many bytes take at a rate (bytes per second, not 0).
fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(nanos.min(u128::from(u64::MAX)) as u64)
}

/// How long who worked for `busy` rests, so that it works `share` thousandths of the time.
fn rest(busy: Duration, share: u32) -> Duration {
    let share = share.clamp(1, WHOLE);
    (busy * (WHOLE - share) / share).min(PAUSE_MAX)
}

/// How many transfers at once belong to a share, if `most` of them belong to the greatest one.
fn scaled(most: usize, share: u32, greatest: u32) -> usize {
    (most * share as usize).div_ceil(greatest.max(1) as usize).clamp(1, most.max(1))
}

/// A piece of work in the background; over when dropped.
pub(crate) struct Work<'a> {
    node: &'a Node,
    began: Instant,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.node.behind.borrow_mut().work_ends(self.node.rt.now());
    }
}

impl Node {
    /// Waits until the resyncs of this node may send so many bytes more. A new bandwidth counts at once, also for those who wait.
    pub async fn pace_bandwidth(&self, bytes: u64) {
        loop {
            let rate = self.tuning.get().sync_bytes_per_s;
            if rate == 0 {
                return;
            }
            let begin = self.sync_pace.get().max(self.rt.now());
            self.sync_pace.set(begin + time_of(bytes, rate));
            while self.tuning.get().sync_bytes_per_s == rate {
                let left = begin.since(self.rt.now());
                if left.is_zero() {
                    return;
                }
                self.rt.sleep(left.min(LOOK)).await;
            }
        }
    }
    /// A piece of work in the background begins.
    pub fn work(&self) -> Work<'_> {
        let began = self.rt.now();
        self.behind.borrow_mut().work_begins(began);
        Work { node: self, began }
    }
    /// That piece is over: how long to rest behind it.
    pub fn rest_after(&self, work: Work<'_>) -> Duration {
        let began = work.began;
        drop(work);
        let now = self.rt.now();
        let (floor, most) = self.shares();
        let share = self.behind.borrow_mut().judge(now, floor, most);
        self.metrics.background_share.set(i64::from(share / 10));
        if self.clients_are_here() { rest(now.since(began), share) } else { Duration::ZERO }
    }
    /// How many transfers a resync may send at once, of the `most` that it may while no client is there.
    pub fn at_once(&self, most: usize) -> usize {
        if !self.clients_are_here() {
            return most;
        }
        let (floor, greatest) = self.shares();
        scaled(most, self.behind.borrow().share(self.rt.now(), floor, greatest), greatest)
    }
    /// The least and the greatest, in thousandths.
    fn shares(&self) -> (u32, u32) {
        let t = self.tuning.get();
        (u32::from(t.sync_floor_percent) * 10, u32::from(t.sync_share_percent) * 10)
    }
    fn clients_are_here(&self) -> bool {
        self.admission.client_ops() > 0 || self.behind.borrow().clients_are_here(self.rt.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_keeps_the_share() {
        let ms = Duration::from_millis;
        assert_eq!(rest(ms(10), 500), ms(10));
        assert_eq!(rest(ms(10), 250), ms(30));
        assert_eq!(rest(ms(10), 1000), ms(0));
        assert_eq!(rest(ms(10_000), 1), PAUSE_MAX);
    }

    #[test]
    fn a_small_share_makes_small_groups() {
        let groups = [100, 125, 250, 251, 500].map(|share| scaled(4, share, 500));
        assert_eq!(groups, [1, 1, 2, 3, 4]);
        assert_eq!((scaled(1, 500, 500), scaled(8, 900, 500)), (1, 8));
    }
}
