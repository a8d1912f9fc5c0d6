//! [`Etcd`]: the metadata in an etcd cluster (3.4 or newer), over its JSON gateway.
//!
//! A version is etcd's revision. Reads name one, so they are of one snapshot whichever member answers. A commit is etcd's If/Then: compares of what
//! was read, see [`plan`]; how lost answers are settled says [`commit`]. docs/formats/metadata-engine.md has the keys and the reasons.
//!
//! Guarantees: what was answered is on the disks of a majority. Must never: lean on etcd's leases or on any clock for correctness.

mod api;
mod base64;
mod commit;
mod compaction;
mod http;
mod members;
mod metrics;
mod plan;
mod reads;

use crate::engine::check_limits;
use crate::{Engine, Key, RangePage, Value, Version};
use api::{Range, RangeAnswer};
use commit::{Committer, Space};
pub use compaction::VERSIONS_KEPT;
use glowfs_rt::sync::{OneSender, oneshot};
use glowfs_rt::{BoxFuture, Duration, Rt};
use glowfs_types::wire::kv::{Commit, RANGE_ENTRIES_MAX};
use glowfs_types::{ClusterId, Error, Result, Status};
use members::Members;
use metrics::Metrics;
use reads::Reads;
use std::cell::RefCell;
use std::rc::Rc;

/// Operations of one transaction of etcd, if nobody says otherwise: etcd's own default of `--max-txn-ops`.
pub const TXN_OPS_DEFAULT: u32 = 128;
/// Entries of one page of a range read; an answer must stay within [`http::BODY_BYTES_MAX`].
const PAGE_ENTRIES_MAX: u32 = 512;

/// How to reach an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Its members: `http://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// The cluster of GlowFS; several share an etcd without seeing each other.
    pub cluster: ClusterId,
    /// The name of this engine: no other process that runs may have it.
    pub name: String,
    /// The `--max-txn-ops` of its members.
    pub txn_ops_max: u32,
    /// How long old versions can be read; then they go, whatever etcd itself was told. [`VERSIONS_KEPT`], but in tests.
    pub versions_kept: Duration,
}

/// See the module. Cloning it gives another handle.
#[derive(Clone)]
pub struct Etcd(Rc<Inner>);

struct Inner {
    rt: Rt,
    members: Rc<Members>,
    space: Rc<Space>,
    committer: Rc<Committer>,
    reads: Rc<Reads>,
    /// Those who ask for the newest version; `None` while nobody does.
    begins: RefCell<Option<Vec<OneSender<Result<Version>>>>>,
}

impl Etcd {
    /// The engine. Connects with the first call.
    pub fn new(rt: &Rt, config: &EtcdConfig) -> Result<Self> {
        let members = Rc::new(Members::new(rt, &config.endpoints)?);
        let space = Rc::new(Space::new(config.cluster, &config.name));
        let ops = config.txn_ops_max.max(TXN_OPS_DEFAULT) as usize;
        let metrics = Rc::new(Metrics::new());
        let reads = Reads::new(rt, (members.clone(), space.clone()), metrics.clone());
        let committer = Committer::new(rt, (members.clone(), space.clone()), metrics, ops);
        let begins = RefCell::new(None);
        let inner = Rc::new(Inner { rt: rt.clone(), members, space, committer, reads, begins });
        rt.spawn_detached(compaction::run(Rc::downgrade(&inner), config.versions_kept));
        Ok(Self(inner))
    }
}

impl Inner {
    fn full(&self, key: &[u8]) -> Key {
        self.space.full(key)
    }

    async fn range(&self, range: &Range) -> Result<RangeAnswer> {
        let mut text = String::new();
        range.json(&mut text);
        let body = self.members.ask(api::RANGE, &text).await?;
        api::parse(&body).map_err(|e| Error::new(Status::BadMessage, e))
    }

    /// Reads at a version: from whichever member is asked, if it has that, else by way of the leader.
    async fn range_at(&self, mut range: Range) -> Result<RangeAnswer> {
        range.local = true;
        match self.range(&range).await {
            Err(e) if e.status == Status::OutOfRange => {
                range.local = false;
                self.range(&range).await
            }
            other => other,
        }
    }

