//! The network: who listens where, which links are up, and how connections come to be.

use super::core::Core;
use super::node::{Node, SimNode};
use super::stream::{self, Wire};
use glowfs_rt::Address;
use glowfs_rt::backend::{BoxFuture, Listener, ListenerIo, Stream};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: usize = 128;
/// A connection over a cut link fails after this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How one direction of a link behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Least delay of a segment, in nanoseconds.
    pub latency_ns_min: u64,
    /// Greatest delay.
    pub latency_ns_max: u64,
    /// Nothing arrives any more. Connections stall and break after a while.
    pub cut: bool,
    /// How often a segment breaks its connection.
    pub breaks_per_million: u32,
    /// Bytes that it carries in a second, of all connections together; 0: any number.
    pub bytes_per_s: u64,
}

impl Link {
    const FAR: Link = Link {
        latency_ns_min: 50_000,
        latency_ns_max: 500_000,
        cut: false,
        breaks_per_million: 0,
        bytes_per_s: 0,
    };
    const SAME_HOST: Link = Link { latency_ns_min: 2_000, latency_ns_max: 30_000, ..Self::FAR };
}

/// Where something listens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    Tcp(SocketAddr),
    /// Host and path.
    Unix(usize, PathBuf),
}

/// The state of the network.
#[derive(Default)]
pub(crate) struct Net {
    links: BTreeMap<(usize, usize), Link>,
    /// Until when those that carry so many bytes a second have something to carry.
    busy: BTreeMap<(usize, usize), u64>,
    listeners: BTreeMap<Place, Rc<Accepting>>,
    wires: Vec<Weak<Wire>>,
}

struct Accepting {
    node: usize,
    state: RefCell<AcceptState>,
}

#[derive(Default)]
struct AcceptState {
    queue: VecDeque<Stream>,
    waker: Option<Waker>,
}

/// The link from one node to another.
pub(crate) fn link(core: &Core, from: usize, to: usize) -> Link {
    let net = core.net.borrow();
    if let Some(link) = net.links.get(&(from, to)) {
        return *link;
    }
    drop(net);
    let nodes = core.nodes.borrow();
    match (nodes.get(from), nodes.get(to)) {
        (Some(a), Some(b)) if a.host == b.host => Link::SAME_HOST,
        _ => Link::FAR,
    }
}

/// The delay of a segment on a link.
pub(crate) fn delay(core: &Core, from: usize, to: usize) -> u64 {
    let link = link(core, from, to);
    core.random(|r| r.between(link.latency_ns_min, link.latency_ns_max))
}

/// Gives a link bytes to carry: when it has put the last of them on its way, if it does not take all at once.
pub(crate) fn carry(core: &Core, from: usize, to: usize, bytes: usize) -> Option<u64> {
    let rate = link(core, from, to).bytes_per_s;
    if rate == 0 {
        return None;
    }
    let mut net = core.net.borrow_mut();
    let busy = net.busy.entry((from, to)).or_default();
    *busy = core.now().max(*busy) + bytes as u64 * 1_000_000_000 / rate;
    Some(*busy)
}

fn place(node: &Node, address: &Address) -> Place {
    match address {
        Address::Tcp(a) if a.ip().is_loopback() || a.ip().is_unspecified() => {
            Place::Tcp(SocketAddr::new(node.ip(), a.port()))
        }
        Address::Tcp(a) => Place::Tcp(*a),
        Address::Unix(path) => Place::Unix(node.host, path.clone()),
    }
}

pub(crate) fn listen(core: &Rc<Core>, node: &Node, address: &Address) -> io::Result<Listener> {
    let mut place = place(node, address);
    if let Place::Tcp(a) = &mut place {
        if a.ip() != node.ip() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        if a.port() == 0 {
            a.set_port(node.next_port.get());
            node.next_port.set(node.next_port.get() + 1);
        }
    }
    let mut net = core.net.borrow_mut();
    if net.listeners.contains_key(&place) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let accepting = Rc::new(Accepting { node: node.index, state: RefCell::default() });
    net.listeners.insert(place.clone(), accepting.clone());
    Ok(Rc::new(SimListener { core: Rc::downgrade(core), place, accepting }))
}

struct SimListener {
    core: Weak<Core>,
    place: Place,
    accepting: Rc<Accepting>,
}

impl ListenerIo for SimListener {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        let mut state = self.accepting.state.borrow_mut();
        match state.queue.pop_front() {
            Some(stream) => Poll::Ready(Ok(stream)),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
    fn local(&self) -> Address {
        match &self.place {
            Place::Tcp(a) => Address::Tcp(*a),
            Place::Unix(_, path) => Address::Unix(path.clone()),
        }
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            let mut net = core.net.borrow_mut();
            let ours =
                net.listeners.get(&self.place).is_some_and(|l| Rc::ptr_eq(l, &self.accepting));
            if ours {
                net.listeners.remove(&self.place);
            }
        }
        let queue = std::mem::take(&mut self.accepting.state.borrow_mut().queue);
        drop(queue);
    }
}

/// The node that an address belongs to.
fn owner(core: &Core, place: &Place) -> Option<usize> {
    match place {
        Place::Tcp(a) => core.nodes.borrow().iter().find(|n| n.ip() == a.ip()).map(|n| n.index),
        Place::Unix(..) => core.net.borrow().listeners.get(place).map(|l| l.node),
    }
}

