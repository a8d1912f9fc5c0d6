//! Messages about the right to append: one client at a time decides where the end of a file is, so that appends of several clients never
//! overlap. A client keeps the right until another one asks for it.

use super::meta::{Attr, Caller};
use crate::{InodeId, RequestId};
use minicbor::{Decode, Encode};

/// APPEND: takes the right to append, or gives it back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Append {
    /// Who asks. The right belongs to its client.
    #[n(0)]
    pub caller: Caller,
    /// The file.
    #[n(1)]
    pub inode: InodeId,
    /// Chosen by the client, new for each time that it takes the right. Giving back names it, so that a late copy of a message
    /// takes nothing away that was granted since.
    #[n(2)]
    pub grant: RequestId,
    /// Gives it back.
    #[n(3)]
    pub release: bool,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct AppendReply {
    /// The client has the right now, and these are the attributes of the file. None: another one has not given it back yet (ask again), or it
    /// was given back.
    #[n(0)]
    pub attr: Option<Attr>,
}
