//! The engine: loading the state, and changes that compare the primary's lease.

use crate::keys;
use crate::records::{
    ChainRecord, ClusterRecord, DeadRecord, EpochRecord, GoneRecord, Item, StoreRecord,
    TableRecord, UserRecord,
};
use glowfs_cluster::{Chain, LeaseRecord};
use glowfs_kv::{Engine, Transaction, dump, key_after, prefix_end};
use glowfs_types::routing::{NodeInfo, TargetInfo};
use glowfs_types::wire::mgmtd::{ClientSession, ConfigItem};
use glowfs_types::{Error, NodeId, Result, RoutingVersion, Status};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Entries of one page of a range read.
const PAGE: u32 = 1024;
/// How often a change is tried again after a conflict that was not about the lease.
const ATTEMPTS: u32 = 8;

/// Changes to keys: a value, or removal.
pub type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A handle on the engine.
pub struct Store {
    pub engine: Rc<dyn Engine>,
}

/// All of it, as loaded.
pub struct Loaded {
    pub cluster: Option<ClusterRecord>,
    pub version: RoutingVersion,
    pub nodes: Vec<Item<NodeInfo>>,
    pub targets: Vec<Item<TargetInfo>>,
    pub gone: Vec<GoneRecord>,
    pub gone_nodes: Vec<Item<NodeId>>,
    pub chains: Vec<Item<Chain>>,
    pub tables: Vec<Item<TableRecord>>,
    pub stores: Vec<StoreRecord>,
    pub users: Vec<UserRecord>,
    pub configs: Vec<ConfigItem>,
    pub overrides: Vec<(NodeId, String)>,
    pub clients: Vec<ClientSession>,
    pub dead: Vec<DeadRecord>,
}

/// What a commit did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is in force.
    Done,
    /// Another primary has been elected: step down.
    Superseded,
    /// Whether it is stored is not known, and the engine does not answer: step down as well, for what is in memory may not be what is stored.
    Unknown,
}

