//! The engine over RPC passes the same suite, and answers services only.

use glowfs_kv::serve::KvService;
use glowfs_kv::{Engine, Key, Memory, RangePage, Remote, Transaction, Value, Version, conformance};
use glowfs_net::{
    Authenticator, Connector, Handler, Identity, Incoming, NoCalls, Server, TrustAll,
};
use glowfs_rt::{Address, BoxFuture, Rt, real};
use glowfs_types::wire::hello::{Hello, HelloReply};
use glowfs_types::wire::kv::Commit;
use glowfs_types::{Result, Status, UserId};
use std::cell::Cell;
use std::rc::Rc;

struct Kv(KvService);
impl Handler for Kv {
    fn handle(self: Rc<Self>, incoming: Incoming) {
        assert!(KvService::takes(incoming.method()));
        self.0.handle(incoming);
    }
}

struct OrdinaryUser;
impl Authenticator for OrdinaryUser {
    fn check(&self, _: &Hello) -> BoxFuture<Result<Identity>> {
        let user = Identity { user: UserId(0), root: true, admin: true, service: false };
        Box::pin(async move { Ok(user) })
    }
}

fn serve(rt: &Rt, authenticator: Rc<dyn Authenticator>) -> (Server, Rc<dyn Engine>) {
    serve_engine(rt, authenticator, Memory::engine())
}

fn serve_engine(
    rt: &Rt,
    authenticator: Rc<dyn Authenticator>,
    engine: Rc<dyn Engine>,
) -> (Server, Rc<dyn Engine>) {
    let service = Rc::new(Kv(KvService::new(rt, engine)));
    let address: Address = "tcp://127.0.0.1:0".parse().expect("address");
    let server = Server::start(rt, vec![address], HelloReply::default(), authenticator, service)
        .expect("listens");
    let addresses = server.addresses().iter().map(Address::to_string).collect();
    let connector = Connector::new(rt, Hello::default(), Rc::new(NoCalls));
    (server, Rc::new(Remote::new(rt, connector, addresses)))
}

#[test]
fn conformance_over_rpc() {
    real::run(|rt| async move {
        let (server, engine) = serve(&rt, Rc::new(TrustAll));
        conformance::run(&rt, &engine, 5, 60).await.expect("remote");
        conformance::counters(&rt, &engine, 4, 10).await.expect("counters");
        engine.flush_barrier().await.expect("barrier");
        server.stop().await;
        engine.begin().await.expect_err("nobody is there");
        let tx = Transaction::new(engine);
        tx.put(b"k", b"v").expect("small");
        let e = tx.commit(false).await.expect_err("nobody is there");
        assert_eq!(e.status, Status::Disconnected, "not sent, so the outcome is known: {e}");
    });
}

#[test]
fn only_services_may_ask() {
    real::run(|rt| async move {
        let (server, engine) = serve(&rt, Rc::new(OrdinaryUser));
        assert_eq!(engine.begin().await.expect_err("refused").status, Status::AccessDenied);
        server.stop().await;
    });
}

/// An engine of which the test says which life it is in.
struct Lives {
    memory: Memory,
    life: Cell<u64>,
}

impl Engine for Lives {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        Box::pin(std::future::ready(Ok(self.life.get() + 7)))
    }
    fn life(&self, _version: Version) -> u64 {
        self.life.get()
    }
    fn get(&self, _: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        Box::pin(std::future::ready(Ok(vec![None; keys.len()])))
    }
    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        self.memory.get_range(version, begin, end, limit, reverse)
    }
    fn commit(&self, _: Commit) -> BoxFuture<Result<Version>> {
        Box::pin(std::future::ready(Ok(0)))
    }
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        self.memory.flush_barrier()
    }
}

/// What a transaction reads is of the life of the host in which it began, whatever others hear meanwhile.
#[test]
fn a_transaction_knows_the_life_of_the_host() {
    real::run(|rt| async move {
        let host = Rc::new(Lives { memory: Memory::new(), life: Cell::new(0) });
        let (server, engine) = serve_engine(&rt, Rc::new(TrustAll), host.clone());
        let begun = async || {
            let tx = Transaction::new(engine.clone());
            tx.get(b"k").await.expect("read");
            tx
        };
        assert_eq!(begun().await.life(), 0, "an engine that loses nothing");
        let mut all = Vec::new();
        for life in [100, 300, 200, 300, 400] {
            host.life.set(life);
            all.push((begun().await, life));
        }
        for (tx, life) in all {
            assert_eq!(tx.life(), life);
        }
        server.stop().await;
    });
}

/// Values that do not fit into one message were an error each time they were asked for: `fsck` ended at the first page of small files.
#[test]
fn what_does_not_fit_into_one_message_is_read_in_parts() {
    const VALUES: u32 = 512;
    real::run(|rt| async move {
        let (server, engine) = serve(&rt, Rc::new(TrustAll));
        let keys: Vec<Key> = (0..VALUES).map(|n| n.to_be_bytes().to_vec()).collect();
        let value = |n: u32| vec![n as u8; 16 << 10];
        for n in 0..VALUES {
            let tx = Transaction::new(engine.clone());
            tx.put(n.to_be_bytes(), value(n)).expect("small");
            tx.commit(false).await.expect("put");
        }
        let tx = Transaction::new(engine);
        let ask: Vec<Key> = keys.iter().cloned().chain([b"none".to_vec()]).collect();
        let found = tx.get_all_snapshot(&ask).await.expect("read");
        assert_eq!(found.len(), ask.len());
        assert!((0..VALUES).all(|n| found[n as usize] == Some(value(n))) && found[512].is_none());
        server.stop().await;
    });
}
