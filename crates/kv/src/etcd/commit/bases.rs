//! What stands under keys that sums go to, and under the counter of stamps: remembered, and fetched where it is not.

use super::{Committer, READ_KEYS_MAX, Waiting};
use crate::Key;
use crate::etcd::api::{self, Op, Range, RangeAnswer, TxnAnswer};
use crate::etcd::plan::{self, Base};
use glowfs_types::{Error, Result, Status};
use std::collections::BTreeSet;

/// Sums remembered.
const BASES_MAX: usize = 8192;

impl Committer {
    /// Stamps count transactions here: the counter is set to at least `least`. For an engine that nobody else uses.
    pub async fn raise_stamps(&self, least: u64) -> Result<()> {
        if self.stamps().await? >= least {
            return Ok(());
        }
        let key = &self.space.stamps;
        let put = Op::Put(key.clone(), least.to_be_bytes().to_vec());
        let mut text = String::new();
        api::Txn { then: vec![put], ..api::Txn::default() }.json(&mut text);
        self.members.ask(api::TXN, &text).await?;
        self.state.borrow_mut().bases.remove(key);
        Ok(())
    }

    /// The counter of stamps.
    pub async fn stamps(&self) -> Result<u64> {
        let mut text = String::new();
        Range { key: self.space.stamps.clone(), ..Range::default() }.json(&mut text);
        let answer: RangeAnswer = self.parse(&self.members.ask(api::RANGE, &text).await?)?;
        let now = answer.kvs.first().and_then(|kv| kv.value.0.as_slice().try_into().ok());
        Ok(now.map_or(0, u64::from_be_bytes))
    }

    /// Fetches what a transaction needs to know: the own key, and bases that are not remembered.
    pub(super) async fn prepare(&self, batch: &[Waiting]) -> Result<()> {
        if self.state.borrow().own.is_none() {
            self.register().await?;
        }
        let mut missing: BTreeSet<Key> = BTreeSet::new();
        for w in batch {
            missing.extend(plan::sums(&w.commit).map(|k| self.space.full(k)));
            if plan::stamped(&w.commit) {
                missing.insert(self.space.stamps.clone());
            }
        }
        {
            let mut s = self.state.borrow_mut();
            if s.bases.len() + missing.len() > BASES_MAX {
                s.bases.clear();
            }
            missing.retain(|k| !s.bases.contains_key(k));
        }
        let missing: Vec<Key> = missing.into_iter().collect();
        for some in missing.chunks(READ_KEYS_MAX) {
            let read = |k: &Key| Op::Range(Range { key: k.clone(), ..Range::default() });
            let txn = api::Txn { then: some.iter().map(read).collect(), ..api::Txn::default() };
            let mut text = String::new();
            txn.json(&mut text);
            let body = self.members.ask(api::TXN, &text).await?;
            let answer: TxnAnswer = self.parse(&body)?;
            self.learn(some, &answer)?;
        }
        Ok(())
    }

    /// Remembers bases from an answer that has one range read for each key.
    pub(super) fn learn(&self, keys: &[Key], answer: &TxnAnswer) -> Result<()> {
        if answer.responses.len() != keys.len() {
            return Err(Error::new(Status::BadMessage, "etcd: wrong number of answers"));
        }
        let mut s = self.state.borrow_mut();
        for (key, response) in keys.iter().zip(&answer.responses) {
            let kv = response.response_range.as_ref().and_then(|r| r.kvs.first());
            let base = kv.map_or_else(Base::default, |kv| Base {
                value: Some(kv.value.0.clone()),
                version: kv.mod_revision.0,
            });
            s.bases.insert(key.clone(), base);
        }
        Ok(())
    }
}

pub(super) fn counter(base: &Base) -> u64 {
    let bytes = base.value.as_deref().and_then(|v| <[u8; 8]>::try_from(v).ok());
    bytes.map_or(0, u64::from_be_bytes)
}
