//! Very many clients: they are listed, however long what they say of themselves is, and one user leaves room for others.

use crate::common::*;
use glowfs_kv::Transaction;
use glowfs_rt::real;
use glowfs_types::routing::Role;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::wire::{Empty, method};
use glowfs_types::*;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Sessions of one transaction.
const PART: u64 = 100;
/// Sessions of one user, at most.
const USERS_CLIENTS_MAX: u64 = 25_000;
const ANN: UserId = UserId(1000);

fn session(id: u64, text: &str) -> ClientSession {
    ClientSession {
        client: ClientId(u128::from(id)),
        role: Some(Role::Mount),
        hostname: text.into(),
        host: HostId(1),
        pid: 1,
        description: text.into(),
        release: text.into(),
        started_ns: 1,
        user: ANN,
        last_seen_ns: 0,
        extends: false,
    }
}

/// Clients 1 to `count` as a release without bounds has stored them.
async fn store(w: &World, count: u64, text: &str) {
    for first in (1..=count).step_by(PART as usize) {
        let tx = Transaction::new(w.engine.clone());
        for id in first..(first + PART).min(count + 1) {
            let key = [b"mgmtd/client/".as_slice(), &u128::from(id).to_be_bytes()].concat();
            let mut value = vec![1];
            value.extend(minicbor::to_vec(session(id, text)).expect("CBOR"));
            tx.put(key, value).expect("small");
        }
        tx.commit(false).await.expect("stored");
    }
}

async fn primary(w: &World) -> glowfs_mgmtd::Running {
    let m = w.mgmtd(100).await;
    while !m.is_primary() {
        w.rt.sleep(ms(5)).await;
    }
    m
}

/// A connection of a new user.
async fn user(w: &World, m: &glowfs_mgmtd::Running, user: UserId) -> Rc<glowfs_net::Conn> {
    w.conn(&at(m), &token(w, m, user).await).await.expect("a connection")
}

/// The token of a new user.
async fn token(w: &World, m: &glowfs_mgmtd::Running, user: UserId) -> String {
    let root = w.conn(&at(m), ROOT_TOKEN).await.expect("root");
    let user = UserInfo {
        user,
        name: format!("user-{user}"),
        groups: vec![100],
        root: false,
        admin: false,
        service: false,
    };
    let add = UserAdd { user, only_new: true, token: None };
    let added: UserAddReply = root.call_msg(method::USER_ADD, &add, SECOND).await.expect("added");
    added.token
}

/// However many of a user's clients end at the same time: others' do so too, and a node joins meanwhile, for which chains are settled.
#[test]
fn very_many_goodbyes_hold_up_nobody() {
    const GOODBYES: u64 = 6000;
    /// Of these one user alone has as many as half of all that may wait; the others are refused.
    const TAKEN: usize = 4096;
    real::run(|rt| async move {
        let mut w = World::new(&rt);
        store(&w, GOODBYES, "h").await;
        let engine = w.engine.clone();
        w.engine = Rc::new(Slow { rt: rt.clone(), engine, delay: ms(20) });
        let m = primary(&w).await;
        // A connection has 4096 calls at a time.
        let hers = token(&w, &m, ANN).await;
        let conn = async || w.conn(&at(&m), &hers).await.expect("a connection");
        let ann = [conn().await, conn().await];
        let bob = user(&w, &m, UserId(1001)).await;
        let new = ClientSession { user: UserId(1001), ..session(GOODBYES + 1, "h") };
        let _: ClientSessionReply =
            bob.call_msg(method::CLIENT_SESSION, &new, SECOND).await.expect("opened");
        let bye = |conn: &Rc<glowfs_net::Conn>, id: u64, within| {
            let (conn, gone) = (conn.clone(), ClientGoodbye { client: ClientId(id.into()) });
            rt.spawn(async move {
                let done = conn.call_msg::<_, Empty>(method::CLIENT_GOODBYE, &gone, within).await;
                done.map_err(|e| e.status)
            })
        };
        let calls: Vec<_> =
            (1..=GOODBYES).map(|id| bye(&ann[(id % 2) as usize], id, 30 * SECOND)).collect();
        rt.sleep(ms(100)).await;
        let others = bye(&bob, GOODBYES + 1, 10 * SECOND);
        let storage = FakeStorage::start(&w, 1, at(&m), Rc::default());
        rt.timeout(10 * SECOND, storage.agent.ready()).await.expect("it has joined");
        others.await.expect("his client has ended");
        let (mut ended, mut refused) = (0, 0);
        for call in calls {
            match call.await {
                Ok(_) => ended += 1,
                Err(Status::Overloaded) => refused += 1,
                Err(e) => panic!("{e:?}"),
            }
        }
        assert!(ended >= TAKEN && refused > 0, "{ended} ended, {refused} refused");
        storage.stop().await;
        m.stop().await;
    });
}

