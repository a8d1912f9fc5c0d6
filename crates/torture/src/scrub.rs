//! Whether the bytes on the disks are what the storage nodes say that they hold: a pass of the scrub over everything, as an operator would ask for it.
//! The comparison of replicas goes by versions and recorded checksums only; after a pass that found nothing, these stand for the bytes.

use crate::cluster::{Cluster, Service};
use crate::flight::Flight;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A pass may go on for so long without a further chunk.
const STANDS_BOUND: Duration = Duration::from_secs(60);
/// And so long in all.
const PASS_BOUND: Duration = Duration::from_secs(1200);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How often it is said how far it is.
const SAID: Duration = Duration::from_secs(10);
/// Nobody else reads the disks then.
const RATE: &str = "scrub_bytes_per_s=1073741824";
/// The most lines of logs that are named.
const NAMED_MAX: usize = 20;
/// What a storage node logs when it meets bytes, or a replica, that are not what they should be.
const WORDS: [&str; 5] = [
    "scrub found a chunk that is not what it should be",
    "damaged blocks mended from other replicas",
    "chunk repaired from another replica",
    "chunk could not be repaired",
    "the successor's content differs at the same version",
];

/// What is to be found.
pub enum Expected {
    /// Nothing, neither now nor in the logs since then.
    Sound(Logs),
    /// Bytes were damaged on purpose: it is found and repaired, and then there is nothing any more.
    Planted,
}

/// What passes found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scrubbed {
    /// Replicas of chunks that were read, in the last pass.
    pub replicas: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that were not what they should be, in the first pass.
    pub found: u64,
    /// Why the run fails.
    pub failures: Vec<String>,
}

/// Reads everything at rest on all storage nodes. Call when all replicas serve.
pub fn everything(c: &Cluster, flight: &Flight, expected: &Expected) -> Result<Scrubbed> {
    let before = Logs::now(&c.services()?);
    let first = pass(c, flight)?;
    let mut all = Scrubbed {
        replicas: first.chunks,
        bytes: first.bytes,
        found: first.found,
        failures: vec![],
    };
    match expected {
        Expected::Sound(since) => {
            let met = since.met(&c.services()?);
            if first.found + first.failed > 0 || !met.is_empty() {
                all.failures.push(format!(
                    "the scrub found {} replicas damaged or different ({} repairs failed), and the storage nodes met such {} times, though nothing was damaged on purpose",
                    first.found, first.failed, met.len()
                ));
                all.failures.extend(met.into_iter().take(NAMED_MAX));
            }
        }
        Expected::Planted if first.found + first.failed > 0 => {
            let second = pass(c, flight)?;
            (all.replicas, all.bytes) = (second.chunks, second.bytes);
            if second.found + second.failed > 0 {
                all.failures.push(format!(
                    "damage stays: the scrub found {} replicas and then {} ({} repairs failed)",
                    first.found, second.found, second.failed
                ));
                all.failures.extend(before.met(&c.services()?).into_iter().take(NAMED_MAX));
            }
        }
        Expected::Planted => {}
    }
    flight.say(&format!(
        "scrubbed {} replicas of chunks, {} MiB; {} were not what they should be",
        all.replicas,
        all.bytes >> 20,
        all.found
    ));
    Ok(all)
}

/// What one pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pass {
    /// Replicas read.
    pub chunks: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Replicas that were not what they should be.
    pub found: u64,
    /// Repairs that failed.
    pub failed: u64,
}

/// How the scrub of one target stands, as `admin scrub` says it.
#[derive(Clone, Copy, Debug, Default)]
struct Target {
    running: bool,
    passes: u64,
    pass: Pass,
}

/// One whole pass over every target.
pub fn pass(c: &Cluster, flight: &Flight) -> Result<Pass> {
    c.admin(&["set-config", "storage", RATE]).context("setting the scrub's rate")?;
    let began = Instant::now();
    // One that is under way began before what is to be looked at.
    let ask = || targets(&c.admin(&["scrub"])?);
    let before = wait(flight, began, ask, |now| Ok(now.values().all(|t| !t.running)))?;
    // Asked once more it does the same.
    wait(flight, began, || targets(&c.admin(&["scrub", "--now"])?), |_| Ok(true))?;
    let after = wait(flight, began, ask, |now| passed(&before, now))?;
    Ok(between(&before, &after))
}

/// Asks until it is done; an error if it goes on without end, or stands still.
fn wait(
    flight: &Flight,
    began: Instant,
    ask: impl Fn() -> Result<BTreeMap<u64, Target>>,
    done: impl Fn(&BTreeMap<u64, Target>) -> Result<bool>,
) -> Result<BTreeMap<u64, Target>> {
    let (mut far, mut moved, mut said) = ((0, 0), Instant::now(), Instant::now());
    loop {
        // On a busy machine a node may be too late once.
        let answer = ask();
        if let Ok(now) = &answer {
            if done(now)? {
                return answer;
            }
            let sum = |of: fn(&Target) -> u64| now.values().map(of).sum::<u64>();
            let here = (sum(|t| t.passes), sum(|t| t.pass.chunks));
            if here != far {
                (far, moved) = (here, Instant::now());
            }
            if said.elapsed() > SAID {
                said = Instant::now();
                let left = now.values().filter(|t| t.running).count();
                flight.say(&format!("scrubbing: {} replicas, {left} targets at work", far.1));
            }
        }
        let still = moved.elapsed();
        if still > STANDS_BOUND || began.elapsed() > PASS_BOUND {
            bail!("the scrub does not end (nothing was done for {still:?}): {answer:?}");
        }
        std::thread::sleep(LOOK);
    }
}

