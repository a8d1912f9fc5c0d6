//! The client begins a new life, since the cluster took it for dead: against a cluster in memory, over real connections.

use crate::fake::{Fake, Fault, open};
use glowfs_client::{Client, ClientConfig};
use glowfs_rt::real::run;
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::method;
use glowfs_types::*;
use std::rc::Rc;

const MANAGER: NodeId = NodeId(1);

async fn eventually(rt: &Rt, so: impl Fn() -> bool) {
    while !so() {
        rt.sleep(Duration::from_millis(2)).await;
    }
}

/// The next look at the client's session says that it has ended.
async fn ended(rt: &Rt, fake: &Fake, client: &Client) {
    let before = client.id();
    fake.fault(MANAGER, method::CLIENT_SESSION, &[Fault::Refuse(Status::SessionEnded)]);
    eventually(rt, || client.id() != before).await;
}

/// Meta asks the clients that mgmtd knows whether they have a file open, before it gives up what that holds.
#[test]
fn nothing_is_opened_before_mgmtd_knows_the_new_life() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        open(&client).await;
        let session = method::CLIENT_SESSION;
        fake.fault(MANAGER, session, &[Fault::Refuse(Status::SessionEnded)]);
        fake.fault(MANAGER, session, &[const { Fault::Refuse(Status::Overloaded) }; 5]);
        let before = client.id();
        eventually(&rt, || client.id() != before).await;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let make = Make {
            caller: Caller::default(),
            request: RequestId(0),
            parent: InodeId(1),
            name: b"new".to_vec().into(),
            kind: InodeKind::File,
            mode: 0o644,
            rdev: 0,
            symlink: Vec::new(),
            open: Some(flags),
            exclusive: false,
            unnamed: false,
            umask: 0,
        };
        let made = {
            let client = client.clone();
            rt.spawn(async move { client.make(make).await })
        };
        open(&client).await;
        made.await.expect("made");
        assert!(fake.state.sessions.borrow().contains(&client.id()));
        assert_eq!(fake.state.opened_unknown.get(), 0, "by a client that nobody knew");
        assert_eq!(fake.calls(NodeId(10), method::OPEN), 2);
    });
}

/// A write waits for routing info when the new life begins. It was begun in the last one, and its file is dead with that.
#[test]
fn a_write_that_a_new_life_overtakes_hears_that_its_session_has_ended() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let config = ClientConfig { write_attempt: Duration::from_secs(10), ..fake.config() };
        let client = Client::connect(&rt, config).await.expect("connects");
        let file = open(&client).await;
        file.write(0, Buf::from_vec(vec![1])).await.expect("write");
        // Nothing is heard of the managers until what is known of the cluster is too old to go by.
        fake.fault(MANAGER, method::GET_ROUTING, &[const { Fault::Silent }; 1000]);
        rt.sleep(Duration::from_millis(3500)).await;
        let (writer, writes) = (Rc::clone(&file), fake.calls(NodeId(20), method::WRITE));
        let write = rt.spawn(async move { writer.write(0, Buf::from_vec(vec![2])).await });
        rt.sleep(Duration::from_millis(50)).await;
        assert_eq!(fake.calls(NodeId(20), method::WRITE), writes, "it waits");
        ended(&rt, &fake, &client).await;
        fake.state.faults.borrow_mut().clear();
        let e = write.await.expect_err("its session has ended");
        assert_eq!((e.status, e.errno()), (Status::SessionEnded, 5), "{e}");
    });
}
