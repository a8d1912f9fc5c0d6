//! Whom a read asks next, by what the one before was told.
//!
//! Guarantees: who was told that something is not decided yet asks the head next, or the tail if the head said so; and after any other refusal the replicas in turn.

use crate::routes::{self, Place};
use glowfs_types::Status;
use glowfs_types::routing::RoutingInfo;

/// Whom to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    /// The replicas one after the other.
    InTurn,
    /// The head needs nobody's word for what it shows.
    Head,
    /// The tail has no version that others have to commit first.
    Tail,
}

impl Ask {
    /// After a refusal, by the head or by another one. Where the word of a predecessor does not come, it comes to nobody behind, so the head is asked; and who was
    /// just asked has waited already.
    pub fn after(status: Status, by_head: bool) -> Self {
        match (status, by_head) {
            (Status::Pending, false) => Self::Head,
            (Status::Pending, true) => Self::Tail,
            _ => Self::InTurn,
        }
    }
}

/// Whether that member is the head of its chain.
pub(crate) fn is_head(info: &RoutingInfo, place: &Place) -> bool {
    routes::head(info, place.chain).is_ok_and(|head| head.target == place.target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_word_does_not_come_the_head_is_asked_next_and_nobody_twice() {
        assert_eq!(Ask::after(Status::Pending, false), Ask::Head);
        assert_eq!(Ask::after(Status::Pending, true), Ask::Tail);
        for other in [Status::NotServing, Status::Disconnected, Status::WrongChainVersion] {
            assert_eq!(Ask::after(other, false), Ask::InTurn);
            assert_eq!(Ask::after(other, true), Ask::InTurn);
        }
    }
}
