//! mgmtd: tokens, clients' names, and what is not for everybody.

use super::lab::*;
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::SERVICE_TOKEN;
use glowfs_types::wire::Empty;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::*;

#[test]
fn a_token_that_is_none_opens_nothing() {
    siege(|lab| async move {
        let last = lab.alice_token.len() - 1;
        let wrong = [
            String::new(),
            "x".repeat(8000),
            lab.alice_token[..last].to_owned(),
            format!("{} ", lab.alice_token),
            lab.alice_token.to_uppercase(),
            SERVICE_TOKEN.to_uppercase(),
            "\0".into(),
        ];
        for at in [&lab.mgmtd, &lab.meta, &lab.storage] {
            for token in &wrong {
                refused(lab.conn(at, token, ClientId(0)).await.map(|_| ()), Status::BadToken);
            }
            lab.conn(at, &lab.alice_token, ClientId(0)).await.expect("the right one");
        }
    });
}

/// A new token replaces the old one: nobody gets in with that any more, and whoever is in is put out soon.
#[test]
fn a_token_that_was_taken_back_ends() {
    siege(|lab| async move {
        let old = lab.mallory_token.clone();
        let mut inside = Vec::new();
        for at in [&lab.mgmtd, &lab.meta, &lab.storage] {
            inside.push(lab.conn(at, &old, ClientId(0)).await.expect("good so far"));
        }
        let new = lab.add_user(MALLORY).await;
        refused(lab.conn(&lab.mgmtd, &old, ClientId(0)).await.map(|_| ()), Status::BadToken);
        lab.rt.sleep(Duration::from_secs(6)).await;
        for at in [&lab.mgmtd, &lab.meta, &lab.storage] {
            refused(lab.conn(at, &old, ClientId(0)).await.map(|_| ()), Status::BadToken);
            lab.conn(at, &new, ClientId(0)).await.expect("the new one");
        }
        lab.rt.sleep(Duration::from_secs(20)).await;
        assert!(inside.iter().all(|c| c.is_closed()), "whoever was in is out");
    });
}

#[test]
fn what_is_for_services_and_administrators_is_not_for_users() {
    siege(|lab| async move {
        let conn = lab.conn(&lab.mgmtd, &lab.mallory_token, ClientId(0)).await.expect("a user");
        for m in [
            method::HEARTBEAT,
            method::REGISTER_STORES,
            method::REPORT_SLOW,
            method::CREATE_TABLE,
            method::GROW_TABLE,
            method::MOVE_AWAY,
            method::FORCE_CHAIN,
            method::REMOVE_NODE,
            method::CHECK_TOKEN,
            method::USER_ADD,
            method::USER_CHANGE,
            method::USER_REMOVE,
            method::USER_LIST,
            method::GET_CONFIG,
            method::SET_CONFIG,
            method::LIST_CLIENTS,
        ] {
            refused(call(&conn, m, &Empty {}).await, Status::AccessDenied);
        }
        // Whatever it says of itself in its hello: rights come from the token only.
        for m in [method::KV_BEGIN, method::READ, method::LOOKUP, method::RECALL, 9999] {
            refused(call(&conn, m, &Empty {}).await, Status::UnknownMethod);
        }
    });
}

#[test]
fn nobody_speaks_for_another_users_client() {
    siege(|lab| async move {
        let alice = lab.client(&lab.alice_token).await;
        let conn = lab.conn(&lab.mgmtd, &lab.mallory_token, alice.id()).await.expect("a user");
        let session = ClientSession {
            client: alice.id(),
            role: None,
            hostname: String::new(),
            host: HostId(0),
            pid: 1,
            description: String::new(),
            release: String::new(),
            started_ns: 0,
            user: UserId(ALICE.into()),
            last_seen_ns: 0,
            extends: false,
        };
        refused(call(&conn, method::CLIENT_SESSION, &session).await, Status::AccessDenied);
        let bye = ClientGoodbye { client: alice.id() };
        refused(call(&conn, method::CLIENT_GOODBYE, &bye).await, Status::AccessDenied);
        let nobody = ClientSession { client: ClientId(0), ..session };
        refused(call(&conn, method::CLIENT_SESSION, &nobody).await, Status::InvalidArgument);
        for at in [&lab.meta, &lab.storage] {
            let hello = lab.conn(at, &lab.mallory_token, alice.id()).await;
            refused(hello.map(|_| ()), Status::AccessDenied);
            lab.conn(at, &lab.alice_token, alice.id()).await.expect("it is hers");
        }
        // Its session has ended: the name is nobody's any more, and stays so.
        let id = alice.id();
        alice.close().await;
        lab.rt.sleep(Duration::from_secs(6)).await;
        for at in [&lab.meta, &lab.storage] {
            let hello = lab.conn(at, &lab.mallory_token, id).await;
            refused(hello.map(|_| ()), Status::SessionEnded);
        }
    });
}

#[test]
fn bodies_that_are_none_are_answered_and_root_is_not_given_away() {
    siege(|lab| async move {
        let token = glowfs_sim::cluster::harness::ROOT_TOKEN;
        let conn = lab.conn(&lab.mgmtd, token, ClientId(0)).await.expect("root");
        for m in [
            method::CLIENT_SESSION,
            method::GET_ROUTING,
            method::USER_ADD,
            method::USER_CHANGE,
            method::SET_CONFIG,
        ] {
            for body in bad_bodies(&[0x85; 40]) {
                refused(call_raw(&conn, m, body).await, Status::BadMessage);
            }
        }
        let user = UserInfo {
            user: UserId(0),
            name: "harmless".into(),
            groups: vec![],
            root: false,
            admin: false,
            service: false,
        };
        let add = UserAdd { user, only_new: false, token: None };
        refused(call(&conn, method::USER_ADD, &add).await, Status::InvalidArgument);
        let change = UserChange { user: UserId(0), root: Some(false), ..UserChange::default() };
        refused(call(&conn, method::USER_CHANGE, &change).await, Status::InvalidArgument);
    });
}
