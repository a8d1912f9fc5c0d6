//! mgmtd on the real runtime, over an engine in memory, with storages that only heartbeat.
#![allow(missing_docs)]

use crate::common::*;
use glowfs_rt::{Rt, real};
use glowfs_types::routing::{NodeStatus, PublicState, Role};
use glowfs_types::wire::Empty;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::*;
use std::rc::Rc;

/// A cluster of one mgmtd and `n` storages whose chains all serve.
async fn cluster(
    rt: &Rt,
    n: u64,
    replicas: u32,
) -> (World, glowfs_mgmtd::Running, Vec<FakeStorage>) {
    let w = World::new(rt);
    let m = w.mgmtd(100).await;
    let storages: Vec<_> =
        (1..=n).map(|i| FakeStorage::start(&w, i, at(&m), Rc::default())).collect();
    for s in &storages {
        s.agent.ready().await;
    }
    // Stores register in the background.
    rt.sleep(ms(100)).await;
    create_table(&storages[0].agent, replicas, 6).await;
    let took =
        until(rt, &storages[0].agent, ms(500), "newborn chains serve", |r| all_chains(r, healthy))
            .await;
    println!("newborn chains serve after {took:?}");
    (w, m, storages)
}

#[test]
fn newborn_chains_serve_at_once() {
    real::run(|rt| async move {
        let (_w, m, storages) = cluster(&rt, 3, 3).await;
        assert!(storages.iter().all(|s| s.agent.lease_valid()));
        assert!(storages[0].agent.signing_key().is_some());
        let again = create_table(&storages[0].agent, 3, 6).await;
        assert_eq!(again.version, 1, "idempotent");
        assert_eq!(storages[0].agent.routing().chains.len(), 6);
        m.stop().await;
    });
}

#[test]
fn a_killed_storage_is_noticed_and_returns() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 3).await;
        let gone = storages.remove(2);
        let node = gone.node;
        let disk = gone.kill();
        let watch = storages[0].agent.clone();
        let took = until(&rt, &watch, ms(2200), "the chains go on with two", |r| {
            all_chains(r, |c| {
                c.activated == c.version
                    && c.serving().count() == 2
                    && c.members[2].node == node
                    && c.members[2].state == PublicState::Offline
            })
        })
        .await;
        println!("fail-over after {took:?}");
        assert_eq!(watch.routing().nodes[&node].status, NodeStatus::Failed);
        let back = FakeStorage::start(&w, 3, at(&m), disk);
        let took =
            until(&rt, &watch, ms(3000), "all serve again", |r| all_chains(r, healthy)).await;
        println!("back after {took:?}");
        // What came back was brought up to date: it is last in every chain.
        assert!(all_chains(&watch.routing(), |c| c.members[2].node == back.node));
        m.stop().await;
    });
}

#[test]
fn a_storage_that_returns_before_anybody_noticed_is_not_trusted() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 2, 2).await;
        let watch = storages[0].agent.clone();
        let before = watch.routing();
        let disk = storages.remove(1).kill();
        let back = FakeStorage::start(&w, 2, at(&m), disk);
        back.fake.syncs.set(false);
        rt.timeout(SECOND, back.agent.ready()).await.expect("answered");
        // Whoever has a lease knows that it does not serve.
        let told = back.agent.routing();
        for c in told.chains.values() {
            assert!(c.version > before.chains[&c.id].version);
            assert!(c.serving().all(|m| m.node == NodeId(1)), "{c:?}");
        }
        back.fake.syncs.set(true);
        back.agent.report_now();
        m.stop().await;
    });
}

#[test]
fn leaving_takes_effect_at_once_and_a_clean_return_serves() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 2, 1).await;
        let watch = storages[0].agent.clone();
        let gone = storages.remove(1);
        let node = gone.node;
        let disk = gone.stop().await;
        let lone = move |c: &glowfs_types::routing::ChainInfo| c.members[0].node == node;
        until(&rt, &watch, ms(500), "its chains wait", |r| {
            all_chains(r, |c| !lone(c) || c.members[0].state == PublicState::LastSrv)
        })
        .await;
        let _back = FakeStorage::start(&w, 2, at(&m), disk);
        until(&rt, &watch, ms(1000), "its chains serve", |r| all_chains(r, healthy)).await;
        m.stop().await;
    });
}

#[test]
fn all_killed_and_restarted_serve_again() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 3, 3).await;
        let disks: Vec<_> = storages.into_iter().map(FakeStorage::kill).collect();
        rt.sleep(ms(2500)).await;
        let storages: Vec<_> = disks
            .into_iter()
            .enumerate()
            .map(|(i, d)| {
                let s = FakeStorage::start(&w, i as u64 + 1, at(&m), d);
                s.fake.used.set(1);
                s
            })
            .collect();
        until(&rt, &storages[0].agent, ms(4000), "all serve", |r| all_chains(r, healthy)).await;
        m.stop().await;
    });
}

