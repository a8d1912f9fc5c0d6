//! A peer that stands still, as one that was stopped does, with memory of ours in its hands.

use crate::common::*;
use glowfs_net::{Bulk, Connector, ConnectorOptions, Handler, Incoming, Reply};
use glowfs_rt::{Address, Duration, real};
use glowfs_types::Status;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const QUARANTINE: Duration = Duration::from_millis(300);

/// How far the peer is, and what it waits for.
const LISTENS: u32 = 1;
const STANDS: u32 = 2;
const GOES_ON: u32 = 3;
const HAS_WRITTEN: u32 = 4;

/// Takes the room that it is given, stands still with it, and writes there when it goes on.
struct Stopped(Arc<AtomicU32>);

impl Handler for Stopped {
    fn handle(self: Rc<Self>, mut call: Incoming) {
        let mut room = call.reply_buffer().expect("room");
        self.0.store(STANDS, SeqCst);
        while self.0.load(SeqCst) != GOES_ON {
            std::thread::sleep(Duration::from_millis(1));
        }
        room.fill(9);
        self.0.store(HAS_WRITTEN, SeqCst);
        call.reply(Ok(Reply { body: Vec::new(), bulk: Some(room) }));
    }
}

#[test]
fn what_a_peer_that_stands_still_was_given_is_kept_until_it_has_gone_on_and_for_the_quarantine() {
    let dir = tempfile::tempdir().expect("dir");
    let address = Address::Unix(dir.path().join("s"));
    let (state, listen) = (Arc::new(AtomicU32::new(0)), address.clone());
    let stopped = state.clone();
    std::thread::spawn(move || {
        real::run(move |rt| async move {
            let handler = Rc::new(Stopped(stopped.clone()));
            let _server =
                glowfs_net::Server::start(&rt, vec![listen], info(), Rc::new(OneToken), handler);
            stopped.store(LISTENS, SeqCst);
            std::future::pending::<()>().await;
        });
    });
    real::run(move |rt| async move {
        let reached = async |what: u32| {
            while state.load(SeqCst) != what {
                rt.sleep(Duration::from_millis(1)).await;
            }
        };
        reached(LISTENS).await;
        let options = ConnectorOptions { quarantine: QUARANTINE, ..ConnectorOptions::default() };
        let connector = Connector::with_options(&rt, hello(), Service::new(&rt), options);
        let conn = connector.connect(&[address.to_string()]).await.expect("connect");
        assert!(conn.peer().shares_memory());
        let room = shared(1 << 16);
        let memory = Rc::downgrade(&room.region().expect("shared").0);
        let there = conn.clone();
        let call =
            rt.spawn(async move { there.call(request(WORK, vec![], Bulk::Recv(room))).await });
        reached(STANDS).await;
        // As when nothing is heard of it for long.
        conn.close();
        assert_eq!(call.await.expect_err("closed").status, Status::Disconnected);
        rt.sleep(QUARANTINE * 3).await;
        assert!(memory.strong_count() > 0, "it will write there when it goes on");
        let went_on = rt.now();
        state.store(GOES_ON, SeqCst);
        reached(HAS_WRITTEN).await;
        while memory.strong_count() > 0 {
            assert!(rt.now().since(went_on) < QUARANTINE * 20, "it is kept for ever");
            rt.sleep(Duration::from_millis(10)).await;
        }
        assert!(rt.now().since(went_on) >= QUARANTINE, "its disk may still be at it");
    });
}
