//! The lease of the primary and changes, over an engine that is slow with the one or the other.
#![allow(missing_docs)]

use crate::common::operate::*;
use crate::common::*;
use glowfs_kv::{Engine, Key, RangePage, Transaction, Value, Version};
use glowfs_mgmtd::Running;
use glowfs_rt::{BoxFuture, Rt, real};
use glowfs_types::routing::{PublicState, Role, RoutingInfo};
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
    /// What waited for the gate is refused.
    refuses: [Cell<bool>; 2],
    /// How often somebody was let through.
    passed: [Cell<u32>; 2],
    /// So many more changes pass, and then that gate shuts.
    passes: Cell<Option<u32>>,
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
        if commit.mutations.is_empty() {
            // The end of a reading.
            return self.0.engine.commit(commit);
        }
        let which = if renews { RENEWALS } else { CHANGES };
        let gates = self.0.clone();
        if let Some(left) = gates.passes.get().filter(|_| which == CHANGES) {
            gates.shut[CHANGES].set(left == 0);
            gates.passes.set(left.checked_sub(1));
        }
        Box::pin(async move {
            while gates.shut[which].get() {
                gates.waiting[which].set(true);
                gates.rt.sleep(ms(5)).await;
            }
            if gates.refuses[which].get() {
                return Err(Status::Disconnected.into());
            }
            gates.passed[which].set(gates.passed[which].get() + 1);
            gates.engine.commit(commit).await
        })
    }
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        self.0.engine.flush_barrier()
    }
}

/// A world over such an engine.
fn gated(rt: &Rt) -> (World, Rc<Gates>) {
    let mut w = World::new(rt);
    let gates = Rc::new(Gates {
        rt: rt.clone(),
        engine: w.engine.clone(),
        shut: Default::default(),
        waiting: Default::default(),
        refuses: Default::default(),
        passed: Default::default(),
        passes: Cell::default(),
    });
    w.engine = Rc::new(Handle(gates.clone()));
    (w, gates)
}

/// How many keys of a kind the engine has.
async fn count(w: &World, kind: &str) -> usize {
    let tx = Transaction::new(w.engine.clone());
    let (begin, end) = (format!("mgmtd/{kind}/"), format!("mgmtd/{kind}0"));
    let page = tx.get_range_snapshot(begin.as_bytes(), end.as_bytes(), 10_000, false).await;
    page.expect("read").entries.len()
}

impl Gates {
    /// An mgmtd over such an engine.
    async fn mgmtd(rt: &Rt) -> (Rc<Gates>, World, Running) {
        let (w, gates) = gated(rt);
        let mut config = w.config(100);
        // From the end of a lease to the end of waiting for its renewal it is the period of renewals.
        (config.timing.primary_lease_ms, config.timing.primary_renew_ms) = (2000, RENEW_MS);
        (config.timing.node_lease_ms, config.timing.slow_pause_ms) = (3000, PAUSE_MS);
        let m = w.mgmtd_with(config).await;
        (gates, w, m)
    }
    /// The same, with a chain of two.
    async fn cluster(rt: &Rt) -> (Rc<Gates>, World, Running, Vec<FakeStorage>) {
        let (gates, w, m) = Self::mgmtd(rt).await;
        let storages: Vec<_> =
            (1..=2).map(|i| FakeStorage::start(&w, i, at(&m), Rc::default())).collect();
        for s in &storages {
            s.agent.ready().await;
        }
        rt.sleep(ms(200)).await;
        create_table(&storages[0].agent, 2, 1).await;
        until(rt, &storages[0].agent, BOUND, "serving", |r| all_chains(r, healthy)).await;
        (gates, w, m, storages)
    }
    /// Shuts a gate and waits until somebody stands before it.
    async fn shut(&self, which: usize) {
        self.waiting[which].set(false);
        self.shut[which].set(true);
        while !self.waiting[which].get() {
            self.rt.sleep(ms(5)).await;
        }
    }
    async fn until(&self, m: &Running, primary: bool) {
        let end = self.rt.now() + BOUND;
        while m.is_primary() != primary {
            assert!(self.rt.now() < end, "primary: {}", !primary);
            self.rt.sleep(ms(5)).await;
        }
    }
}
const RENEW_MS: u64 = 900;
/// Longer than a lease of a node: when the leases from before a change are over, its chain is looked at once more.
const PAUSE_MS: u64 = 4000;

