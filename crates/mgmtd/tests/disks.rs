//! Disks that come and go: what is put in the place of a known one, what returns, what is somebody else's, what has no room.
#![allow(missing_docs)]

use crate::common::operate::*;
use crate::common::*;
use glowfs_rt::real;
use glowfs_types::routing::{NodeStatus, PublicState, RoutingInfo};
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::wire::operate::{MoveAway, MoveAwayReply, away};
use glowfs_types::*;
use std::collections::BTreeSet;
use std::rc::Rc;

fn of_store(r: &RoutingInfo, store: StoreId) -> usize {
    r.targets.values().filter(|t| t.store == store).count()
}

/// An empty directory in the place of a known disk may be the mount point of one that is not mounted.
#[test]
fn a_store_in_the_place_of_a_known_one_takes_nothing_before_it_is_said_to_replace_it() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 4, 300).await;
        let watch = storages[0].agent.clone();
        let disk = storages.pop().expect("four").kill();
        let (old, new) = (StoreId(4), StoreId(444));
        let unmounted = FakeStorage::start_with(&w, 4, new, at(&m), Rc::default());
        until(&rt, &watch, BOUND, "made anew elsewhere", |r| {
            complete(r) && r.chains.values().all(|c| c.members.iter().all(|m| m.node != NodeId(4)))
        })
        .await;
        // A node that is drained asks for places; there is none but the one that nobody vouched for.
        let no_place = order(&w, &m, (3, None), away::DRAIN).await;
        assert_eq!(no_place.expect_err("no place").status, Status::NoSpace);
        // Nor does calling off a drain vouch for it.
        order(&w, &m, (4, None), away::CANCEL).await.expect("cancelled");
        let no_place = order(&w, &m, (3, None), away::DRAIN).await;
        assert_eq!(no_place.expect_err("no place").status, Status::NoSpace);
        assert_eq!(of_store(&watch.routing(), new), 0);

        // Mounted again, the known one is what it was.
        unmounted.kill();
        let back = FakeStorage::start(&w, 4, at(&m), disk);
        order_when_possible(&w, &m, (3, None), away::DRAIN).await;
        until(&rt, &watch, BOUND, "moved", |r| complete(r) && of_store(r, old) > 0).await;
        order(&w, &m, (3, None), away::CANCEL).await.expect("cancelled");

        // And when somebody says that the new one replaces it, that one takes over.
        back.kill();
        let _new = FakeStorage::start_with(&w, 4, new, at(&m), Rc::default());
        order_when_possible(&w, &m, (4, Some(0)), away::REPLACE).await;
        until(&rt, &watch, BOUND, "nothing on the old one", |r| {
            complete(r) && of_store(r, old) == 0
        })
        .await;
        order_when_possible(&w, &m, (3, None), away::DRAIN).await;
        until(&rt, &watch, BOUND, "on the new one", |r| complete(r) && of_store(r, new) > 0).await;
        m.stop().await;
    });
}

/// What has no place goes on waiting on the disk of before, whatever is said of the others.
#[test]
fn a_drain_is_called_off_also_beside_a_disk_that_was_replaced_as_far_as_there_is_room() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        let watch = storages[0].agent.clone();
        for s in &storages {
            // Of six such replicas a new disk of 1 GiB takes two.
            s.fake.used.set(400 << 20);
            s.agent.report_and_wait().await;
        }
        storages.pop().expect("three").kill();
        until(&rt, &watch, BOUND, "two left", |r| {
            all_chains(r, |c| c.activated == c.version && c.serving().count() == 2)
        })
        .await;
        let _new = FakeStorage::start_with(&w, 3, StoreId(333), at(&m), Rc::default());
        order_when_possible(&w, &m, (3, Some(0)), away::REPLACE).await;
        until(&rt, &watch, BOUND, "as far as there is room", |r| of_store(r, StoreId(333)) == 2)
            .await;
        let left = order(&w, &m, (3, None), away::CANCEL).await.expect("called off").left;
        assert!(left.iter().any(|l| l.to_node == NodeId(0)), "all had room: {left:?}");
        m.stop().await;
    });
}

