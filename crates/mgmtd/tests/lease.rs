//! The lease of the primary and changes, over an engine that is slow with the one or the other.
#![allow(missing_docs)]

mod common;
use common::*;
use glowfs_kv::{Engine, Key, RangePage, Value, Version};
use glowfs_rt::{BoxFuture, Rt, real};
use glowfs_types::routing::Role;
use glowfs_types::wire::kv::{Commit, Mutation};
use glowfs_types::wire::mgmtd::*;
use glowfs_types::wire::{Empty, method};
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

/// An engine that keeps commits waiting: renewals of the lease, and other changes.
struct Gates {
    rt: Rt,
    engine: Rc<dyn Engine>,
    shut: [Cell<bool>; 2],
    waiting: [Cell<bool>; 2],
}
const RENEWALS: usize = 0;
const CHANGES: usize = 1;

/// What mgmtd has of them.
struct Handle(Rc<Gates>);

impl Engine for Handle {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        self.0.engine.begin()
    }
    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        self.0.engine.get(version, keys)
    }
    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        self.0.engine.get_range(version, begin, end, limit, reverse)
    }
    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        let renews = commit
            .mutations
            .iter()
            .any(|m| matches!(m, Mutation::Put { key, .. } if key.starts_with(b"mgmtd/renewal")));
        let which = if renews { RENEWALS } else { CHANGES };
        let gates = self.0.clone();
        Box::pin(async move {
            while gates.shut[which].get() {
                gates.waiting[which].set(true);
                gates.rt.sleep(ms(5)).await;
            }
            gates.engine.commit(commit).await
        })
    }
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        self.0.engine.flush_barrier()
    }
}

/// A change that is stored in the gap between a lease that ran out and its renewal, which was on its way.
#[test]
fn a_change_that_outlived_the_lease_is_known_to_the_primary_that_is_revived() {
    real::run(|rt| async move {
        let mut w = World::new(&rt);
        let gates = Rc::new(Gates {
            rt: rt.clone(),
            engine: w.engine.clone(),
            shut: Default::default(),
            waiting: Default::default(),
        });
        w.engine = Rc::new(Handle(gates.clone()));
        let mut config = w.config(100);
        // From the end of a lease to the end of waiting for its renewal it is the period of renewals.
        (config.timing.primary_lease_ms, config.timing.primary_renew_ms) = (2000, 900);
        config.timing.node_lease_ms = 3000;
        let m = w.mgmtd_with(config).await;
        while !m.is_primary() {
            rt.sleep(ms(5)).await;
        }
        let conn = w.conn(&at(&m), ROOT_TOKEN).await.expect("root");
        gates.shut[RENEWALS].set(true);
        while !gates.waiting[RENEWALS].get() {
            rt.sleep(ms(5)).await;
        }
        gates.shut[CHANGES].set(true);
        let toml = "sync_chunks = 3\n".to_owned();
        let item = ConfigItem { version: ConfigVersion(0), role: Role::Storage, toml };
        let new = ClusterConfig { items: vec![item], ..ClusterConfig::default() };
        let (c, n) = (conn.clone(), new.clone());
        let change = rt.spawn(async move {
            c.call_msg::<_, ClusterConfig>(method::SET_CONFIG, &n, ms(10_000)).await
        });
        while !gates.waiting[CHANGES].get() || m.is_primary() {
            rt.sleep(ms(5)).await;
        }
        gates.shut[CHANGES].set(false);
        let e = change.await.expect_err("not primary any more");
        assert_eq!(e.status, Status::NotPrimary, "{e}");
        gates.shut[RENEWALS].set(false);
        while !m.is_primary() {
            rt.sleep(ms(5)).await;
        }
        let now: ClusterConfig =
            conn.call_msg(method::GET_CONFIG, &Empty {}, SECOND).await.expect("primary again");
        assert_eq!(now.items.len(), 1, "it is stored: {now:?}");
        assert_eq!(now.items[0].toml, new.items[0].toml);
        m.stop().await;
    });
}
