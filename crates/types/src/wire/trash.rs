//! Messages about the trash: TRASH, for administrators.

use super::meta::Time;
use crate::InodeId;
use minicbor::{Decode, Encode};
use std::fmt;

/// The greatest page of a list.
pub const TRASH_PAGE_MAX: u32 = 1000;

/// Names a file in the trash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Encode, Decode)]
pub struct TrashId {
    /// When it goes for good, in seconds since the Unix epoch.
    #[n(0)]
    pub until: u64,
    /// The file.
    #[n(1)]
    pub inode: InodeId,
}

impl fmt::Display for TrashId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.until, self.inode)
    }
}

impl std::str::FromStr for TrashId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts =
            text.split_once('-').and_then(|(u, i)| Some((u.parse().ok()?, i.parse().ok()?)));
        let (until, inode) =
            parts.ok_or("an id of the trash is two numbers, as `trash list` shows it")?;
        Ok(Self { until, inode })
    }
}

/// A file in the trash.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct TrashEntry {
    /// Its id.
    #[n(0)]
    pub id: TrashId,
    /// Where it was; empty if that is not known.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// Its name there.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub name: Vec<u8>,
    /// When it was removed.
    #[n(3)]
    pub removed: Time,
    /// Who removed it.
    #[n(4)]
    pub uid: u32,
    /// Its length.
    #[n(5)]
    pub len: u64,
    /// The directory it was in.
    #[n(6)]
    pub parent: InodeId,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum TrashWish {
    /// A page of what is there.
    #[default]
    #[n(0)]
    List,
    /// One file is put back.
    #[n(1)]
    Restore,
    /// One file goes for good.
    #[n(2)]
    Purge,
}

/// TRASH.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Trash {
    /// What.
    #[n(0)]
    pub wish: TrashWish,
    /// The file; of a list: it begins behind this one.
    #[n(1)]
    pub id: Option<TrashId>,
    /// Restore: to this path instead of where it was.
    #[n(2)]
    pub to: Option<minicbor::bytes::ByteVec>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct TrashReply {
    /// List: the page.
    #[n(0)]
    pub entries: Vec<TrashEntry>,
    /// List: there are more.
    #[n(1)]
    pub more: bool,
    /// Restore: where it is now.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub path: Vec<u8>,
}