/// The node takes a new disk up when the order is given in earnest.
#[test]
fn a_dry_run_of_a_replacement_does_not_deny_a_disk_that_nobody_has_looked_at() {
    real::run(|rt| async move {
        let (w, m, _storages) = cluster(&rt, 3, 0).await;
        let (node, disk, what) = (NodeId(3), Some(0), away::REPLACE);
        let ask = |dry_run| MoveAway { node, disk, what, dry_run, store: None };
        for dry_run in [true, false] {
            let e = admin::<_, MoveAwayReply>(&w, &m, method::MOVE_AWAY, &ask(dry_run)).await;
            let e = e.expect_err("no new disk");
            assert_eq!(e.message.contains("that its node has taken up"), dry_run, "{e}");
        }
        m.stop().await;
    });
}

/// The known one comes back in another place, so that nothing is left to be replaced where it was.
#[test]
fn a_store_whose_predecessor_moved_takes_targets_when_it_is_said_to_be_new() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 3, 0).await;
        let (s, new) = (&storages[2], StoreId(444));
        register(s, &[(new, 0)]).await;
        register(s, &[(new, 0), (s.store, 1)]).await;
        let works = order(&w, &m, (3, Some(1)), away::REPLACE).await;
        assert!(works.expect_err("it works").message.contains("has no new disk"));
        let no_place = order(&w, &m, (3, Some(1)), away::DRAIN).await;
        assert_eq!(no_place.expect_err("nobody vouched for it").status, Status::NoSpace);
        order(&w, &m, (3, Some(0)), away::REPLACE).await.expect("it is new");
        order(&w, &m, (3, Some(1)), away::DRAIN).await.expect("a place");
        until(&rt, &s.agent, BOUND, "on the new one", |r| of_store(r, new) > 0).await;
        m.stop().await;
    });
}

/// What was removed while its disk was away: nobody else would tell whoever has the disk now.
#[test]
fn a_node_that_names_a_target_which_was_removed_hears_so() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 3, 0).await;
        let watch = storages[0].agent.clone();
        let gone: Vec<TargetId> = {
            let r = watch.routing();
            r.targets.values().filter(|t| t.node == NodeId(3)).map(|t| t.id).collect()
        };
        storages.pop().expect("three").kill();
        let new = FakeStorage::start_with(&w, 3, StoreId(333), at(&m), Rc::default());
        order_when_possible(&w, &m, (3, Some(0)), away::REPLACE).await;
        until(&rt, &watch, BOUND, "whole", |r| complete(r) && of_store(r, StoreId(3)) == 0).await;
        assert!(new.fake.told_gone.borrow().is_empty(), "it named none of them");
        *new.fake.names.borrow_mut() = gone.clone();
        new.fake.names.borrow_mut().push(TargetId(5000));
        new.agent.report_and_wait().await;
        assert_eq!(
            *new.fake.told_gone.borrow(),
            gone,
            "and of what never was nobody says anything"
        );
        m.stop().await;
    });
}

/// While too few serve its chain, what a removed target still has may be all that is left.
#[test]
fn a_removed_target_is_given_up_only_while_enough_serve_its_chain() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 5, 300).await;
        let watch = storages[0].agent.clone();
        let of: Vec<(TargetId, ChainId)> = {
            let r = watch.routing();
            let mine = r.targets.values().filter(|t| t.node == NodeId(4));
            mine.map(|t| (t.id, t.chain)).collect()
        };
        let disk = storages.remove(3).kill();
        until(&rt, &watch, BOUND, "made anew elsewhere", |r| {
            complete(r) && r.chains.values().all(|c| c.members.iter().all(|m| m.node != NodeId(4)))
        })
        .await;
        set_config(&w, &m, "replace_after_ms = 0").await;
        let back = FakeStorage::start(&w, 4, at(&m), disk);
        until(&rt, &watch, BOUND, "forgotten", |r| complete(r) && on(r, NodeId(4)) == 0).await;
        let r = watch.routing();
        let degraded_by = |node: NodeId| -> BTreeSet<ChainId> {
            let has = |c: &ChainId| r.chains[c].members.iter().any(|m| m.node == node);
            of.iter().map(|t| t.1).filter(has).collect()
        };
        let some = |s: &FakeStorage| (1..of.len()).contains(&degraded_by(s.node).len());
        // The first one watches.
        let at = storages.iter().skip(1).position(some).expect("a node of some of them") + 1;
        let degraded = degraded_by(storages[at].node);
        storages.remove(at).kill();
        until(&rt, &watch, BOUND, "two left", |r| {
            degraded.iter().all(|c| r.chains[c].serving().count() == 2)
        })
        .await;
        *back.fake.names.borrow_mut() = of.iter().map(|t| t.0).collect();
        back.agent.report_and_wait().await;
        let whole: Vec<TargetId> =
            of.iter().filter(|t| !degraded.contains(&t.1)).map(|t| t.0).collect();
        assert_eq!(*back.fake.told_gone.borrow(), whole);
        m.stop().await;
    });
}

