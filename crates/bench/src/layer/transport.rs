//! Calls and bulk between two threads of this process, each with a runtime: like ib_send_bw and ib_read_bw, over each transport and size.

use super::Given;
use crate::drive::drive;
use crate::row::Row;
use anyhow::{Context, Result, anyhow};
use glowfs_net::{
    Bulk, Conn, Connector, ConnectorOptions, Handler, Incoming, NoCalls, Reply, Request, Server,
    TrustAll,
};
use glowfs_rt::{Address, Duration, Rt, real};
use glowfs_types::TenantId;
use glowfs_types::wire::hello::{Hello, HelloReply};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;

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

/// The method that [`Mirror`] is asked for.
const METHOD: u16 = 2;
/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// What goes through shared memory or sockets: (what, bytes, calls at a time).
const LOADS: [(&str, u64, u32); 16] = [
    ("echo", 64, 1),
    ("echo", 64, 8),
    ("echo", 64, 64),
    ("send", 4 << 10, 1),
    ("send", 4 << 10, 16),
    ("send", 64 << 10, 1),
    ("send", 64 << 10, 16),
    ("send", 1 << 20, 1),
    ("send", 1 << 20, 8),
    ("recv", 4 << 10, 1),
    ("recv", 4 << 10, 16),
    ("recv", 64 << 10, 1),
    ("recv", 64 << 10, 16),
    ("recv", 1 << 20, 1),
    ("recv", 1 << 20, 8),
    ("recv", 4 << 20, 4),
];

/// See the module. Bulk is not touched by either end: what is measured is the way.
pub async fn transport(rt: &Rt, socket: PathBuf, given: Given) -> Result<Vec<Row>> {
    let tcp: Address = "127.0.0.1:0".parse().map_err(|e| anyhow!("{e}"))?;
    let addresses = mirror(vec![tcp, Address::Unix(socket)], None)?;
    let mut rows = vec![];
    for kind in ["tcp", "unix", "shm"] {
        let options =
            ConnectorOptions::from_names(&[kind.to_owned()]).map_err(|e| anyhow!("{e}"))?;
        let connector = Connector::with_options(rt, Hello::default(), Rc::new(NoCalls), options);
        let conn = connector.connect(&addresses).await.context("connecting to the other thread")?;
        for (what, bytes, depth) in LOADS {
            let plan = given.plan("transport", what, kind, bytes, depth);
            let (rt2, conn) = (rt.clone(), conn.clone());
            let payload = rt.alloc(bytes as usize).freeze();
            let op = move |_| {
                let bulk = match what {
                    "echo" => Bulk::None,
                    "send" => Bulk::Send(vec![payload.clone()]),
                    _ => Bulk::Recv(rt2.alloc(bytes as usize)),
                };
                call(conn.clone(), bulk)
            };
            let row = drive(rt, &plan, op).await?;
            given.done(&mut rows, row);
        }
    }
    Ok(rows)
}

pub(super) async fn call(conn: Rc<Conn>, bulk: Bulk) -> Result<()> {
    let request = Request {
        method: METHOD,
        body: vec![1; 64],
        bulk,
        tenant: TenantId(0),
        deadline: DEADLINE,
    };
    conn.call(request).await?;
    Ok(())
}

/// The other end, on a thread that lasts as long as the process, in the network namespace that is given; where it listens.
pub(super) fn mirror(listen: Vec<Address>, namespace: Option<OwnedFd>) -> Result<Vec<String>> {
    let (tell, addresses) = mpsc::channel();
    let server = move |rt: Rt| async move {
        let kind = Some(LinkNameSpaceType::Network);
        let entered = namespace.map_or(Ok(()), |n| move_into_link_name_space(n.as_fd(), kind));
        let start = |()| {
            Server::start(&rt, listen, HelloReply::default(), Rc::new(TrustAll), Rc::new(Mirror))
                .map_err(|e| e.to_string())
        };
        let served = entered.map_err(|e| e.to_string()).and_then(start);
        let names =
            served.as_ref().map(|s| s.addresses().iter().map(ToString::to_string).collect());
        let _ = tell.send(names.map_err(ToString::to_string));
        let _kept = served;
        std::future::pending::<()>().await;
    };
    real::spawn_thread("mirror", real::Config::default(), server)?;
    let names: std::result::Result<Vec<String>, String> =
        addresses.recv().context("the other thread ended")?;
    names.map_err(|e| anyhow!("listening: {e}"))
}
