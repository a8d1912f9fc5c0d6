//! Members that come and go, over storages that only heartbeat: drains, replaced disks, replicas made anew by themselves, chains
//! forced by an operator. At no moment a chain serves with fewer replicas than before on account of a move.
#![allow(missing_docs)]

use crate::common::operate::*;
use crate::common::*;
use glowfs_rt::real;
use glowfs_types::routing::{PublicState, Role, RoutingInfo};
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{ClusterConfig, ConfigItem};
use glowfs_types::wire::operate::*;
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

fn away_of(node: NodeId, what: u8, dry_run: bool) -> MoveAway {
    MoveAway { node, disk: None, what, dry_run, store: None }
}

#[test]
fn a_drained_node_is_emptied_and_no_chain_has_fewer_replicas_meanwhile() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 4, 0).await;
        let watch = storages[0].agent.clone();
        let node = storages[3].node;
        let least = Rc::new(Cell::new(3));
        let low = least.clone();
        watch.on_routing_change(move |r| {
            let now = r.chains.values().map(|c| c.serving().count()).min().unwrap_or(0);
            low.set(low.get().min(now));
        });
        let before = on(&watch.routing(), node);
        assert!(before > 0);
        let ask = |dry| away_of(node, away::DRAIN, dry);
        let dry: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &ask(true)).await.expect("dry");
        assert_eq!(dry.left.len(), before);
        assert!(dry.left.iter().all(|l| l.to_node != node && l.to_node != NodeId(0)), "{dry:?}");
        rt.sleep(ms(300)).await;
        assert_eq!(on(&watch.routing(), node), before, "a dry run changes nothing");
        let _: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &ask(false)).await.expect("drain");
        until(&rt, &watch, BOUND, "drained", |r| on(r, node) == 0 && complete(r)).await;
        assert_eq!(least.get(), 3, "a chain fell below its replication");
        let done: MoveAwayReply =
            admin(&w, &m, method::MOVE_AWAY, &ask(false)).await.expect("done");
        assert!(done.left.is_empty(), "{done:?}");
        // Nobody notices that it stops. The ids of what it had are not used again.
        let top = watch.routing().targets.keys().max().copied();
        storages.into_iter().nth(3).expect("four").stop().await;
        rt.sleep(ms(500)).await;
        assert!(complete(&watch.routing()));
        assert!(top > Some(TargetId(18)), "{top:?}");
        // With three nodes left there is no place for another drain, and that is said before anything is done.
        let ask = away_of(NodeId(1), away::DRAIN, false);
        let e = admin::<_, MoveAwayReply>(&w, &m, method::MOVE_AWAY, &ask).await.expect_err("no");
        assert_eq!(e.status, Status::NoSpace, "{e}");
        m.stop().await;
    });
}

#[test]
fn a_drain_that_is_called_off_leaves_every_chain_whole() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 4, 0).await;
        let watch = storages[0].agent.clone();
        for s in &storages {
            // Copies take for ever.
            s.fake.syncs.set(false);
        }
        let node = storages[1].node;
        let ask = away_of(node, away::DRAIN, false);
        let look = away_of(node, away::DRAIN, true);
        let in_force = async || {
            let r: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &look).await.expect("look");
            r.in_force
        };
        assert_eq!(in_force().await, Some(false));
        let _: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &ask).await.expect("drain");
        assert_eq!(in_force().await, Some(true));
        let copying = |r: &RoutingInfo| r.chains.values().any(|c| c.members.len() == 4);
        until(&rt, &watch, BOUND, "copying", copying).await;
        let ask = away_of(node, away::CANCEL, false);
        let _: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &ask).await.expect("cancel");
        assert_eq!(in_force().await, Some(false), "who waits for the drain hears of it");
        until(&rt, &watch, BOUND, "as before", |r| complete(r) && r.targets.len() == 18).await;
        assert!(on(&watch.routing(), node) > 0);
        m.stop().await;
    });
}

