//! The groups of users, from mgmtd: a token that is not root's acts as its own user with that user's groups, whatever the
//! request says.

use glowfs_agent::MgmtdLink;
use glowfs_net::Identity;
use glowfs_rt::sync::Notify;
use glowfs_rt::{BoxFuture, Duration, Instant, Rt};
use glowfs_types::wire::meta::Caller;
use glowfs_types::wire::mgmtd::{UserInfo, UserList};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{Error, Result, Status, UserId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long the list of users is believed.
const LIST_TTL: Duration = Duration::from_secs(10);
/// The pause between two lists that are asked for because of users that the one before did not have.
const MISS_TTL: Duration = Duration::from_secs(1);
/// How long mgmtd may take to answer.
const LIST_DEADLINE: Duration = Duration::from_secs(3);
/// The group of a user without any.
const NOBODY: u32 = 65_534;

type List = dyn Fn() -> BoxFuture<Result<UserList>>;

/// The users as mgmtd knows them.
pub struct Users {
    rt: Rt,
    list: Box<List>,
    known: RefCell<BTreeMap<UserId, UserInfo>>,
    /// When the list that is known was asked for,
    listed: Cell<Option<Instant>>,
    /// and when one was asked for last.
    tried: Cell<Option<Instant>>,
    /// Somebody asks, or is about to; the others wait for that.
    busy: Cell<bool>,
    answered: Notify,
}

/// One that asks for the list; when it is gone, the others go on.
struct Asking<'a>(&'a Users);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.busy.set(false);
        self.0.answered.notify_all();
    }
}

impl Users {
    /// None yet.
    pub fn new(rt: &Rt, link: Rc<MgmtdLink>) -> Self {
        Self::with(rt, move || {
            let link = link.clone();
            Box::pin(async move { link.call(method::USER_LIST, &Empty {}, LIST_DEADLINE).await })
        })
    }

    fn with(rt: &Rt, list: impl Fn() -> BoxFuture<Result<UserList>> + 'static) -> Self {
        Self {
            rt: rt.clone(),
            list: Box::new(list),
            known: RefCell::default(),
            listed: Cell::new(None),
            tried: Cell::new(None),
            busy: Cell::new(false),
            answered: Notify::new(),
        }
    }

    /// Makes the caller what its token allows: root and services act as anybody, everybody else as itself.
    pub async fn check(&self, identity: &Identity, caller: &mut Caller) -> Result<()> {
        if identity.root || identity.service {
            return Ok(());
        }
        caller.admitted = false;
        if u64::from(caller.uid) != identity.user.0 {
            return Err(Error::new(
                Status::AccessDenied,
                format!(
                    "the token of user {} cannot act as uid {}; use a root token for a mount that many users share",
                    identity.user, caller.uid
                ),
            ));
        }
        let groups = self.groups(identity.user).await?;
        caller.gid = groups.first().copied().unwrap_or(NOBODY);
        caller.groups = groups;
        Ok(())
    }

    /// The groups of a user. Who is in no list yet waits for one that was asked for after he came: files that he makes keep the group that he has now.
    async fn groups(&self, user: UserId) -> Result<Vec<u32>> {
        let came = self.rt.now();
        let mut waited = false;
        loop {
            let known = self.known.borrow().get(&user).map(|u| u.groups.clone());
            let fresh = self.tried.get().is_some_and(|at| self.rt.now().since(at) < LIST_TTL);
            let listed = self.listed.get().is_some_and(|at| at >= came);
            match known {
                Some(groups) if fresh || self.busy.get() => return Ok(groups),
                None if listed => {
                    let e =
                        format!("mgmtd knows no user {user}; `glowfs admin user-add` makes one");
                    return Err(Error::new(Status::AccessDenied, e));
                }
                // Others asked for him, too, and got no answer.
                None if waited && self.tried > self.listed => return Err(unknown(user)),
                _ => {}
            }
            let answered = self.answered.wait();
            if self.busy.get() {
                answered.await;
                waited = true;
            } else if let Err(error) = self.ask(known.is_some()).await {
                tracing::warn!(%error, "cannot list users; groups may be out of date");
                return known.ok_or_else(|| unknown(user));
            }
        }
    }

