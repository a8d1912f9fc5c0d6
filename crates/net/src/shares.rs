//! [`Shares`]: what one user, and all users, may take of a server: places for connections, memory for inline bulk that is on its way, and for answers that he does not read.
//!
//! A connection is bounded by itself; these are the bounds of all of them together, so that one user's program neither keeps everybody else out nor has the
//! service ended for want of memory. Guarantees: what is counted is given back when its owner is dropped. Must never: bound services of the cluster by what users do.

use crate::Identity;
use crate::limits::{
    BULK_RECEIVED_MAX, SERVICE_CONNECTIONS_PART, USER_BULK_RECEIVED_MAX, USER_CONNECTIONS_PART,
    USER_QUEUED_BYTES_MAX,
};
use glowfs_types::{Error, Result, Status, UserId};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// See the module.
pub(crate) struct Shares {
    connections_max: usize,
    /// Bytes that wait to be sent to one user.
    queued_max: usize,
    connections: Cell<usize>,
    /// Bytes that users are sending.
    receiving: Cell<usize>,
    users: RefCell<BTreeMap<UserId, Rc<User>>>,
}

#[derive(Default)]
struct User {
    connections: Cell<usize>,
    receiving: Cell<usize>,
    /// Bytes that wait to be sent to all of his connections, and what waits for each of them, by its number.
    queued: Cell<usize>,
    queues: RefCell<BTreeMap<u64, Rc<Queue>>>,
}

/// What waits to be sent to a connection, and how it is closed.
struct Queue {
    number: u64,
    bytes: Cell<usize>,
    end: Box<dyn Fn(Error)>,
}

/// The place of a connection.
pub(crate) struct Place {
    shares: Rc<Shares>,
    user: Option<(UserId, Rc<User>)>,
}

/// On whose account a connection receives bulk, and has answers waiting.
pub(crate) struct Sender {
    shares: Rc<Shares>,
    user: Rc<User>,
    queue: OnceCell<Rc<Queue>>,
}

/// Bulk of a user that is on its way.
pub(crate) struct Receiving<'a> {
    of: &'a Sender,
    bytes: usize,
}

fn add(to: &Cell<usize>, n: usize) {
    to.set(to.get() + n);
}
fn take(from: &Cell<usize>, n: usize) {
    from.set(from.get() - n);
}

impl Shares {
    pub fn new(connections_max: usize) -> Rc<Self> {
        Self::with(connections_max, USER_QUEUED_BYTES_MAX)
    }
    /// The same with another bound of what waits to be sent to one user.
    pub fn with(connections_max: usize, queued_max: usize) -> Rc<Self> {
        Rc::new(Self {
            connections_max,
            queued_max,
            connections: Cell::new(0),
            receiving: Cell::new(0),
            users: RefCell::default(),
        })
    }
    /// Bytes of bulk that users are sending.
    #[cfg(test)]
    pub fn receiving(&self) -> usize {
        self.receiving.get()
    }
    /// Bytes that wait to be sent to a user.
    #[cfg(test)]
    pub fn queued(&self, user: UserId) -> usize {
        self.users.borrow().get(&user).map_or(0, |u| u.queued.get())
    }
    /// A place for a connection of somebody, or `Overloaded`.
    pub fn place(self: &Rc<Self>, identity: &Identity) -> Result<Place> {
        let max = self.connections_max;
        let kept = if identity.service { 0 } else { max / SERVICE_CONNECTIONS_PART };
        if self.connections.get() + kept >= max {
            let e = format!("{} connections are all that this service has", max - kept);
            return Err(Error::new(Status::Overloaded, e));
        }
        let user = (!identity.service && !identity.root).then(|| {
            let user = self.users.borrow_mut().entry(identity.user).or_default().clone();
            (identity.user, user)
        });
        let of_user = max.div_ceil(USER_CONNECTIONS_PART);
        if let Some((id, user)) = &user {
            if user.connections.get() >= of_user {
                let e = format!("user {id} has {of_user} connections with this service already");
                return Err(Error::new(Status::Overloaded, e));
            }
            add(&user.connections, 1);
        }
        add(&self.connections, 1);
        Ok(Place { shares: self.clone(), user })
    }
}