#[test]
fn a_replica_that_is_away_for_too_long_is_made_anew_elsewhere() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 4, 300).await;
        let watch = storages[0].agent.clone();
        let gone = storages.remove(3);
        let node = gone.node;
        let had = on(&watch.routing(), node);
        let disk = gone.kill();
        until(&rt, &watch, BOUND, "complete without it", |r| {
            complete(r) && r.chains.values().all(|c| c.members.iter().all(|m| m.node != node))
        })
        .await;
        assert_eq!(on(&watch.routing(), node), had, "what it may still have is remembered");
        // It comes back, drops what it had, and is a place for more.
        let back = FakeStorage::start(&w, 4, at(&m), disk);
        until(&rt, &watch, BOUND, "forgotten", |r| on(r, node) == 0 && complete(r)).await;
        drop(back);
        m.stop().await;
    });
}

/// A disk that stays full: its members are tried again and again, and were never replaced; a drain of another node waited for them for ever, and said that
/// all was copied.
/// What ails it there would ail another one as well: its chain would get one member after the other.
#[test]
fn a_member_that_only_waits_is_not_made_anew_on_its_own_node() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster_with(&rt, 3, |t| {
            t.replace_after_ms = 0;
            t.slow_pause_ms = 60_000;
        })
        .await;
        let watch = storages[0].agent.clone();
        let slow = storages.remove(2);
        let node = slow.node;
        let disk = slow.kill();
        until(&rt, &watch, BOUND, "two left", |r| {
            all_chains(r, |c| {
                c.members.iter().all(|m| (m.node == node) != (m.state == PublicState::Serving))
            })
        })
        .await;
        let back = back_and_too_slow(&w, &m, node, disk).await;
        set_config(&w, &m, "replace_after_ms = 300").await;
        rt.sleep(ms(1500)).await;
        assert!(all_chains(&watch.routing(), |c| c.members.len() == 3));
        // On a node that joins they are made.
        let fourth = FakeStorage::start(&w, 4, at(&m), Rc::default());
        until(&rt, &watch, BOUND, "made anew on the other", |r| complete(r) && on(r, node) == 0)
            .await;
        drop((back, fourth));
        m.stop().await;
    });
}

#[test]
fn a_member_that_only_waits_is_made_anew_elsewhere_and_a_drain_says_that_it_waits_for_it() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster_with(&rt, 5, |t| {
            t.replace_after_ms = 0;
            t.slow_pause_ms = 60_000;
        })
        .await;
        let watch = storages[0].agent.clone();
        let slow = storages.remove(3);
        let (node, drained) = (slow.node, NodeId(5));
        let of = |c: &routing::ChainInfo, node| c.members.iter().find(|m| m.node == node).copied();
        let both = |c: &routing::ChainInfo| of(c, node).is_some() && of(c, drained).is_some();
        assert!(watch.routing().chains.values().any(both), "no chain has both of them");
        let disk = slow.kill();
        until(&rt, &watch, BOUND, "two left", |r| {
            all_chains(r, |c| of(c, node).is_none_or(|m| m.state == PublicState::Offline))
        })
        .await;
        let back = back_and_too_slow(&w, &m, node, disk).await;
        // Its disk is full, so nothing new goes there.
        for s in &storages {
            s.fake.used.set(1 << 20);
            s.agent.report_and_wait().await;
        }
        back.fake.used.set((1 << 30) / on(&watch.routing(), node) as u64);
        back.agent.report_and_wait().await;
        let look = away_of(drained, away::DRAIN, true);
        order(&w, &m, (drained.0, None), away::DRAIN).await.expect("places");
        until(&rt, &watch, BOUND, "copied", |r| {
            all_chains(r, |c| {
                let others = |m: &&routing::ChainMember| ![node, drained].contains(&m.node);
                let copied =
                    c.members.iter().filter(others).all(|m| m.state == PublicState::Serving);
                copied && (of(c, drained).is_none() || both(c) && c.members.len() == 4)
            })
        })
        .await;
        let r: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &look).await.expect("look");
        // Of the other chains their node may still drop what it had.
        let members = r.left.iter().filter(|l| !l.doing.contains("goes on without it"));
        let said: Vec<&str> = members.map(|l| l.doing.as_str()).collect();
        let true_of = |s: &&str| s.contains("waits until 3 serve") && s.contains("is waiting");
        assert!(!said.is_empty() && said.iter().all(true_of), "{said:?}");
        // It is known by now for how long they have waited.
        set_config(&w, &m, "replace_after_ms = 300").await;
        until(&rt, &watch, BOUND, "made anew elsewhere, and dropped", |r| {
            complete(r) && on(r, node) == 0 && on(r, drained) == 0
        })
        .await;
        let r: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &look).await.expect("look");
        assert!(r.left.is_empty(), "{r:?}");
        drop(back);
        m.stop().await;
    });
}

