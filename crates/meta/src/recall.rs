//! Telling clients what others have changed: leases on attributes, and the capabilities of a file that is cut.
//!
//! A call that changes something is answered after every other client that may have cached it has been told, or its lease
//! has ended. Leases are given only by a service that is the only one of its cluster: it alone then sees every change.

use crate::fought::HELD_UP;
use crate::leases::{Granted, Taken, What};
use crate::state::{Service, ms};
use glowfs_net::Conn;
use glowfs_rt::sync::{join, join_all};
use glowfs_rt::{Duration, Instant};
use glowfs_types::routing::Role;
use glowfs_types::wire::meta::{DirChanged, Name, Recall};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{ClientId, InodeId, Result, TruncateEpoch};
use std::rc::Rc;

/// What changed of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The inode.
    pub inode: InodeId,
    /// Its contents, too.
    pub data: bool,
    /// It was cut or replaced: its epoch now.
    pub epoch: Option<TruncateEpoch>,
    /// A name of it that leads to it no more: directory and name. Who may keep its attributes may keep its names as well.
    pub name: Option<(InodeId, Name)>,
}

impl Change {
    /// Only what stat shows.
    pub fn attributes(inode: InodeId) -> Self {
        Self { inode, data: false, epoch: None, name: None }
    }
    /// Contents.
    pub fn contents(inode: InodeId, epoch: Option<TruncateEpoch>) -> Self {
        Self { inode, data: true, epoch, name: None }
    }
    /// A name went, or leads to another inode now.
    pub fn name(inode: InodeId, parent: InodeId, name: &Name) -> Self {
        Self { name: Some((parent, name.clone())), ..Self::attributes(inode) }
    }
}

/// A call that reads what it may lease.
pub struct Watch<'a> {
    service: &'a Service,
    number: u64,
}

impl Watch<'_> {
    /// Lets a client keep the attributes of an inode that were read since. Returns for how long, in ms.
    pub fn lease(&self, inode: InodeId, client: ClientId, conn: &Rc<Conn>) -> u64 {
        millis(self.lease_what((inode, What::Attributes), client, conn).attributes)
    }
    fn lease_what(&self, what: (InodeId, What), client: ClientId, conn: &Rc<Conn>) -> Granted {
        let s = self.service;
        if client == ClientId(0) || conn.peer().client != client || s.has_others() {
            return Granted::default();
        }
        let now = s.rt.now();
        s.leases.borrow_mut().grant_read(self.number, what, (client, conn), now)
    }
    /// The same for what a name in `dir` leads to, and for the name, which may be kept also if the attributes may not. Both in ms.
    pub fn lease_or_name(
        &self,
        dir: InodeId,
        inode: InodeId,
        client: ClientId,
        conn: &Rc<Conn>,
    ) -> (u64, u64) {
        if !self.service.names_keep(dir, client) {
            return (0, 0);
        }
        let granted = self.lease_what((inode, What::OrName), client, conn);
        (millis(granted.attributes), millis(granted.name))
    }
    /// The same for what a name in `dir` leads to, together with the name.
    pub fn lease_named(
        &self,
        dir: InodeId,
        inode: InodeId,
        client: ClientId,
        conn: &Rc<Conn>,
    ) -> u64 {
        let keep = self.service.names_keep(dir, client);
        if !keep {
            return 0;
        }
        millis(self.lease_what((inode, What::AndName), client, conn).attributes)
    }
    /// The same for directories that the call changed itself.
    pub fn lease_dirs(&self, dirs: &mut [DirChanged], client: ClientId, conn: &Rc<Conn>) {
        for dir in dirs {
            let id = dir.attr.inode;
            let keep = self.service.names_keep(id, client);
            dir.lease_ms = if keep { self.lease(id, client, conn) } else { 0 };
        }
    }
}

fn millis(life: Duration) -> u64 {
    u64::try_from(life.as_millis()).unwrap_or(0)
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.service.leases.borrow_mut().unwatch(self.number);
    }
}

impl Service {
    /// Whether another meta service was ever registered: then clients of it may have to be told of changes made here, and those
    /// made there are not known here.
    pub(crate) fn has_others(&self) -> bool {
        let me = self.config.node();
        self.agent.routing().nodes.values().any(|n| n.role == Role::Meta && n.id != me)
    }