#[test]
fn very_many_clients_are_listed() {
    const CLIENTS: u64 = 5000;
    real::run(|rt| async move {
        let w = World::new(&rt);
        store(&w, CLIENTS, &"ä".repeat(900)).await;
        let m = primary(&w).await;
        let conn = w.conn(&at(&m), ROOT_TOKEN).await.expect("root");
        let mut seen = BTreeSet::new();
        let mut ask = Some(ListClients { pages: true, ..ListClients::default() });
        while let Some(question) = ask {
            let page: ClientList =
                conn.call_msg(method::LIST_CLIENTS, &question, SECOND).await.expect("a page");
            ask = page.next(question).expect("goes on");
            for c in page.clients {
                assert!(!c.hostname.is_empty() && c.hostname.len() <= 256, "{}", c.hostname);
                assert!(seen.insert(c.client), "twice");
            }
        }
        assert_eq!(seen.len() as u64, CLIENTS);
        // As older releases ask: all of them, by their ids.
        let all: ClientList =
            conn.call_msg(method::LIST_CLIENTS, &Empty {}, SECOND).await.expect("the list");
        assert_eq!(all.clients.len() as u64, CLIENTS);
        assert!(!all.more);
        m.stop().await;
    });
}

#[test]
fn one_user_leaves_room_for_others() {
    real::run(|rt| async move {
        let w = World::new(&rt);
        store(&w, USERS_CLIENTS_MAX, "h").await;
        let m = primary(&w).await;
        let root = w.conn(&at(&m), ROOT_TOKEN).await.expect("root");
        let (ann, bob) = (user(&w, &m, ANN).await, user(&w, &m, UserId(1001)).await);
        let new = session(USERS_CLIENTS_MAX + 1, "h");
        let open = async |conn: &glowfs_net::Conn, session: &ClientSession| {
            let reply =
                conn.call_msg::<_, ClientSessionReply>(method::CLIENT_SESSION, session, SECOND);
            reply.await.map_err(|e| e.status)
        };
        assert_eq!(open(&ann, &new).await, Err(Status::Overloaded));
        open(&ann, &session(1, "h")).await.expect("she goes on with what she has");
        open(&bob, &new).await.expect("others have room");
        // And so has she, when one of hers has ended.
        let gone = ClientGoodbye { client: ClientId(2) };
        let _: Empty = ann.call_msg(method::CLIENT_GOODBYE, &gone, SECOND).await.expect("ended");
        open(&ann, &session(USERS_CLIENTS_MAX + 2, "h")).await.expect("room again");
        open(&root, &session(USERS_CLIENTS_MAX + 3, "h")).await.expect("administrators have room");
        m.stop().await;
    });
}

/// What was given up may not go on under its old id, whoever is primary. Only the newest are remembered.
#[test]
fn who_is_dead_stays_so_over_a_change_of_primary() {
    const CLIENTS: u64 = 4200;
    const REMEMBERED: usize = 4096;
    real::run(|rt| async move {
        let w = World::new(&rt);
        store(&w, CLIENTS, "").await;
        let mut config = w.config(100);
        config.timing.client_session_ms = 1500;
        let first = w.mgmtd_with(config).await;
        let count = async |kind: &str| {
            let tx = Transaction::new(w.engine.clone());
            let begin = format!("mgmtd/{kind}/").into_bytes();
            let end = format!("mgmtd/{kind}0").into_bytes();
            let page = tx.get_range_snapshot(&begin, &end, 2 * CLIENTS as u32, false).await;
            page.expect("read").entries.len()
        };
        while count("client").await > 0 {
            rt.sleep(ms(50)).await;
        }
        assert_eq!(count("dead").await, REMEMBERED);
        first.stop().await;
        let second = primary(&w).await;
        let conn = &*w.conn(&at(&second), ROOT_TOKEN).await.expect("root");
        let list: ClientList =
            conn.call_msg(method::LIST_CLIENTS, &Empty {}, SECOND).await.expect("list");
        assert_eq!(list.dead.len(), REMEMBERED);
        let mut refused = 0;
        for id in [CLIENTS - 1, CLIENTS] {
            let (asked, id) = (session(id, ""), method::CLIENT_SESSION);
            let again = conn.call_msg::<_, ClientSessionReply>(id, &asked, SECOND).await;
            refused += u32::from(again.is_err_and(|e| e.status == Status::SessionEnded));
        }
        assert_eq!(refused, 2, "the last ones that were given up");
        // One that is not remembered any more does not go on either; whoever comes for the first time does.
        let asked = ClientSession { extends: true, ..session(1, "") };
        let open = |s| conn.call_msg::<_, ClientSessionReply>(method::CLIENT_SESSION, s, SECOND);
        let e = open(&asked).await.expect_err("it has ended");
        assert_eq!(e.status, Status::SessionEnded, "{e}");
        let new = session(CLIENTS + 1, "");
        open(&new).await.expect("new");
        open(&ClientSession { extends: true, ..new.clone() }).await.expect("goes on");
        second.stop().await;
    });
}
