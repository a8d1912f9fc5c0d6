//! When to try again, and what to say after the last attempt. Pure: time and randomness are arguments.

use glowfs_rt::{Duration, Instant};
use glowfs_types::{Error, Status};

/// How many attempts an error message recounts.
const TOLD_MAX: usize = 6;

/// The bounds of one kind of call.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How long one attempt waits.
    pub attempt: Duration,
    /// How long all of them take together.
    pub total: Duration,
    /// The first pause.
    pub backoff_min: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
}

/// What to do after a failed attempt.
#[derive(Debug)]
pub enum Next {
    /// Try again after this pause (sooner if the routing info changes).
    Again(Duration),
    /// Give up with this error.
    GiveUp(Error),
}

/// The attempts of one call.
#[derive(Debug)]
pub struct Retry {
    policy: Policy,
    started: Instant,
    attempts: u32,
    told: Vec<String>,
}

impl Retry {
    /// A call that begins now.
    pub fn new(policy: Policy, now: Instant) -> Self {
        Self { policy, started: now, attempts: 0, told: Vec::new() }
    }
    /// How long the next attempt may take, or none if the time is up.
    pub fn attempt_time(&self, now: Instant) -> Option<Duration> {
        let left = self.policy.total.checked_sub(now.since(self.started))?;
        (!left.is_zero()).then(|| left.min(self.policy.attempt))
    }
    /// How long the next attempt may take where its answer is on its way, `most` at most.
    pub fn late_time(&self, now: Instant, most: Duration) -> Duration {
        self.policy.total.saturating_sub(now.since(self.started)).min(most)
    }
    /// Notes a failed attempt at `place`; `what` names the call in errors, and `again` says whether this one is worth another attempt.
    pub fn failed(
        &mut self,
        now: Instant,
        what: &dyn Fn() -> String,
        place: &str,
        error: Error,
        again: bool,
        random: u64,
    ) -> Next {
        self.attempts += 1;
        let spent = now.since(self.started);
        if !again {
            return Next::GiveUp(Error::new(
                error.status,
                format!("{}: {place}: {}", what(), error.message),
            ));
        }
        let line = format!("{place}: {error}");
        if self.told.last() != Some(&line) {
            if self.told.len() == TOLD_MAX {
                self.told.remove(1);
            }
            self.told.push(line);
        }
        if spent >= self.policy.total {
            return Next::GiveUp(self.exhausted(what(), error.status, spent));
        }
        let doubled =
            self.policy.backoff_min.saturating_mul(1 << self.attempts.saturating_sub(1).min(16));
        let pause = doubled.min(self.policy.backoff_max);
        // Half fixed, half random, so that clients that failed together do not come back together.
        let half = pause / 2;
        let jitter = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
        let pause = half + Duration::from_nanos(random % jitter);
        Next::Again(pause.min(self.policy.total.saturating_sub(spent)))
    }
    fn exhausted(&self, what: String, status: Status, spent: Duration) -> Error {
        // An application must not see EAGAIN for what was tried to the end.
        let status = if status.errno() == Status::Disconnected.errno() {
            status
        } else {
            Status::Disconnected
        };
        Error::new(
            status,
            format!(
                "{what}: gave up after {} attempts in {:.1} s; tried {}",
                self.attempts,
                spent.as_secs_f64(),
                self.told.join("; ")
            ),
        )
    }
}

/// Whether a metadata call may find a better answer elsewhere or later.
pub const fn again_meta(status: Status) -> bool {
    status.is_retriable()
}

/// Whether a read may succeed at another replica or later.
pub const fn again_read(status: Status) -> bool {
    status.is_retriable()
        || matches!(
            status,
            Status::Corrupt | Status::DiskFailed | Status::Internal | Status::BadCapability
        )
}

/// Whether a write or flush may succeed later with the same identity.
pub const fn again_write(status: Status) -> bool {
    status.is_retriable()
        || matches!(
            status,
            Status::Corrupt | Status::DiskFailed | Status::Internal | Status::BadCapability
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy {
            attempt: Duration::from_secs(1),
            total: Duration::from_secs(3),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_millis(100),
        }
    }
    fn err(s: Status) -> Error {
        Error::new(s, "no")
    }

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let mut r = Retry::new(policy(), Instant(0));
        let mut last = Duration::ZERO;
        for n in 0..20 {
            let Next::Again(p) = r.failed(
                Instant(n),
                &|| "write chunk 1/2/3".into(),
                "node 1",
                err(Status::Disconnected),
                true,
                0,
            ) else {
                panic!("must go on")
            };
            assert!(p >= last && p <= Duration::from_millis(100));
            last = p;
        }
        assert_eq!(last, Duration::from_millis(50));
    }

    #[test]
    fn gives_up_at_the_bound_with_the_story_and_eio() {
        let mut r = Retry::new(policy(), Instant(0));
        let _ = r.failed(
            Instant(5),
            &|| "write chunk 1/2/3".into(),
            "node 1 at tcp://a",
            err(Status::Disconnected),
            true,
            7,
        );
        let Next::GiveUp(e) = r.failed(
            Instant(3_000_000_000),
            &|| "write chunk 1/2/3".into(),
            "node 2 at tcp://b",
            err(Status::Overloaded),
            true,
            7,
        ) else {
            panic!("must give up")
        };
        assert_eq!(e.errno(), 5, "not EAGAIN");
        for word in ["chunk 1/2/3", "node 1 at tcp://a", "node 2 at tcp://b", "2 attempts"] {
            assert!(e.message.contains(word), "{word} in {e}");
        }
        assert!(r.attempt_time(Instant(3_000_000_000)).is_none());
    }

    #[test]
    fn a_definite_refusal_ends_at_once_and_keeps_its_status() {
        let mut r = Retry::new(policy(), Instant(0));
        let Next::GiveUp(e) = r.failed(
            Instant(1),
            &|| "write chunk 1/2/3".into(),
            "node 1",
            err(Status::NoSpace),
            again_write(Status::NoSpace),
            0,
        ) else {
            panic!("must give up")
        };
        assert_eq!(e.status, Status::NoSpace);
    }

    #[test]
    fn an_attempt_never_outlives_the_total() {
        let r = Retry::new(policy(), Instant(0));
        assert_eq!(r.attempt_time(Instant(0)), Some(Duration::from_secs(1)));
        assert_eq!(r.attempt_time(Instant(2_500_000_000)), Some(Duration::from_millis(500)));
    }
}
