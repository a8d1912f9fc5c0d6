//! What goes with changes of names, and with looking at them, so that clients that keep names agree on their order.
//!
//! Only where leases are given: by a service that is the only one of its cluster.

use crate::finishing::{Begun, Next, Unfinished};
use crate::fought::HELD_UP;
use crate::recall::Change;
use crate::state::{Service, ms};
use glowfs_net::Conn;
use glowfs_rt::sync::{Either, join_all, select};
use glowfs_types::wire::meta::{DirChanged, Name};
use glowfs_types::{ClientId, InodeId, RequestId};
use std::rc::Rc;

/// A change of names that is being carried out, of a client that may keep names.
pub type Naming = Begun<Rc<Conn>>;

impl Service {
    fn leases_names(&self, client: ClientId, conn: &Conn) -> bool {
        self.config.tuning.attr_lease_ms > 0
            && client != ClientId(0)
            && conn.peer().client == client
            && !self.has_others()
    }

    /// A client is about to change names of these directories; `gone` lead to something else afterwards, or to nothing. Before the transaction.
    pub fn begin_names(
        &self,
        (client, conn): (ClientId, &Rc<Conn>),
        request: RequestId,
        dirs: &[InodeId],
        gone: &[(InodeId, &Name)],
    ) -> Option<Naming> {
        if !self.leases_names(client, conn) {
            return None;
        }
        for dir in dirs {
            self.finishing.went_on(*dir, client, request);
        }
        if gone.is_empty() {
            return None;
        }
        let now = self.rt.now();
        for (dir, _) in gone {
            self.fought.borrow_mut().changed(*dir, client, now);
        }
        let life = ms(self.config.tuning.attr_lease_ms);
        Some(self.finishing.begin((client, conn), request, gone, (now, life)))
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
        let version = |dir| dirs.iter().find(|d| d.attr.inode == dir)?.attr.entries;
        naming.committed(version);
        let now = self.rt.now();
        let leases = self.leases.borrow();
        let named = changes.iter().filter(|c| c.name.is_some());
        if !named.clone().any(|c| leases.holds_name(c.inode, by, now)) {
            naming.finish();
        }
    }

    /// A call of `by` has found out about names of these directories, each as it was after so many changes (None: not known how many). Waits until
    /// whoever else made some of these changes shows nothing from before.
    pub async fn others_finished(&self, by: ClientId, seen: &[(InodeId, Option<u64>)]) {
        // What was under way in a former life of this service is not known.
        if self.rt.now() < self.leases_of_before() && !self.has_others() {
            self.settle().await;
        }
        let of = |(dir, version): &(InodeId, Option<u64>)| {
            let version = *version;
            self.finishing.others(*dir, by).into_iter().map(move |u| (u, version))
        };
        let waits: Vec<_> = seen.iter().flat_map(of).collect();
        if !waits.is_empty() {
            join_all(waits.iter().map(|(u, version)| self.finished(u, *version))).await;
        }
    }

    async fn finished(&self, change: &Unfinished<Rc<Conn>>, seen: Option<u64>) {
        let began = self.rt.now();
        loop {
            let (news, now) = (change.news(), self.rt.now());
            match change.next(seen, now) {
                Next::Nothing => break,
                // Who could not be told has no lease in the end.
                Next::Tell => {
                    self.metrics.finishes.inc();
                    let left = change.until.since(now);
                    let told = self.recall_name(&change.conn, (change.dir, &change.name), left);
                    if matches!(select(told, news).await, Either::Left(Ok(()))) {
                        change.finish();
                    }
                }
                Next::Wait if change.until > now => {
                    select(news, self.rt.sleep_until(change.until)).await;
                }
                Next::Wait => news.await,
            }
        }
        if self.rt.now().since(began) >= HELD_UP {
            self.held_up(change.dir);
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
