//! CLOSES: many sessions closed with one message and, at the service, one transaction.

use super::meta::{Caller, Sync};
use minicbor::{Decode, Encode};

/// The greatest number of sessions in one [`Closes`].
pub const CLOSES_MAX: usize = 256;

/// CLOSES: what CLOSE does, for each of these. They take effect in order; one that is refused hinders no other.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Closes {
    /// Whose sessions they are: the client and the volume count for all of them.
    #[n(0)]
    pub caller: Caller,
    /// At most [`CLOSES_MAX`]; each with the user that it is for.
    #[n(1)]
    pub closes: Vec<Sync>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ClosesReply {
    /// What became of each: [`crate::Status`] as a number, 0 if it was closed.
    #[n(0)]
    pub statuses: Vec<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};
    use crate::{ClientId, InodeId, SessionId};

    #[test]
    fn golden_bytes() {
        let caller = Caller { client: ClientId(5), ..Caller::default() };
        let close = Sync {
            inode: InodeId(7),
            session: Some(SessionId(9)),
            len_at_least: Some(10),
            ..Sync::default()
        };
        let q = Closes { caller, closes: vec![close] };
        let bytes = encode(&q);
        assert_eq!(decode::<Closes>(&bytes).expect("decoded"), q);
        let reply = encode(&ClosesReply { statuses: vec![0, 12] });
        assert_eq!(reply, [0x81, 0x82, 0, 12]);
        assert_eq!(bytes[..2], [0x82, 0x85], "two fields, the first one a caller of five");
    }
}