#[test]
fn a_standby_redirects_and_takes_over() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        let first = w.mgmtd(100).await;
        while !first.is_primary() {
            rt.sleep(ms(5)).await;
        }
        let second = w.mgmtd(101).await;
        rt.sleep(ms(300)).await;
        assert!(!second.is_primary());
        // The agent knows the standby first.
        let both = [at(&second), at(&first)].concat();
        let s = FakeStorage::start(&w, 1, both, Rc::default());
        rt.timeout(SECOND, s.agent.ready()).await.expect("redirected");
        create_table_when_registered(&rt, &s).await;
        until(&rt, &s.agent, ms(500), "serving", |r| all_chains(r, healthy)).await;
        let version = s.agent.routing().version;
        first.crash().await;
        let began = rt.now();
        while !second.is_primary() {
            assert!(s.agent.lease_valid(), "the node's lease outlives the change of the primary");
            assert!(rt.now().since(began) < ms(3000), "no take-over");
            rt.sleep(ms(5)).await;
        }
        println!("take-over after {:?}", rt.now().since(began));
        rt.sleep(ms(2500)).await;
        assert!(s.agent.lease_valid());
        assert!(s.agent.routing().version >= version);
        assert!(all_chains(&s.agent.routing(), healthy), "nobody was declared dead");
        second.stop().await;
    });
}

/// A node that the primary before granted a longer lease than this one grants, and that hears of nobody since, serves until that is over.
#[test]
fn leases_of_a_primary_that_granted_longer_ones_are_waited_for() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        let mut config = w.config(100);
        config.timing.node_lease_ms = 4000;
        let first = w.mgmtd_with(config).await;
        let s = FakeStorage::start(&w, 1, at(&first), Rc::default());
        rt.timeout(SECOND, s.agent.ready()).await.expect("primary");
        first.crash().await;
        let second = w.mgmtd(101).await;
        let (began, mut dead) = (rt.now(), None);
        while dead.is_none() {
            assert!(rt.now().since(began) < ms(15_000), "never declared dead");
            if second.declares_dead(s.node) {
                assert!(!s.agent.lease_valid(), "declared dead while it serves");
                dead = Some(rt.now().since(began));
            }
            rt.sleep(ms(5)).await;
        }
        println!("declared dead after {dead:?}");
        second.stop().await;
    });
}

/// Loading the state may take longer than the lease of the primary, which is renewed meanwhile.
#[test]
fn a_primary_keeps_its_lease_while_it_loads_from_a_slow_engine() {
    real::run(|rt| async move {
        let mut w = World::new(&rt);
        w.engine = Rc::new(Slow { rt: rt.clone(), engine: w.engine.clone(), delay: ms(110) });
        let mut config = w.config(100);
        config.timing.primary_lease_ms = 900;
        let mgmtd = w.mgmtd_with(config).await;
        let began = rt.now();
        while !mgmtd.is_primary() {
            assert!(rt.now().since(began) < ms(15_000), "never primary");
            rt.sleep(ms(20)).await;
        }
        let began = rt.now();
        while rt.now().since(began) < ms(2000) {
            assert!(mgmtd.is_primary(), "lost it again after {:?}", rt.now().since(began));
            rt.sleep(ms(20)).await;
        }
        mgmtd.stop().await;
    });
}

async fn create_table_when_registered(rt: &Rt, s: &FakeStorage) {
    rt.sleep(ms(100)).await;
    create_table(&s.agent, 1, 2).await;
}