/// The end of a pause is said once. It was lost if it came while the lease had run out, and the renewal was on its way; then the member waited until
/// something else happened to its chain.
#[test]
fn a_pause_that_ends_while_the_lease_has_run_out_is_over_for_the_primary_that_is_revived() {
    real::run(|rt| async move {
        let (gates, w, m, mut storages) = Gates::cluster(&rt).await;
        let watch = storages[0].agent.clone();
        let disk = storages.pop().expect("two").kill();
        let back = FakeStorage::start(&w, 2, at(&m), disk);
        back.fake.syncs.set(false);
        let of = |r: &RoutingInfo, state| {
            all_chains(r, |c| c.members.iter().any(|m| m.node == NodeId(2) && m.state == state))
        };
        until(&rt, &watch, BOUND, "syncing", |r| of(r, PublicState::Syncing)).await;
        let passes = async |n| {
            let before = gates.passed[RENEWALS].get();
            while gates.passed[RENEWALS].get() < before + n {
                rt.sleep(ms(5)).await;
            }
        };
        // Two renewals are let through from here on. The third comes after 2.7 s and is waited for until 4.7 s have passed, and the lease lasts until 3.8 s.
        passes(1).await;
        rt.sleep(ms(250)).await;
        let chain = watch.routing().chains.values().next().cloned().expect("a chain");
        let target = chain.members.iter().find(|m| m.node == NodeId(2)).expect("a member").target;
        too_slow(&watch, &chain, target).await;
        let paused = rt.now();
        until(&rt, &watch, BOUND, "waiting", |r| of(r, PublicState::Waiting)).await;
        passes(2).await;
        gates.shut(RENEWALS).await;
        gates.until(&m, false).await;
        back.fake.syncs.set(true);
        rt.sleep((paused + ms(PAUSE_MS + 100)).since(rt.now())).await;
        assert!(!m.is_primary());
        gates.shut[RENEWALS].set(false);
        until(&rt, &watch, BOUND, "up to date", |r| all_chains(r, healthy)).await;
        m.stop().await;
    });
}

/// What a change was to put in force that failed is looked at again, also if the lease had run out by then: a node that had died stayed in its chain.
#[test]
fn a_change_that_failed_while_the_lease_had_run_out_is_made_by_the_primary_that_is_revived() {
    real::run(|rt| async move {
        let (gates, _w, m, mut storages) = Gates::cluster(&rt).await;
        let watch = storages[0].agent.clone();
        storages.pop().expect("two").kill();
        // That it is dead.
        gates.shut(CHANGES).await;
        gates.shut(RENEWALS).await;
        gates.until(&m, false).await;
        gates.refuses[CHANGES].set(true);
        gates.shut[CHANGES].set(false);
        rt.sleep(ms(50)).await;
        assert!(!m.is_primary());
        gates.refuses[CHANGES].set(false);
        gates.shut[RENEWALS].set(false);
        until(&rt, &watch, BOUND, "without it", |r| {
            all_chains(r, |c| c.serving().count() == 1 && c.activated == c.version)
        })
        .await;
        m.stop().await;
    });
}

/// A change that is stored in the gap between a lease that ran out and its renewal, which was on its way.
#[test]
fn a_change_that_outlived_the_lease_is_known_to_the_primary_that_is_revived() {
    real::run(|rt| async move {
        let (gates, w, m) = Gates::mgmtd(&rt).await;
        gates.until(&m, true).await;
        let conn = w.conn(&at(&m), ROOT_TOKEN).await.expect("root");
        gates.shut(RENEWALS).await;
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
        assert_eq!(e.status, Status::CommitUnknown, "by NotPrimary it would be repeated: {e}");
        gates.shut[RENEWALS].set(false);
        gates.until(&m, true).await;
        let now: ClusterConfig =
            conn.call_msg(method::GET_CONFIG, &Empty {}, SECOND).await.expect("primary again");
        assert_eq!(now.items.len(), 1, "it is stored: {now:?}");
        assert_eq!(now.items[0].toml, new.items[0].toml);
        m.stop().await;
    });
}

