//! Times of last access: by which rule reads move them, and READLINK.
//!
//! Clients note when they read a file and tell meta later. Directories and symlinks are read by meta, so each such request says by which rule.

use super::meta::{Attr, Caller, Time};
use crate::InodeId;
use minicbor::{Decode, Encode};

/// How old a time of last access may grow before a read renews it all the same, in seconds.
const ACCESS_AGE_SECS: i64 = 24 * 60 * 60;

/// Which reads move a time of last access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum AtimeRule {
    /// The first one after a change, and then one a day.
    #[default]
    #[n(0)]
    Relative,
    /// Every one.
    #[n(1)]
    Always,
    /// None.
    #[n(2)]
    Never,
}

impl AtimeRule {
    /// The rule of requests that name none.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Attr {
    /// Whether a read at `now` moves the time of last access.
    pub fn wants_atime(&self, rule: AtimeRule, now: Time) -> bool {
        let unread = || self.atime <= self.mtime.max(self.ctime);
        let old = || now.secs.saturating_sub(self.atime.secs) >= ACCESS_AGE_SECS;
        match rule {
            AtimeRule::Relative => now > self.atime && (unread() || old()),
            AtimeRule::Always => now > self.atime,
            AtimeRule::Never => false,
        }
    }
}

/// READLINK. Without a rule it is [`super::meta::OfInode`], as older releases send it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadLink {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// The symlink.
    #[n(1)]
    pub inode: InodeId,
    /// Whether its time of last access moves.
    #[cbor(n(2), default, skip_if = "AtimeRule::is_default")]
    pub atime: AtimeRule,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::meta::{OfInode, ReadDir};
    use crate::wire::{decode, encode};

    #[test]
    fn rules() {
        let at = |secs| Time { secs, nanos: 0 };
        let read = Attr { atime: at(100), mtime: at(50), ctime: at(60), ..Attr::default() };
        let unread = Attr { atime: at(60), ..read.clone() };
        let wants = |a: &Attr, rule, secs| a.wants_atime(rule, at(secs));
        use AtimeRule::*;
        assert!(wants(&unread, Relative, 101) && !wants(&read, Relative, 101));
        assert!(wants(&read, Relative, 100 + ACCESS_AGE_SECS));
        assert!(wants(&read, Always, 101) && !wants(&read, Always, 100), "never backwards");
        assert!(!wants(&unread, Never, 101) && !wants(&read, Never, 100 + ACCESS_AGE_SECS));
    }

    /// Releases before the rule neither send nor know it.
    #[test]
    fn older_releases_understand_and_are_understood() {
        let (caller, inode) = (Caller { uid: 7, ..Caller::default() }, InodeId(9));
        let old = OfInode { caller: caller.clone(), inode };
        let new = ReadLink { caller: caller.clone(), inode, atime: AtimeRule::Relative };
        assert_eq!(encode(&old), encode(&new));
        assert_eq!(decode::<ReadLink>(&encode(&old)).expect("an older request"), new);
        let never = ReadLink { atime: AtimeRule::Never, ..new };
        assert_eq!(decode::<ReadLink>(&encode(&never)).expect("the same"), never);
        assert_eq!(decode::<OfInode>(&encode(&never)).expect("for an older service"), old);

        let list = |atime| ReadDir {
            caller: caller.clone(),
            inode,
            after: 3,
            limit: 4,
            attributes: true,
            atime,
        };
        let (plain, strict) =
            (encode(&list(AtimeRule::Relative)), encode(&list(AtimeRule::Always)));
        // An array of five, as ever; then of six, with the number of the rule at its end.
        assert_eq!((plain[0], strict[0]), (0x85, 0x86));
        assert_eq!(strict[1..], [&plain[1..], &[1]].concat());
        assert_eq!(decode::<ReadDir>(&plain).expect("an older request"), list(AtimeRule::Relative));
        assert_eq!(decode::<ReadDir>(&strict).expect("the same"), list(AtimeRule::Always));
    }
}
