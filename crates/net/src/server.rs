//! The accepting side.

use crate::shares::Shares;
use crate::waiters::Waiters;
use crate::{Authenticator, Conn, Handler, Identity, handshake, limits};
use glowfs_rt::sync::{Either, select};
use glowfs_rt::{Address, Duration, Listener, Rt, Stream};
use glowfs_types::wire::hello::{Hello, HelloReply, features};
use glowfs_types::{Error, Result, Status};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// The pause after a failed accept (too many open files, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Connections served at a time, beyond those in their handshake; one more is refused. Some are for services only, and one user gets a part of them.
    pub connections_max: usize,
    /// How long [`Server::stop`] lets answers go out.
    pub stop_grace: Duration,
    /// Offer shared memory on Unix sockets.
    pub shm: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections_max: limits::SERVER_CONNECTIONS_MAX,
            stop_grace: limits::STOP_GRACE,
            shm: true,
        }
    }
}

/// Listens on some addresses and serves the connections. Dropping it stops listening and closes all of them.
pub struct Server {
    addresses: Vec<Address>,
    shared: Rc<Shared>,
}

struct Shared {
    rt: Rt,
    options: ServerOptions,
    info: RefCell<HelloReply>,
    authenticator: Rc<dyn Authenticator>,
    handler: Rc<dyn Handler>,
    conns: RefCell<BTreeMap<u64, Rc<Conn>>>,
    shares: Rc<Shares>,
    /// Those that have not said their hello, and those that have and are not answered. Nobody knows who they are yet, so they take no place of others.
    silent: Greeting,
    unanswered: Greeting,
    greeted: Cell<u64>,
    stopped: Cell<bool>,
    stop_waiters: Waiters,
}

/// Connections in a part of their handshake, the oldest first.
#[derive(Default)]
struct Greeting(RefCell<VecDeque<(u64, Stream)>>);

impl Greeting {
    /// One more; if there are so many already, the oldest of them ends.
    fn enter(&self, number: u64, stream: Stream, most: usize, why: &str) {
        let mut all = self.0.borrow_mut();
        if all.len() >= most
            && let Some((_, oldest)) = all.pop_front()
        {
            tracing::warn!(peer = oldest.peer(), why, "ending a connection in its handshake");
            oldest.shutdown();
        }
        all.push_back((number, stream));
    }
    fn leave(&self, number: u64) {
        self.0.borrow_mut().retain(|g| g.0 != number);
    }
}

impl Server {
    /// Starts to listen. `info` is the template of the hello's answer: features, user and root are filled in per connection.
    pub fn start(
        rt: &Rt,
        addresses: Vec<Address>,
        info: HelloReply,
        authenticator: Rc<dyn Authenticator>,
        handler: Rc<dyn Handler>,
    ) -> Result<Server> {
        Self::start_with(rt, addresses, info, authenticator, handler, ServerOptions::default())
    }
    /// The same with settings.
    pub fn start_with(
        rt: &Rt,
        addresses: Vec<Address>,
        info: HelloReply,
        authenticator: Rc<dyn Authenticator>,
        handler: Rc<dyn Handler>,
        options: ServerOptions,
    ) -> Result<Server> {
        let mut listeners = Vec::new();
        for address in &addresses {
            listeners.push(rt.listen(address).map_err(|e| {
                Error::new(Status::InvalidArgument, format!("cannot listen on {address}: {e}"))
            })?);
        }
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            shares: Shares::new(options.connections_max),
            options,
            info: RefCell::new(info),
            authenticator,
            handler,
            conns: RefCell::default(),
            silent: Greeting::default(),
            unanswered: Greeting::default(),
            greeted: Cell::new(0),
            stopped: Cell::new(false),
            stop_waiters: Waiters::default(),
        });
        let addresses = listeners.iter().map(|l| l.local()).collect();
        for listener in listeners {
            rt.spawn_detached(accept(shared.clone(), listener));
        }
        Ok(Server { addresses, shared })
    }
    /// Where it listens, with the real ports.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
    /// What later connections are told (the cluster id may become known after the start).
    pub fn set_info(&self, info: HelloReply) {
        *self.shared.info.borrow_mut() = info;
    }
    /// The connections now.
    pub fn connections(&self) -> Vec<Rc<Conn>> {
        self.shared.conns.borrow().values().cloned().collect()
    }
    /// Stops: accepts nothing more, answers new calls `ShuttingDown`, lets outstanding answers go out (bounded), closes.
    pub async fn stop(self) {
        self.shared.stop_listening();
        let grace = self.shared.options.stop_grace;
        let conns = self.connections();
        // All of them share the grace: a drain that was not awaited yet goes on meanwhile.
        let draining = async {
            for conn in &conns {
                conn.begin_drain();
            }
            for conn in &conns {
                conn.drained().await;
            }
        };
        if self.shared.rt.timeout(grace, draining).await.is_err() {
            tracing::warn!(?grace, "stopped with calls that are not answered");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop_listening();
        for conn in self.connections() {
            conn.close();
        }
    }
}

