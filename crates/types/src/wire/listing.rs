//! READDIR: pages of a directory.

use super::atime::AtimeRule;
use super::meta::{Attr, Caller, InodeKind, Name};
use crate::InodeId;
use minicbor::{Decode, Encode};

/// READDIR.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadDir {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// The directory.
    #[n(1)]
    pub inode: InodeId,
    /// Only entries after this cookie; 0 for the start.
    #[n(2)]
    pub after: u64,
    /// At most so many.
    #[n(3)]
    pub limit: u32,
    /// With attributes.
    #[n(4)]
    pub attributes: bool,
    /// Whether the directory's time of last access moves.
    #[cbor(n(5), default, skip_if = "AtimeRule::is_default")]
    pub atime: AtimeRule,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DirEntry {
    /// Its name.
    #[n(0)]
    pub name: Name,
    /// Its inode.
    #[n(1)]
    pub inode: InodeId,
    /// Its kind.
    #[n(2)]
    pub kind: InodeKind,
    /// A stable position: listing goes on after it even when it was removed. Never 0.
    #[n(3)]
    pub cookie: u64,
    /// Its attributes, if asked for.
    #[n(4)]
    pub attr: Option<Attr>,
    /// They may be kept for [`ReadDirReply::lease_ms`], and the name as well. (Left out if not, as by older releases.)
    #[cbor(n(5), default, skip_if = "not_leased")]
    pub leased: bool,
}

/// READDIR's answer (`.` and `..` are the client's to add).
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ReadDirReply {
    /// The page.
    #[n(0)]
    pub entries: Vec<DirEntry>,
    /// Whether the directory ends here.
    #[n(1)]
    pub end: bool,
    /// The directory's parent.
    #[n(2)]
    pub parent: InodeId,
    /// How long what is leased of the page may be kept, counted from before the question.
    #[cbor(n(3), default)]
    pub lease_ms: u64,
    /// Of the first page, if the directory does not end with it: the greatest cookie there was. What comes behind it was made, or moved
    /// in, since: a new name in the same directory keeps its place. (Left out otherwise, and by older releases.)
    #[n(4)]
    pub last: Option<u64>,
}

fn not_leased(leased: &bool) -> bool {
    !leased
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn golden_bytes() {
        let page = ReadDirReply { parent: InodeId(7), lease_ms: 9, ..ReadDirReply::default() };
        let before = [0x84, 0x80, 0xf4, 7, 9];
        assert_eq!(encode(&page), before, "as written by older releases");
        assert_eq!(decode::<ReadDirReply>(&before).expect("read"), page);
        let first = ReadDirReply { last: Some(5), ..page };
        assert_eq!(encode(&first), [0x85, 0x80, 0xf4, 7, 9, 5]);
        assert_eq!(decode::<ReadDirReply>(&encode(&first)).expect("read"), first);
    }
}
