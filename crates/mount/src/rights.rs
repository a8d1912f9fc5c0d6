//! Rights that meta cannot know of.
//!
//! The kernel checks what a program may do (`default_permissions`, which every mount of ours has), by what it was told of the inodes, by the program's privileges (CAP_CHOWN,
//! CAP_DAC_OVERRIDE and the like, also those that it has in its user namespace only, or that overlayfs lends it), and by all its groups. Meta checks once more, by the user and
//! the groups that the daemon can see ([`crate::caller`]). What meta refuses is asked for again as admitted ([`Caller::admitted`]) where it is certain that the kernel has gone by
//! what only it knows: where nothing that the kernel may hold of the inodes whose numbers the request names gives the caller more than meta does ([`ToldRights::gives_no_more`]).
//!
//! Guarantees: nothing is asked for twice that was not refused before it had any effect. Must never: have somebody admitted to what the kernel does not check (our own
//! attributes, trees), by what an inode was before it was changed, or by an ACL, which a kernel reads otherwise, or not at all.
//!
//! [`Caller::admitted`]: glowfs_types::wire::meta::Caller::admitted

use crate::daemon::{Context, Failure, Outcome, Running};
use crate::filesystem::FileSystem;
use glowfs_fuse::{Op, Reply};
use glowfs_rt::Buf;
use glowfs_types::wire::meta::{Attr, OfInode};
use glowfs_types::{InodeId, Status};

/// Names of attributes that are ours: of these the kernel checks no more than that the inode may be read or written.
const OURS: &[u8] = b"glowfs.";
/// Names of attributes for who has CAP_SYS_ADMIN: others do not get past their kernel, and meta knows of no such attribute.
const TRUSTED: &[u8] = b"trusted.";
/// Rights of an inode that the kernel may hold at a time besides one. Where it may be more, nobody is admitted.
const TOLD_MAX: usize = 4;

/// By what the rights to an inode are reckoned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Permission bits and those above.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// There is an access ACL besides.
    pub acl: bool,
}

impl From<&Attr> for Rights {
    fn from(attr: &Attr) -> Self {
        let Attr { mode, uid, gid, has_acl: acl, .. } = *attr;
        Self { mode, uid, gid, acl }
    }
}

/// What the kernel was told of an inode's rights. It need not have taken in what it was told last: it drops attributes that something has overtaken.
#[derive(Clone, Default, Debug)]
pub struct ToldRights {
    /// What it may hold: this, and all of those.
    first: Option<Rights>,
    more: Vec<Rights>,
    too_many: bool,
    /// The number of the change of ours after which it certainly held what it was told.
    since: u64,
}

impl ToldRights {
    /// It was told this, and may have taken it in.
    pub fn tells(&mut self, rights: Rights) {
        match self.first {
            None => self.first = Some(rights),
            _ if self.all().any(|r| *r == rights) => {}
            _ if self.more.len() < TOLD_MAX => self.more.push(rights),
            _ => self.too_many = true,
        }
    }
    /// It was told this with the answer to a change that it had asked for: so it holds this (`fuse_do_setattr`). `number`: of that change.
    pub fn holds(&mut self, rights: Rights, number: u64) {
        *self = Self { first: Some(rights), since: number, ..Self::default() };
    }
    /// Whether nothing that the kernel may have gone by gives user `uid` what `now` does not, whatever groups he is in. `arrived`: the number of the newest change of
    /// ours when the request came.
    fn gives_no_more(&self, now: Rights, uid: u32, arrived: u64) -> bool {
        let no_more = |then: &Rights| {
            let bits = then.mode & 0o077 & !now.mode == 0 && then.gid == now.gid;
            *then == now || !then.acl && bits && then.uid != uid
        };
        let known = !self.too_many && self.first.is_some() && self.since <= arrived;
        known && !now.acl && self.all().all(no_more)
    }
    fn all(&self) -> impl Iterator<Item = &Rights> {
        self.first.iter().chain(&self.more)
    }
}

