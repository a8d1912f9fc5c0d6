//! Messages of the checker of the whole metadata: FSCK, for root only.

use crate::InodeId;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// The greatest page, in records.
pub const FSCK_PAGE_MAX: u32 = 1000;
/// Inodes that one look or search for names is about, at most.
pub const FSCK_INODES_MAX: usize = 4096;

/// What can be wrong. The order is the order of mending: what brings something back comes before what takes something away.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Problem {
    /// A record or key does not decode: damaged, or of a newer release.
    #[default]
    #[n(0)]
    Unreadable,
    /// A key of a kind that this build does not know.
    #[n(1)]
    Unknown,
    /// The volume has a newer format.
    #[n(2)]
    NewerFormat,
    /// An entry has a name that nobody can ask for.
    #[n(3)]
    BadName,
    /// A layout that makes no sense, or names a table or chains that do not exist.
    #[n(4)]
    UnknownLayout,
    /// An access control list does not parse.
    #[n(5)]
    BadAcl,
    /// A length that no such inode can have.
    #[n(6)]
    BadLength,
    /// Entries of a directory that has no record.
    #[n(7)]
    LostDirectory,
    /// An id that was not given out yet is in use.
    #[n(8)]
    Counter,
    /// A cookie without its entry.
    #[n(9)]
    StrayCookie,
    /// An entry leads to an inode that is not there.
    #[n(10)]
    Dangling,
    /// An entry says another type than its inode.
    #[n(11)]
    WrongKind,
    /// An entry of something that is no directory.
    #[n(12)]
    NotADirectory,
    /// An entry without its cookie.
    #[n(13)]
    NoCookie,
    /// A session or lock that is not found by its client.
    #[n(14)]
    NoIndex,
    /// A record that belongs to something that is gone.
    #[n(15)]
    Stray,
    /// The number of names is not the one recorded, or something that has names is queued for removal.
    #[n(16)]
    Links,
    /// A directory with several names.
    #[n(17)]
    ExtraNames,
    /// A directory that says another parent or name than the entry that leads to it.
    #[n(18)]
    Parent,
    /// Something without a name that nobody has open and nothing is about to remove.
    #[n(19)]
    Unnamed,
    /// Directories that contain one another.
    #[n(20)]
    Cycle,
    /// The recorded number of sub-directories is wrong.
    #[n(21)]
    Subdirs,
}

impl Problem {
    /// Its name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Unknown => "unknown-record",
            Self::NewerFormat => "newer-format",
            Self::BadName => "bad-name",
            Self::UnknownLayout => "unknown-layout",
            Self::BadAcl => "bad-acl",
            Self::BadLength => "bad-length",
            Self::LostDirectory => "lost-directory",
            Self::Counter => "counter",
            Self::StrayCookie => "stray-cookie",
            Self::Dangling => "dangling",
            Self::WrongKind => "wrong-kind",
            Self::NotADirectory => "not-a-directory",
            Self::NoCookie => "no-cookie",
            Self::NoIndex => "no-index",
            Self::Stray => "stray",
            Self::Links => "links",
            Self::ExtraNames => "extra-names",
            Self::Parent => "parent",
            Self::Unnamed => "unnamed",
            Self::Cycle => "cycle",
            Self::Subdirs => "subdirs",
        }
    }
}

/// An entry of a directory, by its place.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Encode, Decode)]
pub struct Place {
    /// The directory.
    #[n(0)]
    pub parent: InodeId,
    /// The name in it.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub name: Vec<u8>,
}

/// Something that is wrong, as one transaction has seen it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Finding {
    /// What.
    #[n(0)]
    pub problem: Problem,
    /// The record that it was found in; empty if it is about an inode as a whole.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub key: Vec<u8>,
    /// The inode that it is about.
    #[n(2)]
    pub inode: InodeId,
    /// All names of the inode, where they were looked for; a cycle: the name that is taken away.
    #[n(3)]
    pub names: Vec<Place>,
    /// The change counter of the inode while they were looked for.
    #[n(4)]
    pub change: u64,
    /// In words.
    #[n(5)]
    pub text: String,
    /// What mending does, in words; empty: nothing can be done here.
    #[n(6)]
    pub cure: String,
    /// It may go by itself in a while (a dead client's): it counts if it stays.
    #[n(7)]
    pub lingers: bool,
}