async fn lay(s: &FakeStorage, table: u64, chains: u32) -> Result<CreateTableReply> {
    let create = CreateTable {
        table: ChainTableId(table),
        replicas: 3,
        chains,
        description: "test".into(),
        dry_run: false,
    };
    s.agent.link().call(method::CREATE_TABLE, &create, ms(5000)).await
}

/// A chain with a member that was never there serves nobody.
#[test]
fn a_table_is_laid_over_nodes_that_live_and_disks_that_work() {
    real::run(|rt| async move {
        let (_w, m, mut storages) = cluster(&rt, 5, 0).await;
        let watch = storages[0].agent.clone();
        // A disk that was there when the node started before, and one that is broken.
        register(&storages[0], &[(StoreId(1), 0), (StoreId(11), 1)]).await;
        register(&storages[0], &[(StoreId(1), 0)]).await;
        storages[3].fake.broken.set(true);
        storages[3].agent.report_and_wait().await;
        storages.pop().expect("five").kill();
        let dead = |r: &RoutingInfo| r.nodes[&NodeId(5)].status == NodeStatus::Failed;
        until(&rt, &watch, BOUND, "its death", dead).await;
        let before = watch.routing().targets.len();
        let reply = lay(&storages[0], 2, 12).await.expect("three places");
        assert!(reply.explanation.contains("left out"), "{}", reply.explanation);
        until(&rt, &watch, BOUND, "the table", |r| r.targets.len() == before + 36).await;
        let r = watch.routing();
        let new: Vec<_> = r.targets.values().skip(before).map(|t| t.store).collect();
        assert!(new.iter().all(|s| [1, 2, 3].contains(&s.0)), "{new:?}");
        // Too few that work: that is said, with what is left out.
        storages.pop().expect("four").kill();
        storages.pop().expect("three").kill();
        let dead = |r: &RoutingInfo| r.nodes[&NodeId(3)].status == NodeStatus::Failed;
        until(&rt, &watch, BOUND, "its death", dead).await;
        let e = lay(&storages[0], 3, 12).await.expect_err("two places");
        assert!(e.message.contains("left out"), "{e}");
        m.stop().await;
    });
}

#[test]
fn a_replica_is_made_anew_only_where_there_is_room_for_it() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster(&rt, 5, 0).await;
        let watch = storages[0].agent.clone();
        let (full, had) = (storages[3].node, on(&watch.routing(), storages[3].node));
        for s in &storages {
            // Of 1 GiB: a replica more would not fit on the one, and does on the others.
            let used = if s.node == full { (1 << 30) / had as u64 } else { 1 << 20 };
            s.fake.used.set(used);
            s.agent.report_and_wait().await;
        }
        order(&w, &m, (5, None), away::DRAIN).await.expect("places");
        until(&rt, &watch, BOUND, "empty", |r| complete(r) && on(r, NodeId(5)) == 0).await;
        assert_eq!(on(&watch.routing(), full), had);
        // There is nothing else than the full one for some of these: said before anything is done.
        let e = order(&w, &m, (1, None), away::DRAIN).await.expect_err("no room");
        assert!(e.status == Status::NoSpace && e.message.contains("no room"), "{e}");
        drop(storages.pop());
        m.stop().await;
    });
}