/// The inodes that a request names by their numbers and that the kernel has looked at, if it is one of those that the kernel checks.
fn looked_at(op: &Op, node: u64) -> Option<(InodeId, Option<InodeId>)> {
    let other = match op {
        Op::Rename { new_parent, .. } => Some(InodeId(*new_parent)).filter(|dir| dir.0 != node),
        Op::Setxattr { name, .. } | Op::Getxattr { name, .. } | Op::Removexattr { name }
            if name.starts_with(OURS) =>
        {
            return None;
        }
        Op::Lookup { .. }
        | Op::Mkdir { .. }
        | Op::Mknod { .. }
        | Op::Symlink { .. }
        | Op::Link { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Create { .. }
        | Op::Tmpfile { .. }
        | Op::Open { .. }
        | Op::Setattr(_)
        | Op::Readdir(_)
        | Op::Readdirplus(_)
        | Op::Setxattr { .. }
        | Op::Getxattr { .. }
        | Op::Removexattr { .. } => None,
        _ => return None,
    };
    Some((InodeId(node), other))
}

/// Whether meta has refused for want of rights.
fn is_refusal(op: &Op, failure: &Failure) -> bool {
    let Failure::Error(e) = failure else { return false };
    let trusted = |name: &[u8]| name.starts_with(TRUSTED);
    match e.status {
        Status::AccessDenied | Status::NotPermitted => true,
        Status::NoAttribute => matches!(op, Op::Getxattr { name, .. } if trusted(name)),
        _ => false,
    }
}

impl<S: FileSystem> Context<S> {
    /// Does what a request asks for. Root needs no rights.
    pub(crate) fn run_by_rights<'a>(
        &'a self,
        op: Op,
        payload: Option<Buf>,
        reply: &'a Reply,
    ) -> Running<'a> {
        match looked_at(&op, self.header.node).filter(|_| self.header.uid != 0) {
            Some(inodes) => Box::pin(self.run_for_user(op, inodes, reply)),
            None => self.run(op, payload, reply),
        }
    }

    async fn run_for_user(
        &self,
        op: Op,
        (inode, other): (InodeId, Option<InodeId>),
        reply: &Reply,
    ) -> Outcome {
        let arrived = self.inodes.rights_changes();
        let outcome = self.run(op.clone(), None, reply).await;
        if !outcome.as_ref().is_err_and(|e| is_refusal(&op, e)) {
            return outcome;
        }
        for inode in [Some(inode), other].into_iter().flatten() {
            if !self.is_privileged(inode, arrived).await {
                return outcome;
            }
        }
        self.as_admitted().run(op, None, reply).await
    }

    /// Whether the kernel, when it let the request through, went by more than it was told of the inode.
    async fn is_privileged(&self, inode: InodeId, arrived: u64) -> bool {
        let q = OfInode { caller: self.callers.root(), inode };
        let Ok(now) = self.fs.getattr(q).await else { return false };
        let (now, uid) = (Rights::from(&now.attr), self.header.uid);
        self.inodes.rights_told(inode).is_some_and(|told| told.gives_no_more(now, uid, arrived))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn rights(mode: u32, uid: u32, gid: u32) -> Rights {
        Rights { mode, uid, gid, acl: false }
    }
    /// User 7, whom meta refuses by `now`, after the kernel was told all of these.
    fn admitted(told: &[Rights], now: Rights) -> bool {
        let mut all = ToldRights::default();
        told.iter().for_each(|r| all.tells(*r));
        all.gives_no_more(now, 7, 0)
    }

    #[test]
    fn who_was_let_through_by_what_was_before_is_not_admitted() {
        let closed = rights(0o700, 0, 0);
        assert!(admitted(&[closed], closed));
        assert!(admitted(&[rights(0o600, 0, 0)], closed), "it gave him nothing, either");
        assert!(!admitted(&[], closed), "nothing is known");
        // It was his, and may still be for the kernel, whatever it was told since.
        assert!(!admitted(&[rights(0o700, 7, 0)], closed));
        assert!(!admitted(&[rights(0o700, 7, 0), closed], closed));
        // Others, or a group that nobody knows he is in, had the right.
        assert!(!admitted(&[rights(0o705, 0, 0), closed], closed));
        assert!(!admitted(&[rights(0o770, 0, 0), closed], closed));
        assert!(!admitted(&[rights(0o770, 0, 5)], rights(0o770, 0, 6)));
        // As his own it is closed for him by its mode only.
        assert!(admitted(&[rights(0o500, 7, 7)], rights(0o500, 7, 7)));
        assert!(!admitted(&[rights(0o700, 7, 7)], rights(0o500, 7, 7)));
    }
    #[test]
    fn nobody_is_admitted_by_an_acl() {
        let (plain, acl) = (rights(0o640, 0, 0), Rights { acl: true, ..rights(0o640, 0, 0) });
        assert!(!admitted(&[acl], acl) && !admitted(&[acl], plain) && !admitted(&[plain], acl));
    }
    #[test]
    fn a_change_by_this_kernel_is_what_it_holds() {
        let (his, roots) = (rights(0o700, 7, 7), rights(0o700, 0, 0));
        let mut told = ToldRights::default();
        told.tells(his);
        told.holds(roots, 3);
        assert!(told.gives_no_more(roots, 7, 3));
        assert!(!told.gives_no_more(roots, 7, 2), "it came before that change");
        (0..9).for_each(|n| told.tells(rights(0o100 + n, 0, 0)));
        assert!(!told.gives_no_more(roots, 7, 3), "there may be more");
    }
}