pub(crate) fn connect(
    core: &Rc<Core>,
    node: &Node,
    address: &Address,
) -> BoxFuture<io::Result<Stream>> {
    let (from, place, address) = (node.index, place(node, address), address.to_string());
    let fail = |kind: io::ErrorKind| Box::pin(std::future::ready(Err(kind.into())));
    let Some(to) = owner(core, &place) else {
        return match place {
            Place::Unix(..) => fail(io::ErrorKind::NotFound),
            Place::Tcp(_) => fail(io::ErrorKind::HostUnreachable),
        };
    };
    let there = delay(core, from, to);
    let back = delay(core, to, from);
    let core2 = core.clone();
    Box::pin(async move {
        if link(&core2, from, to).cut || link(&core2, to, from).cut {
            let limit = CONNECT_TIMEOUT.as_nanos() as u64;
            core2.later(limit, |_| ()).await;
            return Err(io::ErrorKind::TimedOut.into());
        }
        let peer = core2.later(there, move |core| offer(core, from, to, &place)).await;
        core2.later(back, |_| ()).await;
        peer.map(|wire| stream::end(wire, 0, address))
    })
}

/// The connection arrives at the listener.
fn offer(core: &Rc<Core>, from: usize, to: usize, place: &Place) -> io::Result<Rc<Wire>> {
    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
    let accepting = core.net.borrow().listeners.get(place).cloned().ok_or_else(refused)?;
    if accepting.state.borrow().queue.len() >= BACKLOG {
        return Err(refused());
    }
    core.trace(4, from as u64, to as u64);
    let wire = stream::wire(core, from, to);
    let mut net = core.net.borrow_mut();
    net.wires.retain(|w| w.strong_count() > 0);
    net.wires.push(Rc::downgrade(&wire));
    drop(net);
    let peer =
        core.nodes.borrow().get(from).map_or_else(String::new, |n| format!("sim://{}", n.name));
    let waker = {
        let mut state = accepting.state.borrow_mut();
        state.queue.push_back(stream::end(wire.clone(), 1, peer));
        state.waker.take()
    };
    if let Some(w) = waker {
        w.wake();
    }
    Ok(wire)
}

/// A node's process is gone: nobody listens there any more. (Its connections ended when its tasks were dropped.)
pub(crate) fn forget_node(core: &Rc<Core>, node: usize) {
    let dead: Vec<_> = {
        let mut net = core.net.borrow_mut();
        let places: Vec<_> =
            net.listeners.iter().filter(|(_, l)| l.node == node).map(|(p, _)| p.clone()).collect();
        places.iter().filter_map(|p| net.listeners.remove(p)).collect()
    };
    for accepting in dead {
        let queue = std::mem::take(&mut accepting.state.borrow_mut().queue);
        drop(queue);
    }
}

fn break_wires(core: &Rc<Core>, which: impl Fn(usize, usize) -> bool) {
    let wires: Vec<_> = core.net.borrow().wires.iter().filter_map(Weak::upgrade).collect();
    for wire in wires {
        let (a, b) = wire.ends();
        if which(a, b) {
            wire.break_now();
        }
    }
}

impl super::World {
    /// How segments from `a` to `b` travel (the other direction is its own).
    pub fn link(&self, a: &SimNode, b: &SimNode) -> Link {
        link(self.core(), a.index(), b.index())
    }
    /// Changes that.
    pub fn set_link(&self, a: &SimNode, b: &SimNode, link: Link) {
        self.core().net.borrow_mut().links.insert((a.index(), b.index()), link);
    }
    /// From now on one direction carries so many bytes a second, of all connections together (0: any number).
    pub fn set_rate(&self, from: &SimNode, to: &SimNode, bytes_per_s: u64) {
        self.set_link(from, to, Link { bytes_per_s, ..self.link(from, to) });
    }
    /// Cuts one direction.
    pub fn cut(&self, from: &SimNode, to: &SimNode) {
        self.set_link(from, to, Link { cut: true, ..self.link(from, to) });
    }
    /// Mends one direction.
    pub fn mend(&self, from: &SimNode, to: &SimNode) {
        self.set_link(from, to, Link { cut: false, ..self.link(from, to) });
    }
    /// Cuts a node off from all others, in both directions.
    pub fn isolate(&self, node: &SimNode) {
        self.each_other(node, |a, b| self.cut(a, b));
    }
    /// Mends all links of a node.
    pub fn rejoin(&self, node: &SimNode) {
        self.each_other(node, |a, b| self.mend(a, b));
    }
    fn each_other(&self, node: &SimNode, f: impl Fn(&SimNode, &SimNode)) {
        let names: Vec<_> = self.core().nodes.borrow().iter().map(|n| n.name.clone()).collect();
        for name in names.iter().filter(|n| *n != node.name()) {
            let other = self.node(name);
            f(node, &other);
            f(&other, node);
        }
    }
    /// Cuts every link between nodes of different groups.
    pub fn partition(&self, groups: &[&[&SimNode]]) {
        for (i, one) in groups.iter().enumerate() {
            for (_, other) in groups.iter().enumerate().filter(|(j, _)| *j != i) {
                one.iter().for_each(|a| other.iter().for_each(|b| self.cut(a, b)));
            }
        }
    }
    /// Mends every link and takes all faults off.
    pub fn heal(&self) {
        for link in self.core().net.borrow_mut().links.values_mut() {
            link.cut = false;
            link.breaks_per_million = 0;
        }
    }
    /// Makes every link new: as fast as at the beginning, too.
    pub fn mend_links(&self) {
        self.core().net.borrow_mut().links.clear();
    }
    /// Breaks every connection between two nodes now.
    pub fn drop_connections(&self, a: &SimNode, b: &SimNode) {
        let (a, b) = (a.index(), b.index());
        break_wires(self.core(), |x, y| (x, y) == (a, b) || (x, y) == (b, a));
    }
}
