//! Open files: opening them, capabilities, and what a session has done.

use super::{Attr, Caller, Time, is_false, is_zero};
use crate::{InodeId, RequestId, SessionId, TruncateEpoch};
use minicbor::{Decode, Encode};

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct OpenFlags {
    /// For reading.
    #[n(0)]
    pub read: bool,
    /// For writing.
    #[n(1)]
    pub write: bool,
    /// Cut to length 0.
    #[n(2)]
    pub truncate: bool,
    /// The session to use: chosen by the client, so that a retry finds it.
    #[n(3)]
    pub session: SessionId,
    /// Only to append.
    #[cbor(n(4), default)]
    pub append: bool,
    /// The client knows of contents that are kept with the metadata. For one that does not, they are put into chunks first.
    #[cbor(n(5), default, skip_if = "is_false")]
    pub inline: bool,
    /// With `read`: to run it, so who may run it need not be allowed to read it. (Left out if not, as by older releases.)
    #[cbor(n(6), default, skip_if = "is_false")]
    pub exec: bool,
}

/// OPEN.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Open {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The file.
    #[n(2)]
    pub inode: InodeId,
    /// How.
    #[n(3)]
    pub flags: OpenFlags,
}

/// OPEN's answer, and RENEW's.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OpenReply {
    /// Attributes after the open.
    #[n(0)]
    pub attr: Attr,
    /// The session, if it was opened for writing.
    #[n(1)]
    pub session: Option<SessionId>,
    /// A [`crate::Capability`], as bytes.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub capability: Vec<u8>,
    /// How long the capability lasts, in ms, counted from when the client asked.
    #[n(3)]
    pub capability_ms: u64,
    /// How long the client may keep the attributes, in ms, counted from when it asked.
    #[cbor(n(4), default)]
    pub lease_ms: u64,
    /// All bytes of a file whose contents are kept with the metadata, if it was opened for reading. They are those of `attr`.
    #[n(5)]
    pub content: Option<minicbor::bytes::ByteVec>,
}

/// RENEW: a fresh capability for an open file.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Renew {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// The file.
    #[n(1)]
    pub inode: InodeId,
    /// Its session, if any.
    #[n(2)]
    pub session: Option<SessionId>,
    /// For reading.
    #[n(3)]
    pub read: bool,
    /// For writing.
    #[n(4)]
    pub write: bool,
    /// Contents that are kept with the metadata are to be put into chunks first.
    #[cbor(n(5), default, skip_if = "is_false")]
    pub spill: bool,
    /// As in [`OpenFlags::exec`].
    #[cbor(n(6), default, skip_if = "is_false")]
    pub exec: bool,
}

/// REOPEN: a session that the metadata engine has lost with its power, once more and under the same number. It is answered as RENEW is; `SessionEnded`: it was not
/// lost so, or its client is dead.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Reopen {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once: a copy that comes after the session was closed does not open it.
    #[n(1)]
    pub request: RequestId,
    /// The file.
    #[n(2)]
    pub inode: InodeId,
    /// The session that it had.
    #[n(3)]
    pub session: SessionId,
    /// For reading.
    #[n(4)]
    pub read: bool,
    /// For writing.
    #[n(5)]
    pub write: bool,
    /// As in [`OpenFlags::exec`].
    #[n(6)]
    pub exec: bool,
    /// The life of the engine ([`Attr::life`]) in which meta last said that the session was there: only a later one can have lost it.
    #[n(7)]
    pub life: u64,
    /// As in [`Sync::fence`]: the number that writes to contents with the metadata go with now.
    #[n(8)]
    pub fence: u64,
    /// The last [`crate::Capability`] that the session got, as bytes, also if its time is over: what it says that the session was opened for, nobody has to
    /// be allowed anew.
    #[cbor(n(9), with = "minicbor::bytes")]
    pub capability: Vec<u8>,
}

/// SYNC and CLOSE: what a session has done to a file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Sync {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The file.
    #[n(2)]
    pub inode: InodeId,
    /// The session; none for a file that was open for reading.
    #[n(3)]
    pub session: Option<SessionId>,
    /// The file is at least this long (the greatest end of its writes), if it wrote.
    #[n(4)]
    pub len_at_least: Option<u64>,
    /// The truncate epoch that the writes were made under; the length is ignored if the file was cut since.
    #[n(5)]
    pub epoch: TruncateEpoch,
    /// When it last wrote.
    #[n(6)]
    pub mtime: Option<Time>,
    /// When it last read.
    #[n(7)]
    pub atime: Option<Time>,
    /// Must be on disk before the answer.
    #[n(8)]
    pub durable: bool,
    /// Bytes of the blocks that exist, if the session made holes or found some and has counted.
    #[n(9)]
    pub allocated: Option<u64>,
    /// SYNC: writes to contents with the metadata that this session has sent with a smaller number, and that took no effect yet, never will.
    #[cbor(n(10), default, skip_if = "is_zero")]
    pub fence: u64,
    /// It wrote, also where it does not say when, because somebody has set the time since. A metadata service of an older release goes by `mtime` alone.
    #[cbor(n(11), default, skip_if = "is_false")]
    pub wrote: bool,
}

impl Sync {
    /// Whether it tells of writes.
    pub fn tells_of_writes(&self) -> bool {
        self.wrote || self.mtime.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{decode, encode};
    use super::*;

    #[test]
    fn golden_bytes_of_a_reopen() {
        let (inode, session) = (InodeId(7), SessionId(2));
        let q = Reopen { inode, session, write: true, life: 9, ..Reopen::default() };
        let bytes = encode(&q);
        assert_eq!(decode::<Reopen>(&bytes).expect("read"), q);
        let id = |n| [&[0x50], &u128::to_le_bytes(n)[..]].concat();
        let end = [&[7], &id(2)[..], &[0xf4, 0xf5, 0xf4, 9, 0, 0x40]].concat();
        assert_eq!((bytes[0], &bytes[bytes.len() - end.len()..]), (0x8a, &end[..]));
    }
}