impl Store {
    fn tx(&self) -> Transaction {
        Transaction::new(self.engine.clone())
    }
    async fn all<T: for<'b> minicbor::Decode<'b, ()>>(
        &self,
        tx: &Transaction,
        kind: &str,
    ) -> Result<Vec<T>> {
        let mut begin = keys::kind(kind);
        let end = prefix_end(&begin);
        let mut out = Vec::new();
        loop {
            let page = tx.get_range_snapshot(&begin, &end, PAGE, false).await?;
            for (key, value) in &page.entries {
                out.push(keys::decode(key, value)?);
            }
            match page.entries.last() {
                Some((key, _)) if page.more => begin = key_after(key),
                _ => return Ok(out),
            }
        }
    }
    /// Reads everything as of one version.
    pub async fn load(&self) -> Result<Loaded> {
        let tx = self.tx();
        dump::check_whole(&tx).await?;
        let chains: Vec<Item<ChainRecord>> = self.all(&tx, "chain").await?;
        let loaded = Loaded {
            cluster: one(&tx, &keys::cluster()).await?,
            version: one(&tx, &keys::routing()).await?.unwrap_or_default(),
            nodes: self.all(&tx, "node").await?,
            targets: self.all(&tx, "target").await?,
            gone: self.all(&tx, "gone").await?,
            gone_nodes: self.all(&tx, "gone-node").await?,
            chains: chains
                .into_iter()
                .map(|c| Item { changed: c.changed, value: c.value.into_chain() })
                .collect(),
            tables: self.all(&tx, "table").await?,
            stores: self.all(&tx, "store").await?,
            users: self.all(&tx, "user").await?,
            configs: self.all(&tx, "config").await?,
            overrides: self.all(&tx, "override").await?,
            clients: self.all(&tx, "client").await?,
            dead: self.all(&tx, "dead").await?,
        };
        tx.commit(false).await?;
        Ok(loaded)
    }
    /// The user of a token, straight from the engine (for a standby). While the cluster has no record yet nobody
    /// can say that a token is wrong: that is an error which the caller may retry.
    pub async fn user_of_token(&self, hash: &[u8; 32]) -> Result<Option<UserRecord>> {
        let tx = self.tx();
        let id: Option<glowfs_types::UserId> = one(&tx, &keys::token(hash)).await?;
        let user = match id {
            Some(id) => one(&tx, &keys::user(id)).await?,
            None if tx.get_snapshot(&keys::cluster()).await?.is_none() => {
                return Err(Error::new(
                    Status::NotPrimary,
                    "the cluster is being set up and has no users yet; try again in a moment",
                ));
            }
            None => None,
        };
        tx.commit(false).await?;
        Ok(user)
    }
    /// Reads the primary's lease in a transaction that can replace it, and the mark of the cluster's time, in ns.
    pub async fn lease(&self) -> Result<(Transaction, Option<LeaseRecord>, Option<u64>)> {
        let tx = self.tx();
        // One question: the lease may be short beside the way to the engine.
        let (epoch, renewal, time) = (keys::epoch(), keys::renewal(), keys::time());
        let keys = [epoch.clone(), renewal.clone(), time.clone()];
        let mut found = tx.get_all(&keys).await?.into_iter();
        let value = |v: Option<Option<Vec<u8>>>| v.flatten();
        let first =
            value(found.next()).map(|v| keys::decode::<EpochRecord>(&epoch, &v)).transpose()?;
        let second = value(found.next()).map(|v| keys::decode::<u64>(&renewal, &v)).transpose()?;
        let mark = value(found.next()).map(|v| keys::decode::<u64>(&time, &v)).transpose()?;
        let (epoch, renewal) = (first, second.unwrap_or(0));
        Ok((tx, epoch.map(|e| e.with_renewal(renewal)), mark))
    }
    /// Writes the lease in that transaction, with a mark of the cluster's time. A renewal leaves the epoch's key alone, so it disturbs no change.
    pub async fn put_lease(
        &self,
        tx: Transaction,
        before: Option<&LeaseRecord>,
        (record, mark_ns): (&LeaseRecord, u64),
    ) -> Result<()> {
        let new = EpochRecord::of(record);
        let changed = before.map(EpochRecord::of).as_ref() != Some(&new);
        if changed {
            tx.put(keys::epoch(), keys::encode(&new))?;
        }
        tx.put(keys::renewal(), keys::encode(&record.renewal))?;
        tx.put(keys::time(), keys::encode(&mark_ns))?;
        tx.commit(changed).await.map(|_| ())
    }
    /// Makes a change as the primary of `epoch`, durably. If `routing` is given, the routing version is moved from the
    /// first to the second along with it.
    pub async fn change(
        &self,
        epoch: u64,
        routing: Option<(RoutingVersion, RoutingVersion)>,
        writes: &Writes,
    ) -> Result<Outcome> {
        let mut last = Error::new(Status::Conflict, "a change of the cluster's records");
        // Whether an attempt may have stored it without our knowing.
        let mut unknown = false;
        for _ in 0..ATTEMPTS {
            match self.try_change(epoch, routing, writes, unknown).await {
                // With an unknown outcome, the next attempt finds the new routing version in place, or writes again.
                Err(e)
                    if matches!(
                        e.status,
                        Status::Conflict | Status::TooOld | Status::CommitUnknown
                    ) =>
                {
                    unknown |= e.status == Status::CommitUnknown;
                    last = e;
                }
                Err(e) if unknown => {
                    tracing::warn!(error = %e, "it is not known whether the last change is stored");
                    return Ok(Outcome::Unknown);
                }
                // Superseded, after an attempt that may have been there first.
                Ok(Outcome::Superseded) if unknown => return Ok(Outcome::Unknown),
                other => return other,
            }
        }
        if unknown { Ok(Outcome::Unknown) } else { Err(last) }
    }
    async fn try_change(
        &self,
        epoch: u64,
        routing: Option<(RoutingVersion, RoutingVersion)>,
        writes: &Writes,
        unknown: bool,
    ) -> Result<Outcome> {
        let tx = self.tx();
        let lease: Option<EpochRecord> = one(&tx, &keys::epoch()).await?;
        if lease.is_none_or(|l| l.epoch != epoch || l.holder == NodeId(0)) {
            return Ok(Outcome::Superseded);
        }
        if let Some((from, to)) = routing {
            let now: RoutingVersion = one(&tx, &keys::routing()).await?.unwrap_or_default();
            if now == to && unknown {
                // An attempt of ours, for only this primary can have written it, and it steps down before another change if it does not know what
                // became of one. Wait until it is on disk.
                self.engine.flush_barrier().await?;
                return Ok(Outcome::Done);
            }
            if now != from {
                return Ok(Outcome::Superseded);
            }
            tx.put(keys::routing(), keys::encode(&to))?;
        }
        for (key, value) in writes {
            match value {
                Some(v) => tx.put(key.clone(), v.clone())?,
                None => tx.clear(key.clone())?,
            }
        }
        tx.commit(true).await?;
        Ok(Outcome::Done)
    }
}

