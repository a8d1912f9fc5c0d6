//! Commits, and the outcomes that are not known.
//!
//! Commits go out as they come; FoundationDB orders them. Each also writes one of the engine's *own keys*, which no other commit in work has, and counts it as
//! read. So when an answer is lost, another transaction settles it: it reads the own key, and if the lost commit is not there, writes it. If that succeeds
//! the lost one can never happen any more, however late it arrives, for what it counts as read has changed; if not, the key tells that it did. Nothing
//! here rests on time, nor on what FoundationDB's client promises about `commit_unknown_result`.

use super::Store;
use super::errors::{self, CONFLICT};
use super::library::Code;
use super::transaction::{Touched, Tx};
use crate::{Key, Version, key_after};
use glowfs_rt::Duration;
use glowfs_types::wire::kv::{Commit, Mutation};
use glowfs_types::{ClusterId, Error, Result, Status};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// FoundationDB's limit of a transaction in bytes, conflict ranges included.
const NATIVE_TRANSACTION_BYTES_MAX: usize = 10_000_000;
/// What one change or conflict range costs beside its bytes, more than it really does.
const NATIVE_ITEM_BYTES: usize = 64;
/// Own keys, so commits in work; more are refused with `Overloaded`.
const OWN_KEYS_MAX: u32 = 4096;
/// How long a commit may take before it is settled.
const ATTEMPT_BOUND: Duration = Duration::from_secs(3);
/// How long a commit is tried before it is given up.
const COMMIT_BOUND: Duration = Duration::from_secs(8);
/// How long settling is tried.
const SETTLE_BOUND: Duration = Duration::from_secs(8);
/// The pause after an attempt that failed.
const PAUSE: Duration = Duration::from_millis(20);
/// Versions after which nothing can arrive late any more: six times what FoundationDB lets a transaction live (5 s; a version is a microsecond).
const LATE_VERSIONS: Version = 30_000_000;
/// Bytes of FoundationDB's stamps: version and order among the commits of that version.
const NATIVE_STAMP_BYTES: usize = 10;
/// Where the number of a stamp among those of its transaction stands behind it: together they are our stamp.
const STAMP_ORDER_BYTES: usize = 2;

/// Where things are: `glowfs/CLUSTER/`, then `d` and a key, or `own/NAME/` and a number.
pub struct Space {
    /// Before every key of the users.
    pub data: Vec<u8>,
    own: Vec<u8>,
}

impl Space {
    /// Of a cluster and an engine.
    pub fn new(cluster: ClusterId, name: &str) -> Self {
        let at = |what: &str| format!("glowfs/{cluster}/{what}").into_bytes();
        Self { data: at("d"), own: at(&format!("own/{name}/")) }
    }
    /// A key of the users, as it is stored.
    pub fn full(&self, key: &[u8]) -> Key {
        [&self.data, key].concat()
    }
    fn own(&self, number: u32) -> Key {
        [&self.own[..], &number.to_be_bytes()].concat()
    }
}

/// Own keys that are free, the one that was written longest ago first: (when, number).
#[derive(Default)]
struct OwnKeys {
    free: BTreeSet<(Version, u32)>,
    made: u32,
}

/// An own key in use; free again when it is dropped.
struct Own<'a> {
    keys: &'a RefCell<OwnKeys>,
    number: u32,
    /// When it was written last; if that is not known, when nothing that is on its way can write it any more.
    written: Version,
}

impl<'a> Own<'a> {
    /// One that was not written since `version`: else the commit would have a conflict with the one before.
    fn take(keys: &'a RefCell<OwnKeys>, version: Version) -> Result<Self> {
        let mut s = keys.borrow_mut();
        let full = s.made >= OWN_KEYS_MAX;
        let oldest = s.free.first().copied().filter(|(written, _)| *written <= version || full);
        let (written, number) = match oldest {
            Some(one) => {
                s.free.remove(&one);
                one
            }
            None if full => {
                let e = "too many commits wait for FoundationDB; retry";
                return Err(Error::new(Status::Overloaded, e));
            }
            None => {
                s.made += 1;
                (0, s.made - 1)
            }
        };
        drop(s);
        Ok(Self { keys, number, written })
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        self.keys.borrow_mut().free.insert((self.written, self.number));
    }
}

