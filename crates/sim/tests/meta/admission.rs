//! More calls than a service has in work at once: those beyond are refused and counted, none is lost, and nobody who only waits takes a place.

use super::lab::{Lab, SHAPE, look, make};
use glowfs_meta::Tuning;
use glowfs_net::{Bulk, Connector, NoCalls, Request};
use glowfs_rt::Duration;
use glowfs_rt::sync::join_all;
use glowfs_sim::cluster::harness::{CLUSTER, Cluster, ROOT_TOKEN};
use glowfs_sim::cluster::workload::caller;
use glowfs_telemetry::Registry;
use glowfs_types::routing::Role;
use glowfs_types::wire::hello::Hello;
use glowfs_types::wire::lock::{Lock, LockWish};
use glowfs_types::wire::{encode, method};
use glowfs_types::*;
use std::rc::Rc;

/// Calls that the service has in work at once.
const AT_ONCE: usize = 4;
/// Calls that come at once.
const CALLS: usize = 200;

fn lab(seed: u64) -> Lab {
    Lab::tuned(seed, SHAPE, Tuning { inflight_ops: AT_ONCE as u64, ..Tuning::default() })
}

/// `glowfs_meta_refused_total`, of all services of this process: it only grows.
fn refused() -> u64 {
    let text = Registry::global().text();
    let lines = text.lines().filter(|l| l.starts_with("glowfs_meta_refused_total"));
    lines.filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn clients_come_again_and_see_no_error() {
    let lab = lab(51);
    let before = refused();
    lab.run(0, |c| async move {
        let names: Vec<String> = (0..CALLS).map(|n| format!("f{n}")).collect();
        let made = join_all(names.iter().map(|f| c.make(make(&c, 0, f)))).await;
        for (f, made) in names.iter().zip(made) {
            let inode = made.expect("made, if not at once").attr.inode;
            assert_eq!(look(&c, f).await.expect("there").inode, inode);
        }
    });
    assert!(refused() - before > CALLS as u64 / 2, "{} refused", refused() - before);
}

#[test]
fn what_is_beyond_is_refused_by_that_name_and_the_next_call_is_taken() {
    let lab = lab(52);
    let meta = vec![Cluster::address(&lab.cluster.metas[0])];
    let before = refused();
    let answers = lab.run(0, move |c| async move {
        let cluster = CLUSTER.parse().expect("an id");
        let (token, role) = (ROOT_TOKEN.into(), Some(Role::Client));
        // Connected by hand, so that nobody asks again.
        let hello = Hello { cluster, token, role, client: c.id(), ..Hello::default() };
        let connector = Connector::new(c.rt(), hello, Rc::new(NoCalls));
        let conn = connector.connect(&meta).await.expect("connected");
        let call = |n: usize| {
            let (body, deadline) = (encode(&make(&c, 1000 + n as u128, &format!("f{n}"))), 20);
            let (method, deadline) = (method::MAKE, Duration::from_secs(deadline));
            conn.call(Request { method, body, bulk: Bulk::None, tenant: TenantId(0), deadline })
        };
        let answers = join_all((0..CALLS).map(call)).await;
        call(CALLS).await.expect("there is room again");
        for (n, answer) in answers.iter().enumerate() {
            let there = look(&c, &format!("f{n}")).await.is_ok();
            assert_eq!(there, answer.is_ok(), "{n}: what is refused has no effect");
        }
        answers.into_iter().map(|a| a.map(drop).map_err(|e| e.status)).collect::<Vec<_>>()
    });
    let taken = answers.iter().filter(|a| a.is_ok()).count();
    let beyond = answers.iter().filter(|a| **a == Err(Status::Overloaded)).count();
    // One client alone has as many at once as it leaves free.
    assert!(taken >= AT_ONCE / 2 && beyond >= AT_ONCE && taken + beyond == CALLS, "{answers:?}");
    assert!(refused() - before >= beyond as u64);
}

/// Who waits for a lock holds up nobody else, as many as there are of them.
#[test]
fn who_waits_for_a_lock_takes_no_place() {
    let lab = lab(53);
    let lock = |c: &glowfs_client::Client, inode, request, owner, wish| Lock {
        caller: caller(c),
        request: RequestId(request),
        inode,
        owner,
        wish,
        end: u64::MAX,
        ..Lock::default()
    };
    lab.run(0, move |c| async move {
        let inode = c.make(make(&c, 1, "f")).await.expect("made").attr.inode;
        let held = c.lock(lock(&c, inode, 2, 1, LockWish::Exclusive)).await.expect("answered");
        assert!(held.holder.is_none(), "it is free");
        let waiting = (0..3 * AT_ONCE as u64)
            .map(|n| c.lock_wait(lock(&c, inode, 0, 10 + n, LockWish::Exclusive)));
        let began = c.rt().now();
        let works = async {
            // They are asked for, and wait.
            c.rt().sleep(Duration::from_millis(500)).await;
            for n in 0..20 {
                c.make(make(&c, 0, &format!("g{n}"))).await.expect("made");
            }
            c.rt().now().since(began)
        };
        let (answers, took) = glowfs_rt::sync::join(join_all(waiting), works).await;
        assert!(took < Duration::from_secs(2), "20 files took {took:?} beside them");
        assert!(answers.iter().all(|a| a.as_ref().is_ok_and(|r| r.holder.is_some())));
    });
}