    /// One question to etcd serves all who asked before it was sent.
    async fn begin(self: Rc<Self>) -> Result<Version> {
        let (reply, answer) = oneshot();
        let first = {
            let mut begins = self.begins.borrow_mut();
            let first = begins.is_none();
            begins.get_or_insert_default().push(reply);
            first
        };
        if first {
            let this = self.clone();
            self.rt.spawn_detached(async move { this.answer_begins().await });
        }
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(Status::Internal, "a begin was dropped without an answer"))
        })
    }

    async fn answer_begins(&self) {
        loop {
            let waiting = match &mut *self.begins.borrow_mut() {
                Some(waiting) if !waiting.is_empty() => std::mem::take(waiting),
                idle => {
                    *idle = None;
                    return;
                }
            };
            // The key does not matter; linearizable, so the revision is not older than anything answered before.
            let range = Range { key: self.full(b""), keys_only: true, ..Range::default() };
            let result = self.range(&range).await.and_then(|a| match a.header.revision.0 {
                // Its revisions begin with 1; before that nothing is there, and whoever took that for an answer would see an empty file system.
                0 => Err(Error::new(Status::BadMessage, "etcd: an answer without its revision")),
                revision => Ok(revision),
            });
            for reply in waiting {
                let _ = reply.send(result.clone());
            }
        }
    }

    async fn get_range(&self, mut range: Range) -> Result<RangePage> {
        if range.key >= range.end || range.limit == 0 {
            return Ok(RangePage::default());
        }
        range.limit = range.limit.min(PAGE_ENTRIES_MAX).min(RANGE_ENTRIES_MAX);
        let answer = loop {
            match self.range_at(range.clone()).await {
                // Large values: fewer at a time.
                Err(e) if e.status == Status::TooLarge && range.limit > 1 => range.limit /= 4,
                other => break other?,
            }
            range.limit = range.limit.max(1);
        };
        if answer.more && answer.kvs.is_empty() {
            let e = "etcd: it says that there is more, and not what comes first";
            return Err(Error::new(Status::BadMessage, e));
        }
        let skip = self.space.data.len();
        let mut entries = Vec::with_capacity(answer.kvs.len());
        for mut kv in answer.kvs {
            if kv.key.0 < range.key || kv.key.0 >= range.end || kv.key.0.len() < skip {
                return Err(Error::new(Status::BadMessage, "etcd: a key outside of the range"));
            }
            kv.key.0.drain(..skip);
            entries.push((kv.key.0, kv.value.0));
        }
        Ok(RangePage { entries, more: answer.more })
    }

    /// The keys that were there in what a commit says it has read.
    async fn look(&self, commit: &Commit) -> Result<Vec<minicbor::bytes::ByteVec>> {
        let mut present = Vec::new();
        for (begin, end) in &commit.read_conflicts {
            let (mut key, end) = (self.full(begin), self.full(end));
            loop {
                let (version, limit) = (commit.read_version, RANGE_ENTRIES_MAX);
                let range = Range {
                    key,
                    end: end.clone(),
                    version,
                    limit,
                    keys_only: true,
                    ..Range::default()
                };
                let page = self.get_range(range).await?;
                key = page
                    .entries
                    .last()
                    .map_or_else(Vec::new, |(k, _)| crate::key_after(&self.full(k)));
                present.extend(page.entries.into_iter().map(|(k, _)| k.into()));
                if !page.more {
                    break;
                }
            }
        }
        Ok(present)
    }

    async fn commit(&self, mut commit: Commit) -> Result<Version> {
        check_limits(&commit)?;
        if commit.mutations.is_empty() && commit.write_conflicts.is_empty() {
            // Every version that was given out is settled.
            return Ok(commit.read_version);
        }
        if commit.present.is_none() && !commit.read_conflicts.is_empty() {
            commit.present = Some(self.look(&commit).await?);
        }
        self.committer.commit(commit).await
    }
}

impl Engine for Etcd {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        Box::pin(self.0.clone().begin())
    }

    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        let reads = self.0.reads.clone();
        Box::pin(async move { reads.get(version, keys).await })
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
        Box::pin(async move {
            let (key, end) = (this.full(&begin), this.full(&end));
            let range = Range { key, end, version, limit, reverse, ..Range::default() };
            this.get_range(range).await
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        let this = self.0.clone();
        Box::pin(async move { this.commit(commit).await })
    }

    fn stamps_given(&self) -> BoxFuture<Result<Version>> {
        let this = self.0.clone();
        Box::pin(async move { this.committer.stamps().await })
    }
    fn raise_stamps(&self, least: Version) -> BoxFuture<Result<()>> {
        let this = self.0.clone();
        Box::pin(async move { this.committer.raise_stamps(least).await })
    }

    /// Everything that was answered is on the disks of a majority already.
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