/// What an own key holds behind the stamp.
fn mark(life: u128, seq: u64, kind: u8) -> Vec<u8> {
    [&life.to_be_bytes()[..], &seq.to_be_bytes(), &[kind]].concat()
}

/// Whether a mark is of a commit before `seq` in the same life.
fn earlier(mark: &[u8], life: u128, seq: u64) -> bool {
    let of = mark.strip_prefix(&life.to_be_bytes()).and_then(|rest| rest.get(..8)?.try_into().ok());
    of.is_some_and(|bytes| u64::from_be_bytes(bytes) < seq)
}

/// What became of a commit.
enum Done {
    Committed(Version),
    /// It has not happened, and never will.
    Not(Error),
    /// Settled: a fence was written at this version, so it never will.
    Fenced(Version),
    Unknown(String),
}

/// See the module.
pub struct Committer {
    store: Rc<Store>,
    space: Space,
    /// One life of this engine.
    life: u128,
    seq: RefCell<u64>,
    own: RefCell<OwnKeys>,
}

impl Committer {
    /// None in work yet.
    pub fn new(store: Rc<Store>, space: Space) -> Self {
        let life = store.rt.random_u128();
        Self { store, space, life, seq: RefCell::default(), own: RefCell::default() }
    }
    /// Where things are.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Commits what is within our limits and changes something.
    pub async fn commit(&self, commit: &Commit) -> Result<Version> {
        self.check_size(commit)?;
        let end = self.store.rt.now() + COMMIT_BOUND;
        loop {
            let version = match commit.read_conflicts.is_empty() {
                // Nothing was read, so it does not matter how old that is.
                true => self.store.version().await?,
                false if commit.read_version == 0 => {
                    let e = "a commit counts something as read and names no version";
                    return Err(Error::new(Status::InvalidArgument, e));
                }
                false => commit.read_version,
            };
            let mut own = Own::take(&self.own, version)?;
            let seq = {
                let mut seq = self.seq.borrow_mut();
                *seq += 1;
                *seq
            };
            // Also if the caller gives up meanwhile.
            let before = std::mem::replace(&mut own.written, version.saturating_add(LATE_VERSIONS));
            let done = match self.attempt(commit, version, &own, seq).await {
                Done::Unknown(why) => self.settle(version, &own, seq, why).await,
                known => known,
            };
            match done {
                Done::Committed(version) => {
                    own.written = version;
                    return Ok(version);
                }
                Done::Not(e) => {
                    own.written = before;
                    return Err(e);
                }
                Done::Fenced(at) => own.written = at,
                Done::Unknown(why) => {
                    let e = format!("whether the commit happened is not known: {why}");
                    return Err(Error::new(Status::CommitUnknown, e));
                }
            }
            if self.store.rt.now() >= end {
                let e = "FoundationDB: a commit took too long and was taken back; retry";
                return Err(Error::new(Status::Disconnected, e));
            }
            drop(own);
            self.store.rt.sleep(PAUSE).await;
        }
    }

    /// FoundationDB counts our prefix with every key, and conflict ranges as well.
    fn check_size(&self, commit: &Commit) -> Result<()> {
        let prefix = self.space.data.len();
        let range = |b: &[u8], e: &[u8]| b.len() + e.len() + 2 * prefix + NATIVE_ITEM_BYTES;
        let conflicts = commit.read_conflicts.iter().chain(&commit.write_conflicts);
        let conflicts: usize = conflicts.map(|(b, e)| range(b, e)).sum();
        // Each change is a conflict range, too.
        let changes = commit.mutations.iter().map(|m| match m {
            Mutation::Put { key, value } => prefix + key.len() + value.len() + range(key, key),
            Mutation::ClearRange { begin, end } => 2 * range(begin, end),
            Mutation::Add { key, .. } => prefix + key.len() + 8 + range(key, key),
            Mutation::PutVersionstamped { prefix: p, suffix, value } => {
                prefix + 3 * (p.len() + suffix.len() + 16) + value.len() + range(p, suffix)
            }
        });
        let total = conflicts + changes.map(|n| n + NATIVE_ITEM_BYTES).sum::<usize>();
        if total > NATIVE_TRANSACTION_BYTES_MAX {
            let e = format!(
                "a transaction of about {total} bytes as FoundationDB counts them; the limit is {NATIVE_TRANSACTION_BYTES_MAX}: split it"
            );
            return Err(Error::new(Status::TooLarge, e));
        }
        Ok(())
    }

