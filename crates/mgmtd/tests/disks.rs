//! Disks that come and go: what is put in the place of a known one, what returns.
#![allow(missing_docs)]

mod common;
use common::operate::*;
use common::*;
use glowfs_rt::real;
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::operate::away;
use glowfs_types::*;
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
