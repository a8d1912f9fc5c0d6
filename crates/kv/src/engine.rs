//! [`Engine`]: what a transactional key-value engine can do.

use glowfs_rt::{BoxFuture, Duration};
use glowfs_types::wire::kv::{
    Commit, KEY_BYTES_MAX, Mutation, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX,
};
use glowfs_types::{Error, Result, Status};
use std::ops::RangeInclusive;

/// A version of the whole store: a commit that begins after another one has ended has a greater one. Commits at once may share one; what is read at a version
/// is the state behind all commits that have it.
pub type Version = u64;
/// A key: any bytes, ordered bytewise.
pub type Key = Vec<u8>;
/// A value.
pub type Value = Vec<u8>;

/// Bytes of a versionstamp: the same number in all keys that one engine makes.
pub const STAMP_BYTES: RangeInclusive<usize> = 10..=STAMP_BYTES_MAX;
/// The longest versionstamp in bytes (FoundationDB's).
const STAMP_BYTES_MAX: usize = 12;

/// How long a version stays readable that [`Engine::keep`] was called for.
pub const KEPT_FOR: Duration = Duration::from_secs(30);

/// One page of a range.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangePage {
    /// Keys and values in the order asked for.
    pub entries: Vec<(Key, Value)>,
    /// Whether the range has more.
    pub more: bool,
}

/// A transactional engine: reads as of a version, and optimistic commits.
///
/// What was read counts only after [`Engine::commit`] of the same transaction returned (also of one that changes
/// nothing): until then an engine may show what it has not written to its log yet. [`crate::Transaction`] does that.
pub trait Engine {
    /// The newest version.
    fn begin(&self) -> BoxFuture<Result<Version>>;
    /// Reads keys as of `version`; the answer is in their order. `TooOld` if the version is not kept any more.
    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>>;
    /// Reads `[begin, end)` as of `version`, at most `limit` entries
    /// (and never more than [`glowfs_types::wire::kv::RANGE_ENTRIES_MAX`]), backwards if `reverse`.
    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>>;
    /// Applies all of `commit` or nothing: `Conflict` if something that it read has changed since, `TooOld` if that
    /// can no longer be known, `CommitUnknown` if the outcome is not known.
    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>>;
    /// Returns when everything that was committed before the call is on disk.
    fn flush_barrier(&self) -> BoxFuture<Result<()>>;
    /// Whether nothing was committed behind `version` so far. Then a commit that begins before anything else runs need not say what was read at that version.
    /// An engine that cannot tell at once says no.
    fn is_newest(&self, version: Version) -> bool {
        let _ = version;
        false
    }
    /// Whether a version can be read for as long as nobody else commits. If not, what takes minutes has to go on at newer versions.
    fn keeps_versions(&self) -> bool {
        true
    }
    /// Has `version` stay readable for [`KEPT_FOR`] more, whatever is committed meanwhile; who reads for longer asks again. `TooOld` if it is so already, an error
    /// if too much is kept. An engine that decides by itself what it keeps does nothing.
    fn keep(&self, version: Version) -> BoxFuture<Result<()>> {
        let _ = version;
        Box::pin(std::future::ready(Ok(())))
    }
    /// The life of the engine that gave out `version`, which [`Engine::begin`] answered: 0 for an engine that loses nothing. What was committed and
    /// not flushed in a life may be missing in the next, whose number is greater; no version of it comes again.
    fn life(&self, version: Version) -> u64 {
        let _ = version;
        0
    }
    /// No versionstamp that was given out is greater.
    fn stamps_given(&self) -> BoxFuture<Result<Version>> {
        self.begin()
    }
    /// From now on every versionstamp is greater than those that an engine at version `least` may have given out: keys that hold such stamps are about
    /// to be put here. Only while nobody else uses the engine.
    fn raise_stamps(&self, least: Version) -> BoxFuture<Result<()>> {
        // Stamps are versions, unless an engine says otherwise.
        let now = self.begin();
        Box::pin(async move {
            let now = now.await?;
            if now >= least { Ok(()) } else { Err(crate::dump::stamps_behind(now, least)) }
        })
    }
}

/// The first key after `key`.
pub fn key_after(key: &[u8]) -> Key {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// The first key after all keys that begin with `prefix` (an empty one, or one of 0xff only, has none: 0xff times the greatest
/// key length is returned).
pub fn prefix_end(prefix: &[u8]) -> Key {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0xff; KEY_BYTES_MAX]
}

/// Checks the limits that every engine keeps.
pub(crate) fn check_limits(commit: &Commit) -> Result<()> {
    let too_large = |what: String| Err(Error::new(Status::TooLarge, what));
    let mut total = 0usize;
    let mut key = |k: &[u8]| {
        total += k.len();
        // A conflict range may end just after the greatest key.
        if k.len() > KEY_BYTES_MAX + 1 {
            return Err(Error::new(
                Status::TooLarge,
                format!("a key of {} bytes; the limit is {KEY_BYTES_MAX}", k.len()),
            ));
        }
        Ok(())
    };
    let mut values = 0usize;
    for (begin, end) in commit.read_conflicts.iter().chain(&commit.write_conflicts) {
        key(begin)?;
        key(end)?;
    }
    for mutation in &commit.mutations {
        let value = match mutation {
            Mutation::Put { key: k, value } => {
                key(k)?;
                value.len()
            }
            Mutation::ClearRange { begin, end } => {
                key(begin)?;
                key(end)?;
                0
            }
            Mutation::Add { key: k, .. } => {
                key(k)?;
                8
            }
            Mutation::PutVersionstamped { prefix, suffix, value } => {
                key(prefix)?;
                key(suffix)?;
                if prefix.len() + suffix.len() + STAMP_BYTES_MAX > KEY_BYTES_MAX {
                    return too_large("a versionstamped key is over the key limit".into());
                }
                value.len()
            }
        };
        if value > VALUE_BYTES_MAX {
            return too_large(format!("a value of {value} bytes; the limit is {VALUE_BYTES_MAX}"));
        }
        values += value;
    }
    if total + values > TRANSACTION_BYTES_MAX {
        return too_large(format!(
            "a transaction of {} bytes; the limit is {TRANSACTION_BYTES_MAX}: split it",
            total + values
        ));
    }
    Ok(())
}