    async fn attempt(&self, commit: &Commit, version: Version, own: &Own<'_>, seq: u64) -> Done {
        const DOING: &str = "committing";
        let tx = match self.store.transaction() {
            Ok(tx) => tx,
            Err(e) => return Done::Not(e),
        };
        let made = self.fill(&tx, commit, version, own.number, seq);
        let mut pending = match made.and_then(|()| tx.commit()) {
            Ok(pending) => pending,
            Err(code) => return Done::Not(self.store.error(code, DOING)),
        };
        match self.store.rt.timeout(ATTEMPT_BOUND, pending.done()).await {
            Ok(Ok(())) => match tx.committed_version() {
                Ok(version) => Done::Committed(version),
                Err(code) => Done::Unknown(self.store.error(code, "its version").message),
            },
            Ok(Err(code)) => {
                let e = self.store.error(code, DOING);
                match errors::not_committed(self.store.database.library(), code) {
                    true => Done::Not(e),
                    false => Done::Unknown(e.message),
                }
            }
            Err(_) => Done::Unknown(self.store.silent(DOING).message),
        }
    }

    /// Says to the library what a commit read and changes.
    fn fill(
        &self,
        tx: &Tx,
        commit: &Commit,
        version: Version,
        own: u32,
        seq: u64,
    ) -> Result<(), Code> {
        let full = |key: &[u8]| self.space.full(key);
        tx.set_read_version(version);
        for (begin, end) in commit.read_conflicts.iter().filter(|(b, e)| b < e) {
            tx.conflict(&full(begin), &full(end), Touched::Read)?;
        }
        for (begin, end) in commit.write_conflicts.iter().filter(|(b, e)| b < e) {
            tx.conflict(&full(begin), &full(end), Touched::Written)?;
        }
        let mut stamps = 0u16;
        for mutation in &commit.mutations {
            match mutation {
                Mutation::Put { key, value } => tx.set(&full(key), value),
                Mutation::ClearRange { begin, end } if begin < end => {
                    tx.clear_range(&full(begin), &full(end));
                }
                Mutation::ClearRange { .. } => {}
                Mutation::Add { key, delta } => tx.add(&full(key), *delta),
                Mutation::PutVersionstamped { prefix, suffix, value } => {
                    let mut key = full(prefix);
                    // Keys are some thousand bytes at most.
                    let at = key.len() as u32;
                    key.extend_from_slice(&[0; NATIVE_STAMP_BYTES]);
                    let order: [u8; STAMP_ORDER_BYTES] = stamps.to_be_bytes();
                    key.extend_from_slice(&order);
                    key.extend_from_slice(suffix);
                    tx.set_stamped_key(key, at, value);
                    stamps = stamps.wrapping_add(1);
                }
            }
        }
        self.write_own(tx, own, seq, b'c')
    }

    /// Writes an own key, and counts it as read.
    fn write_own(&self, tx: &Tx, own: u32, seq: u64, kind: u8) -> Result<(), Code> {
        let key = self.space.own(own);
        tx.conflict(&key, &key_after(&key), Touched::Read)?;
        tx.set_stamped_value(&key, &mark(self.life, seq, kind));
        Ok(())
    }

    /// Finds out what became of commit `seq`, which stands on `version` and whose answer is lost.
    async fn settle(&self, version: Version, own: &Own<'_>, seq: u64, why: String) -> Done {
        tracing::debug!(why, "settling a commit");
        let end = self.store.rt.now() + SETTLE_BOUND;
        let mut last = why;
        loop {
            match self.settle_once(version, own.number, seq).await {
                Ok(Some(done)) => return done,
                // Something else was written at the same moment: look again.
                Ok(None) => {}
                Err(e) => last = e.message,
            }
            if self.store.rt.now() >= end {
                return Done::Unknown(last);
            }
            self.store.rt.sleep(PAUSE).await;
        }
    }

