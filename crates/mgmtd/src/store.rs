//! The engine: loading the state, and changes that compare the primary's lease.

use crate::keys;
use crate::records::{
    ChainRecord, ClusterRecord, EpochRecord, Item, StoreRecord, TableRecord, UserRecord,
};
use glowfs_cluster::{Chain, LeaseRecord};
use glowfs_kv::{Engine, Transaction, dump, key_after, prefix_end};
use glowfs_types::routing::{NodeInfo, TargetInfo};
use glowfs_types::wire::mgmtd::{ClientSession, ConfigItem};
use glowfs_types::{Error, NodeId, Result, RoutingVersion, Status, TargetId};
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
    pub gone: Vec<Item<TargetId>>,
    pub chains: Vec<Item<Chain>>,
    pub tables: Vec<Item<TableRecord>>,
    pub stores: Vec<StoreRecord>,
    pub users: Vec<UserRecord>,
    pub configs: Vec<ConfigItem>,
    pub overrides: Vec<(NodeId, String)>,
    pub clients: Vec<ClientSession>,
}

/// What a commit did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is in force.
    Done,
    /// Another primary has been elected: step down.
    Superseded,
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
    /// Reads the primary's lease in a transaction that can replace it.
    pub async fn lease(&self) -> Result<(Transaction, Option<LeaseRecord>)> {
        let tx = self.tx();
        // One question: the lease may be short beside the way to the engine.
        let (epoch, renewal) = (keys::epoch(), keys::renewal());
        let mut found = tx.get_all(&[epoch.clone(), renewal.clone()]).await?.into_iter();
        let value = |v: Option<Option<Vec<u8>>>| v.flatten();
        let first =
            value(found.next()).map(|v| keys::decode::<EpochRecord>(&epoch, &v)).transpose()?;
        let second = value(found.next()).map(|v| keys::decode::<u64>(&renewal, &v)).transpose()?;
        let (epoch, renewal) = (first, second.unwrap_or(0));
        Ok((tx, epoch.map(|e| e.with_renewal(renewal))))
    }
    /// Writes the lease in that transaction. A renewal leaves the epoch's key alone, so it disturbs no change.
    pub async fn put_lease(
        &self,
        tx: Transaction,
        before: Option<&LeaseRecord>,
        record: &LeaseRecord,
    ) -> Result<()> {
        let new = EpochRecord::of(record);
        let changed = before.map(EpochRecord::of).as_ref() != Some(&new);
        if changed {
            tx.put(keys::epoch(), keys::encode(&new))?;
        }
        tx.put(keys::renewal(), keys::encode(&record.renewal))?;
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
        for _ in 0..ATTEMPTS {
            match self.try_change(epoch, routing, writes).await {
                // With an unknown outcome, the next attempt finds the new routing version in place, or writes again.
                Err(e)
                    if matches!(
                        e.status,
                        Status::Conflict | Status::TooOld | Status::CommitUnknown
                    ) =>
                {
                    last = e;
                }
                other => return other,
            }
        }
        Err(last)
    }
    async fn try_change(
        &self,
        epoch: u64,
        routing: Option<(RoutingVersion, RoutingVersion)>,
        writes: &Writes,
    ) -> Result<Outcome> {
        let tx = self.tx();
        let lease: Option<EpochRecord> = one(&tx, &keys::epoch()).await?;
        if lease.is_none_or(|l| l.epoch != epoch || l.holder == NodeId(0)) {
            return Ok(Outcome::Superseded);
        }
        if let Some((from, to)) = routing {
            let now: RoutingVersion = one(&tx, &keys::routing()).await?.unwrap_or_default();
            if now == to {
                // Only this primary can have written it. Wait until it is on disk.
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
async fn one<T: for<'b> minicbor::Decode<'b, ()>>(
    tx: &Transaction,
    key: &[u8],
) -> Result<Option<T>> {
    tx.get(key).await?.map(|v| keys::decode(key, &v)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_kv::Memory;

    #[test]
    fn before_the_cluster_is_set_up_no_token_is_called_wrong() {
        glowfs_rt::real::run(|_| async move {
            let store = Store { engine: Rc::new(Memory::new()) };
            let e = store.user_of_token(&[7; 32]).await.expect_err("nothing is set up");
            assert!(e.status.is_retriable(), "{e}");
        });
    }
}