fn targets(rows: &Value) -> Result<BTreeMap<u64, Target>> {
    let row = |r: &Value| {
        let n = |field: &str| r[field].as_u64().with_context(|| format!("no {field} in {r}"));
        let pass = Pass {
            chunks: n("chunks")?,
            bytes: n("bytes")?,
            found: n("found")?,
            failed: n("failed")?,
        };
        let running = r["running"].as_bool().context("whether it is running")?;
        Ok((n("target")?, Target { running, passes: n("passes")?, pass }))
    };
    let all: BTreeMap<_, _> =
        rows.as_array().context("no rows")?.iter().map(row).collect::<Result<_>>()?;
    if all.is_empty() {
        bail!("no storage node has a target");
    }
    Ok(all)
}

/// Whether every target has had a pass of its own since.
fn passed(before: &BTreeMap<u64, Target>, now: &BTreeMap<u64, Target>) -> Result<bool> {
    for (id, b) in before {
        let n = now.get(id).with_context(|| format!("target {id} is gone"))?;
        if n.passes < b.passes {
            bail!("the node of target {id} was started again during the scrub");
        }
        if n.passes == b.passes {
            return Ok(false);
        }
    }
    Ok(true)
}

fn between(before: &BTreeMap<u64, Target>, after: &BTreeMap<u64, Target>) -> Pass {
    let mut p = Pass::default();
    for (id, a) in after {
        let b = before.get(id).copied().unwrap_or_default();
        // Chunks and bytes are those of the last pass, the others since the service began.
        p.chunks += a.pass.chunks;
        p.bytes += a.pass.bytes;
        p.found += a.pass.found.saturating_sub(b.pass.found);
        p.failed += a.pass.failed.saturating_sub(b.pass.failed);
    }
    p
}

/// How long the logs of some services were.
#[derive(Clone, Debug, Default)]
pub struct Logs(BTreeMap<PathBuf, usize>);

impl Logs {
    /// As they are now. (The default is: empty.)
    pub fn now(services: &[Service]) -> Self {
        Self(services.iter().map(|s| (s.log.clone(), read(s).len())).collect())
    }
    /// Lines of damage that these services have logged since, also in a former life of their processes.
    pub fn met(&self, services: &[Service]) -> Vec<String> {
        let of = |s: &Service| {
            let text = read(s);
            let from = self.0.get(&s.log).copied().unwrap_or_default().min(text.len());
            let text = String::from_utf8_lossy(&text[from..]).into_owned();
            let lines = text.lines().filter(|l| tells_of_damage(l));
            lines.map(|l| format!("{}: {l}", s.id)).collect::<Vec<_>>()
        };
        services.iter().flat_map(of).collect()
    }
}

/// What a disk that is dead does not give is not damaged: its store fails while it is to be repaired, and says so.
fn tells_of_damage(line: &str) -> bool {
    WORDS.iter().any(|w| line.contains(w)) && !line.contains("(DiskFailed)")
}

fn read(s: &Service) -> Vec<u8> {
    std::fs::read(&s.log).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(passes: u64, chunks: u64, found: u64) -> BTreeMap<u64, Target> {
        let row = |target: u64| {
            json!({"target": target, "running": false, "passes": passes, "chunks": chunks,
                "bytes": 4096 * chunks, "found": found, "failed": 0})
        };
        targets(&json!([row(1), row(2)])).expect("rows")
    }

    #[test]
    fn a_disk_that_is_dead_is_not_damaged() {
        let line = |why: &str| {
            format!(
                "ERROR glowfs_storage::repair: chunk could not be repaired; trying again later target=19 chunk=1/49153/2 wrong=Damaged error={why}"
            )
        };
        assert!(tells_of_damage(&line("no replica has it (Corrupt)")));
        let dead = "disk-1: write to the log failed: Input/output error (os error 5); the store takes no more updates (DiskFailed)";
        assert!(!tells_of_damage(&line(dead)));
        assert!(!tells_of_damage("INFO glowfs_storage::scrub: pass ended"));
    }

    #[test]
    fn a_pass_counts_when_every_target_had_one_of_its_own() {
        let before = at(3, 7, 5);
        assert!(!passed(&before, &before).expect("the same lives"));
        let mut half = at(4, 9, 6);
        half.insert(2, before[&2]);
        assert!(!passed(&before, &half).expect("the same lives"), "one has not");
        assert!(passed(&before, &at(4, 9, 6)).expect("the same lives"));
        assert!(passed(&before, &at(0, 0, 0)).is_err(), "started again");
        let p = between(&before, &at(4, 9, 6));
        assert_eq!(p, Pass { chunks: 18, bytes: 18 * 4096, found: 2, failed: 0 });
        assert!(targets(&json!([])).is_err());
    }

    #[test]
    fn only_what_was_logged_since_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        let service = [Service { id: "storage-1".into(), log: log.clone(), ..Service::default() }];
        std::fs::write(&log, "ERROR chunk could not be repaired; old\n").expect("a log");
        let since = Logs::now(&service);
        assert!(since.met(&service).is_empty());
        let text = std::fs::read_to_string(&log).expect("it");
        std::fs::write(&log, text + "INFO all is well\nERROR scrub found a chunk that is not what it should be, new\n")
            .expect("a log");
        let met = since.met(&service);
        assert!(met.len() == 1 && met[0].starts_with("storage-1: ") && met[0].contains("new"));
        assert_eq!(Logs::default().met(&service).len(), 2);
    }
}