/// A node that comes and goes, or whose disk has no room, had each copy thrown away that was made in its place.
#[test]
fn a_copy_that_is_being_made_is_not_thrown_away_for_one_that_is_back() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster_with(&rt, 4, |t| {
            t.replace_after_ms = 300;
            t.slow_pause_ms = 60_000;
        })
        .await;
        let watch = storages[0].agent.clone();
        for s in &storages {
            // Copies take for ever.
            s.fake.syncs.set(false);
        }
        let gone = storages.remove(3);
        let node = gone.node;
        let disk = gone.kill();
        let made = |r: &RoutingInfo| {
            let new = |m: &routing::ChainMember| m.target > TargetId(18);
            let all = r.chains.values().flat_map(|c| c.members.iter().copied());
            all.filter(new).collect::<Vec<_>>()
        };
        let had = on(&watch.routing(), node);
        until(&rt, &watch, BOUND, "copying", |r| {
            let made = made(r);
            made.len() == had && made.iter().all(|m| m.state == PublicState::Syncing)
        })
        .await;
        set_config(&w, &m, "replace_after_ms = 0").await;
        let back = back_and_too_slow(&w, &m, node, disk).await;
        rt.sleep(ms(500)).await;
        let kept = made(&watch.routing());
        assert!(
            kept.len() == had && kept.iter().all(|m| m.state == PublicState::Syncing),
            "{kept:?}"
        );
        // They are the first to serve, so they stay.
        for s in &storages {
            s.fake.syncs.set(true);
            s.resync();
        }
        until(&rt, &watch, BOUND, "complete without it", |r| complete(r) && made(r).len() == had)
            .await;
        drop(back);
        m.stop().await;
    });
}

/// Enough serve without it when it is retired. Two of those die before that is known.
#[test]
fn a_member_on_its_way_out_is_called_back_when_too_few_serve() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster_with(&rt, 4, |t| {
            t.replace_after_ms = 0;
            // Longer than it takes until a node counts as dead.
            t.repair_ms = 2500;
        })
        .await;
        let node = storages[3].node;
        let watch = storages[3].agent.clone();
        order(&w, &m, (node.0, None), away::DRAIN).await.expect("places");
        let out = |r: &RoutingInfo| {
            let offline =
                |m: &&routing::ChainMember| m.node == node && m.state == PublicState::Offline;
            let find = |c: &routing::ChainInfo| c.members.iter().find(offline).map(|m| m.target);
            r.chains.values().find_map(|c| find(c).map(|t| (c.id, t)))
        };
        until(&rt, &watch, BOUND, "retired", |r| out(r).is_some()).await;
        let (chain, target) = out(&watch.routing()).expect("retired");
        let mut storages = storages.into_iter();
        for s in [storages.next(), storages.next()] {
            s.expect("four").kill();
        }
        until(&rt, &watch, BOUND, "it serves again", |r| {
            let c = &r.chains[&chain];
            let serves = c.serving().any(|m| m.target == target);
            assert!(c.members.iter().any(|m| m.target == target), "it was given up: {c:#?}");
            serves && c.serving().count() == 2 && c.activated == c.version
        })
        .await;
        m.stop().await;
    });
}

