//! Members of a chain that say of a neighbour that it is not reached.
#![allow(missing_docs)]

use crate::common::operate::*;
use crate::common::*;
use glowfs_rt::real;
use glowfs_types::wire::mgmtd::ReportSlow;
use glowfs_types::wire::{Empty, method};

/// It would be alone then, and may be unable to bring the one that it does not reach up to date: reads go on at the head.
#[test]
fn a_member_behind_does_not_leave_a_chain_of_two_with_one() {
    real::run(|rt| async move {
        let (_w, m, storages) = cluster_with(&rt, 3, |t| t.slow_pause_ms = 60_000).await;
        let watch = &storages[0].agent;
        let chain = watch.routing().chains.values().next().cloned().expect("a chain");
        let [head, second, third] = [0, 1, 2].map(|i| chain.members[i]);
        let say = async |version, target, reporter| {
            let chain = chain.id;
            let report = ReportSlow { chain, version, target, reporter, unreachable: true };
            let heard = watch.link().call(method::REPORT_SLOW, &report, ms(5000));
            let _: Empty = heard.await.expect("heard");
        };
        let serving = |r: &glowfs_types::routing::RoutingInfo| {
            r.chains[&chain.id].serving().map(|m| m.target).collect::<Vec<_>>()
        };
        // The last one does not answer its predecessor, and goes.
        say(chain.version, third.target, second.target).await;
        let two = vec![head.target, second.target];
        until(&rt, watch, BOUND, "two", |r| serving(r) == two).await;
        say(watch.routing().chains[&chain.id].version, head.target, second.target).await;
        rt.sleep(ms(500)).await;
        assert_eq!(serving(&watch.routing()), two, "one of two was taken out");
        // The data path is another thing.
        say(watch.routing().chains[&chain.id].version, second.target, head.target).await;
        until(&rt, watch, BOUND, "the head alone", |r| serving(r) == [head.target]).await;
        m.stop().await;
    });
}

/// A member behind hears nothing of what it may show. Of who is no neighbour nothing is taken.
#[test]
fn a_member_behind_that_does_not_reach_its_predecessor_is_heard() {
    real::run(|rt| async move {
        let (_w, m, storages) = cluster_with(&rt, 3, |t| t.slow_pause_ms = 60_000).await;
        let watch = &storages[0].agent;
        let chain = watch.routing().chains.values().next().cloned().expect("a chain");
        let [head, second, third] = [0, 1, 2].map(|i| chain.members[i].target);
        let say = async |reporter| {
            let (chain, version) = (chain.id, chain.version);
            let report = ReportSlow { chain, version, target: head, reporter, unreachable: true };
            let heard = watch.link().call(method::REPORT_SLOW, &report, ms(5000));
            let _: Empty = heard.await.expect("heard");
        };
        say(third).await;
        rt.sleep(ms(500)).await;
        assert_eq!(watch.routing().chains[&chain.id].version, chain.version, "no neighbour");
        say(second).await;
        let left = |r: &glowfs_types::routing::RoutingInfo| {
            let now = &r.chains[&chain.id];
            now.version > chain.version && now.serving().all(|m| m.target != head)
        };
        until(&rt, watch, BOUND, "without the head", left).await;
        m.stop().await;
    });
}