/// Reads one value (with a conflict).
pub(crate) async fn one<T: for<'b> minicbor::Decode<'b, ()>>(
    tx: &Transaction,
    key: &[u8],
) -> Result<Option<T>> {
    tx.get(key).await?.map(|v| keys::decode(key, &v)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_kv::{Key, Memory, RangePage, Value, Version};
    use glowfs_rt::BoxFuture;
    use glowfs_types::wire::kv::Commit;
    use std::cell::Cell;

    /// An engine that is lost while it answers a commit: it has kept it or not, nobody hears which, and the next `away` questions fail.
    struct Lost {
        engine: Memory,
        commits: Cell<u32>,
        keeps: bool,
        away: Cell<u32>,
    }
    /// Which commit it is (the first one makes the lease).
    const LOST: u32 = 2;

    impl Lost {
        fn answers<T: 'static>(&self, answer: BoxFuture<Result<T>>) -> BoxFuture<Result<T>> {
            if self.commits.get() < LOST || self.away.get() == 0 {
                return answer;
            }
            self.away.set(self.away.get() - 1);
            Box::pin(std::future::ready(Err(Status::Disconnected.into())))
        }
    }
    impl Engine for Lost {
        fn begin(&self) -> BoxFuture<Result<Version>> {
            self.answers(self.engine.begin())
        }
        fn get(&self, v: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
            self.answers(self.engine.get(v, keys))
        }
        fn get_range(
            &self,
            version: Version,
            begin: Key,
            end: Key,
            limit: u32,
            reverse: bool,
        ) -> BoxFuture<Result<RangePage>> {
            self.answers(self.engine.get_range(version, begin, end, limit, reverse))
        }
        fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
            self.commits.set(self.commits.get() + 1);
            if self.commits.get() != LOST {
                return self.engine.commit(commit);
            }
            if self.keeps {
                drop(self.engine.commit(commit));
            }
            Box::pin(std::future::ready(Err(Status::CommitUnknown.into())))
        }
        fn flush_barrier(&self) -> BoxFuture<Result<()>> {
            self.answers(self.engine.flush_barrier())
        }
    }

    fn write(key: &[u8], value: u8) -> Writes {
        Writes::from([(key.to_vec(), Some(vec![value]))])
    }

    /// A change of which nobody knows whether it is stored is made, or the primary is none any more: another change never passes for it.
    #[test]
    fn a_change_of_unknown_outcome_is_never_taken_for_another_one() {
        for (keeps, away) in [(true, 0), (false, 0), (true, 1), (false, 1), (true, 2), (true, 3)] {
            glowfs_rt::real::run(move |_| async move {
                let (commits, away) = (Cell::new(0), Cell::new(away));
                let lost = Rc::new(Lost { engine: Memory::new(), commits, keeps, away });
                let store = Store { engine: lost.clone() };
                let (tx, before, _) = store.lease().await.expect("no lease yet");
                let record = LeaseRecord { epoch: 1, holder: NodeId(1), ..LeaseRecord::default() };
                store.put_lease(tx, before.as_ref(), (&record, 1)).await.expect("primary");
                let step = Some((RoutingVersion(0), RoutingVersion(1)));
                let first = store.change(1, step, &write(b"a", 1)).await.expect("an outcome");
                lost.away.set(0);
                let second = store.change(1, step, &write(b"b", 1)).await.expect("an outcome");
                let tx = store.tx();
                for (key, outcome) in [(b"a", first), (b"b", second)] {
                    let there = tx.get(key).await.expect("read").is_some();
                    assert!(there || outcome != Outcome::Done, "done without effect: {key:?}");
                }
                // Who does not know of the first steps down; if he went on, only one of the two would be in force.
                assert_ne!(first, Outcome::Superseded, "nobody else was elected");
                let in_force = first == Outcome::Done || keeps;
                let right = if in_force { Outcome::Superseded } else { Outcome::Done };
                assert_eq!(second, right, "from the same version: {keeps}, {first:?}");
            });
        }
    }

    #[test]
    fn before_the_cluster_is_set_up_no_token_is_called_wrong() {
        glowfs_rt::real::run(|_| async move {
            let store = Store { engine: Rc::new(Memory::new()) };
            let e = store.user_of_token(&[7; 32]).await.expect_err("nothing is set up");
            assert!(e.status.is_retriable(), "{e}");
        });
    }
}
