//! The groups of users, from mgmtd: a token that is not root's acts as its own user with that user's groups, whatever the
//! request says.

use glowfs_agent::MgmtdLink;
use glowfs_net::Identity;
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::wire::meta::Caller;
use glowfs_types::wire::mgmtd::{UserInfo, UserList};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{Error, Result, Status, UserId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long the list of users is believed.
const LIST_TTL: Duration = Duration::from_secs(10);
/// An unknown user is asked for again after this time at the earliest.
const MISS_TTL: Duration = Duration::from_secs(1);
/// How long mgmtd may take to answer.
const LIST_DEADLINE: Duration = Duration::from_secs(3);
/// The group of a user without any.
const NOBODY: u32 = 65_534;

/// The users as mgmtd knows them.
pub struct Users {
    rt: Rt,
    link: Rc<MgmtdLink>,
    known: RefCell<BTreeMap<UserId, UserInfo>>,
    fetched: Cell<Option<Instant>>,
}

impl Users {
    /// None yet.
    pub fn new(rt: &Rt, link: Rc<MgmtdLink>) -> Self {
        Self { rt: rt.clone(), link, known: RefCell::default(), fetched: Cell::new(None) }
    }

    /// Makes the caller what its token allows: root and services act as anybody, everybody else as itself.
    pub async fn check(&self, identity: &Identity, caller: &mut Caller) -> Result<()> {
        if identity.root || identity.service {
            return Ok(());
        }
        if u64::from(caller.uid) != identity.user.0 {
            return Err(Error::new(
                Status::AccessDenied,
                format!(
                    "the token of user {} cannot act as uid {}; use a root token for a mount that many users share",
                    identity.user, caller.uid
                ),
            ));
        }
        let groups = self.groups(identity.user).await;
        caller.gid = groups.first().copied().unwrap_or(NOBODY);
        caller.groups = groups;
        Ok(())
    }

    async fn groups(&self, user: UserId) -> Vec<u32> {
        let age = self.fetched.get().map(|at| self.rt.now().since(at));
        let ttl = if self.known.borrow().contains_key(&user) { LIST_TTL } else { MISS_TTL };
        if age.is_none_or(|a| a >= ttl) {
            self.fetched.set(Some(self.rt.now()));
            match self.link.call::<_, UserList>(method::USER_LIST, &Empty {}, LIST_DEADLINE).await {
                Ok(list) => {
                    *self.known.borrow_mut() =
                        list.users.into_iter().map(|u| (u.user, u)).collect();
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot list users; groups may be out of date")
                }
            }
        }
        self.known.borrow().get(&user).map(|u| u.groups.clone()).unwrap_or_default()
    }
}