impl Place {
    /// On whose account the connection receives bulk; None: nobody's.
    pub fn sender(&self) -> Option<Sender> {
        let (_, user) = self.user.as_ref()?;
        let (shares, user) = (self.shares.clone(), user.clone());
        Some(Sender { shares, user, queue: OnceCell::new() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        take(&self.shares.connections, 1);
        if let Some((id, user)) = &self.user {
            take(&user.connections, 1);
            if user.connections.get() == 0 {
                self.shares.users.borrow_mut().remove(id);
            }
        }
    }
}

impl Sender {
    /// Room for bulk that is to come; None: there is none.
    pub fn receive(&self, bytes: usize) -> Option<Receiving<'_>> {
        let of_all = self.shares.receiving.get() + bytes <= BULK_RECEIVED_MAX;
        let of_user = self.user.receiving.get() + bytes <= USER_BULK_RECEIVED_MAX;
        if !of_all || !of_user {
            return None;
        }
        add(&self.shares.receiving, bytes);
        add(&self.user.receiving, bytes);
        Some(Receiving { of: self, bytes })
    }
    /// The number of the connection, and how it is closed. Said once.
    pub fn queues(&self, number: u64, end: impl Fn(Error) + 'static) {
        let queue = Rc::new(Queue { number, bytes: Cell::new(0), end: Box::new(end) });
        self.user.queues.borrow_mut().insert(number, self.queue.get_or_init(|| queue).clone());
    }
    /// So many bytes wait to be sent to it now. If that is too much for all of its user's, the one that most wait for is closed.
    pub fn queued(&self, bytes: usize) {
        let Some(queue) = self.queue.get() else { return };
        self.user.queued(queue, bytes);
        while self.user.queued.get() > self.shares.queued_max {
            let most = self.user.queues.borrow().values().max_by_key(|q| q.bytes.get()).cloned();
            let Some(most) = most else { return };
            let why = format!(
                "the connections of this user do not read: {} bytes are queued for this one, {} for all",
                most.bytes.get(),
                self.user.queued.get()
            );
            // It counts no more, whether or not it was closed before.
            self.user.queued(&most, 0);
            (most.end)(Error::new(Status::Disconnected, why));
        }
    }
}

impl User {
    fn queued(&self, queue: &Queue, bytes: usize) {
        let before = queue.bytes.replace(bytes);
        self.queued.set(self.queued.get() - before + bytes);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let Some(queue) = self.queue.get() else { return };
        self.user.queued(queue, 0);
        self.user.queues.borrow_mut().remove(&queue.number);
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        take(&self.of.shares.receiving, self.bytes);
        take(&self.of.user.receiving, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn user(n: u64) -> Identity {
        Identity { user: UserId(n), ..Identity::default() }
    }

    #[test]
    fn one_user_keeps_nobody_out_and_all_of_them_no_service() {
        let shares = Shares::new(64);
        let places = |identity: &Identity| -> Vec<Place> {
            std::iter::from_fn(|| shares.place(identity).ok()).collect()
        };
        let mut of_one = places(&user(1));
        assert_eq!(of_one.len(), 16);
        of_one.pop();
        assert_eq!(places(&user(1)).len(), 1, "given back");
        let root = Identity { root: true, ..user(0) };
        let rest = places(&root);
        assert_eq!(rest.len(), 64 - 4 - 15);
        assert_eq!(places(&user(2)).len(), 0);
        let services = places(&Identity::SERVICE);
        assert_eq!(services.len(), 4);
        drop((of_one, rest, services));
        assert!(shares.connections.get() == 0 && shares.users.borrow().is_empty());
    }

    #[test]
    fn what_users_send_at_a_time_is_bounded_for_each_and_for_all() {
        let shares = Shares::new(64);
        let senders: Vec<_> = (1..=8).map(|n| shares.place(&user(n)).unwrap()).collect();
        let senders: Vec<_> = senders.iter().map(|p| p.sender().unwrap()).collect();
        let mut all = Vec::new();
        for sender in &senders {
            let mut of_one: Vec<_> = std::iter::from_fn(|| sender.receive(64 * MIB)).collect();
            assert!(of_one.len() <= USER_BULK_RECEIVED_MAX / (64 * MIB));
            all.append(&mut of_one);
        }
        assert_eq!(all.len(), BULK_RECEIVED_MAX / (64 * MIB));
        assert!(senders[7].receive(1).is_none() && senders[7].receive(0).is_some());
        all.pop();
        assert!(senders[7].receive(1).is_some());
        assert!(shares.place(&Identity::SERVICE).unwrap().sender().is_none(), "services are none");
    }
}
