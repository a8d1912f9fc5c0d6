//! Keeping resync behind the clients: a bandwidth for the node, and a share of time for each resync while clients wait.

use crate::node::Node;
use glowfs_rt::{Duration, Instant};

/// The longest pause after one group of transfers, so that a resync goes on under any load.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// How often those who wait for bandwidth look whether it was changed.
const LOOK: Duration = Duration::from_millis(100);

/// How long so many bytes take at a rate (bytes per second, not 0).
fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(nanos.min(u128::from(u64::MAX)) as u64)
}

/// How long a resync that worked for `busy` rests, so that it works `share` per cent of the time.
fn rest(busy: Duration, share_percent: u8) -> Duration {
    let share = u32::from(share_percent.clamp(1, 100));
    (busy * (100 - share) / share).min(PAUSE_MAX)
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
    /// Rests after work that began at `begin`, if clients were served meanwhile.
    pub async fn yield_to_clients(&self, begin: Instant, served_before: u64) {
        if self.served() == served_before && self.admission.ops() == 0 {
            return;
        }
        let busy = self.rt.now().since(begin);
        self.rt.sleep(rest(busy, self.tuning.get().sync_share_percent)).await;
    }
    /// Requests of clients answered so far.
    pub fn served(&self) -> u64 {
        self.metrics.reads.get() + self.metrics.writes.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_keeps_the_share() {
        let ms = Duration::from_millis;
        assert_eq!(rest(ms(10), 50), ms(10));
        assert_eq!(rest(ms(10), 25), ms(30));
        assert_eq!(rest(ms(10), 100), ms(0));
        assert_eq!(rest(ms(10_000), 1), PAUSE_MAX);
    }
}