/// An entry, as far as the counts need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct NameFact {
    /// The directory.
    #[n(0)]
    pub parent: InodeId,
    /// What it leads to.
    #[n(1)]
    pub inode: InodeId,
    /// It says it is a directory.
    #[n(2)]
    pub dir: bool,
    /// Parent or name in the directory's own record disagree.
    #[n(3)]
    pub odd: bool,
}

/// An inode, as far as the counts need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct InodeFact {
    /// Which.
    #[n(0)]
    pub inode: InodeId,
    /// A directory.
    #[n(1)]
    pub dir: bool,
    /// Names that it says it has.
    #[n(2)]
    pub nlink: u32,
    /// Of a directory: its parent.
    #[n(3)]
    pub parent: InodeId,
    /// It has no name and nothing holds it, or has names and is queued for removal.
    #[n(4)]
    pub odd: bool,
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum FsckWish {
    /// Checks a page of records, each with those that it leads to, and tells what the counts need.
    #[default]
    #[n(0)]
    Page,
    /// The change counters of inodes.
    #[n(1)]
    Look,
    /// The names of inodes, in a page of entries.
    #[n(2)]
    Places,
    /// Whether an inode is as its names say; they were looked for since its change counter was what is given.
    #[n(3)]
    Judge,
    /// Whether a directory is its own ancestor.
    #[n(4)]
    Cycle,
    /// Whether a directory has as many sub-directories as is recorded.
    #[n(5)]
    Subdirs,
    /// Whether a finding of a page is still so.
    #[n(6)]
    Verify,
    /// Mends a finding, if it is still so.
    #[n(7)]
    Mend,
}

/// FSCK.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Fsck {
    /// What.
    #[n(0)]
    pub wish: FsckWish,
    /// Page, Places: where it begins; empty: at the beginning.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub from: Vec<u8>,
    /// Page, Places: records, at most.
    #[n(2)]
    pub limit: u32,
    /// Look, Places: which. Cycle, Subdirs: the first one.
    #[n(3)]
    pub inodes: Vec<InodeId>,
    /// Verify, Mend: what. Judge: inode, names and change counter of it.
    #[n(4)]
    pub finding: Option<Finding>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct FsckReply {
    /// What is wrong.
    #[n(0)]
    pub findings: Vec<Finding>,
    /// Page: entries.
    #[n(1)]
    pub names: Vec<NameFact>,
    /// Page: inodes.
    #[n(2)]
    pub inodes: Vec<InodeFact>,
    /// Page: directories, and how many sub-directories are recorded of each.
    #[n(3)]
    pub subdirs: Vec<(InodeId, i64)>,
    /// Page: an entry could not be read, so counts of names may be too small.
    #[n(4)]
    pub blind: bool,
    /// Places: what leads to the inodes asked for.
    #[n(5)]
    pub places: Vec<(InodeId, Place)>,
    /// Look: the change counters of those that are there.
    #[n(6)]
    pub changes: Vec<(InodeId, u64)>,
    /// Page, Places: where the next one begins; absent at the end.
    #[n(7)]
    pub next: Option<ByteVec>,
    /// Page, Places: records read.
    #[n(8)]
    pub records: u64,
    /// Judge, Mend: somebody has changed it meanwhile.
    #[n(9)]
    pub busy: bool,
    /// Mend: it was done.
    #[n(10)]
    pub mended: bool,
    /// Mend: inodes that clients must look at anew.
    #[n(11)]
    pub touched: Vec<InodeId>,
    /// Page: the inodes of the volume, for progress.
    #[n(12)]
    pub total_inodes: u64,
}
