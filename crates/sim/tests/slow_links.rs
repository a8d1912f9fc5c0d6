//! Connections over links that are slow: what takes long there is not taken for a peer that is gone, and one that is gone is found all the same.

use glowfs_net::{
    Authenticator, Bulk, Conn, Connector, Handler, Identity, Incoming, NoCalls, Reply, Request,
    Server,
};
use glowfs_rt::sync::join_all;
use glowfs_rt::{BoxFuture, Buf, Duration, Rt};
use glowfs_sim::world::{Link, SimNode, World};
use glowfs_types::wire::hello::{Hello, HelloReply};
use glowfs_types::wire::method::{READ, WRITE};
use glowfs_types::{Result, Status, TenantId};
use std::rc::Rc;

const PORT: u16 = 7000;
const MIB: usize = 1 << 20;
/// A message of the greatest length.
const LONG: usize = 64 * MIB;
/// What it takes 32 s over.
const SLOW: u64 = 2 * MIB as u64;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(600);
/// How long the caller waits for an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Within which a peer is found that is gone: it is asked at the second look after it was heard last, and nothing has moved for 10 s then or at the look after that.
const FOUND: Duration = Duration::from_secs(16);

const fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Takes all that is sent, and fills all the room that is given, after a while.
struct Service {
    rt: Rt,
    after: Duration,
}

impl Handler for Service {
    fn handle(self: Rc<Self>, mut call: Incoming) {
        let (rt, me) = (self.rt.clone(), self.clone());
        rt.spawn_detached(async move {
            me.rt.sleep(me.after).await;
            // For ever, in a way.
            if call.body() == STUCK {
                me.rt.sleep(PATIENCE).await;
            }
            let bulk = (call.reply_room() > 0).then(|| call.reply_buffer().expect("room"));
            call.reply(Ok(Reply { body: Vec::new(), bulk }));
        });
    }
}

/// The body of a call that is not answered.
const STUCK: &[u8] = b"stuck";

/// Takes everybody for root.
struct Root;
impl Authenticator for Root {
    fn check(&self, _: &Hello) -> BoxFuture<Result<Identity>> {
        Box::pin(async { Ok(Identity { root: true, ..Identity::default() }) })
    }
}

/// Two machines: who calls, and who answers after a while.
struct Two {
    world: World,
    here: SimNode,
    there: SimNode,
}

impl Two {
    fn start(seed: u64, after: Duration) -> Self {
        let world = World::new(seed);
        let (here, there) = (world.node("here"), world.node("there"));
        let (rt, at) = (there.rt(), there.address(PORT));
        there.rt().spawn_detached(async move {
            let service = Rc::new(Service { rt: rt.clone(), after });
            let (info, root) = (HelloReply::default(), Rc::new(Root));
            let _server = Server::start(&rt, vec![at], info, root, service);
            std::future::pending::<()>().await;
        });
        Self { world, here, there }
    }
    fn connect(&self, node: &SimNode) -> (Rc<Connector>, Rc<Conn>) {
        let (rt, at) = (node.rt(), self.there.address(PORT).to_string());
        let connected = self.world.run(node, LIMIT, async move {
            let connector = Connector::new(&rt, Hello::default(), Rc::new(NoCalls));
            let conn: Rc<Conn> = connector.connect(&[at]).await.expect("connected");
            (connector, conn)
        });
        connected.expect("in time")
    }
    /// Connects, has `links` changed then, and makes one call: what came of it, and after how long.
    fn call(
        &self,
        method: u16,
        bulk: fn(&Rt) -> Bulk,
        links: impl FnOnce(),
    ) -> (Result<()>, Duration) {
        let (connector, conn) = self.connect(&self.here);
        links();
        let rt = self.here.rt();
        let done = self.world.run(&self.here, LIMIT, async move {
            let (bulk, tenant, began) = (bulk(&rt), TenantId(0), rt.now());
            let request = Request { method, body: Vec::new(), bulk, tenant, deadline: PATIENCE };
            let result = conn.call(request).await.map(drop);
            drop(connector);
            (result, rt.now().since(began))
        });
        done.expect("in time")
    }
}