#[test]
fn tokens_users_and_rights() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        let m = w.mgmtd(100).await;
        while !m.is_primary() {
            rt.sleep(ms(5)).await;
        }
        let e = w.conn(&at(&m), "wrong").await.err().expect("a wrong token");
        assert_eq!(e.status, Status::BadToken, "{e}");
        let root = w.conn(&at(&m), ROOT_TOKEN).await.expect("root");
        assert!(root.peer().identity.root);
        let add = UserAdd {
            user: UserInfo {
                user: UserId(1000),
                name: "ann".into(),
                groups: vec![1000],
                root: false,
                admin: false,
                service: false,
            },
            only_new: false,
            token: None,
        };
        let added: UserAddReply =
            root.call_msg(method::USER_ADD, &add, SECOND).await.expect("added");
        assert_eq!(added.token.len(), 64);
        let ann = w.conn(&at(&m), &added.token).await.expect("ann");
        let e = ann.call_msg::<_, UserList>(method::USER_LIST, &Empty {}, SECOND).await;
        assert_eq!(e.expect_err("not an administrator").status, Status::AccessDenied);
        let users: UserList =
            root.call_msg(method::USER_LIST, &Empty {}, SECOND).await.expect("list");
        assert_eq!(users.users.len(), 2);
        // A new token replaces the old one.
        let _: UserAddReply = root.call_msg(method::USER_ADD, &add, SECOND).await.expect("again");
        assert!(w.conn(&at(&m), &added.token).await.is_err(), "the old token is void");
        let only_new = UserAdd { only_new: true, ..add };
        let e = root.call_msg::<_, UserAddReply>(method::USER_ADD, &only_new, SECOND).await;
        assert_eq!(e.expect_err("he is there").status, Status::Exists);
        // An attempt that is repeated, since its answer was lost, is known by its token.
        let bob = UserInfo { user: UserId(1001), name: "bob".into(), ..only_new.user.clone() };
        let named = |user: &UserInfo, token: &str| UserAdd {
            user: user.clone(),
            only_new: true,
            token: Some(token.to_owned()),
        };
        let add = async |add: UserAdd| {
            root.call_msg::<_, UserAddReply>(method::USER_ADD, &add, SECOND).await
        };
        let token = "0123456789abcdef".repeat(4);
        for _ in 0..2 {
            assert_eq!(
                add(named(&bob, &token)).await.expect("bob is new, or the same").token,
                token
            );
        }
        w.conn(&at(&m), &token).await.expect("bob's token");
        let cleo = UserInfo { user: UserId(1002), name: "cleo".into(), ..bob.clone() };
        for bad in [token.as_str(), "secret", &"z".repeat(64)] {
            let e = add(named(&cleo, bad)).await.expect_err("bob's, or one that may be guessed");
            assert_eq!(e.status, Status::InvalidArgument, "{e}");
        }
        let e = add(named(&UserInfo { admin: true, ..bob.clone() }, &token)).await;
        assert_eq!(e.expect_err("he is there, and another").status, Status::Exists);
        let e = add(named(&bob, &"0".repeat(64))).await.expect_err("he is there");
        assert_eq!(e.status, Status::Exists);
        let gone = UserRemove { user: UserId(1001) };
        let _: Empty = root.call_msg(method::USER_REMOVE, &gone, SECOND).await.expect("removed");
        // What is not named stays, also the token.
        let call = async |c: UserChange| {
            root.call_msg::<_, UserChangeReply>(method::USER_CHANGE, &c, SECOND).await
        };
        let ann = UserChange { user: UserId(1000), ..UserChange::default() };
        let first = call(UserChange { new_token: true, ..ann.clone() }).await.expect("a token");
        assert_eq!(first.user, only_new.user);
        let token = first.token.expect("a token");
        let changed = call(UserChange { admin: Some(true), ..ann.clone() }).await.expect("changed");
        assert_eq!(changed.token, None);
        assert_eq!(changed.user, UserInfo { admin: true, ..only_new.user.clone() });
        let changed =
            call(UserChange { groups: Some(vec![5, 1000]), ..ann.clone() }).await.expect("changed");
        assert!(changed.user.admin && changed.user.groups == [5, 1000], "{changed:?}");
        let conn = w.conn(&at(&m), &token).await.expect("the token is good still");
        let listed = conn.call_msg::<_, UserList>(method::USER_LIST, &Empty {}, SECOND).await;
        assert_eq!(listed.expect("an administrator").users.len(), 2);
        // Made by who asks, so that a lost answer loses nothing: repeated, it is known.
        let own = "0123456789abcdef".repeat(4);
        let with = |token: &str| UserChange {
            new_token: true,
            token: Some(token.to_owned()),
            ..ann.clone()
        };
        for _ in 0..2 {
            let given = call(with(&own)).await.expect("a token of hers");
            assert_eq!(given.token.as_deref(), Some(own.as_str()));
        }
        w.conn(&at(&m), &own).await.expect("it is good");
        assert!(w.conn(&at(&m), &token).await.is_err(), "the one before is void");
        let token = own;
        let refused = [
            (with("secret"), Status::InvalidArgument),
            (UserChange { user: UserId(0), ..with(&token) }, Status::InvalidArgument),
            (UserChange { user: UserId(4), ..ann.clone() }, Status::NotFound),
            (UserChange { name: Some("a\nb".into()), ..ann }, Status::InvalidArgument),
            (
                UserChange { user: UserId(0), root: Some(false), ..UserChange::default() },
                Status::InvalidArgument,
            ),
        ];
        for (change, status) in refused {
            assert_eq!(
                call(change.clone()).await.expect_err("refused").status,
                status,
                "{change:?}"
            );
        }
        m.stop().await;
        // Users outlive the instance.
        let m = w.mgmtd(101).await;
        while !m.is_primary() {
            rt.sleep(ms(5)).await;
        }
        assert!(w.conn(&at(&m), ROOT_TOKEN).await.is_ok());
        let ann = w.conn(&at(&m), &token).await.expect("with the token");
        let listed = ann.call_msg::<_, UserList>(method::USER_LIST, &Empty {}, SECOND).await;
        assert_eq!(listed.expect("an administrator still").users.len(), 2);
        let remove = async |uid| {
            let ask = UserRemove { user: UserId(uid) };
            ann.call_msg::<_, Empty>(method::USER_REMOVE, &ask, SECOND).await
        };
        assert_eq!(remove(0).await.expect_err("root").status, Status::InvalidArgument);
        remove(1000).await.expect("herself");
        assert_eq!(remove(1000).await.expect_err("gone").status, Status::NotFound);
        assert!(w.conn(&at(&m), &token).await.is_err(), "the token is void");
        m.stop().await;
    });
}

