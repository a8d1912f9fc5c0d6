//! Answers that are kept, and turns.

use super::*;
use crate::{Config, Running, Timing, start_with_engine};
use glowfs_kv::{EngineConfig, Memory};
use glowfs_net::{Conn, Connector, NoCalls};
use glowfs_rt::{Rt, real};
use glowfs_types::routing::{NodeInfo, NodeStatus, Role, RoutingInfo};
use glowfs_types::wire::hello::Hello;
use glowfs_types::wire::method::{GET_ROUTING, USER_ADD};
use glowfs_types::wire::mgmtd::{UserAdd, UserAddReply, UserInfo};
use glowfs_types::{ClusterId, NodeId};
use std::cell::Cell;

fn at_ms(ms: u64) -> Instant {
    Instant(0) + Duration::from_millis(ms)
}

#[test]
fn answers_are_kept_for_a_while_and_bounded() {
    let mut answers = Answers::default();
    let version = RoutingVersion;
    for have in 0..100 {
        answers.keep(version(have), at_ms(have), vec![0; 1000].into());
    }
    assert_eq!((answers.kept.len(), answers.bytes), (ANSWERS_MAX, ANSWERS_MAX * 1000));
    assert!(answers.find(version(35), at_ms(100)).is_none());
    assert!(answers.find(version(36), at_ms(100)).is_some());
    assert!(answers.find(version(36), at_ms(36 + 500)).is_none(), "it is old");
    // A new one takes the place of the old one.
    answers.keep(version(36), at_ms(600), vec![1; 7].into());
    assert_eq!(answers.kept.len(), ANSWERS_MAX);
    assert_eq!(answers.find(version(36), at_ms(600)).as_deref(), Some([1; 7].as_slice()));
    answers.keep(version(200), at_ms(600), vec![0; ANSWERS_BYTES_MAX - 1000].into());
    assert!(answers.bytes <= ANSWERS_BYTES_MAX && answers.kept.len() < ANSWERS_MAX);
    answers.keep(version(201), at_ms(600), vec![0; ANSWERS_BYTES_MAX + 1].into());
    assert_eq!((answers.kept.len(), answers.bytes), (1, ANSWERS_BYTES_MAX + 1));
    answers.clear();
    assert!(answers.find(version(201), at_ms(600)).is_none() && answers.bytes == 0);
}

#[test]
fn each_user_has_turns_of_his_own_and_leaves_nothing() {
    real::run(|rt| async move {
        let turns = Turns::default();
        let of = |user| Identity { user: UserId(user), ..Identity::default() };
        let mine = turns.turn(&of(1)).await;
        let wait = Duration::from_millis(20);
        assert!(rt.timeout(wait, turns.turn(&of(1))).await.is_err());
        drop(rt.timeout(wait, turns.turn(&of(2))).await.expect("his own"));
        drop(rt.timeout(wait, turns.turn(&Identity::SERVICE)).await.expect("its own"));
        assert_eq!(turns.accounts.borrow().len(), 1);
        drop(mine);
        assert!(turns.accounts.borrow().is_empty());
        let places: Vec<_> = std::iter::from_fn(|| turns.place(&of(1)).ok()).collect();
        assert_eq!(places.len(), CALLS_MAX / 2);
        assert!(turns.place(&of(2)).is_ok() && turns.place(&Identity::SERVICE).is_ok());
    });
}

const CLUSTER: ClusterId = ClusterId(0xC1);
const SECOND: Duration = Duration::from_secs(1);

/// A primary, and a user's connection to it.
struct World {
    running: Running,
    conn: Rc<Conn>,
    _rest: (tempfile::TempDir, Rc<Connector>),
}

