//! What the tests of net share.

use glowfs_net::{
    Authenticator, Bulk, Conn, Connector, ConnectorOptions, Handler, Identity, Incoming, Reply,
    Request, Server,
};
use glowfs_rt::mem::{Owner, Region};
use glowfs_rt::{Address, BoxFuture, BufMut, Duration, Rt};
use glowfs_types::wire::hello::{Hello, HelloReply};
use glowfs_types::{ClusterId, Error, HostId, NodeId, Result, Status, TenantId, UserId};
use rustix::fs::{MemfdFlags, SealFlags};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

pub const SECOND: Duration = Duration::from_secs(1);
/// Answers the body reversed and the bulk's sum; with room: fills it with 0, 1, 2...
pub const WORK: u16 = 900;
/// Waits as many ms as the body says, then answers like WORK.
pub const WAIT: u16 = 901;
/// Drops the call.
pub const FORGET: u16 = 902;
/// Calls WORK at the caller's end and answers what came.
pub const BACK: u16 = 903;
/// Answers with its own buffer, not the one of the caller.
pub const OWN_BUFFER: u16 = 904;
/// Passes the bulk it got on with WORK to the server in `next`.
pub const PASS_ON: u16 = 905;

#[derive(Default)]
pub struct Service {
    pub rt: RefCell<Option<Rt>>,
    pub connected: Cell<usize>,
    pub disconnected: Cell<usize>,
    pub oneway: Cell<usize>,
    pub shared: Cell<usize>,
    pub running: Cell<usize>,
    pub next: RefCell<Option<Rc<Conn>>>,
}

impl Service {
    pub fn new(rt: &Rt) -> Rc<Self> {
        Rc::new(Self { rt: RefCell::new(Some(rt.clone())), ..Self::default() })
    }
    async fn serve(self: Rc<Self>, mut call: Incoming) {
        let rt = self.rt.borrow().clone().expect("a runtime");
        let result = match call.method() {
            WAIT => {
                let ms = call.body().first().copied().unwrap_or(0);
                rt.sleep(Duration::from_millis(ms.into())).await;
                work(&self, &mut call)
            }
            BACK => {
                let request = request(WORK, call.body().to_vec(), Bulk::None);
                call.conn().clone().call(request).await.map(|r| Reply::body(r.body))
            }
            OWN_BUFFER => {
                let mut own = rt.alloc(call.reply_room());
                own.fill(7);
                Ok(Reply { body: Vec::new(), bulk: Some(own) })
            }
            PASS_ON => {
                let next = self.next.borrow().clone().expect("a successor");
                let bulk = Bulk::Send(vec![call.take_bulk().expect("bulk")]);
                next.call(request(WORK, call.body().to_vec(), bulk))
                    .await
                    .map(|r| Reply::body(r.body))
            }
            _ => work(&self, &mut call),
        };
        call.reply(result);
        self.running.set(self.running.get() - 1);
    }
}

fn work(service: &Service, call: &mut Incoming) -> Result<Reply> {
    let mut body: Vec<u8> = call.body().iter().rev().copied().collect();
    let sent = call.take_bulk()?;
    if !sent.is_empty() {
        if is_callers(sent.region(), sent.len()) {
            service.shared.set(service.shared.get() + 1);
        }
        body.extend(sum(&sent).to_le_bytes());
    }
    let bulk = if call.reply_room() > 0 {
        let mut room = call.reply_buffer()?;
        if is_callers(room.region(), room.len()) {
            service.shared.set(service.shared.get() + 1);
        }
        room.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        let all = room.len();
        // The last byte is not used: a short answer.
        room.truncate(all - 1);
        Some(room)
    } else {
        None
    };
    Ok(Reply { body, bulk })
}

/// Regions of [`shared`] are just as long as their buffer; those of the pool are not.
fn is_callers(region: Option<(Rc<Region>, u64)>, len: usize) -> bool {
    region.is_some_and(|(r, _)| r.len == len as u64)
}

pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&b| u64::from(b)).sum()
}