#[test]
fn how_long_a_replica_may_be_away_is_changed_while_mgmtd_runs() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 4, 0).await;
        let watch = storages[0].agent.clone();
        let gone = storages.remove(3);
        let node = gone.node;
        let _disk = gone.kill();
        let away = |c: &routing::ChainInfo| c.members.iter().any(|m| m.node == node);
        until(&rt, &watch, BOUND, "noticed", |r| {
            all_chains(r, |c| c.activated == c.version && (!away(c) || c.serving().count() == 2))
        })
        .await;
        rt.sleep(ms(300)).await;
        assert!(watch.routing().chains.values().any(away), "0 in the file: it is waited for");
        let set = |version, toml: &str| ClusterConfig {
            items: vec![ConfigItem {
                version: ConfigVersion(version),
                role: Role::Mgmtd,
                toml: toml.into(),
            }],
            ..ClusterConfig::default()
        };
        let wrong = set(0, "replace_after = 1");
        let e = admin::<_, ClusterConfig>(&w, &m, method::SET_CONFIG, &wrong).await;
        assert_eq!(e.expect_err("no such key").status, Status::InvalidArgument);
        let change = set(0, "replace_after_ms = 100");
        let _: ClusterConfig = admin(&w, &m, method::SET_CONFIG, &change).await.expect("changed");
        until(&rt, &watch, BOUND, "made anew elsewhere", |r| {
            complete(r) && !r.chains.values().any(away)
        })
        .await;
        m.stop().await;
    });
}

#[test]
fn a_replaced_disk_is_filled_again() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        let watch = storages[0].agent.clone();
        let node = storages[2].node;
        let ask = |what| MoveAway { node, disk: Some(0), what, dry_run: false, store: None };
        let replace = ask(away::REPLACE);
        let e = admin::<_, MoveAwayReply>(&w, &m, method::MOVE_AWAY, &replace).await;
        assert!(e.expect_err("no new disk").message.contains("empty one"), "says what to do");
        storages.pop().expect("three").kill();
        until(&rt, &watch, BOUND, "two left", |r| {
            all_chains(r, |c| c.activated == c.version && c.serving().count() == 2)
        })
        .await;
        let new = StoreId(333);
        let _back = FakeStorage::start_with(&w, 3, new, at(&m), Rc::default());
        let reply = loop {
            match admin::<_, MoveAwayReply>(&w, &m, method::MOVE_AWAY, &replace).await {
                Ok(reply) => break reply,
                Err(_) => rt.sleep(ms(50)).await,
            }
        };
        assert_eq!(reply.left.len(), 6);
        assert!(reply.left.iter().all(|l| l.to_node == node), "{reply:?}");
        until(&rt, &watch, BOUND, "whole again", |r| {
            complete(r)
                && r.targets.len() == 18
                && r.targets.values().all(|t| t.store != StoreId(3))
        })
        .await;
        m.stop().await;
    });
}

/// Targets of a disk that is broken while its node lives are being copied by nobody: they take no place among those that are.
#[test]
fn a_broken_disk_of_a_node_that_lives_does_not_hold_up_its_replacement() {
    real::run(|rt| async move {
        let (_w, m, storages) = cluster_with(&rt, 4, |t| {
            t.replace_after_ms = 300;
            t.recoveries_max = 2;
        })
        .await;
        let watch = storages[0].agent.clone();
        let broken = &storages[3];
        let had = on(&watch.routing(), broken.node);
        assert!(had > 2, "{had} targets");
        broken.fake.broken.set(true);
        broken.agent.report_now();
        until(&rt, &watch, BOUND, "made anew elsewhere", |r| {
            complete(r)
                && r.chains.values().all(|c| c.members.iter().all(|m| m.node != broken.node))
        })
        .await;
        m.stop().await;
    });
}

/// A disk is meant by the place that it has now, not by the one that it had when its targets were made.
#[test]
fn a_disk_that_moved_to_another_place_is_drained_by_its_new_one() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 4, 0).await;
        let s = &storages[3];
        let had = on(&s.agent.routing(), s.node);
        assert!(had > 0);
        register(s, &[(s.store, 5)]).await;
        until(&rt, &s.agent, BOUND, "listed under its new one", |r| {
            r.targets.values().filter(|t| t.store == s.store).all(|t| t.disk_index == 5)
        })
        .await;
        let ask = |disk| MoveAway { disk: Some(disk), ..away_of(s.node, away::DRAIN, true) };
        let e = admin::<_, MoveAwayReply>(&w, &m, method::MOVE_AWAY, &ask(0)).await;
        assert!(e.is_err(), "no disk is there any more: {e:?}");
        let drain = MoveAway { dry_run: false, ..ask(5) };
        let reply: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &drain).await.expect("drains");
        assert_eq!(reply.left.len(), had, "{reply:?}");
        assert!(reply.explanation.contains(&s.store.to_string()), "{reply:?}");
        m.stop().await;
    });
}