/// Members of which nobody makes a copy take no place among the copies that are made.
#[test]
fn members_that_only_wait_do_not_hold_up_others() {
    real::run(|rt| async move {
        let (w, m, mut storages) = cluster_with(&rt, 5, |t| {
            t.replace_after_ms = 0;
            t.recoveries_max = 2;
            t.slow_pause_ms = 60_000;
        })
        .await;
        let watch = storages[0].agent.clone();
        let slow = storages.remove(3);
        let (node, disk) = (slow.node, slow.kill());
        let of = move |c: &routing::ChainInfo| c.members.iter().find(|m| m.node == node).copied();
        until(&rt, &watch, BOUND, "two left", |r| {
            all_chains(r, |c| of(c).is_none_or(|m| m.state == PublicState::Offline))
        })
        .await;
        let _back = back_and_too_slow(&w, &m, node, disk).await;
        let waiting = watch.routing().chains.values().filter(|c| of(c).is_some()).count();
        assert!(waiting > 2, "{waiting} wait");
        let before = watch.routing().targets.len();
        order(&w, &m, (5, None), away::DRAIN).await.expect("places");
        until(&rt, &watch, BOUND, "one more is made", |r| r.targets.len() > before).await;
        m.stop().await;
    });
}

/// Only that disk is not taken.
#[test]
fn a_disk_of_another_node_keeps_nothing_but_itself_out() {
    real::run(|rt| async move {
        let (_w, m, storages) = cluster(&rt, 3, 0).await;
        let s = &storages[0];
        let disks = [(s.store, 0), (StoreId(2), 1), (StoreId(111), 2)];
        let register = stores_of(&s.agent, s.node, &disks);
        let reply: RegisterStoresReply =
            s.agent.link().call(method::REGISTER_STORES, &register, ms(5000)).await.expect("taken");
        assert_eq!(reply.refused.len(), 1, "{reply:?}");
        assert_eq!(reply.refused[0].store, StoreId(2));
        assert!(reply.refused[0].why.contains("belongs to node 2"), "{reply:?}");
        let r = s.agent.routing();
        assert!(r.targets.values().filter(|t| t.store == StoreId(2)).all(|t| t.node == NodeId(2)));
        // The third one is a place by now.
        lay(s, 2, 6).await.expect("laid");
        until(&rt, &s.agent, BOUND, "the new disk", |r| of_store(r, StoreId(111)) > 0).await;
        m.stop().await;
    });
}

/// Everybody gets all of it in one message, and chains cannot be taken away again.
#[test]
fn a_table_that_would_make_the_routing_info_too_long_is_refused() {
    real::run(|rt| async move {
        let (_w, m, storages) = cluster(&rt, 3, 0).await;
        let e = lay(&storages[0], 2, 20_000).await.expect_err("too many");
        assert_eq!(e.status, Status::TooLarge, "{e}");
        let said = e.message.split("about ").nth(1).and_then(|s| s.split(' ').next());
        let fit: u32 = said.and_then(|n| n.parse().ok()).expect("how many fit");
        assert!((5_000..20_000).contains(&fit), "{e}");
        let dry = |chains| CreateTable {
            table: ChainTableId(2),
            replicas: 3,
            chains,
            description: "test".into(),
            dry_run: true,
        };
        let ask = async |chains| {
            let link = storages[0].agent.link();
            link.call::<_, CreateTableReply>(method::CREATE_TABLE, &dry(chains), ms(5000)).await
        };
        ask(fit - 100).await.expect("these fit");
        assert_eq!(ask(fit + 100).await.expect_err("too many").status, Status::TooLarge);
        m.stop().await;
    });
}

/// The dead one that had a number before is not what the number means; where nothing else has it, it is.
#[test]
fn the_number_of_a_disk_means_the_one_that_has_it_now() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 4, 0).await;
        let s = &storages[3];
        let had = on(&s.agent.routing(), s.node);
        // The first disk was taken out of the configuration, and the second moved up.
        let second = StoreId(904);
        register(s, &[(s.store, 0), (second, 1)]).await;
        register(s, &[(second, 0)]).await;
        let (node, disk, what) = (s.node, Some(0), away::DRAIN);
        let ask = |dry_run| MoveAway { node, disk, what, dry_run, store: None };
        let reply: MoveAwayReply =
            admin(&w, &m, method::MOVE_AWAY, &ask(false)).await.expect("drains");
        assert!(reply.left.is_empty(), "it drains the one that is gone as well: {reply:?}");
        assert!(!reply.explanation.contains(&format!("store {} ", s.store)), "{reply:?}");
        // Both moved back: the number means the first one again, and no order was given for that.
        register(s, &[(s.store, 0), (second, 1)]).await;
        let look: MoveAwayReply =
            admin(&w, &m, method::MOVE_AWAY, &ask(true)).await.expect("looks");
        assert_eq!((look.in_force, look.left.len()), (Some(false), had), "{look:?}");
        // Alone under its number, one that is away is meant.
        register(s, &[(second, 1)]).await;
        let look: MoveAwayReply =
            admin(&w, &m, method::MOVE_AWAY, &ask(true)).await.expect("looks");
        assert_eq!(look.left.len(), had, "{look:?}");
        m.stop().await;
    });
}