impl Shared {
    fn stop_listening(&self) {
        self.stopped.set(true);
        self.stop_waiters.wake();
    }

    /// A connection begins its handshake. Its number.
    fn greets(&self, stream: Stream) -> u64 {
        let number = self.greeted.get() + 1;
        self.greeted.set(number);
        let why = "too many say no hello";
        self.silent.enter(number, stream, limits::HANDSHAKES_MAX, why);
        number
    }
    /// It has said its hello.
    fn hears(&self, number: u64, stream: &Stream) {
        self.silent.leave(number);
        let why = "too many wait for mgmtd to say what their tokens stand for";
        self.unanswered.enter(number, stream.clone(), limits::UNANSWERED_HELLOS_MAX, why);
    }
}

async fn accept(shared: Rc<Shared>, listener: Listener) {
    let local = listener.local();
    tracing::info!(%local, "listening");
    loop {
        let accepted = poll_fn(|cx| {
            if shared.stopped.get() {
                return Poll::Ready(None);
            }
            shared.stop_waiters.register(cx);
            listener.poll_accept(cx).map(Some)
        })
        .await;
        match accepted {
            None => return,
            Some(Err(e)) => {
                tracing::warn!(%local, "accept: {e}");
                shared.rt.sleep(ACCEPT_PAUSE).await;
            }
            Some(Ok(stream)) => {
                let number = shared.greets(stream.clone());
                shared.rt.spawn_detached(serve(shared.clone(), stream, number));
                // Many may be waiting: each is heard before the next one takes its place.
                shared.rt.yield_now().await;
            }
        }
    }
}

/// Resolves when the identity that the connection began with does not hold any more. Not being able to tell is no reason.
async fn no_longer_welcome(shared: &Shared, conn: &Conn, hello: &Hello) {
    loop {
        shared.rt.sleep(limits::IDENTITY_RECHECK).await;
        let why = match shared.authenticator.check(hello).await {
            Ok(identity) if identity == conn.peer().identity => continue,
            Ok(_) => "its token stands for something else now".to_owned(),
            Err(e) => match e.status {
                Status::BadToken | Status::AccessDenied | Status::SessionEnded => e.message,
                _ => continue,
            },
        };
        tracing::info!(peer = conn.peer().address, why, "closing a connection");
        return;
    }
}

async fn serve(shared: Rc<Shared>, stream: Stream, number: u64) {
    let mut info = shared.info.borrow().clone();
    info.features = if shared.options.shm { features::SHM } else { 0 };
    if info.release.is_empty() {
        info.release = glowfs_telemetry::RELEASE.into();
    }
    let admit = |identity: &Identity| shared.shares.place(identity);
    let accept = handshake::Accept {
        info,
        authenticator: &*shared.authenticator,
        heard: || shared.hears(number, &stream),
        admit,
    };
    let hello = accept.run(&shared.rt, stream.clone());
    let hello = shared.rt.timeout(limits::HANDSHAKE_DEADLINE, hello).await;
    shared.silent.leave(number);
    shared.unanswered.leave(number);
    match hello {
        Ok(Ok((inbound, peer, hello, place))) if !shared.stopped.get() => {
            let (handler, sender) = (shared.handler.clone(), place.sender());
            let conn = Conn::accepted(&shared.rt, inbound, peer, handler, sender);
            shared.conns.borrow_mut().insert(conn.id(), conn.clone());
            let refused = pin!(no_longer_welcome(&shared, &conn, &hello));
            if let Either::Right(()) = select(pin!(conn.closed()), refused).await {
                conn.close();
            }
            shared.conns.borrow_mut().remove(&conn.id());
            drop(place);
        }
        Ok(Ok(_)) => stream.shutdown(),
        Ok(Err(e)) => {
            tracing::info!(peer = stream.peer(), "hello refused: {e}");
            stream.shutdown();
        }
        Err(_) => {
            tracing::info!(peer = stream.peer(), "no hello within the deadline");
            stream.shutdown();
        }
    }
}
