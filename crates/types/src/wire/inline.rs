//! Messages about the contents of small files that are kept with the metadata.
//!
//! A file begins so if its layout has [`crate::Layout::inline_bytes`] and the client that makes it knows of it. It ends when its contents would
//! become longer, or when somebody needs chunks (RENEW with `spill`), and never begins again. Each read and write is a transaction.

use super::meta::{Attr, Caller, is_false, is_zero};
use crate::{InodeId, RequestId, SessionId, TruncateEpoch};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

/// INLINE_READ: all of the contents.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct InlineRead {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// The file.
    #[n(1)]
    pub inode: InodeId,
    /// Its session, if any.
    #[n(2)]
    pub session: Option<SessionId>,
    /// As in [`super::meta::OpenFlags::exec`].
    #[cbor(n(3), default, skip_if = "is_false")]
    pub exec: bool,
}

/// INLINE_WRITE: puts bytes at an offset; what lies between the end of the file and them becomes zeros.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct InlineWrite {
    /// Who asks.
    #[n(0)]
    pub caller: Caller,
    /// Takes effect once.
    #[n(1)]
    pub request: RequestId,
    /// The file.
    #[n(2)]
    pub inode: InodeId,
    /// The session that it is open for writing with.
    #[n(3)]
    pub session: SessionId,
    /// Where the bytes go. They end at `inline_bytes` of the file's layout at the latest.
    #[n(4)]
    pub offset: u64,
    /// The bytes.
    #[n(5)]
    pub bytes: ByteVec,
    /// Has no effect if SYNC has told of a greater number in this session ([`super::meta::Sync::fence`]).
    #[cbor(n(6), default, skip_if = "is_zero")]
    pub fence: u64,
    /// Its place was computed for this truncate epoch: when the file has another one, it has no effect, and is answered with `Stale`.
    #[n(7)]
    pub under: Option<TruncateEpoch>,
}

/// The answer to both.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct InlineReply {
    /// Attributes, as of the same moment. If they do not say [`Attr::inline`], the contents are in chunks (by now).
    #[n(0)]
    pub attr: Attr,
    /// How long the client may keep the attributes, and the contents with them, in ms, counted from when it asked.
    #[n(1)]
    pub lease_ms: u64,
    /// INLINE_READ: all of the contents. None: they are in chunks.
    #[n(2)]
    pub content: Option<ByteVec>,
    /// INLINE_WRITE: it is done. Otherwise it had no effect, because the contents are in chunks.
    #[n(3)]
    pub done: bool,
}

#[cfg(test)]
mod tests {
    use super::super::meta::{OpenFlags, Renew};
    use super::super::{decode, encode};
    use super::*;

    /// What is not run is written as by releases that know nothing of it, and what they wrote is read.
    #[test]
    fn golden_bytes_of_what_is_run() {
        let flags = OpenFlags { read: true, inline: true, ..OpenFlags::default() };
        let session = [0x50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let before = [&[0x86, 0xf5, 0xf4, 0xf4], &session[..], &[0xf4, 0xf5]].concat();
        assert_eq!(encode(&flags), before);
        let runs = OpenFlags { exec: true, ..flags };
        assert_eq!(encode(&runs), [&[0x87], &before[1..], &[0xf5]].concat());
        assert_eq!(decode::<OpenFlags>(&before).expect("read"), flags);
        assert_eq!(decode::<OpenFlags>(&encode(&runs)).expect("read"), runs);
        let read = InlineRead::default();
        assert_eq!(encode(&read)[0], 0x82, "no session, so nothing behind the inode");
        let read = InlineRead { exec: true, ..read };
        assert_eq!(decode::<InlineRead>(&encode(&read)).expect("read"), read);
        let (caller, inode) = (Caller::default(), InodeId(7));
        let renew = Renew {
            caller,
            inode,
            session: None,
            read: true,
            write: false,
            spill: false,
            exec: false,
        };
        assert_eq!(encode(&renew)[0], 0x85);
        let renew = Renew { exec: true, ..renew };
        assert_eq!(decode::<Renew>(&encode(&renew)).expect("read"), renew);
    }

    /// The same of writes whose place does not depend on the length of the file.
    #[test]
    fn golden_bytes_of_a_write() {
        let (caller, request, inode) = (Caller::default(), RequestId(1), InodeId(7));
        let (session, offset, bytes) = (SessionId(2), 3, b"x".to_vec().into());
        let write =
            InlineWrite { caller, request, inode, session, offset, bytes, fence: 0, under: None };
        let before = encode(&write);
        assert_eq!(before[0], 0x86);
        let fenced = InlineWrite { fence: 9, ..write.clone() };
        assert_eq!(encode(&fenced)[0], 0x87);
        for fence in [0, 9] {
            let under = Some(TruncateEpoch(4));
            let placed = InlineWrite { fence, under, ..write.clone() };
            let with = encode(&placed);
            assert_eq!((with[0], &with[1..before.len()]), (0x88, &before[1..]));
            assert_eq!(decode::<InlineWrite>(&with).expect("read"), placed);
        }
    }
}