impl Handler for Service {
    fn handle(self: Rc<Self>, call: Incoming) {
        if !call.wants_reply() {
            self.oneway.set(self.oneway.get() + 1);
            return;
        }
        match call.method() {
            FORGET => {}
            WORK | WAIT | BACK | OWN_BUFFER | PASS_ON => {
                self.running.set(self.running.get() + 1);
                let rt = self.rt.borrow().clone().expect("a runtime");
                rt.spawn_detached(self.serve(call));
            }
            other => {
                call.reply(Err(Error::new(Status::UnknownMethod, format!("method {other}"))));
            }
        }
    }
    fn takes_bulk(&self, _: u16) -> bool {
        true
    }
    fn connected(&self, _: &Rc<Conn>) {
        self.connected.set(self.connected.get() + 1);
    }
    fn disconnected(&self, _: &Rc<Conn>) {
        self.disconnected.set(self.disconnected.get() + 1);
    }
}

/// Knows one token.
pub struct OneToken;
impl Authenticator for OneToken {
    fn check(&self, hello: &Hello) -> BoxFuture<Result<Identity>> {
        let result = if hello.token == "secret" {
            Ok(Identity { user: UserId(7), ..Identity::default() })
        } else {
            Err(Error::new(Status::BadToken, "the token is not known; ask your operator for one"))
        };
        Box::pin(async { result })
    }
}

pub fn request(method: u16, body: Vec<u8>, bulk: Bulk) -> Request {
    Request { method, body, bulk, tenant: TenantId(3), deadline: 5 * SECOND }
}

pub fn hello() -> Hello {
    Hello { cluster: ClusterId(1), token: "secret".into(), host: HostId(5), ..Hello::default() }
}

pub fn info() -> HelloReply {
    HelloReply { cluster: ClusterId(1), node: NodeId(9), ..HelloReply::default() }
}

pub fn any_tcp() -> Address {
    "tcp://127.0.0.1:0".parse().expect("address")
}

pub fn start(rt: &Rt, addresses: Vec<Address>, service: Rc<Service>) -> Server {
    Server::start(rt, addresses, info(), Rc::new(OneToken), service).expect("listen")
}

pub fn names(server: &Server) -> Vec<String> {
    server.addresses().iter().map(ToString::to_string).collect()
}

pub fn connector(rt: &Rt, service: &Rc<Service>, transports: &[&str]) -> Rc<Connector> {
    let transports: Vec<String> = transports.iter().map(ToString::to_string).collect();
    let options = ConnectorOptions::from_names(&transports).expect("transports");
    Connector::with_options(rt, hello(), service.clone(), options)
}

/// Memory in a region of its own, like that of a real pool.
pub fn shared(len: usize) -> BufMut {
    shared_with(len, true)
}

pub fn shared_with(len: usize, sealed: bool) -> BufMut {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("test", flags).expect("memfd");
    rustix::fs::ftruncate(&fd, len as u64).expect("room");
    if sealed {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seal");
    }
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at the kernel's choice.
    let raw = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &fd, 0) };
    let ptr = NonNull::new(raw.expect("map").cast::<u8>()).expect("not null");
    thread_local!(static LAST: Cell<u64> = const { Cell::new(1 << 62) });
    LAST.set(LAST.get() + 1);
    let region = Rc::new(Region { id: LAST.get(), fd, len: len as u64 });
    let owner = Rc::new(Memory { ptr, len, region });
    // SAFETY: the owner keeps the mapping, and this is its first handle.
    unsafe { BufMut::from_raw(ptr, len, owner) }
}

struct Memory {
    ptr: NonNull<u8>,
    len: usize,
    region: Rc<Region>,
}
impl Owner for Memory {
    fn region(&self, ptr: *const u8) -> Option<(Rc<Region>, u64)> {
        Some((self.region.clone(), ptr as u64 - self.ptr.as_ptr() as u64))
    }
}
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped above with this length; no handle is left.
        unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len).expect("unmap") };
    }
}
