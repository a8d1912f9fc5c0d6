//! What goes with changes of names, and with looking at them, so that clients that keep names agree on their order.
//!
//! Only where leases are given: by a service that is the only one of its cluster.

use crate::finishing::{Begun, Next, Seen, Unfinished};
use crate::fought::HELD_UP;
use crate::once::is_final;
use crate::recall::Change;
use crate::state::{Service, ms};
use glowfs_kv::{Sent, Transaction};
use glowfs_net::Conn;
use glowfs_rt::sync::{Either, join_all, select};
use glowfs_types::wire::meta::{DirChanged, Name};
use glowfs_types::{ClientId, Error, InodeId, RequestId, Result};
use std::rc::Rc;

/// A change of names that is being carried out, of a client that may keep names.
pub type Naming = Begun<Rc<Conn>>;

impl Service {
    /// A client is about to change names; with `gone` they lead to something else afterwards, or to nothing. Before the transaction, which is [`Service::run_naming`].
    pub fn begin_names(
        &self,
        (client, conn): (ClientId, &Rc<Conn>),
        request: RequestId,
        names: &[(InodeId, &Name)],
        gone: bool,
    ) -> Option<Naming> {
        let life = ms(self.config.tuning.attr_lease_ms);
        if life.is_zero() || self.has_others() {
            return None;
        }
        let now = self.rt.now();
        let may_keep = client != ClientId(0) && conn.peer().client == client;
        for (dir, _) in names.iter().filter(|_| may_keep) {
            self.finishing.went_on(*dir, client, request);
            if gone {
                self.fought.borrow_mut().changed(*dir, client, now);
            }
        }
        let names = (names, may_keep && gone);
        Some(self.finishing.begin((client, conn), request, names, (now, life)))
    }

    /// Runs the transaction that changes them. `once`: its request id makes a repetition harmless. Others wait for the change only from when a commit of it is sent, and no
    /// more if nothing came of that: what it reads before, however much, is its own affair.
    pub async fn run_naming<T>(
        &self,
        naming: Option<&Naming>,
        once: bool,
        work: impl AsyncFn(&Transaction) -> Result<T>,
    ) -> Result<T> {
        let tell = |sent| match (naming, sent) {
            (Some(naming), Sent::Now) => naming.sent(self.rt.now()),
            (Some(naming), Sent::ForNothing) => naming.came_to_nothing(),
            (None, _) => {}
        };
        self.run_telling(self.options(false, once), work, tell).await
    }

    /// It is committed, and has changed these.
    pub fn names_committed(
        &self,
        naming: Option<&Naming>,
        by: ClientId,
        changes: &[Change],
        dirs: &[DirChanged],
    ) {
        let Some(naming) = naming else { return };
        // What was there already was opened, say: there is no order to keep.
        if dirs.iter().all(|d| d.attr.entries == Some(d.before)) {
            return naming.finish();
        }
        let (now, leases) = (self.rt.now(), self.leases.borrow());
        let named = changes.iter().filter(|c| c.name.is_some());
        let holders: Vec<_> = named.flat_map(|c| leases.holders_of_names(c.inode, now)).collect();
        naming.committed(|dir| count_after(dirs, dir), holders.iter().any(|h| *h != by));
        if !holders.contains(&by) {
            naming.keeps_nothing();
        }
    }

    /// It is committed, by an attempt of which no answer came: nobody knows what led where before. Whoever has leased it has lost it in the end.
    pub async fn names_changed_unknown(&self, naming: Option<&Naming>) {
        if !self.has_others() {
            let life = self.leases.borrow_mut().doubt_all();
            self.rt.sleep(life).await;
        }
        if let Some(naming) = naming {
            naming.finish();
        }
    }

    /// It failed.
    pub fn names_failed(&self, naming: Option<Naming>, error: &Error) {
        // Dropped: who knows what it has done.
        if let Some(naming) = naming.filter(|_| is_final(error.status)) {
            naming.finish();
        }
    }

    /// A call of `by` has found out these. Waits until whoever else made some of the changes that it saw shows nothing from before.
    pub async fn others_finished<'a>(
        &self,
        by: ClientId,
        seen: impl IntoIterator<Item = Seen<'a>>,
    ) {
        // What was under way in a former life of this service is not known.
        if self.rt.now() < self.leases_of_before() && !self.has_others() {
            self.wait_for_old_leases().await;
        }
        let of = |seen| self.finishing.others(&seen, by).into_iter().map(move |u| (u, seen));
        let waits: Vec<_> = seen.into_iter().flat_map(of).collect();
        if !waits.is_empty() {
            join_all(waits.iter().map(|(u, seen)| self.finished(u, seen))).await;
        }
    }

    async fn finished(&self, change: &Unfinished<Rc<Conn>>, seen: &Seen<'_>) {
        loop {
            let (news, now) = (change.news(), self.rt.now());
            match change.next(seen, now) {
                Next::Nothing => break,
                // Who could not be told has no lease in the end.
                Next::Tell => {
                    self.metrics.finishes.inc();
                    let left = change.until().since(now);
                    let told = self.recall_name(&change.conn, (change.dir, &change.name), left);
                    if matches!(select(told, news).await, Either::Left(Ok(()))) {
                        change.finish();
                    }
                    if self.rt.now().since(now) >= HELD_UP {
                        self.held_up(change.dir);
                    }
                }
                Next::Wait => {
                    select(news, self.rt.sleep_until(change.look_again(now))).await;
                }
            }
        }
    }

    /// A client's kernel could not be told at once.
    pub fn held_up(&self, dir: InodeId) {
        self.metrics.held_up.inc();
        self.fought.borrow_mut().note(dir, self.rt.now());
    }

    /// Whether a client may keep names of a directory that it has just looked up.
    pub fn names_keep(&self, dir: InodeId, client: ClientId) -> bool {
        !self.finishing.is_changing(dir, client) && !self.fought.borrow().has(dir, self.rt.now())
    }
}

/// The count of changes of a directory after these.
fn count_after(dirs: &[DirChanged], dir: InodeId) -> Option<u64> {
    dirs.iter().find(|d| d.attr.inode == dir)?.attr.entries
}

/// What a call that is about these names, and has changed these directories, has found there.
pub fn seen<'a>(
    names: &[(InodeId, &'a Name)],
    dirs: &[DirChanged],
) -> impl Iterator<Item = Seen<'a>> {
    let before = |dir| dirs.iter().find(|d| d.attr.inode == dir).map(|d| d.before);
    names.iter().map(move |&(dir, name)| Seen { dir, name: Some(name), version: before(dir) })
}
