//! The capability of an open file: the right to make an attempt, its renewal, and its recall.
//!
//! Guarantees: no attempt begins under a capability that was recalled or refused, or whose answer a recall has overtaken; a recall is answered when all
//! attempts under what it takes away have ended.

use super::OpenFile;
use glowfs_rt::Duration;
use glowfs_types::wire::meta::{OpenReply, Renew};
use glowfs_types::wire::{decode, encode, method};
use glowfs_types::{Capability, ClientId, DataId, Error, Layout, Result, Status, TruncateEpoch};
use std::rc::Rc;
use zerocopy::FromBytes;

/// How often a capability is renewed that is past its time when it comes.
const RENEWALS_MAX: u32 = 3;

/// The right to make one attempt, held while it is on its way.
pub(crate) struct Permission {
    file: Rc<OpenFile>,
    pub capability: Capability,
    pub data: DataId,
    pub epoch: TruncateEpoch,
    /// Where the chunks of that data are.
    pub layout: Layout,
}

impl Permission {
    /// As [`OpenFile::check_owner`].
    pub fn check_owner(&self) -> Result<()> {
        self.file.check_owner()
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        let mut s = self.file.state.borrow_mut();
        if let Some(n) = s.flying.get_mut(&self.epoch) {
            *n -= 1;
            if *n == 0 {
                s.flying.remove(&self.epoch);
                drop(s);
                self.file.moved.notify_all();
            }
        }
    }
}

pub(super) fn parse_capability(reply: &OpenReply) -> Result<Capability> {
    Capability::read_from_bytes(&reply.capability).map_err(|_| {
        Error::new(
            Status::BadMessage,
            format!(
                "meta sent a capability of {} bytes for inode {}",
                reply.capability.len(),
                reply.attr.inode
            ),
        )
    })
}

impl OpenFile {
    /// Gets a fresh capability (I/O does so by itself when it is due).
    pub async fn renew(&self) -> Result<()> {
        self.renew_with(false).await
    }

    /// The same; `spill`: contents that are with the metadata are put into chunks before.
    pub(crate) async fn renew_with(&self, spill: bool) -> Result<()> {
        self.check_owner()?;
        if self.state.borrow().renewing {
            while self.state.borrow().renewing {
                self.moved.wait().await;
            }
            return Ok(());
        }
        self.state.borrow_mut().renewing = true;
        let done = Renewing(self);
        let core = &self.client.core;
        let asked = core.rt.now();
        let mut caller = self.access.caller.clone();
        if caller.client == ClientId(0) {
            caller.client = core.id();
        }
        let query = Renew {
            caller,
            inode: self.inode,
            session: self.session,
            read: self.access.read,
            write: self.access.write,
            spill,
            exec: self.access.exec,
        };
        let (before, heard) = (self.state.borrow().overtakers, self.state.borrow().said);
        let reply = match core.meta(method::RENEW, |_| encode(&query)).await {
            Err(e) if e.status == Status::SessionEnded => Box::pin(self.open_anew(e)).await?,
            answer => decode::<OpenReply>(&answer?)?,
        };
        let capability = parse_capability(&reply)?;
        reply.attr.edition().check_asked_after(&heard)?;
        self.standing.is_there(reply.attr.life);
        self.update_attr(&reply.attr);
        let mut s = self.state.borrow_mut();
        if s.said.is_of_later_life_than(&reply.attr.edition()) {
            // It was overtaken.
            return Ok(());
        }
        if s.overtakers != before && reply.attr.epoch < s.recalled.max(s.epoch) {
            // A truncate or a recall was faster than this answer: what it brings is for data that nobody sees any more. (An answer that is older
            // than what was heard before it was asked for tells of a truncate that went with the metadata engine's power.)
            return Ok(());
        }
        let life = Duration::from_millis(reply.capability_ms);
        s.capability = capability;
        s.data = DataId(capability.data.get());
        s.valid = true;
        s.expires = asked + life * 9 / 10;
        s.renew_at = asked + life / 2;
        drop(s);
        drop(done);
        Ok(())
    }

    /// The right to make one attempt now, if the capability need not be renewed before.
    pub(crate) fn permission_now(&self) -> Option<Permission> {
        self.check_owner().ok()?;
        let now = self.client.core.rt.now();
        let (usable, due) = {
            let s = self.state.borrow();
            (s.valid && now < s.expires, now >= s.renew_at && !s.renewing)
        };
        if usable && due {
            self.renew_beside();
        }
        if usable { self.grant().ok() } else { None }
    }

    /// The right to make one attempt now; renews the capability if need be.
    pub(crate) async fn permission(&self) -> Result<Permission> {
        self.check_owner()?;
        let core = &self.client.core;
        let until = core.rt.now() + core.config.meta_total;
        for renewals in 0.. {
            if let Some(permission) = self.permission_now() {
                return Ok(permission);
            }
            if renewals >= RENEWALS_MAX && self.state.borrow().valid {
                // Fresh, and yet past its time (clocks far apart): the service decides.
                return self.grant();
            }
            if core.rt.now() >= until {
                break;
            }
            // Beside others who want one this only waits for the first of them, who alone hears of what fails.
            self.renew().await?;
        }
        let e = format!(
            "no capability for inode {}: each was recalled before it came, or refused",
            self.inode
        );
        Err(Error::new(Status::TimedOut, e))
    }

    /// The truncate epoch under which it may be written now. While a truncate is not finished there is none, and this waits for one: a length that is reported
    /// under the epoch of an unfinished truncate does not count.
    pub async fn writable_epoch(&self) -> Result<TruncateEpoch> {
        self.permission().await.map(|p| p.epoch)
    }

    fn grant(&self) -> Result<Permission> {
        let file = self.this.upgrade().ok_or(Status::Internal)?;
        let mut s = self.state.borrow_mut();
        let (capability, data, epoch, layout) = (s.capability, s.data, s.epoch, s.layout);
        *s.flying.entry(epoch).or_insert(0) += 1;
        drop(s);
        Ok(Permission { file, capability, data, epoch, layout })
    }

    fn renew_beside(&self) {
        if self.background.replace(true) {
            return;
        }
        if let Some(file) = self.this.upgrade() {
            self.client.core.rt.spawn_detached(async move {
                if let Err(e) = file.renew().await {
                    tracing::debug!(error = %e, inode = %file.inode, "renewal of a capability");
                }
                file.background.set(false);
            });
        }
    }

    /// A service refused some capability, maybe the present one.
    pub(crate) fn refuse_any(&self) {
        self.state.borrow_mut().valid = false;
    }

    /// A service refused this capability: fetch another before the next attempt.
    pub(crate) fn refused(&self, capability: &Capability) {
        let mut s = self.state.borrow_mut();
        if s.capability == *capability {
            s.valid = false;
        }
    }

    /// Stops the use of capabilities older than `epoch` and waits until attempts under them have ended.
    pub(super) async fn recalled(&self, epoch: TruncateEpoch) {
        {
            let mut s = self.state.borrow_mut();
            s.recalled = s.recalled.max(epoch);
            s.overtakers += 1;
            if s.epoch < epoch {
                s.valid = false;
            }
        }
        loop {
            let news = self.moved.wait();
            let flying: u32 = self.state.borrow().flying.range(..epoch).map(|(_, n)| *n).sum();
            if flying == 0 {
                return;
            }
            news.await;
        }
    }
}

struct Renewing<'a>(&'a OpenFile);
impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().renewing = false;
        self.0.moved.notify_all();
    }
}
