//! [`Fdb`]: the metadata in a FoundationDB cluster (7.1 or newer), for large clusters.
//!
//! The client library `libfdb_c` is loaded when an engine is opened; without it everything else works. A version is FoundationDB's: `begin` asks for one, reads
//! name it, a commit says what was read and at which version, and FoundationDB decides; see [`commit`]. docs/formats/metadata-engine.md has the keys.
//!
//! Guarantees: what was answered is on the disks of the log servers. Must never: take a commit whose answer was lost for one that did not happen.

mod commit;
mod errors;
mod future;
mod library;
mod network;
mod transaction;

use crate::engine::check_limits;
use crate::{Engine, Key, RangePage, Value, Version};
use commit::{Committer, Space};
use future::Pending;
use glowfs_rt::{BoxFuture, Duration, Rt};
use glowfs_types::wire::kv::{Commit, RANGE_ENTRIES_MAX};
use glowfs_types::{ClusterId, Error, Result, Status};
use library::Code;
pub use library::{API_VERSION, LIBRARY_DEFAULT, SYMBOLS};
use std::path::PathBuf;
use std::rc::Rc;
use transaction::{Database, Tx};

/// How long a question to FoundationDB may take; it would wait for ever for a cluster that is away.
const CALL_BOUND: Duration = Duration::from_secs(5);
/// Keys asked for at a time.
const READ_KEYS_MAX: usize = 1024;
/// FoundationDB's limit of a key, in bytes. Ours and the prefix stay far below.
const NATIVE_KEY_BYTES_MAX: usize = 10_000;
/// FoundationDB's limit of a value, in bytes.
const NATIVE_VALUE_BYTES_MAX: usize = 100_000;
const _: () = assert!(glowfs_types::wire::kv::KEY_BYTES_MAX + 200 < NATIVE_KEY_BYTES_MAX);
const _: () = assert!(glowfs_types::wire::kv::VALUE_BYTES_MAX <= NATIVE_VALUE_BYTES_MAX);

/// How to reach a FoundationDB cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdbConfig {
    /// Its cluster file. FoundationDB writes to it when its coordinators move.
    pub cluster_file: PathBuf,
    /// The client library; the usual one if absent.
    pub library: Option<PathBuf>,
    /// The cluster of GlowFS; several share a FoundationDB without seeing each other.
    pub cluster: ClusterId,
    /// The name of this engine: no other process that runs may have it.
    pub name: String,
}

/// See the module. Cloning it gives another handle.
#[derive(Clone)]
pub struct Fdb(Rc<Inner>);

struct Inner {
    store: Rc<Store>,
    committer: Committer,
}

/// The database, and how it is asked.
struct Store {
    rt: Rt,
    database: Rc<Database>,
    cluster_file: PathBuf,
}

impl Store {
    fn error(&self, code: Code, doing: &str) -> Error {
        errors::error(self.database.library(), code, doing)
    }
    fn transaction(&self) -> Result<Tx> {
        self.database.transaction().map_err(|code| self.error(code, "making a transaction"))
    }
    fn silent(&self, doing: &str) -> Error {
        let e = format!(
            "FoundationDB ({}) did not answer within {CALL_BOUND:?}: {doing}; see `fdbcli -C {} --exec status`",
            self.cluster_file.display(),
            self.cluster_file.display()
        );
        Error::new(Status::TimedOut, e)
    }
    /// Waits for an answer.
    async fn ask<T>(
        &self,
        doing: &str,
        answer: impl Future<Output = Result<T, Code>>,
    ) -> Result<T> {
        match self.rt.timeout(CALL_BOUND, answer).await {
            Ok(answer) => answer.map_err(|code| self.error(code, doing)),
            Err(_) => Err(self.silent(doing)),
        }
    }
    async fn version(&self) -> Result<Version> {
        const DOING: &str = "asking for a version";
        let tx = self.transaction()?;
        let mut pending = tx.read_version().map_err(|code| self.error(code, DOING))?;
        let version = self.ask(DOING, pending.number()).await?;
        Version::try_from(version)
            .map_err(|_| Error::new(Status::BadMessage, "FoundationDB: a negative version"))
    }
}

