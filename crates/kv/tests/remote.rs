//! The engine over RPC passes the same suite, and answers services only.

use glowfs_kv::serve::KvService;
use glowfs_kv::{Engine, Memory, Remote, Transaction, conformance};
use glowfs_net::{
    Authenticator, Connector, Handler, Identity, Incoming, NoCalls, Server, TrustAll,
};
use glowfs_rt::{Address, BoxFuture, Rt, real};
use glowfs_types::wire::hello::{Hello, HelloReply};
use glowfs_types::{Result, Status, UserId};
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
    let service = Rc::new(Kv(KvService::new(rt, Memory::engine())));
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
