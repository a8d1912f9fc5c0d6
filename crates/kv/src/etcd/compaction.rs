//! Old versions go. etcd keeps all that there ever were until it is told otherwise, and takes no changes any more when its database is as large as its quota.
//!
//! Every engine tells it, each for itself: what one has told, the others need not know. The version that was the newest one a while ago is the oldest one that can be read
//! from then on; whoever still reads an older one hears `TooOld` and begins anew.

use super::{Etcd, Inner, api};
use crate::{Engine, Version};
use glowfs_rt::{Duration, Instant};
use glowfs_types::{Error, Result, Status};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

/// How long old versions can be read, at least, if nobody says otherwise. Transactions take seconds; a dump of an etcd in use takes longer.
pub const VERSIONS_KEPT: Duration = Duration::from_secs(300);
/// So often in that time it is looked which version is the newest.
const LOOKS: u32 = 5;
/// Bytes in use from which on the size of the database is worth a warning: half of the quota that etcd has if nobody says otherwise.
const LARGE_BYTES: u64 = 1 << 30;
/// Warned again when it has grown by one part of so many.
const GROWTH: u64 = 4;

/// What was seen when.
#[derive(Default)]
struct Seen(VecDeque<(Instant, Version)>);

impl Seen {
    /// Takes note of the newest version; returns the one that was the newest `kept` ago, once.
    fn note(&mut self, now: Instant, newest: Version, kept: Duration) -> Option<Version> {
        self.0.push_back((now, newest));
        let mut old = None;
        while let Some((_, version)) = self.0.pop_front_if(|(at, _)| now.since(*at) >= kept) {
            old = Some(version);
        }
        old
    }
}

/// Tells etcd again and again, until the engine is gone.
pub async fn run(engine: Weak<Inner>, kept: Duration) {
    let (mut seen, mut warned) = (Seen::default(), 0);
    loop {
        let Some(rt) = engine.upgrade().map(|e| e.rt.clone()) else { return };
        rt.sleep(kept / LOOKS).await;
        let Some(engine) = engine.upgrade() else { return };
        if let Err(error) = look(&engine, &mut seen, &mut warned, kept).await {
            tracing::warn!(%error, "old versions stay in etcd for now");
        }
    }
}

async fn look(engine: &Rc<Inner>, seen: &mut Seen, warned: &mut u64, kept: Duration) -> Result<()> {
    let newest = Etcd(engine.clone()).begin().await?;
    let Some(old) = seen.note(engine.rt.now(), newest, kept) else { return Ok(()) };
    let members = &engine.members;
    match members.ask(api::COMPACTION, &format!("{{\"revision\":\"{old}\"}}")).await {
        // Somebody was faster.
        Err(e) if e.status == Status::TooOld => {}
        other => drop(other?),
    }
    let answer = members.ask(api::STATUS, "{}").await?;
    let status: api::StatusAnswer =
        api::parse(&answer).map_err(|e| Error::new(Status::BadMessage, e))?;
    let (size, used) = (status.size.0, status.used.0);
    if used >= LARGE_BYTES.max(*warned + *warned / GROWTH) {
        *warned = used;
        tracing::warn!(
            size,
            used,
            "the database of etcd is large: when its size comes to --quota-backend-bytes, nothing can be changed any more"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_a_while_ago_is_told_once() {
        let at = |s: u64| Instant(0) + Duration::from_secs(s);
        let kept = Duration::from_secs(300);
        let mut seen = Seen::default();
        let mut note = |s, version| seen.note(at(s), version, kept);
        assert_eq!([note(0, 1), note(60, 5), note(299, 6)], [None; 3]);
        assert_eq!(note(301, 9), Some(1));
        assert_eq!(note(302, 9), None);
        assert_eq!(note(700, 9), Some(9), "what was seen at 302");
        assert_eq!(note(701, 9), None);
    }
}
