//! The client while mgmtd has older metadata than it had: against a cluster in memory, over real connections.

use crate::fake::Fake;
use glowfs_client::Client;
use glowfs_rt::Duration;
use glowfs_rt::real::run;
use glowfs_types::wire::method;
use glowfs_types::*;

/// Questions in a second that are not too many: a pause lies between two of them.
const FEW: u64 = 15;

/// Answers that were older than what it had it took for none, and asked again at once, the more so while a call waited for routing info.
#[test]
fn a_manager_that_knows_less_is_asked_with_pauses_and_believed_when_it_knows_more() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let mut config = fake.config();
        config.session = false;
        config.routing_stale = Duration::from_millis(200);
        config.connect_timeout = Duration::from_millis(500);
        let client = Client::connect(&rt, config).await.expect("connects");
        fake.fail_over(NodeId(20));
        while client.routing().version < RoutingVersion(2) {
            rt.sleep(Duration::from_millis(5)).await;
        }
        fake.put_back(1);
        rt.sleep(Duration::from_millis(500)).await;
        let waits = client.clone();
        rt.spawn_detached(async move {
            let _ = waits.refresh_routing(RoutingVersion(0)).await;
        });
        let before = fake.calls(NodeId(1), method::GET_ROUTING);
        rt.sleep(Duration::from_secs(1)).await;
        let asked = fake.calls(NodeId(1), method::GET_ROUTING) - before;
        assert!((1..FEW).contains(&asked), "{asked} times in a second");
        assert_eq!(client.routing().version, RoutingVersion(2), "what it knew stays");
        let e = client.ready().await.expect_err("what it knows is old");
        assert!(e.message.contains("older metadata was put back"), "{e}");
        // The record has passed what the client knew.
        fake.fail_over(NodeId(21));
        fake.fail_over(NodeId(22));
        client.ready().await.expect("knows the newest");
        assert_eq!(client.routing().version, RoutingVersion(3));
        client.close().await;
    });
}
