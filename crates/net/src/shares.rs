//! [`Shares`]: what one user, and all users, may take of a server: places for connections, and memory for inline bulk that is on its way.
//!
//! A connection is bounded by itself; these are the bounds of all of them together, so that one user's program neither keeps everybody else out nor has the
//! service ended for want of memory. Guarantees: what is counted is given back when its owner is dropped. Must never: bound services of the cluster by what users do.

use crate::Identity;
use crate::limits::{
    BULK_RECEIVED_MAX, SERVICE_CONNECTIONS_PART, USER_BULK_RECEIVED_MAX, USER_CONNECTIONS_PART,
};
use glowfs_types::{Error, Result, Status, UserId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// See the module.
pub(crate) struct Shares {
    connections_max: usize,
    connections: Cell<usize>,
    /// Bytes that users are sending.
    receiving: Cell<usize>,
    users: RefCell<BTreeMap<UserId, Rc<User>>>,
}

#[derive(Default)]
struct User {
    connections: Cell<usize>,
    receiving: Cell<usize>,
}

/// The place of a connection.
pub(crate) struct Place {
    shares: Rc<Shares>,
    user: Option<(UserId, Rc<User>)>,
}

/// On whose account a connection receives bulk.
pub(crate) struct Sender {
    shares: Rc<Shares>,
    user: Rc<User>,
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
        Rc::new(Self {
            connections_max,
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
        Some(Sender { shares: self.shares.clone(), user: user.clone() })
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