impl Fdb {
    /// The engine. Loads the library with the first one of a process; reaches the cluster with the first call.
    pub fn open(rt: &Rt, config: &FdbConfig) -> Result<Self> {
        transaction::check_cluster_file(&config.cluster_file)?;
        let path = config.library.clone().unwrap_or_else(|| LIBRARY_DEFAULT.into());
        let library = network::start(&path)?;
        let database = Database::open(library, &config.cluster_file)?;
        let cluster_file = config.cluster_file.clone();
        let store = Rc::new(Store { rt: rt.clone(), database, cluster_file });
        let committer = Committer::new(store.clone(), Space::new(config.cluster, &config.name));
        Ok(Self(Rc::new(Inner { store, committer })))
    }
}

impl Inner {
    fn full(&self, key: &[u8]) -> Key {
        self.committer.space().full(key)
    }

    async fn get(&self, version: Version, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        const DOING: &str = "reading keys";
        let store = &self.store;
        let tx = store.transaction()?;
        tx.set_read_version(version);
        let mut out = Vec::with_capacity(keys.len());
        for some in keys.chunks(READ_KEYS_MAX) {
            let asked: Result<Vec<Pending>, Code> =
                some.iter().map(|k| tx.get(&self.full(k))).collect();
            for mut pending in asked.map_err(|code| store.error(code, DOING))? {
                out.push(store.ask(DOING, pending.value()).await?);
            }
        }
        Ok(out)
    }

    async fn get_range(
        &self,
        version: Version,
        begin: &[u8],
        end: &[u8],
        limit: u32,
        reverse: bool,
    ) -> Result<RangePage> {
        const DOING: &str = "reading a range";
        if begin >= end || limit == 0 {
            return Ok(RangePage::default());
        }
        let limit = limit.min(RANGE_ENTRIES_MAX) as usize;
        let store = &self.store;
        let tx = store.transaction()?;
        tx.set_read_version(version);
        let (begin, end) = (self.full(begin), self.full(end));
        // One more than is wanted: FoundationDB says that there may be more whenever the limit is reached.
        let ask = i32::try_from(limit + 1).unwrap_or(i32::MAX);
        let pending = tx.range(&begin, &end, ask, reverse);
        let mut pending = pending.map_err(|code| store.error(code, DOING))?;
        let (found, mut more) = store.ask(DOING, pending.entries()).await?;
        more |= found.len() > limit;
        let skip = self.committer.space().data.len();
        let mut entries = Vec::with_capacity(found.len().min(limit));
        for (mut key, value) in found.into_iter().take(limit) {
            if key < begin || key >= end {
                let e = "FoundationDB: a key outside of the range";
                return Err(Error::new(Status::BadMessage, e));
            }
            key.drain(..skip);
            entries.push((key, value));
        }
        Ok(RangePage { entries, more })
    }

    async fn commit(&self, commit: Commit) -> Result<Version> {
        check_limits(&commit)?;
        if commit.mutations.is_empty() && commit.write_conflicts.is_empty() {
            // Every version that was given out is settled.
            return Ok(commit.read_version);
        }
        self.committer.commit(&commit).await
    }

    /// FoundationDB's versions count microseconds and only it can raise them.
    async fn raise_stamps(&self, least: Version) -> Result<()> {
        let now = self.store.version().await?;
        if now >= least {
            return Ok(());
        }
        let e = format!(
            "FoundationDB is at version {now}, and the dump at {least}: it would give out again what stands in keys. \
             Raise it with `fdbcli -C {} --exec 'advanceversion {least}'`, then load again",
            self.store.cluster_file.display()
        );
        Err(Error::new(Status::NotSupported, e))
    }
}

impl Engine for Fdb {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        let this = self.0.clone();
        Box::pin(async move { this.store.version().await })
    }

    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        let this = self.0.clone();
        Box::pin(async move { this.get(version, &keys).await })
    }

    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        let this = self.0.clone();
        Box::pin(async move { this.get_range(version, &begin, &end, limit, reverse).await })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        let this = self.0.clone();
        Box::pin(async move { this.commit(commit).await })
    }

    fn raise_stamps(&self, least: Version) -> BoxFuture<Result<()>> {
        let this = self.0.clone();
        Box::pin(async move { this.raise_stamps(least).await })
    }

    /// Everything that was answered is on disks already.
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// For five seconds only.
    fn keeps_versions(&self) -> bool {
        false
    }
}