    /// Begins a call that reads what it may lease.
    pub fn watch(&self) -> Watch<'_> {
        Watch { service: self, number: self.leases.borrow_mut().watch() }
    }

    /// Waits until leases that a former life of this service gave have ended. Before the first change.
    pub async fn wait_for_old_leases(&self) {
        let end = self.leases_of_before();
        if self.rt.now() < end {
            self.rt.sleep_until(end).await;
        }
    }
    /// When the leases that a former life of this service gave have ended.
    pub fn leases_of_before(&self) -> Instant {
        self.started + ms(self.config.tuning.attr_lease_ms)
    }

    /// `by` changed these: everybody else who may have cached them is told, or has lost his lease when this returns.
    pub async fn changed(&self, by: ClientId, changes: &[Change]) {
        self.tell_others(by, changes, |_| None).await;
    }

    /// The same after a call under `watch` that knows what became of these directories by its own change.
    pub async fn changed_dirs(
        &self,
        by: ClientId,
        changes: &[Change],
        (watch, dirs): (&Watch<'_>, &[DirChanged]),
    ) {
        let own = |change: &Change| {
            let known = dirs.iter().any(|d| d.attr.inode == change.inode);
            (known && !change.data).then_some(watch.number)
        };
        self.tell_others(by, changes, own).await;
    }

    async fn tell_others(
        &self,
        by: ClientId,
        changes: &[Change],
        own: impl Fn(&Change) -> Option<u64>,
    ) {
        let now = self.rt.now();
        let (mut told, mut earlier) = (Vec::new(), Vec::new());
        for change in changes {
            let name = change.name.is_some();
            let who = (by, own(change));
            // Whose lease another change has just taken, but has not been told yet.
            earlier.extend(self.telling.others(change.inode, by));
            let holders = self.leases.borrow_mut().take(change.inode, who, name, now);
            told.extend(holders.into_iter().map(|h| {
                let teller = self.telling.begin(change.inode, h.client);
                async move {
                    self.tell(change, h).await;
                    drop(teller);
                }
            }));
        }
        if !told.is_empty() || !earlier.is_empty() {
            join(join_all(told), join_all(earlier.iter().map(|r| r.over()))).await;
        }
    }

    async fn tell(&self, change: &Change, holder: Taken<Rc<Conn>>) {
        self.metrics.recalls.inc();
        let began = self.rt.now();
        let left = holder.until.since(began);
        let forget_name = async {
            let Some((dir, name)) = change.name.as_ref().filter(|_| holder.name) else {
                return Ok(());
            };
            self.recall_name(&holder.conn, (*dir, name), left).await
        };
        let (inode, name) = join(self.recall(&holder.conn, change, left), forget_name).await;
        if let Err(error) = inode.and(name) {
            self.metrics.recalls_waited.inc();
            tracing::debug!(client = %holder.client, inode = %change.inode, %error, "a recall is not answered; its lease ends by itself");
            self.rt.sleep_until(holder.until).await;
        }
        if let Some((dir, _)) = change.name.as_ref().filter(|_| holder.name)
            && self.rt.now().since(began) >= HELD_UP
        {
            self.held_up(*dir);
        }
    }

    /// Has a client forget a name.
    pub(crate) async fn recall_name(
        &self,
        conn: &Rc<Conn>,
        (dir, name): (InodeId, &Name),
        within: Duration,
    ) -> Result<()> {
        let recall = Recall {
            volume: crate::state::VOLUME,
            inode: dir,
            name: Some(name.clone()),
            epoch: None,
            data: false,
            append: None,
        };
        let _: Empty = conn.call_msg(method::RECALL, &recall, within).await?;
        Ok(())
    }

    async fn recall(&self, conn: &Rc<Conn>, change: &Change, within: Duration) -> Result<()> {
        let recall = Recall {
            volume: crate::state::VOLUME,
            inode: change.inode,
            name: None,
            epoch: change.epoch,
            data: change.data,
            append: None,
        };
        let _: Empty = conn.call_msg(method::RECALL, &recall, within).await?;
        Ok(())
    }

    /// A file was cut: clients with a session may write under the old epoch until they are told, or until `end`.
    pub async fn recall_writers(&self, change: &Change, writers: &[ClientId], end: Instant) {
        let conns = self.peers.borrow().as_ref().map(|p| p.clients()).unwrap_or_default();
        let told = writers.iter().map(|writer| {
            // Several connections of one client: all have to answer.
            let conns: Vec<_> =
                conns.iter().filter(|((c, _), _)| c == writer).map(|(_, c)| c.clone()).collect();
            async move {
                self.metrics.recalls.inc();
                let left = end.since(self.rt.now());
                let answers = join_all(conns.iter().map(|c| self.recall(c, change, left))).await;
                if answers.is_empty() || answers.iter().any(Result::is_err) {
                    self.metrics.recalls_waited.inc();
                    tracing::info!(client = %writer, inode = %change.inode, "a writer of a file that is cut does not answer; waiting for its time to end");
                    self.rt.sleep_until(end).await;
                }
            }
        });
        join_all(told).await;
    }
}