/// A call that was in work for all of a time without the engine comes back when this instance is primary again: it made that one step down, too.
#[test]
fn a_change_of_a_former_epoch_does_not_end_the_present_one() {
    real::run(|rt| async move {
        let (gates, w, m) = Gates::mgmtd(&rt).await;
        gates.until(&m, true).await;
        while count(&w, "node").await == 0 {
            rt.sleep(ms(5)).await;
        }
        let (conn, before) = (w.conn(&at(&m), ROOT_TOKEN).await.expect("root"), epoch(&w).await);
        gates.waiting[CHANGES].set(false);
        gates.shut[CHANGES].set(true);
        let late = rt.spawn(async move {
            let limit = ms(60_000);
            conn.call_msg::<_, ClientSessionReply>(method::CLIENT_SESSION, &session(), limit).await
        });
        while !gates.waiting[CHANGES].get() {
            rt.sleep(ms(5)).await;
        }
        gates.refuses[RENEWALS].set(true);
        gates.until(&m, false).await;
        gates.refuses[RENEWALS].set(false);
        gates.until(&m, true).await;
        assert!(epoch(&w).await > before);
        gates.shut[CHANGES].set(false);
        let e = late.await.expect_err("it was of the former epoch");
        assert_eq!(e.status, Status::NotPrimary, "{e}");
        assert!(m.is_primary());
        m.stop().await;
    });
}

/// The chains of a table that the primary did not lay to its end stayed for ever: the client lays it again by itself, with other chains, and nobody moved the
/// members of the first ones, for no table lists them.
#[test]
fn a_table_that_was_cut_off_leaves_no_chains_behind() {
    const CHAINS: u32 = 300;
    real::run(|rt| async move {
        let (w, gates) = gated(&rt);
        let first = w.mgmtd(100).await;
        while !first.is_primary() {
            rt.sleep(ms(5)).await;
        }
        let second = w.mgmtd(101).await;
        let both = [at(&first), at(&second)].concat();
        let storages: Vec<_> =
            (1..=3).map(|i| FakeStorage::start(&w, i, both.clone(), Rc::default())).collect();
        for s in &storages {
            s.agent.ready().await;
        }
        rt.sleep(ms(300)).await;
        let create = CreateTable {
            table: ChainTableId(1),
            replicas: 3,
            chains: CHAINS,
            description: "test".into(),
            dry_run: false,
        };
        let conn = w.conn(&at(&first), ROOT_TOKEN).await.expect("root");
        gates.passes.set(Some(1));
        let cut_off = rt.spawn({
            let (conn, create) = (conn.clone(), create.clone());
            async move {
                conn.call_msg::<_, CreateTableReply>(method::CREATE_TABLE, &create, ms(10_000))
                    .await
            }
        });
        while !gates.waiting[CHANGES].get() {
            rt.sleep(ms(5)).await;
        }
        let laid = count(&w, "chain").await;
        assert!(0 < laid && laid < CHAINS as usize, "{laid} chains when it is cut off");
        assert!(storages[0].agent.routing().chains.is_empty(), "nobody knows of them");
        // What it still has under way is of a former epoch when it gets to the engine.
        let before = epoch(&w).await;
        first.crash().await;
        while epoch(&w).await == before {
            rt.sleep(ms(5)).await;
        }
        gates.passes.set(None);
        gates.shut[CHANGES].set(false);
        cut_off.await.expect_err("the primary died");
        while !second.is_primary() {
            rt.sleep(ms(5)).await;
        }
        assert_eq!((count(&w, "chain").await, count(&w, "target").await), (0, 0));
        let conn = w.conn(&at(&second), ROOT_TOKEN).await.expect("root");
        let _: CreateTableReply =
            conn.call_msg(method::CREATE_TABLE, &create, ms(10_000)).await.expect("laid");
        let watch = &storages[0].agent;
        let whole = |r: &RoutingInfo| {
            r.chains.len() == CHAINS as usize
                && r.tables.len() == 1
                && r.chains.keys().all(|id| r.tables[0].chains.contains(id))
                && all_chains(r, healthy)
        };
        until(&rt, watch, ms(30_000), "laid, once", whole).await;
        assert_eq!(count(&w, "target").await, 3 * CHAINS as usize);
        // The next primary finds all of it.
        second.stop().await;
        let third = w.mgmtd(102).await;
        while !third.is_primary() {
            rt.sleep(ms(5)).await;
        }
        assert_eq!(count(&w, "chain").await, CHAINS as usize);
        third.stop().await;
    });
}

