//! What goes wrong with disks: errors, wrong bits, slowness, no room, no answer.

use super::faults::{Breaker, End, life};
use super::harness::{DISK, Service};
use crate::world::{DISK_BYTES, DiskFaults};
use glowfs_rt::Duration;

/// Room that a disk that is called full has left, at most.
const LITTLE_ROOM: u64 = 2 << 20;
/// A loss of power follows the restart of a service within this time, in ms, if one does.
const POWER_AFTER_MS: u64 = 1000;
/// How long a disk takes seconds for everything, in ms.
const SLOW_LEAST_MS: u64 = 1_000;
const SLOW_MOST_MS: u64 = 8_000;
/// How long a disk hangs that is not taken out of service for it, at most, in ms; and one that is: some services are started again before that happens.
const HUNG_MS: u64 = 4_000;
const HUNG_LONG_MS: u64 = 12_000;
/// In the log of a run: no chain is served any more from a disk that hangs.
pub const OUT: &str = "serves no chain any more, for its disk hangs";
/// Bits that turn over at rest at once, at most.
const FLIPS_MAX: u64 = 16;
/// Writes that a disk says it has done, and loses, in one fault, at most.
const LOST_MAX: u64 = 8;

impl Breaker<'_> {
    /// A store that saw an error stays offline in its life: the service is started again, with its machine or alone (then the
    /// system's cache may show what the disk does not have since a flush failed). The power of who serves a chain alone stays: what is
    /// acknowledged and not flushed would go with it, as it may.
    pub(super) fn mend_disk(&mut self, s: &Service) {
        let before = (self.newest)().map(|info| life(&info, s.id())).unwrap_or_default();
        let end = if self.serves_alone(s) { End::Kill } else { self.end() };
        let what = if end == End::Power { "machine" } else { "service" };
        if s.node.disk(DISK).faults().hangs && !self.serves(s) {
            self.note(format!("{} {OUT}", s.node.name()));
        }
        self.note(format!("mend the disk of {} and restart its {what}", s.node.name()));
        s.node.disk(DISK).set_faults(DiskFaults::default());
        s.node.disk(DISK).lose_writes(0);
        if s.node.is_up() {
            self.cluster.crash(s, end == End::Power);
            self.restart(s);
        }
        if end == End::Kill && self.below(2) == 0 {
            // What only the cache shows is lost now.
            let pause = self.below(POWER_AFTER_MS);
            self.cluster.run_for(Duration::from_millis(pause));
            if self.serves_alone(s) {
                return;
            }
            self.note(format!("{pause} ms later the power of {} is lost", s.node.name()));
            self.cluster.crash(s, true);
            self.restart(s);
            // Others may fall when this second end is known, and not when the first one is.
            self.crashed.push((s.id(), before.next()));
        }
    }

    fn serves(&self, s: &Service) -> bool {
        let info = (self.newest)();
        info.is_some_and(|i| i.chains.values().any(|c| c.serving().any(|m| m.node == s.id())))
    }

    /// Whether other nodes were taken out of a chain meanwhile, until this one's target was its only server.
    fn serves_alone(&self, s: &Service) -> bool {
        let Some(info) = (self.newest)() else { return false };
        info.chains.values().any(|c| {
            let mut servers = c.serving();
            servers.next().is_some_and(|m| m.node == s.id()) && servers.next().is_none()
        })
    }

    /// Starts a service again. A store needs a little room for that.
    pub(super) fn restart(&mut self, s: &Service) {
        let full = self.full_disks.iter().position(|(f, _)| f.id() == s.id());
        if let Some(at) = full {
            self.full_disks.remove(at);
            self.make_room(s);
        }
        self.cluster.restart(s);
    }

    pub(super) fn break_disk(&mut self) {
        let i = self.below(self.cluster.storages.len() as u64) as usize;
        let s = self.cluster.storages[i].clone();
        let errors = 20_000;
        match self.below(9) {
            5 | 6 => return self.fill_disk(s),
            7 => return self.flip_at_rest(s),
            8 => return self.lose_writes(s),
            _ => {}
        }
        let (what, faults) = match self.below(5) {
            0 => ("slow", DiskFaults { slow_per_million: 200_000, ..DiskFaults::default() }),
            1 => (
                "flips bits",
                DiskFaults { read_flips_per_million: 10 * errors, ..DiskFaults::default() },
            ),
            2 => (
                "fails reads",
                DiskFaults { read_errors_per_million: errors, ..DiskFaults::default() },
            ),
            3 => (
                "fails writes",
                DiskFaults { write_errors_per_million: errors, ..DiskFaults::default() },
            ),
            _ => (
                "fails flushes",
                DiskFaults { sync_errors_per_million: 500_000, ..DiskFaults::default() },
            ),
        };
        if self.slow_disks.iter().any(|(o, _)| o.id() == s.id()) {
            return;
        }
        // A disk that fails may take a replica away; and the service is started again in the end.
        let Some(info) = self.may_lose_replicas() else { return };
        self.crashed.push((s.id(), life(&info, s.id())));
        self.note(format!("the disk of {} {what}", s.node.name()));
        s.node.disk(DISK).set_faults(faults);
        let until = self.now_ms() + self.below(3000);
        self.bad_disks.push((s, until));
    }

    /// A disk takes seconds for everything, for a while. Nothing is lost by that: others may fall meanwhile.
    pub(super) fn slow_disk(&mut self) {
        let s = self.any_storage();
        if self.bad_disks.iter().chain(&self.slow_disks).any(|(o, _)| o.id() == s.id()) {
            return;
        }
        let ms = SLOW_LEAST_MS + self.below(SLOW_MOST_MS - SLOW_LEAST_MS);
        self.note(format!("the disk of {} takes seconds, for {ms} ms", s.node.name()));
        s.node.disk(DISK).set_faults(DiskFaults::SECONDS);
        self.slow_disks.push((s, self.now_ms() + ms));
    }

    pub(super) fn hurry_disk(&mut self, s: &Service) {
        self.note(format!("the disk of {} is as fast as ever", s.node.name()));
        s.node.disk(DISK).set_faults(DiskFaults::default());
    }

    /// A disk does nothing any more: what it is asked is never answered, not even with an error. Its node takes it out, if that lasts as long as the node waits ([`Shape::disk_stuck_ms`](super::harness::Shape));
    /// its service is started again in the end, with its machine or alone.
    pub(super) fn hang_disk(&mut self) {
        let s = self.any_storage();
        if self.slow_disks.iter().any(|(o, _)| o.id() == s.id()) {
            return;
        }
        let Some(info) = self.may_lose_replicas() else { return };
        self.crashed.push((s.id(), life(&info, s.id())));
        self.note(format!("the disk of {} hangs", s.node.name()));
        s.node.disk(DISK).set_faults(DiskFaults { hangs: true, ..DiskFaults::default() });
        let noticed = self.cluster.shape().disk_stuck_ms < HUNG_LONG_MS;
        let until = self.now_ms() + self.below(if noticed { HUNG_LONG_MS } else { HUNG_MS });
        self.bad_disks.push((s, until));
    }

    /// Leaves a disk little room or none, for a while. Applications are refused or served, and nothing is lost.
    fn fill_disk(&mut self, s: Service) {
        if self.full_disks.iter().any(|(f, _)| f.id() == s.id()) {
            return;
        }
        let left = self.below(LITTLE_ROOM);
        let disk = s.node.disk(DISK);
        // A new one on which no store has been made yet: its service would say so and end, and nobody here starts it once more.
        if !disk.files().iter().any(|(name, _)| name.starts_with("log-")) {
            return;
        }
        self.note(format!("the disk of {} has {left} bytes left", s.node.name()));
        disk.set_bytes(disk.used_bytes() + left);
        let until = self.now_ms() + self.below(2000);
        self.full_disks.push((s, until));
    }

    pub(super) fn make_room(&mut self, s: &Service) {
        self.note(format!("the disk of {} has room again", s.node.name()));
        s.node.disk(DISK).set_bytes(DISK_BYTES);
    }

    /// Turns bits of data over, for good. The service is started again later: its scrub, or a read, finds and mends them.
    fn flip_at_rest(&mut self, s: Service) {
        let Some(info) = self.may_lose_replicas() else { return };
        let disk = s.node.disk(DISK);
        let files: Vec<_> =
            disk.files().into_iter().filter(|(n, _)| n.starts_with("blocks-")).collect();
        if files.is_empty() {
            return;
        }
        self.crashed.push((s.id(), life(&info, s.id())));
        let count = 1 + self.below(FLIPS_MAX);
        for _ in 0..count {
            let (name, _) = &files[self.below(files.len() as u64) as usize];
            disk.flip_written(name);
        }
        self.note(format!("{count} bits at rest turn over on the disk of {}", s.node.name()));
        let until = self.now_ms() + self.below(3000);
        self.bad_disks.push((s, until));
    }

    /// Some of the next writes to the files of chunks are answered and flushed, and never done. The service is started again later: its scrub, or a read, finds and mends them.
    fn lose_writes(&mut self, s: Service) {
        let Some(info) = self.may_lose_replicas() else { return };
        self.crashed.push((s.id(), life(&info, s.id())));
        let count = 1 + self.below(LOST_MAX) as u32;
        s.node.disk(DISK).lose_writes(count);
        self.note(format!("the disk of {} loses writes, up to {count}", s.node.name()));
        let until = self.now_ms() + self.below(3000);
        self.bad_disks.push((s, until));
    }
}
