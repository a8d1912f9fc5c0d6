//! Whether the room of removed files comes back: when everything was checked, all files are removed, and every target has to be as good as empty soon.

use crate::cluster::Cluster;
use crate::flight::Flight;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the room may take to come back: removals are collected in the background.
const BACK_BOUND: Duration = Duration::from_secs(120);
/// Bytes that may stay on one target: of updates that were lost behind a removal some chunks have no owner, until two passes an hour apart have agreed on that.
const LEFT_MAX: u64 = 2 << 20;

/// What a target holds.
struct Used {
    target: u64,
    bytes: u64,
}

fn used(cluster: &Cluster) -> Result<Vec<Used>> {
    let list = cluster.admin(&["list-targets"])?;
    let rows = list.as_array().context("no list of targets")?;
    rows.iter()
        .map(|t| {
            let number =
                |of: &str| t[of].as_u64().with_context(|| format!("a target without «{of}»: {t}"));
            Ok(Used { target: number("id")?, bytes: number("used_bytes")? })
        })
        .collect()
}

/// Removes all that lies in `dir`, and waits for the room.
pub fn comes_back(cluster: &Cluster, flight: &Flight, lane: usize, dir: &Path) -> Result<()> {
    let all = |list: &[Used]| list.iter().map(|u| u.bytes).sum::<u64>() >> 20;
    let before = used(cluster)?;
    flight.say(&format!("removing everything: {} MiB on all targets", all(&before)));
    flight
        .op(lane, "removing everything", || std::fs::remove_dir_all(dir))
        .with_context(|| format!("removing {}", dir.display()))?;
    let began = Instant::now();
    loop {
        let now = used(cluster)?;
        let Some(most) = now.iter().max_by_key(|u| u.bytes).filter(|u| u.bytes > LEFT_MAX) else {
            let (left, after) = (all(&now), began.elapsed());
            flight.say(&format!("the room is back after {after:.1?}; {left} MiB are left"));
            return Ok(());
        };
        if began.elapsed() > BACK_BOUND {
            bail!(
                "everything was removed {BACK_BOUND:?} ago, and {} MiB are still taken; most by target {}: {} KiB",
                all(&now),
                most.target,
                most.bytes >> 10
            );
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}