#[test]
fn silent_clients_are_listed_as_dead() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        let mut config = w.config(100);
        config.timing.client_session_ms = 1500;
        let m = w.mgmtd_with(config).await;
        while !m.is_primary() {
            rt.sleep(ms(5)).await;
        }
        let conn = w.conn(&at(&m), ROOT_TOKEN).await.expect("root");
        let session = |id| ClientSession {
            client: ClientId(id),
            role: Some(Role::Mount),
            hostname: "h".into(),
            host: HostId(1),
            pid: 1,
            description: "/mnt".into(),
            release: "0".into(),
            started_ns: 1,
            user: UserId(77),
            last_seen_ns: 0,
            extends: false,
        };
        for _ in 0..6 {
            let _: ClientSessionReply =
                conn.call_msg(method::CLIENT_SESSION, &session(1), SECOND).await.expect("session");
            rt.sleep(ms(400)).await;
        }
        let _: ClientSessionReply =
            conn.call_msg(method::CLIENT_SESSION, &session(2), SECOND).await.expect("session");
        let _: Empty = conn
            .call_msg(method::CLIENT_GOODBYE, &ClientGoodbye { client: ClientId(2) }, SECOND)
            .await
            .expect("goodbye");
        let list: ClientList =
            conn.call_msg(method::LIST_CLIENTS, &Empty {}, SECOND).await.expect("list");
        assert_eq!(list.clients.len(), 1);
        assert_eq!(list.clients[0].user, UserId(0), "filled in by mgmtd");
        assert_eq!(list.dead, vec![ClientId(2)]);
        rt.sleep(ms(2000)).await;
        let list: ClientList =
            conn.call_msg(method::LIST_CLIENTS, &Empty {}, SECOND).await.expect("list");
        assert!(list.clients.is_empty() && list.dead.contains(&ClientId(1)));
        let e = conn
            .call_msg::<_, ClientSessionReply>(method::CLIENT_SESSION, &session(1), SECOND)
            .await
            .expect_err("it is dead");
        assert_eq!(e.status, Status::SessionEnded);
        m.stop().await;
    });
}

#[test]
fn configuration_is_versioned_and_checked() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        let m = w.mgmtd(100).await;
        while !m.is_primary() {
            rt.sleep(ms(5)).await;
        }
        let conn = w.conn(&at(&m), ROOT_TOKEN).await.expect("root");
        let set = |version, toml: &str| ClusterConfig {
            items: vec![ConfigItem {
                version: ConfigVersion(version),
                role: Role::Storage,
                toml: toml.into(),
            }],
            ..ClusterConfig::default()
        };
        let call = async |c: ClusterConfig| {
            conn.call_msg::<_, ClusterConfig>(method::SET_CONFIG, &c, SECOND).await
        };
        assert_eq!(
            call(set(0, "= nonsense")).await.expect_err("no TOML").status,
            Status::InvalidArgument
        );
        assert_eq!(
            call(set(0, "sync_byte_per_s = 1")).await.expect_err("no such key").status,
            Status::InvalidArgument
        );
        assert_eq!(
            call(set(0, "sync_chunks = 1")).await.expect("set").items[0].version,
            ConfigVersion(1)
        );
        assert_eq!(
            call(set(0, "sync_chunks = 2")).await.expect_err("old base").status,
            Status::Conflict
        );
        assert_eq!(
            call(set(1, "sync_chunks = 3")).await.expect("set").items[0].version,
            ConfigVersion(2)
        );
        m.stop().await;
    });
}