fn send(_: &Rt) -> Bulk {
    Bulk::Send(vec![Buf::from_vec(vec![7; LONG])])
}
/// What takes so much longer over a link that is far, too: a connection has so much on its way at most.
fn receive(rt: &Rt) -> Bulk {
    Bulk::Recv(rt.alloc(LONG / 4))
}

/// The question whether the peer is there stands behind the message.
#[test]
fn a_peer_that_takes_a_long_message_slowly_is_there() {
    let two = Two::start(1, Duration::ZERO);
    let (result, took) = two.call(WRITE, send, || two.world.set_rate(&two.here, &two.there, SLOW));
    result.expect("taken");
    assert!(took > seconds(30) && took < seconds(40), "{took:?}");
}

/// The question is on its way when the answer begins to be sent, so its own answer stands behind that.
#[test]
fn a_peer_that_answers_at_length_and_slowly_is_there() {
    let two = Two::start(2, seconds(1));
    let far = 2_000_000_000;
    let (result, took) = two.call(READ, receive, || {
        for (a, b, bytes_per_s) in [(&two.here, &two.there, 0), (&two.there, &two.here, SLOW)] {
            let link = two.world.link(a, b);
            let link = Link { latency_ns_min: far, latency_ns_max: far, bytes_per_s, ..link };
            two.world.set_link(a, b, link);
        }
    });
    result.expect("answered");
    assert!(took > seconds(30) && took < seconds(60), "{took:?}");
}

/// What its machine still takes is not taken by it.
#[test]
fn a_peer_that_stands_still_is_found_as_soon_while_a_long_message_is_sent() {
    for (seed, after) in [(3, 1), (4, 5), (5, 8)] {
        let two = Two::start(seed, Duration::ZERO);
        let (rt, there) = (two.here.rt(), two.there.clone());
        two.here.rt().spawn_detached(async move {
            rt.sleep(seconds(after)).await;
            there.freeze(seconds(300));
        });
        let (result, took) =
            two.call(WRITE, send, || two.world.set_rate(&two.here, &two.there, SLOW));
        assert_eq!(result.expect_err("gone").status, Status::Disconnected);
        assert!(took <= seconds(after) + FOUND, "{after} s: {took:?}");
    }
}

/// What the link carries in the time of a call, and much more.
#[test]
fn calls_wait_for_answers_that_are_on_their_way_and_not_for_others() {
    const CALLS: usize = 40;
    const TIME: Duration = seconds(3);
    let two = Two::start(7, Duration::ZERO);
    let (_connector, conn) = two.connect(&two.here);
    let request = |rt: &Rt, body: &[u8], bytes: usize| Request {
        method: READ,
        body: body.to_vec(),
        bulk: Bulk::Recv(rt.alloc(bytes)),
        tenant: TenantId(0),
        deadline: TIME,
    };
    // A link that is fast enough: the one that is not answered is given up when its time is up.
    let (rt, all) = (two.here.rt(), conn.clone());
    let stuck = two.world.run(&two.here, LIMIT, async move {
        let began = rt.now();
        let others = async {
            while rt.now().since(began) < seconds(10) {
                all.call_patiently(request(&rt, b"", 4096), PATIENCE).await.expect("answered");
                rt.sleep(Duration::from_millis(10)).await;
            }
        };
        let stuck = async {
            let result = all.call_patiently(request(&rt, STUCK, 4096), PATIENCE).await;
            (result.map(drop).expect_err("stuck").status, rt.now().since(began))
        };
        let (stuck, ()) = glowfs_rt::sync::join(stuck, others).await;
        stuck
    });
    let (status, took) = stuck.expect("in time");
    assert!(
        status == Status::TimedOut && took < TIME + seconds(1) / 2,
        "{status:?} after {took:?}"
    );
    // One that is not: 20 s for all.
    two.world.set_rate(&two.there, &two.here, SLOW);
    let rt = two.here.rt();
    let (took, stuck) = two
        .world
        .run(&two.here, LIMIT, async move {
            let began = rt.now();
            let stuck = rt.spawn({
                let (conn, rt) = (conn.clone(), rt.clone());
                async move {
                    let result = conn.call_patiently(request(&rt, STUCK, MIB), PATIENCE).await;
                    (result.is_err(), rt.now().since(began))
                }
            });
            let calls = (0..CALLS).map(|_| conn.call_patiently(request(&rt, b"", MIB), PATIENCE));
            for result in join_all(calls).await {
                result.expect("answered");
            }
            (rt.now().since(began), stuck.await)
        })
        .expect("in time");
    assert!(took > seconds(15) && took < seconds(25), "{took:?}");
    assert!(stuck.0 && stuck.1 < took + seconds(3), "{stuck:?}");
}