/// Disks that move up when one before them is taken out of the configuration have replaced nobody but that one.
#[test]
fn disks_that_change_places_are_all_there_still() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 3, 0).await;
        let s = &storages[2];
        let (a, b, c) = (s.store, StoreId(902), StoreId(903));
        register(s, &[(a, 0), (b, 1), (c, 2)]).await;
        register(s, &[(a, 0), (c, 1), (b, 2)]).await;
        for disk in [1, 2] {
            let ask = MoveAway { disk: Some(disk), ..away_of(s.node, away::REPLACE, true) };
            let e = admin::<_, MoveAwayReply>(&w, &m, method::MOVE_AWAY, &ask).await;
            let e = e.expect_err("both work: there is nothing to replace");
            assert!(e.message.contains("has no new disk"), "{e}");
        }
        m.stop().await;
    });
}

#[test]
fn a_chain_without_a_server_is_explained_and_forced() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 3, 0).await;
        let watch = storages[0].agent.clone();
        for s in &storages {
            s.fake.used.set(1);
        }
        let mut storages = storages.into_iter();
        let first = storages.next().expect("three");
        // The second and then the third go; the third acknowledged alone.
        for (left, s) in [(2, storages.next()), (1, storages.next())] {
            s.expect("three").kill();
            until(&rt, &watch, BOUND, "noticed", |r| {
                all_chains(r, |c| c.activated == c.version && c.serving().count() == left)
            })
            .await;
        }
        // The first one dies too: then only it is proof. The second comes back alone.
        let routing = watch.routing();
        let (chain, first_target) = {
            let c = routing.chains.values().next().expect("chains");
            (c.id, c.head().expect("serving").target)
        };
        first.kill();
        let back = FakeStorage::start(
            &w,
            2,
            at(&m),
            Rc::new(Disk { life: Cell::new(5), ..Disk::default() }),
        );
        back.fake.used.set(1);
        until(&rt, &back.agent, BOUND, "nobody serves", |r| {
            all_chains(r, |c| {
                c.head().is_none() && c.members.iter().any(|m| m.state == PublicState::Waiting)
            })
        })
        .await;
        let members = back.agent.routing().chains[&chain].members.clone();
        let target = members.iter().find(|m| m.node == NodeId(2)).expect("a member").target;
        let ask = |target, dry_run| ForceChain { chain, target, dry_run };
        let told: ForceChainReply =
            admin(&w, &m, method::FORCE_CHAIN, &ask(Some(target), true)).await.expect("told");
        assert!(told.waits && told.explanation.contains("is lost"), "{told:?}");
        assert!(told.explanation.contains(&first_target.to_string()), "{told:?}");
        assert!(back.agent.routing().chains[&chain].head().is_none(), "a dry run changes nothing");
        // What is away would take the others' proof and serve nobody.
        let told: ForceChainReply =
            admin(&w, &m, method::FORCE_CHAIN, &ask(Some(first_target), true)).await.expect("told");
        assert!(told.explanation.contains("is away"), "{told:?}");
        let refused: Result<ForceChainReply> =
            admin(&w, &m, method::FORCE_CHAIN, &ask(Some(first_target), false)).await;
        assert_eq!(refused.expect_err("it is away").status, Status::Busy);
        let _: ForceChainReply =
            admin(&w, &m, method::FORCE_CHAIN, &ask(Some(target), false)).await.expect("forced");
        until(&rt, &back.agent, BOUND, "it serves", |r| {
            r.chains[&chain].head().is_some_and(|h| h.target == target)
        })
        .await;
        m.stop().await;
    });
}