    async fn settle_once(&self, version: Version, own: u32, seq: u64) -> Result<Option<Done>> {
        const DOING: &str = "settling a commit";
        let store = &self.store;
        let wrong = |code| store.error(code, DOING);
        let tx = store.transaction()?;
        let mut pending = tx.read_version().map_err(wrong)?;
        store.ask(DOING, pending.number()).await?;
        let mut pending = tx.get(&self.space.own(own)).map_err(wrong)?;
        if let Some(value) = store.ask(DOING, pending.value()).await? {
            let (stamp, rest) = value.split_at(value.len().min(NATIVE_STAMP_BYTES));
            let at = stamp.get(..8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes);
            if rest == mark(self.life, seq, b'c') {
                return Ok(Some(Done::Committed(at)));
            }
            if rest == mark(self.life, seq, b'f') {
                return Ok(Some(Done::Fenced(at)));
            }
            if at > version && earlier(rest, self.life, seq) {
                // It stood there before ours was sent, which counts it as read at an older version.
                return Ok(Some(Done::Fenced(at)));
            }
            if at > version {
                // Ours may lie beneath.
                let e = "another process uses this engine's name, that is, the same node id".into();
                return Ok(Some(Done::Unknown(e)));
            }
        }
        self.write_own(&tx, own, seq, b'f').map_err(wrong)?;
        let mut pending = tx.commit().map_err(wrong)?;
        match store.rt.timeout(ATTEMPT_BOUND, pending.done()).await {
            Ok(Ok(())) => Ok(Some(Done::Fenced(tx.committed_version().map_err(wrong)?))),
            Ok(Err(CONFLICT)) => Ok(None),
            Ok(Err(code)) => Err(wrong(code)),
            Err(_) => Err(store.silent(DOING)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_keys_are_taken_when_they_are_old_enough() {
        let keys = RefCell::default();
        let take = |version| Own::take(&keys, version).map(|o| o.number);
        let mut one = Own::take(&keys, 5).expect("a new one");
        let two = Own::take(&keys, 5).expect("another one");
        assert_eq!((one.number, two.number), (0, 1));
        one.written = 10;
        drop(one);
        assert_eq!(take(9).expect("the first is too young"), 2);
        drop(two);
        assert_eq!(take(9).expect("never written"), 1);
        // All are in use, or too young: the oldest, which may be a conflict; then none.
        let mut all = Vec::new();
        while keys.borrow().made < OWN_KEYS_MAX {
            all.push(Own::take(&keys, 9).expect("there is room"));
        }
        while let Ok(own) = Own::take(&keys, 9) {
            all.push(own);
        }
        assert_eq!(all.len() as u32, OWN_KEYS_MAX);
        assert_eq!(take(9).expect_err("none is left").status, Status::Overloaded);
        all.clear();
        assert_eq!(keys.borrow().free.len() as u32, OWN_KEYS_MAX);
    }

    /// docs/formats/metadata-engine.md, FoundationDB format 1.
    #[test]
    fn golden() {
        let space = Space::new(ClusterId(7), "meta-101");
        let text = |key: Key| key.escape_ascii().to_string();
        let cluster = "glowfs/00000000000000000000000000000007";
        assert_eq!(text(space.full(b"key")), format!("{cluster}/dkey"));
        assert_eq!(text(space.own(258)), format!("{cluster}/own/meta-101/\\x00\\x00\\x01\\x02"));
        assert_eq!(mark(1, 2, b'c'), [&[0; 15][..], &[1], &[0; 7], &[2], b"c"].concat());
    }

    #[test]
    fn marks_tell_lives_and_commits_apart() {
        let old = mark(7, 4, b'c');
        assert!(earlier(&old, 7, 5) && !earlier(&old, 7, 4) && !earlier(&old, 8, 5));
        assert!(!earlier(b"short", 7, 5) && !earlier(b"", 7, 5));
    }
}