fn session() -> ClientSession {
    ClientSession {
        client: ClientId(5),
        role: Some(Role::Mount),
        hostname: String::new(),
        host: HostId(1),
        pid: 1,
        description: String::new(),
        release: String::new(),
        started_ns: 1,
        user: UserId(0),
        last_seen_ns: 0,
        extends: false,
    }
}

/// A primary that takes a client for dead after 1.5 s.
async fn impatient(w: &World) -> Running {
    let mut config = w.config(100);
    config.timing.client_session_ms = 1500;
    let m = w.mgmtd_with(config).await;
    while !m.is_primary() {
        w.rt.sleep(ms(5)).await;
    }
    m
}

/// A client that was heard just while its end was being stored was told that it lives, and was ended all the same.
#[test]
fn a_client_of_which_the_end_is_being_stored_is_not_told_that_it_lives() {
    real::run(|rt| async move {
        for refused in [false, true] {
            let (w, gates) = gated(&rt);
            let m = impatient(&w).await;
            let conn = w.conn(&at(&m), ROOT_TOKEN).await.expect("root");
            let extend = async |s: &ClientSession| {
                let answer =
                    conn.call_msg::<_, ClientSessionReply>(method::CLIENT_SESSION, s, SECOND).await;
                answer.map(|_| ()).map_err(|e| e.status)
            };
            extend(&session()).await.expect("opened");
            gates.shut[CHANGES].set(true);
            while !gates.waiting[CHANGES].get() {
                rt.sleep(ms(5)).await;
            }
            let extends = ClientSession { extends: true, ..session() };
            let opens = async {
                rt.sleep(ms(300)).await;
                gates.refuses[CHANGES].set(refused);
                gates.shut[CHANGES].set(false);
            };
            let (told, ()) = glowfs_rt::sync::join(extend(&extends), opens).await;
            gates.refuses[CHANGES].set(false);
            match refused {
                false => assert_eq!(told, Err(Status::SessionEnded)),
                // What was not stored was not known to be refused by the engine: another primary may say what is true.
                true => assert!(told.is_ok() || told.is_err_and(|s| s.is_retriable()), "{told:?}"),
            }
            m.stop().await;
        }
    });
}

/// A client that was silent for too long was heard again, and told that it lives on, while others had the turn to change the records.
#[test]
fn a_client_that_was_told_that_it_lives_is_not_ended() {
    real::run(|rt| async move {
        let (w, gates) = gated(&rt);
        let m = impatient(&w).await;
        let conn = w.conn(&at(&m), ROOT_TOKEN).await.expect("root");
        let extend = |s: ClientSession| {
            let conn = conn.clone();
            async move {
                conn.call_msg::<_, ClientSessionReply>(method::CLIENT_SESSION, &s, SECOND).await
            }
        };
        extend(session()).await.expect("opened");
        gates.shut[CHANGES].set(true);
        let item = ConfigItem {
            version: ConfigVersion(0),
            role: Role::Storage,
            toml: "sync_chunks = 3\n".into(),
        };
        let new = ClusterConfig { items: vec![item], ..ClusterConfig::default() };
        let change =
            rt.spawn({
                let conn = conn.clone();
                async move {
                    conn.call_msg::<_, ClusterConfig>(method::SET_CONFIG, &new, ms(5000)).await
                }
            });
        rt.sleep(ms(1800)).await;
        let extends = ClientSession { extends: true, ..session() };
        extend(extends.clone()).await.expect("it lives");
        gates.shut[CHANGES].set(false);
        change.await.expect("changed");
        rt.sleep(ms(300)).await;
        extend(extends).await.expect("it lives on");
        m.stop().await;
    });
}
