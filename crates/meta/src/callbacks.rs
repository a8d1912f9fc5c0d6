//! Calls from meta to clients, over the connections that they opened. A client keeps one to every meta service.

use glowfs_net::{Conn, Server};
use glowfs_types::{ClientId, UserId};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// The connections of the server.
pub struct Peers(Weak<Server>);

impl Peers {
    /// Of a server.
    pub fn new(server: &Rc<Server>) -> Self {
        Self(Rc::downgrade(server))
    }
    /// The newest connection of each client, by what its hello and its token said. A client id proves nothing by itself: compare the
    /// user with the one that mgmtd knows for the client.
    pub fn clients(&self) -> BTreeMap<(ClientId, UserId), Rc<Conn>> {
        let conns = self.0.upgrade().map(|s| s.connections()).unwrap_or_default();
        let clients = conns.into_iter().filter(|c| !c.is_closed()).filter_map(|c| {
            let who = (c.peer().client, c.peer().identity.user);
            (who.0 != ClientId(0)).then_some((who, c))
        });
        clients.collect()
    }
}