    /// Asks mgmtd for the list, at once or, for those that the last one did not have, not too often.
    async fn ask(&self, at_once: bool) -> Result<()> {
        self.busy.set(true);
        let _asking = Asking(self);
        let next = self.listed.get().filter(|_| !at_once).map(|at| at + MISS_TTL);
        if let Some(next) = next.filter(|next| *next > self.rt.now()) {
            self.rt.sleep_until(next).await;
        }
        let now = self.rt.now();
        self.tried.set(Some(now));
        let list = (self.list)().await?;
        *self.known.borrow_mut() = list.users.into_iter().map(|u| (u.user, u)).collect();
        self.listed.set(Some(now));
        Ok(())
    }
}

fn unknown(user: UserId) -> Error {
    let e = format!("mgmtd does not answer, so the groups of user {user} are not known; retry");
    Error::new(Status::Overloaded, e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::sync::{join, join_all};

    const USER: UserId = UserId(1000);
    const PAUSE: Duration = Duration::from_millis(20);

    fn list(users: &[u64]) -> UserList {
        let user = |u: &u64| UserInfo {
            user: UserId(*u),
            name: String::new(),
            groups: vec![7, 8],
            root: false,
            admin: false,
            service: false,
        };
        UserList { users: users.iter().map(user).collect() }
    }

    /// An mgmtd that takes its time; what it answers, and how often it was asked.
    fn users(
        rt: &Rt,
        answer: impl Fn(u32) -> Result<UserList> + Clone + 'static,
    ) -> (Users, Rc<Cell<u32>>) {
        let asked: Rc<Cell<u32>> = Rc::default();
        let (count, sleeper) = (asked.clone(), rt.clone());
        let list = move || -> BoxFuture<Result<UserList>> {
            count.set(count.get() + 1);
            let (answer, n, rt) = (answer.clone(), count.get(), sleeper.clone());
            Box::pin(async move {
                rt.sleep(PAUSE).await;
                answer(n)
            })
        };
        (Users::with(rt, list), asked)
    }

    /// All but the first acted as nobody while the first list was on its way.
    #[test]
    fn all_wait_for_the_first_list() {
        glowfs_rt::real::run(|rt| async move {
            let (users, asked) = users(&rt, |_| Ok(list(&[1000, 1001])));
            let first = (0..5).map(|i| users.groups(UserId(1000 + i % 2)));
            for groups in join_all(first).await {
                assert_eq!(groups.expect("known"), [7, 8]);
            }
            assert_eq!(asked.get(), 1);
            assert_eq!(users.groups(USER).await.expect("known"), [7, 8]);
            assert_eq!(asked.get(), 1, "believed for a while");
        });
    }

    #[test]
    fn who_cannot_be_asked_for_is_not_nobody() {
        glowfs_rt::real::run(|rt| async move {
            let away = |_| Err(Error::new(Status::TimedOut, "mgmtd is away"));
            let (users, _) = users(&rt, away);
            let (one, two) = join(users.groups(USER), users.groups(USER)).await;
            for groups in [one, two, users.groups(USER).await] {
                assert!(groups.expect_err("not known").status.is_retriable());
            }
        });
    }

    #[test]
    fn a_user_who_was_added_after_the_list_is_asked_for_again() {
        glowfs_rt::real::run(|rt| async move {
            let grows = |n| Ok(list(if n == 1 { &[5] } else { &[5, 1000] }));
            let (users, asked) = users(&rt, grows);
            assert_eq!(users.groups(UserId(5)).await.expect("known"), [7, 8]);
            let (one, two) = join(users.groups(USER), users.groups(USER)).await;
            assert_eq!((one.expect("known"), two.expect("known")), (vec![7, 8], vec![7, 8]));
            assert_eq!(asked.get(), 2);
            let e = users.groups(UserId(3)).await.expect_err("nobody of that name");
            assert_eq!(e.status, Status::AccessDenied);
        });
    }
}
