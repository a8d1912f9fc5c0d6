//! What changes an inode is asked of the service that owns it, by all clients, as long as that one answers.

use crate::fake::{Fake, Fault};
use glowfs_client::Client;
use glowfs_rt::real::run;
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::method;
use glowfs_types::*;

const METAS: [NodeId; 3] = [NodeId(10), NodeId(11), NodeId(12)];

fn calls(fake: &Fake, method: u16) -> [u64; 3] {
    METAS.map(|n| fake.calls(n, method))
}

/// Removes a name; returns which service did it, if it was one alone.
async fn removed_by(fake: &Fake, client: &Client, dir: u64) -> Option<NodeId> {
    let before = calls(fake, method::UNLINK);
    let query = Unlink {
        caller: Caller::default(),
        request: RequestId(0),
        parent: InodeId(dir),
        name: b"x".to_vec().into(),
        directory: false,
    };
    client.unlink(query).await.expect("removed");
    let after = calls(fake, method::UNLINK);
    let asked: Vec<usize> = (0..METAS.len()).filter(|i| after[*i] > before[*i]).collect();
    match asked.as_slice() {
        [one] => Some(METAS[*one]),
        _ => None,
    }
}

async fn look(client: &Client) {
    let query =
        Lookup { caller: Caller::default(), parent: InodeId(1), name: b"y".to_vec().into() };
    client.lookup(query).await.expect_err("not there");
}

#[test]
fn all_clients_change_the_names_of_a_directory_at_one_service() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 3).await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(fake.client().await);
        }
        let mut owners = Vec::new();
        for dir in 1..20 {
            let owner = removed_by(&fake, &clients[0], dir).await.expect("one service");
            for client in &clients[1..] {
                assert_eq!(removed_by(&fake, client, dir).await, Some(owner), "directory {dir}");
            }
            owners.push(owner);
        }
        assert!(METAS.iter().all(|m| owners.contains(m)), "all services own some: {owners:?}");
        // Who only looks stays with one, whosever the directory is.
        for client in &clients {
            let before = calls(&fake, method::LOOKUP);
            for _ in 0..5 {
                look(client).await;
            }
            let after = calls(&fake, method::LOOKUP);
            let asked: Vec<u64> = (0..3).map(|i| after[i] - before[i]).collect();
            assert!(asked.contains(&5), "{asked:?}");
        }
    });
}

/// It was asked again and again, a whole attempt each time: it said that it was alive, and did not reach its engine.
#[test]
fn an_owner_that_does_not_answer_is_waited_for_once() {
    run(|rt: Rt| async move {
        let fake = Fake::start(&rt, 1, 3).await;
        let client = fake.client().await;
        let owner = removed_by(&fake, &client, 1).await.expect("one service");
        for method in [method::UNLINK, method::GETATTR] {
            fake.fault(owner, method, &vec![Fault::Silent; 100]);
        }
        assert_eq!(removed_by(&fake, &client, 1).await, None, "the owner and the next one");
        let until = rt.now() + Duration::from_secs(3);
        let mut next = Vec::new();
        while rt.now() < until {
            let began = rt.now();
            next.push(removed_by(&fake, &client, 1).await.expect("one service"));
            assert!(rt.now().since(began) < client.config().meta_attempt, "nobody is waited for");
            rt.sleep(Duration::from_millis(50)).await;
        }
        assert!(next.iter().all(|n| *n != owner && *n == next[0]), "{next:?}");
        // It answers again: it is the owner again.
        fake.state.faults.borrow_mut().clear();
        let until = rt.now() + Duration::from_secs(10);
        while removed_by(&fake, &client, 1).await != Some(owner) {
            assert!(rt.now() < until, "the owner is not asked again");
            rt.sleep(Duration::from_millis(50)).await;
        }
    });
}

/// Who only looks stays with others as well, also when it is no suspect any more.
#[test]
fn who_did_not_answer_is_not_asked_for_what_anybody_knows() {
    run(|rt: Rt| async move {
        let fake = Fake::start(&rt, 1, 3).await;
        let client = fake.client().await;
        look(&client).await;
        let near = METAS.into_iter().find(|n| fake.calls(*n, method::LOOKUP) > 0).expect("one");
        let mut dir = 1;
        while removed_by(&fake, &client, dir).await != Some(near) {
            dir += 1;
        }
        for method in [method::UNLINK, method::GETATTR, method::LOOKUP] {
            fake.fault(near, method, &vec![Fault::Silent; 100]);
        }
        assert_eq!(removed_by(&fake, &client, dir).await, None, "the owner and the next one");
        rt.sleep(Duration::from_millis(1500)).await;
        let before = fake.calls(near, method::LOOKUP);
        look(&client).await;
        assert_eq!(fake.calls(near, method::LOOKUP), before, "it does not answer");
    });
}