/// `disk replace` for the sake of a disk that had the number before says nothing of the one that has it now.
#[test]
fn who_replaces_a_disk_that_is_gone_calls_off_no_drain_of_the_one_with_its_number() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 4, 0).await;
        let (s, next) = (&storages[3], StoreId(904));
        let had = on(&s.agent.routing(), s.node);
        register(s, &[(s.store, 0), (next, 1)]).await;
        register(s, &[(next, 0)]).await;
        order(&w, &m, (4, Some(0)), away::DRAIN).await.expect("drains");
        let reply = order(&w, &m, (4, Some(0)), away::REPLACE).await.expect("given up");
        assert_eq!(reply.left.len(), had);
        assert!(reply.explanation.contains(&format!("store {} ", s.store)), "{reply:?}");
        assert!(reply.explanation.contains("given up"), "{reply:?}");
        assert!(!reply.explanation.contains(&format!("store {next} ")), "{reply:?}");
        let again = order(&w, &m, (4, Some(0)), away::DRAIN).await.expect("looked at");
        assert_eq!(again.in_force, Some(true), "the drain was called off: {again:?}");
        m.stop().await;
    });
}

/// One of them may be whole, and only not mounted; what is in its place is then a directory of the root file system.
#[test]
fn of_several_disks_that_had_a_number_one_is_given_up_by_its_store() {
    real::run(|rt| async move {
        let (w, m, storages) = cluster(&rt, 4, 0).await;
        let (s, next, unmounted) = (&storages[3], StoreId(904), StoreId(905));
        register(s, &[(s.store, 0), (next, 1)]).await;
        lay(s, 2, 12).await.expect("laid");
        until(&rt, &s.agent, BOUND, "on the second disk", |r| of_store(r, next) > 0).await;
        register(s, &[(next, 0)]).await;
        register(s, &[(unmounted, 0)]).await;
        let e = order(&w, &m, (4, Some(0)), away::REPLACE).await.expect_err("which one?");
        assert_eq!(e.status, Status::InvalidArgument, "{e}");
        assert!(!e.message.contains("takes targets"), "{e}");
        for named in [s.store, next] {
            assert!(e.message.contains(&named.to_string()), "{e}");
        }
        let (node, disk, what) = (s.node, Some(0), away::GIVE_UP);
        let give_up = |store, dry_run| MoveAway { node, disk, what, dry_run, store };
        for wrong in [None, Some(StoreId(1)), Some(unmounted)] {
            let ask = give_up(wrong, false);
            let e = admin::<_, MoveAwayReply>(&w, &m, method::MOVE_AWAY, &ask).await;
            assert_eq!(e.expect_err("not that").status, Status::InvalidArgument);
        }
        let ask = give_up(Some(s.store), false);
        let reply: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &ask).await.expect("given up");
        assert!(!reply.left.is_empty() && reply.explanation.contains("given up"), "{reply:?}");
        assert!(!reply.explanation.contains(&next.to_string()), "{reply:?}");
        let look = give_up(Some(next), true);
        let other: MoveAwayReply =
            admin(&w, &m, method::MOVE_AWAY, &look).await.expect("looked at");
        assert_eq!(other.in_force, Some(false), "the other one, too: {other:?}");
        // Now it is clear again which one is meant, and what takes its place.
        let what = away::REPLACE;
        let look = MoveAway { node, disk, what, dry_run: true, store: None };
        let reply: MoveAwayReply = admin(&w, &m, method::MOVE_AWAY, &look).await.expect("one");
        let takes = format!("store {unmounted} of 1.0 GiB, which takes targets");
        assert!(reply.explanation.contains(&takes), "{reply:?}");
        m.stop().await;
    });
}