impl World {
    async fn new(rt: &Rt) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| dir.path().join(name);
        for name in ["service", "root"] {
            std::fs::write(file(name), format!("the-{name}-token")).expect("write");
        }
        let config = Config {
            node_id: 100,
            cluster_id: CLUSTER.to_string(),
            listen: vec!["tcp://127.0.0.1:0".into()],
            http: None,
            // Not looked at.
            engine: EngineConfig::Remote { addresses: vec!["tcp://127.0.0.1:1".into()] },
            service_token_file: file("service"),
            root_token_file: file("root"),
            tags: BTreeMap::new(),
            transports: vec![],
            timing: Timing::default(),
        };
        let running = start_with_engine(rt, config, Some(Memory::engine())).await.expect("mgmtd");
        // Nothing is left to settle: what the tests change is not in the engine.
        let settled = |s: &mut State| s.version > RoutingVersion(0) && s.dirty_nodes.is_empty();
        while running.inner.lock.free() == 0 || !running.inner.with(settled).unwrap_or(false) {
            rt.sleep(Duration::from_millis(5)).await;
        }
        let at: Vec<_> = running.addresses().iter().map(|a| a.to_string()).collect();
        let connector = async |token: String| {
            let hello = Hello { cluster: CLUSTER, token, ..Hello::default() };
            let connector = Connector::new(rt, hello, Rc::new(NoCalls));
            let conn = connector.connect(&at).await.expect("connected");
            (connector, conn)
        };
        let (_root, conn) = connector("the-root-token".into()).await;
        let user = UserInfo {
            user: UserId(1000),
            name: "ann".into(),
            groups: vec![],
            root: false,
            admin: false,
            service: false,
        };
        let add = UserAdd { user, only_new: true, token: None };
        let added: UserAddReply = conn.call_msg(USER_ADD, &add, SECOND).await.expect("added");
        let (connector, conn) = connector(added.token).await;
        Self { running, conn, _rest: (dir, connector) }
    }
    fn inner(&self) -> &Inner {
        &self.running.inner
    }
    fn version(&self) -> RoutingVersion {
        self.inner().with(|s| s.version).expect("primary")
    }
    /// The routing info changes: very many nodes do.
    fn change(&self) {
        let changed = self.version().next();
        let node = |id| NodeInfo {
            id: NodeId(id),
            role: Role::Storage,
            addresses: vec!["tcp://127.0.0.1:1".into()],
            host: Default::default(),
            hostname: "h".into(),
            pid: 1,
            tags: BTreeMap::new(),
            status: NodeStatus::Disabled,
            last_heartbeat_ns: 0,
            config_version: Default::default(),
            release: String::new(),
            http: None,
            kept_out_ms: 0,
        };
        let nodes = (1000..2000).map(node).collect();
        let edit = crate::edit::Edit { nodes, ..Default::default() };
        self.inner().with(|s| edit.apply(s, changed, 0)).expect("primary");
        self.inner().changed.notify_all();
    }
    async fn ask(
        &self,
        have: RoutingVersion,
        wait_ms: u64,
        limit: Duration,
    ) -> Result<RoutingInfo> {
        self.conn.call_msg(GET_ROUTING, &GetRouting { have, wait_ms }, limit).await
    }
    fn kept(&self) -> usize {
        self.inner().with(|s| s.answers.kept.len()).expect("primary")
    }
    fn asking(&self) -> usize {
        self.inner().turns.calls.taken()
    }
}

/// What else there is to do on this thread (the lease is renewed on it) comes between any two answers.
#[test]
fn very_many_who_hear_of_a_change_take_turns() {
    const CALLS: usize = 1000;
    real::run(|rt| async move {
        let w = Rc::new(World::new(&rt).await);
        let have = w.version();
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let w = w.clone();
                rt.spawn(async move { w.ask(have, 30_000, 40 * SECOND).await })
            })
            .collect();
        while w.asking() < CALLS {
            rt.sleep(Duration::from_millis(5)).await;
        }
        let (most, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let watched = {
            let (w, rt2, most, over) = (w.clone(), rt.clone(), most.clone(), over.clone());
            rt.spawn(async move {
                while !over.get() {
                    let before = w.asking();
                    rt2.yield_now().await;
                    most.set(most.get().max(before.saturating_sub(w.asking())));
                }
            })
        };
        w.change();
        for call in calls {
            let info = call.await.expect("an answer");
            assert!(info.version > have && info.nodes.len() >= 1000, "{:?}", info.version);
        }
        over.set(true);
        watched.await;
        assert_eq!(w.kept(), 1, "all of them got the same");
        assert!(most.get() <= 2, "{} answers in one turn", most.get());
    });
}

#[test]
fn who_does_not_wait_any_more_gets_no_answer() {
    real::run(|rt| async move {
        let w = World::new(&rt).await;
        w.change();
        let turn =
            w.inner().turns.turn(&Identity { user: UserId(1000), ..Identity::default() }).await;
        let wait = Duration::from_millis(50);
        let e = w.ask(RoutingVersion(0), 0, wait).await.expect_err("it is not his turn");
        assert_eq!(e.status, Status::TimedOut, "{e}");
        // Its time begins a little later at the other end.
        rt.sleep(wait).await;
        drop(turn);
        while w.asking() > 0 {
            rt.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(w.kept(), 0, "nothing was worked out for him");
        let info = w.ask(RoutingVersion(0), 0, SECOND).await.expect("an answer");
        assert!(info.nodes.len() >= 1000);
        // What it says of the present version is not given in the next one.
        w.change();
        let next = w.ask(RoutingVersion(0), 0, SECOND).await.expect("an answer");
        assert_eq!(next.version, info.version.next());
        let same = w.ask(next.version, 0, SECOND).await.expect("an answer");
        assert_eq!((same.version, same.nodes.len()), (next.version, 0));
    });
}
