//! Names: files are made, renamed (also over others), linked and removed in a directory of one worker, through either mount; after each
//! answer both mounts must show exactly what the worker knows.

use super::{Job, open, read_at_most};
use crate::random::mix;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// Different names.
const NAMES: u64 = 12;
/// The longest file, in bytes.
const LONGEST: u64 = 20_000;

/// What the worker knows: names and what their files hold (a seed and a length).
pub type Known = BTreeMap<String, (u64, u64)>;

/// The content of a file.
fn content((seed, len): (u64, u64)) -> Vec<u8> {
    (0..len.div_ceil(8)).flat_map(|i| mix(seed ^ i).to_le_bytes()).take(len as usize).collect()
}

/// Works until the end; what must be there then.
pub fn work(mut job: Job) -> Known {
    let dir = format!("names-{}", job.lane);
    let dirs = [job.dirs[0].join(&dir), job.dirs[1].join(&dir)];
    let mut known = Known::new();
    if job.op("mkdir", || std::fs::create_dir(&dirs[0])).is_none() {
        return known;
    }
    while job.think() {
        let name = format!("n{}", job.random.below(NAMES));
        let to = format!("n{}", job.random.below(NAMES));
        let d = dirs[job.random.below(2) as usize].as_path();
        match job.random.below(10) {
            0..4 => make(&mut job, &mut known, d, &name),
            4..6 => rename(&job, &mut known, d, &name, &to),
            6..7 => remove(&job, &mut known, d, &name),
            7..9 => look(&job, &known, d, &name),
            _ => list(&job, &known, d),
        }
    }
    known
}

/// The end: all is as the worker knows, through `dir`.
pub fn verify(job: &Job, known: &Known, dir: &Path) {
    let dir = dir.join(format!("names-{}", job.lane));
    list(job, known, &dir);
    for n in 0..NAMES {
        look(job, known, &dir, &format!("n{n}"));
    }
}

/// After an operation failed the name may be in either state: looks which.
fn relearn(job: &Job, known: &mut Known, dir: &Path, name: &str, candidates: &[(u64, u64)]) {
    known.remove(name);
    let Some(bytes) = job.op("look again", || read(dir, name)) else { return };
    if let Some(bytes) = bytes {
        match candidates.iter().find(|c| content(**c) == bytes) {
            Some(c) => {
                known.insert(name.into(), *c);
            }
            // A half-written file of a failed write: out of the way with it.
            None => {
                job.op("unlink", || std::fs::remove_file(dir.join(name)));
            }
        }
    }
}

fn make(job: &mut Job, known: &mut Known, dir: &Path, name: &str) {
    let new = (job.random.next(), job.random.below(LONGEST));
    let bytes = content(new);
    let sync = job.random.chance(20);
    let path = dir.join(name);
    let there = known.contains_key(name);
    let made = job.flight.op(job.lane, "make", || {
        let mut f = std::fs::File::options().write(true).create_new(true).open(&path)?;
        f.write_all(&bytes)?;
        if sync {
            f.sync_all()?;
        }
        Ok::<_, io::Error>(())
    });
    match (made, there) {
        (Ok(()), false) => {
            known.insert(name.into(), new);
        }
        (Ok(()), true) => job.flight.wrong(format!("{name} was made although it was there")),
        (Err(e), true) if e.kind() == io::ErrorKind::AlreadyExists => {}
        (Err(e), _) => {
            job.flight.error(job.lane, &format!("make {}", path.display()), &e);
            let old: Vec<_> = known.get(name).copied().into_iter().chain([new]).collect();
            relearn(job, known, dir, name, &old);
        }
    }
}

fn rename(job: &Job, known: &mut Known, dir: &Path, from: &str, to: &str) {
    let done = job.flight.op(job.lane, "rename", || std::fs::rename(dir.join(from), dir.join(to)));
    let (old_from, old_to) = (known.get(from).copied(), known.get(to).copied());
    match (done, old_from) {
        (Ok(()), Some(c)) => {
            known.remove(from);
            known.insert(to.into(), c);
        }
        (Ok(()), None) => job.flight.wrong(format!("{from} was renamed although it was not there")),
        (Err(e), None) if e.kind() == io::ErrorKind::NotFound => {}
        (Err(e), _) => {
            job.flight.error(job.lane, &format!("rename {from} {to}"), &e);
            let both: Vec<_> = old_from.into_iter().chain(old_to).collect();
            relearn(job, known, dir, from, &both);
            relearn(job, known, dir, to, &both);
        }
    }
}

fn remove(job: &Job, known: &mut Known, dir: &Path, name: &str) {
    let done = job.flight.op(job.lane, "unlink", || std::fs::remove_file(dir.join(name)));
    let old = known.remove(name);
    match (done, old) {
        (Ok(()), Some(_)) => {}
        (Ok(()), None) => job.flight.wrong(format!("{name} was removed although it was not there")),
        (Err(e), None) if e.kind() == io::ErrorKind::NotFound => {}
        (Err(e), old) => {
            job.flight.error(job.lane, &format!("unlink {name}"), &e);
            let old: Vec<_> = old.into_iter().collect();
            relearn(job, known, dir, name, &old);
        }
    }
}

fn read(dir: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match open(&dir.join(name), false, false, false) {
        Ok(f) => f,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = vec![0; LONGEST as usize + 1];
    let n = read_at_most(&file, &mut bytes, 0)?;
    bytes.truncate(n);
    Ok(Some(bytes))
}

fn look(job: &Job, known: &Known, dir: &Path, name: &str) {
    let what = format!("read {}", dir.join(name).display());
    let Some(got) = job.op(&what, || read(dir, name)) else { return };
    let want = known.get(name).map(|c| content(*c));
    if got != want {
        let tell = |b: &Option<Vec<u8>>| match b {
            None => "nothing".to_owned(),
            Some(b) => format!("{} bytes ({:02x?}...)", b.len(), &b[..b.len().min(8)]),
        };
        job.flight.wrong(format!(
            "{}: there is {}, not {}",
            dir.join(name).display(),
            tell(&got),
            tell(&want)
        ));
    }
}

fn list(job: &Job, known: &Known, dir: &Path) {
    let listed = job.op("readdir", || {
        let mut names = vec![];
        for entry in std::fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    });
    let mut want: Vec<_> = known.keys().cloned().collect();
    want.sort();
    if let Some(listed) = listed.filter(|l| *l != want) {
        job.flight.wrong(format!("{}: lists {listed:?}, not {want:?}", dir.display()));
    }
}
