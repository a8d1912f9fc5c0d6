//! What a call costs: CPU time of both ends and latency, for small calls and for 1 MiB of bulk each way.
//!
//!     cargo run --release -p glowfs-net --example rpc_cost
//!
//! Both ends are threads of this process, with a runtime each. The bulk is not touched: what is measured is the way, not a memcpy of the user.

use glowfs_net::{
    Bulk, Connector, ConnectorOptions, Handler, Incoming, NoCalls, Reply, Request, Server, TrustAll,
};
use glowfs_rt::{Address, Duration, Rt, real};
use glowfs_types::TenantId;
use glowfs_types::wire::hello::{Hello, HelloReply};
use std::rc::Rc;
use std::sync::mpsc;

const MIB: usize = 1 << 20;
const RUN: Duration = Duration::from_secs(1);

/// Answers everything with the same body and all of the room.
struct Mirror;
impl Handler for Mirror {
    fn handle(self: Rc<Self>, mut call: Incoming) {
        let _sent = call.take_bulk();
        let bulk = call.reply_buffer().ok();
        let body = call.body().to_vec();
        call.reply(Ok(Reply { body, bulk }));
    }
    fn serves_echo(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Echo,
    Send,
    Recv,
}

fn cpu_us() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

async fn measure(rt: &Rt, transport: &str, conn: Rc<glowfs_net::Conn>, kind: Kind, depth: usize) {
    let end = rt.now() + RUN;
    let (start, cpu) = (rt.now(), cpu_us());
    let lanes: Vec<_> = (0..depth)
        .map(|_| {
            let (rt, conn) = (rt.clone(), conn.clone());
            rt.clone().spawn(async move {
                let mut count = 0u64;
                let sent = rt.alloc(MIB).freeze();
                let mut room = Some(rt.alloc(MIB));
                while rt.now() < end {
                    let bulk = match kind {
                        Kind::Echo => Bulk::None,
                        Kind::Send => Bulk::Send(vec![sent.clone()]),
                        Kind::Recv => Bulk::Recv(room.take().unwrap_or_else(|| rt.alloc(MIB))),
                    };
                    let deadline = Duration::from_secs(5);
                    let body = vec![1; 64];
                    let tenant = TenantId(0);
                    let request = Request { method: 2, body, bulk, tenant, deadline };
                    let answer = conn.call(request).await.expect("call");
                    room = answer.bulk;
                    count += 1;
                }
                count
            })
        })
        .collect();
    let mut count = 0;
    for lane in lanes {
        count += lane.await;
    }
    let (took, cpu) = (rt.now().since(start).as_secs_f64(), cpu_us() - cpu);
    let (what, bytes) = match kind {
        Kind::Echo => ("64 B echo", 0),
        Kind::Send => ("1 MiB send", MIB),
        Kind::Recv => ("1 MiB recv", MIB),
    };
    println!(
        "{transport:5} {what:10} depth {depth:3}: {:9.0} calls/s  {:7.2} us CPU (both ends)  {:8.1} us latency  {:5.2} GB/s",
        count as f64 / took,
        cpu / count as f64,
        took * 1e6 * depth as f64 / count as f64,
        count as f64 * bytes as f64 / took / 1e9,
    );
}

fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let (tell, addresses) = mpsc::channel();
    let server = move |rt: Rt| async move {
        let listen = vec!["127.0.0.1:0".parse().expect("address"), Address::Unix(path)];
        let info = HelloReply::default();
        let server =
            Server::start(&rt, listen, info, Rc::new(TrustAll), Rc::new(Mirror)).expect("listen");
        let names: Vec<_> = server.addresses().iter().map(ToString::to_string).collect();
        tell.send(names).expect("somebody listens");
        std::future::pending::<()>().await;
    };
    real::spawn_thread("server", real::Config::default(), server).expect("a thread");
    let addresses = addresses.recv().expect("addresses");
    real::run(|rt| async move {
        for transport in ["tcp", "unix", "shm"] {
            let options = ConnectorOptions::from_names(&[transport.to_owned()]).expect("known");
            let connector =
                Connector::with_options(&rt, Hello::default(), Rc::new(NoCalls), options);
            let conn = connector.connect(&addresses).await.expect("connect");
            for (kind, depth) in [
                (Kind::Echo, 1),
                (Kind::Echo, 32),
                (Kind::Echo, 256),
                (Kind::Send, 1),
                (Kind::Send, 8),
                (Kind::Recv, 1),
                (Kind::Recv, 8),
            ] {
                measure(&rt, transport, conn.clone(), kind, depth).await;
            }
        }
    });
}
