//! Connections to other storage nodes: one for each rank of what is forwarded, and one for everything else.
//!
//! A forward waits for such of the next rank, and those of the last one for nobody (`admission.rs`). A connection has bounds, so with one for all ranks
//! those of the first could take all of it, and the others, for which they wait, had none left. Must never: send what is forwarded by another
//! connection than its rank's.

use glowfs_net::{Conn, Connector, ConnectorOptions, NoCalls, Target};
use glowfs_rt::Rt;
use glowfs_types::wire::hello::Hello;
use glowfs_types::{Error, NodeId, Result, RoutingVersion, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Ranks that have a connection of their own, at most; more members than that no chain has (`glowfs_cluster::MEMBERS_MAX`).
const LANES_MAX: usize = 32;

/// A node, and the rank of what is sent there.
type Place = (NodeId, usize);
/// A connection, and the version of the routing info that it was found by.
type Near = (RoutingVersion, Rc<Conn>);

/// See the module.
pub(crate) struct Lanes {
    rt: Rt,
    hello: Hello,
    options: ConnectorOptions,
    /// By rank; 0 for what is not forwarded.
    connectors: RefCell<BTreeMap<usize, Rc<Connector>>>,
    /// The connections of late, by node and rank, with the version of the routing info that they were found by: to find one by its addresses costs more than a small
    /// message.
    near: RefCell<BTreeMap<Place, Near>>,
    closed: Cell<bool>,
}

impl Lanes {
    /// No connection yet.
    pub fn new(rt: &Rt, hello: Hello, options: ConnectorOptions) -> Self {
        let (rt, connectors, near) = (rt.clone(), RefCell::default(), RefCell::default());
        Self { rt, hello, options, connectors, near, closed: Cell::new(false) }
    }
    /// The connection for what comes to its target with this rank; 0: for everything else.
    pub async fn connect(&self, target: &Target, rank: usize) -> Result<Rc<Conn>> {
        if self.closed.get() {
            return Err(Status::ShuttingDown.into());
        }
        if rank >= LANES_MAX {
            let e = format!("a chain has no member of rank {rank}");
            return Err(Error::new(Status::Internal, e));
        }
        let make = || {
            let (hello, options) = (self.hello.clone(), self.options.clone());
            Connector::with_options(&self.rt, hello, Rc::new(NoCalls), options)
        };
        let connector = self.connectors.borrow_mut().entry(rank).or_insert_with(make).clone();
        connector.connect_to(target).await
    }
    /// Notes which connection leads to a node, by what version of the routing info; those of other versions are forgotten.
    pub fn note(&self, place: Place, version: RoutingVersion, conn: &Rc<Conn>) {
        if self.closed.get() {
            return;
        }
        let mut near = self.near.borrow_mut();
        near.retain(|_, (of, _)| *of == version);
        near.insert(place, (version, conn.clone()));
    }
    /// The connection that was noted under that version, if it lives.
    pub fn near(&self, place: Place, version: RoutingVersion) -> Option<Rc<Conn>> {
        let near = self.near.borrow();
        let (of, conn) = near.get(&place)?;
        (*of == version && !conn.is_closed()).then(|| conn.clone())
    }
    /// Closes all of them, for good.
    pub fn close(&self) {
        self.closed.set(true);
        self.near.take();
        self.connectors.take().into_values().for_each(|connector| connector.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_net::{Handler, Incoming, Reply, Server, TrustAll};
    use glowfs_rt::{Address, Duration, real};
    use glowfs_types::wire::hello::HelloReply;
    use glowfs_types::wire::{Empty, method};

    /// Keeps what it is asked, but for calls of this method.
    const ANSWERED: u16 = method::ECHO;
    const LIMIT: Duration = Duration::from_secs(20);

    #[derive(Default)]
    struct Keeps(RefCell<Vec<Incoming>>);

    impl Handler for Keeps {
        fn handle(self: Rc<Self>, incoming: Incoming) {
            if incoming.method() == ANSWERED {
                return incoming.reply(Ok(Reply::msg(&Empty {})));
            }
            self.0.borrow_mut().push(incoming);
        }
    }

    /// One rank has all calls of its connection under way: the next one, for which it waits, still gets through, and so does all else.
    #[test]
    fn a_rank_that_is_full_leaves_the_others_their_connections() {
        real::run(|rt| async move {
            let kept = Rc::new(Keeps::default());
            let listen: Vec<Address> = vec!["tcp://127.0.0.1:0".parse().expect("address")];
            let (hello, trust) = (HelloReply::default(), Rc::new(TrustAll));
            let server = Server::start(&rt, listen, hello, trust, kept.clone());
            let server = server.expect("a server");
            let addresses = server.addresses().iter().map(|a| a.to_string()).collect();
            let target = Target { addresses, ..Target::default() };
            let lanes = Rc::new(Lanes::new(&rt, Hello::default(), ConnectorOptions::default()));
            let first = lanes.connect(&target, 1).await.expect("connected");
            let mut calls = Vec::new();
            loop {
                // More than a connection takes is refused at once; what is taken waits.
                let conn = first.clone();
                let mut call = Box::pin(async move {
                    conn.call_msg::<_, Empty>(method::FORWARD, &Empty {}, LIMIT).await
                });
                match rt.timeout(Duration::from_micros(10), &mut call).await {
                    Ok(refused) => {
                        let e = refused.expect_err("nobody answers");
                        assert_eq!(e.status, Status::Overloaded, "{e}");
                        break;
                    }
                    Err(_) => calls.push(call),
                }
                assert!(calls.len() < 100_000, "a connection without a bound");
            }
            for rank in [2, 0, 31] {
                let conn = lanes.connect(&target, rank).await.expect("connected");
                let answer = conn.call_msg::<_, Empty>(ANSWERED, &Empty {}, LIMIT).await;
                answer.unwrap_or_else(|e| {
                    panic!("rank {rank}, beside {} calls of rank 1: {e}", calls.len())
                });
            }
            let (here, then, now) = ((NodeId(1), 1), RoutingVersion(1), RoutingVersion(2));
            lanes.note(here, then, &first);
            assert!(lanes.near(here, then).is_some_and(|conn| Rc::ptr_eq(&conn, &first)));
            assert!(lanes.near((NodeId(1), 2), then).is_none(), "that is another rank's");
            assert!(lanes.near(here, now).is_none(), "the node may be elsewhere by now");
            let other = lanes.connect(&target, 2).await.expect("connected");
            lanes.note((NodeId(1), 2), now, &other);
            assert!(lanes.near(here, then).is_none(), "forgotten");
            other.close();
            assert!(lanes.near((NodeId(1), 2), now).is_none(), "it has ended");
            lanes.connect(&target, LANES_MAX).await.map(drop).expect_err("no such rank");
            lanes.close();
            lanes.connect(&target, 1).await.map(drop).expect_err("closed");
            drop(calls);
            rt.timeout(LIMIT, server.stop()).await.expect("stopped");
        });
    }
}