/// More than a connection queues: what waits for its queue goes on waiting as long as that leaves.
#[test]
fn calls_wait_for_a_queue_that_leaves() {
    const CALLS: usize = 7;
    const EACH: usize = 16 * MIB;
    let two = Two::start(8, Duration::ZERO);
    let (_connector, conn) = two.connect(&two.here);
    two.world.set_rate(&two.here, &two.there, 4 * SLOW);
    let rt = two.here.rt();
    let took = two.world.run(&two.here, LIMIT, async move {
        let began = rt.now();
        let calls = (0..CALLS).map(|_| {
            let bulk = Bulk::Send(vec![Buf::from_vec(vec![7; EACH])]);
            let (body, tenant, deadline) = (Vec::new(), TenantId(0), seconds(1));
            conn.call_patiently(Request { method: WRITE, body, bulk, tenant, deadline }, PATIENCE)
        });
        for result in join_all(calls).await {
            result.expect("taken");
        }
        rt.now().since(began)
    });
    let took = took.expect("in time");
    assert!(took > seconds(13) && took < seconds(17), "{took:?}");
}

/// What is ready when nobody waits for it any more keeps nothing else waiting.
#[test]
fn an_answer_that_nobody_waits_for_is_not_sent() {
    let two = Two::start(9, seconds(4));
    let (_connector, conn) = two.connect(&two.here);
    two.world.set_rate(&two.there, &two.here, SLOW);
    let rt = two.here.rt();
    let took = two.world.run(&two.here, LIMIT, async move {
        let request = |bytes: usize, deadline| Request {
            method: READ,
            body: Vec::new(),
            bulk: Bulk::Recv(rt.alloc(bytes)),
            tenant: TenantId(0),
            deadline,
        };
        let given_up = conn.call_patiently(request(LONG / 4, seconds(1)), PATIENCE).await;
        assert_eq!(given_up.map(drop).expect_err("late").status, Status::TimedOut);
        let began = rt.now();
        conn.call(request(4096, PATIENCE)).await.expect("answered");
        rt.now().since(began)
    });
    let took = took.expect("in time");
    assert!(took < seconds(5), "{took:?}");
}

/// What the machine of the sender holds is still received, and who stands behind it waits.
#[test]
fn an_answer_behind_what_the_kernel_holds_is_sent() {
    // It takes the kernel 3 s to send that.
    const FIRST: usize = 900 << 10;
    const RATE: u64 = 280 << 10;
    let two = Two::start(10, seconds(1));
    let (_connector, conn) = two.connect(&two.here);
    two.world.set_rate(&two.there, &two.here, RATE);
    let rt = two.here.rt();
    let done = two.world.run(&two.here, LIMIT, async move {
        let request = |bytes: usize, deadline| Request {
            method: READ,
            body: Vec::new(),
            bulk: Bulk::Recv(rt.alloc(bytes)),
            tenant: TenantId(0),
            deadline,
        };
        let second = async {
            rt.sleep(Duration::from_millis(2600)).await;
            // It is ready half a second after its time, and 2.6 s after the first one.
            conn.call_patiently(request(4096, seconds(1) / 2), PATIENCE).await
        };
        let first = conn.call_patiently(request(FIRST, PATIENCE), PATIENCE);
        glowfs_rt::sync::join(first, second).await
    });
    let (first, second) = done.expect("in time");
    first.expect("answered");
    second.expect("it was on its way");
}
